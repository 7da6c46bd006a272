//! An operator ends lockgate while clients wait and hold.

use std::{thread::sleep, time::Duration};

use super::{
    AT_ONCE, PATIENT, admitted, gate_before, holder, is_error, is_told_lost, pttl, resp3, timed,
    waiter,
};
use crate::support::{Client, Http, Lockgate, Machine, RedisServer, SHORT_GRACE, eventually};

/// A gate that drains for so long, its Redis, and what it stands on.
fn place(drain: &str) -> (Lockgate, RedisServer, Machine) {
    let machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_DRAIN", drain)]);
    (gate, redis, machine)
}

#[test]
fn waiters_are_notified_and_no_client_is_accepted() {
    let (mut gate, redis, _machine) = place("5s");
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN owner"), "owner");
    let mut waiters: Vec<Client> = (0..20)
        .map(|n| waiter(&gate, "k", &format!("w{n}"), n + 1))
        .collect();
    let mut three = resp3(&gate);
    three.send(&["LOCK", "k"]);
    gate.awaits_waiters("k", 21);
    gate.terminate();
    for waiter in waiters.iter_mut().chain([&mut three]) {
        is_error(&waiter.read_reply(), "SHUTDOWN");
    }
    assert!(Client::try_connect(gate.address()).is_err());
    drop((waiters, three, owner));
    let (code, took) = timed(|| gate.exit_code());
    assert_eq!(code, Some(0));
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(holder(&redis, "k"), "owner", "left to its lease");
}

#[test]
fn a_resp3_owner_is_told_and_may_give_its_lock_back() {
    let (mut gate, redis, _machine) = place("5s");
    let mut owner = resp3(&gate);
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
    assert_eq!(owner.say("LOCK other TOKEN t PX 60000 SESSION"), "t");
    gate.terminate();
    let mut told = [owner.read_reply(), owner.read_reply()].map(|push| push.items()[1].text());
    told.sort();
    assert_eq!(told, ["k", "other"]);
    is_error(&owner.say("LOCK more"), "SHUTDOWN");
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert!(holder(&redis, "k").is_nil());
    assert_eq!(holder(&redis, "other"), "t");
    assert_eq!(owner.say("UNLOCK other t"), 1);
    assert_eq!(gate.exit_code(), Some(0));
}

/// The program does not end before Redis has done it, slow as it may be.
#[test]
fn a_resp3_owner_that_closes_while_the_gate_drains_releases_its_lock() {
    let (mut gate, redis, _machine) = place("5s");
    let mut owner = resp3(&gate);
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
    gate.terminate();
    is_told_lost(&mut owner, "k", "t");
    sleep(Duration::from_millis(50));
    assert_eq!(holder(&redis, "k"), "t", "nothing is done without it");
    assert_eq!(redis.client().say("CLIENT PAUSE 200 ALL"), "OK");
    drop(owner);
    assert_eq!(gate.exit_code(), Some(0));
    assert!(holder(&redis, "k").is_nil());
}

#[test]
fn the_lock_of_a_resp3_owner_that_does_nothing_is_left_to_its_lease() {
    let (mut gate, redis, _machine) = place("700ms");
    let mut owner = resp3(&gate);
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
    let (code, took) = timed(|| {
        gate.terminate();
        is_told_lost(&mut owner, "k", "t");
        gate.exit_code()
    });
    assert_eq!(code, Some(5));
    assert!(
        took >= Duration::from_millis(690) && took < AT_ONCE,
        "{took:?}"
    );
    owner.is_closed_by_the_server();
    let left = pttl(&mut redis.client(), "k");
    assert!((50_000..60_000).contains(&left), "{left}");
}

#[test]
fn the_connection_of_a_resp2_owner_is_closed_and_its_lock_left_to_its_lease() {
    let (mut gate, redis, _machine) = place("5s");
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000 SESSION"), "t");
    let (code, took) = timed(|| {
        gate.terminate();
        owner.is_closed_by_the_server();
        gate.exit_code()
    });
    assert_eq!(code, Some(0));
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(holder(&redis, "k"), "t");
    assert!(pttl(&mut redis.client(), "k") > 50_000);
}

/// The shutdown finishes commands that were begun, on both sides of the gate.
#[test]
fn commands_in_flight_finish_on_shutdown() {
    let (mut gate, redis, _machine) = place("5s");
    let (mut owner, mut reader) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    assert_eq!(redis.client().say("CLIENT PAUSE 200 ALL"), "OK");
    owner.send(&["UNLOCK", "k", "t"]);
    reader.send(&["BLPOP", "list", "1"]);
    sleep(Duration::from_millis(50));
    gate.terminate();
    assert_eq!(owner.read_reply(), 1);
    assert!(reader.read_reply().is_nil());
    drop((owner, reader));
    assert_eq!(gate.exit_code(), Some(0));
    assert!(holder(&redis, "k").is_nil());
}

/// A client that was told its token holds the lock, whatever becomes of the gate; and one that wants to be
/// told nothing.
#[test]
fn grants_made_during_a_failover_hold() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let flags = ["--upstream", &redis.url(), "--admin", "127.0.0.1:0"];
    let mut gate = Lockgate::start_with(&flags, &[&SHORT_GRACE[..], &PATIENT].concat());
    let mut clients = [admitted(&gate), admitted(&gate), admitted(&gate)];
    let [plain, bound, silent] = &mut clients;
    silent.send(&["CLIENT", "REPLY", "OFF"]);
    silent.send(&["LOCK", "before", "TOKEN", "t"]);
    eventually("it is silent", || holder(&redis, "before") == "t");
    assert_eq!(redis.client().say("CLIENT PAUSE 600 ALL"), "OK");
    plain.send(&["TRYLOCK", "plain", "TOKEN", "t", "PX", "60000"]);
    bound.send(&["TRYLOCK", "bound", "TOKEN", "t", "PX", "60000", "SESSION"]);
    silent.send(&["TRYLOCK", "silent", "TOKEN", "t", "PX", "60000"]);
    eventually("all are asked for", || {
        let metrics = Http::connect(gate.admin_address()).get("/metrics").body;
        metrics.contains("\nlockgate_upstream_in_flight 3\n")
    });
    gate.terminate();
    assert_eq!(plain.read_reply(), "t");
    assert_eq!(bound.read_reply(), "t");
    for client in &mut clients {
        client.is_closed_by_the_server();
    }
    assert_eq!(gate.exit_code(), Some(0));
    for key in ["plain", "bound", "silent"] {
        assert_eq!(holder(&redis, key), "t", "{key}");
        assert!(pttl(&mut redis.client(), key) > 50_000, "{key}");
    }
}

/// A connection that many share: one of them waits, another has released its lock.
#[test]
fn an_unlock_behind_a_lock_that_waits_is_done() {
    let (mut gate, redis, _machine) = place("5s");
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK a TOKEN owner"), "owner");
    let mut shared = gate.client();
    assert_eq!(shared.say("LOCK b TOKEN t PX 60000"), "t");
    // An ordinary command in between keeps the UNLOCK from overtaking.
    shared.write_raw(b"LOCK a WAIT 60000\r\nSET seen 1\r\nUNLOCK b t\r\n");
    gate.awaits_waiters("a", 1);
    gate.terminate();
    is_error(&shared.read_reply(), "SHUTDOWN");
    shared.is_closed_by_the_server();
    drop(owner);
    assert_eq!(gate.exit_code(), Some(0));
    assert!(holder(&redis, "b").is_nil());
    assert!(holder(&redis, "seen").is_nil());
}

/// Nobody can keep it: who is not done within `drain` is cut.
#[test]
fn it_ends_within_the_time_to_drain() {
    let (mut gate, redis, _machine) = place("500ms");
    let mut blocked = gate.client();
    blocked.send(&["BLPOP", "list", "0"]);
    let mut direct = redis.client();
    eventually("it is blocked", || {
        direct
            .say("INFO clients")
            .text()
            .contains("blocked_clients:1")
    });
    let (code, took) = timed(|| {
        gate.terminate();
        gate.exit_code()
    });
    assert_eq!(code, Some(5));
    assert!(
        took >= Duration::from_millis(490) && took < AT_ONCE,
        "{took:?}"
    );
}
