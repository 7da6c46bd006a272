//! Natural differences between two Redis servers, which are not compared. The conversations avoid the
//! rest: clocks, ids, addresses, random picks, the order of sets.
//!
//! - The id of the connection in the reply to `HELLO`.
//! - The order in which a bare `UNSUBSCRIBE` takes the channels: that of a hash table, seeded anew by
//!   each server.
//! - How much of a long lease is left, but for its first two digits.
//! - Times and addresses in the lines of `MONITOR`, and what lockgate does in Redis for locks of the
//!   conversations before: every line about a lock, and bare `PING`s.

use crate::locks::find;

/// The same bytes without what differs by nature.
pub(crate) fn without(bytes: &[u8]) -> Vec<u8> {
    lines_of_monitor(unsubscribed_in_order(without_times(&without_ids(bytes))))
}

fn without_ids(bytes: &[u8]) -> Vec<u8> {
    const ID: &[u8] = b"$2\r\nid\r\n:";
    let (mut out, mut rest) = (Vec::new(), bytes);
    while let Some(at) = find(rest, ID) {
        out.extend_from_slice(&rest[..at + ID.len()]);
        out.extend_from_slice(b"ID");
        rest = &rest[at + ID.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        rest = &rest[digits..];
    }
    out.extend_from_slice(rest);
    out
}

/// Integers of six digits or more, as `PTTL` replies, cut to their first two.
fn without_times(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        match line {
            [b':', digits @ .., b'\r', b'\n']
                if digits.len() >= 6 && digits.iter().all(u8::is_ascii_digit) =>
            {
                out.extend_from_slice(&line[..3]);
                out.extend_from_slice(b"TIME\r\n");
            }
            _ => out.extend_from_slice(line),
        }
    }
    out
}

/// Confirmations of one kind in a row, their channels sorted.
fn unsubscribed_in_order(bytes: Vec<u8>) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let mut run = Vec::new();
        let mut end = at;
        while let Some(one) = confirmation(&bytes[end..]) {
            if run
                .first()
                .is_some_and(|first: &Confirmation<'_>| first.head != one.head)
            {
                break;
            }
            end += one.len;
            run.push(one);
        }
        if run.is_empty() {
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        let mut channels: Vec<_> = run.iter().map(|one| one.channel).collect();
        channels.sort_unstable();
        for (one, channel) in run.iter().zip(channels) {
            out.extend_from_slice(one.head);
            out.extend_from_slice(channel);
            out.extend_from_slice(one.count);
        }
        at = end;
    }
    out
}

struct Confirmation<'a> {
    head: &'a [u8],
    channel: &'a [u8],
    count: &'a [u8],
    len: usize,
}

fn confirmation(bytes: &[u8]) -> Option<Confirmation<'_>> {
    let words: [&[u8]; 3] = [
        b"3\r\n$11\r\nunsubscribe\r\n",
        b"3\r\n$12\r\npunsubscribe\r\n",
        b"3\r\n$12\r\nsunsubscribe\r\n",
    ];
    if !matches!(bytes.first()?, b'*' | b'>') {
        return None;
    }
    let word = words.iter().find(|word| bytes[1..].starts_with(word))?;
    let (head, rest) = bytes.split_at(1 + word.len());
    let line = find(rest, b"\r\n")? + 2;
    let channel_len = if rest.starts_with(b"$") && !rest.starts_with(b"$-1") {
        line + find(&rest[line..], b"\r\n")? + 2
    } else {
        line
    };
    let (channel, rest) = rest.split_at(channel_len);
    let count_len = find(rest, b"\r\n")? + 2;
    let count = &rest[..count_len];
    let len = head.len() + channel.len() + count.len();
    Some(Confirmation {
        head,
        channel,
        count,
        len,
    })
}

/// `+1700000000.123456 [0 127.0.0.1:1234] "PING"` without the time and the address.
fn lines_of_monitor(bytes: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let is_digit = |at: usize| line.get(at).is_some_and(u8::is_ascii_digit);
        let is_monitors = line.first() == Some(&b'+')
            && (1..11).all(is_digit)
            && line.get(11) == Some(&b'.')
            && (12..18).all(is_digit);
        let text = is_monitors.then(|| find(line, b"] \"")).flatten();
        let text = text.map_or(line, |at| &line[at..]);
        let is_lockgates = is_monitors
            // The latter two are absorbed: lockgate may still look at one for a client that is gone.
            && ([&b"lk:"[..], b"\"lock:", b"\"try:"].iter().any(|it| find(text, it).is_some())
                || text.starts_with(b"] \"INFO\"")
                || text == b"] \"PING\"\r\n");
        if !is_lockgates {
            out.extend_from_slice(text);
        }
    }
    out
}
