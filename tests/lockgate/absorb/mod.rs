//! Clients that take locks by commands of Redis's own, unchanged, through lockgate.

mod alone;
mod attempts;
mod connections;
mod failures;
mod histories;
mod passing;

use crate::support::{Client, Lockgate, Machine, Monitor, Place, RedisServer};

/// The release in Redis's documentation.
const RELEASE: &str = "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end";

/// The SHA1 of redis-py's release.
const RELEASE_OF_REDIS_PY: &str = "c3f8721cbb97f72bc19e972846bd7aaf91901658";

/// The text of it.
const TEXT_OF_REDIS_PY: &str = "\n        local token = redis.call('get', KEYS[1])\n        if not token or token ~= ARGV[1] then\n            return 0\n        end\n        redis.call('del', KEYS[1])\n        return 1\n    ";

/// A lockgate in front of a Redis that absorbs the keys `lock:*`, and tries at `try:*`. An attempt waits for `park`.
fn place(park: &str) -> Place {
    with(RedisServer::start(&[]), park)
}

fn with(redis: RedisServer, park: &str) -> Place {
    let url = redis.url();
    let flags = ["--upstream", &url];
    let environment = [
        ("LOCKGATE_ABSORB_KEYS", "lock:*"),
        ("LOCKGATE_ABSORB_TRY_KEYS", "try:*"),
        ("LOCKGATE_ABSORB_PARK", park),
    ];
    let gate = Lockgate::start_with(&flags, &environment);
    Place::of(Some(redis), gate, Machine::shared())
}

fn release(client: &mut Client, key: &str, token: &str) -> crate::support::Value {
    client.call(&["EVAL", RELEASE, "1", key, token])
}

/// The names of the commands that Redis executed about this key, but for `EVAL` after `NOSCRIPT`.
fn names(monitor: &mut Monitor, key: &str) -> Vec<String> {
    let commands = monitor.commands_on(key).into_iter();
    let names = commands.map(|command| command[0].clone());
    names.filter(|name| name != "EVAL").collect()
}
