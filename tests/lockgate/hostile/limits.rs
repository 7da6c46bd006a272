//! Each limit is reached: the client is told, or not read from; it is counted; and what is within the
//! limit is served as ever.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::{MIB, counted};
use crate::{
    scale::{growth, pour},
    support::{
        Client, Lockgate, Machine, Place, Proxy, RedisServer, SHORT_GRACE, Value, eventually,
        frame, free_address,
    },
};

/// What the gate says to this command, and that it is counted.
#[track_caller]
fn refused(client: &mut Client, command: &[&str], counter: &str, error: &str) {
    let before = counted(client, counter);
    let reply = client.call(command);
    assert!(reply.error().starts_with(error), "{reply:?}");
    assert_eq!(counted(client, counter), before + 1, "{counter}");
}

#[test]
fn the_sizes_of_a_lock_command() {
    Place::each(|place| {
        let mut client = place.client();
        let word = |bytes: usize| "x".repeat(bytes);
        for (most, (key, token)) in [
            (true, (word(1_024), word(256))),
            (false, (word(1_025), word(256))),
            (false, (word(1_024), word(257))),
        ] {
            let command = ["LOCK", &key, "TOKEN", &token];
            if most {
                assert_eq!(client.call(&command), token);
                assert_eq!(client.call(&["UNLOCK", &key, &token]), 1);
            } else if key.len() > 1_024 {
                refused(
                    &mut client,
                    &command,
                    "refused_keys",
                    "ERR lock name is longer",
                );
            } else {
                refused(
                    &mut client,
                    &command,
                    "refused_tokens",
                    "ERR TOKEN must have",
                );
            }
        }
        let mut many = vec!["LOCK", "k"];
        many.resize(17, "x");
        refused(
            &mut client,
            &many,
            "refused_lock_commands",
            "ERR syntax error",
        );
        for bytes in [16 * 1024, 100 * 1024] {
            let long = word(bytes);
            let command = ["LOCK", "k", "TOKEN", &long];
            refused(
                &mut client,
                &command,
                "refused_lock_commands",
                "ERR a lock command has",
            );
        }
        for lease in ["9", "86400001", "0"] {
            let command = ["LOCK", "k", "PX", lease];
            refused(
                &mut client,
                &command,
                "refused_leases",
                "ERR invalid expire time",
            );
        }
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
    });
}

/// However it arrives: in one piece or in many.
#[test]
fn a_long_lock_command_is_refused_however_it_is_cut() {
    Place::each(|place| {
        let mut client = place.client();
        let padded = [b"LOCK k TOKEN t", " ".repeat(16 * 1024).as_bytes(), b"\r\n"].concat();
        for size in [padded.len(), 1_000] {
            for piece in padded.chunks(size) {
                client.write_raw(piece);
                if size < padded.len() {
                    // The gate has read it before more comes.
                    place.gate.waiters("k");
                }
            }
            let reply = client.read_reply();
            assert!(
                reply.error().starts_with("ERR a lock command has"),
                "{reply:?}"
            );
        }
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
    });
}

/// It is passed over as it comes, and read to its end, so that what follows is understood.
#[test]
fn an_endless_lock_command_costs_no_memory() {
    Place::each(|place| {
        let mut client = place.client();
        assert_eq!(client.say("PING"), "PONG");
        let name = vec![b'x'; 64 * MIB as usize];
        let growth = growth(&place.gate, || {
            let reply = client.call(&[&b"LOCK"[..], &name]);
            assert!(
                reply.error().starts_with("ERR a lock command has"),
                "{reply:?}"
            );
        });
        assert!(growth < 2 * MIB, "{growth} bytes");
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
    });
}

#[test]
fn smaller_sizes_can_be_configured() {
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(
        &[],
        &[
            ("LOCKGATE_LIMITS_TOKEN_BYTES", "36"),
            ("LOCKGATE_LIMITS_LOCK_COMMAND_BYTES", "4096"),
        ],
    );
    let mut client = gate.client();
    let (token, long) = ("t".repeat(37), "k".repeat(4096));
    let command = ["LOCK", "k", "TOKEN", &token];
    refused(
        &mut client,
        &command,
        "refused_tokens",
        "ERR TOKEN must have 1 to 36",
    );
    refused(
        &mut client,
        &["LOCK", &long],
        "refused_lock_commands",
        "ERR a lock command has 4096",
    );
    assert_eq!(client.say("LOCK k").text().len(), 36);
}

#[test]
fn locks_and_waiters() {
    let _machine = Machine::shared();
    let environment = [
        ("LOCKGATE_LIMITS_LOCKS", "2"),
        ("LOCKGATE_LIMITS_WAITERS", "1"),
    ];
    let gate = Lockgate::start_with(&[], &environment);
    let (mut client, mut waiter) = (gate.client(), gate.client());
    assert_eq!(client.say("LOCK a TOKEN t"), "t");
    assert_eq!(client.say("LOCK b TOKEN t"), "t");
    refused(&mut client, &["LOCK", "c"], "refused_locks", "MAXLOCKS");
    refused(&mut client, &["TRYLOCK", "c"], "refused_locks", "MAXLOCKS");
    waiter.send(&["LOCK", "a", "TOKEN", "w"]);
    gate.awaits_waiters("a", 1);
    refused(&mut client, &["LOCK", "a"], "refused_waiters", "MAXWAITERS");
    // A holder can release its lock, whatever the limit; then there is room.
    assert_eq!(client.say("UNLOCK a t"), 1);
    assert_eq!(waiter.read_reply(), "w");
    assert_eq!(client.say("UNLOCK b t"), 1);
    assert_eq!(client.say("LOCK c TOKEN t"), "t");
}

/// That the limit is reached is only for those to know who may look at the lock, which Redis has to say.
#[test]
fn the_limit_of_locks_refuses_at_once() {
    const PATIENCE: Duration = Duration::from_millis(100);
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [
        ("LOCKGATE_LIMITS_LOCKS", "1"),
        ("LOCKGATE_UPSTREAM_TIMEOUT", "4s"),
    ];
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK a TOKEN t"), "t");
    redis.stop();
    let start = Instant::now();
    let wait = PATIENCE.as_millis().to_string();
    let reply = client.call(&["LOCK", "b", "WAIT", &wait]);
    let took = start.elapsed();
    redis.go_on();
    assert_eq!(reply, Value::Nil);
    assert!((PATIENCE..20 * PATIENCE).contains(&took), "{took:?}");
}

#[test]
fn kept_behind_a_waiting_lock() {
    for (limit, value, each) in [
        ("LOCKGATE_LIMITS_PIPELINED_COMMANDS", "10", 1),
        ("LOCKGATE_LIMITS_PIPELINED_BYTES", "32768", 1_000),
    ] {
        let _machine = Machine::shared();
        let gate = Lockgate::start_with(&[], &[(limit, value)]);
        let (mut holder, mut client) = (gate.client(), gate.client());
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        client.send(&["LOCK", "k", "TOKEN", "t"]);
        gate.awaits_waiters("k", 1);
        assert_eq!(counted(&mut holder, "held_back_behind_locks"), 0);
        let word = "x".repeat(each);
        let poured = pour(client.writer(), frame(&["ECHO", &word]).repeat(100));
        eventually("it is not read from", || {
            counted(&mut holder, "held_back_behind_locks") == 1
        });
        assert_eq!(holder.say("PING"), "PONG");
        assert_eq!(holder.say("UNLOCK k h"), 1);
        assert_eq!(client.read_reply(), "t");
        for _ in 0..100 {
            assert_eq!(client.read_reply(), word);
        }
        poured.join().unwrap();
    }
}

#[test]
fn bytes_on_their_way() {
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut other) = (place.client(), place.client());
    let value = "x".repeat(1024 * 1024);
    assert_eq!(client.call(&["SET", "k", &value]), "OK");
    let before = counted(&mut other, "held_back_relays");
    let poured = pour(client.writer(), b"GET k\r\n".repeat(30));
    eventually("Redis is not read from", || {
        counted(&mut other, "held_back_relays") > before
    });
    assert_eq!(other.say("PING"), "PONG");
    for _ in 0..30 {
        assert_eq!(client.read_reply().text().len(), value.len());
    }
    poured.join().unwrap();
}

#[test]
fn released_tokens() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [
        &SHORT_GRACE[..],
        &[("LOCKGATE_LIMITS_RELEASED_TOKENS", "2")],
    ]
    .concat();
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut client = gate.client();
    for i in 0..5 {
        let token = format!("t{i}");
        assert_eq!(client.call(&["LOCK", "k", "TOKEN", &token]), token);
        assert_eq!(client.call(&["UNLOCK", "k", &token]), 1);
    }
    assert_eq!(counted(&mut client, "forgotten_released_tokens"), 3);
}

#[test]
fn commands_of_a_transaction_that_change_the_connection() {
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut other) = (place.client(), place.client());
    // As many may be on their way, and as many be queued.
    let script = ["MULTI\r\n", &"SELECT 1\r\n".repeat(2 * 64 * 1024 + 2)].concat();
    let poured = pour(client.writer(), script.into_bytes());
    client.is_closed_by_the_server();
    assert_eq!(counted(&mut other, "refused_transactions"), 1);
    poured.join().unwrap();
}

#[test]
fn time_to_connect_and_to_answer() {
    let _machine = Machine::shared();
    let nobody = format!("redis://{}", free_address());
    let gate = Lockgate::start(&["--upstream", &nobody]);
    let reply = gate.client().say("PING");
    assert!(reply.error().starts_with("UPSTREAM"), "{reply:?}");

    let redis = RedisServer::start(&[]);
    let environment = [&SHORT_GRACE[..], &[("LOCKGATE_UPSTREAM_TIMEOUT", "200ms")]].concat();
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    redis.stop();
    let reply = client.say("UNLOCK k t");
    assert!(reply.error().starts_with("UPSTREAM"), "{reply:?}");
    redis.go_on();
    assert_eq!(counted(&mut client, "unanswered_questions"), 1);
}

#[test]
fn a_lease_shorter_than_the_way_to_redis() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let gate = Lockgate::start_with(&["--upstream", &proxy.url()], &SHORT_GRACE);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN first"), "first");
    assert_eq!(client.say("UNLOCK k first"), 1);
    proxy.delay(Duration::from_millis(100));
    let reply = client.say("LOCK k TOKEN t PX 50");
    assert!(reply.error().starts_with("EXPIRED"), "{reply:?}");
    proxy.delay(Duration::ZERO);
    assert_eq!(counted(&mut client, "expired_grants"), 1);
    assert_eq!(client.say("LOCK k TOKEN u WAIT 5000"), "u");
}

#[test]
fn no_way_to_redis() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &SHORT_GRACE);
    redis.kill();
    let mut client = gate.client();
    let reply = client.say("PING");
    assert!(reply.error().starts_with("UPSTREAM"), "{reply:?}");
    client.is_closed_by_the_server();
    redis.restart();
    assert_eq!(counted(&mut gate.client(), "unreachable_upstream"), 1);
}

/// A client beyond the limit waits for admission, and is served once there is room.
#[test]
fn open_files() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    let (mut other, pid) = (gate.client(), Pid::from_raw(gate.pid() as i32));
    assert_eq!(other.say("PING"), "PONG");
    let files = std::fs::read_dir(format!("/proc/{}/fd", gate.pid())).unwrap();
    let as_now = Rlimit {
        current: Some(files.count() as u64),
        ..getrlimit(Resource::Nofile)
    };
    let before = prlimit(pid, Resource::Nofile, as_now).unwrap();
    let mut client = gate.client();
    client.send(&["PING"]);
    eventually("the system has none for it", || {
        counted(&mut other, "failed_accepts") > 0
    });
    eventually("the log says so", || {
        gate.log().contains("cannot accept a client")
    });
    prlimit(pid, Resource::Nofile, before).unwrap();
    assert_eq!(client.read_reply(), "PONG");
}

#[test]
fn bytes_that_are_no_commands() {
    Place::each(|place| {
        let (mut client, mut other) = (place.client(), place.client());
        client.write_raw(b"*1\r\nPING\r\n");
        let reply = client.read_reply();
        assert_eq!(reply.error(), "ERR Protocol error: expected '$', got 'P'");
        client.is_closed_by_the_server();
        assert_eq!(counted(&mut other, "protocol_errors"), 1);
    });
}

/// A list of names is cut where it would be longer than what may be on its way to a client.
#[test]
fn the_length_of_a_list() {
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[("LOCKGATE_LIMITS_RELAY_BYTES", "32768")]);
    let mut client = gate.client();
    for i in 0..100 {
        let name = format!("{i:03}{}", "n".repeat(997));
        assert_eq!(client.call(&["LOCK", &name, "TOKEN", "t"]), "t");
    }
    let names = client.say("LOCKS COUNT 1000000");
    assert_eq!(names.items().len(), 32_768 / 1_010);
    assert!(
        names.items()[0].text().starts_with("000"),
        "the first of all"
    );
    let many = ["COMMAND", "DOCS"]
        .into_iter()
        .chain(["lock"; 65])
        .collect::<Vec<_>>();
    assert!(
        client
            .call(&many)
            .error()
            .starts_with("ERR at most 64 names")
    );
    assert_eq!(client.call(&many[..66]).items().len(), 128);
}
