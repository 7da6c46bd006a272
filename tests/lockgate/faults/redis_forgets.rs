//! Redis loses its data while locks are held: the gates that granted them write them back, and
//! nobody is granted a lock that another one still holds.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    AT_ONCE, gate_before, holder, is_served, pttl, resp3, timed, waiter, was_told_nothing,
};
use crate::support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, eventually, median};

const LOCKS: usize = 50;
const WAITERS_PER_LOCK: usize = 4;
/// Of the locks, so many are bound to the connections of their owners.
const SESSIONS: usize = 10;

/// The promise, with the settings that everybody has.
const NEXT_GRANT: Duration = Duration::from_millis(5_500);

/// Ends this Redis and starts it without anything of its data.
fn forgets(redis: &mut RedisServer) {
    redis.kill();
    redis.forget();
    redis.restart();
}

/// An owner of the lock; some are bound to their connections, and renewed meanwhile.
fn own(gate: &Lockgate, n: usize, key: &str) -> Client {
    let mut owner = gate.client();
    let mut command = vec!["LOCK", key, "TOKEN", "owner"];
    command.extend(match n {
        0..SESSIONS => ["PX", "4000", "SESSION"].as_slice(),
        _ => &["PX", "20000"],
    });
    assert_eq!(owner.call(&command), "owner");
    owner
}

fn queue(gate: &Lockgate, key: &str) -> Vec<Client> {
    let place = |place| waiter(gate, key, &format!("w{place}"), place as i64 + 1);
    (0..WAITERS_PER_LOCK).map(place).collect()
}

/// Returns when each lock has its owner again; none has another one meanwhile.
fn are_written_back(redis: &RedisServer, keys: &[String]) {
    let mut direct = redis.client();
    let command = [&["MGET".to_owned()], keys].concat();
    eventually("every lease is written back", || {
        let found = direct.call(&command);
        let held = found.items().iter().filter(|value| !value.is_nil());
        held.inspect(|value| assert_eq!(**value, "owner")).count() == keys.len()
    });
}

/// It is the same lock afterwards: extended, renewed, released by its owner or with its connection.
#[test]
fn a_written_back_lock_is_held_as_before() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[]);
    let (mut owner, mut bound) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 3000 SESSION"), "t");
    for _ in 0..2 {
        forgets(&mut redis);
        eventually("both are written back", || {
            ["k", "bound"].iter().all(|key| holder(&redis, key) == "t")
        });
    }
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    assert_eq!(owner.say("RELOCK k t PX 90000"), 1);
    sleep(Duration::from_secs(3));
    assert_eq!(holder(&redis, "bound"), "t", "it is renewed");
    let mut next = waiter(&gate, "bound", "next", 1);
    let ((), took) = timed(|| {
        drop(bound);
        assert_eq!(next.read_reply(), "next");
    });
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert!(holder(&redis, "k").is_nil());
}

#[test]
fn locks_of_every_database_and_of_any_prefix_are_written_back() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_LOCK_KEY_PREFIX", "lock:")]);
    // Each of another name: what Redis tells of a change names no database.
    let places = ["0", "5", "9"].map(|database| (database, format!("k{database}")));
    for (database, key) in &places {
        let mut owner = gate.client();
        assert_eq!(owner.call(&["SELECT", database]), "OK");
        assert_eq!(owner.call(&["LOCK", key, "TOKEN", "t"]), "t");
    }
    forgets(&mut redis);
    for (database, key) in &places {
        let mut direct = redis.client();
        assert_eq!(direct.call(&["SELECT", database]), "OK");
        eventually("it is written back", || {
            direct.call(&["GET", &format!("lock:{key}")]) == "t"
        });
    }
}

/// A lock that is free waits for the grace time, too; one that is held is known to be held.
#[test]
fn trylock_is_answered_in_time() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = Lockgate::start(&["--upstream", &redis.url()]);
    let (mut owner, mut trying, mut other) = (gate.client(), gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    forgets(&mut redis);
    let start = Instant::now();
    trying.send(&["TRYLOCK", "k"]);
    other.send(&["TRYLOCK", "free", "TOKEN", "o"]);
    assert_eq!(trying.read_reply(), Value::Nil);
    let reply = other.read_reply();
    assert!(reply.error().contains("write_back.grace"), "{reply:?}");
    assert!(
        start.elapsed() < Duration::from_millis(2_200),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(owner.say("UNLOCK k t"), 1);
}

/// Written back is what was granted, and for no longer than it was granted.
#[test]
fn a_written_back_lease_keeps_its_deadline() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[]);
    let mut owner = gate.client();
    let begin = Instant::now();
    assert_eq!(owner.say("LOCK k TOKEN owner PX 2500"), "owner");
    assert_eq!(owner.say("LOCK long TOKEN owner PX 20000"), "owner");
    assert_eq!(owner.say("RELOCK long owner PX 90000"), 1);
    assert_eq!(owner.say("LOCK short TOKEN owner PX 90000"), "owner");
    assert_eq!(owner.say("RELOCK short owner PX 20000"), 1);
    let mut next = waiter(&gate, "k", "next", 1);
    forgets(&mut redis);
    eventually("it is written back", || holder(&redis, "short") == "owner");
    let mut direct = redis.client();
    assert!((80_000..90_000).contains(&pttl(&mut direct, "long")));
    assert!((10_000..20_000).contains(&pttl(&mut direct, "short")));
    assert!(pttl(&mut direct, "k") <= 2_500);
    assert_eq!(next.read_reply(), "next");
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(2_499), "{waited:?}");
    assert!(waited < Duration::from_millis(3_500), "{waited:?}");
}

/// With its disk Redis remembers; who holds what is as it was.
#[test]
fn a_redis_that_restarts_with_its_data_changes_nothing() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start_with_aof();
    let gate = gate_before(&redis.url(), &[]);
    let (mut owner, mut bound) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN owner"), "owner");
    assert_eq!(bound.say("LOCK bound TOKEN b PX 3000 SESSION"), "b");
    let mut first = waiter(&gate, "k", "first", 1);
    let mut second = waiter(&gate, "k", "second", 2);
    redis.kill();
    redis.restart();
    assert_eq!(holder(&redis, "k"), "owner");
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    assert_eq!(first.read_reply(), "first");
    second.hears_nothing_for(Duration::from_millis(50));
    assert_eq!(first.say("UNLOCK k first"), 1);
    assert_eq!(second.read_reply(), "second");
    sleep(Duration::from_secs(3));
    assert_eq!(holder(&redis, "bound"), "b", "it is renewed");
    was_told_nothing(&mut bound);
    drop(bound);
    eventually("it is released", || holder(&redis, "bound").is_nil());
}

/// Nobody is granted what he finds free before the other gate could write back what it granted.
#[test]
fn each_gate_writes_back_what_it_granted_before_the_other_one_grants_it() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gates = [
        gate_before(&redis.url(), &[]),
        gate_before(&redis.url(), &[]),
    ];
    let keys: Vec<String> = (0..40).map(|n| format!("k:{n}")).collect();
    let mut owners = gates.each_ref().map(Lockgate::client);
    let mut waiters = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let here = n % 2;
        assert_eq!(owners[here].call(&["LOCK", key, "TOKEN", "owner"]), "owner");
        waiters.push(waiter(&gates[1 - here], key, "next", 1));
    }
    for _ in 0..3 {
        forgets(&mut redis);
        are_written_back(&redis, &keys);
    }
    for ((n, key), next) in keys.iter().enumerate().zip(&mut waiters) {
        assert!(!next.hears_within(Duration::ZERO).unwrap());
        assert_eq!(owners[n % 2].call(&["UNLOCK", key, "owner"]), 1);
        assert_eq!(next.read_reply(), "next");
    }
}

/// The hole that is left, and said to be left: a gate that comes back later than the grace time finds
/// its locks granted to others. Then their owners are told, and the others keep them.
#[test]
fn a_gate_that_was_cut_off_for_longer_than_the_grace_time_tells_its_owners() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let (cut_off, other) = (
        gate_before(&proxy.url(), &[]),
        gate_before(&redis.url(), &[]),
    );
    let (mut plain, mut bound) = (cut_off.client(), cut_off.client());
    assert_eq!(plain.say("LOCK plain TOKEN t PX 20000"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 20000 SESSION"), "t");
    assert_eq!(plain.say("LOCK free TOKEN t PX 20000"), "t");
    let mut next = [
        waiter(&other, "plain", "next", 1),
        waiter(&other, "bound", "next", 1),
    ];
    proxy.refuse(true);
    proxy.cut();
    forgets(&mut redis);
    let back = Instant::now();
    for next in &mut next {
        assert_eq!(next.read_reply(), "next");
    }
    let grace = back.elapsed();
    assert!(grace > Duration::from_millis(450), "{grace:?}");
    proxy.refuse(false);
    bound.is_closed_by_the_server();
    assert_eq!(plain.say("UNLOCK plain t"), 0);
    assert_eq!(
        holder(&redis, "free"),
        "t",
        "what nobody took is written back"
    );
    assert_eq!(next[0].say("UNLOCK plain next"), 1);
    assert_eq!(next[1].say("UNLOCK bound next"), 1);
}

#[test]
fn a_lease_released_elsewhere_is_not_written_back() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let (one, other) = (
        gate_before(&redis.url(), &[]),
        gate_before(&redis.url(), &[]),
    );
    assert_eq!(one.client().say("LOCK k TOKEN t PX 60000"), "t");
    assert_eq!(one.client().say("LOCK kept TOKEN t PX 60000"), "t");
    assert_eq!(other.client().say("UNLOCK k t"), 1);
    let mut observer = one.client();
    eventually("the gate that granted it hears of it", || {
        observer.say("LOCKINFO k").field("granted-here") == &Value::Integer(0)
    });
    forgets(&mut redis);
    eventually("others are written back", || holder(&redis, "kept") == "t");
    assert_eq!(holder(&redis, "k"), Value::Nil);
    let mut next = other.client();
    assert_eq!(next.say("LOCK k TOKEN next WAIT 5000"), "next");
}

/// The gate was told that something changed, and Redis died before it could say what: then it is taken
/// for released.
#[test]
fn a_lease_changed_just_before_the_loss_is_not_written_back() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[]);
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    assert_eq!(owner.say("LOCK kept TOKEN t PX 60000"), "t");
    let mut direct = redis.client();
    assert_eq!(direct.say("MULTI"), "OK");
    direct.say("DEL k");
    // The gate's question is not answered.
    direct.say("CLIENT PAUSE 60000 WRITE");
    direct.say("EXEC");
    eventually("the gate asks what changed", || {
        direct
            .say("INFO clients")
            .text()
            .contains("blocked_clients:1")
    });
    forgets(&mut redis);
    eventually("others are written back", || holder(&redis, "kept") == "t");
    assert_eq!(gate.client().say("LOCK k TOKEN next WAIT 5000"), "next");
    assert_eq!(owner.say("UNLOCK k t"), 0);
}

/// A client that released the lock before the loss, or during the recovery, does not get it again.
#[test]
fn a_released_lease_is_not_written_back() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[]);
    let (mut owner, mut bound) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK before TOKEN t"), "t");
    assert_eq!(owner.say("LOCK meanwhile TOKEN t"), "t");
    assert_eq!(owner.say("LOCK kept TOKEN t"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t SESSION"), "t");
    assert_eq!(owner.say("UNLOCK before t"), 1);
    redis.kill();
    owner.send(&["UNLOCK", "meanwhile", "t"]);
    drop(bound);
    redis.restart();
    // Whether it was found to hold the lock still: either is true.
    assert!((0..=1).contains(&owner.read_reply().integer()));
    eventually("the others are written back", || {
        holder(&redis, "kept") == "t"
    });
    for key in ["before", "meanwhile", "bound"] {
        let taken = gate
            .client()
            .call(&["LOCK", key, "TOKEN", "next", "WAIT", "5000"]);
        assert_eq!(taken, "next", "{key}");
    }
}

#[test]
fn only_sessions_are_written_back_where_it_is_set_so() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_WRITE_BACK_LEASES", "session")]);
    let (mut plain, mut bound) = (gate.client(), gate.client());
    assert_eq!(plain.say("LOCK plain TOKEN t"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t SESSION"), "t");
    forgets(&mut redis);
    is_served(&gate);
    assert_eq!(holder(&redis, "bound"), "t");
    assert_eq!(holder(&redis, "plain"), Value::Nil);
    assert_eq!(plain.say("RELOCK plain t"), 0);
    was_told_nothing(&mut bound);
}

const WITHOUT_INFO: [&str; 8] = [
    "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-info",
];

/// Then that is said, and everything else works.
#[test]
fn without_the_identity_of_redis_nothing_is_written_back() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&WITHOUT_INFO);
    let gate = gate_before(&redis.url(), &[]);
    eventually("that is logged", || {
        gate.log().contains("leases are not written back")
    });
    let (mut owner, mut bound) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t SESSION"), "t");
    let mut next = waiter(&gate, "k", "next", 1);
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(next.read_reply(), "next");
    forgets(&mut redis);
    bound.is_closed_by_the_server();
    assert_eq!(next.say("UNLOCK k next"), 0);
    is_served(&gate);
}

/// A client that speaks to Redis as well ends with its connection there, and is told so of its lock;
/// which is left to its lease, since the client may go on working.
#[test]
fn a_bound_lock_of_a_client_that_redis_closes_is_left_to_its_lease() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[]);
    let mut owner = resp3(&gate);
    let id = owner.say("CLIENT ID").integer().to_string();
    assert_eq!(owner.say("LOCK k TOKEN t PX 3000 SESSION"), "t");
    let mut next = waiter(&gate, "k", "next", 1);
    let begin = Instant::now();
    assert_eq!(redis.client().call(&["CLIENT", "KILL", "ID", &id]), 1);
    owner.is_closed_by_the_server();
    assert_eq!(next.read_reply(), "next");
    let waited = begin.elapsed();
    assert!(waited > Duration::from_millis(1_900), "{waited:?}");
}

/// It has spoken to Redis, and is still there when Redis is.
#[test]
fn a_bound_lock_outlives_a_redis_that_forgets_with_the_connection_of_its_owner() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[]);
    let mut owner = resp3(&gate);
    assert_eq!(owner.say("LOCK k TOKEN t PX 5000 SESSION"), "t");
    let mut next = waiter(&gate, "k", "next", 1);
    forgets(&mut redis);
    eventually("it is written back", || holder(&redis, "k") == "t");
    assert_eq!(owner.say("PING"), "PONG");
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(next.read_reply(), "next");
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    /// Of no owner and no waiter anything is lost, however often Redis forgets.
    #[test]
    fn held_locks_and_their_waiters_outlive_a_redis_that_forgets() {
        let _machine = Machine::alone();
        let mut redis = RedisServer::start(&[]);
        let gate = Lockgate::start(&["--upstream", &redis.url()]);
        let keys: Vec<String> = (0..LOCKS).map(|n| format!("k:{n}")).collect();
        let mut owners: Vec<Client> = keys
            .iter()
            .enumerate()
            .map(|(n, key)| own(&gate, n, key))
            .collect();
        let mut waiters: Vec<Vec<Client>> = keys.iter().map(|key| queue(&gate, key)).collect();

        let measured = (0..3).map(|round| {
            redis.kill();
            redis.restart();
            let back = Instant::now();
            let mut fresh = gate.client();
            let key = format!("fresh:{round}");
            fresh.send(&["LOCK", &key, "TOKEN", "f"]);
            are_written_back(&redis, &keys);
            assert_eq!(fresh.read_reply(), "f");
            let took = back.elapsed();
            assert_eq!(fresh.call(&["UNLOCK", &key, "f"]), 1);
            took
        });
        let took = median(measured.collect());
        assert!(took < NEXT_GRANT, "{took:?}");

        for client in waiters.iter_mut().flatten().chain(&mut owners) {
            assert!(
                !client.hears_within(Duration::ZERO).unwrap(),
                "told something"
            );
        }
        for ((key, owner), queue) in keys.iter().zip(&mut owners).zip(&mut waiters) {
            assert_eq!(owner.call(&["UNLOCK", key, "owner"]), 1);
            for (place, next) in queue.iter_mut().enumerate() {
                let token = format!("w{place}");
                assert_eq!(next.read_reply(), token, "in their order");
                assert_eq!(next.call(&["UNLOCK", key, &token]), 1);
            }
        }
        for client in waiters.iter_mut().flatten().chain(&mut owners) {
            was_told_nothing(client);
        }
        assert_eq!(redis.client().say("DBSIZE"), 1, "the mark of the grace");
    }

    #[test]
    fn nothing_is_written_back_and_nobody_waits_where_it_is_off() {
        let _machine = Machine::alone();
        let mut redis = RedisServer::start(&[]);
        let settings = [
            ("LOCKGATE_WRITE_BACK_LEASES", "off"),
            ("LOCKGATE_WRITE_BACK_GRACE", "30s"),
        ];
        let gate = Lockgate::start_with(&["--upstream", &redis.url()], &settings);
        let (mut plain, mut bound) = (gate.client(), gate.client());
        assert_eq!(plain.say("LOCK plain TOKEN t"), "t");
        assert_eq!(bound.say("LOCK bound TOKEN t SESSION"), "t");
        let mut next = waiter(&gate, "plain", "next", 1);
        forgets(&mut redis);
        let ((), took) = timed(|| {
            assert_eq!(next.read_reply(), "next");
            bound.is_closed_by_the_server();
        });
        assert!(took < AT_ONCE, "{took:?}");
        assert_eq!(plain.say("UNLOCK plain t"), 0);
        assert_eq!(holder(&redis, "bound"), Value::Nil);
    }

    /// A Redis that reads an old snapshot for longer than the grace time: until it is done nobody can write
    /// back anything, and then everybody has to have the time for it.
    #[test]
    fn the_grace_time_begins_when_redis_takes_writes() {
        let _machine = Machine::alone();
        let slowly = [
            "--key-load-delay",
            "-5",
            "--loading-process-events-interval-bytes",
            "1024",
        ];
        let mut redis = RedisServer::start(&slowly);
        let fill = "for i = 1, 100000 do redis.call('SET', 'other:' .. i, 'x') end";
        assert_eq!(redis.client().call(&["EVAL", fill, "0"]), Value::Nil);
        assert_eq!(redis.client().say("SAVE"), "OK");
        let gate = gate_before(&redis.url(), &[]);
        let others = [(); 3].map(|()| gate_before(&redis.url(), &[]));
        let keys: Vec<String> = (0..20).map(|n| format!("k:{n}")).collect();
        let mut owner = gate.client();
        let mut waiters = Vec::new();
        for key in &keys {
            assert_eq!(owner.call(&["LOCK", key, "TOKEN", "owner"]), "owner");
            waiters.extend(others.iter().map(|gate| waiter(gate, key, "next", 1)));
        }
        redis.kill();
        let ((), took) = timed(|| redis.restart());
        assert!(took > Duration::from_millis(800), "{took:?}");
        are_written_back(&redis, &keys);
        for next in &mut waiters {
            assert!(!next.hears_within(Duration::ZERO).unwrap(), "two owners");
        }
    }
}
