//! Absorbed commands when connections break: each is executed once at most, and waits for no longer than it has to.

use std::time::{Duration, Instant};

use super::{RELEASE, release};
use crate::support::{Lockgate, Machine, Place, Proxy, RedisServer, Value, frame, words};

/// A lockgate whose way to Redis is the proxy.
fn behind_a_proxy(park: &str) -> (Place, Proxy) {
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let url = proxy.url();
    let environment = [
        ("LOCKGATE_ABSORB_KEYS", "lock:*"),
        ("LOCKGATE_ABSORB_TRY_KEYS", "try:*"),
        ("LOCKGATE_ABSORB_PARK", park),
    ];
    let gate = Lockgate::start_with(&["--upstream", &url], &environment);
    (Place::of(Some(redis), gate, Machine::shared()), proxy)
}

/// Executed again, it would delete the lock of the next holder.
#[test]
fn a_deletion_without_a_reply_closes_its_client_and_is_not_executed_again() {
    let (place, proxy) = behind_a_proxy("10s");
    let mut holder = place.client();
    // Redis knows the script from then on.
    assert_eq!(holder.say("SET lock:b 1 NX PX 20000"), "OK");
    assert_eq!(holder.say("DEL lock:b"), 1);
    assert_eq!(holder.say("SET lock:a 1 NX PX 20000"), "OK");
    proxy.drop_replies(true);
    holder.send(&["DEL", "lock:a"]);
    let mut direct = place.redis().client();
    crate::support::eventually("Redis deletes it", || {
        direct.say("SET lock:a 1 NX PX 60000") == "OK"
    });
    holder.is_closed_by_the_server();
    proxy.drop_replies(false);
    proxy.cut();
    let mut other = place.client();
    assert_eq!(other.say("SET lock:a 1 NX PX 60000"), Value::Nil);
    assert_eq!(direct.say("GET lock:a"), "1");
}

#[test]
fn a_release_that_overtook_is_not_executed_again_although_the_rules_change() {
    let redis = RedisServer::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lockgate.toml");
    let config = |keys: &str| format!("[absorb]\nkeys = \"{keys}\"\npark = \"10s\"\n");
    std::fs::write(&file, config("lock:*")).unwrap();
    let url = redis.url();
    let flags = ["--upstream", &url, "--config", file.to_str().unwrap()];
    let place = Place::of(Some(redis), Lockgate::start(&flags), Machine::shared());
    let (mut holder, mut client) = (place.client(), place.client());
    assert_eq!(holder.say("LOCK other TOKEN t"), "t");
    assert_eq!(client.say("SET lock:a 1 NX PX 60000"), "OK");
    client.send(&["LOCK", "other", "TOKEN", "t2"]);
    place.gate.awaits_waiters("other", 1);
    client.send(&["EVAL", RELEASE, "1", "lock:a", "1"]);
    let mut direct = place.redis().client();
    crate::support::eventually("the release overtakes", || {
        direct.say("SET lock:a 1 NX PX 60000") == "OK"
    });
    std::fs::write(&file, config("")).unwrap();
    place.gate.reload();
    assert_eq!(holder.say("UNLOCK other t"), 1);
    assert_eq!(client.read_reply(), "t2");
    assert_eq!(client.read_reply(), 1);
    assert_eq!(direct.say("GET lock:a"), "1");
}

/// Its own connection to Redis works, so Redis decides.
#[test]
fn without_a_connection_for_locks_commands_reach_redis_without_a_wait() {
    let (place, proxy) = behind_a_proxy("10s");
    let mut client = place.client();
    assert_eq!(client.say("SET lock:a t NX PX 60000"), "OK");
    assert_eq!(client.say("GET lock:a"), "t");
    proxy.refuse(true);
    let mut direct = place.redis().client();
    let list = direct.say("CLIENT LIST").text();
    let ids = list
        .lines()
        .filter_map(|line| line.split_once("id=")?.1.split_once(' '));
    // The relay's connection speaks RESP2.
    for (id, _) in ids.filter(|(_, rest)| rest.contains("resp=3")) {
        direct.call(&["CLIENT", "KILL", "ID", id]);
    }
    // The first attempt learns that the connection is gone.
    client.say("SET try:0 t NX PX 60000");
    let start = Instant::now();
    assert_eq!(client.say("SET try:1 t NX PX 60000"), "OK");
    assert_eq!(release(&mut client, "lock:a", "t"), 1);
    let took = start.elapsed();
    assert!(took < Duration::from_millis(1_500), "{took:?}");
}

/// A push tells its owner.
#[test]
fn the_lock_of_a_session_is_deleted_by_redis() {
    let place = super::place("10s");
    let (mut owner, mut other) = (place.client(), place.client());
    owner.say("HELLO 3");
    assert_eq!(owner.say("LOCK lock:a TOKEN t PX 20000 SESSION"), "t");
    assert_eq!(other.say("DEL lock:a"), 1);
    let Value::Push(items) = owner.read_reply() else {
        panic!("the owner gets a push");
    };
    assert_eq!(items[0], "lock-lost");
}

/// Each as fast as any other command.
#[test]
fn attempts_at_free_locks_pass_in_a_pipeline() {
    let place = super::place("10s");
    let mut client = place.client();
    let attempt = |number: u32| frame(&words(&format!("SET lock:{number} t NX PX 60000")));
    client.write_raw(&(0..200).flat_map(attempt).collect::<Vec<_>>());
    for _ in 0..200 {
        assert_eq!(client.read_reply(), "OK");
    }
    let absorbed = crate::support::counted(&mut client, "absorbed_attempts_free");
    assert!(absorbed < 20, "{absorbed} had to wait for those before");
}
