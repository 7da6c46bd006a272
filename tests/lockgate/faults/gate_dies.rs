//! lockgate itself is killed, or stands still for a while. (That another gate serves on: `two_gates`.)

use std::time::{Duration, Instant};

use super::{AT_ONCE, gate_before, holder, is_served, pttl, timed, waiter};
use crate::support::{Lockgate, Machine, RedisServer, SHORT_GRACE, Value, free_address};

/// Nothing is to be cleaned up: what it held ends by itself, and it begins anew.
#[test]
fn locks_of_a_killed_instance_end_with_their_leases() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let other = gate_before(&redis.url(), &[]);
    let mut gate = Lockgate::start_at(free_address(), &["--upstream", &redis.url()], &SHORT_GRACE);
    let (mut plain, mut bound) = (gate.client(), gate.client());
    let begin = Instant::now();
    assert_eq!(plain.say("LOCK plain TOKEN t PX 1500"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 1500 SESSION"), "t");
    assert_eq!(plain.say("LOCK long TOKEN t PX 60000"), "t");
    let mut next = [
        waiter(&other, "plain", "next", 1),
        waiter(&other, "bound", "next", 1),
    ];
    let mut dies_waiting = waiter(&gate, "plain", "dies", 1);
    gate.kill();
    dies_waiting.is_closed_by_the_server();
    gate.restart();
    is_served(&gate);
    for next in &mut next {
        assert_eq!(next.read_reply(), "next");
    }
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(1_499), "{waited:?}");
    assert!(
        waited < Duration::from_millis(1_500) + AT_ONCE,
        "{waited:?}"
    );
    // A holder may go on through the new instance, or through another.
    assert_eq!(gate.client().say("TRYLOCK long"), Value::Nil);
    assert_eq!(gate.client().say("RELOCK long t"), 1);
    assert_eq!(other.client().say("UNLOCK long t"), 1);
    for (next, key) in next.iter_mut().zip(["plain", "bound"]) {
        assert_eq!(next.call(&["UNLOCK", key, "next"]), 1);
    }
    assert_eq!(redis.client().say("DBSIZE"), 1, "the mark of the grace");
}

/// A stopped instance that goes on has outdated leases: it finds out, and harms no client that has the lock by
/// then.
#[test]
fn a_gate_that_stood_still_for_longer_than_a_lease_harms_no_later_owner() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let (stopped, other) = (
        gate_before(&redis.url(), &[]),
        gate_before(&redis.url(), &[]),
    );
    let (mut plain, mut bound, mut closes) = (stopped.client(), stopped.client(), stopped.client());
    assert_eq!(plain.say("LOCK plain TOKEN t PX 800"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 800 SESSION"), "t");
    assert_eq!(closes.say("LOCK closes TOKEN t PX 800 SESSION"), "t");
    let mut behind = waiter(&stopped, "plain", "behind", 1);
    let keys = ["plain", "bound", "closes"];
    let mut next = keys.map(|key| waiter(&other, key, "next", 1));
    let stopped_at = Instant::now();
    stopped.stop();
    plain.send(&["UNLOCK", "plain", "t"]);
    drop(closes);
    for next in &mut next {
        assert_eq!(next.read_reply(), "next");
    }
    let waited = stopped_at.elapsed();
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    stopped.go_on();
    assert_eq!(plain.read_reply(), 0);
    bound.is_closed_by_the_server();
    is_served(&stopped);
    behind.hears_nothing_for(Duration::from_millis(100));
    let mut direct = redis.client();
    for key in keys {
        assert_eq!(holder(&redis, key), "next", "{key}");
        assert!(pttl(&mut direct, key) < 30_000);
    }
    assert_eq!(next[0].say("UNLOCK plain next"), 1);
    let (reply, took) = timed(|| behind.read_reply());
    assert_eq!(reply, "behind");
    assert!(took < AT_ONCE, "{took:?}");
}

/// A pause of its own is not mistaken for a silence of Redis, nor for the end of a lease that runs.
#[test]
fn a_gate_that_stood_still_for_less_than_a_lease_goes_on() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "300ms")]);
    let (mut owner, mut bound) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 3000 SESSION"), "t");
    let mut next = waiter(&gate, "k", "next", 1);
    // A question is under way, and is answered while the gate does not listen.
    assert_eq!(redis.client().say("CLIENT PAUSE 100 ALL"), "OK");
    let mut asking = gate.client();
    asking.send(&["LOCK", "other", "TOKEN", "o"]);
    asking.hears_nothing_for(Duration::from_millis(20));
    gate.stop();
    next.hears_nothing_for(Duration::from_millis(900));
    gate.go_on();
    assert_eq!(asking.read_reply(), "o");
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(next.read_reply(), "next");
    super::was_told_nothing(&mut bound);
    assert!(!gate.log().contains("no connection"), "{}", gate.log());
}
