//! Pipelines that a client writes whole before it reads anything, as redis-py, Jedis and hiredis do: every
//! reply comes, in its order, however many are unread, and lockgate's memory stays within its bounds.

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::{
    hostile::hears_little,
    scale::{growth, pour},
    support::{
        Client, Lockgate, Machine, Place, RedisServer, SHORT_GRACE, Value, counted, eventually,
        frame, free_address, report, words,
    },
};

const MIB: u64 = 1024 * 1024;

/// What lockgate needs for a client whatever its pipeline is, at most, beside the replies that it keeps.
const MOST_GROWTH_BYTES: u64 = 8 * MIB;

/// How long lockgate waits for a client that takes nothing, and has to.
const STARVED: Duration = Duration::from_secs(30);

/// One command, sent several times, and the reply to each; `None` stands for any reply but an error.
pub(crate) struct Part {
    times: usize,
    command: Vec<u8>,
    reply: Option<Value>,
}

fn part(times: usize, command: &[&str], reply: Option<Value>) -> Part {
    let command = frame(command);
    Part {
        times,
        command,
        reply,
    }
}

fn ok() -> Option<Value> {
    Some(Value::Simple("OK".to_owned()))
}

fn queued() -> Option<Value> {
    Some(Value::Simple("QUEUED".to_owned()))
}

fn pong() -> Option<Value> {
    Some(Value::Simple("PONG".to_owned()))
}

fn bulk(text: &str) -> Option<Value> {
    Some(Value::Bulk(text.as_bytes().to_vec()))
}

fn number(number: i64) -> Option<Value> {
    Some(Value::Integer(number))
}

/// Commands that run only when everything before them is answered, and two whose replies lockgate changes.
fn middle() -> Vec<Part> {
    vec![
        part(1, &["LOCK", "pipeline", "TOKEN", "t"], bulk("t")),
        part(1, &["GET", "pipeline"], bulk("t")),
        part(1, &["INFO"], None),
        part(1, &["COMMAND"], None),
        part(1, &["UNLOCK", "pipeline", "t"], number(1)),
    ]
}

/// Forty thousand commands of 1 KB, half of them with replies of 1 KB.
pub(crate) fn values() -> Vec<Part> {
    let value = "v".repeat(1024);
    let pairs = (0..20_000).flat_map(|_| {
        [
            part(1, &["SET", "value", &value], ok()),
            part(1, &["GET", "value"], bulk(&value)),
        ]
    });
    pairs.collect()
}

/// A pipeline with these commands in its middle.
pub(crate) fn around(mut pipeline: Vec<Part>, middle: Vec<Part>) -> Vec<Part> {
    let half = pipeline.len() / 2;
    pipeline.splice(half..half, middle);
    pipeline
}

/// The values with lock commands, `INFO` and `COMMAND` in their middle.
pub(crate) fn values_around_all() -> Vec<Part> {
    around(values(), middle())
}

/// The system keeps little of what this client does not read: some have room for 32 MiB for each connection.
pub(crate) fn narrow(client: Client) -> Client {
    set_socket_recv_buffer_size(client.writer(), 128 * 1024).unwrap();
    client
}

/// Writes the pipeline, and only then reads the replies.
#[track_caller]
pub(crate) fn is_answered(client: &mut Client, pipeline: &[Part]) {
    let bytes: Vec<u8> = pipeline
        .iter()
        .flat_map(|part| part.command.repeat(part.times))
        .collect();
    client.write_raw(&bytes);
    for (at, part) in pipeline.iter().enumerate() {
        for _ in 0..part.times {
            let reply = client.read_reply();
            match &part.reply {
                Some(expected) => assert_eq!(reply, *expected, "part {at}"),
                None => assert!(!matches!(reply, Value::Error(_)), "part {at}: {reply:?}"),
            }
        }
    }
}

#[track_caller]
fn is_answered_within(place: &Place, what: &str, pipeline: &[Part], most_bytes: u64) {
    let mut client = narrow(place.client());
    assert_eq!(client.say("PING"), "PONG");
    let start = Instant::now();
    let growth = growth(&place.gate, || is_answered(&mut client, pipeline));
    report(&format!(
        "{what}, written whole: answered in {:.2} s, lockgate needs {} KiB more",
        start.elapsed().as_secs_f64(),
        growth / 1024
    ));
    assert!(growth < most_bytes, "{what}: {growth} bytes more");
    assert_eq!(client.say("PING"), "PONG");
}

#[test]
fn forty_thousand_commands_of_a_kilobyte() {
    const REPLY_BYTES: u64 = 20_000 * 1_040;
    let place = Place::with_redis(Machine::shared());
    is_answered_within(&place, "40,000 × 1 KB", &values(), MOST_GROWTH_BYTES);
    is_answered_within(
        &place,
        "40,000 × 1 KB around LOCK, INFO, COMMAND and UNLOCK",
        &values_around_all(),
        MOST_GROWTH_BYTES + 2 * REPLY_BYTES,
    );
}

#[test]
fn two_million_small_commands() {
    const HALF: usize = 1_000_000;
    let place = Place::with_redis(Machine::shared());
    let small = || {
        vec![
            part(HALF, &["SET", "small", "1"], ok()),
            part(HALF, &["INCR", "other"], None),
        ]
    };
    is_answered_within(&place, "2,000,000 commands", &small(), MOST_GROWTH_BYTES);
    is_answered_within(
        &place,
        "2,000,000 commands around LOCK, INFO, COMMAND and UNLOCK",
        &around(small(), middle()),
        4 * MOST_GROWTH_BYTES,
    );
}

/// Each of these alone used to hang: it has to wait for the replies before it.
#[test]
fn a_command_that_waits_for_the_replies_before_it() {
    let place = Place::with_redis(Machine::shared());
    let value = "v".repeat(16 * 1024);
    for command in [
        "LOCK k TOKEN t",
        "UNLOCK k t",
        "LOCKINFO k",
        "LOCKS",
        "UNLOCK",
        "INFO",
        "COMMAND",
        "COMMAND DOCS lock",
        "CLIENT REPLY ON",
        "SELECT 0",
        "RESET",
    ] {
        let mut client = narrow(place.client());
        let values = frame(&["ECHO", &value]).repeat(1_000);
        client.write_raw(&[values.clone(), frame(&words(command)), values].concat());
        for _ in 0..1_000 {
            assert_eq!(client.read_reply(), value, "before {command}");
        }
        client.read_reply();
        for _ in 0..1_000 {
            assert_eq!(client.read_reply(), value, "behind {command}");
        }
    }
}

#[test]
fn in_resp3_with_messages_of_a_subscription_in_between() {
    const MESSAGES: usize = 1_000;
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut publisher) = (narrow(place.client()), place.client());
    assert_eq!(*client.say("HELLO 3").field("proto"), 3);
    client.say("SUBSCRIBE news");
    let pipeline = values_around_all();
    let bytes: Vec<u8> = pipeline
        .iter()
        .flat_map(|part| part.command.repeat(part.times))
        .collect();
    let (half, rest) = bytes.split_at(bytes.len() / 3);
    client.write_raw(half);
    let message = "m".repeat(1024);
    for _ in 0..MESSAGES {
        assert_eq!(publisher.call(&["PUBLISH", "news", &message]), 1);
    }
    client.write_raw(rest);
    let (mut messages, mut replies) = (0, 0);
    let expected: usize = pipeline.iter().map(|part| part.times).sum();
    while replies < expected {
        match client.read_reply() {
            Value::Push(_) => messages += 1,
            Value::Error(error) => panic!("{error}"),
            _ => replies += 1,
        }
    }
    assert_eq!(messages, MESSAGES);
}

#[test]
fn replies_that_are_switched_off() {
    let place = Place::with_redis(Machine::shared());
    let mut client = narrow(place.client());
    let value = "v".repeat(1024);
    assert_eq!(client.call(&["SET", "value", &value]), "OK");
    let silent: Vec<u8> = [
        frame(&["CLIENT", "REPLY", "OFF"]),
        frame(&["GET", "value"]).repeat(20_000),
        frame(&["LOCK", "k", "TOKEN", "t"]),
        frame(&["GET", "value"]).repeat(20_000),
        frame(&["CLIENT", "REPLY", "ON"]),
        frame(&["CLIENT", "REPLY", "SKIP"]),
        frame(&["GET", "value"]),
    ]
    .concat();
    client.write_raw(&silent);
    assert_eq!(client.read_reply(), "OK");
    let rest = [
        part(20_000, &["ECHO", &value], bulk(&value)),
        part(1, &["CLIENT", "REPLY", "ON"], ok()),
        part(1, &["UNLOCK", "k", "t"], number(1)),
        part(20_000, &["ECHO", &value], bulk(&value)),
    ];
    is_answered(&mut client, &rest);
}

#[test]
fn a_transaction_of_a_million_commands_in_which_a_lock_command_is_unknown() {
    let place = Place::with_redis(Machine::shared());
    let mut client = narrow(place.client());
    let transaction = [
        part(1, &["MULTI"], ok()),
        part(500_000, &["SET", "k", "1"], queued()),
        part(500_000, &["INCR", "k"], queued()),
        part(1, &["EXEC"], None),
        part(1, &["MULTI"], ok()),
        part(100_000, &["INCR", "k"], queued()),
    ];
    is_answered(&mut client, &transaction);
    client.write_raw(
        &[
            frame(&["UNLOCK", "k", "t"]),
            frame(&["INCR", "k"]).repeat(100_000),
            frame(&["EXEC"]),
        ]
        .concat(),
    );
    assert!(client.read_reply().error().starts_with("ERR unknown"));
    for _ in 0..100_000 {
        assert_eq!(client.read_reply(), "QUEUED");
    }
    assert!(client.read_reply().error().starts_with("EXECABORT"));
}

/// The kinds of replies change with each command, so that no two of them are remembered as one.
#[test]
fn commands_of_alternating_kinds() {
    const PAIRS: usize = 80_000;
    let place = Place::with_redis(Machine::shared());
    let mut client = narrow(place.client());
    let pairs = |reply: fn() -> Option<Value>, published: fn() -> Option<Value>| {
        (0..PAIRS).flat_map(move |_| {
            [
                part(1, &["SET", "k", "1"], reply()),
                part(1, &["PUBLISH", "news", "x"], published()),
            ]
        })
    };
    let nobody = || number(0);
    is_answered(&mut client, &pairs(ok, nobody).collect::<Vec<_>>());
    let mut transaction = vec![part(1, &["MULTI"], ok())];
    transaction.extend(pairs(queued, queued));
    transaction.push(part(1, &["EXEC"], None));
    is_answered(&mut client, &transaction);
    let groups = (0..PAIRS / 2).flat_map(|_| {
        [
            part(1, &["MULTI"], ok()),
            part(1, &["SELECT", "1"], queued()),
            part(1, &["SET", "k", "1"], queued()),
            part(1, &["EXEC"], None),
        ]
    });
    is_answered(&mut client, &groups.collect::<Vec<_>>());
}

#[test]
fn hundreds_of_replies_that_lockgate_adds_to() {
    let place = Place::with_redis(Machine::shared());
    let mut client = narrow(place.client());
    let text = "x".repeat(1024);
    let pipeline = [
        part(200, &["COMMAND"], None),
        part(10_000, &["ECHO", &text], bulk(&text)),
        part(5_000, &["INFO"], None),
        part(10_000, &["ECHO", &text], bulk(&text)),
    ];
    is_answered(&mut client, &pipeline);
}

#[test]
fn fifty_thousand_locks_one_after_the_other() {
    Place::each(|place| {
        let (mut client, token) = (narrow(place.client()), "t".repeat(256));
        let pairs = (0..50_000).flat_map(|i| {
            let key = format!("lock-{}", i % 100);
            [
                part(1, &["LOCK", &key, "TOKEN", &token], bulk(&token)),
                part(1, &["UNLOCK", &key, &token], number(1)),
            ]
        });
        is_answered(&mut client, &pairs.collect::<Vec<_>>());
        assert_eq!(client.say("LOCKS"), Value::Array(Vec::new()));
    });
}

#[test]
fn without_a_redis_too() {
    let place = Place::embedded(Machine::shared());
    let mut client = narrow(place.client());
    let text = "x".repeat(1024);
    let pipeline = [
        part(20_000, &["ECHO", &text], bulk(&text)),
        part(1, &["LOCK", "k", "TOKEN", "t"], bulk("t")),
        part(500_000, &["PING"], pong()),
        part(100, &["COMMAND"], None),
        part(1, &["UNLOCK", "k", "t"], number(1)),
        part(1_000, &["INFO"], None),
    ];
    is_answered(&mut client, &pipeline);
}

/// Single values longer than every buffer of lockgate.
#[test]
fn long_values_before_a_lock() {
    let place = Place::with_redis(Machine::shared());
    let mut client = narrow(place.client());
    let value = "v".repeat(8 * MIB as usize);
    assert_eq!(client.call(&["SET", "long", &value]), "OK");
    let pipeline = [
        part(4, &["GET", "long"], bulk(&value)),
        part(1, &["LOCK", "k", "TOKEN", "t"], bulk("t")),
        part(4, &["ECHO", &value], bulk(&value)),
        part(1, &["PING"], pong()),
    ];
    is_answered(&mut client, &pipeline);
    assert_eq!(client.say("UNLOCK k t"), 1);
}

/// The lock is granted, though its reply waits for the client to read; a client that closes instead never got
/// it, and the next one does.
#[test]
fn a_grant_that_was_never_written_is_taken_back_when_its_client_closes() {
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut next) = (place.client(), place.client());
    let value = "v".repeat(MIB as usize);
    assert_eq!(client.call(&["SET", "value", &value]), "OK");
    for explicit in [&["TOKEN", "t"][..], &[], &["SESSION"]] {
        let lock = [&["LOCK", "k", "PX", "600000"], explicit].concat();
        let mut client = narrow(place.client());
        client.write_raw(&frame(&["GET", "value"]).repeat(30));
        client.write_raw(&frame(&lock));
        client.write_raw(&frame(&["SET", "written", "1"]));
        eventually("what stands behind the LOCK runs", || {
            next.say("EXISTS written") == 1
        });
        assert!(next.say("TRYLOCK k").is_nil(), "{explicit:?}");
        drop(client);
        assert_eq!(next.say("LOCK k TOKEN next WAIT 5000"), "next");
        assert_eq!(next.say("UNLOCK k next"), 1);
        next.say("DEL written");
    }
}

/// Its reply was written, though not what stands behind it: the client has the lock.
#[test]
fn a_grant_that_was_read_stays_when_the_client_closes_before_it_read_the_rest() {
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut other) = (narrow(place.client()), place.client());
    let value = "v".repeat(MIB as usize);
    assert_eq!(client.call(&["SET", "value", &value]), "OK");
    client.write_raw(
        &[
            frame(&["GET", "value"]).repeat(20),
            frame(&["LOCK", "k", "TOKEN", "t", "PX", "600000"]),
            frame(&["GET", "value"]).repeat(30),
            frame(&["LOCK", "never", "TOKEN", "t", "PX", "600000"]),
            frame(&["SET", "written", "1"]),
        ]
        .concat(),
    );
    eventually("the pipeline runs", || other.say("EXISTS written") == 1);
    for _ in 0..20 {
        assert_eq!(client.read_reply(), value);
    }
    assert_eq!(client.read_reply(), "t");
    drop(client);
    assert_eq!(other.say("LOCK never TOKEN other WAIT 5000"), "other");
    assert_eq!(other.say("RELOCK k t"), 1);
}

/// A client that holds a lock by its connection is not closed for being silent. This one holds none.
#[test]
fn a_session_lock_that_is_unlocked_before_its_grant_was_written_is_not_bound() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [&SHORT_GRACE[..], &[("LOCKGATE_IDLE_TIMEOUT", "500ms")]].concat();
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut client = narrow(gate.client());
    let value = "v".repeat(MIB as usize);
    assert_eq!(client.call(&["SET", "value", &value]), "OK");
    let pipeline = [
        part(20, &["ECHO", &value], bulk(&value)),
        part(1, &["LOCK", "k", "TOKEN", "t", "SESSION"], bulk("t")),
        part(1, &["UNLOCK", "k", "t"], number(1)),
        part(20, &["ECHO", &value], bulk(&value)),
    ];
    is_answered(&mut client, &pipeline);
    client.is_closed_by_the_server();
    assert_eq!(counted(&mut gate.client(), "closed_idle_clients"), 1);
}

/// As many replies are kept as may be, and the client reads none of them. A slow one is served.
#[test]
fn a_client_that_reads_nothing_is_closed_where_no_more_may_be_kept() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [
        &SHORT_GRACE[..],
        &[("LOCKGATE_LIMITS_KEPT_REPLY_BYTES", "4194304")],
    ];
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment.concat());
    let (mut observer, hoarder) = (gate.client(), gate.client());
    let mut slow = narrow(gate.client());
    let value = "v".repeat(256 * 1024);
    let echo = frame(&["ECHO", &value]);
    hears_little(&hoarder.writer());
    assert_eq!(slow.say("PING"), "PONG");
    let growth = growth(&gate, || {
        let pipeline = [echo.repeat(100), frame(&["LOCKS"]), echo.repeat(100)].concat();
        let poured = [
            pour(hoarder.writer(), pipeline.clone()),
            pour(slow.writer(), pipeline),
        ];
        let start = Instant::now();
        for _ in 0..100 {
            assert_eq!(slow.read_reply(), value);
            thread::sleep(STARVED / 80);
        }
        assert!(start.elapsed() > STARVED);
        assert_eq!(slow.read_reply(), Value::Array(Vec::new()));
        for _ in 0..100 {
            assert_eq!(slow.read_reply(), value);
        }
        poured.into_iter().for_each(|pour| pour.join().unwrap());
    });
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
    assert_eq!(counted(&mut observer, "closed_starved_clients"), 1);
    assert!(
        gate.log().contains("limits.kept_reply_bytes"),
        "{}",
        gate.log()
    );
    assert_eq!(slow.say("PING"), "PONG");
    assert_eq!(counted(&mut observer, "kept_reply_bytes"), 0);
}

/// The last word reaches a client that was still sending.
#[test]
fn the_error_that_ends_a_transaction_is_read_behind_a_pipeline_written_whole() {
    let place = Place::with_redis(Machine::shared());
    let mut client = narrow(place.client());
    let value = "v".repeat(256);
    let pair = [frame(&["SET", "k", &value]), frame(&["SELECT", "1"])].concat();
    client.write_raw(&[frame(&["MULTI"]), pair.repeat(100_000)].concat());
    assert_eq!(client.read_reply(), "OK");
    let error = loop {
        match client.read_reply() {
            Value::Error(error) => break error,
            reply => assert_eq!(reply, "QUEUED"),
        }
    };
    assert!(error.contains("too many commands"), "{error}");
    client.is_closed_by_the_server();
    assert!(place.gate.log().contains("too many commands"));
}

#[test]
fn the_error_of_a_redis_that_is_not_there_is_read_behind_a_pipeline_written_whole() {
    let _machine = Machine::shared();
    let nobody = format!("redis://{}", free_address());
    let gate = Lockgate::start(&["--upstream", &nobody]);
    let mut client = narrow(gate.client());
    let value = "v".repeat(1024);
    client.write_raw(&frame(&["SET", "k", &value]).repeat(20_000));
    let reply = client.read_reply();
    assert!(reply.error().starts_with("UPSTREAM"), "{reply:?}");
    client.is_closed_by_the_server();
}
