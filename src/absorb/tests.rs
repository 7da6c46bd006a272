mod patterns;
mod rules;
mod scripts;
mod shapes;

use bytes::{Bytes, BytesMut};

use super::*;
use crate::{
    resp::{Protocol, Writer},
    testing::{Connection, Redis, Value},
};

/// Returns the shape of a command of these arguments, in database 3.
fn shape(arguments: &[&[u8]], scripts: &Scripts) -> Option<Shape> {
    let arguments: Vec<_> = arguments
        .iter()
        .map(|it| Bytes::copy_from_slice(it))
        .collect();
    Shape::of(&arguments, scripts, 3)
}

fn libraries() -> Scripts {
    Scripts::new(&ReleaseScripts::default())
}

/// Decodes a reply as a client does.
fn decoded(reply: Reply, protocol: Protocol) -> Value {
    let mut out = BytesMut::new();
    reply.write(&mut Writer::new(&mut out, protocol));
    Value::whole(protocol, &out)
}

/// The holder of the lock before a command.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Holder {
    None,
    Own,
    Other,
}

/// What a lock and a reply are after a command.
#[derive(Debug, PartialEq)]
struct After {
    reply: Value,
    holder: Holder,
    /// Whether the holder has the new lease, of 50 s; the lease before is 100 s.
    is_leased: bool,
    keys: Value,
}

/// Runs a command for the lock `k` and the token `mine` in Redis, after `before`.
fn run(redis: &mut Connection, command: &[&[u8]], before: Holder) -> After {
    redis.say("FLUSHALL");
    match before {
        Holder::None => {}
        Holder::Own => drop(redis.say("SET k mine PX 100000")),
        Holder::Other => drop(redis.say("SET k other PX 100000")),
    }
    let reply = redis.ask(command);
    let holder = match redis.say("GET k") {
        Value::Null => Holder::None,
        Value::Bulk(token) if token == b"mine" => Holder::Own,
        _ => Holder::Other,
    };
    let Value::Integer(left_ms) = redis.say("PTTL k") else {
        panic!("PTTL is a number")
    };
    After {
        reply,
        holder,
        is_leased: (0..=50_000).contains(&left_ms),
        keys: redis.say("DBSIZE"),
    }
}

/// Returns what a shape with a lease of 50 s promises.
fn promised(shape: &Shape, before: Holder, protocol: Protocol) -> After {
    let Replies {
        done,
        refused,
        gone,
    } = shape.replies;
    let (reply, holder, is_leased) = match (&shape.ask, before) {
        (Ask::Acquire { .. }, Holder::None) => (done, Holder::Own, true),
        (Ask::Acquire { equal, .. }, Holder::Own) if *equal == Equal::Again => {
            (done, Holder::Own, true)
        }
        (Ask::Acquire { .. }, _) => (refused, before, false),
        (Ask::Release { .. }, Holder::Own) => (done, Holder::None, false),
        (Ask::Extend { .. }, Holder::Own) => (done, Holder::Own, true),
        (Ask::Delete, Holder::Own | Holder::Other) => (done, Holder::None, false),
        (_, Holder::None) => (gone, Holder::None, false),
        (_, Holder::Other) => (refused, Holder::Other, false),
    };
    After {
        reply: decoded(reply, protocol),
        holder,
        is_leased,
        keys: Value::Integer(i64::from(holder != Holder::None)),
    }
}

/// Checks that a command does in Redis what its shape says.
fn check(redis: &mut Connection, command: &[&[u8]], shape: &Shape) {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        redis.hello(protocol);
        for before in [Holder::None, Holder::Own, Holder::Other] {
            let text: Vec<_> = command
                .iter()
                .map(|it| it.escape_ascii().to_string())
                .collect();
            assert_eq!(
                run(redis, command, before),
                promised(shape, before, protocol),
                "{text:?} before: {before:?}, {protocol:?}"
            );
        }
    }
}
