//! The replies to lock commands, in the client's protocol.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::{
    error,
    gate::{Grant, Info, Label},
    lock::Refusal,
    resp::{Protocol, Writer},
};

/// Writes the reply to a granted `LOCK` or `TRYLOCK`.
pub(crate) fn granted(out: &mut BytesMut, protocol: Protocol, grant: &Grant) {
    let mut writer = Writer::new(out, protocol);
    if let Some(fence) = grant.fence() {
        writer.array(2);
        writer.bulk(grant.token().as_bytes());
        writer.integer(i64::try_from(fence).unwrap_or(i64::MAX));
    } else {
        writer.bulk(grant.token().as_bytes());
    }
}

/// Writes the reply to a `LOCK` or `TRYLOCK` that was not granted.
pub(crate) fn nil(out: &mut BytesMut, protocol: Protocol) {
    Writer::new(out, protocol).null();
}

/// Writes the reply to `UNLOCK` or `RELOCK`: whether the token held the lock.
pub(crate) fn number(out: &mut BytesMut, protocol: Protocol, number: i64) {
    Writer::new(out, protocol).integer(number);
}

/// Writes an error; `text` has no leading `-`.
pub(crate) fn error(out: &mut BytesMut, protocol: Protocol, text: &str) {
    Writer::new(out, protocol).error(text);
}

/// Writes the error of a refused request.
pub(crate) fn refusal(out: &mut BytesMut, protocol: Protocol, refusal: &Refusal) {
    Writer::new(out, protocol).error(error::refusal(refusal));
}

/// Writes the reply to `LOCKS`: names.
pub(crate) fn locks(out: &mut BytesMut, protocol: Protocol, names: &[Arc<[u8]>]) {
    let mut writer = Writer::new(out, protocol);
    writer.array(names.len());
    names.iter().for_each(|name| writer.bulk(name));
}

/// Writes the reply to `LOCKINFO`: a map. It never contains a token.
pub(crate) fn info(out: &mut BytesMut, protocol: Protocol, info: Result<Info, Bytes>) {
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
        ("held", i64::from(info.status.held)),
        ("ttl", info.status.ttl_ms),
        ("granted-here", i64::from(held_here.is_some())),
        ("held-here", number(held_here.unwrap_or(0))),
        ("session", i64::from(here.is_some_and(|here| here.session))),
        (
            "fence",
            number(here.and_then(|here| here.fence).unwrap_or(0)),
        ),
        ("replicas", here.map_or(0, |here| i64::from(here.replicas))),
        ("spins", i64::from(here.is_some_and(|here| here.spins))),
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
