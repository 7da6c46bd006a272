//! lockgate is a proxy in front of one Redis node. It speaks the Redis protocol and adds `LOCK`, `TRYLOCK`,
//! `RELOCK` and `UNLOCK`. Waiters queue in lockgate's memory, in order; Redis gets one atomic command for each
//! release.
//!
//! A program embeds lockgate by [`run()`], with a [`Config`] and what it provides as an [`Embedder`]:
//!
//! ```
//! use std::{
//!     io::{Read, Write},
//!     net::TcpStream,
//! };
//!
//! use lockgate::{Config, Embedder};
//! use tokio::sync::oneshot;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::builder()
//!     .set("upstream.url", "embedded") // or redis://127.0.0.1:6379
//!     .set("listen", "127.0.0.1:0")
//!     .build()?;
//! let (tell, listening) = oneshot::channel();
//! let embedder = Embedder::default().on_listening(|on| {
//!     let _ = tell.send(on.addresses().next());
//! });
//! let (stop, stopped) = oneshot::channel::<()>();
//! tokio::runtime::Runtime::new()?.block_on(async {
//!     let shutdown = async { drop(stopped.await) };
//!     let gate = tokio::spawn(lockgate::run(config, embedder, shutdown));
//!     let address = listening.await?.expect("it listens on TCP");
//!     let reply = tokio::task::spawn_blocking(move || {
//!         let mut client = TcpStream::connect(address)?;
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
//! `examples/embedded.rs` is a whole program. lockgate needs a runtime of tokio with time and I/O enabled.
#![forbid(unsafe_code)]
// Maintainers follow these links with `--document-private-items`.
#![allow(rustdoc::private_intra_doc_links)]

// The map, for maintainers. The modules are public for lockgate's own program and tests alone.
//
// The path of a `LOCK` through the crate, from the client to Redis and back:
//
// - `server`: accepts clients, up to a limit; the interface to the embedding program.
// - `session`: one connected client: dispatches its commands, and replies in order.
// - `command`, pure: the lock commands and their arguments; the entries of `COMMAND`.
// - `absorb`, pure: recognises commands of Redis's own that acquire and release locks.
// - `auth`: the users that clients are to Redis, and this instance's own password.
// - `gate`: the driver: a map from lock name to queue; executes the queues' actions, keeps their timers.
// - `lock`, THE CORE, pure: the queue of one lock; events in (with the time), actions out.
// - `store`: where locks live: Redis, or the memory of this process.
// - `sentinel`: where Redis's master is, where sentinels say so.
//
// Every other command goes from the session to the relay. The rest serves all of them:
//
// - `relay`: one client's connection to Redis: counts replies, hides and rewrites some; or the local backend.
// - `resp`, pure: where a frame of the Redis protocol begins and ends; the writer of replies.
// - `transport`: sockets: TCP, TLS, Unix sockets, their addresses, listeners and buffers.
// - `config`, `limits`, `error`: the configuration, typed, checked and live; the bounds; the errors.
// - `telemetry`: metrics, event counters, rate limits for log lines, escaping of names.
// - `admin`: the address for operators: a live page, metrics, health, readiness.
// - `run`: wires the parts together.
//
// Invariants:
// - No module imports another in a circle (`tests/wire/rooms.rs`).
// - `lock` does no I/O, reads no clock, draws no random number, and imports nothing of this crate; `resp` neither.
// - At most one request about a lock is in flight to the store at a time.
// - A client joins a user only after the store itself has verified that user's password; a reply on the client's
//   own connection is never enough.
// - No lock of a map is held across an await.

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
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
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
#[doc(hidden)]
pub mod sentinel;
#[doc(hidden)]
pub mod server;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod telemetry;
#[cfg(test)]
mod testing;
#[doc(hidden)]
pub mod transport;

pub use config::{Config, ConfigBuilder, Error as ConfigError};
pub use error::Error;
pub use run::run;
#[doc(hidden)]
pub use run::{check, check_files, examine, shared, tls_to_redis};
pub use server::{
    Ended,
    embedder::{Embedder, Listening, Reloads, Sockets},
};
