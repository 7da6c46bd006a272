//! The replies to lock commands, in the words and the protocol of the client.

use bytes::{Bytes, BytesMut};

use crate::{
    error,
    gate::{Grant, Info, Label},
    lock::Refusal,
    resp::{Protocol, Writer},
};

/// `LOCK`, `TRYLOCK`: granted.
pub(super) fn granted(out: &mut BytesMut, protocol: Protocol, grant: &Grant) {
    let mut writer = Writer::new(out, protocol);
    if let Some(fence) = grant.fence() {
        writer.array(2);
        writer.bulk(grant.token().as_bytes());
        writer.integer(i64::try_from(fence).unwrap_or(i64::MAX));
    } else {
        writer.bulk(grant.token().as_bytes());
    }
}

/// `LOCK`, `TRYLOCK`: not granted.
pub(super) fn nil(out: &mut BytesMut, protocol: Protocol) {
    Writer::new(out, protocol).null();
}

/// `UNLOCK`, `RELOCK`: whether the token held the lock.
pub(super) fn number(out: &mut BytesMut, protocol: Protocol, number: i64) {
    Writer::new(out, protocol).integer(number);
}

/// An error, without the leading `-`.
pub(super) fn error(out: &mut BytesMut, protocol: Protocol, text: &str) {
    Writer::new(out, protocol).error(text);
}

/// The error of a refused request.
pub(super) fn refusal(out: &mut BytesMut, protocol: Protocol, refusal: &Refusal) {
    Writer::new(out, protocol).error(error::refusal(refusal));
}

/// `LOCKS`: names.
pub(super) fn locks(out: &mut BytesMut, protocol: Protocol, names: &[Bytes]) {
    let mut writer = Writer::new(out, protocol);
    writer.array(names.len());
    names.iter().for_each(|name| writer.bulk(name));
}

/// `LOCKINFO`: a map. Never a token.
pub(super) fn info(out: &mut BytesMut, protocol: Protocol, info: Result<Info, Bytes>) {
    let mut writer = Writer::new(out, protocol);
    let info = match info {
        Ok(info) => info,
        Err(text) => return writer.error(text),
    };
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let (here, client) = match &info.here {
        Some((snapshot, client)) => (Some(snapshot), client.as_deref()),
        None => (None, None),
    };
    let texts = [
        ("client", client.map(|client| client.address.to_string())),
        ("client-name", client.map(Label::name)),
        ("client-library", client.map(Label::library)),
    ];
    let held_here = here.and_then(|here| here.held_here_ms);
    let numbers = [
        ("held", i64::from(info.look.held)),
        ("ttl", info.look.ttl_ms),
        ("granted-here", i64::from(held_here.is_some())),
        ("held-here", number(held_here.unwrap_or(0))),
        ("session", i64::from(here.is_some_and(|here| here.session))),
        (
            "fence",
            number(here.and_then(|here| here.fence).unwrap_or(0)),
        ),
        (
            "waiters",
            here.map_or(0, |here| i64::try_from(here.waiters).unwrap_or(i64::MAX)),
        ),
        (
            "longest-wait",
            number(here.map_or(0, |here| here.longest_wait_ms)),
        ),
    ];
    writer.map(numbers.len() + texts.len());
    for (field, value) in numbers {
        writer.bulk(field);
        writer.integer(value);
    }
    for (field, value) in texts {
        writer.bulk(field);
        writer.bulk(value.unwrap_or_default());
    }
}
