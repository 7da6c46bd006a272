//! The admin address, as operators, probes and strangers meet it: over plain sockets.

use std::net::SocketAddr;

use crate::support::{Client, Http, Lockgate, RedisServer};

mod bounds;
pub(crate) mod events;
mod readiness;
mod routes;
mod takes_locks;

/// A gate with an admin address, with these flags and variables beside.
fn gate(flags: &[&str], environment: &[(&str, &str)]) -> Lockgate {
    let flags = [&["--admin", "127.0.0.1:0"], flags].concat();
    Lockgate::start_with(&flags, environment)
}

fn gate_before(redis: &RedisServer, environment: &[(&str, &str)]) -> Lockgate {
    gate(&["--upstream", &redis.url()], environment)
}

/// A gate that will drain for as long as its client stays, which it will: an owner that can be told by a push.
fn gate_that_drains() -> (Lockgate, Client) {
    let gate = gate(&[], &[("LOCKGATE_DRAIN", "1h")]);
    let mut owner = gate.client();
    owner.say("HELLO 3");
    assert_eq!(owner.say("LOCK k TOKEN t SESSION"), "t");
    (gate, owner)
}

/// The answer to a request on a connection of its own.
#[track_caller]
pub(crate) fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    let answer = Http::connect(admin).get(path);
    (answer.status, answer.body)
}
