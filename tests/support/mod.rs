//! What the tests are made of: a real Redis, the program itself, clients that speak the protocol
//! over plain sockets, an observer that sees what Redis executes, and a network that breaks.
//!
//! Nothing here uses the code under test: the client's parser is its own, so a fault of lockgate's
//! cannot hide behind the same fault in its tests.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses a part of it"
)]

use std::{
    process::Child,
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

mod certificates;
mod client;
mod forger;
mod gate;
mod http;
mod impostor;
mod monitor;
mod network;
mod proxy;
mod redis_server;
mod sentinels;

pub(crate) use certificates::{Authority, Pair, text};
pub(crate) use client::{Client, Value, counted, frame, words};
pub(crate) use forger::Forger;
pub(crate) use gate::{Ended, Lockgate, SHORT_GRACE, program, run_to_its_end};
pub(crate) use http::{Answer, Http};
pub(crate) use impostor::{ACTIVE_REPLICA, ADDRESSES, Impostor, NO_PUSHES, NO_RUN_ID};
pub(crate) use monitor::Monitor;
pub(crate) use network::in_a_network_of_its_own;
pub(crate) use proxy::Proxy;
pub(crate) use redis_server::{RedisServer, free_address};
pub(crate) use sentinels::{DOWN_AFTER, Failover, SERVICE, Sentinels};

/// Longest that anything which must happen may take; generous, since only a failure takes it all.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// How many tests use the machine now; `None` while one has it alone.
static MACHINE: Mutex<Option<usize>> = Mutex::new(Some(0));
static MACHINE_CHANGED: Condvar = Condvar::new();

/// A share of the machine. Tests that measure time take all of it, or the others would be in the
/// measure. One test may hold several shares.
pub(crate) struct Machine {
    alone: bool,
}

impl Machine {
    pub(crate) fn shared() -> Self {
        Self::take(false)
    }

    pub(crate) fn alone() -> Self {
        Self::take(true)
    }

    fn take(alone: bool) -> Self {
        let mut users = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *users {
                Some(0) if alone => *users = None,
                Some(n) if !alone => *users = Some(n + 1),
                _ => {
                    users = MACHINE_CHANGED
                        .wait(users)
                        .unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            }
            return Self { alone };
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut users = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        *users = if self.alone {
            Some(0)
        } else {
            users.map(|n| n - 1)
        };
        MACHINE_CHANGED.notify_all();
    }
}

/// A lockgate, and the Redis behind it where there is one.
pub(crate) struct Place {
    pub(crate) redis: Option<RedisServer>,
    pub(crate) gate: Lockgate,
    _machine: Machine,
}

impl Place {
    /// One of these.
    pub(crate) fn of(redis: Option<RedisServer>, gate: Lockgate, machine: Machine) -> Self {
        Self {
            redis,
            gate,
            _machine: machine,
        }
    }

    pub(crate) fn embedded(machine: Machine) -> Self {
        Self {
            redis: None,
            gate: Lockgate::start(&[]),
            _machine: machine,
        }
    }

    pub(crate) fn with_redis(machine: Machine) -> Self {
        let redis = RedisServer::start(&[]);
        let gate = Lockgate::in_front_of(&redis);
        Self {
            redis: Some(redis),
            gate,
            _machine: machine,
        }
    }

    /// Runs a test without and with a Redis.
    pub(crate) fn each(test: impl Fn(&Self)) {
        test(&Self::embedded(Machine::shared()));
        test(&Self::with_redis(Machine::shared()));
    }

    /// A client of lockgate.
    pub(crate) fn client(&self) -> Client {
        self.gate.client()
    }

    /// The Redis behind.
    pub(crate) fn redis(&self) -> &RedisServer {
        self.redis.as_ref().expect("this place has a Redis")
    }
}

/// Asks again and again until the answer is yes: for what nobody tells, only shows.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal to a process of the test's own.
fn signal(process: &Child, signal: Signal) {
    kill_process(Pid::from_child(process), signal).unwrap();
}

/// Stops a process of the test's own; returns when all of its threads have stopped.
fn stop(process: &Child) {
    signal(process, Signal::STOP);
    waitpid(Some(Pid::from_child(process)), WaitOptions::UNTRACED).unwrap();
}

/// The one in the middle: a machine that stutters once does not move it, code that is late does.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Lets this process, and the programs that it starts, open as many files as the system allows;
/// returns how many.
pub(crate) fn allow_many_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, most) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Writes past the test harness, which hides what a passing test prints: for measures.
pub(crate) fn report(lines: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{lines}");
}
