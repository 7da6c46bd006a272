//! A Redis that answers and takes no locks: readiness, the metric, `INFO` and the log say so, and when it is over.

use serde_json::Value as Json;

use super::{
    events::{events, next_with},
    get,
};
use crate::support::{
    ACTIVE_REPLICA, Client, Impostor, Lockgate, Machine, RedisServer, SHORT_GRACE, Value,
    eventually,
};

/// A short grace, and a patience that a busy machine does not exhaust.
const PATIENT: [(&str, &str); 2] = [
    ("LOCKGATE_UPSTREAM_TIMEOUT", "2s"),
    ("LOCKGATE_WRITE_BACK_GRACE", "2700ms"),
];

fn gate_before(redis: &RedisServer) -> Lockgate {
    super::gate_before(redis, &[&SHORT_GRACE[..], &PATIENT].concat())
}

const REFUSES: &str = "Redis takes no locks";
const OVER: &str = "Redis takes locks again";

/// Returns when the instance is ready, or not and says why; the metric and `INFO` then say the same.
#[track_caller]
fn becomes(gate: &Lockgate, status: u16, why: &str) {
    let admin = gate.admin_address();
    let mut told = (0, String::new());
    eventually(&format!("{status} {why}"), || {
        told = get(admin, "/readyz");
        told.0 == status && told.1.contains(why)
    });
    let can_lock = format!("lockgate_upstream_can_lock {}", u8::from(status == 200));
    eventually(&can_lock, || {
        get(admin, "/metrics").1.lines().any(|it| it == can_lock)
    });
    let field = can_lock.replace(' ', ":");
    // As one who needs no Redis for it.
    eventually(&field, || {
        let info = gate.client().say("INFO lockgate");
        match info {
            Value::Bulk(_) => info.text().contains(&field),
            // Redis, which adds its own, wants a password.
            _ => true,
        }
    });
    assert_eq!(get(admin, "/healthz").0, 200);
}

/// Has a Redis refuse locks with an error of this class, and take them again by `mend`, while a client waits.
fn waits_out(redis: &RedisServer, spoil: &[&str], class: &str, mend: &[&str]) {
    let gate = gate_before(redis);
    let (mut direct, mut waiter) = (redis.client(), gate.client());
    becomes(&gate, 200, "ready");
    assert_eq!(gate.client().say("LOCK first TOKEN f PX 50"), "f");
    assert_eq!(direct.call(spoil), "OK");
    waiter.send(&["LOCK", "k", "TOKEN", "t"]);
    let told = log_of_waiters(&gate);
    assert_eq!(
        (&told["level"], &told["class"], &told["waiters"]),
        (&Json::from("WARN"), &Json::from(class), &Json::from(1)),
        "{told}"
    );
    becomes(&gate, 503, class);
    assert!(gate.logged(OVER).is_empty(), "{}", gate.log());
    assert_eq!(direct.call(mend), "OK");
    assert_eq!(waiter.read_reply(), "t");
    becomes(&gate, 200, "ready");
    let over = log_of_end(&gate);
    assert_eq!(over["level"], "INFO", "{over}");
    assert!(over["after_ms"].as_u64().is_some(), "{over}");
    // One for those who wait, after one for nobody at most, if readiness found it first.
    assert!(gate.logged(REFUSES).len() <= 2, "{}", gate.log());
    assert_eq!(gate.logged(OVER).len(), 1, "{}", gate.log());
}

/// The line about clients that wait.
#[track_caller]
fn log_of_waiters(gate: &Lockgate) -> Json {
    let of_waiters = || {
        let lines = gate.logged(REFUSES).into_iter();
        lines.rev().find(|line| line["waiters"] != 0)
    };
    eventually("the log tells of the waiters", || of_waiters().is_some());
    of_waiters().unwrap()
}

#[track_caller]
fn log_of_end(gate: &Lockgate) -> Json {
    eventually("the log tells of the end", || !gate.logged(OVER).is_empty());
    gate.logged(OVER).remove(0)
}

#[test]
fn a_redis_without_its_replicas_is_not_ready() {
    let _machine = Machine::shared();
    waits_out(
        &RedisServer::start(&[]),
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        "NOREPLICAS",
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    );
}

#[test]
fn a_redis_that_cannot_write_to_its_disk_is_not_ready() {
    let _machine = Machine::shared();
    let no = ["--stop-writes-on-bgsave-error", "no"];
    let settings = [&["--enable-protected-configs", "yes"], &no[..]].concat();
    let redis = RedisServer::start(&settings);
    let mut direct = redis.client();
    assert_eq!(direct.call(&["CONFIG", "SET", "save", "900 1"]), "OK");
    assert_eq!(direct.say("CONFIG SET dir /proc"), "OK");
    direct.say("BGSAVE");
    eventually("the snapshot failed", || {
        let info = direct.say("INFO persistence").text();
        info.contains("rdb_last_bgsave_status:err")
    });
    waits_out(
        &redis,
        &["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"],
        "MISCONF",
        &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"],
    );
}

#[test]
fn a_redis_that_a_script_keeps_busy_is_not_ready() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--lua-time-limit", "20"]);
    let gate = gate_before(&redis);
    let (mut busy, mut direct, mut waiter) = (redis.client(), redis.client(), gate.client());
    assert_eq!(gate.client().say("LOCK first TOKEN f"), "f");
    busy.send(&["EVAL", "while true do end", "0"]);
    eventually("Redis is busy", || {
        matches!(direct.say("PING"), Value::Error(_))
    });
    waiter.send(&["LOCK", "k", "TOKEN", "t"]);
    assert_eq!(log_of_waiters(&gate)["class"], "BUSY");
    becomes(&gate, 503, "BUSY");
    assert_eq!(direct.say("SCRIPT KILL"), "OK");
    assert_eq!(waiter.read_reply(), "t");
    becomes(&gate, 200, "ready");
}

/// Neither a client nor a health check comes.
#[test]
fn that_redis_takes_locks_again_is_noticed_without_any_client() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis);
    let mut direct = redis.client();
    assert_eq!(gate.client().say("LOCK first TOKEN f"), "f");
    assert_eq!(direct.say("CONFIG SET min-replicas-to-write 1"), "OK");
    let reply = gate.client().say("LOCK k WAIT 300");
    assert!(reply.error().starts_with("NOREPLICAS"), "{reply:?}");
    eventually("the log says so", || !gate.logged(REFUSES).is_empty());
    assert_eq!(direct.say("CONFIG SET min-replicas-to-write 0"), "OK");
    log_of_end(&gate);
    let metrics = get(gate.admin_address(), "/metrics").1;
    assert!(
        metrics.contains("\nlockgate_upstream_can_lock 1\n"),
        "{metrics}"
    );
}

#[test]
fn a_cluster_that_lacks_slots_is_not_ready() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--cluster-enabled", "yes"]);
    let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    assert_eq!(redis.client().call(&all), "OK");
    eventually("the cluster is up", || {
        redis.client().say("SET lockgate:grace x") == "OK"
    });
    redis.client().say("DEL lockgate:grace");
    // The slot of `k` is 7629, that of `lockgate:fence` another.
    waits_out(
        &redis,
        &["CLUSTER", "DELSLOTSRANGE", "0", "100"],
        "CLUSTERDOWN",
        &["CLUSTER", "ADDSLOTSRANGE", "0", "100"],
    );
}

#[test]
fn a_replica_is_not_ready_until_it_is_promoted() {
    let _machine = Machine::shared();
    let (master, replica) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let port = master.address().port().to_string();
    waits_out(
        &replica,
        &["REPLICAOF", "127.0.0.1", &port],
        "READONLY",
        &["REPLICAOF", "NO", "ONE"],
    );
}

/// An instance that starts there says so before any client comes.
#[test]
fn a_replica_is_not_ready_from_the_start_on() {
    let _machine = Machine::shared();
    let (master, replica) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let port = master.address().port().to_string();
    let follow = ["REPLICAOF", "127.0.0.1", &port];
    assert_eq!(replica.client().call(&follow), "OK");
    let gate = gate_before(&replica);
    eventually("the log says so", || !gate.logged(REFUSES).is_empty());
    assert_eq!(gate.logged(REFUSES)[0]["waiters"], 0, "{}", gate.log());
    becomes(&gate, 503, "READONLY");
    next_with(&mut events(gate.admin_address()), "READONLY");
    let mut waiter = gate.client();
    waiter.send(&["LOCK", "k", "TOKEN", "t"]);
    log_of_waiters(&gate);
    assert_eq!(replica.client().say("REPLICAOF NO ONE"), "OK");
    assert_eq!(waiter.read_reply(), "t");
    becomes(&gate, 200, "ready");
}

/// It takes writes, and forgets them when its master sends it the data again.
#[test]
fn a_replica_that_takes_writes_is_not_ready_either() {
    let _machine = Machine::shared();
    let (master, replica) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let port = master.address().port().to_string();
    let mut direct = replica.client();
    assert_eq!(direct.say("CONFIG SET replica-read-only no"), "OK");
    assert_eq!(direct.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    becomes(&gate_before(&replica), 503, "READONLY");
}

/// As KeyDB is with `active-replica yes`: it takes writes, and so does the other master.
#[test]
fn one_of_several_masters_is_not_ready_and_grants_nothing() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let impostor = Impostor::before(redis.address(), ACTIVE_REPLICA);
    let off = [("LOCKGATE_WRITE_BACK_LEASES", "off")];
    for write_back in [&[][..], &off] {
        let environment = [&SHORT_GRACE[..], &PATIENT, write_back].concat();
        let gate = super::gate(&["--upstream", &impostor.url()], &environment);
        becomes(&gate, 503, "active replica");
        let reply = gate.client().say("LOCK k WAIT 300");
        assert!(reply.error().contains("active replica"), "{reply:?}");
        let line = &gate.logged(REFUSES)[0];
        assert_eq!(line["class"], "READONLY", "{line}");
    }
    assert_eq!(redis.client().say("EXISTS k"), 0);
}

/// Clients get this error at once, and none waits.
#[test]
fn a_redis_without_memory_is_not_ready() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--maxmemory-policy", "noeviction"]);
    let gate = gate_before(&redis);
    becomes(&gate, 200, "ready");
    let mut direct = redis.client();
    assert_eq!(direct.say("CONFIG SET maxmemory 1"), "OK");
    let reply = gate.client().say("LOCK k");
    assert!(reply.error().starts_with("OOM"), "{reply:?}");
    eventually("the log says so", || !gate.logged(REFUSES).is_empty());
    becomes(&gate, 503, "OOM");
    assert_eq!(direct.say("CONFIG SET maxmemory 0"), "OK");
    becomes(&gate, 200, "ready");
    log_of_end(&gate);
}

/// An instance without an account of its own may not try by itself: what Redis says to clients counts.
#[test]
fn where_redis_wants_a_password_the_replies_to_clients_count_for_a_while() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let gate = gate_before(&redis);
    let authenticated = |mut client: Client| {
        assert_eq!(client.say("AUTH secret"), "OK");
        client
    };
    let mut direct = authenticated(redis.client());
    let mut client = authenticated(gate.client());
    assert_eq!(client.say("LOCK first TOKEN f"), "f");
    becomes(&gate, 200, "ready");
    assert_eq!(direct.say("CONFIG SET min-replicas-to-write 1"), "OK");
    let reply = client.say("LOCK k WAIT 300");
    assert!(reply.error().starts_with("NOREPLICAS"), "{reply:?}");
    drop(client);
    becomes(&gate, 503, "NOREPLICAS");
    // Nobody is left who could try.
    becomes(&gate, 200, "ready");
    log_of_end(&gate);
}

/// What a user may not do, or does wrong, says nothing of Redis.
#[test]
fn no_user_makes_it_unready() {
    let _machine = Machine::shared();
    for password in [None, Some("secret")] {
        let redis = RedisServer::start(&[]);
        let mut direct = redis.client();
        assert_eq!(
            direct.say("ACL SETUSER limited on >limited ~mine:* +@all -set -evalsha -eval"),
            "OK"
        );
        assert_eq!(direct.say("RPUSH list x"), 1);
        if let Some(password) = password {
            let require = ["CONFIG", "SET", "requirepass", password];
            assert_eq!(direct.call(&require), "OK");
        }
        let gate = gate_before(&redis);
        let mut limited = gate.client();
        assert_eq!(limited.say("AUTH limited limited"), "OK");
        for key in ["mine:1", "others"] {
            let reply = limited.call(&["LOCK", key]);
            assert!(reply.error().starts_with("NOPERM"), "{reply:?}");
        }
        let mut wrong = gate.client();
        if let Some(password) = password {
            assert_eq!(wrong.call(&["AUTH", password]), "OK");
        }
        let reply = wrong.say("LOCK list");
        assert!(reply.error().starts_with("WRONGTYPE"), "{reply:?}");
        becomes(&gate, 200, "ready");
        assert!(gate.logged(REFUSES).is_empty(), "{}", gate.log());
    }
}

/// In a cluster that serves what it can, the keys of a part that is lost are one client's choice.
#[test]
fn a_key_that_a_cluster_lost_does_not_make_it_unready() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "no",
    ]);
    let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    assert_eq!(redis.client().call(&all), "OK");
    eventually("the cluster is up", || {
        redis.client().say("SET lockgate:grace x") == "OK"
    });
    redis.client().say("DEL lockgate:grace");
    let gate = gate_before(&redis);
    assert_eq!(gate.client().say("LOCK other TOKEN t"), "t");
    let slot = redis
        .client()
        .say("CLUSTER KEYSLOT k")
        .integer()
        .to_string();
    let lose = ["CLUSTER", "DELSLOTS", &slot];
    assert_eq!(redis.client().call(&lose), "OK");
    let reply = gate.client().say("LOCK k WAIT 300");
    assert!(reply.error().starts_with("CLUSTERDOWN"), "{reply:?}");
    becomes(&gate, 200, "ready");
    assert!(gate.logged(REFUSES).is_empty(), "{}", gate.log());
    assert_eq!(gate.client().say("LOCK third TOKEN t"), "t");
}
