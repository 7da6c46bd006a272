//! Ten times as much costs about ten times as much time of a core, not a hundred times. For everything of
//! which a client, or many of them, can have much.

use std::{io::Write, time::Duration};

use super::pour;
use crate::support::{Lockgate, Machine, Place, frame, report};

/// What ten times as much may cost at most. Linear is 10, quadratic 100.
const MOST_RATIO: f64 = 30.0;

/// The system counts in steps of 10 ms: less than this cannot be told from nothing.
const LEAST: Duration = Duration::from_millis(30);

/// How often it is tried again where it cost too much: other work on the machine makes caches cold.
const TRIES: usize = 3;

/// Does a thing with `n` and with ten times as many, on fresh gates.
#[track_caller]
fn costs_in_proportion(what: &str, n: usize, act: impl Fn(usize) -> Duration) {
    let mut ratio = f64::INFINITY;
    for _ in 0..TRIES {
        let (few, many) = (act(n), act(10 * n));
        ratio = many.as_secs_f64() / few.max(LEAST).as_secs_f64();
        report(&format!(
            "{what}: {n} cost {} ms, {} cost {} ms of a core",
            few.as_millis(),
            10 * n,
            many.as_millis()
        ));
        if ratio < MOST_RATIO {
            return;
        }
    }
    panic!("{what}: ten times as many cost {ratio:.0} times as much");
}

/// What it costs the gate.
fn cost(gate: &Lockgate, act: impl FnOnce()) -> Duration {
    let before = gate.cpu_time();
    act();
    gate.cpu_time() - before
}

#[test]
fn commands_behind_a_waiting_lock() {
    costs_in_proportion("commands behind a waiting LOCK", 20_000, |n| {
        let place = Place::with_redis(Machine::shared());
        let (mut holder, mut client) = (place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        cost(&place.gate, || {
            let script = [frame(&["LOCK", "k", "TOKEN", "t"]), b"PING\r\n".repeat(n)];
            let poured = pour(client.writer(), script.concat());
            place.gate.awaits_waiters("k", 1);
            assert_eq!(holder.say("UNLOCK k h"), 1);
            assert_eq!(client.read_reply(), "t");
            (0..n).for_each(|_| assert_eq!(client.read_reply(), "PONG"));
            poured.join().unwrap();
        })
    });
}

/// However much may be kept, and though each packet brings one.
#[test]
fn lock_commands_kept_behind_a_waiting_lock() {
    costs_in_proportion("UNLOCKs kept behind a waiting LOCK", 1_000, |n| {
        let _machine = Machine::shared();
        let environment = [
            ("LOCKGATE_LIMITS_PIPELINED_COMMANDS", "1000000"),
            ("LOCKGATE_LIMITS_PIPELINED_BYTES", "100000000"),
        ];
        let gate = Lockgate::start_with(&[], &environment);
        let (mut holder, mut client, mut other) = (gate.client(), gate.client(), gate.client());
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        client.send(&["LOCK", "k", "TOKEN", "t"]);
        gate.awaits_waiters("k", 1);
        cost(&gate, || {
            // Behind an ordinary command none may overtake.
            client.send(&["PING"]);
            for i in 0..n {
                client.send(&["UNLOCK", "k", &format!("not-{i}")]);
                // It was seen: lockgate has served somebody else since.
                assert_eq!(other.say("PING"), "PONG");
            }
            assert_eq!(holder.say("UNLOCK k h"), 1);
            assert_eq!(client.read_reply(), "t");
            assert_eq!(client.read_reply(), "PONG");
            (0..n).for_each(|_| assert_eq!(client.read_reply(), 0));
        })
    });
}

#[test]
fn lock_commands_in_one_pipeline() {
    costs_in_proportion("LOCKs in one pipeline", 1_000, |n| {
        let place = Place::with_redis(Machine::shared());
        let mut client = place.client();
        let commands: Vec<u8> = (0..n)
            .flat_map(|i| {
                let (key, token) = (format!("key-{i}"), format!("token-{i}"));
                let lock = frame(&["LOCK", &key, "TOKEN", &token]);
                [lock, frame(&["UNLOCK", &key, &token])].concat()
            })
            .collect();
        cost(&place.gate, || {
            let poured = pour(client.writer(), commands);
            for i in 0..n {
                assert_eq!(client.read_reply(), format!("token-{i}"));
                assert_eq!(client.read_reply(), 1);
            }
            poured.join().unwrap();
        })
    });
}

/// Many wait, and behind each stand many UNLOCKs that may not overtake.
#[test]
fn unlocks_kept_behind_many_waiters() {
    const EACH: usize = 300;
    costs_in_proportion("clients with 300 UNLOCKs behind their LOCK", 30, |n| {
        let place = Place::embedded(Machine::shared());
        let mut holder = place.client();
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        let mut clients = place.gate.clients(n);
        cost(&place.gate, || {
            for (i, client) in clients.iter_mut().enumerate() {
                client.write_raw(b"LOCK k\r\nPING\r\n");
                let unlock = |j| format!("UNLOCK k {i}-{j}\r\n").into_bytes();
                client.write_raw(&(0..EACH).flat_map(unlock).collect::<Vec<_>>());
            }
            place.gate.awaits_waiters("k", n as i64);
            // Their end is read behind all of it.
            drop(clients);
            place.gate.awaits_waiters("k", 0);
        })
    });
}

#[test]
fn a_command_byte_by_byte() {
    costs_in_proportion("bytes of a command, each in a packet", 30_000, |n| {
        let place = Place::with_redis(Machine::shared());
        let mut client = place.client();
        cost(&place.gate, || {
            let mut writer = client.writer();
            for byte in frame(&["ECHO", &"x".repeat(n)]) {
                writer.write_all(&[byte]).unwrap();
            }
            assert_eq!(client.read_reply().text().len(), n);
        })
    });
}

/// Behind a `LOCK` that waits it is kept, as far as that goes.
#[test]
fn a_command_byte_by_byte_behind_a_waiting_lock() {
    costs_in_proportion("bytes of a kept command, each in a packet", 6_000, |n| {
        let place = Place::with_redis(Machine::shared());
        let (mut holder, mut client) = (place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        client.send(&["LOCK", "k", "TOKEN", "t"]);
        place.gate.awaits_waiters("k", 1);
        cost(&place.gate, || {
            let mut writer = client.writer();
            for byte in frame(&["ECHO", &"x".repeat(n)]) {
                writer.write_all(&[byte]).unwrap();
            }
            assert_eq!(holder.say("UNLOCK k h"), 1);
            assert_eq!(client.read_reply(), "t");
            assert_eq!(client.read_reply().text().len(), n);
        })
    });
}

#[test]
fn a_reply_of_many_elements() {
    costs_in_proportion("elements of a reply", 50_000, |n| {
        let place = Place::with_redis(Machine::shared());
        let mut client = place.client();
        let fill = format!("for i = 1, {n} do redis.call('RPUSH', 'list', i) end");
        assert!(client.call(&["EVAL", &fill, "0"]).is_nil());
        cost(&place.gate, || {
            assert_eq!(client.say("LRANGE list 0 -1").items().len(), n);
        })
    });
}

/// The number of known locks does not slow other commands.
#[test]
fn commands_while_many_locks_are_held() {
    costs_in_proportion("locks held, and as many PINGs", 3_000, |n| {
        let place = Place::embedded(Machine::shared());
        let mut client = place.client();
        cost(&place.gate, || {
            let locks: Vec<u8> = (0..n)
                .flat_map(|i| frame(&["LOCK", &format!("key-{i}"), "TOKEN", "t"]))
                .collect();
            let poured = pour(client.writer(), locks);
            (0..n).for_each(|_| assert_eq!(client.read_reply(), "t"));
            poured.join().unwrap();
            let poured = pour(client.writer(), frame(&["PING"]).repeat(n));
            (0..n).for_each(|_| assert_eq!(client.read_reply(), "PONG"));
            poured.join().unwrap();
        })
    });
}

/// Each comes, is served and leaves, while all who came before are still there.
#[test]
fn clients_that_come_and_go() {
    costs_in_proportion("clients that come, lock, and leave", 300, |n| {
        let place = Place::with_redis(Machine::shared());
        crate::support::allow_many_files();
        cost(&place.gate, || {
            let mut clients = place.gate.clients(n);
            for (i, client) in clients.iter_mut().enumerate() {
                assert_eq!(
                    client.call(&["LOCK", &format!("key-{i}"), "TOKEN", "t"]),
                    "t"
                );
                assert_eq!(client.say("PING"), "PONG");
                assert_eq!(client.call(&["UNLOCK", &format!("key-{i}"), "t"]), 1);
            }
            drop(clients);
            crate::support::eventually("all have left", || {
                let info = place.redis().client().say("INFO clients").text();
                let connected = info
                    .lines()
                    .find_map(|line| line.strip_prefix("connected_clients:"));
                // This one, and the gate's own.
                connected.is_some_and(|count| count.trim().parse::<usize>().unwrap() < 10)
            });
        })
    });
}
