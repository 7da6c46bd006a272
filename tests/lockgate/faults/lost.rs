//! Somebody deletes, overwrites or flushes a lock that is held: who waits is woken, and the owner of a
//! lock bound to its connection is told.

use std::time::{Duration, Instant};

use super::{is_told_lost, resp3, waiter, was_told_nothing};
use crate::support::{Client, Machine, Place, Value, median};

/// What "told" means.
const TOLD: Duration = Duration::from_millis(100);

const FAULTS: [&[&str]; 6] = [
    &["DEL", "k"],
    &["UNLINK", "k"],
    &["SET", "k", "somebody"],
    &["PEXPIRE", "k", "0"],
    &["FLUSHALL"],
    &["RENAME", "k", "elsewhere"],
];

/// Nobody is told that still holds it.
#[test]
fn only_those_are_told_that_lost_something() {
    let place = Place::with_redis(Machine::shared());
    let mut direct = place.redis().client();
    let mut owners: Vec<Client> = (0..10).map(|_| resp3(&place.gate)).collect();
    for (n, owner) in owners.iter_mut().enumerate() {
        let key = format!("k:{n}");
        assert_eq!(
            owner.call(&["LOCK", &key, "TOKEN", "t", "PX", "60000", "SESSION"]),
            "t"
        );
    }
    // Every registration is gone with it, and every lock is asked about.
    assert_eq!(direct.say("SELECT 5"), "OK");
    assert_eq!(direct.say("FLUSHDB"), "OK");
    assert_eq!(direct.say("SELECT 0"), "OK");
    for owner in &mut owners {
        owner.hears_nothing_for(Duration::from_millis(20));
    }
    assert_eq!(direct.say("DEL k:3 k:7"), 2);
    for lost in [3, 7] {
        is_told_lost(&mut owners[lost], &format!("k:{lost}"), "t");
    }
    for owner in &mut owners {
        was_told_nothing(owner);
    }
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    #[test]
    fn a_resp3_owner_is_told_by_a_push() {
        let place = Place::with_redis(Machine::alone());
        let (mut owner, mut direct) = (resp3(&place.gate), place.redis().client());
        let measured = FAULTS.iter().cycle().take(12).map(|fault| {
            assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
            let start = Instant::now();
            assert!(!matches!(direct.call(fault), Value::Error(_)));
            is_told_lost(&mut owner, "k", "t");
            let took = start.elapsed();
            assert_eq!(owner.say("UNLOCK k t"), 0);
            direct.say("DEL k elsewhere");
            took
        });
        let took = median(measured.collect());
        assert!(took < TOLD, "{took:?}");
        was_told_nothing(&mut owner);
    }

    #[test]
    fn the_connection_of_a_resp2_owner_is_closed() {
        let place = Place::with_redis(Machine::alone());
        let mut direct = place.redis().client();
        let measured = FAULTS.iter().map(|fault| {
            let mut owner = place.client();
            assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
            let start = Instant::now();
            assert!(!matches!(direct.call(fault), Value::Error(_)));
            owner.is_closed_by_the_server();
            let took = start.elapsed();
            direct.say("DEL k elsewhere");
            took
        });
        let took = median(measured.collect());
        assert!(took < TOLD, "{took:?}");
    }

    /// The waiter has the lock, and the owner that lost it gets its notification, in either order.
    #[test]
    fn a_deletion_wakes_the_waiter_and_notifies_the_owner() {
        let place = Place::with_redis(Machine::alone());
        let mut direct = place.redis().client();
        let measured = (0..6).map(|_| {
            let mut owner = resp3(&place.gate);
            assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
            let mut next = waiter(&place.gate, "k", "next", 1);
            let start = Instant::now();
            assert_eq!(direct.say("FLUSHALL"), "OK");
            assert_eq!(next.read_reply(), "next");
            is_told_lost(&mut owner, "k", "t");
            let took = start.elapsed();
            assert_eq!(direct.say("GET k"), "next");
            drop(owner);
            next.hears_nothing_for(Duration::from_millis(10));
            assert_eq!(
                next.say("UNLOCK k next"),
                1,
                "the close of the first one did nothing"
            );
            took
        });
        let took = median(measured.collect());
        assert!(took < TOLD, "{took:?}");
    }
}
