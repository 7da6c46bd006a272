//! Parked attempts and the connections of their clients: pools, one connection for many tasks, connections that close.

use std::time::{Duration, Instant};

use super::{RELEASE, place, release};
use crate::support::{Value, counted, frame, words};

const LONG: &str = "10s";

fn attempt(token: &str) -> Vec<u8> {
    frame(&words(&format!("SET lock:a {token} NX PX 400000")))
}

#[test]
fn a_command_behind_a_parked_attempt_ends_its_parking() {
    let place = place(LONG);
    let (mut holder, mut shared) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    shared.write_raw(&attempt("t2"));
    place.gate.awaits_waiters("lock:a", 1);
    let start = Instant::now();
    shared.send(&["PING"]);
    assert_eq!(shared.read_reply(), Value::Nil);
    assert_eq!(shared.read_reply(), Value::Simple("PONG".into()));
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(counted(&mut holder, "absorb_ended_early_behind"), 1);
}

#[test]
fn the_holders_release_overtakes_a_parked_attempt_on_its_connection() {
    let place = place(LONG);
    let mut shared = place.client();
    assert_eq!(shared.say("SET lock:a t1 NX PX 400000"), "OK");
    shared.write_raw(&attempt("t2"));
    place.gate.awaits_waiters("lock:a", 1);
    shared.send(&["EVAL", RELEASE, "1", "lock:a", "t1"]);
    assert_eq!(shared.read_reply(), "OK");
    assert_eq!(shared.read_reply(), 1);
    assert_eq!(place.redis().client().say("GET lock:a"), "t2");
}

#[test]
fn a_release_overtakes_no_attempt_with_its_own_token() {
    let place = place(LONG);
    let (mut holder, mut client) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    client.write_raw(&attempt("t2"));
    place.gate.awaits_waiters("lock:a", 1);
    client.send(&["EVAL", RELEASE, "1", "lock:a", "t2"]);
    assert_eq!(client.read_reply(), Value::Nil);
    assert_eq!(client.read_reply(), 0);
}

#[test]
fn a_deletion_runs_behind_the_attempt_before_it() {
    let place = place(LONG);
    let mut shared = place.client();
    assert_eq!(shared.say("SET lock:a t1 NX PX 400000"), "OK");
    shared.write_raw(&attempt("t2"));
    place.gate.awaits_waiters("lock:a", 1);
    shared.send(&["DEL", "lock:a"]);
    assert_eq!(shared.read_reply(), Value::Nil);
    assert_eq!(shared.read_reply(), 1);
    assert_eq!(place.redis().client().say("EXISTS lock:a"), 0);
}

#[test]
fn a_release_that_overtook_is_answered_behind_one_that_redis_executes() {
    let place = place(LONG);
    let (mut holder, mut shared) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    let pipeline = [
        attempt("t2"),
        frame(&["EVAL", RELEASE, "1", "lock:b", "tb"]),
        frame(&["EVAL", RELEASE, "1", "lock:c", "t3"]),
    ];
    // The two replies race.
    for _ in 0..20 {
        assert_eq!(shared.say("SET lock:c t3 NX PX 400000"), "OK");
        shared.write_raw(&pipeline.concat());
        assert_eq!(shared.read_reply(), Value::Nil);
        assert_eq!(shared.read_reply(), 0);
        assert_eq!(shared.read_reply(), 1);
    }
}

#[test]
fn nothing_overtakes_a_deletion() {
    let place = place(LONG);
    let (mut holder, mut shared) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    assert_eq!(shared.say("SET lock:c t3 NX PX 400000"), "OK");
    let pipeline = [
        attempt("t2"),
        frame(&["DEL", "lock:c"]),
        frame(&["EVAL", RELEASE, "1", "lock:c", "t3"]),
    ];
    shared.write_raw(&pipeline.concat());
    assert_eq!(shared.read_reply(), Value::Nil);
    assert_eq!(shared.read_reply(), 1);
    assert_eq!(shared.read_reply(), 0);
}

#[test]
fn attempts_in_a_pipeline_are_answered_without_waiting() {
    let place = place(LONG);
    let (mut holder, mut client) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    let start = Instant::now();
    let pipeline = [attempt("t2"), attempt("t3"), frame(&["GET", "lock:a"])];
    client.write_raw(&pipeline.concat());
    assert_eq!(client.read_reply(), Value::Nil);
    assert_eq!(client.read_reply(), Value::Nil);
    assert_eq!(client.read_reply(), "t1");
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn half_of_the_connections_of_an_address_are_never_parked() {
    let place = place(LONG);
    let mut holder = place.redis().client();
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    // The connection on which the test watches the waiters is the seventh of the address.
    let mut pool = place.gate.clients(6);
    for client in &mut pool {
        assert_eq!(client.say("PING"), "PONG");
    }
    for (number, client) in pool.iter_mut().take(2).enumerate() {
        client.write_raw(&attempt(&format!("p{number}")));
    }
    place.gate.awaits_waiters("lock:a", 2);
    assert_eq!(pool[2].say("SET lock:a p2 NX PX 400000"), Value::Nil);
    pool[2].write_raw(&attempt("p2"));
    place.gate.awaits_waiters("lock:a", 3);
    assert_eq!(pool[3].say("SET lock:a p3 NX PX 400000"), Value::Nil);
    assert_eq!(pool[3].say("SET lock:a p3 NX PX 400000"), Value::Nil);
    assert_eq!(counted(&mut pool[3], "absorb_ended_early_share"), 3);
}

/// A pool of one connection: the holder's release waits for it.
#[test]
fn the_only_connection_of_the_holder_is_parked_once_a_second() {
    let place = place("20ms");
    let mut only = place.client();
    assert_eq!(only.say("SET lock:a t1 NX PX 400000"), "OK");
    for _ in 0..20 {
        assert_eq!(only.say("SET lock:a t2 NX PX 400000"), Value::Nil);
    }
    assert!(counted(&mut only, "absorb_ended_early_share") >= 18);
}

#[test]
fn a_parked_attempt_that_is_granted_keeps_the_next_one_from_nothing() {
    let place = place("300ms");
    let mut direct = place.redis().client();
    let mut only = place.client();
    assert_eq!(only.say("SET lock:a t1 NX PX 400000"), "OK");
    only.write_raw(&attempt("t2"));
    assert_eq!(direct.say("DEL lock:a"), 1);
    assert_eq!(only.read_reply(), "OK");
    assert_eq!(only.say("SET lock:a t3 NX PX 400000"), Value::Nil);
    assert_eq!(counted(&mut only, "absorb_ended_early_share"), 0);
}

#[test]
fn the_place_of_a_client_that_closes_while_it_is_parked_is_kept_for_its_token() {
    let place = place(LONG);
    let (mut holder, mut second) = (place.client(), place.client());
    assert_eq!(holder.say("LOCK lock:a TOKEN t0"), "t0");
    let mut first = place.client();
    first.write_raw(&attempt("t1"));
    place.gate.awaits_waiters("lock:a", 1);
    second.send(&["LOCK", "lock:a", "TOKEN", "t2"]);
    place.gate.awaits_waiters("lock:a", 2);
    drop(first);
    place.gate.awaits_waiters("lock:a", 1);
    let mut first = place.client();
    first.write_raw(&attempt("t1"));
    place.gate.awaits_waiters("lock:a", 2);
    assert_eq!(holder.say("UNLOCK lock:a t0"), 1);
    assert_eq!(first.read_reply(), "OK");
    assert_eq!(release(&mut first, "lock:a", "t1"), 1);
    assert_eq!(second.read_reply(), "t2");
    assert_eq!(counted(&mut holder, "absorb_ended_early_closed"), 1);
    assert!(
        place.gate.log().contains("absorb.park"),
        "{}",
        place.gate.log()
    );
}

#[test]
fn commands_behind_a_parked_attempt_run_although_its_client_closes() {
    let place = place(LONG);
    let (mut holder, mut client) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    let pipeline = [attempt("t2"), frame(&["SET", "done", "1"])];
    client.write_raw(&pipeline.concat());
    drop(client);
    let mut direct = place.redis().client();
    crate::support::eventually("the command runs", || direct.say("GET done") == "1");
}

#[test]
fn at_shutdown_a_parked_attempt_is_refused_and_its_holder_releases() {
    let place = place(LONG);
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    waiter.write_raw(&attempt("t2"));
    place.gate.awaits_waiters("lock:a", 1);
    place.gate.terminate();
    assert_eq!(waiter.read_reply(), Value::Nil);
}
