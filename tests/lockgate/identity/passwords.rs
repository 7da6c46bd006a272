//! Whether anybody has to authenticate is Redis's to say, and it may change.

use std::time::Duration;

use crate::support::{
    Client, Lockgate, Machine, Proxy, RedisServer, SHORT_GRACE, Value, eventually,
};

const NOAUTH: &str = "NOAUTH Authentication required.";

#[track_caller]
fn is_refused(client: &mut Client) {
    for command in super::lock_commands("k", "t").chain(["LOCKS".to_owned()]) {
        assert_eq!(client.say(&command).error(), NOAUTH, "{command}");
    }
}

#[track_caller]
fn is_served(client: &mut Client) {
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("UNLOCK k t"), 1);
    assert_eq!(client.say("LOCKS"), Value::Array(Vec::new()));
}

fn gate_before(redis: &RedisServer) -> Lockgate {
    Lockgate::start_with(&["--upstream", &redis.url()], &SHORT_GRACE)
}

#[test]
fn without_its_password_nobody_takes_locks() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    // No URL has to say so; and the password in one is not that of its clients.
    for url in [
        redis.url(),
        redis.url().replace("redis://", "redis://:hunter2@"),
    ] {
        let gate = Lockgate::start_with(&["--upstream", &url], &SHORT_GRACE);
        for (greeting, login) in [
            ("PING", "AUTH hunter2"),
            ("HELLO 3", "HELLO 3 AUTH default hunter2"),
            ("HELLO 2", "AUTH default hunter2"),
            ("AUTH wrong", "AUTH hunter2"),
            ("HELLO 3 AUTH default wrong", "HELLO 2 AUTH default hunter2"),
        ] {
            let mut client = gate.client();
            is_refused(&mut client);
            client.say(greeting);
            is_refused(&mut client);
            assert!(!matches!(client.say(login), Value::Error(_)), "{login}");
            is_served(&mut client);
            assert_eq!(client.say("RESET"), "RESET");
            is_refused(&mut client);
        }
        assert!(!gate.log().contains("hunter2"), "{}", gate.log());
    }
    assert_eq!(redis.client().say("AUTH hunter2"), "OK");
}

/// A lock that others hold, and those that wait for it, are no secret to them alone.
#[test]
fn without_a_password_no_client_waits_or_looks() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let gate = gate_before(&redis);
    let mut owner = gate.client();
    assert_eq!(owner.say("AUTH hunter2"), "OK");
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    let mut waiter = gate.client();
    assert_eq!(waiter.say("AUTH hunter2"), "OK");
    waiter.send(&["LOCK", "k", "TOKEN", "w"]);
    crate::support::eventually("it waits", || {
        owner.say("LOCKINFO k").field("waiters").integer() == 1
    });
    let mut nobody = gate.client();
    is_refused(&mut nobody);
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(waiter.read_reply(), "w");
}

/// An answer of Redis counts for a second.
#[test]
fn a_password_that_is_set_or_taken_away_counts_a_second_later() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis);
    let mut direct = redis.client();
    let mut before = gate.client();
    is_served(&mut before);
    for (set, take_away) in [
        ("CONFIG SET requirepass x", "ACL SETUSER default nopass"),
        ("ACL SETUSER default off", "ACL SETUSER default on"),
        (
            "ACL SETUSER default resetpass >y",
            "ACL SETUSER default nopass",
        ),
    ] {
        assert_eq!(direct.say(set), "OK");
        eventually("it is asked for", || {
            matches!(gate.client().say("UNLOCK k t"), Value::Error(_))
        });
        is_refused(&mut gate.client());
        // As in Redis, who was there before goes on, to the end of the connection.
        is_served(&mut before);
        assert_eq!(before.say("RESET"), "RESET");
        is_refused(&mut before);
        assert_eq!(direct.say(take_away), "OK");
        eventually("it is asked for no more", || {
            gate.client().say("UNLOCK k t") == 0
        });
        is_served(&mut gate.client());
        is_served(&mut before);
    }
}

/// Nobody knows whether a password is needed while Redis cannot be reached: who may wait does.
#[test]
fn a_redis_that_cannot_be_reached_admits_nobody_and_who_waits_is_asked_about_later() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let settings = [&SHORT_GRACE[..], &[("LOCKGATE_UPSTREAM_TIMEOUT", "300ms")]].concat();
    let gate = Lockgate::start_with(&["--upstream", &proxy.url()], &settings);
    is_served(&mut gate.client());
    proxy.refuse(true);
    proxy.cut();
    assert_eq!(redis.client().say("CONFIG SET requirepass x"), "OK");
    for command in [
        "TRYLOCK k",
        "UNLOCK k t",
        "LOCK k WAIT 400",
        "LOCKINFO k",
        "LOCKS",
    ] {
        let reply = gate.client().say(command);
        assert!(
            reply.error().starts_with("UPSTREAM"),
            "{command}: {reply:?}"
        );
    }
    let mut waiting = gate.client();
    waiting.send(&["LOCK", "k", "TOKEN", "t"]);
    waiting.hears_nothing_for(Duration::from_millis(400));
    proxy.refuse(false);
    assert_eq!(waiting.read_reply().error(), NOAUTH);
    drop(gate);
}

/// Those who come at the same time are asked about together.
#[test]
fn a_crowd_costs_few_questions() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis);
    let mut clients = gate.clients(500);
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(&["LOCK", &format!("k:{i}"), "TOKEN", "t"]);
    }
    for client in &mut clients {
        assert_eq!(client.read_reply(), "t");
        // lockgate remembers the answer, and does not ask again.
        assert_eq!(client.say("TRYLOCK other TOKEN t"), "t");
    }
    let info = redis.client().say("INFO commandstats").text();
    let calls = info.split("cmdstat_reset:calls=").nth(1).unwrap();
    let calls: usize = calls.split(',').next().unwrap().parse().unwrap();
    assert!((1..=500).contains(&calls), "{calls} questions");
}
