//! The lock in Redis is what everybody's lock is: a string key with an expiry. Whoever locks in
//! Redis directly competes with the clients of lockgate.

use std::time::{Duration, Instant};

use crate::support::{
    Client, Lockgate, Machine, Monitor, Place, RedisServer, Value, eventually, median,
};

#[test]
fn the_lock_is_a_string_with_an_expiry() {
    let place = Place::with_redis(Machine::shared());
    let token = place.client().say("LOCK order:42 PX 20000").text();
    for mut client in [place.client(), place.redis().client()] {
        assert_eq!(client.say("GET order:42"), token);
        let left = client.say("PTTL order:42").integer();
        assert!((19_000..=20_000).contains(&left), "{left} ms");
    }
    assert_eq!(place.client().call(&["UNLOCK", "order:42", &token]), 1);
    assert_eq!(place.redis().client().say("EXISTS order:42"), 0);
}

#[test]
fn the_default_lease_is_thirty_seconds() {
    let place = Place::with_redis(Machine::shared());
    place.client().say("LOCK k");
    let left = place.redis().client().say("PTTL k").integer();
    assert!((29_000..=30_000).contains(&left), "{left} ms");
}

#[test]
fn the_prefix_is_put_before_the_key_of_every_lock_and_of_nothing_else() {
    let redis = RedisServer::start(&[]);
    let flags = ["--upstream", &redis.url()];
    let gate = Lockgate::start_with(&flags, &[("LOCKGATE_LOCK_KEY_PREFIX", "lock:")]);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("GET lock:k"), "t");
    assert_eq!(client.say("GET k"), Value::Nil);
    assert_eq!(client.say("UNLOCK k t"), 1);
}

#[test]
fn a_lock_taken_directly_keeps_everybody_waiting() {
    let place = Place::with_redis(Machine::shared());
    let (mut direct, mut waiter) = (place.redis().client(), place.client());
    assert_eq!(direct.say("SET k direct NX PX 30000"), "OK");
    assert_eq!(waiter.say("TRYLOCK k"), Value::Nil);
    assert_eq!(waiter.say("LOCK k WAIT 100"), Value::Nil);
    waiter.send(&["LOCK", "k", "TOKEN", "t"]);
    place.gate.awaits_waiters("k", 1);
    waiter.hears_nothing_for(Duration::from_millis(50));
    assert_eq!(direct.say("GET k"), "direct");
    assert_eq!(direct.say("DEL k"), 1);
    assert_eq!(waiter.read_reply(), "t");
    assert_eq!(direct.say("SET k direct NX PX 30000"), Value::Nil);
    assert_eq!(waiter.say("UNLOCK k t"), 1);
    assert_eq!(direct.say("SET k direct NX PX 30000"), "OK");
}

/// One who waits and learns nothing new sends nothing.
#[test]
fn waiting_costs_redis_nothing() {
    let place = Place::with_redis(Machine::shared());
    assert_eq!(place.redis().client().say("SET k direct NX PX 30000"), "OK");
    let mut waiters = place.gate.clients(50);
    let mut monitor = Monitor::start(place.redis());
    for waiter in &mut waiters {
        waiter.say("PING");
        waiter.send(&["LOCK", "k", "WAIT", "500"]);
    }
    for waiter in &mut waiters {
        assert_eq!(waiter.read_reply(), Value::Nil);
    }
    let commands = monitor.commands_on("k");
    // LOCKINFO was not asked; one ask for all, and one more where a push came in between.
    let some = &commands[..commands.len().min(5)];
    assert!(
        commands.len() <= 2,
        "{} commands, {some:?} …",
        commands.len()
    );
}

#[test]
fn nothing_is_left_when_everybody_is_done() {
    let place = Place::with_redis(Machine::shared());
    let mut clients = place.gate.clients(20);
    for client in &mut clients {
        client.send(&["LOCK", "k", "TOKEN", "same-for-nobody", "WAIT", "1"]);
        client.read_reply();
        client.say("UNLOCK k same-for-nobody");
    }
    assert_eq!(
        place.redis().client().say("DBSIZE"),
        1,
        "the mark of the grace"
    );
    let mut observer = place.client();
    eventually("no lock is known any more", || {
        observer.say("LOCKS").items().is_empty()
    });
}

#[test]
fn a_key_that_is_no_string_is_the_error_of_redis() {
    let place = Place::with_redis(Machine::shared());
    assert_eq!(place.redis().client().say("RPUSH k a"), 1);
    let errors = |client: &mut Client, command: &str| {
        let reply = client.say(command);
        assert!(
            reply.error().starts_with("WRONGTYPE"),
            "{command}: {reply:?}"
        );
    };
    let mut client = place.client();
    errors(&mut client, "LOCK k WAIT 100");
    errors(&mut client, "TRYLOCK k");
    assert_eq!(client.say("LLEN k"), 1, "it is as it was");
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    #[test]
    fn when_anybody_deletes_the_key_the_waiter_has_it_within_20_ms() {
        let place = Place::with_redis(Machine::alone());
        let (mut direct, mut waiter) = (place.redis().client(), place.client());
        let measured = (0..15).map(|round| {
            let key = format!("k:{round}");
            assert_eq!(
                direct.call(&["SET", &key, "direct", "NX", "PX", "30000"]),
                "OK"
            );
            waiter.send(&["LOCK", &key, "TOKEN", "t"]);
            place.gate.awaits_waiters(&key, 1);
            let start = Instant::now();
            // In turn: deleted, expired by its owner, emptied with everything else.
            match round % 3 {
                0 => assert_eq!(direct.call(&["DEL", &key]), 1),
                1 => assert_eq!(direct.call(&["PEXPIRE", &key, "0"]), 1),
                _ => assert_eq!(direct.say("FLUSHALL"), "OK"),
            }
            assert_eq!(waiter.read_reply(), "t");
            start.elapsed()
        });
        let took = median(measured.collect());
        assert!(took < Duration::from_millis(20), "{took:?}");
    }

    /// Redis tells of an expiry only when it comes upon the key, which beside many others takes its
    /// time; lockgate does not rely on it.
    #[test]
    fn when_the_key_expires_the_waiter_has_it_within_50_ms_beside_200_000_others() {
        let place = Place::with_redis(Machine::alone());
        let (mut direct, mut waiter) = (place.redis().client(), place.client());
        let fill = "for i = 1, 200000 do redis.call('SET', 'other:' .. i, 'x', 'PX', 3600000) end";
        assert_eq!(direct.call(&["EVAL", fill, "0"]), Value::Nil);
        assert_eq!(direct.say("DBSIZE"), 200_001, "with the mark of the grace");
        let measured = (0..5).map(|_| {
            assert_eq!(direct.say("SET k direct NX PX 500"), "OK");
            let expires = Instant::now() + Duration::from_millis(500);
            assert_eq!(waiter.say("LOCK k TOKEN t"), "t");
            let late = Instant::now().saturating_duration_since(expires);
            // Exclusive to the millisecond: the reply to SET left Redis a little after the key began.
            assert!(
                Instant::now() + Duration::from_millis(50) > expires,
                "before its time"
            );
            assert_eq!(waiter.say("UNLOCK k t"), 1);
            late
        });
        let late = median(measured.collect());
        assert!(late < Duration::from_millis(50), "{late:?}");
    }
}
