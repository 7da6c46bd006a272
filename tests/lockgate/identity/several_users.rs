//! Several users at one lock. A user without rights to the key neither waits nor learns that the lock is held, a
//! handover gives a user no rights of another, and equal tokens of different users are different tokens.

use std::time::Duration;

use super::{House, NO_KEY, in_each_protocol, is_error, lock_commands, may_not};
use crate::support::{Client, Monitor, Value};

#[test]
fn an_unauthorized_user_does_not_wait_behind_an_authorized_one() {
    in_each_protocol(|house, protocol| {
        let mut owner = house.client("ann", protocol);
        assert_eq!(owner.say("LOCK a:1 TOKEN owner"), "owner");
        let mut ben = house.client("ben", protocol);
        // Held, then awaited; with tokens that are the owner's, the waiter's, nobody's.
        may_not(&mut ben, "a:1", "owner", NO_KEY);
        let mut next = house.waiter("ann", "a:1", "next", 1);
        for token in ["owner", "next", "other"] {
            may_not(&mut ben, "a:1", token, NO_KEY);
        }
        house.awaits_waiters("ann", "a:1", 1);
        next.hears_nothing_for(Duration::from_millis(20));
        assert_eq!(owner.say("UNLOCK a:1 owner"), 1);
        assert_eq!(next.read_reply(), "next");
    });
}

#[test]
fn the_hundredth_is_refused_like_the_first() {
    in_each_protocol(|house, protocol| {
        let mut owner = house.client("ann", protocol);
        assert_eq!(owner.say("LOCK a:1 TOKEN owner"), "owner");
        let mut next = house.waiter("ann", "a:1", "next", 1);
        let mut bens: Vec<Client> = (0..100).map(|_| house.client("ben", protocol)).collect();
        for (i, ben) in bens.iter_mut().enumerate() {
            let command = lock_commands("a:1", &format!("t{i}")).nth(i % 5).unwrap();
            ben.write_raw(format!("{command}\r\n").as_bytes());
        }
        for ben in &mut bens {
            is_error(&ben.read_reply(), NO_KEY);
        }
        assert_eq!(owner.say("UNLOCK a:1 owner"), 1);
        assert_eq!(next.read_reply(), "next");
        assert_eq!(next.say("UNLOCK a:1 next"), 1);
        for ben in &mut bens {
            assert_eq!(ben.say("PING"), "PONG", "and nothing else came");
        }
    });
}

/// It is asked once, and is told what it may know when it may.
#[test]
fn an_authorized_user_waits_in_order() {
    in_each_protocol(|house, protocol| {
        let mut owner = house.client("ann", protocol);
        assert_eq!(owner.say("LOCK s:1 TOKEN owner"), "owner");
        let mut waiters: Vec<(Client, String)> = Vec::new();
        for i in 0..6 {
            let (user, token) = (["ben", "ann", "ben"][i % 3], format!("t{i}"));
            let place = i64::try_from(i).unwrap() + 1;
            waiters.push((house.waiter(user, "s:1", &token, place), token));
        }
        assert_eq!(house.client("ben", protocol).say("TRYLOCK s:1"), Value::Nil);
        assert_eq!(owner.say("UNLOCK s:1 owner"), 1);
        for (client, token) in &mut waiters {
            assert_eq!(client.read_reply(), *token, "first come, first served");
            assert_eq!(client.call(&["UNLOCK", "s:1", token]), 1);
        }
        assert_eq!(
            house.redis.client().say("DBSIZE"),
            1,
            "the mark of the grace"
        );
    });
}

/// One command for a waiter of another user; none for the others of its user.
#[test]
fn a_user_is_asked_about_once() {
    let house = House::new();
    let mut owner = house.client("ann", 2);
    assert_eq!(owner.say("LOCK s:1 TOKEN owner"), "owner");
    let _next = house.waiter("ann", "s:1", "next", 1);
    let mut monitor = Monitor::start(&house.redis);
    let before = monitor.commands_on("s:1").len();
    let mut bens: Vec<Client> = (0..50).map(|_| house.client("ben", 2)).collect();
    for ben in &mut bens {
        ben.send(&["LOCK", "s:1"]);
    }
    crate::support::eventually("all wait", || {
        owner.say("LOCKINFO s:1").field("waiters").integer() == 51
    });
    for ben in &mut bens[..10] {
        let mut again = house.client("ben", 2);
        assert_eq!(again.say("TRYLOCK s:1"), Value::Nil);
        ben.hears_nothing_for(Duration::from_millis(1));
    }
    let commands = monitor.commands_on("s:1");
    let asked: Vec<_> = commands[before..]
        .iter()
        .filter(|command| command[0].starts_with("EVAL"))
        .collect();
    // Where Redis does not know the script yet, it is sent twice.
    assert!((1..=2).contains(&asked.len()), "{asked:?}");
}

/// Whether the lock is held or free, it reads the end of the connection; or Redis's refusal, if that came first.
#[test]
fn a_client_that_half_closed_learns_no_more_than_others() {
    in_each_protocol(|house, protocol| {
        let mut owner = house.client("ann", protocol);
        assert_eq!(owner.say("LOCK a:1 TOKEN owner"), "owner");
        for key in ["a:1", "a:2"] {
            let mut ben = house.client("ben", protocol);
            ben.send(&["LOCK", key]);
            ben.finish_sending();
            if let Ok(reply) = ben.try_read() {
                is_error(&reply, NO_KEY);
            }
        }
    });
}

/// An `UNLOCK` behind a `LOCK` on the same connection shows nobody who holds the lock.
#[test]
fn no_deadlock_is_told_to_whom_it_does_not_concern() {
    in_each_protocol(|house, protocol| {
        let mut owner = house.client("ann", protocol);
        assert_eq!(owner.say("LOCK a:1 TOKEN owner"), "owner");
        let mut ben = house.client("ben", protocol);
        ben.write_raw(b"LOCK a:1\r\nPING\r\nUNLOCK a:1 owner\r\n");
        is_error(&ben.read_reply(), NO_KEY);
        assert_eq!(ben.read_reply(), "PONG");
        is_error(&ben.read_reply(), NO_KEY);
    });
}

#[test]
fn too_many_waiters_are_nobodys_business_but_of_those_who_may_wait() {
    let house = House::with(&[], &[("LOCKGATE_LIMITS_WAITERS", "2")]);
    let mut owner = house.client("ann", 2);
    assert_eq!(owner.say("LOCK s:1 TOKEN owner"), "owner");
    assert_eq!(owner.say("LOCK a:1 TOKEN owner"), "owner");
    let mut waiters: Vec<Client> = (1..=2)
        .map(|n| house.waiter("ann", "s:1", &format!("w{n}"), n))
        .collect();
    let mut more: Vec<Client> = (1..=2)
        .map(|n| house.waiter("ann", "a:1", &format!("w{n}"), n))
        .collect();
    let mut ben = house.client("ben", 2);
    may_not(&mut ben, "a:1", "owner", NO_KEY);
    assert!(ben.say("LOCK s:1").error().starts_with("MAXWAITERS"));
    assert_eq!(ben.say("TRYLOCK s:1"), Value::Nil);
    assert!(
        house
            .client("ann", 2)
            .say("LOCK s:1")
            .error()
            .starts_with("MAXWAITERS")
    );
    for key in ["s:1", "a:1"] {
        assert_eq!(owner.call(&["UNLOCK", key, "owner"]), 1);
    }
    for waiters in [&mut waiters, &mut more] {
        assert_eq!(waiters[0].read_reply(), "w1");
    }
}

// ── from user to user ────────────────────────────────────────────────────────────────────────

/// A handover happens as one user, who need not have the rights of the next. Here they change while
/// that one waits.
#[test]
fn the_lock_goes_from_user_to_user_by_the_rights_of_each() {
    in_each_protocol(|house, protocol| {
        let mut owner = house.client("ann", protocol);
        assert_eq!(owner.say("LOCK s:1 TOKEN owner"), "owner");
        let mut ben = house.waiter("ben", "s:1", "ben", 1);
        let mut last = house.waiter("ann", "s:1", "last", 2);
        assert_eq!(house.admin().say("ACL SETUSER ben resetkeys ~b:*"), "OK");
        assert_eq!(owner.say("UNLOCK s:1 owner"), 1);
        is_error(&ben.read_reply(), NO_KEY);
        assert_eq!(last.read_reply(), "last");
        assert_eq!(house.redis.client().say("GET s:1"), "last");
    });
}

#[test]
fn equal_tokens_of_different_users_are_different_tokens() {
    in_each_protocol(|house, protocol| {
        let (mut ann, mut ben) = (house.client("ann", protocol), house.client("ben", protocol));
        assert_eq!(ann.say("LOCK s:1 TOKEN t PX 60000"), "t");
        assert_eq!(ben.say("TRYLOCK s:1 TOKEN t"), Value::Nil);
        assert_eq!(ben.say("LOCK s:1 TOKEN t WAIT 50"), Value::Nil);
        assert_eq!(ben.say("RELOCK s:1 t PX 50"), 0);
        assert_eq!(ben.say("UNLOCK s:1 t"), 0);
        // Nor is it a deadlock that its own UNLOCK stands behind.
        ben.write_raw(b"LOCK s:1 TOKEN u WAIT 50\r\nPING\r\nUNLOCK s:1 t\r\n");
        assert_eq!(ben.read_reply(), Value::Nil);
        assert_eq!(ben.read_reply(), "PONG");
        assert_eq!(ben.read_reply(), 0);
        // To its own user it is the owner who asks again.
        assert_eq!(house.client("ann", 2).say("LOCK s:1 TOKEN t PX 60000"), "t");
        let mut waiting = house.waiter("ben", "s:1", "t", 1);
        waiting.hears_nothing_for(Duration::from_millis(20));
        assert_eq!(ann.say("UNLOCK s:1 t"), 1);
        assert_eq!(waiting.read_reply(), "t");
        assert_eq!(ann.say("UNLOCK s:1 t"), 0, "by now it is ben's");
        assert_eq!(waiting.say("UNLOCK s:1 t"), 1);
    });
}

/// Even where the gate has to look again who holds the lock.
#[test]
fn an_equal_token_of_another_user_stays_different_after_a_change() {
    let house = House::new();
    let mut ann = house.client("ann", 2);
    assert_eq!(ann.say("LOCK s:1 TOKEN t PX 60000"), "t");
    let mut ben = house.waiter("ben", "s:1", "t", 1);
    let mut direct = house.redis.client();
    for _ in 0..3 {
        assert_eq!(direct.say("PEXPIRE s:1 50000"), 1);
        ben.hears_nothing_for(Duration::from_millis(50));
    }
    assert_eq!(direct.say("DEL s:1"), 1);
    assert_eq!(ben.read_reply(), "t");
    assert_eq!(ann.say("RELOCK s:1 t"), 0);
}

/// Clients that have authenticated are not those that have not, though Redis has one user for both.
#[test]
fn an_anonymous_client_is_not_the_named_user() {
    let house = House::new();
    let (mut nobody, mut named) = (house.gate.client(), house.gate.client());
    assert_eq!(named.say("AUTH default any"), "OK");
    assert_eq!(nobody.say("LOCK s:1 TOKEN t"), "t");
    assert_eq!(named.say("TRYLOCK s:1 TOKEN t"), Value::Nil);
    assert_eq!(nobody.say("UNLOCK s:1 t"), 1);
}
