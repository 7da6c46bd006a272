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
//! | [`identity`] | the users that clients are to Redis, and their credentials |
//! | [`config`], [`limits`], [`error`] | what was typed and checked; the bounds; whose fault it was |
//! | [`files`] | how many files, and so clients, the system allows |
//!
//! Invariants, each held by a test:
//! - `lock` does no I/O, reads no clock, draws no random number, and imports nothing of this crate
//!   but `limits`; `resp` imports nothing of it at all; only `server` imports `client`.
//! - At most one question about a lock is on its way to the store at a time.
//! - No lock of a map is held across an await.
#![forbid(unsafe_code)]
// Whoever works on it follows these links with `--document-private-items`.
#![allow(rustdoc::private_intra_doc_links)]

pub mod client;
pub mod clock;
pub mod config;
pub mod error;
pub mod files;
pub mod gate;
pub mod identity;
pub mod limits;
pub mod lock;
pub mod resp;
pub mod server;
pub mod store;

use std::{
    future::Future,
    sync::{Arc, atomic::AtomicUsize},
};

use tokio::net::TcpListener;
use tracing::info;

use client::{Shared, address::Address, command::Bounds};
use config::{Config, Upstream};
use error::Error;
use gate::Gate;
use identity::Users;
use lock::WriteBack;
use store::{
    Store,
    embedded::EmbeddedStore,
    redis::{RedisSettings, RedisStore},
};

/// Runs the gate until `shutdown` completes and its clients are done. Logs `listening` with the
/// address once clients can connect; a Redis that is not there yet is no reason to fail.
///
/// # Errors
/// The address cannot be listened on.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let address = config.listen;
    let listen = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let local = listener.local_addr().map_err(listen)?;
    let shared = Arc::new(shared(&config, local.port()));
    info!(upstream = %config.upstream, "listening on {local}");
    server::serve(listener, shared, config.drain, shutdown).await;
    Ok(())
}

fn shared(config: &Config, port: u16) -> Shared {
    let users = Arc::new(Users::default());
    let (store, upstream): (Arc<dyn Store>, _) = match &config.upstream {
        Upstream::Embedded => (Arc::new(EmbeddedStore::new()), None),
        Upstream::Redis(redis) => {
            let settings = RedisSettings {
                host: redis.host.clone(),
                port: redis.port,
                own: redis.own(),
                connect_timeout: config.connect_timeout,
                timeout: config.timeout,
                ping: config.ping,
                grace: (config.write_back != WriteBack::Off).then_some(config.grace),
                key_prefix: config.key_prefix.clone(),
                connections: config.limits.shared_connections,
                idle: config.idle,
            };
            let store = RedisStore::new(settings, Arc::clone(&users));
            let address = Address::new(&redis.host, redis.port, config.connect_timeout);
            (Arc::new(store), Some(Arc::new(address)))
        }
    };
    Shared {
        gate: Gate::new(store, config.lock_settings(), config.limits.clone()),
        users,
        upstream,
        timeout: config.timeout,
        bounds: Bounds {
            key_bytes: config.limits.key_bytes,
            token_bytes: limits::TOKEN_BYTES,
            min_lease_ms: config.leases.min_ms,
            max_lease_ms: config.leases.max_ms,
        },
        default_lease_ms: config.leases.default_ms,
        tcp_keepalive: config.tcp_keepalive,
        limits: config.limits.clone(),
        port,
        started: clock::now(),
        run_id: run_id(),
        clients: AtomicUsize::new(0),
    }
}

/// Forty hexadecimal digits, new with each start, as a Redis has.
fn run_id() -> String {
    let (one, other) = (uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    let mut id = format!("{one}{other}");
    id.truncate(40);
    id
}
