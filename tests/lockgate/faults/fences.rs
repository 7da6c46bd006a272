//! Fences rise with every grant of a lock, whatever breaks in between.

use super::{gate_before, holder, is_error, is_served, resp3};
use crate::support::{
    Client, Lockgate, Machine, Monitor, Place, RedisServer, SHORT_GRACE, Value, eventually,
    free_address,
};

/// Ahead of every clock: from here on only the counter, and what the gate remembers of it, makes
/// fences rise.
const AHEAD: i64 = 5_000_000_000_000_000;

#[track_caller]
fn fence(reply: &Value, token: &str) -> i64 {
    let [told, fence] = reply.items() else {
        panic!("token and fence were expected, not {reply:?}")
    };
    assert_eq!(told, token);
    fence.integer()
}

/// Takes the lock and gives it back; its fence is larger than the last one, which it becomes.
#[track_caller]
fn rises(client: &mut Client, last: &mut i64) {
    let next = fence(&client.say("LOCK k TOKEN t FENCE WAIT 9000"), "t");
    assert!(next > *last, "{next} after {last}");
    *last = next;
    assert_eq!(client.say("UNLOCK k t"), 1);
}

#[test]
fn a_grant_tells_token_and_fence_in_both_protocols() {
    Place::each(|place| {
        let (mut two, mut three) = (place.client(), resp3(&place.gate));
        let mut last = fence(&two.say("LOCK k FENCE TOKEN t"), "t");
        assert!(last > 0);
        assert_eq!(two.say("UNLOCK k t"), 1);
        for client in [&mut three, &mut two] {
            let next = fence(&client.say("TRYLOCK k FENCE TOKEN t PX 5000"), "t");
            assert!(next > last);
            last = next;
            assert_eq!(
                client.say("LOCKINFO k").field("fence"),
                &Value::Integer(next)
            );
            assert_eq!(client.say("UNLOCK k t"), 1);
        }
        assert_eq!(two.say("LOCK k TOKEN t"), "t", "only who asks for it");
        assert_eq!(three.say("TRYLOCK k FENCE"), Value::Nil);
    });
}

#[test]
fn a_fence_comes_with_every_handover() {
    Place::each(|place| {
        let mut clients = place.gate.clients(20);
        let mut last = fence(&clients[0].say("LOCK k TOKEN t0 FENCE"), "t0");
        for (n, client) in clients.iter_mut().enumerate().skip(1) {
            client.send(&["LOCK", "k", "TOKEN", &format!("t{n}"), "FENCE"]);
            place.gate.awaits_waiters("k", n as i64);
        }
        assert_eq!(clients[0].say("UNLOCK k t0"), 1);
        for (n, client) in clients.iter_mut().enumerate().skip(1) {
            let token = format!("t{n}");
            let next = fence(&client.read_reply(), &token);
            assert!(next > last, "{next} after {last}");
            last = next;
            assert_eq!(client.call(&["UNLOCK", "k", &token]), 1);
        }
    });
}

#[test]
fn fences_rise_across_gates_and_restarts_and_losses() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let start = || Lockgate::start_at(free_address(), &["--upstream", &redis.url()], &SHORT_GRACE);
    let (mut one, other) = (start(), start());
    let mut last = 0;
    for counter in [None, Some(AHEAD)] {
        if let Some(ahead) = counter {
            assert_eq!(
                redis
                    .client()
                    .call(&["SET", "lockgate:fence", &ahead.to_string()]),
                "OK"
            );
            last = ahead;
        }
        for _ in 0..3 {
            rises(&mut one.client(), &mut last);
            rises(&mut other.client(), &mut last);
        }
        one.kill();
        one.restart();
        rises(&mut one.client(), &mut last);
        assert_eq!(redis.client().say("FLUSHALL"), "OK");
        rises(&mut one.client(), &mut last);
        rises(&mut other.client(), &mut last);
    }
    redis.kill();
    redis.restart();
    rises(&mut other.client(), &mut last);
    rises(&mut one.client(), &mut last);
}

/// A gate that was not told that a lock was released elsewhere still has its fence in the books.
#[test]
fn an_owner_that_returns_after_others_gets_a_larger_fence() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    assert_eq!(
        redis.client().say("ACL SETUSER default -client|tracking"),
        "OK"
    );
    let gates = [(); 2].map(|()| gate_before(&redis.url(), &[]));
    let (mut one, mut other) = (gates[0].client(), gates[1].client());
    let first = fence(&one.say("LOCK k TOKEN t FENCE"), "t");
    assert_eq!(other.say("UNLOCK k t"), 1);
    let between = fence(&other.say("LOCK k TOKEN u FENCE"), "u");
    assert_eq!(other.say("UNLOCK k u"), 1);
    let mut last = fence(&one.say("LOCK k TOKEN t FENCE"), "t");
    assert!(
        first < between && between < last,
        "{first} {between} {last}"
    );
    assert_eq!(
        fence(&one.say("LOCK k TOKEN t FENCE"), "t"),
        last,
        "it was kept"
    );
    // Now without a fence, or by a new lease: then it is not known whose fence that one is.
    for comes_back in ["LOCK k TOKEN t", "RELOCK k t"] {
        assert_eq!(other.say("UNLOCK k t"), 1);
        let between = fence(&other.say("LOCK k TOKEN u FENCE"), "u");
        assert_eq!(other.say("UNLOCK k u"), 1);
        if comes_back.starts_with("RELOCK") {
            assert_eq!(other.say("LOCK k TOKEN t"), "t");
        }
        assert!(!matches!(one.say(comes_back), Value::Error(_)));
        last = fence(&one.say("LOCK k TOKEN t FENCE"), "t");
        assert!(between < last, "{between} {last} {comes_back}");
    }
}

/// Also past a gate that knew nothing of it: the counter comes back with the lease.
#[test]
fn the_fence_of_a_held_lock_outlives_a_redis_that_forgets() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[]);
    assert_eq!(
        redis
            .client()
            .call(&["SET", "lockgate:fence", &AHEAD.to_string()]),
        "OK"
    );
    let mut owner = gate.client();
    let held = fence(&owner.say("LOCK held TOKEN t FENCE"), "t");
    redis.kill();
    redis.restart();
    eventually("it is written back", || holder(&redis, "held") == "t");
    let other = gate_before(&redis.url(), &[]);
    let next = fence(&other.client().say("LOCK k TOKEN t FENCE"), "t");
    assert!(next > held, "{next} after {held}");
    // An instance that was away for longer than the grace does not know the holder before the write-back.
    let again = fence(&owner.say("LOCK held TOKEN t FENCE"), "t");
    assert!(again > next, "{again} after {next}");
    assert_eq!(fence(&owner.say("LOCK held TOKEN t FENCE"), "t"), again);
}

#[test]
fn asking_again_gives_the_fence_one_has() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let (gate, other) = (
        gate_before(&redis.url(), &[]),
        gate_before(&redis.url(), &[]),
    );
    let (mut owner, mut again) = (gate.client(), gate.client());
    let first = fence(&owner.say("LOCK k TOKEN t FENCE"), "t");
    assert_eq!(fence(&again.say("LOCK k TOKEN t FENCE"), "t"), first);
    assert_eq!(fence(&again.say("TRYLOCK k TOKEN t FENCE"), "t"), first);
    assert_eq!(again.say("RELOCK k t"), 1);
    assert_eq!(
        fence(&again.say("LOCK k TOKEN t FENCE PX 5000"), "t"),
        first
    );
    // That gate does not know it.
    let elsewhere = fence(&other.client().say("LOCK k TOKEN t FENCE"), "t");
    assert!(elsewhere > first);
    assert_eq!(owner.say("UNLOCK k t"), 1);
    // A holder without a fence gets one when it asks.
    assert_eq!(owner.say("LOCK plain TOKEN t"), "t");
    assert!(fence(&owner.say("LOCK plain TOKEN t FENCE"), "t") > elsewhere);
}

#[test]
fn a_counter_that_is_none_is_an_error_and_no_lock_is_left() {
    let place = Place::with_redis(Machine::shared());
    let (mut direct, mut client) = (place.redis().client(), place.client());
    let mut holding = place.client();
    assert_eq!(holding.say("LOCK held TOKEN t"), "t");
    for wrong in [
        "9007199254740992",
        "9007199254740991",
        "99999999999999999999",
        "-5",
        "1e3",
        "many",
    ] {
        assert_eq!(direct.call(&["SET", "lockgate:fence", wrong]), "OK");
        for command in ["LOCK k FENCE", "TRYLOCK k FENCE", "LOCK held TOKEN t FENCE"] {
            let reply = client.say(command);
            is_error(&reply, "ERR");
            assert!(reply.error().contains("lockgate:fence"), "{reply:?}");
        }
        assert_eq!(holder(place.redis(), "k"), Value::Nil);
        assert_eq!(direct.say("GET lockgate:fence"), wrong, "it is as it was");
        assert_eq!(client.say("LOCK k TOKEN t"), "t", "without a fence it goes");
        assert_eq!(client.say("UNLOCK k t"), 1);
    }
    assert_eq!(direct.say("DEL lockgate:fence"), 1);
    assert_eq!(direct.say("RPUSH lockgate:fence a"), 1);
    is_error(&client.say("LOCK k FENCE"), "WRONGTYPE");
    assert_eq!(holder(place.redis(), "k"), Value::Nil);
}

/// A waiter that is handed the lock and cannot get a fence gets the error, and the next waiter the lock.
#[test]
fn a_waiter_without_a_fence_does_not_stop_the_queue() {
    let place = Place::with_redis(Machine::shared());
    let (mut owner, mut fenced) = (place.client(), place.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    fenced.send(&["LOCK", "k", "FENCE"]);
    place.gate.awaits_waiters("k", 1);
    let mut next = super::waiter(&place.gate, "k", "next", 2);
    assert_eq!(place.redis().client().say("SET lockgate:fence many"), "OK");
    assert_eq!(owner.say("UNLOCK k t"), 1);
    is_error(&fenced.read_reply(), "ERR");
    assert_eq!(next.read_reply(), "next");
}

#[test]
fn the_name_of_the_counter_is_no_lock() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    for command in [
        "LOCK lockgate:fence",
        "TRYLOCK lockgate:fence",
        "LOCK lockgate:fence FENCE",
    ] {
        is_error(&client.say(command), "ERR");
    }
    assert_eq!(
        place.redis().client().say("DBSIZE"),
        1,
        "the mark of the grace"
    );
}

#[test]
fn without_the_right_to_the_counter_there_is_no_fence_and_no_lock_is_left() {
    let _machine = Machine::shared();
    let rights = [
        "--user", "default", "on", "nopass", "~k", "~first", "&*", "+@all",
    ];
    let redis = RedisServer::start(&rights);
    let gate = gate_before(&redis.url(), &[]);
    let mut client = gate.client();
    for command in ["LOCK k FENCE", "TRYLOCK k FENCE"] {
        is_error(&client.say(command), "NOPERM");
    }
    assert_eq!(redis.client().say("GET k"), Value::Nil);
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("UNLOCK k t"), 1);
    is_served(&gate);
}

/// Every fence taken through another gate changes a key that this gate has read.
#[test]
fn the_fences_of_one_gate_cost_the_other_one_nothing() {
    const TIMES: usize = 30;
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let (one, other) = (
        gate_before(&redis.url(), &[]),
        gate_before(&redis.url(), &[]),
    );
    let (mut client, mut last) = (other.client(), 0);
    rises(&mut one.client(), &mut last);
    rises(&mut client, &mut last);
    let mut monitor = Monitor::start(&redis);
    for _ in 0..TIMES {
        rises(&mut client, &mut last);
    }
    let commands = monitor.commands_on("k");
    assert!(commands.len() <= 2 * TIMES, "{}", commands.len());
    assert!(monitor.commands_on("lockgate:fence").len() <= TIMES);
}
