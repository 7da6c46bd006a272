//! Grants that replicas acknowledge (`REPLICAS`). A replica that stands still (SIGSTOP) keeps its connection and
//! acknowledges nothing. Since Redis 7.2 `WAIT` alone would not notice that: these tests run in front of such servers,
//! too (tests/servers).

use std::time::{Duration, Instant};

use super::{AT_ONCE, PATIENT, gate_before, holder, is_error, is_told_lost, pttl, resp3, timed};
use crate::support::{
    Client, Lockgate, Machine, Proxy, RedisServer, Value, counted, eventually, run_to_its_end,
};

/// A master, its replica, and a gate.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
    gate: Lockgate,
    _machine: Machine,
}

impl Pair {
    fn new(settings: &[(&str, &str)]) -> Self {
        let machine = Machine::shared();
        let (master, replica) = replicated();
        let gate = gate_before(&master.url(), &[&PATIENT, settings].concat());
        Self {
            master,
            replica,
            gate,
            _machine: machine,
        }
    }
}

pub(crate) fn replicated() -> (RedisServer, RedisServer) {
    let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = RedisServer::start(&[]);
    follows(&replica, &master);
    (master, replica)
}

fn follows(replica: &RedisServer, master: &RedisServer) {
    let mut direct = replica.client();
    let port = master.address().port().to_string();
    assert_eq!(direct.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    eventually("the replica is there", || {
        let said = direct.say("INFO replication").text();
        said.contains("master_link_status:up")
    });
    // From then on the master counts its acknowledgements.
    let mut direct = master.client();
    direct.say("SET synchronised 1");
    assert_eq!(direct.say("WAIT 1 10000"), 1);
}

/// A grant that does not count is on its way back when its client hears of it.
#[track_caller]
fn is_free(redis: &RedisServer, key: &str) {
    eventually("it is given back", || holder(redis, key) == Value::Nil);
}

#[track_caller]
fn is_unacknowledged(reply: &Value) {
    let begin = "NOREPLICAS not acknowledged by 1 replicas within 100ms";
    is_error(reply, begin);
}

/// An acknowledgement that takes as long as a connection is open to break it.
const PATIENT_REPLICAS: [(&str, &str); 4] = [
    ("LOCKGATE_LOCK_REPLICAS_TIMEOUT", "10s"),
    ("LOCKGATE_UPSTREAM_TIMEOUT", "11s"),
    ("LOCKGATE_WRITE_BACK_LEASES", "off"),
    ("LOCKGATE_WRITE_BACK_GRACE", "1m"),
];

#[test]
fn a_replica_has_what_its_owner_was_granted() {
    let pair = Pair::new(&[]);
    let mut owner = pair.gate.client();
    for command in ["LOCK", "TRYLOCK"] {
        for more in ["", " FENCE", " SESSION"] {
            let key = format!("{command}{}", more.trim());
            let granted = owner.say(&format!(
                "{command} {key} TOKEN t PX 20000 REPLICAS 1{more}"
            ));
            assert_eq!(holder(&pair.replica, &key), "t", "{key}: {granted:?}");
        }
    }
    assert_eq!(
        owner.say("LOCKINFO LOCK").field("replicas"),
        &Value::Integer(1)
    );
    assert_eq!(owner.say("RELOCK LOCK t PX 60000 REPLICAS 1"), 1);
    assert!(pttl(&mut pair.replica.client(), "LOCK") > 20_000);
    // A grant that replicas acknowledged is extended in the same way.
    assert_eq!(owner.say("RELOCK TRYLOCK t PX 60000"), 1);
    assert!(pttl(&mut pair.replica.client(), "TRYLOCK") > 20_000);
    assert_eq!(owner.say("UNLOCK LOCK t"), 1);
    assert_eq!(counted(&mut owner, "grants_unacknowledged"), 0);
}

#[test]
fn without_an_acknowledgement_there_is_no_grant() {
    let pair = Pair::new(&[]);
    let (mut first, mut second) = (pair.gate.client(), pair.gate.client());
    pair.replica.stop();
    is_unacknowledged(&first.say("TRYLOCK k TOKEN t REPLICAS 1"));
    is_free(&pair.master, "k");
    is_unacknowledged(&first.say("LOCK k TOKEN t REPLICAS 1 WAIT 450"));
    is_free(&pair.master, "k");
    is_unacknowledged(&first.say("TRYLOCK k REPLICAS 1 FENCE"));
    is_free(&pair.master, "k");
    first.send(&["LOCK", "k", "TOKEN", "t", "REPLICAS", "1"]);
    pair.gate.awaits_waiters("k", 1);
    // It delays no client that wants no acknowledgement.
    assert_eq!(second.say("LOCK k TOKEN s"), "s");
    first.hears_nothing_for(Duration::from_millis(300));
    assert_eq!(second.say("UNLOCK k s"), 1);
    pair.replica.go_on();
    assert_eq!(first.read_reply(), "t");
    assert_eq!(holder(&pair.replica, "k"), "t");
    assert!(counted(&mut second, "grants_unacknowledged") > 1);
}

#[test]
fn without_write_back_the_plain_set_is_taken_back_too() {
    let pair = Pair::new(&[("LOCKGATE_WRITE_BACK_LEASES", "off")]);
    let mut first = pair.gate.client();
    let granted = first.say("LOCK k REPLICAS 1");
    assert_eq!(holder(&pair.replica, "k"), granted);
    pair.replica.stop();
    is_unacknowledged(&first.say("TRYLOCK other REPLICAS 1"));
    is_free(&pair.master, "other");
}

#[test]
fn an_extension_without_an_acknowledgement_does_not_count() {
    let pair = Pair::new(&[]);
    let mut owner = pair.gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 30000 REPLICAS 1"), "t");
    pair.replica.stop();
    is_error(&owner.say("RELOCK k t PX 60000"), "NOREPLICAS");
    // The same token again is the same owner, whose lock is not taken back.
    is_error(
        &owner.say("LOCK k TOKEN t PX 60000 REPLICAS 1"),
        "NOREPLICAS",
    );
    assert_eq!(holder(&pair.master, "k"), "t");
    pair.replica.go_on();
    eventually("the replica counts again", || {
        owner.say("RELOCK k t PX 60000") == 1
    });
    assert_eq!(owner.say("UNLOCK k t"), 1);
    is_free(&pair.master, "k");
}

/// Its owner counts on the longer one. Nothing is known of the replica before the first of these.
#[test]
fn an_extension_without_an_acknowledgement_shortens_no_lease() {
    let pair = Pair::new(&[]);
    let elsewhere = gate_before(&pair.master.url(), &PATIENT);
    let cases = [
        ("RELOCK k t PX 9000 REPLICAS 1", &pair.gate),
        ("LOCK k TOKEN t PX 9000 REPLICAS 1", &pair.gate),
        ("LOCK k TOKEN t PX 9000 REPLICAS 1 FENCE", &pair.gate),
        ("RELOCK k t PX 9000 REPLICAS 1", &elsewhere),
        ("LOCK k TOKEN t PX 9000 WAIT 300 REPLICAS 1", &elsewhere),
    ];
    for (shorter, gate) in cases {
        let mut owner = gate.client();
        let granted = pair.gate.client().say("LOCK k TOKEN t PX 60000");
        assert_eq!(granted, "t");
        pair.replica.stop();
        is_error(&owner.say(shorter), "NOREPLICAS");
        assert!(pttl(&mut pair.master.client(), "k") > 50_000, "{shorter}");
        pair.replica.go_on();
        eventually("the replica counts again", || {
            !matches!(owner.say(shorter), Value::Error(_))
        });
        for server in [&pair.master, &pair.replica] {
            let lease = pttl(&mut server.client(), "k");
            assert!((1..=9_000).contains(&lease), "{shorter}: {lease}");
        }
        assert_eq!(owner.say("UNLOCK k t"), 1);
    }
}

#[test]
fn a_session_that_no_replica_renews_is_lost() {
    let pair = Pair::new(&[]);
    let mut owner = resp3(&pair.gate);
    assert_eq!(owner.say("LOCK k TOKEN t PX 1500 SESSION REPLICAS 1"), "t");
    let granted = Instant::now();
    // Renewed beyond its first lease.
    owner.hears_nothing_for(Duration::from_millis(2_000));
    assert!(granted.elapsed() > Duration::from_millis(1_500));
    pair.replica.stop();
    is_told_lost(&mut owner, "k", "t");
    eventually("it is released", || holder(&pair.master, "k") == Value::Nil);
}

/// How often Redis executed the command.
fn calls(redis: &RedisServer, command: &str) -> u64 {
    stat(redis, "commandstats", &format!("cmdstat_{command}:calls="))
}

/// A number that Redis's `INFO` shows behind this text; zero without it.
fn stat(redis: &RedisServer, section: &str, begin: &str) -> u64 {
    let info = redis.client().say(&format!("INFO {section}")).text();
    let line = info.lines().find_map(|line| line.strip_prefix(begin));
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect();
    let number: Option<String> = line.map(digits);
    number.map_or(0, |number| number.parse().unwrap())
}

/// At 0.1, 0.2, 0.4, 0.8, 1.6, 2 and 2 seconds, with one `WAIT` for all locks.
#[test]
fn while_replicas_are_missing_redis_is_asked_ever_less_often() {
    let pair = Pair::new(&[]);
    let mut waits: Vec<_> = (0..20).map(|_| pair.gate.client()).collect();
    pair.replica.stop();
    let (wait, scripts) = (calls(&pair.master, "wait"), calls(&pair.master, "evalsha"));
    for (number, client) in waits.iter_mut().enumerate() {
        client.send(&[
            "LOCK",
            &format!("k{number}"),
            "REPLICAS",
            "1",
            "WAIT",
            "4000",
        ]);
    }
    for client in &mut waits {
        is_unacknowledged(&client.read_reply());
    }
    let (wait, scripts) = (
        calls(&pair.master, "wait") - wait,
        calls(&pair.master, "evalsha") - scripts,
    );
    assert!((2..=8).contains(&wait), "{wait} WAITs in 4 s");
    // Each lock is taken and given back once, and looked at.
    assert!(scripts <= 20 * 4, "{scripts} scripts in 4 s");
    pair.replica.go_on();
    let (granted, took) = timed(|| waits[0].say("LOCK k REPLICAS 1 TOKEN t"));
    assert_eq!(granted, "t");
    assert!(took < Duration::from_millis(3_000), "{took:?}");
}

/// With 30 numbers of replicas, each of which would take 100 ms at each turn.
#[test]
fn clients_that_want_too_many_replicas_delay_no_other_turn() {
    let pair = Pair::new(&[]);
    let mut patient: Vec<_> = (2..32).map(|_| pair.gate.client()).collect();
    for (number, client) in patient.iter_mut().enumerate() {
        let replicas = (number + 2).to_string();
        client.send(&["LOCK", "k", "REPLICAS", &replicas]);
    }
    pair.gate.awaits_waiters("k", 30);
    let mut client = pair.gate.client();
    let ((), took) = timed(|| {
        for _ in 0..50 {
            assert_eq!(client.say("LOCK k TOKEN t REPLICAS 1"), "t");
            assert_eq!(client.say("UNLOCK k t"), 1);
        }
    });
    assert!(took < Duration::from_millis(2_500), "{took:?}");
    let (reply, took) = timed(|| client.say("TRYLOCK k REPLICAS 2"));
    is_error(&reply, "NOREPLICAS");
    assert!(took < AT_ONCE / 2, "{took:?}");
}

#[test]
fn a_wait_that_ends_before_the_first_acknowledgement_lacks_replicas() {
    let pair = Pair::new(&[("LOCKGATE_LOCK_REPLICAS_TIMEOUT", "1s")]);
    pair.replica.stop();
    let mut client = pair.gate.client();
    let reply = client.say("LOCK k REPLICAS 1 WAIT 300");
    is_error(&reply, "NOREPLICAS not acknowledged within WAIT");
    is_free(&pair.master, "k");
    // Where another client holds the lock, it is a nil.
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert!(client.say("LOCK k REPLICAS 1 WAIT 300").is_nil());
}

#[test]
fn a_redis_that_hangs_during_the_acknowledgement_is_no_lack_of_replicas() {
    let settings = [
        ("LOCKGATE_LOCK_REPLICAS_TIMEOUT", "900ms"),
        ("LOCKGATE_UPSTREAM_TIMEOUT", "1s"),
    ];
    let pair = Pair::new(&settings);
    pair.replica.stop();
    let (mut trying, mut waiting) = (pair.gate.client(), pair.gate.client());
    trying.send(&["TRYLOCK", "k", "REPLICAS", "1"]);
    waiting.send(&["LOCK", "other", "REPLICAS", "1", "WAIT", "3000"]);
    let mut direct = pair.master.client();
    eventually("it waits for the replica", || {
        direct.say("CLIENT LIST").text().contains("cmd=wait")
    });
    pair.master.stop();
    is_error(&trying.read_reply(), "UPSTREAM");
    is_error(&waiting.read_reply(), "UPSTREAM");
}

#[test]
fn a_connection_for_acknowledgements_that_cannot_be_opened_is_tried_ever_less_often() {
    let pair = Pair::new(&[]);
    let mut client = pair.gate.client();
    let mut direct = pair.master.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("UNLOCK k t"), 1);
    assert_eq!(direct.say("CONFIG SET maxclients 1"), "OK");
    let rejected = |direct: &mut Client| {
        let info = direct.say("INFO stats").text();
        let line = info
            .lines()
            .find_map(|it| it.strip_prefix("rejected_connections:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = rejected(&mut direct);
    let reply = client.say("LOCK k REPLICAS 1 WAIT 3000");
    is_error(&reply, "NOREPLICAS not acknowledged by 1 replicas:");
    let attempts = rejected(&mut direct) - before;
    assert!((2..=7).contains(&attempts), "{attempts} attempts in 3 s");
    assert_eq!(direct.say("CONFIG SET maxclients 1000"), "OK");
    let (granted, took) = timed(|| client.say("LOCK k REPLICAS 1 TOKEN t"));
    assert_eq!(granted, "t");
    assert!(took < Duration::from_millis(3_000), "{took:?}");
}

#[test]
fn an_owner_releases_at_once_and_the_next_one_waits_for_the_replica() {
    let pair = Pair::new(&[]);
    let mut owner = pair.gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    let mut next = pair.gate.client();
    next.send(&["LOCK", "k", "TOKEN", "n", "REPLICAS", "1"]);
    pair.gate.awaits_waiters("k", 1);
    pair.replica.stop();
    let (reply, took) = timed(|| owner.say("UNLOCK k t"));
    assert_eq!(reply, 1);
    assert!(took < AT_ONCE, "{took:?}");
    next.hears_nothing_for(Duration::from_millis(300));
    pair.replica.go_on();
    assert_eq!(next.read_reply(), "n");
    assert_eq!(holder(&pair.replica, "k"), "n");
}

#[test]
fn each_grant_of_a_group_gets_the_replicas_that_it_asked_for() {
    let pair = Pair::new(&[]);
    let wants = |replicas: &str| {
        let mut client = pair.gate.client();
        let key = format!("k{replicas}");
        client.send(&["TRYLOCK", &key, "TOKEN", "t", "REPLICAS", replicas]);
        client
    };
    let (mut one, mut two, mut none) = (wants("1"), wants("2"), wants("0"));
    assert_eq!(one.read_reply(), "t");
    is_error(
        &two.read_reply(),
        "NOREPLICAS not acknowledged by 2 replicas",
    );
    assert_eq!(none.read_reply(), "t");
    is_free(&pair.master, "k2");
}

#[test]
fn a_user_that_may_not_wait_for_replicas_is_told_so_at_once() {
    let pair = Pair::new(&PATIENT_REPLICAS);
    let mut direct = pair.master.client();
    for rights in ["-wait", "+wait ~* resetkeys ~k"] {
        let rule = format!("ACL SETUSER default {rights}");
        assert_eq!(direct.say(&rule), "OK");
        let mut client = pair.gate.client();
        let (reply, took) = timed(|| client.say("LOCK k TOKEN t REPLICAS 1"));
        is_error(&reply, "NOREPLICAS Redis does not acknowledge");
        assert!(reply.error().contains("NOPERM"), "{reply:?}");
        assert!(took < AT_ONCE, "{took:?}");
        is_free(&pair.master, "k");
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
        assert_eq!(client.say("UNLOCK k t"), 1);
    }
}

#[test]
fn the_users_account_counts_where_redis_refuses_lockgates_own() {
    let own = [
        ("LOCKGATE_UPSTREAM_USER", "gate"),
        ("LOCKGATE_UPSTREAM_PASSWORD", "hunter2"),
    ];
    let pair = Pair::new(&own);
    let mut client = pair.gate.client();
    assert_eq!(client.say("LOCK k TOKEN t REPLICAS 1"), "t");
    assert_eq!(holder(&pair.replica, "k"), "t");
}

#[test]
fn a_redis_without_memory_does_not_acknowledge_for_now() {
    let pair = Pair::new(&[]);
    let (mut direct, mut client) = (pair.master.client(), pair.gate.client());
    assert_eq!(client.say("LOCK k TOKEN t REPLICAS 1"), "t");
    assert_eq!(direct.say("CONFIG SET maxmemory 1"), "OK");
    let reply = client.say("RELOCK k t REPLICAS 1");
    assert!(!reply.error().contains("does not acknowledge"), "{reply:?}");
    assert_eq!(direct.say("CONFIG SET maxmemory 0"), "OK");
    assert_eq!(client.say("RELOCK k t REPLICAS 1"), 1);
}

#[test]
fn a_lock_that_lockgate_may_not_give_back_breaks_no_connection() {
    let pair = Pair::new(&[]);
    assert_eq!(pair.master.client().say("ACL SETUSER default -del"), "OK");
    pair.replica.stop();
    let mut client = pair.gate.client();
    let reply = client.say("TRYLOCK k TOKEN t REPLICAS 1");
    is_error(&reply, "NOREPLICAS not acknowledged");
    assert_eq!(client.say("PING"), "PONG");
    assert_eq!(holder(&pair.master, "k"), "t");
}

#[test]
fn a_server_that_knows_no_wait_is_told_so_at_once() {
    let machine = Machine::shared();
    let redis = RedisServer::start(&["--rename-command", "WAIT", ""]);
    let gate = gate_before(&redis.url(), &PATIENT_REPLICAS);
    let mut client = gate.client();
    let (reply, took) = timed(|| client.say("LOCK k TOKEN t REPLICAS 1"));
    is_error(&reply, "NOREPLICAS Redis does not acknowledge");
    assert!(took < AT_ONCE, "{took:?}");
    is_free(&redis, "k");
    drop(machine);
}

#[test]
fn a_broken_connection_acknowledges_nothing() {
    let pair = Pair::new(&PATIENT_REPLICAS);
    let (mut direct, mut client) = (pair.master.client(), pair.gate.client());
    assert_eq!(client.say("LOCK k TOKEN t REPLICAS 1"), "t");
    pair.replica.stop();
    client.send(&["TRYLOCK", "other", "TOKEN", "t", "REPLICAS", "1"]);
    let ends = |direct: &mut Client| {
        let listed = direct.say("CLIENT LIST").text();
        let waits = listed
            .lines()
            .find(|line| line.contains("flags=b") && line.contains("cmd=wait"))?;
        let id = waits
            .split_whitespace()
            .find_map(|it| it.strip_prefix("id="))?;
        Some(direct.call(&["CLIENT", "KILL", "ID", id]) == 1)
    };
    eventually("it waits for the replica", || {
        ends(&mut direct) == Some(true)
    });
    is_error(&client.read_reply(), "NOREPLICAS");
    is_free(&pair.master, "other");
    pair.replica.go_on();
    assert_eq!(client.say("TRYLOCK other TOKEN t REPLICAS 1"), "t");
}

#[test]
fn another_server_acknowledges_nothing() {
    let machine = Machine::shared();
    let (master, replica) = replicated();
    let (other, others_replica) = replicated();
    let way = Proxy::before(master.address());
    let gate = gate_before(&way.url(), &PATIENT);
    let mut client = gate.client();
    replica.stop();
    way.forward_to(other.address());
    // The connection for locks still leads to the first one.
    is_error(&client.say("TRYLOCK k TOKEN t REPLICAS 1"), "NOREPLICAS");
    is_free(&master, "k");
    // It is given up, since its address leads elsewhere.
    eventually("the other one is used", || {
        client.say("TRYLOCK k TOKEN t REPLICAS 1") == "t"
    });
    assert_eq!(holder(&others_replica, "k"), "t");
    drop(machine);
}

#[test]
fn a_lock_outlives_its_master_and_its_gate_together() {
    let mut pair = Pair::new(&[]);
    assert_eq!(
        pair.gate.client().say("LOCK k TOKEN t PX 60000 REPLICAS 1"),
        "t"
    );
    pair.master.kill();
    pair.gate.kill();
    assert_eq!(pair.replica.client().say("REPLICAOF NO ONE"), "OK");
    let gate = gate_before(&pair.replica.url(), &PATIENT);
    assert!(gate.client().say("TRYLOCK k").is_nil());
}

/// What the new master lacks is written back, and the next owner needs no free lock.
#[test]
fn after_a_failover_a_handover_waits_for_replicas_and_not_for_the_grace() {
    let machine = Machine::shared();
    let at_once = ["--repl-diskless-sync-delay", "0"];
    let [mut master, new, news_replica] = [(); 3].map(|()| RedisServer::start(&at_once));
    follows(&news_replica, &new);
    follows(&new, &master);
    let way = Proxy::before(master.address());
    let gate = gate_before(&way.url(), &PATIENT);
    let (mut owner, mut next) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t REPLICAS 1"), "t");
    next.send(&["LOCK", "k", "TOKEN", "n", "REPLICAS", "1"]);
    gate.awaits_waiters("k", 1);
    master.kill();
    let mut direct = new.client();
    assert_eq!(direct.say("REPLICAOF NO ONE"), "OK");
    eventually("its replica is there", || {
        direct.say("SET synchronised 2");
        direct.say("WAIT 1 1000") == 1
    });
    way.forward_to(new.address());
    let failed_over = Instant::now();
    eventually("the lock is released", || owner.say("UNLOCK k t") == 1);
    assert_eq!(next.read_reply(), "n");
    let took = failed_over.elapsed();
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    assert_eq!(holder(&news_replica, "k"), "n");
    // A free lock waits for the grace.
    let info = gate.client().say("TRYLOCK free");
    is_error(&info, "UPSTREAM Redis lost data");
    drop(machine);
}

#[test]
fn a_grant_waits_for_replicas_by_default() {
    let pair = Pair::new(&[("LOCKGATE_LOCK_REPLICAS", "1")]);
    let mut client = pair.gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(holder(&pair.replica, "k"), "t");
    pair.replica.stop();
    is_unacknowledged(&client.say("TRYLOCK other"));
    assert_eq!(client.say("TRYLOCK other TOKEN o REPLICAS 0"), "o");
}

#[test]
fn without_a_redis_there_are_no_replicas() {
    let machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    is_error(&gate.client().say("TRYLOCK k REPLICAS 1"), "ERR REPLICAS");
    let ended = run_to_its_end(&[], &[("LOCKGATE_LOCK_REPLICAS", "1")]);
    assert!(ended.stderr.contains("lock.replicas"), "{}", ended.stderr);
    drop(machine);
}
