//! Interleavings that broke a design, or would: each has a remedy in the code.
//!
//! Elsewhere: the lock released through another gate before Redis forgot (`redis_forgets`), the token
//! of an earlier owner on a stale replica (`failover`).

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{AT_ONCE, admitted, gate_before, holder, is_error, pttl, reset, timed, waiter};
use crate::support::{Client, Lockgate, Machine, Place, Proxy, RedisServer, Value, eventually};

/// The client's connection to one gate is gone, and it asked again through another one, which it may
/// do with its token. What the first gate does for a client that is gone may not take the lock from it.
#[test]
fn a_client_that_retried_at_another_instance_keeps_the_lock() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let (one, other) = (
        gate_before(&redis.url(), &[]),
        gate_before(&redis.url(), &[]),
    );
    let (mut first, mut again) = (one.client(), other.client());
    assert_eq!(first.say("LOCK k TOKEN t PX 30000 SESSION"), "t");
    assert_eq!(again.say("LOCK k TOKEN t PX 30000"), "t");
    drop(first);
    eventually("the first gate knows", || {
        one.client().say("LOCKS").items().is_empty() || is_unbound(&one)
    });
    thread::sleep(Duration::from_millis(100));
    assert_eq!(holder(&redis, "k"), "t");
    assert_eq!(again.say("UNLOCK k t"), 1);
}

fn is_unbound(gate: &crate::support::Lockgate) -> bool {
    gate.client().say("LOCKINFO k").field("session") == &Value::Integer(0)
}

/// The same for one whose grant was under way when its connection closed.
#[test]
fn a_retry_at_another_instance_during_the_grant_keeps_the_lock() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let (one, other) = (
        gate_before(&proxy.url(), &[("LOCKGATE_QUEUE_RECONNECT_GRACE", "0ms")]),
        gate_before(&redis.url(), &[]),
    );
    for late in [false, true] {
        let mut first = admitted(&one);
        proxy.drop_replies(true);
        // It is told that it did not get the lock, and goes.
        first.send(&["LOCK", "k", "TOKEN", "t", "PX", "30000", "WAIT", "300"]);
        eventually("Redis did it", || holder(&redis, "k") == "t");
        assert!(first.read_reply() != "t");
        reset(first);
        thread::sleep(Duration::from_millis(50));
        let reconnects = || {
            proxy.cut();
            proxy.drop_replies(false);
            assert_eq!(one.client().say("LOCK other TOKEN o WAIT 5000"), "o");
            assert_eq!(one.client().say("UNLOCK other o"), 1);
        };
        let mut again = other.client();
        if late {
            assert_eq!(again.say("LOCK k TOKEN t PX 30000"), "t");
            reconnects();
        } else {
            reconnects();
            assert_eq!(again.say("LOCK k TOKEN t PX 30000"), "t");
        }
        // Longer than after what the first gate would release it once more.
        thread::sleep(Duration::from_millis(2_200));
        assert_eq!(holder(&redis, "k"), "t");
        assert_eq!(again.say("UNLOCK k t"), 1);
    }
}

/// A key is told of only if it was read after the gate's own last write to it: whatever that was.
#[test]
fn after_each_write_of_the_gate_a_foreign_delete_is_noticed() {
    let place = Place::with_redis(Machine::shared());
    let mut direct = place.redis().client();
    type Write = fn(&Place, &mut Client);
    let writes: [(&str, Write); 7] = [
        ("taken", |_, _| {}),
        ("asked for again", |_, owner| {
            assert_eq!(owner.say("LOCK k TOKEN t PX 50000"), "t")
        }),
        ("extended", |_, owner| {
            assert_eq!(owner.say("RELOCK k t PX 50000"), 1)
        }),
        ("handed over", |place, owner| {
            assert_eq!(owner.say("UNLOCK k t"), 1);
            assert_eq!(owner.say("LOCK k TOKEN before"), "before");
            let mut next = waiter(&place.gate, "k", "t", 1);
            assert_eq!(owner.say("UNLOCK k before"), 1);
            assert_eq!(next.read_reply(), "t");
        }),
        ("taken with a fence", |_, owner| {
            assert_eq!(owner.say("UNLOCK k t"), 1);
            assert_eq!(owner.say("LOCK k TOKEN t FENCE").items()[0], "t");
        }),
        ("asked for again with a fence", |_, owner| {
            assert_eq!(owner.say("LOCK k TOKEN t PX 50000 FENCE").items()[0], "t");
        }),
        ("renewed", |place, owner| {
            assert_eq!(owner.say("UNLOCK k t"), 1);
            assert_eq!(owner.say("LOCK k TOKEN t PX 1000 SESSION"), "t");
            let mut direct = place.redis().client();
            eventually("it is to be renewed", || pttl(&mut direct, "k") < 750);
            eventually("it is renewed", || pttl(&mut direct, "k") > 800);
        }),
    ];
    for (what, write) in writes {
        let mut owner = place.client();
        assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
        write(&place, &mut owner);
        // Nobody asks how many wait: that would be a read of the key, too.
        let mut next = place.client();
        next.send(&["LOCK", "k", "TOKEN", "next"]);
        next.hears_nothing_for(Duration::from_millis(30));
        assert_eq!(direct.say("DEL k"), 1, "{what}");
        let (reply, took) = timed(|| next.read_reply());
        assert_eq!(reply, "next", "{what}");
        assert!(took < Duration::from_millis(500), "{what}: {took:?}");
        assert_eq!(next.say("UNLOCK k next"), 1);
    }
}

/// Nothing comes from a connection whose other end is gone without a word: nor would a push.
#[test]
fn a_silent_connection_is_noticed_and_replaced() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let settings = [
        ("LOCKGATE_UPSTREAM_PING", "300ms"),
        ("LOCKGATE_UPSTREAM_TIMEOUT", "400ms"),
        ("LOCKGATE_WRITE_BACK_GRACE", "1400ms"),
    ];
    let gate = gate_before(&proxy.url(), &settings);
    let mut direct = redis.client();
    assert_eq!(direct.say("SET k direct PX 60000"), "OK");
    let mut next = waiter(&gate, "k", "next", 1);
    proxy.half_open(true);
    let begin = Instant::now();
    assert_eq!(direct.say("DEL k"), 1);
    eventually("the gate notices", || {
        gate.log().contains("does not answer")
    });
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    // Of the old connection nothing passes any more.
    proxy.cut();
    proxy.half_open(false);
    let (reply, took) = timed(|| next.read_reply());
    assert_eq!(reply, "next");
    assert!(took < AT_ONCE, "{took:?}");
}

/// The network delivers what the gate gave up on, when the client has long been told so and is gone.
#[test]
fn a_command_that_was_given_up_on_and_comes_late_takes_the_lock_for_nobody() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let gate = gate_before(&proxy.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "400ms")]);
    for command in ["LOCK k WAIT 500 PX 60000", "TRYLOCK k PX 60000"] {
        let mut client = admitted(&gate);
        proxy.half_open(true);
        let (reply, took) = timed(|| client.say(command));
        is_error(&reply, "UPSTREAM");
        assert!(took < AT_ONCE, "{took:?}");
        drop(client);
        // So long that the gate has given up the connection, too.
        thread::sleep(Duration::from_millis(400));
        let mut direct = redis.client();
        assert_eq!(direct.say("EXISTS k"), 0, "it is on its way still");
        proxy.half_open(false);
        let mut next = gate.client();
        let (reply, took) = timed(|| next.say("LOCK k TOKEN next"));
        assert_eq!(reply, "next");
        assert!(took < Duration::from_secs(3), "{took:?}");
        // And it has the lock from then on.
        next.hears_nothing_for(Duration::from_millis(900));
        assert_eq!(holder(&redis, "k"), "next");
        assert_eq!(next.say("UNLOCK k next"), 1);
        thread::sleep(Duration::from_millis(500));
        assert_eq!(direct.say("EXISTS k"), 0);
    }
}

/// Waiting costs Redis nothing, however many wait for however long.
#[test]
fn a_gate_whose_clients_only_wait_sends_nothing_but_pings() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = Lockgate::start(&["--upstream", &redis.url()]);
    let mut direct = redis.client();
    assert_eq!(direct.say("SET k direct PX 60000"), "OK");
    let mut waiters: Vec<Client> = gate.clients(100);
    waiters
        .iter_mut()
        .for_each(|waiter| waiter.send(&["LOCK", "k"]));
    gate.awaits_waiters("k", 100);
    let mut monitor = redis.client();
    assert_eq!(monitor.say("MONITOR"), "OK");
    let until = Instant::now() + Duration::from_secs(10);
    let mut pings = 0;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if monitor.hears_within(left).unwrap() {
            let line = monitor.read_reply().text();
            assert!(line.ends_with("] \"PING\""), "{line}");
            pings += 1;
        }
    }
    assert!((1..=3).contains(&pings), "{pings} pings");
    assert_eq!(direct.say("DEL k"), 1);
    eventually("one has it", || {
        waiters
            .iter_mut()
            .any(|waiter| waiter.hears_within(Duration::ZERO).unwrap())
    });
}

/// A delay shorter than a sleep can be.
fn spin(micros: u64) {
    let end = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    /// That the lock was freed is told while the question for it is under way, and its answer is "held": on
    /// whichever side of the push it was made.
    #[test]
    fn a_push_that_overtakes_its_answer_is_not_lost() {
        let place = Place::with_redis(Machine::alone());
        let (mut direct, mut waiter) = (place.redis().client(), place.client());
        for round in 0..2_000_u64 {
            let key = format!("k:{round}");
            assert_eq!(direct.call(&["SET", &key, "direct", "PX", "60000"]), "OK");
            waiter.send(&["LOCK", &key, "TOKEN", "t"]);
            spin(round % 200);
            assert_eq!(direct.call(&["DEL", &key]), 1);
            let start = Instant::now();
            assert_eq!(waiter.read_reply(), "t");
            assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
            assert_eq!(waiter.call(&["UNLOCK", &key, "t"]), 1);
        }
    }

    /// It comes when what it did was to be undone already: its connection is ended before, and where the
    /// user may not do so it is undone once more.
    #[test]
    fn a_command_that_comes_after_it_was_undone_takes_the_lock_for_nobody() {
        let _machine = Machine::alone();
        for (right, late) in [("+client|kill", 2_500), ("-client|kill", 1_400)] {
            let redis = RedisServer::start(&[
                "--user", "default", "on", "nopass", "~*", "&*", "+@all", right,
            ]);
            let proxy = Proxy::before(redis.address());
            let settings = [
                ("LOCKGATE_UPSTREAM_TIMEOUT", "800ms"),
                ("LOCKGATE_WRITE_BACK_GRACE", "1500ms"),
            ];
            let gate = gate_before(&proxy.url(), &settings);
            let mut client = gate.client();
            let sent = Instant::now();
            proxy.delay(Duration::from_millis(late));
            client.send(&["LOCK", "k", "WAIT", "300", "PX", "60000"]);
            client.hears_nothing_for(Duration::from_millis(100));
            // The bytes sent so far are still on their way; later ones overtake them.
            proxy.delay(Duration::ZERO);
            assert!(matches!(client.read_reply(), Value::Nil | Value::Error(_)));
            let mut direct = redis.client();
            let undone = Duration::from_millis(late + 1_200);
            thread::sleep(undone.saturating_sub(sent.elapsed()));
            assert_eq!(direct.say("EXISTS k"), 0, "{right}");
        }
    }
}
