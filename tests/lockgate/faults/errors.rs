//! Redis answers with an error: one that passes is waited out, any other goes to whom it concerns.

use std::{thread, time::Duration};

use super::{
    AT_ONCE, gate_before, holder, is_error, is_told_lost, resp3, timed, waiter, was_told_nothing,
};
use crate::support::{Client, Machine, Place, Proxy, RedisServer, Value, eventually};

/// A client of Redis whose rights are not those of the gate.
fn admin(redis: &RedisServer) -> Client {
    let mut admin = redis.client();
    assert_eq!(admin.say("ACL SETUSER admin on nopass ~* &* +@all"), "OK");
    assert_eq!(admin.say("AUTH admin x"), "OK");
    admin
}

#[test]
fn a_script_that_keeps_redis_busy_is_waited_out() {
    let redis_settings = ["--lua-time-limit", "20"];
    let (_machine, redis) = (Machine::shared(), RedisServer::start(&redis_settings));
    let gate = gate_before(&redis.url(), &[]);
    let (mut busy, mut direct) = (redis.client(), redis.client());
    let (mut owner, mut trying) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    let mut next = waiter(&gate, "k", "next", 1);
    busy.send(&["EVAL", "while true do end", "0"]);
    eventually("Redis is busy", || {
        matches!(direct.say("PING"), Value::Error(_))
    });
    is_error(&trying.say("LOCK other WAIT 300"), "BUSY");
    owner.send(&["UNLOCK", "k", "t"]);
    trying.send(&["LOCK", "other", "TOKEN", "o"]);
    owner.hears_nothing_for(Duration::from_millis(200));
    assert_eq!(direct.say("SCRIPT KILL"), "OK");
    let ((), took) = timed(|| {
        assert_eq!(owner.read_reply(), 1);
        assert_eq!(next.read_reply(), "next");
        assert_eq!(trying.read_reply(), "o");
    });
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_replica_without_its_master_is_waited_out() {
    let (_machine, redis) = (
        Machine::shared(),
        RedisServer::start(&["--replica-serve-stale-data", "no"]),
    );
    let gate = gate_before(&redis.url(), &[]);
    let (mut direct, mut trying) = (redis.client(), gate.client());
    let nowhere = crate::support::free_address().port().to_string();
    assert_eq!(direct.call(&["REPLICAOF", "127.0.0.1", &nowhere]), "OK");
    // What it says to a question, or to a write on a new connection.
    for command in ["LOCK k WAIT 300", "TRYLOCK k"] {
        let reply = trying.say(command);
        let words = ["MASTERDOWN ", "READONLY "];
        assert!(
            words.iter().any(|it| reply.error().starts_with(it)),
            "{reply:?}"
        );
    }
    trying.send(&["LOCK", "k", "TOKEN", "t"]);
    trying.hears_nothing_for(Duration::from_millis(200));
    assert_eq!(direct.say("REPLICAOF NO ONE"), "OK");
    let (reply, took) = timed(|| trying.read_reply());
    assert_eq!(reply, "t");
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_redis_that_reads_its_disk_is_waited_out() {
    let _machine = Machine::shared();
    let settings = ["--appendonly", "yes", "--key-load-delay", "-5"];
    let mut redis = RedisServer::start(&settings);
    let gate = gate_before(&redis.url(), &[]);
    let (mut owner, mut trying) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    let mut next = waiter(&gate, "k", "next", 1);
    let fill = "for i = 1, 150000 do redis.call('SET', 'other:' .. i, 'x') end";
    assert_eq!(redis.client().call(&["EVAL", fill, "0"]), Value::Nil);
    let address = redis.address();
    redis.kill();
    thread::scope(|threads| {
        threads.spawn(|| redis.restart());
        eventually("Redis reads its disk", || {
            let client = Client::try_connect(address);
            client.is_ok_and(|mut client| {
                let _ = client.try_write(b"GET k\r\n");
                matches!(client.try_read(), Ok(Value::Error(text)) if text.starts_with("LOADING"))
            })
        });
        // Longer than the grace time.
        is_error(&trying.say("LOCK free WAIT 900"), "LOADING");
        trying.send(&["LOCK", "free", "TOKEN", "f"]);
    });
    assert_eq!(trying.read_reply(), "f");
    next.hears_nothing_for(Duration::from_millis(20));
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(next.read_reply(), "next");
}

/// The address leads to the new master by now.
#[test]
fn a_replica_makes_the_gate_look_where_the_address_leads() {
    let _machine = Machine::shared();
    let (master, replica) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let proxy = Proxy::before(replica.address());
    let gate = gate_before(&proxy.url(), &[]);
    let port = master.address().port().to_string();
    assert_eq!(
        replica.client().call(&["REPLICAOF", "127.0.0.1", &port]),
        "OK"
    );
    let mut client = gate.client();
    is_error(&client.say("TRYLOCK k"), "READONLY");
    client.send(&["LOCK", "k", "TOKEN", "t"]);
    client.hears_nothing_for(Duration::from_millis(150));
    // No connection is cut: the gate connects anew by itself.
    proxy.forward_to(master.address());
    let (reply, took) = timed(|| client.read_reply());
    assert_eq!(reply, "t");
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(holder(&master, "k"), "t");
}

#[test]
fn each_waiter_of_a_refused_user_gets_the_refusal() {
    let place = Place::with_redis(Machine::shared());
    let mut admin = admin(place.redis());
    assert_eq!(admin.say("SET k direct PX 60000"), "OK");
    let mut waiters: Vec<Client> = (0..3)
        .map(|n| waiter(&place.gate, "k", &format!("w{n}"), n + 1))
        .collect();
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK held TOKEN t"), "t");
    assert_eq!(
        admin.say("ACL SETUSER default resetkeys ~first ~ok:*"),
        "OK"
    );
    assert_eq!(admin.say("DEL k"), 1);
    for waiter in &mut waiters {
        is_error(&waiter.read_reply(), "NOPERM");
        was_told_nothing_but(waiter, "ok:a");
    }
    for command in [
        "LOCK no TOKEN t",
        "TRYLOCK no TOKEN t",
        "UNLOCK held t",
        "RELOCK held t",
    ] {
        is_error(&owner.say(command), "NOPERM");
    }
    assert_eq!(owner.say("LOCK ok:1 TOKEN t"), "t");
    assert_eq!(admin.say("ACL SETUSER default allkeys"), "OK");
    assert_eq!(owner.say("UNLOCK held t"), 1);
    assert_eq!(waiters[0].say("LOCK k TOKEN t"), "t");
}

fn was_told_nothing_but(client: &mut Client, key: &str) {
    assert_eq!(client.call(&["UNLOCK", key, "nobody"]), 0);
}

/// A key of another type is an error for each waiter, and does not end the queue.
#[test]
fn a_lock_that_becomes_a_list_is_an_error_to_those_who_wait() {
    let place = Place::with_redis(Machine::shared());
    let mut direct = place.redis().client();
    let mut owner = resp3(&place.gate);
    assert_eq!(owner.say("LOCK k TOKEN t SESSION"), "t");
    let mut waiters: Vec<Client> = (0..3)
        .map(|n| waiter(&place.gate, "k", &format!("w{n}"), n + 1))
        .collect();
    assert_eq!(direct.say("MULTI"), "OK");
    direct.say("DEL k");
    direct.say("RPUSH k a");
    direct.say("EXEC");
    for waiter in &mut waiters {
        is_error(&waiter.read_reply(), "WRONGTYPE");
        was_told_nothing(waiter);
    }
    is_error(&waiters[0].say("TRYLOCK k"), "WRONGTYPE");
    assert_eq!(direct.say("DEL k"), 1);
    assert_eq!(waiters[0].say("LOCK k TOKEN again WAIT 5000"), "again");
    is_told_lost(&mut owner, "k", "t");
}

#[test]
fn without_memory_locks_are_released_and_kept_but_not_taken() {
    let place = Place::with_redis(Machine::shared());
    let mut direct = place.redis().client();
    let (mut owner, mut bound) = (place.client(), place.client());
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    assert_eq!(owner.say("LOCK kept TOKEN t PX 60000"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 900 SESSION"), "t");
    let mut waiters: Vec<Client> = (0..3)
        .map(|n| waiter(&place.gate, "k", &format!("w{n}"), n + 1))
        .collect();
    assert_eq!(direct.say("CONFIG SET maxmemory 1"), "OK");
    is_error(&place.client().say("LOCK other"), "OOM");
    is_error(&place.client().say("TRYLOCK other"), "OOM");
    assert_eq!(owner.say("RELOCK kept t PX 90000"), 1);
    assert_eq!(owner.say("LOCK kept TOKEN t PX 90000"), "t", "asked again");
    assert_eq!(owner.say("UNLOCK k t"), 1, "giving back needs no memory");
    for waiter in &mut waiters {
        is_error(&waiter.read_reply(), "OOM");
    }
    thread::sleep(Duration::from_millis(1_000));
    assert_eq!(holder(place.redis(), "bound"), "t", "it is renewed");
    assert_eq!(direct.say("CONFIG SET maxmemory 0"), "OK");
    assert_eq!(waiters[0].say("LOCK k TOKEN again"), "again");
    was_told_nothing(&mut bound);
}

#[test]
fn flushed_scripts_are_sent_again() {
    let place = Place::with_redis(Machine::shared());
    let mut direct = place.redis().client();
    let mut flush = || assert_eq!(direct.say("SCRIPT FLUSH"), "OK");
    let (mut owner, mut bound) = (place.client(), place.client());
    assert_eq!(bound.say("LOCK bound TOKEN t PX 300 SESSION"), "t");
    for _ in 0..5 {
        flush();
        assert_eq!(owner.say("LOCK k TOKEN t"), "t");
        let mut next = waiter(&place.gate, "k", "next", 1);
        flush();
        assert_eq!(owner.say("RELOCK k t"), 1);
        flush();
        assert_eq!(owner.say("UNLOCK k t"), 1);
        assert_eq!(next.read_reply(), "next");
        flush();
        assert_eq!(next.say("UNLOCK k next"), 1);
        flush();
        assert_eq!(owner.say("LOCK k TOKEN f FENCE").items()[0], "f");
        assert_eq!(owner.say("UNLOCK k f"), 1);
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(holder(place.redis(), "bound"), "t");
    was_told_nothing(&mut bound);
}
