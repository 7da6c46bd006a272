//! The admin address, as operators, probes and strangers meet it: over plain sockets.

use std::net::SocketAddr;

use crate::support::{Http, Lockgate, RedisServer};

mod bounds;
mod events;
mod readiness;
mod routes;

/// A gate with an admin address, with these flags and variables beside.
fn gate(flags: &[&str], environment: &[(&str, &str)]) -> Lockgate {
    let flags = [&["--admin", "127.0.0.1:0"], flags].concat();
    Lockgate::start_with(&flags, environment)
}

fn gate_before(redis: &RedisServer, environment: &[(&str, &str)]) -> Lockgate {
    gate(&["--upstream", &redis.url()], environment)
}

/// The answer to a request on a connection of its own.
#[track_caller]
fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    let answer = Http::connect(admin).get(path);
    (answer.status, answer.body)
}
