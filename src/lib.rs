//! lockgate is a proxy in front of one Redis node. It speaks the Redis protocol and adds `LOCK`, `TRYLOCK`,
//! `RELOCK` and `UNLOCK`. Waiters queue in lockgate's memory, in order; Redis gets one atomic command for each
//! release.
//!
//! A program can embed lockgate: it needs [`run()`], a [`Config`](config::Config), and what it provides as an
//! [`Embedder`](server::embedder::Embedder).
//!
//! ```
//! use std::io::{Read, Write};
//!
//! use lockgate::{
//!     config::{Config, Flags},
//!     server::embedder::Embedder,
//! };
//! use tokio::sync::oneshot;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let flags = Flags {
//!     upstream: Some("embedded".to_owned()), // or redis://127.0.0.1:6379
//!     listen: Some("127.0.0.1:0".to_owned()),
//!     ..Flags::default()
//! };
//! let config = Config::load(flags, [])?;
//! let (say_ready, ready) = oneshot::channel();
//! let embedder = Embedder {
//!     ready: Box::new(move |listening| {
//!         let port = listening.clients[0].port();
//!         say_ready.send(port.expect("it listens on TCP")).expect("the receiver lives");
//!     }),
//!     ..Embedder::default()
//! };
//! let (stop, stopped) = oneshot::channel::<()>();
//! tokio::runtime::Runtime::new()?.block_on(async {
//!     let stopped = async { drop(stopped.await) };
//!     let gate = tokio::spawn(lockgate::run(config, embedder, stopped));
//!     let port = ready.await?;
//!     let reply = tokio::task::spawn_blocking(move || {
//!         let mut client = std::net::TcpStream::connect(("127.0.0.1", port))?;
//!         client.write_all(b"LOCK job TOKEN mine PX 5000\r\n")?;
//!         let mut reply = [0; 10];
//!         client.read_exact(&mut reply).map(|()| reply)
//!     });
//!     assert_eq!(&reply.await??, b"$4\r\nmine\r\n");
//!     drop(stop);
//!     gate.await??;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! The other modules are public for lockgate's own tests alone, and hidden here.
//!
//! The path of a `LOCK` through the crate, from the client to Redis and back:
//!
//! | module | contents |
//! | --- | --- |
//! | [`server`] | accepts clients, up to a limit; the interface to the embedding program |
//! | [`session`] | one connected client: dispatches its commands, and replies in order |
//! | [`command`] | pure: the lock commands and their arguments; the entries of `COMMAND` |
//! | [`absorb`] | pure: recognises commands of Redis's own that acquire and release locks |
//! | [`auth`] | the users that clients are to Redis, and this instance's own password |
//! | [`gate`] | the driver: a map from lock name to queue; executes the queues' actions, keeps their timers |
//! | [`lock`] | **the core, pure**: the queue of one lock; events in (with the time), actions out |
//! | [`store`] | where locks live: Redis, or the memory of this process |
//!
//! Every other command goes from the session to the relay. The rest serves all of them:
//!
//! | module | contents |
//! | --- | --- |
//! | [`relay`] | one client's connection to Redis: counts replies, hides and rewrites some; or the local backend |
//! | [`resp`] | pure: where a frame of the Redis protocol begins and ends; the writer of replies |
//! | [`transport`] | sockets: TCP, TLS, Unix sockets, their listeners and buffers |
//! | [`config`], [`limits`], [`error`] | the configuration, typed, checked and live; the bounds; the errors |
//! | [`telemetry`] | metrics, event counters, rate limits for log lines, escaping of names |
//! | [`admin`] | the address for operators: a live page, metrics, health, readiness |
//! | [`run`](mod@run) | wires the parts together |
//!
//! Invariants:
//! - No module imports another in a circle (`tests/wire/rooms.rs`).
//! - `lock` does no I/O, reads no clock, draws no random number, and imports nothing of this crate; `resp` neither.
//! - At most one request about a lock is in flight to the store at a time.
//! - A client joins a user only after the store itself has verified that user's password; a reply on the client's
//!   own connection is never enough.
//! - No lock of a map is held across an await.
#![forbid(unsafe_code)]
// Maintainers follow these links with `--document-private-items`.
#![allow(rustdoc::private_intra_doc_links)]

#[doc(hidden)]
pub mod absorb;
#[doc(hidden)]
pub mod admin;
#[doc(hidden)]
pub mod auth;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod command;
pub mod config;
pub mod error;
#[doc(hidden)]
pub mod gate;
#[doc(hidden)]
pub mod limits;
#[doc(hidden)]
pub mod lock;
#[doc(hidden)]
pub mod relay;
#[doc(hidden)]
pub mod resp;
mod run;
pub mod server;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod telemetry;
#[cfg(test)]
mod testing;
pub mod transport;

pub use run::{check, check_files, run, serve, tls_to_redis};
