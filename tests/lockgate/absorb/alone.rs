//! Lock libraries at a lockgate without a Redis, whose memory keeps the locks.

use super::{RELEASE, RELEASE_OF_REDIS_PY, TEXT_OF_REDIS_PY, release};
use crate::support::{Lockgate, Machine, Place, Value, frame};

/// redis-py's extension. Its last argument says whether the lease is added to the one before (0) or replaces it.
const EXTENSION_OF_REDIS_PY: &str = "a4e8783852e6b949f9ef3a97212805108459a890";

fn place(environment: &[(&str, &str)]) -> Place {
    let gate = Lockgate::start_with(&[], environment);
    Place::of(None, gate, Machine::shared())
}

/// A lockgate at which an attempt waits for ten seconds, or a fortieth of its lease.
fn patient() -> Place {
    place(&[("LOCKGATE_ABSORB_PARK", "10s")])
}

/// A lockgate at which an attempt does not wait.
fn impatient() -> Place {
    place(&[("LOCKGATE_ABSORB_PARK", "0ms")])
}

#[test]
fn a_lock_is_granted_once_and_its_token_releases_it() {
    let place = impatient();
    let (mut one, mut two) = (place.client(), place.client());
    assert_eq!(one.say("SET k t1 NX PX 20000"), Value::Simple("OK".into()));
    assert_eq!(one.say("SET k t1 NX PX 20000"), Value::Nil, "as in Redis");
    assert_eq!(two.say("set k t2 ex 20 nx"), Value::Nil);
    assert_eq!(two.say("GET k"), "t1");
    assert_eq!(release(&mut two, "k", "t2"), 0);
    assert_eq!(release(&mut one, "k", "t1"), 1);
    assert_eq!(one.say("GET k"), Value::Nil);
    assert_eq!(two.say("set k t2 ex 20 nx"), "OK");
    assert_eq!(one.say("DEL k"), 1);
    assert_eq!(one.say("DEL k"), 0);
    assert_eq!(two.say("SET k t2 NX PX 20000"), "OK");
    assert_eq!(one.say("UNLINK k"), 1);
}

#[test]
fn a_release_hands_the_lock_to_a_parked_attempt() {
    let place = patient();
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET k t1 NX PX 400000"), "OK");
    waiter.send(&["SET", "k", "t2", "NX", "PX", "400000"]);
    place.gate.awaits_waiters("k", 1);
    assert_eq!(release(&mut holder, "k", "t1"), 1);
    assert_eq!(waiter.read_reply(), "OK");
    assert_eq!(holder.say("GET k"), "t2");
}

#[test]
fn clients_of_lock_and_clients_that_poll_take_turns() {
    let place = patient();
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("LOCK k TOKEN t1"), "t1");
    assert_eq!(holder.say("GET k"), "t1");
    waiter.send(&["SET", "k", "t2", "NX", "PX", "400000"]);
    place.gate.awaits_waiters("k", 1);
    assert_eq!(holder.say("UNLOCK k t1"), 1);
    assert_eq!(waiter.read_reply(), "OK");
    assert_eq!(holder.say("TRYLOCK k"), Value::Nil);
}

#[test]
fn the_replies_are_those_of_redis_in_resp3() {
    let place = impatient();
    let mut client = place.client();
    client.say("HELLO 3");
    for (command, reply) in [
        ("SET k t NX PX 20000", "+OK\r\n"),
        ("SET k other NX PX 20000", "_\r\n"),
        ("GET k", "$1\r\nt\r\n"),
        ("DEL k", ":1\r\n"),
        ("GET k", "_\r\n"),
    ] {
        let words: Vec<_> = command.split(' ').collect();
        client.send(&words);
        assert_eq!(client.read_raw(reply.len()), reply.as_bytes(), "{command}");
    }
}

#[test]
fn a_script_runs_by_its_sha1_if_it_is_known_and_is_missing_if_not() {
    let place = impatient();
    let mut client = place.client();
    client.say("SET k t NX PX 20000");
    let unknown = client.call(&["SCRIPT", "LOAD", "return redis.call('del', KEYS[1])"]);
    let reply = client.call(&["EVALSHA", &unknown.text(), "1", "k", "t"]);
    assert_eq!(
        reply.error(),
        "NOSCRIPT No matching script. Please use EVAL."
    );
    // A library's own script, of which no client has sent the text.
    assert_eq!(
        client.call(&["EVALSHA", RELEASE_OF_REDIS_PY, "1", "k", "t"]),
        1
    );
    assert_eq!(
        client.call(&["SCRIPT", "LOAD", TEXT_OF_REDIS_PY]),
        RELEASE_OF_REDIS_PY
    );
    // A text of the same meaning is known as soon as it was loaded.
    client.say("SET k t NX PX 20000");
    let text = format!("-- mine\n{RELEASE}");
    let loaded = client.call(&["SCRIPT", "LOAD", &text]).text();
    assert_eq!(client.call(&["EVALSHA", &loaded, "1", "k", "t"]), 1);
}

#[test]
fn a_script_that_is_not_of_a_lock_library_gets_an_error_that_says_so() {
    let place = impatient();
    let mut client = place.client();
    for numkeys in ["0", "1"] {
        let reply = client.call(&["EVAL", "return 1", numkeys, "k", "t"]);
        let text = reply.error();
        assert!(text.contains("scripts of lock libraries"), "{text}");
        assert!(text.contains("--upstream redis://host:port"), "{text}");
    }
}

#[test]
fn what_takes_no_lock_gets_an_error_that_names_what_does() {
    let place = impatient();
    let mut client = place.client();
    for command in ["SET k v", "SET k v NX", "SET k v XX PX 20000", "DEL a b"] {
        let reply = client.say(command);
        let text = reply.error();
        assert!(text.contains("--upstream redis://host:port"), "{text}");
    }
    assert_eq!(client.say("GET k"), Value::Nil);
}

#[test]
fn what_the_bounds_of_locks_exclude_gets_an_error_that_names_them() {
    let place = impatient();
    let mut client = place.client();
    let (long_token, long_key) = ("x".repeat(300), "x".repeat(5_000));
    assert_eq!(client.say("SET held t NX PX 20000"), "OK");
    for command in [
        vec!["SET", "k", &long_token, "NX", "PX", "20000"],
        vec!["SET", "k", "", "NX", "PX", "20000"],
        vec!["SET", &long_key, "t", "NX", "PX", "20000"],
        vec!["SET", "k", "t", "NX", "PX", "999999999999"],
        vec![
            "EVALSHA",
            EXTENSION_OF_REDIS_PY,
            "1",
            "held",
            "t",
            "999999999999",
            "1",
        ],
    ] {
        let reply = client.call(&command);
        let text = reply.error();
        assert!(text.contains("lock.max_lease"), "{command:?}: {text}");
    }
    assert_eq!(release(&mut client, "held", &long_token), 0);
    assert_eq!(release(&mut client, "held", "t"), 1);
}

#[test]
fn an_attempt_beyond_the_limit_on_locks_gets_the_error_of_lock() {
    let place = place(&[("LOCKGATE_LIMITS_LOCKS", "1")]);
    let mut client = place.client();
    assert_eq!(client.say("SET k t NX PX 20000"), "OK");
    let refused = client.say("SET other t NX PX 20000");
    assert_eq!(refused, client.say("TRYLOCK other"));
    assert!(refused.error().starts_with("MAXLOCKS"));
}

#[test]
fn an_extension_adds_to_the_lease_or_replaces_it() {
    let place = impatient();
    let mut client = place.client();
    assert_eq!(client.say("SET k t NX PX 20000"), "OK");
    let mut extend = |token: &str, adds: &str| {
        let reply = client.call(&[
            "EVALSHA",
            EXTENSION_OF_REDIS_PY,
            "1",
            "k",
            token,
            "30000",
            adds,
        ]);
        let left = client.say("LOCKINFO k").field("ttl").integer();
        (reply.integer(), left)
    };
    let (done, left) = extend("t", "0");
    assert_eq!(done, 1);
    assert!((45_000..=50_000).contains(&left), "{left} ms");
    let (done, left) = extend("t", "1");
    assert_eq!(done, 1);
    assert!((25_000..=30_000).contains(&left), "{left} ms");
    let (done, left) = extend("other", "0");
    assert_eq!(done, 0);
    assert!(left <= 30_000, "{left} ms");
}

#[test]
fn every_attempt_of_a_pipeline_is_served() {
    let place = impatient();
    let mut client = place.client();
    let pipeline: Vec<u8> = ["a", "b", "a", "c"]
        .iter()
        .flat_map(|key| frame(&["SET", key, "t", "NX", "PX", "20000"]))
        .collect();
    client.write_raw(&pipeline);
    let replies = [(); 4].map(|()| client.read_reply());
    let ok = Value::Simple("OK".into());
    assert_eq!(replies, [ok.clone(), ok.clone(), Value::Nil, ok]);
}

#[test]
fn client_reply_hides_the_replies_of_attempts_and_releases() {
    let place = impatient();
    let mut client = place.client();
    client.send(&["CLIENT", "REPLY", "SKIP"]);
    client.send(&["DEL", "k"]);
    assert_eq!(client.say("ECHO skipped"), "skipped");
    client.send(&["CLIENT", "REPLY", "SKIP"]);
    client.send(&["SET", "k", "t", "NX", "PX", "20000"]);
    assert_eq!(client.say("GET k"), "t");
    client.send(&["CLIENT", "REPLY", "OFF"]);
    client.send(&["SET", "k", "t", "NX", "PX", "999999999999"]);
    client.send(&["DELIFEQ", "other", "t"]);
    client.send(&["DEL", "k"]);
    assert_eq!(client.say("CLIENT REPLY ON"), "OK");
    assert_eq!(client.say("GET k"), Value::Nil);
}

#[test]
fn a_lock_whose_lease_is_over_is_free() {
    let place = patient();
    let (mut holder, mut next) = (place.client(), place.client());
    assert_eq!(holder.say("SET k t1 NX PX 300"), "OK");
    next.send(&["SET", "k", "t2", "NX", "PX", "400000"]);
    assert_eq!(next.read_reply(), "OK");
    assert_eq!(holder.say("GET k"), "t2");
    assert_eq!(release(&mut holder, "k", "t1"), 0);
}

#[test]
fn a_lockgate_that_ends_refuses_attempts_and_executes_releases() {
    let place = place(&[("LOCKGATE_DRAIN", "10s")]);
    let mut client = place.client();
    client.say("HELLO 3");
    // The owner of such a lock may still release its locks.
    assert_eq!(client.say("LOCK session TOKEN t SESSION"), "t");
    assert_eq!(client.say("SET k t NX PX 20000"), "OK");
    place.gate.terminate();
    let lost = client.read_reply();
    assert_eq!(lost.items()[1], "session");
    assert!(
        client
            .say("SET other t NX PX 20000")
            .error()
            .starts_with("SHUTDOWN")
    );
    assert_eq!(release(&mut client, "k", "t"), 1);
}
