//! A lockgate meets a Redis for the first time, or meets the same one whose name for its history
//! changed: what it waits for then, and what it does not.

use std::time::{Duration, Instant};

use super::{SETTINGS, follows};
use crate::{
    faults::{timed, waiter},
    support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, eventually, median},
};

/// The promise for a Redis that lockgate has used before.
const FIRST_GRANT: Duration = Duration::from_millis(50);

/// The longest that a grant without any waiting takes, also on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(300);

const TIMES: usize = 7;

/// The grace in [`SETTINGS`].
const GRACE: Duration = Duration::from_millis(2_500);

/// How late an instance finds a loss.
const LATE: Duration = Duration::from_millis(1_500);

/// How long the first `LOCK` of a fresh lockgate takes.
fn first_lock(redis: &RedisServer, settings: &[(&str, &str)], n: usize) -> Duration {
    let fresh = Lockgate::start_with(&["--upstream", &redis.url()], settings);
    let mut client = fresh.client();
    let key = format!("fresh:{n}");
    let command = ["LOCK", &key, "TOKEN", "f", "WAIT", "60000"];
    client.is_patient();
    let (reply, took) = timed(|| client.call(&command));
    assert_eq!(reply, "f");
    took
}

/// A crash brings the mark of an earlier time back with the data: it is of another process.
#[test]
fn a_redis_that_restarted_with_its_data_is_not_taken_for_the_one_before() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let way = Proxy::before(redis.address());
    let gate = Lockgate::start_with(&["--upstream", &way.url()], &SETTINGS);
    super::grant_again(std::slice::from_ref(&gate));
    assert_eq!(redis.client().say("SAVE"), "OK");
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN owner PX 60000"), "owner");
    redis.kill();
    // Its own lockgate takes a while to come back.
    way.refuse(true);
    redis.restart();
    let fresh = Lockgate::start_with(&["--upstream", &redis.url()], &SETTINGS);
    let mut next = waiter(&fresh, "k", "next", 1);
    next.hears_nothing_for(Duration::from_millis(1_000));
    way.refuse(false);
    next.hears_nothing_for(Duration::from_millis(2_500));
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    assert_eq!(next.read_reply(), "next");
}

/// Its mark of the grace is from before, and says that the grace is over.
#[test]
fn a_redis_that_was_left_for_another_one_is_met_anew() {
    let _machine = Machine::shared();
    let (first, second) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let (ways, gates) = super::gates_by_ways(&first);
    super::lead_to(&ways, &second);
    super::grant_again(&gates);
    let mut owner = gates[0].client();
    assert_eq!(owner.say("LOCK k TOKEN owner PX 60000"), "owner");
    // Its own lockgate takes a while to come back.
    ways[0].refuse(true);
    super::lead_to(&ways, &first);
    let mut next = waiter(&gates[1], "k", "next", 1);
    next.hears_nothing_for(Duration::from_millis(1_000));
    ways[0].refuse(false);
    next.hears_nothing_for(Duration::from_millis(2_500));
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    assert_eq!(next.read_reply(), "next");
}

/// An instance that finds the loss late keeps what is left of the grace, not a whole one.
#[test]
fn all_instances_end_the_same_grace_however_late_they_find_the_loss() {
    let _machine = Machine::shared();
    let (first, second) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let (ways, gates) = super::gates_by_ways(&first);
    ways[1].refuse(true);
    super::lead_to(&ways, &second);
    let mut clients: Vec<_> = gates.iter().map(Lockgate::client).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&["LOCK", &format!("free:{n}"), "TOKEN", "t"]);
    }
    let ((), took) = timed(|| {
        clients[0].hears_nothing_for(LATE);
        ways[1].refuse(false);
        for client in &mut clients {
            assert_eq!(client.read_reply(), "t");
        }
    });
    assert!(took < GRACE + LATE / 2, "{took:?}");
}

/// Its next connection writes the mark anew, but begins no grace by that.
#[test]
fn a_mark_that_was_deleted_ends_no_grace_of_an_instance_that_finds_the_loss_late() {
    let _machine = Machine::shared();
    let (first, second) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let (ways, gates) = super::gates_by_ways(&first);
    ways[1].refuse(true);
    super::lead_to(&ways, &second);
    let (mut direct, mut other) = (second.client(), gates[0].client());
    eventually("the grace begins", || {
        !matches!(other.say("LOCKINFO k"), Value::Error(_))
    });
    assert_eq!(direct.say("DEL lockgate:grace"), 1);
    assert_eq!(other.say("SELECT 5"), "OK");
    other.say("LOCKINFO k");
    eventually("the mark is there again", || {
        direct.say("EXISTS lockgate:grace") == 1
    });
    let mut late = gates[1].client();
    late.send(&["LOCK", "free", "TOKEN", "t"]);
    ways[1].refuse(false);
    late.hears_nothing_for(GRACE / 2);
    assert_eq!(late.read_reply(), "t");
}

/// Takes a lock in this database; that is done at once.
#[track_caller]
fn locked_at_once(gate: &Lockgate, database: &str, key: &str) -> Value {
    let mut client = gate.client();
    assert_eq!(client.call(&["SELECT", database]), "OK");
    let start = Instant::now();
    let reply = client.call(&["LOCK", key, "TOKEN", "t", "WAIT", "9000"]);
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{key} in database {database}: {took:?}");
    assert_eq!(client.call(&["UNLOCK", key, "t"]), 1);
    reply
}

/// The connections that this Redis tells of changes, by their numbers.
fn shared_connections(redis: &RedisServer) -> Vec<String> {
    let mut direct: Client = redis.client();
    let listed = direct.say("CLIENT LIST").text();
    let tracking = |line: &&str| field(line, "flags").is_some_and(|flags| flags.contains('t'));
    let lines = listed.lines().filter(tracking);
    lines
        .filter_map(|line| field(line, "id").map(str::to_owned))
        .collect()
}

fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ')
        .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

fn name_of_history(redis: &RedisServer) -> String {
    let said = redis.client().say("INFO replication").text();
    let name = said
        .lines()
        .find_map(|line| line.strip_prefix("master_replid:"));
    name.expect("a name").to_owned()
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    /// A long grace is kept once for each Redis, not by each lockgate that starts.
    #[test]
    fn the_first_lock_of_a_fresh_lockgate_is_granted_at_once_where_another_one_served_before() {
        let _machine = Machine::alone();
        let redis = RedisServer::start_unused(&[]);
        let settings = [("LOCKGATE_WRITE_BACK_GRACE", "12s")];
        first_lock(&redis, &settings, 0);
        let took = median(
            (1..=TIMES)
                .map(|n| first_lock(&redis, &settings, n))
                .collect(),
        );
        assert!(took <= FIRST_GRANT, "{took:?}");
    }

    #[test]
    fn the_first_lock_ever_takes_no_longer_than_the_grace() {
        let _machine = Machine::alone();
        let redis = RedisServer::start_unused(&[]);
        let took = first_lock(&redis, &SETTINGS, 0);
        assert!(took < Duration::from_millis(2_500 + 500), "{took:?}");
        assert_eq!(redis.client().say("FLUSHALL"), "OK");
        let took = first_lock(&redis, &SETTINGS, 1);
        assert!(took < Duration::from_millis(2_500 + 500), "{took:?}");
        let took = median(
            (2..2 + TIMES)
                .map(|n| first_lock(&redis, &SETTINGS, n))
                .collect(),
        );
        assert!(took <= FIRST_GRANT, "{took:?}");
    }

    /// Redis takes a new name for its history when its first replica comes, and loses nothing by it.
    #[test]
    fn a_first_replica_changes_nothing() {
        let _machine = Machine::alone();
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start(&[]);
        let gate = Lockgate::start_with(&["--upstream", &master.url()], &SETTINGS);
        super::super::grant_again(std::slice::from_ref(&gate));
        let mut owner = gate.client();
        assert_eq!(owner.say("LOCK held TOKEN t PX 60000"), "t");
        let before = (shared_connections(&master), name_of_history(&master));
        follows(&replica, &Proxy::before(master.address()));
        assert_ne!(
            before.1,
            name_of_history(&master),
            "that is what it is about"
        );

        assert_eq!(locked_at_once(&gate, "0", "k"), "t");
        // A connection of its own, which sees the new name.
        assert_eq!(locked_at_once(&gate, "5", "k"), "t");
        assert_eq!(locked_at_once(&gate, "0", "other"), "t");
        let after = shared_connections(&master);
        for connection in &before.0 {
            assert!(
                after.contains(connection),
                "{connection} of {before:?} is not in {after:?}"
            );
        }
        let fresh = Lockgate::start_with(&["--upstream", &master.url()], &SETTINGS);
        assert_eq!(locked_at_once(&fresh, "0", "by the fresh one"), "t");
        assert_eq!(owner.say("UNLOCK held t"), 1);
    }
}
