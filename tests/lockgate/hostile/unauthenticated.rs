//! Before a required authentication: Redis's own limits hold behind the gate, and the gate keeps little.

use super::{KIB, MIB, WITH_NEW_LOCKS, Witness, counted, cut, hears_little, said_until_closed};
use crate::{
    scale::{growth, pour},
    support::{Client, Lockgate, Machine, RedisServer, SHORT_GRACE, eventually, frame, words},
};

/// What a client costs that did not authenticate, whatever it does.
const EACH_BYTES: u64 = MIB;

fn place() -> (RedisServer, Lockgate) {
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let upstream = format!("redis://:secret@{}", redis.address());
    let gate = Lockgate::start_with(&["--upstream", &upstream], &SHORT_GRACE);
    (redis, gate)
}

fn known(gate: &Lockgate) -> Client {
    let mut client = gate.client();
    assert_eq!(client.say("AUTH secret"), "OK");
    client
}

/// One command that is too much for Redis, and one that is not, in any order and form.
fn too_much() -> [Vec<u8>; 4] {
    let long = "x".repeat(16 * 1024 + 1);
    [
        frame(&["SET"; 11]),
        frame(&["AUTH", &long]),
        frame(&["GET", &long]),
        [frame(&["ECHO", &long[1..]]), frame(&["HELLO"; 11])].concat(),
    ]
}

/// Somebody says the same, and is closed, at the gate and at Redis.
fn closes_like(redis: &RedisServer, gate: &Lockgate) {
    for request in too_much() {
        let said = said_until_closed(gate.client(), &request);
        let expected = said_until_closed(redis.client(), &request);
        assert_eq!(
            said.escape_ascii().to_string(),
            expected.escape_ascii().to_string()
        );
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("-ERR Protocol error: unauthenticated"));
    }
}

#[test]
fn of_a_gate_with_a_password_of_its_own_they_are_the_same() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let own = &[("LOCKGATE_AUTH_PASSWORD", "open")];
    let url = format!("redis://:secret@{}", redis.address());
    for gate in [
        Lockgate::start_with(&[], own),
        Lockgate::start_with(&["--upstream", &url], own),
    ] {
        closes_like(&redis, &gate);
        // An authenticated client may send more.
        let mut client = gate.client();
        assert_eq!(client.say("AUTH open"), "OK");
        client.call(&["COMMAND"; 11]);
        assert_eq!(client.say("PING"), "PONG");
    }
}

#[test]
fn ten_arguments_of_sixteen_kilobytes_are_the_most() {
    let _machine = Machine::shared();
    let (redis, gate) = place();
    closes_like(&redis, &gate);
    // Commands that the gate itself reads have limits of their own, for every client.
    let mut client = gate.client();
    let mut many = vec!["LOCK", "k"];
    many.resize(16, "x");
    assert!(client.call(&many).error().starts_with("NOAUTH"));
    let long = "x".repeat(16 * 1024);
    assert!(
        client
            .call(&["LOCK", &long])
            .error()
            .starts_with("ERR a lock command has")
    );
    assert!(client.say("LOCKS").error().starts_with("NOAUTH"));
}

#[test]
fn unread_replies_cost_a_bounded_buffer() {
    const CLIENTS: usize = 2;
    let _machine = Machine::shared();
    let (_redis, gate) = place();
    let mut observer = known(&gate);
    eventually("the grace time is over", || {
        observer.say("LOCK first TOKEN f WAIT 5000") == "f"
    });
    assert_eq!(observer.say("UNLOCK first f"), 1);
    let witness = Witness::of(known(&gate), WITH_NEW_LOCKS);
    let questions = ["SELECT 1", "GET k"];
    let clients = gate.clients(CLIENTS);
    let growth = growth(&gate, || {
        let pouring: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(i, client)| {
                hears_little(&client.writer());
                let question = frame(&words(questions[i % questions.len()]));
                pour(client.writer(), question.repeat(300_000))
            })
            .collect();
        // Redis itself closes them where it owes them much at a time (since 7.0.15's CVE-2025-21605), or, where
        // it does not, they are not read from.
        eventually("they are not read from", || {
            let closed = pouring.iter().filter(|pour| pour.is_finished()).count();
            closed as u64 + counted(&mut observer, "held_back_relays") >= CLIENTS as u64
        });
        clients.iter().for_each(|client| cut(&client.writer()));
        pouring.into_iter().for_each(|pour| pour.join().unwrap());
    });
    assert!(
        growth < CLIENTS as u64 * EACH_BYTES + 16 * MIB,
        "{} KiB each",
        growth / CLIENTS as u64 / KIB
    );
    witness.was_served();
}
