//! lockgate is a proxy in front of one Redis node. It speaks the Redis protocol and adds `LOCK`, `TRYLOCK`,
//! `RELOCK` and `UNLOCK`. Waiters queue in lockgate's memory, in order; Redis gets one atomic command for each
//! release.
//!
//! The path of a `LOCK` through the crate:
//!
//! | module | contents |
//! | --- | --- |
//! | [`server`] | accepts clients, up to a limit |
//! | [`client`] | one connected client: its session, its commands, its relay to Redis |
//! | [`resp`] | pure: where a frame of the Redis protocol begins and ends; the writer of replies |
//! | [`gate`] | the driver: a map from lock name to queue; executes the queues' actions, keeps their timers |
//! | [`lock`] | **the core, pure**: the queue of one lock; events in (with the time), actions out |
//! | [`store`] | where locks live: Redis, or the memory of this process |
//! | [`identity`] | the users that clients are to Redis, and their verified credentials |
//! | [`transport`] | connections from clients and to Redis: TCP, TLS, Unix sockets |
//! | [`admin`] | the address for operators: a live page, metrics, health, readiness |
//! | [`host`] | the interface to the embedding program |
//! | [`reload`], [`live`] | the configuration that changes at run time (SIGHUP) |
//! | [`config`], [`limits`], [`error`] | the typed and the checked configuration; the bounds; the errors |
//! | [`password`] | this instance's own password |
//! | [`files`] | the limit of open files, and so of clients |
//! | [`counters`], [`seldom`] | event counters; rate limits for log lines |
//! | [`metrics`] | the metrics, for Prometheus |
//! | [`shown`] | names as people are shown them |
//!
//! Invariants, each held by a test:
//! - `lock` does no I/O, reads no clock, draws no random number, and imports nothing of this crate but `limits`;
//!   `resp` imports nothing of this crate at all; only `server` and `metrics` import `client`.
//! - At most one request about a lock is in flight to the store at a time.
//! - A client joins a user only after the store itself has verified that user's password; a reply on the client's
//!   own connection is never enough.
//! - No lock of a map is held across an await.
#![forbid(unsafe_code)]
// Maintainers follow these links with `--document-private-items`.
#![allow(rustdoc::private_intra_doc_links)]

pub mod admin;
pub mod auth;
pub mod clock;
pub mod command;
pub mod config;
pub mod error;
pub mod gate;
pub mod limits;
pub mod lock;
pub mod relay;
pub mod resp;
mod run;
pub mod server;
pub mod session;
pub mod store;
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod transport;

pub use run::{check, run, serve, tls_to_redis};
