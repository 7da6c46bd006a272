//! The connections to Redis that lockgate shares among the clients of a user, and its own account.

use std::time::Duration;

use super::House;
use crate::support::{
    Client, Lockgate, Machine, RedisServer, SHORT_GRACE, Value, counted, eventually,
};

#[test]
fn the_clients_of_a_user_share_one_connection() {
    let house = House::new();
    let mut clients: Vec<Client> = (0..20).map(|_| house.client("ben", 2)).collect();
    for client in &mut clients {
        assert_eq!(client.say("LOCK b:1 TOKEN t"), "t");
    }
    assert_eq!(house.connections_of("ben"), clients.len() + 1);
}

#[test]
fn shared_connections_are_bounded() {
    let house = House::with(&[], &[("LOCKGATE_LIMITS_SHARED_CONNECTIONS", "3")]);
    // One is the anonymous user's, whom lockgate connects as when it starts; one is ann's.
    let mut ann = house.client("ann", 2);
    assert_eq!(ann.say("LOCK a:1 TOKEN t"), "t");
    let mut ben = house.client("ben", 2);
    assert_eq!(ben.say("LOCK b:1 TOKEN t"), "t");
    for client in [&mut ann, &mut ben] {
        assert_eq!(client.say("SELECT 1"), "OK");
        for command in [
            "LOCK s:1",
            "TRYLOCK s:1",
            "UNLOCK s:1 t",
            "LOCKINFO s:1",
            "LOCKS",
        ] {
            let reply = client.say(command);
            assert!(
                reply.error().contains("limits.shared_connections"),
                "{command}: {reply:?}"
            );
        }
        assert_eq!(client.say("SET s:1 x"), "OK", "that is served");
        assert_eq!(client.say("SELECT 0"), "OK");
    }
    assert_eq!(counted(&mut ann, "refused_shared_connections"), 10);
    assert_eq!(ann.say("UNLOCK a:1 t"), 1);
    assert_eq!(ben.say("UNLOCK b:1 t"), 1);
}

#[test]
fn a_connection_that_nobody_uses_is_closed_and_makes_room() {
    let settings = [
        ("LOCKGATE_UPSTREAM_IDLE_TIMEOUT", "200ms"),
        ("LOCKGATE_LIMITS_SHARED_CONNECTIONS", "2"),
    ];
    let house = House::with(&[], &settings);
    let mut ann = house.client("ann", 2);
    for client in [&mut ann, &mut house.client("ben", 2)] {
        eventually("there is room", || client.say("TRYLOCK s:1 TOKEN t") == "t");
        assert_eq!(client.say("UNLOCK s:1 t"), 1);
    }
    eventually("only the client's own is left", || {
        house.connections_of("ann") == 1
    });
    assert_eq!(ann.say("LOCK a:1 TOKEN t"), "t");
}

/// Of what a lock needs nothing is closed, however long nobody asks anything.
#[test]
fn a_connection_that_a_lock_needs_stays() {
    let house = House::with(&[], &[("LOCKGATE_UPSTREAM_IDLE_TIMEOUT", "50ms")]);
    let mut owner = house.client("ann", 2);
    assert_eq!(owner.say("LOCK a:1 TOKEN t"), "t");
    let mut direct = house.redis.client();
    assert_eq!(direct.say("SET b:1 direct PX 60000"), "OK");
    let mut waiter = house.client("ben", 2);
    waiter.send(&["LOCK", "b:1", "TOKEN", "w"]);
    house.awaits_waiters("ben", "b:1", 1);
    // One its lease may have to be written back on; on the other one Redis tells of a change.
    let of_both = || [house.shared_by("ann"), house.shared_by("ben")];
    let before = of_both();
    assert!(before.iter().all(|shared| shared.len() == 1), "{before:?}");
    waiter.hears_nothing_for(Duration::from_millis(400));
    assert_eq!(of_both(), before);
    assert_eq!(direct.say("DEL b:1"), 1);
    assert_eq!(waiter.read_reply(), "w");
    assert_eq!(owner.say("UNLOCK a:1 t"), 1);
    eventually("it is closed then", || house.connections_of("ann") == 1);
}

// ── lockgate's own account ───────────────────────────────────────────────────────────────────

/// Users that may not ask `INFO`, and a Redis that has them again after a restart.
fn redis_of_users_without_info() -> RedisServer {
    let users = "--user ann on >pw ~a:* &* +@all -info -client|kill \
                 --user gate on >own +info +client|kill +client|info \
                 --user default off";
    let users: Vec<&str> = users.split_ascii_whitespace().collect();
    RedisServer::start(&users)
}

fn ann(gate: &Lockgate) -> Client {
    let mut ann = gate.client();
    assert_eq!(ann.say("AUTH ann pw"), "OK");
    ann
}

/// Whether a lease outlives a Redis that starts again with nothing.
fn is_written_back(redis: &mut RedisServer, gate: &Lockgate) -> bool {
    let mut owner = ann(gate);
    assert_eq!(owner.say("LOCK a:1 TOKEN t PX 60000"), "t");
    redis.restart();
    let mut direct = redis.client();
    assert_eq!(direct.say("AUTH ann pw"), "OK");
    let mut other = ann(gate);
    eventually("locks are granted again", || {
        other.say("TRYLOCK a:2 TOKEN o") == "o"
    });
    direct.say("GET a:1") == "t"
}

#[test]
fn lockgate_uses_its_own_account_for_what_users_may_not_run() {
    let _machine = Machine::shared();
    let mut redis = redis_of_users_without_info();
    let flags = ["--upstream", &redis.url()];
    let own = [
        ("LOCKGATE_UPSTREAM_USER", "gate"),
        ("LOCKGATE_UPSTREAM_PASSWORD", "own"),
    ];
    let gate = Lockgate::start_with(&flags, &[&SHORT_GRACE[..], &own].concat());
    assert!(is_written_back(&mut redis, &gate));
    assert!(
        !gate.log().contains("does not say who it is"),
        "{}",
        gate.log()
    );
    // No client has anything of its rights.
    let mut ann = ann(&gate);
    assert!(ann.say("INFO").error().starts_with("NOPERM"));
    assert!(ann.say("LOCK b:1").error().starts_with("NOPERM"));
    assert!(gate.client().say("LOCK a:1").error().starts_with("NOAUTH"));
}

#[test]
fn without_info_rights_nothing_is_written_back_and_the_log_says_so() {
    let _machine = Machine::shared();
    let mut redis = redis_of_users_without_info();
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &SHORT_GRACE);
    assert!(!is_written_back(&mut redis, &gate));
    logs(&gate, "does not say who it is");
    logs(&gate, "no permissions to run the 'info' command");
}

#[track_caller]
fn logs(gate: &Lockgate, words: &str) {
    eventually(words, || gate.log().contains(words));
}

#[test]
fn an_account_that_redis_refuses_is_logged_and_keeps_nobody_out() {
    let _machine = Machine::shared();
    let redis = redis_of_users_without_info();
    let flags = ["--upstream", &redis.url()];
    let own = [
        ("LOCKGATE_UPSTREAM_USER", "gate"),
        ("LOCKGATE_UPSTREAM_PASSWORD", "hunter2"),
    ];
    let gate = Lockgate::start_with(&flags, &[&SHORT_GRACE[..], &own].concat());
    assert_eq!(ann(&gate).say("LOCK a:1 TOKEN t"), "t");
    logs(&gate, "does not let upstream.user in");
    logs(&gate, "WRONGPASS");
    assert!(!gate.log().contains("hunter2"), "{}", gate.log());
}

/// The connection is the gate's own for a moment, and then nobody's again.
#[test]
fn with_an_account_of_its_own_nobody_has_no_more_rights_than_nobody() {
    let _machine = Machine::shared();
    let users = "--user gate on >own ~* &* +@all --user default on nopass resetkeys ~d:* +@all";
    let users: Vec<&str> = users.split_ascii_whitespace().collect();
    let redis = RedisServer::start(&users);
    let url = redis.url().replace("redis://", "redis://gate:own@");
    let gate = Lockgate::start_with(&["--upstream", &url], &SHORT_GRACE);
    let mut nobody = gate.client();
    assert_eq!(nobody.say("LOCK d:1 TOKEN t"), "t");
    super::may_not(&mut nobody, "a:1", "t", super::NO_KEY);
    // And Redis tells it of changes.
    let mut waiter = gate.client();
    waiter.send(&["LOCK", "d:1", "TOKEN", "w"]);
    gate.awaits_waiters("d:1", 1);
    assert_eq!(nobody.say("DEL d:1"), 1);
    assert_eq!(waiter.read_reply(), "w");
    assert_eq!(nobody.say("UNLOCK d:1 t"), 0);
    assert_eq!(nobody.say("GET d:1"), Value::Bulk("w".into()));
}
