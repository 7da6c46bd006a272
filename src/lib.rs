//! lockgate stands in front of one Redis node, speaks its protocol, and adds `LOCK`, `TRYLOCK`,
//! `RELOCK` and `UNLOCK`. Who waits for a lock waits here, in memory and in order; Redis gets one
//! atomic command for each release.
//!
//! The way of a `LOCK` through the house:
//!
//! | module | what lives there |
//! | --- | --- |
//! | [`server`] | accepts clients, up to a limit |
//! | [`client`] | one connected client: its session, its commands, its relay to Redis |
//! | [`resp`] | pure: where a frame of the Redis protocol begins and ends; the writer of replies |
//! | [`gate`] | the driver: a map from lock name to queue; performs what the queues decide, keeps their timers |
//! | [`lock`] | **the heart, pure**: the queue of one lock; events in (with the time), actions out |
//! | [`store`] | where locks live: Redis, or the memory of this process |
//! | [`config`], [`limits`], [`error`] | what was typed and checked; the bounds; whose fault it was |
//!
//! Invariants, each held by a test:
//! - `lock` does no I/O, reads no clock, draws no random number, and imports nothing of this crate
//!   but `limits`; `resp` imports nothing of it at all; only `server` imports `client`.
//! - At most one question about a lock is on its way to the store at a time.
//! - No lock of a map is held across an await.
#![forbid(unsafe_code)]

pub mod client;
pub mod clock;
pub mod config;
pub mod error;
pub mod gate;
pub mod limits;
pub mod lock;
pub mod resp;
pub mod server;
pub mod store;
