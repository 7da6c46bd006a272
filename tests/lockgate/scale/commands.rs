//! However many commands come at once, and however slowly their replies are read, a client costs a
//! bounded buffer, and gets what it asked for.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{MIB, MOST_GROWTH_BYTES, growth, pour};
use crate::support::{Client, Lockgate, Machine, Place, RedisServer, eventually, frame, report};

const MILLION: usize = 1_000_000;

#[test]
fn a_million_commands_in_one_write_are_answered_from_a_bounded_buffer() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    assert_eq!(client.say("PING"), "PONG");
    let start = Instant::now();
    let growth = growth(&place.gate, || {
        let poured = pour(client.writer(), frame(&["INCR", "n"]).repeat(MILLION));
        for i in 1..=MILLION {
            assert_eq!(client.read_reply(), i as i64);
        }
        poured.join().unwrap();
    });
    report(&format!(
        "a million commands in one write: answered in {:.1} s, lockgate needs {} KiB more",
        start.elapsed().as_secs_f64(),
        growth / 1024
    ));
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
}

/// Commands that change the connection are remembered one by one until they are answered.
#[test]
fn so_are_commands_that_change_the_connection() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    assert_eq!(client.say("PING"), "PONG");
    let growth = growth(&place.gate, || {
        let script = b"SELECT 1\r\nPING\r\n\r\nSELECT 2\r\nPING\r\n".repeat(MILLION / 20);
        let poured = pour(client.writer(), script);
        for _ in 0..MILLION / 10 {
            assert_eq!(client.read_reply(), "OK");
            assert_eq!(client.read_reply(), "PONG");
        }
        poured.join().unwrap();
    });
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    let mut direct = place.redis().client();
    assert_eq!(direct.say("SELECT 2"), "OK");
    assert_eq!(direct.say("GET k"), "t", "in the database selected last");
}

/// It stops being read for; Redis then does with it what it is configured to.
#[test]
fn a_client_that_never_reads_costs_a_bounded_buffer() {
    const VALUE_BYTES: usize = 16 * 1024;
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--client-output-buffer-limit", "normal 64mb 0 0"]);
    let gate = Lockgate::in_front_of(&redis);
    let (mut client, mut other, mut direct) = (gate.client(), gate.client(), redis.client());
    assert_eq!(other.call(&["SET", "big", &"x".repeat(VALUE_BYTES)]), "OK");
    assert_eq!(client.say("CLIENT SETNAME never-reads"), "OK");
    let mut is_there = || direct.say("CLIENT LIST").text().contains("never-reads");
    assert!(is_there());
    let growth = growth(&gate, || {
        let commands = frame(&["GET", "big"]).repeat(100_000);
        let poured = pour(client.writer(), commands);
        eventually("Redis closes the connection", || !is_there());
        assert_eq!(other.say("PING"), "PONG", "nobody else is held up");
        poured.join().unwrap();
    });
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
    // At last it reads the first replies, and then the end.
    assert_eq!(client.read_reply().text().len(), VALUE_BYTES);
    client.is_closed_by_the_server();
}

/// Without a limit in Redis it is served whenever it reads, to the last reply.
#[test]
fn a_client_that_reads_late_gets_everything() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    let value = "x".repeat(MIB as usize);
    assert_eq!(client.call(&["SET", "big", &value]), "OK");
    let growth = growth(&place.gate, || {
        let poured = pour(client.writer(), frame(&["GET", "big"]).repeat(200));
        eventually("most of it waits in Redis", || {
            place.redis().output_bytes() > 150 * MIB
        });
        for _ in 0..200 {
            assert_eq!(client.read_reply(), value.as_str());
        }
        poured.join().unwrap();
    });
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
}

#[test]
fn a_million_commands_behind_a_waiting_lock_cost_a_bounded_buffer() {
    Place::each(|place| {
        let (mut holder, mut client) = (place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        assert_eq!(client.say("PING"), "PONG");
        let growth = growth(&place.gate, || {
            let script = [
                frame(&["LOCK", "k", "TOKEN", "t"]),
                b"PING\r\n".repeat(MILLION / 4),
            ];
            let poured = pour(client.writer(), script.concat());
            place.gate.awaits_waiters("k", 1);
            assert_eq!(holder.say("UNLOCK k h"), 1);
            assert_eq!(client.read_reply(), "t");
            for _ in 0..MILLION / 4 {
                assert_eq!(client.read_reply(), "PONG");
            }
            poured.join().unwrap();
        });
        assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
    });
}

/// Such a transaction can be told no end of, and nothing but its end would make it shorter.
#[test]
fn a_transaction_that_queues_too_much_ends_with_an_error_not_in_silence() {
    const PAIRS: usize = 70_000;
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    assert_eq!(client.say("MULTI"), "OK");
    let growth = growth(&place.gate, || {
        let script = b"PING\r\nSELECT 1\r\n".repeat(PAIRS);
        let poured = pour(client.writer(), script);
        let mut reply = client.read_reply();
        while reply == "QUEUED" {
            reply = client.read_reply();
        }
        assert!(reply.error().contains("transaction"), "{reply:?}");
        client.is_closed_by_the_server();
        poured.join().unwrap();
    });
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
}

/// Redis closes for `QUIT` when everything before it was read, however long that takes.
#[test]
fn a_client_that_quits_and_reads_slowly_gets_every_reply() {
    const VALUES: usize = 16;
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    let value = "x".repeat(4 * MIB as usize);
    assert_eq!(client.call(&["SET", "big", &value]), "OK");
    client.write_raw(&frame(&["GET", "big"]).repeat(VALUES));
    client.send(&["QUIT"]);
    for _ in 0..VALUES {
        assert_eq!(read_slowly(&mut client).len(), value.len());
    }
    assert_eq!(client.read_reply(), "OK");
    client.is_closed_by_the_server();
}

/// All pauses together are longer than lockgate waits for a client that takes nothing; and when that time
/// is over, more is left than the system keeps in its own buffers.
fn read_slowly(client: &mut Client) -> String {
    thread::sleep(Duration::from_millis(800));
    client.read_reply().text()
}

/// With the smallest buffers, each of them full more than once: whoever is ready first must wake the rest.
#[test]
fn when_redis_and_the_client_pause_in_turn_everything_comes_after_all() {
    const COMMANDS: usize = 1_000;
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [("LOCKGATE_LIMITS_RELAY_BYTES", "32768")];
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut client = gate.client();
    assert_eq!(client.say("PING"), "PONG");
    let text = |i: usize| format!("{i:060000}");
    let growth = growth(&gate, || {
        redis.stop();
        let commands = (0..COMMANDS).flat_map(|i| frame(&["ECHO", &text(i)]));
        let poured = pour(client.writer(), commands.collect());
        // Both the way to Redis and lockgate are full.
        client.hears_nothing_for(Duration::from_millis(300));
        redis.go_on();
        // Then the way to the client is, which does not read yet.
        client.hears_something();
        thread::sleep(Duration::from_millis(300));
        redis.stop();
        (0..5).for_each(|i| assert_eq!(client.read_reply(), text(i)));
        redis.go_on();
        (5..COMMANDS).for_each(|i| assert_eq!(client.read_reply(), text(i)));
        poured.join().unwrap();
    });
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
}
