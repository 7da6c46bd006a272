//! A replica takes over before it had the latest writes: the gate's address leads to it from then on.

use std::{thread::sleep, time::Duration};

use super::{gate_before, holder, is_error, is_served, waiter, was_told_nothing};
use crate::support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, eventually};

/// A master and its replica, the way of the gate, and the way of what is replicated.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
    way: Proxy,
    replication: Proxy,
    gate: Lockgate,
    _machine: Machine,
}

impl Pair {
    fn new() -> Self {
        let machine = Machine::shared();
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start(&[]);
        let replication = Proxy::before(master.address());
        let port = replication.address().port().to_string();
        let mut direct = replica.client();
        assert_eq!(direct.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
        eventually("the replica is there", || {
            let said = direct.say("INFO replication").text();
            said.contains("master_link_status:up")
        });
        let way = Proxy::before(master.address());
        let gate = gate_before(&way.url(), &[]);
        Self {
            master,
            replica,
            way,
            replication,
            gate,
            _machine: machine,
        }
    }

    /// Returns when the replica has what the master has.
    fn is_replicated(&self, key: &str) {
        let there = holder(&self.master, key);
        eventually("it is replicated", || holder(&self.replica, key) == there);
    }

    /// From now on the replica gets nothing.
    fn lags(&self) {
        self.replication.half_open(true);
    }

    /// The master is gone, and the gate finds the replica in its place.
    fn master_dies(&mut self) {
        self.way.forward_to(self.replica.address());
        self.master.kill();
        self.way.cut();
    }

    fn is_promoted(&self) -> Client {
        let mut direct = self.replica.client();
        assert_eq!(direct.say("REPLICAOF NO ONE"), "OK");
        direct
    }
}

#[test]
fn leases_that_the_replica_lacks_are_written_back() {
    let mut pair = Pair::new();
    let (mut owner, mut bound) = (pair.gate.client(), pair.gate.client());
    assert_eq!(owner.say("LOCK old TOKEN t PX 60000"), "t");
    pair.is_replicated("old");
    pair.lags();
    assert_eq!(owner.say("LOCK new TOKEN t PX 60000"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 5000 SESSION"), "t");
    let mut next = waiter(&pair.gate, "new", "next", 1);
    assert_eq!(holder(&pair.replica, "new"), Value::Nil);
    pair.master_dies();
    pair.is_promoted();
    eventually("it is written back", || holder(&pair.replica, "new") == "t");
    is_served(&pair.gate);
    assert_eq!(holder(&pair.replica, "old"), "t");
    assert_eq!(holder(&pair.replica, "bound"), "t");
    was_told_nothing(&mut bound);
    assert!(!next.hears_within(Duration::ZERO).unwrap());
    assert_eq!(owner.say("UNLOCK old t"), 1);
    assert_eq!(owner.say("UNLOCK new t"), 1);
    assert_eq!(next.read_reply(), "next");
}

/// The replica says that a token holds the lock that handed it on long ago.
#[test]
fn the_token_of_an_earlier_owner_gives_way_to_the_owner() {
    let mut pair = Pair::new();
    let mut first = pair.gate.client();
    assert_eq!(first.say("LOCK handed TOKEN first PX 60000"), "first");
    assert_eq!(first.say("LOCK released TOKEN first PX 60000"), "first");
    assert_eq!(first.say("LOCK free TOKEN first PX 60000"), "first");
    let mut second = waiter(&pair.gate, "handed", "second", 1);
    for key in ["handed", "released", "free"] {
        pair.is_replicated(key);
    }
    pair.lags();
    assert_eq!(first.say("UNLOCK handed first"), 1);
    assert_eq!(second.read_reply(), "second");
    assert_eq!(first.say("UNLOCK released first"), 1);
    assert_eq!(second.say("LOCK released TOKEN second PX 60000"), "second");
    let mut third = waiter(&pair.gate, "handed", "third", 1);
    pair.master_dies();
    assert_eq!(holder(&pair.replica, "handed"), "first");
    assert_eq!(holder(&pair.replica, "released"), "first");
    pair.is_promoted();
    eventually("they give way", || {
        ["handed", "released"]
            .iter()
            .all(|key| holder(&pair.replica, key) == "second")
    });
    // Within the grace another instance might yet write it back.
    eventually("it is known not to hold it", || {
        first.say("UNLOCK handed first") == 0
    });
    assert_eq!(second.say("UNLOCK released second"), 1);
    assert_eq!(second.say("UNLOCK handed second"), 1);
    assert_eq!(third.read_reply(), "third");
}

/// As long as it is a replica it takes no writes, and what it says is stale: nobody is granted.
#[test]
fn a_replica_grants_no_lock() {
    let mut pair = Pair::new();
    let (mut owner, mut trying) = (pair.gate.client(), pair.gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    pair.is_replicated("k");
    pair.lags();
    let mut waiting = waiter(&pair.gate, "k", "waiting", 1);
    pair.master_dies();
    is_error(&trying.say("TRYLOCK other"), "READONLY");
    trying.send(&["LOCK", "other", "TOKEN", "o"]);
    trying.hears_nothing_for(Duration::from_millis(300));
    is_error(&owner.say("UNLOCK k t"), "READONLY");
    waiting.hears_nothing_for(Duration::from_millis(100));
    pair.is_promoted();
    assert_eq!(trying.read_reply(), "o");
    assert_eq!(waiting.read_reply(), "waiting", "it was given back");
}

/// However long it stays a replica: when it takes writes, all gates have the time to write back before
/// one of them grants what it finds free.
#[test]
fn the_grace_time_begins_when_the_replica_takes_writes() {
    let mut pair = Pair::new();
    let others = [(); 3].map(|()| gate_before(&pair.way.url(), &[]));
    let mut owner = pair.gate.client();
    let keys: Vec<String> = (0..20).map(|n| format!("k:{n}")).collect();
    pair.lags();
    let mut waiters = Vec::new();
    for key in &keys {
        assert_eq!(owner.call(&["LOCK", key, "TOKEN", "owner"]), "owner");
        waiters.extend(others.iter().map(|gate| waiter(gate, key, "next", 1)));
    }
    pair.master_dies();
    // Longer than the grace time.
    sleep(Duration::from_millis(1_000));
    let mut direct = pair.is_promoted();
    eventually("all are held again", || {
        let held = |key: &&String| !direct.call(&["GET", key.as_str()]).is_nil();
        keys.iter().filter(held).count() == keys.len()
    });
    for key in &keys {
        assert_eq!(holder(&pair.replica, key), "owner", "{key} has two owners");
    }
    for next in &mut waiters {
        assert!(!next.hears_within(Duration::ZERO).unwrap(), "two owners");
    }
}

#[test]
fn fences_rise_past_what_the_replica_had() {
    let mut pair = Pair::new();
    let mut owner = pair.gate.client();
    // Ahead of every clock, so that only the counter makes it rise.
    assert_eq!(
        pair.master
            .client()
            .say("SET lockgate:fence 5000000000000000"),
        "OK"
    );
    pair.is_replicated("lockgate:fence");
    pair.lags();
    let fence = owner.say("LOCK k TOKEN t FENCE").items()[1].integer();
    assert!(fence > 5_000_000_000_000_000);
    pair.master_dies();
    pair.is_promoted();
    eventually("it is written back", || holder(&pair.replica, "k") == "t");
    assert_eq!(holder(&pair.replica, "lockgate:fence"), fence.to_string());
    let other = gate_before(&pair.replica.url(), &[]);
    assert_eq!(owner.say("UNLOCK k t"), 1);
    let next = other.client().say("LOCK k FENCE").items()[1].integer();
    assert!(next > fence, "{next} after {fence}");
}
