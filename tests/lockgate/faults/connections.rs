//! The connection to Redis breaks, or was never there: what was under way is unknown, and is asked
//! again; who waits goes on waiting.

use std::{thread::sleep, time::Duration};

use super::{
    AT_ONCE, admitted, gate_before, holder, is_error, is_served, pttl, reset, timed, waiter,
    was_told_nothing,
};
use crate::support::{
    Client, Lockgate, Machine, Monitor, Place, Proxy, RedisServer, SHORT_GRACE, Value, eventually,
    free_address,
};

/// A gate that reaches its Redis through a network that breaks.
struct Line {
    redis: RedisServer,
    proxy: Proxy,
    gate: Lockgate,
    _machine: Machine,
}

impl Line {
    fn new() -> Self {
        let machine = Machine::shared();
        let redis = RedisServer::start(&[]);
        let proxy = Proxy::before(redis.address());
        let gate = gate_before(&proxy.url(), &[]);
        uses_every_script(&gate);
        Self {
            redis,
            proxy,
            gate,
            _machine: machine,
        }
    }

    /// What the client says reaches Redis and is executed until this holds; no answer comes back, and
    /// then the connection breaks.
    fn answer_is_lost(&self, client: &mut Client, command: &[&str], is_done: impl Fn() -> bool) {
        was_told_nothing(client);
        self.proxy.drop_replies(true);
        client.send(command);
        eventually("Redis did it", is_done);
        client.hears_nothing_for(Duration::from_millis(20));
        self.proxy.cut();
        self.proxy.drop_replies(false);
    }

    /// What the client says does not reach Redis before the connection breaks.
    fn command_is_lost(&self, client: &mut Client, command: &[&str]) {
        self.proxy.half_open(true);
        client.send(command);
        client.hears_nothing_for(Duration::from_millis(20));
        self.proxy.cut();
        self.proxy.half_open(false);
    }

    fn holder(&self, key: &str) -> Value {
        holder(&self.redis, key)
    }
}

/// So that Redis knows them all: where an answer is to be lost, it is not to be that it knows none.
fn uses_every_script(gate: &Lockgate) {
    let (mut owner, mut next) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK script TOKEN a"), "a");
    assert_eq!(owner.say("RELOCK script a"), 1);
    next.send(&["LOCK", "script", "TOKEN", "b"]);
    gate.awaits_waiters("script", 1);
    assert_eq!(owner.say("UNLOCK script a"), 1);
    assert_eq!(next.read_reply(), "b");
    assert_eq!(next.say("UNLOCK script b"), 1);
    assert_eq!(next.say("LOCK script TOKEN c FENCE").items()[0], "c");
    assert_eq!(next.say("UNLOCK script c"), 1);
}

#[test]
fn waiters_keep_their_places_when_redis_cuts_connections() {
    let place = Place::with_redis(Machine::shared());
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK k TOKEN owner"), "owner");
    let mut waiters: Vec<Client> = Vec::new();
    let mut redis = place.redis().client();
    for n in 0..10 {
        waiters.push(waiter(&place.gate, "k", &format!("w{n}"), n + 1));
        assert!(redis.say("CLIENT KILL TYPE normal").integer() >= 1);
    }
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    for (n, next) in waiters.iter_mut().enumerate() {
        let token = format!("w{n}");
        assert_eq!(next.read_reply(), token);
        if n % 3 == 0 {
            redis.say("CLIENT KILL TYPE normal");
        }
        assert_eq!(next.call(&["UNLOCK", "k", &token]), 1);
    }
    waiters.iter_mut().for_each(was_told_nothing);
    assert_eq!(redis.say("DBSIZE"), 1, "the mark of the grace");
}

/// Changes that nobody told, since there was no connection to tell on, are found by asking.
#[test]
fn a_change_during_a_broken_connection_is_found() {
    let line = Line::new();
    let mut direct = line.redis.client();
    let keys: Vec<String> = (0..200).map(|n| format!("k:{n}")).collect();
    let mut waiters = line.gate.clients(keys.len());
    for (key, waiter) in keys.iter().zip(&mut waiters) {
        assert_eq!(direct.call(&["SET", key, "direct", "PX", "60000"]), "OK");
        waiter.send(&["LOCK", key, "TOKEN", "t"]);
    }
    for key in &keys {
        line.gate.awaits_waiters(key, 1);
    }
    line.proxy.refuse(true);
    line.proxy.cut();
    assert_eq!(
        direct.call(&[&["DEL".to_owned()], &keys[..100]].concat()),
        100
    );
    line.proxy.refuse(false);
    let ((), took) = timed(|| {
        for waiter in &mut waiters[..100] {
            assert_eq!(waiter.read_reply(), "t");
        }
    });
    assert!(took < AT_ONCE, "{took:?}");
    // And the others are told of again.
    assert_eq!(
        direct.call(&[&["DEL".to_owned()], &keys[100..]].concat()),
        100
    );
    for waiter in &mut waiters[100..] {
        assert_eq!(waiter.read_reply(), "t");
    }
}

/// Of many locks that have to be asked about again, none is asked so late that whoever tries to take it is told
/// that Redis does not answer.
#[test]
fn trylock_is_answered_while_many_locks_are_checked_again() {
    const LOCKS: usize = 5_000;
    const TRIES: usize = 100;
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "500ms")]);
    let (mut direct, mut owner) = (redis.client(), gate.client());
    let keys: Vec<String> = (0..LOCKS).map(|n| format!("k:{n}")).collect();
    for keys in keys.chunks(500) {
        for key in keys {
            owner.send(&["LOCK", key, "TOKEN", "t", "PX", "600000"]);
        }
        for _ in keys {
            assert_eq!(owner.read_reply(), "t");
        }
    }
    let mut tries = gate.clients(TRIES);
    tries.iter_mut().for_each(was_told_nothing);
    assert!(direct.say("CLIENT KILL TYPE normal").integer() >= 1);
    for (key, client) in keys.iter().step_by(LOCKS / TRIES).zip(&mut tries) {
        client.send(&["TRYLOCK", key]);
    }
    for client in &mut tries {
        assert!(client.read_reply().is_nil());
    }
}

/// Its lease is counted from when Redis could be asked, not from when it wanted to.
#[test]
fn an_outage_longer_than_the_lease_expires_nobody_and_keeps_the_order() {
    let line = Line::new();
    let mut direct = line.redis.client();
    assert_eq!(direct.say("SET k direct PX 60000"), "OK");
    let mut waiters: Vec<Client> = (1..=3).map(|_| line.gate.client()).collect();
    for (n, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&["LOCK", "k", "TOKEN", &format!("w{n}"), "PX", "500"]);
        line.gate.awaits_waiters("k", i64::try_from(n).unwrap() + 1);
    }
    line.proxy.refuse(true);
    line.proxy.cut();
    assert_eq!(direct.say("DEL k"), 1);
    let mut last = waiters.pop().unwrap();
    last.hears_nothing_for(Duration::from_millis(1_000));
    line.proxy.refuse(false);
    for (n, waiter) in waiters.iter_mut().enumerate() {
        let token = format!("w{n}");
        assert_eq!(waiter.read_reply(), token);
        assert_eq!(waiter.call(&["UNLOCK", "k", &token]), 1);
    }
    assert_eq!(last.read_reply(), "w2");
}

#[test]
fn an_acquisition_whose_answer_is_lost_is_one_grant() {
    let line = Line::new();
    for command in ["LOCK", "TRYLOCK"] {
        let mut client = line.gate.client();
        let ask = [command, "k", "TOKEN", "t", "PX", "5000"];
        line.answer_is_lost(&mut client, &ask, || line.holder("k") == "t");
        assert_eq!(client.read_reply(), "t");
        let left = pttl(&mut line.redis.client(), "k");
        assert!((4_000..=5_003).contains(&left), "{left}");
        assert_eq!(client.say("UNLOCK k t"), 1);
        was_told_nothing(&mut client);
        assert!(line.holder("k").is_nil());
    }
}

#[test]
fn an_acquisition_with_a_fence_whose_answer_is_lost_is_one_grant() {
    let line = Line::new();
    let mut client = line.gate.client();
    let before = client.say("LOCK k TOKEN a FENCE").items()[1].integer();
    assert_eq!(client.say("UNLOCK k a"), 1);
    let ask = ["LOCK", "k", "TOKEN", "t", "FENCE"];
    line.answer_is_lost(&mut client, &ask, || line.holder("k") == "t");
    let granted = client.read_reply();
    assert_eq!(granted.items()[0], "t");
    let fence = granted.items()[1].integer();
    assert!(fence > before, "{fence} after {before}");
    assert_eq!(
        line.redis.client().say("GET lockgate:fence"),
        fence.to_string()
    );
    assert_eq!(client.say("UNLOCK k t"), 1);
    was_told_nothing(&mut client);
}

/// Its token is known to nobody else: what Redis gave to nobody is taken back.
#[test]
fn an_acquisition_whose_answer_and_client_are_lost_is_held_by_nobody() {
    let line = Line::new();
    for end in [drop, reset] {
        let mut client = admitted(&line.gate);
        line.proxy.drop_replies(true);
        client.send(&["LOCK", "k"]);
        eventually("Redis did it", || !line.holder("k").is_nil());
        end(client);
        line.gate
            .client()
            .hears_nothing_for(Duration::from_millis(50));
        line.proxy.cut();
        line.proxy.drop_replies(false);
        let mut next = line.gate.client();
        let (reply, took) = timed(|| next.say("LOCK k TOKEN next"));
        assert_eq!(reply, "next");
        assert!(took < AT_ONCE, "{took:?}");
        assert_eq!(next.say("UNLOCK k next"), 1);
    }
}

#[test]
fn a_release_whose_answer_is_lost_is_answered_as_done() {
    let line = Line::new();
    let mut client = line.gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    let release = ["UNLOCK", "k", "t"];
    line.answer_is_lost(&mut client, &release, || line.holder("k").is_nil());
    assert_eq!(client.read_reply(), 1);
    was_told_nothing(&mut client);
}

#[test]
fn a_handover_whose_answer_is_lost_is_one_release_and_one_grant() {
    let line = Line::new();
    let mut owner = line.gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    let mut next = waiter(&line.gate, "k", "next", 1);
    let mut behind = waiter(&line.gate, "k", "behind", 2);
    let release = ["UNLOCK", "k", "t"];
    line.answer_is_lost(&mut owner, &release, || line.holder("k") == "next");
    assert_eq!(owner.read_reply(), 1);
    assert_eq!(next.read_reply(), "next");
    behind.hears_nothing_for(Duration::from_millis(50));
    assert_eq!(next.say("UNLOCK k next"), 1);
    assert_eq!(behind.read_reply(), "behind");
    was_told_nothing(&mut owner);
    was_told_nothing(&mut next);
}

#[test]
fn a_new_lease_whose_answer_is_lost_is_answered_as_done() {
    let line = Line::new();
    let mut owner = line.gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 5000"), "t");
    let relock = ["RELOCK", "k", "t", "PX", "60000"];
    let mut direct = line.redis.client();
    line.proxy.drop_replies(true);
    owner.send(&relock);
    eventually("Redis did it", || pttl(&mut direct, "k") > 50_000);
    line.proxy.cut();
    line.proxy.drop_replies(false);
    assert_eq!(owner.read_reply(), 1);
    assert!(pttl(&mut direct, "k") > 55_000);
}

#[test]
fn requests_that_did_not_arrive_are_sent_again() {
    let line = Line::new();
    let mut client = line.gate.client();
    line.command_is_lost(&mut client, &["LOCK", "k", "TOKEN", "t"]);
    assert_eq!(client.read_reply(), "t");
    assert_eq!(line.holder("k"), "t");
    line.command_is_lost(&mut client, &["RELOCK", "k", "t", "PX", "60000"]);
    assert_eq!(client.read_reply(), 1);
    let mut next = waiter(&line.gate, "k", "next", 1);
    line.command_is_lost(&mut client, &["UNLOCK", "k", "t"]);
    assert_eq!(client.read_reply(), 1);
    assert_eq!(next.read_reply(), "next");
    line.command_is_lost(&mut client, &["TRYLOCK", "other", "TOKEN", "t"]);
    assert_eq!(client.read_reply(), "t");
    line.command_is_lost(&mut next, &["UNLOCK", "k", "next"]);
    assert_eq!(next.read_reply(), 1);
    assert!(line.holder("k").is_nil());
}

#[test]
fn clients_that_come_during_an_outage_queue_behind_the_waiters() {
    let line = Line::new();
    let mut owner = line.gate.client();
    assert_eq!(owner.say("LOCK k TOKEN owner"), "owner");
    let mut waiters = Vec::new();
    for n in 0..5 {
        waiters.push(waiter(&line.gate, "k", &format!("w{n}"), n + 1));
    }
    line.proxy.refuse(true);
    line.proxy.cut();
    for n in 5..10 {
        let mut client = line.gate.client();
        client.call(&["UNLOCK", "nothing", ""]);
        client.send(&["LOCK", "k", "TOKEN", &format!("w{n}")]);
        // Nobody can be asked how many wait.
        client.hears_nothing_for(Duration::from_millis(30));
        waiters.push(client);
    }
    line.proxy.refuse(false);
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    for (n, next) in waiters.iter_mut().enumerate() {
        let token = format!("w{n}");
        assert_eq!(next.read_reply(), token);
        assert_eq!(next.call(&["UNLOCK", "k", &token]), 1);
    }
}

/// Not for ever: within `upstream.timeout`, and with what is wrong.
#[test]
fn a_late_reply_becomes_an_error_with_the_reason() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start_with_aof();
    let gate = gate_before(&redis.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "500ms")]);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("LOCK kept TOKEN t"), "t");
    let mut waiting = waiter(&gate, "kept", "waiting", 1);
    redis.kill();
    sleep(Duration::from_millis(300));
    for command in [
        "TRYLOCK other",
        "RELOCK k t",
        "UNLOCK k t",
        "LOCK other WAIT 500",
    ] {
        let (reply, took) = timed(|| client.say(command));
        is_error(&reply, "UPSTREAM");
        assert!(reply.error().contains("Connection refused"), "{reply:?}");
        assert!(
            reply.error().contains(&redis.address().to_string()),
            "{reply:?}"
        );
        assert!(took >= Duration::from_millis(495), "{command}: {took:?}");
        assert!(took < Duration::from_millis(1_500), "{command}: {took:?}");
    }
    waiting.hears_nothing_for(Duration::from_millis(100));
    redis.restart();
    // The lock is released all the same.
    eventually("it is released", || holder(&redis, "k").is_nil());
    assert_eq!(client.say("UNLOCK kept t"), 1);
    assert_eq!(waiting.read_reply(), "waiting");
}

/// Its client was told that nobody knows; the lock is to be free all the same.
#[test]
fn a_release_that_was_given_up_on_is_sent_again() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let gate = gate_before(&proxy.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "300ms")]);
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    proxy.half_open(true);
    is_error(&owner.say("UNLOCK k t"), "UPSTREAM");
    eventually("the gate gives the connection up", || {
        gate.log().contains("does not answer")
    });
    // The bytes that it sent are lost.
    proxy.cut();
    proxy.half_open(false);
    let (reply, took) = timed(|| gate.client().say("LOCK k TOKEN next"));
    assert_eq!(reply, "next");
    assert!(took < AT_ONCE, "{took:?}");
}

/// A client whose release has an unknown outcome may take the lock again with the same token: the late release does
/// not end that grant.
#[test]
fn an_unlock_that_was_given_up_on_takes_the_lock_from_nobody() {
    let line = Line::new();
    let (mut owner, mut next) = (line.gate.client(), line.gate.client());
    let other = gate_before(&line.redis.url(), &[]);
    for token in ["t", "handed"] {
        let key = format!("k:{token}");
        assert_eq!(owner.call(&["LOCK", &key, "TOKEN", token]), token);
    }
    next.send(&["LOCK", "k:handed", "TOKEN", "next"]);
    line.gate.awaits_waiters("k:handed", 1);
    line.proxy.refuse(true);
    line.proxy.cut();
    for token in ["t", "handed"] {
        let key = format!("k:{token}");
        is_error(&owner.call(&["UNLOCK", &key, token]), "UPSTREAM");
        let again = ["LOCK", &key, "TOKEN", token, "PX", "60000"];
        assert_eq!(other.client().call(&again), token);
    }
    let mut monitor = Monitor::start(&line.redis);
    line.proxy.refuse(false);
    eventually("what was given up on is asked", || {
        ["k:t", "k:handed"]
            .iter()
            .all(|key| !monitor.commands_on(key).is_empty())
    });
    is_served(&line.gate);
    assert_eq!(holder(&line.redis, "k:t"), "t");
    assert_eq!(holder(&line.redis, "k:handed"), "handed");
    next.hears_nothing_for(Duration::from_millis(100));
}

#[test]
fn a_redis_that_is_not_there_at_the_start_is_waited_for() {
    let _machine = Machine::shared();
    let (port_of, address) = (
        |url: &str| url.rsplit(':').next().unwrap().to_owned(),
        free_address(),
    );
    let proxy = Proxy::before(address);
    proxy.refuse(true);
    let settings = [&SHORT_GRACE[..], &[("LOCKGATE_UPSTREAM_TIMEOUT", "500ms")]].concat();
    let gate = Lockgate::start_with(&["--upstream", &proxy.url()], &settings);
    let mut client = gate.client();
    let (reply, took) = timed(|| client.say("LOCK k WAIT 300"));
    is_error(&reply, "UPSTREAM");
    assert!(reply.error().contains(&port_of(&proxy.url())), "{reply:?}");
    assert!(
        took >= Duration::from_millis(295) && took < AT_ONCE,
        "{took:?}"
    );
    assert!(
        gate.log().contains("no connection to Redis"),
        "{}",
        gate.log()
    );
    let mut waiting = gate.client();
    waiting.send(&["LOCK", "k", "TOKEN", "t"]);
    waiting.hears_nothing_for(Duration::from_millis(700));
    let redis = RedisServer::start(&[]);
    proxy.forward_to(redis.address());
    proxy.refuse(false);
    let (reply, took) = timed(|| waiting.read_reply());
    assert_eq!(reply, "t");
    assert!(took < AT_ONCE, "{took:?}");
    is_served(&gate);
}

/// Reconnecting, it does not make more of itself than it has to.
#[test]
fn a_redis_that_is_away_is_not_stormed() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let gate = gate_before(&proxy.url(), &[]);
    let mut direct = redis.client();
    assert_eq!(direct.say("SET k direct PX 60000"), "OK");
    let mut waiters = gate.clients(100);
    waiters
        .iter_mut()
        .for_each(|waiter| waiter.send(&["LOCK", "k"]));
    gate.awaits_waiters("k", 100);
    let mut monitor = Monitor::start(&redis);
    let connections = |direct: &mut Client| {
        let stats = direct.say("INFO stats").text();
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse::<i64>().unwrap()
    };
    let before = connections(&mut direct);
    for _ in 0..10 {
        proxy.cut();
        sleep(Duration::from_millis(100));
    }
    gate.awaits_waiters("k", 100);
    assert!(connections(&mut direct) - before <= 40);
    // One question for each connection.
    let asked = monitor.commands_on("k");
    let asked = asked.iter().filter(|command| command[0] != "PTTL").count();
    assert!((1..=20).contains(&asked), "{asked}");
}
