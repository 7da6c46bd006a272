//! The differential test: a generated conversation goes to a Redis directly, and through lockgate to
//! another one just like it. What comes back must be the same to the last byte, and so must the way
//! in which the connection ends.
//!
//!     DIFFERENTIAL_CASES=100000 cargo test --test differential -- --nocapture
//!     DIFFERENTIAL_FROM=100000 cargo test --test differential          # others
//!     LOCKGATE_SEED=4711 cargo test --test differential      # one conversation
//!
//! - `case`: a conversation, and how it is printed: what fails is shrunk, and can be pasted into
//!   `regressions`.
//! - `words`: what is said in one. All of it follows from the seed.
//! - `absorbed`: what is said about locks in commands of Redis's own.
//! - `locks`: lock commands in between, through lockgate only. Their replies must stand at their places
//!   and leave everything else as it is.
//! - `pair`: the two ways to the two servers.
//! - `nature`: the list of what differs by nature.
//!
//! # What comes at any time
//!
//! Pushes and messages that a client causes itself have their place: Redis writes them while it runs
//! the command. What *another* client causes is done only when everything sent before was answered, and
//! answered itself before anything more is sent ([`case::Step::Other`]); so Redis has one order too,
//! and one only, and any other order is lockgate's doing.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test that cannot go on says so by panicking"
)]

#[path = "../lock/simulator/random.rs"]
mod random;
#[path = "../support/mod.rs"]
mod support;

mod absorbed;
mod case;
mod locks;
mod nature;
mod pair;
mod regressions;
mod shrink;
mod words;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use case::Case;
use pair::Pair;

/// Conversations of an ordinary run: some 20 seconds on a machine that has nothing else to do.
const CASES: u64 = 2_000;

/// Conversations at a time, each worker with servers of its own.
const WORKERS: u64 = 4;

#[test]
fn lockgate_answers_as_redis_does() {
    if let Some(seed) = number("LOCKGATE_SEED") {
        return expect(seed, Pair::start().check(&Case::generate(seed)));
    }
    let from = number("DIFFERENTIAL_FROM").unwrap_or(0);
    let cases = number("DIFFERENTIAL_CASES").unwrap_or(CASES);
    let (next, begun) = (AtomicU64::new(from), Instant::now());
    let worker = || {
        let mut pair = Pair::start();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + cases {
                return;
            }
            let checked = pair.check(&Case::generate(seed));
            if checked.is_err() {
                next.store(from + cases, Ordering::Relaxed);
            }
            expect(seed, checked);
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(worker);
        }
    });
    println!("{cases} conversations in {:?}", begun.elapsed());
}

fn expect(seed: u64, checked: Result<(), String>) {
    if let Err(difference) = checked {
        panic!("LOCKGATE_SEED={seed}\n{difference}");
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
