//! Faults and their consequences: every row of the table "When things fail", against real
//! processes.
//!
//! | what breaks | where |
//! | --- | --- |
//! | a waiting client disconnects | `leaving` |
//! | the owner disconnects, or hangs; SESSION | [`sessions`]; without SESSION `leaving` |
//! | lockgate is killed, or stopped for a while | [`gate_dies`] |
//! | the connection to Redis breaks; Redis is not there | [`connections`] |
//! | Redis goes away while clients have connections to it | [`kept_clients`] |
//! | Redis hangs | [`redis_hangs`] |
//! | Redis forgot | [`redis_forgets`]; a replica that took over: [`failover`]; tokens of earlier owners: [`older_data`] |
//! | too few replicas acknowledge a grant | [`acknowledged`] |
//! | the key is deleted, overwritten, flushed | [`lost`] |
//! | `LOADING`, `MASTERDOWN`, `BUSY`, `READONLY`, `NOPERM`, `WRONGTYPE`, `OOM`; scripts flushed | [`errors`] |
//! | SIGTERM | [`shutdown`] |
//!
//! And fences through all of it ([`fences`]), and what once broke a design ([`regressions`]).

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    net::sockopt::set_socket_linger,
    process::{Pid, Signal, kill_process},
};

use crate::support::{Client, Lockgate, RedisServer, SHORT_GRACE, Value};

mod acknowledged;
mod connections;
mod errors;
mod failover;
mod fences;
mod gate_dies;
mod kept_clients;
mod lost;
mod older_data;
mod redis_forgets;
mod redis_hangs;
mod regressions;
mod sessions;
mod shutdown;

pub(crate) use acknowledged::replicated;

/// Redis may take longer to answer than [`SHORT_GRACE`] allows.
const PATIENT: [(&str, &str); 2] = [
    ("LOCKGATE_UPSTREAM_TIMEOUT", "2s"),
    ("LOCKGATE_WRITE_BACK_GRACE", "2700ms"),
];

/// Far less than any lease or time limit of these tests.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A gate before the Redis at this URL, with a short grace time, and with these settings beside.
/// It trusts its Redis when this returns.
fn gate_before(url: &str, settings: &[(&str, &str)]) -> Lockgate {
    let settings = [&SHORT_GRACE, settings].concat();
    let gate = Lockgate::start_with(&["--upstream", url], &settings);
    is_served(&gate);
    gate
}

/// Returns when this gate grants locks.
#[track_caller]
fn is_served(gate: &Lockgate) {
    let mut first = gate.client();
    assert_eq!(first.say("LOCK first TOKEN f"), "f");
    assert_eq!(first.say("UNLOCK first f"), 1);
}

/// A client that speaks RESP3.
#[track_caller]
fn resp3(gate: &Lockgate) -> Client {
    let mut client = gate.client();
    assert_eq!(client.say("HELLO 3").field("proto"), &Value::Integer(3));
    client
}

/// A client that waits for this lock with this token, as the last of so many.
#[track_caller]
fn waiter(gate: &Lockgate, key: &str, token: &str, place_in_queue: i64) -> Client {
    let mut client = gate.client();
    client.send(&["LOCK", key, "TOKEN", token]);
    gate.awaits_waiters(key, place_in_queue);
    client
}

/// A client that Redis lets take locks, and its gate knows that: whatever it says next is asked at once.
#[track_caller]
fn admitted(gate: &Lockgate) -> Client {
    let mut client = gate.client();
    was_told_nothing(&mut client);
    client
}

/// Nothing was said to this client so far; it is there, and is answered.
#[track_caller]
fn was_told_nothing(client: &mut Client) {
    assert_eq!(client.say("UNLOCK nothing nobody"), 0);
}

#[track_caller]
fn is_told_lost(client: &mut Client, key: &str, token: &str) {
    assert_eq!(client.read_reply(), lost(key, token));
}

/// The push that tells of a lost lock.
fn lost(key: &str, token: &str) -> Value {
    let words = ["lock-lost", key, token];
    Value::Push(words.map(|word| Value::Bulk(word.into())).into())
}

#[track_caller]
fn is_error(reply: &Value, code: &str) {
    assert!(reply.error().starts_with(code), "{code}, not {reply:?}");
}

/// Milliseconds that the key has to live, by Redis.
#[track_caller]
fn pttl(redis: &mut Client, key: &str) -> i64 {
    redis.call(&["PTTL", key]).integer()
}

/// The token that holds the lock, according to Redis.
#[track_caller]
fn holder(redis: &RedisServer, key: &str) -> Value {
    redis.client().call(&["GET", key])
}

/// Returns what this takes, and how long it took.
fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = what();
    (result, start.elapsed())
}

/// Ends a connection as a machine does that knows nothing of it any more: by a reset.
fn reset(client: Client) {
    set_socket_linger(client.writer(), Some(Duration::ZERO)).unwrap();
}

/// A client that is a process of its own.
struct RedisCli {
    process: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl RedisCli {
    fn connect(gate: &Lockgate) -> Self {
        let port = gate.address().port().to_string();
        let start = |program: &&str| {
            Command::new(program)
                .args(["-h", "127.0.0.1", "-p", &port])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .ok()
        };
        let mut process = ["redis-cli", "valkey-cli"]
            .iter()
            .find_map(start)
            .expect("redis-cli (or valkey-cli) starts; it comes with the server");
        Self {
            commands: process.stdin.take().expect("piped"),
            replies: BufReader::new(process.stdout.take().expect("piped")),
            process,
        }
    }

    /// Sends a command, and returns the first line of its reply.
    fn say(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        let mut reply = String::new();
        self.replies.read_line(&mut reply).unwrap();
        reply.trim_end().to_owned()
    }

    /// Ends it without a word.
    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Hangs, with its connection open, until [`RedisCli::go_on`].
    fn stop(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).unwrap();
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.process), Signal::CONT).unwrap();
    }
}

impl Drop for RedisCli {
    fn drop(&mut self) {
        self.kill();
    }
}
