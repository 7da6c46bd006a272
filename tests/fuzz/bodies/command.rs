//! The parser of lock commands: whatever the arguments are, what it makes of them keeps the bounds and
//! means the same when it is written down again; what it refuses, it refuses in one line.
//!
//! The input is a frame as clients send it, or words with a byte 255 between them.

use bytes::Bytes;
use lockgate::{
    command::{Bounds, Command, parse},
    limits::{LOCK_COMMAND_ARGUMENTS, LOCK_COMMAND_BYTES, TOKEN_BYTES},
    resp::arguments,
};

pub(crate) fn body(data: &[u8]) {
    let frame = Bytes::copy_from_slice(data);
    if let Ok(words) = arguments(&frame, LOCK_COMMAND_ARGUMENTS) {
        assert!(words.len() <= LOCK_COMMAND_ARGUMENTS);
        check(&words);
    }
    let words = data.split(|&byte| byte == 255).map(Bytes::copy_from_slice);
    check(&words.collect::<Vec<_>>());
}

fn check(words: &[Bytes]) {
    let bounds = bounds();
    let command = match parse(words, &bounds) {
        Ok(command) => command,
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.starts_with("ERR ") && !text.contains(['\r', '\n']),
                "{text:?}"
            );
            return;
        }
    };
    keeps_the_bounds(&command, &bounds);
    let again = parse(&written(&command), &bounds);
    assert_eq!(again.as_ref(), Ok(&command));
}

fn bounds() -> Bounds {
    Bounds {
        key_bytes: 64,
        token_bytes: TOKEN_BYTES,
        min_lease_ms: 10,
        max_lease_ms: 86_400_000,
        command_bytes: LOCK_COMMAND_BYTES,
    }
}

fn keeps_the_bounds(command: &Command, bounds: &Bounds) {
    assert!(key(command).is_none_or(|key| key.len() <= bounds.key_bytes));
    let leases = bounds.min_lease_ms..=bounds.max_lease_ms;
    match command {
        Command::Lock {
            token,
            lease_ms,
            wait_ms,
            ..
        } => {
            let length = token.as_ref().map(|token| token.as_bytes().len());
            assert!(length.is_none_or(|length| (1..=bounds.token_bytes).contains(&length)));
            assert!(lease_ms.is_none_or(|lease_ms| leases.contains(&lease_ms)));
            assert_ne!(*wait_ms, Some(0), "for ever is none");
        }
        Command::Relock { lease_ms, .. } => {
            assert!(lease_ms.is_none_or(|lease_ms| leases.contains(&lease_ms)));
        }
        Command::Locks { count, .. } => assert_ne!(*count, Some(0)),
        Command::Unlock { .. } | Command::LockInfo { .. } => {}
    }
}

fn key(command: &Command) -> Option<&[u8]> {
    match command {
        Command::Lock { key, .. }
        | Command::Relock { key, .. }
        | Command::Unlock { key, .. }
        | Command::LockInfo { key } => Some(key),
        Command::Locks { .. } => None,
    }
}

/// The command as a careful client would write it.
fn written(command: &Command) -> Vec<Bytes> {
    let mut words = Vec::new();
    let mut add = |word: &[u8]| words.push(Bytes::copy_from_slice(word));
    match command {
        Command::Lock {
            key,
            token,
            lease_ms,
            wait_ms,
            try_only,
            fence,
            session,
            replicas,
        } => {
            add(if *try_only { b"TRYLOCK" } else { b"LOCK" });
            add(key);
            option(
                &mut add,
                "TOKEN",
                token.as_ref().map(|token| token.as_bytes()),
            );
            number(&mut add, "PX", *lease_ms);
            number(&mut add, "WAIT", *wait_ms);
            fence.then(|| add(b"FENCE"));
            session.then(|| add(b"SESSION"));
            number(&mut add, "REPLICAS", replicas.map(u64::from));
        }
        Command::Relock {
            key,
            token,
            lease_ms,
            replicas,
        } => {
            add(b"RELOCK");
            add(key);
            add(token.as_bytes());
            number(&mut add, "PX", *lease_ms);
            number(&mut add, "REPLICAS", replicas.map(u64::from));
        }
        Command::Unlock { key, token } => {
            add(b"UNLOCK");
            add(key);
            add(token.as_bytes());
        }
        Command::LockInfo { key } => {
            add(b"LOCKINFO");
            add(key);
        }
        Command::Locks { pattern, count } => {
            add(b"LOCKS");
            option(&mut add, "MATCH", pattern.as_deref());
            number(&mut add, "COUNT", count.map(|count| count as u64));
        }
    }
    words
}

fn option(add: &mut impl FnMut(&[u8]), name: &str, value: Option<&[u8]>) {
    if let Some(value) = value {
        add(name.as_bytes());
        add(value);
    }
}

fn number(add: &mut impl FnMut(&[u8]), name: &str, value: Option<u64>) {
    option(
        add,
        name,
        value
            .map(|value| value.to_string())
            .as_deref()
            .map(str::as_bytes),
    );
}
