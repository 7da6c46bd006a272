//! lockgate as its users see it: the program itself, a real Redis behind it, plain sockets in front.
//! One module a topic.
//!
//! Run by `tests/run`; `cargo test --test lockgate headline -- --nocapture` runs one topic.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test that cannot go on says so by panicking"
)]

#[allow(dead_code, reason = "tests/failover uses the rest")]
#[path = "../contention/mod.rs"]
mod contention;
#[allow(dead_code, reason = "the simulator uses all of it")]
#[path = "../lock/simulator/random.rs"]
mod random;
#[path = "../support/mod.rs"]
mod support;

mod absorb;
mod admin;
mod auth;
mod basics;
mod catalog;
mod crowd;
mod demo;
mod doctor;
mod documents;
mod embedded;
mod faults;
mod headline;
mod hostile;
mod identity;
mod labels;
mod leaving;
mod life;
mod metrics;
mod names;
mod nonsense;
mod order;
mod parity;
mod pipelines;
mod program;
mod protected;
mod proxy;
mod relay;
mod same_token;
mod scale;
mod sentinel;
mod shared_connections;
mod tls;
mod two_gates;
mod unix;
mod with_redis;
