//! Attempts and releases: the replies are Redis's, the commands are fewer.

use std::time::{Duration, Instant};

use super::{RELEASE_OF_REDIS_PY, TEXT_OF_REDIS_PY, names, place, release};
use crate::support::{Monitor, Value, counted};

const LONG: &str = "10s";

#[test]
fn an_attempt_at_a_free_lock_takes_it_as_redis_would() {
    let place = place(LONG);
    let mut client = place.client();
    assert_eq!(
        client.say("SET lock:a t NX PX 20000"),
        Value::Simple("OK".into())
    );
    let mut direct = place.redis().client();
    assert_eq!(direct.say("GET lock:a"), "t");
    let left = direct.say("PTTL lock:a").integer();
    assert!((19_000..=20_000).contains(&left), "{left} ms");
    assert_eq!(release(&mut client, "lock:a", "other"), 0);
    assert_eq!(release(&mut client, "lock:a", "t"), 1);
    assert_eq!(direct.say("EXISTS lock:a"), 0);
}

#[test]
fn a_release_hands_the_lock_to_a_parked_attempt_in_one_command() {
    let place = place(LONG);
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    waiter.send(&["SET", "lock:a", "t2", "NX", "PX", "400000"]);
    place.gate.awaits_waiters("lock:a", 1);
    let mut monitor = Monitor::start(place.redis());
    assert_eq!(release(&mut holder, "lock:a", "t1"), 1);
    assert_eq!(waiter.read_reply(), Value::Simple("OK".into()));
    assert_eq!(names(&mut monitor, "lock:a"), ["EVALSHA"]);
    assert_eq!(place.redis().client().say("GET lock:a"), "t2");
}

#[test]
fn lockinfo_tells_a_holder_that_spins_from_one_that_waits() {
    let place = place(LONG);
    let (mut client, mut next) = (place.client(), place.client());
    let mut observer = place.client();
    let mut spins = || observer.say("LOCKINFO lock:a").field("spins").integer();
    assert_eq!(client.say("SET lock:a t1 NX PX 400000"), "OK");
    assert_eq!(spins(), 1);
    next.send(&["LOCK", "lock:a", "TOKEN", "t2"]);
    place.gate.awaits_waiters("lock:a", 1);
    assert_eq!(release(&mut client, "lock:a", "t1"), 1);
    assert_eq!(next.read_reply(), "t2");
    assert_eq!(spins(), 0);
    assert_eq!(next.say("UNLOCK lock:a t2"), 1);
    assert_eq!(spins(), 0, "no client holds it");
}

#[test]
fn a_parked_attempt_is_refused_in_the_clients_protocol_when_its_time_is_over() {
    let place = place("40ms");
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX EX 20"), "OK");
    let start = Instant::now();
    assert_eq!(waiter.say("set lock:a t2 px 20000 nx"), Value::Nil);
    assert!(start.elapsed() >= Duration::from_millis(10));
    waiter.say("HELLO 3");
    waiter.send(&["SET", "lock:a", "t2", "NX", "PX", "20000"]);
    assert_eq!(waiter.read_raw(3), b"_\r\n");
}

#[test]
fn an_attempt_waits_for_a_fortieth_of_its_lease_at_most() {
    let place = place(LONG);
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 20000"), "OK");
    let start = Instant::now();
    assert_eq!(waiter.say("SET lock:a t2 NX PX 2000"), Value::Nil);
    let took = start.elapsed();
    assert!((12..2_000).contains(&took.as_millis()), "{took:?}");
}

#[test]
fn repeated_attempts_at_a_held_lock_cost_redis_one_command_a_second() {
    let place = place("1ms");
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 20000"), "OK");
    assert_eq!(waiter.say("SET lock:a t2 NX PX 20000"), Value::Nil);
    let mut monitor = Monitor::start(place.redis());
    let start = Instant::now();
    for _ in 0..50 {
        assert_eq!(waiter.say("SET lock:a t2 NX PX 20000"), Value::Nil);
    }
    let most = 1 + start.elapsed().as_secs() as usize;
    let asked = names(&mut monitor, "lock:a");
    assert!(asked.len() <= most, "{asked:?}");
}

#[test]
fn the_holders_own_token_is_refused_as_by_redis() {
    let place = place("10ms");
    let (mut one, mut other) = (place.client(), place.client());
    assert_eq!(one.say("SET lock:a 1 NX EX 20"), "OK");
    assert_eq!(one.say("SET lock:a 1 NX EX 20"), Value::Nil);
    assert_eq!(other.say("SET lock:a 1 NX EX 20"), Value::Nil);
}

#[test]
fn a_deletion_of_a_lock_that_was_granted_here_hands_it_over() {
    let place = place(LONG);
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a 1 NX EX 400"), "OK");
    waiter.send(&["SET", "lock:a", "1", "NX", "EX", "400"]);
    place.gate.awaits_waiters("lock:a", 1);
    let mut monitor = Monitor::start(place.redis());
    assert_eq!(holder.say("DEL lock:a"), 1);
    assert_eq!(waiter.read_reply(), "OK");
    assert_eq!(names(&mut monitor, "lock:a"), ["EVALSHA"]);
    assert_eq!(waiter.say("UNLINK lock:a"), 1);
    assert_eq!(place.redis().client().say("EXISTS lock:a"), 0);
}

#[test]
fn a_lock_that_somebody_else_took_is_deleted_by_redis() {
    let place = place(LONG);
    let mut client = place.client();
    assert_eq!(place.redis().client().say("SET lock:a t EX 20"), "OK");
    assert_eq!(client.say("DEL lock:a"), 1);
    assert_eq!(client.say("DEL lock:a"), 0);
}

#[test]
fn a_script_that_a_library_sends_by_its_hash_releases_even_if_redis_has_not_seen_it() {
    let place = place(LONG);
    let mut client = place.client();
    assert_eq!(client.say("SET lock:a t NX PX 20000"), "OK");
    let by_hash = ["EVALSHA", RELEASE_OF_REDIS_PY, "1", "lock:a", "t"];
    assert_eq!(client.call(&by_hash), 1);
    // Nothing is known of the lock now, so Redis replies.
    assert!(client.call(&by_hash).error().starts_with("NOSCRIPT"));
    let in_full = ["EVAL", TEXT_OF_REDIS_PY, "1", "lock:a", "t"];
    assert_eq!(client.call(&in_full), 0);
}

#[test]
fn a_release_after_a_refused_attempt_costs_no_command_and_keeps_the_place() {
    let place = place("20ms");
    let (mut holder, mut first, mut second) = (place.client(), place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 20000"), "OK");
    let mut monitor = Monitor::start(place.redis());
    assert_eq!(first.say("SET lock:a t2 NX PX 20000"), Value::Nil);
    assert_eq!(release(&mut first, "lock:a", "t2"), 0);
    assert_eq!(names(&mut monitor, "lock:a"), [""; 0]);
    second.send(&["LOCK", "lock:a", "TOKEN", "t3"]);
    place.gate.awaits_waiters("lock:a", 1);
    first.send(&["SET", "lock:a", "t2", "NX", "PX", "20000"]);
    place.gate.awaits_waiters("lock:a", 2);
    assert_eq!(release(&mut holder, "lock:a", "t1"), 1);
    assert_eq!(first.read_reply(), "OK");
    assert_eq!(release(&mut first, "lock:a", "t2"), 1);
    assert_eq!(second.read_reply(), "t3");
}

#[test]
fn redsyncs_release_tells_a_missing_lock_from_another_holders() {
    const TEXT: &str = "\n\tlocal val = redis.call(\"GET\", KEYS[1])\n\tif val == ARGV[1] then\n\t\treturn redis.call(\"DEL\", KEYS[1])\n\telseif val == false then\n\t\treturn -1\n\telse\n\t\treturn 0\n\tend\n";
    let place = place("10ms");
    let (mut holder, mut other) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 20000"), "OK");
    let by = |client: &mut crate::support::Client, token| {
        client.call(&["EVAL", TEXT, "1", "lock:a", token])
    };
    assert_eq!(by(&mut other, "t2"), 0);
    assert_eq!(place.redis().client().say("DEL lock:a"), 1);
    assert_eq!(by(&mut holder, "t1"), -1);
}

#[test]
fn an_extension_begins_the_lease_anew() {
    const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
    let place = place(LONG);
    let mut client = place.client();
    assert_eq!(client.say("SET lock:a t NX PX 20000"), "OK");
    assert_eq!(
        client.call(&["EVAL", EXTEND, "1", "lock:a", "t", "90000"]),
        1
    );
    let left = place.redis().client().say("PTTL lock:a").integer();
    assert!((80_000..=90_000).contains(&left), "{left} ms");
    assert_eq!(
        client.call(&["EVAL", EXTEND, "1", "lock:a", "x", "90000"]),
        0
    );
}

#[test]
fn a_try_key_is_answered_at_once_and_from_memory() {
    let place = place(LONG);
    let (mut holder, mut other) = (place.client(), place.client());
    assert_eq!(holder.say("SET try:a t1 NX PX 20000"), "OK");
    let mut monitor = Monitor::start(place.redis());
    let start = Instant::now();
    assert_eq!(other.say("SET try:a t2 NX PX 20000"), Value::Nil);
    assert!(start.elapsed() < Duration::from_millis(500));
    assert_eq!(names(&mut monitor, "try:a"), [""; 0]);
    assert_eq!(release(&mut holder, "try:a", "t1"), 1);
    assert_eq!(other.say("SET try:a t2 NX PX 20000"), "OK");
}

#[test]
fn attempts_and_lock_commands_share_one_queue() {
    let place = place(LONG);
    let mut clients = place.gate.clients(3);
    assert_eq!(clients[0].say("LOCK lock:a TOKEN t0"), "t0");
    clients[1].send(&["SET", "lock:a", "t1", "NX", "PX", "400000"]);
    place.gate.awaits_waiters("lock:a", 1);
    clients[2].send(&["LOCK", "lock:a", "TOKEN", "t2"]);
    place.gate.awaits_waiters("lock:a", 2);
    assert_eq!(clients[0].say("UNLOCK lock:a t0"), 1);
    assert_eq!(clients[1].read_reply(), "OK");
    assert_eq!(release(&mut clients[1], "lock:a", "t1"), 1);
    assert_eq!(clients[2].read_reply(), "t2");
}

#[test]
fn a_release_that_is_not_recognised_wakes_the_parked_attempt() {
    let place = place(LONG);
    let (mut holder, mut waiter) = (place.client(), place.client());
    for release in ["MULTI DEL EXEC", "GETDEL", "PEXPIRE"] {
        assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
        waiter.send(&["SET", "lock:a", "t2", "NX", "PX", "400000"]);
        place.gate.awaits_waiters("lock:a", 1);
        match release {
            "GETDEL" => assert_eq!(holder.say("GETDEL lock:a"), "t1"),
            "PEXPIRE" => assert_eq!(holder.say("PEXPIRE lock:a 1"), 1),
            _ => {
                assert_eq!(holder.say("MULTI"), "OK");
                assert_eq!(holder.say("DEL lock:a"), "QUEUED");
                assert_eq!(holder.say("EXEC").items()[0], 1);
            }
        }
        assert_eq!(waiter.read_reply(), "OK", "{release}");
        assert_eq!(waiter.say("DEL lock:a"), 1);
    }
}

#[test]
fn operators_see_attempts_and_releases() {
    let place = place("20ms");
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 20000"), "OK");
    assert_eq!(waiter.say("SET lock:a t2 NX PX 20000"), Value::Nil);
    assert_eq!(release(&mut waiter, "lock:a", "t2"), 0);
    assert_eq!(release(&mut holder, "lock:a", "t1"), 1);
    for (field, expected) in [
        ("absorbed_attempts_free", 1),
        ("absorbed_attempts_refused_parked", 1),
        ("absorbed_releases_released", 1),
        ("absorbed_releases_from_memory", 1),
        ("absorbed_commands_saved", 2),
        ("absorb_parked", 0),
    ] {
        assert_eq!(counted(&mut holder, field), expected, "{field}");
    }
}
