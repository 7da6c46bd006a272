//! A lock bound to the connection of its owner: it lives and dies with it.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    AT_ONCE, RedisCli, gate_before, holder, is_told_lost, pttl, reset, resp3, timed, waiter,
    was_told_nothing,
};
use crate::support::{Machine, Place, Proxy, RedisServer, Value, eventually, median};

/// What is promised.
const NEXT_HAS_IT: Duration = Duration::from_millis(20);

/// With nobody waiting there is nothing left of it; and only of what was bound.
#[test]
fn a_close_releases_what_was_bound_and_nothing_else() {
    Place::each(|place| {
        let mut owner = place.client();
        assert_eq!(owner.say("LOCK bound TOKEN t SESSION"), "t");
        assert_eq!(owner.say("TRYLOCK tried TOKEN t SESSION"), "t");
        assert_eq!(owner.say("LOCK unbound TOKEN t"), "t");
        assert_eq!(owner.say("LOCK given-back TOKEN t SESSION"), "t");
        assert_eq!(owner.say("UNLOCK given-back t"), 1);
        let mut other = place.client();
        assert_eq!(other.say("LOCK given-back TOKEN other"), "other");
        drop(owner);
        assert_eq!(other.say("LOCK bound WAIT 5000 TOKEN other"), "other");
        assert_eq!(other.say("LOCK tried WAIT 5000 TOKEN other"), "other");
        assert_eq!(other.say("TRYLOCK unbound"), Value::Nil);
        assert_eq!(other.say("UNLOCK unbound t"), 1);
        assert_eq!(other.say("UNLOCK given-back other"), 1, "it was another's");
    });
}

/// The latest request says to which connection it is bound, and whether.
#[test]
fn the_end_of_an_earlier_connection_does_nothing() {
    Place::each(|place| {
        let (mut first, mut second) = (place.client(), place.client());
        assert_eq!(first.say("LOCK k TOKEN t SESSION"), "t");
        assert_eq!(second.say("LOCK k TOKEN t SESSION"), "t");
        reset(first);
        let mut next = waiter(&place.gate, "k", "next", 1);
        next.hears_nothing_for(Duration::from_millis(100));
        drop(second);
        assert_eq!(next.read_reply(), "next");
        assert_eq!(next.say("UNLOCK k next"), 1);
    });
}

#[test]
fn a_lock_that_its_owner_extended_is_released_with_its_connection() {
    Place::each(|place| {
        let mut owner = place.client();
        assert_eq!(owner.say("LOCK k TOKEN t PX 50000 SESSION"), "t");
        assert_eq!(owner.say("RELOCK k t PX 60000"), 1);
        assert_eq!(owner.say("RELOCK k t PX 40000"), 1);
        let mut next = waiter(&place.gate, "k", "next", 1);
        drop(owner);
        assert_eq!(next.read_reply(), "next");
    });
}

/// Its process stands still, its connection is open: that is enough for many leases.
#[test]
fn an_owner_that_hangs_keeps_the_lock() {
    let place = Place::with_redis(Machine::shared());
    let mut owner = RedisCli::connect(&place.gate);
    assert_eq!(owner.say("LOCK k TOKEN owner PX 600 SESSION"), "owner");
    let mut next = waiter(&place.gate, "k", "next", 1);
    owner.stop();
    let (mut redis, until) = (
        place.redis().client(),
        Instant::now() + Duration::from_secs(3),
    );
    let (mut renewals, mut before) = (0, pttl(&mut redis, "k"));
    while Instant::now() < until {
        assert_eq!(redis.say("GET k"), "owner");
        let left = pttl(&mut redis, "k");
        renewals += usize::from(left > before);
        before = left;
        sleep(Duration::from_millis(2));
    }
    // One each 200 ms, and a machine that stutters.
    assert!((8..=18).contains(&renewals), "{renewals} renewals");
    was_told_nothing_yet(&mut next);
    owner.go_on();
    assert_eq!(owner.say("UNLOCK k owner"), "1");
    assert_eq!(next.read_reply(), "next");
    let once_more = pttl(&mut redis, "k");
    assert!(once_more > 20_000, "nobody renews it any more: {once_more}");
}

/// lockgate closes it for its protocol error, and waits for it to close, too.
#[test]
fn a_refused_client_that_stays_has_its_lock_for_one_lease() {
    let place = Place::with_redis(Machine::shared());
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK k TOKEN owner PX 1000 SESSION"), "owner");
    let mut next = waiter(&place.gate, "k", "next", 1);
    owner.write_raw(b"*x\r\n");
    assert_eq!(
        owner.read_reply().error(),
        "ERR Protocol error: invalid multibulk length"
    );
    let (reply, took) = timed(|| next.read_reply());
    assert_eq!(reply, "next");
    assert!(took < Duration::from_secs(3), "{took:?}");
    drop(owner);
    assert_eq!(next.say("UNLOCK k next"), 1);
}

/// As long as it reads something now and then, lockgate goes on writing; it has lost its lock meanwhile.
#[test]
fn a_closed_client_gets_no_session_with_a_grant_written_later() {
    const REPLIES: usize = 40;
    let place = Place::with_redis(Machine::shared());
    let value = "v".repeat(1024 * 1024);
    assert_eq!(place.client().call(&["SET", "value", &value]), "OK");
    let mut owner = place.client();
    let get = b"*2\r\n$3\r\nGET\r\n$5\r\nvalue\r\n".repeat(REPLIES);
    owner.write_raw(&[&get[..], b"LOCK k TOKEN owner PX 1000 SESSION\r\n*x\r\n"].concat());
    eventually("it has the lock", || {
        place.redis().client().say("GET k") == "owner"
    });
    let mut next = waiter(&place.gate, "k", "next", 1);
    for _ in 0..REPLIES {
        assert_eq!(owner.read_reply(), value.as_str());
    }
    assert_eq!(owner.read_reply(), "owner");
    let (reply, took) = timed(|| next.read_reply());
    assert_eq!(reply, "next");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

fn was_told_nothing_yet(client: &mut crate::support::Client) {
    assert!(!client.hears_within(Duration::ZERO).unwrap());
}

/// Renewed are leases for as long as they are bound: not after the owner gave the lock back.
#[test]
fn a_released_session_is_not_renewed() {
    let place = Place::with_redis(Machine::shared());
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK k TOKEN owner PX 300 SESSION"), "owner");
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    let mut plain = place.redis().client();
    assert_eq!(plain.say("SET k owner NX PX 500"), "OK");
    sleep(Duration::from_millis(300));
    assert!(
        pttl(&mut plain, "k") <= 200,
        "it is not the gate's to renew"
    );
}

/// The number after this name in what `INFO` says.
fn stat(info: &str, name: &str) -> i64 {
    let rest = info.lines().find_map(|line| line.strip_prefix(name));
    let digits = rest.unwrap().split(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

/// A refused renewal is retried: the reason may be over in time.
#[test]
fn a_renewal_that_fails_is_tried_again() {
    let place = Place::with_redis(Machine::shared());
    let mut redis = place.redis().client();
    // Everybody here is that user, and this connection's rights are those of another one.
    assert_eq!(redis.say("ACL SETUSER admin on nopass ~* +@all"), "OK");
    assert_eq!(redis.say("AUTH admin x"), "OK");
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK k TOKEN owner PX 1200 SESSION"), "owner");
    for _ in 0..2 {
        assert_eq!(redis.say("ACL SETUSER default -pexpire"), "OK");
        eventually("a renewal failed", || pttl(&mut redis, "k") < 600);
        assert_eq!(redis.say("ACL SETUSER default +pexpire"), "OK");
        eventually("a later one did not", || pttl(&mut redis, "k") > 1_000);
    }
    was_told_nothing(&mut owner);
    assert_eq!(owner.say("UNLOCK k owner"), 1);
}

/// And when it is not over in time, the owner knows when its lease is over.
#[test]
fn an_owner_whose_lease_cannot_be_renewed_is_told_in_time() {
    let place = Place::with_redis(Machine::shared());
    let mut redis = place.redis().client();
    assert_eq!(redis.say("ACL SETUSER admin on nopass ~* +@all"), "OK");
    assert_eq!(redis.say("AUTH admin x"), "OK");
    let (mut three, mut two) = (resp3(&place.gate), place.client());
    assert_eq!(three.say("LOCK three TOKEN t PX 1500 SESSION"), "t");
    assert_eq!(two.say("LOCK two TOKEN t PX 1500 SESSION"), "t");
    assert_eq!(redis.say("ACL SETUSER default -pexpire"), "OK");
    let over = Instant::now() + Duration::from_millis(pttl(&mut redis, "three").unsigned_abs());
    is_told_lost(&mut three, "three", "t");
    let late = Instant::now().saturating_duration_since(over);
    assert!(late < Duration::from_millis(50), "{late:?}");
    two.is_closed_by_the_server();
}

/// The gate cannot reach Redis when the owner goes: the lock is released as soon as it can.
#[test]
fn a_close_while_redis_cannot_be_reached_releases_the_lock_when_it_can_be() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let gate = gate_before(&proxy.url(), &[]);
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN owner PX 60000 SESSION"), "owner");
    let mut next = waiter(&gate, "k", "next", 1);
    proxy.refuse(true);
    proxy.cut();
    drop(owner);
    next.hears_nothing_for(Duration::from_millis(200));
    assert_eq!(holder(&redis, "k"), "owner");
    proxy.refuse(false);
    let (reply, took) = timed(|| next.read_reply());
    assert_eq!(reply, "next");
    assert!(took < AT_ONCE, "{took:?}");
}

/// Redis stalls over a renewal, whose answer is lost: what it did then is known to be this gate's doing.
#[test]
fn a_session_is_released_by_its_end_after_a_stall_of_redis() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "300ms")]);
    let mut owners: Vec<_> = (0..20).map(|_| gate.client()).collect();
    for (number, owner) in owners.iter_mut().enumerate() {
        let key = format!("k:{number}");
        let taken = owner.call(&["LOCK", &key, "TOKEN", "t", "PX", "9000", "SESSION"]);
        assert_eq!(taken, "t");
    }
    let mut direct = redis.client();
    let expiries = |direct: &mut crate::support::Client| -> Vec<i64> {
        let key = |number| format!("k:{number}");
        let each = (0..20).map(|number| direct.call(&["PEXPIRETIME", &key(number)]).integer());
        each.collect()
    };
    let before = expiries(&mut direct);
    redis.stop();
    // Each is due before two fifths of its lease are over.
    sleep(Duration::from_millis(3_700));
    redis.go_on();
    eventually("they were done", || {
        let after = expiries(&mut direct);
        after
            .iter()
            .zip(&before)
            .all(|(after, before)| after > before)
    });
    drop(owners);
    eventually("all are released", || {
        direct.say("KEYS k:*").items().is_empty()
    });
}

/// Its owner goes on with the token at another gate, which lockgate made for it at the first.
#[test]
fn a_session_that_goes_on_at_another_gate_outlives_its_connection() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let (one, other) = (
        gate_before(&redis.url(), &[]),
        gate_before(&redis.url(), &[]),
    );
    let (mut owner, mut again) = (one.client(), other.client());
    let token = owner.say("LOCK k PX 60000 SESSION").text();
    let moved = again.call(&["LOCK", "k", "TOKEN", &token, "PX", "50000"]);
    assert_eq!(moved, token.as_str());
    drop(owner);
    eventually("the first gate is done with it", || {
        one.client().say("LOCKINFO k").field("session") == &Value::Integer(0)
    });
    assert_eq!(holder(&redis, "k"), token.as_str());
    assert_eq!(again.call(&["UNLOCK", "k", &token]), 1);
}

/// A key of another type in place of the lock is no lock.
#[test]
fn an_owner_whose_key_is_replaced_by_another_type_is_told_at_once() {
    let place = Place::with_redis(Machine::shared());
    let mut redis = place.redis().client();
    let mut owner = resp3(&place.gate);
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
    let ((), took) = timed(|| {
        assert_eq!(redis.say("SADD other x"), 1);
        assert_eq!(redis.say("RENAME other k"), "OK");
        is_told_lost(&mut owner, "k", "t");
    });
    assert!(took < AT_ONCE, "{took:?}");
}

/// Redis tells nothing of it.
#[test]
fn an_owner_whose_database_is_swapped_is_told_at_its_next_renewal() {
    let place = Place::with_redis(Machine::shared());
    let mut owner = resp3(&place.gate);
    assert_eq!(owner.say("LOCK k TOKEN t PX 3000 SESSION"), "t");
    let ((), took) = timed(|| {
        assert_eq!(place.redis().client().say("SWAPDB 0 5"), "OK");
        is_told_lost(&mut owner, "k", "t");
    });
    assert!(took < AT_ONCE, "{took:?}");
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    #[test]
    fn when_the_process_of_an_owner_is_killed_the_next_one_has_the_lock_within_20_ms() {
        let place = Place::with_redis(Machine::alone());
        let measured = (0..7).map(|_| {
            let mut owner = RedisCli::connect(&place.gate);
            assert_eq!(owner.say("LOCK k TOKEN owner PX 60000 SESSION"), "owner");
            let mut next = waiter(&place.gate, "k", "next", 1);
            let ((), took) = timed(|| {
                owner.kill();
                assert_eq!(next.read_reply(), "next");
            });
            assert_eq!(next.say("UNLOCK k next"), 1);
            took
        });
        let took = median(measured.collect());
        assert!(took < NEXT_HAS_IT, "{took:?}");
    }

    #[test]
    fn when_the_connection_of_an_owner_is_reset_the_next_one_has_the_lock_within_20_ms() {
        for place in [Place::embedded as fn(Machine) -> Place, Place::with_redis] {
            let place = place(Machine::alone());
            let measured = (0..9).map(|_| {
                let mut owner = place.client();
                assert_eq!(owner.say("LOCK k TOKEN owner PX 60000 SESSION"), "owner");
                let mut next = waiter(&place.gate, "k", "next", 1);
                let ((), took) = timed(|| {
                    reset(owner);
                    assert_eq!(next.read_reply(), "next");
                });
                assert_eq!(next.say("UNLOCK k next"), 1);
                took
            });
            let took = median(measured.collect());
            assert!(took < NEXT_HAS_IT, "{took:?}");
        }
    }

    #[test]
    fn renewals_of_many_locks_travel_together() {
        const LOCKS: i64 = 250;
        let place = Place::with_redis(Machine::alone());
        let mut owner = place.client();
        for n in 0..LOCKS {
            let key = format!("k:{n}");
            let taken = owner.call(&["LOCK", &key, "TOKEN", "t", "PX", "3000", "SESSION"]);
            assert_eq!(taken, "t");
            // Granted at any time, not at once.
            sleep(Duration::from_millis(3));
        }
        let mut redis = place.redis().client();
        let mut stats = || {
            let renewals = stat(
                &redis.say("INFO commandstats").text(),
                "cmdstat_evalsha:calls=",
            );
            let reads = stat(&redis.say("INFO stats").text(), "total_reads_processed:");
            (renewals, reads)
        };
        let before = stats();
        sleep(Duration::from_millis(3_100));
        let after = stats();
        let (renewals, reads) = (after.0 - before.0, after.1 - before.1);
        // Each lock once a second; in each second ten moments at most.
        assert!((2 * LOCKS..=5 * LOCKS).contains(&renewals), "{renewals}");
        assert!(
            reads <= renewals / 5,
            "{reads} reads for {renewals} renewals"
        );
        for n in 0..LOCKS {
            assert!(pttl(&mut redis, &format!("k:{n}")) > 1_000);
        }
    }
}
