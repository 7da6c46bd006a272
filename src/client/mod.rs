//! One connected client.
//!
//! - [`session`]: reads, dispatches, answers in order; the way of every command begins there.
//! - [`ahead`]: a look at what stands behind a `LOCK` that waits.
//! - [`back`]: what stands behind the client: [`relay`], its connection to Redis, or [`local`].
//! - [`budget`]: the memory that clients share for replies that they have not read.
//! - [`address`]: how connections to Redis are opened.
//! - [`held`]: the leases bound to its connection.
//! - [`idle`]: how long nothing was heard of it.
//! - [`pipe`]: one socket with its buffers.
//! - [`answer`]: the replies to lock commands.
//!
//! Pure:
//! - [`command`]: the arguments of a lock command, checked.
//! - [`guard`]: what a client says to get in, where this gate has a password of its own.
//! - [`state`]: what a client's connection to Redis owes and is.
//! - [`local`]: the ordinary commands where there is no Redis behind this gate.
//! - [`table`]: what `COMMAND` says of the commands that live here.
//! - [`amend`]: adds them to what the Redis behind says of its own.
//! - [`glob`]: Redis's patterns.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    clock,
    counters::Counters,
    error,
    gate::Gate,
    identity::Users,
    limits::Limits,
    live::Live,
    lock::Time,
    metrics::{Measured, relays::RelayMetrics},
    seldom::Seldom,
    transport::stream::Stream,
};

pub mod address;
mod ahead;
pub mod amend;
mod answer;
mod back;
pub mod budget;
pub mod command;
pub mod glob;
pub mod guard;
mod held;
mod idle;
pub mod local;
mod pipe;
pub mod relay;
mod session;
pub mod state;
pub mod table;
mod turnstile;

#[cfg(test)]
mod testing;

use address::Address;
use budget::Budget;
use glob::Pattern;
use guard::Guard;
use local::information::Facts;
use session::Session;
use turnstile::Turnstile;

/// Names that `LOCKS` tells where the client gives no `COUNT`.
const LOCKS_COUNT: usize = 1_000;

/// What all clients share.
pub struct Shared {
    /// Where they wait for locks.
    pub gate: Arc<Gate>,
    /// On whose behalf.
    pub users: Arc<Users>,
    /// The Redis behind this gate. None: locks live in this process.
    pub upstream: Option<Arc<Address>>,
    /// How long an answer of Redis may take, where its client does not say.
    pub timeout: Duration,
    /// Who asks clients for the password of this gate, where it has one.
    pub guard: Option<Guard>,
    /// Who is not on this machine is not served where nobody asks for a password.
    pub protected_mode: bool,
    /// What a lock command is held to.
    pub bounds: command::Bounds,
    /// The lease of a client that names none, in milliseconds.
    pub default_lease_ms: u64,
    /// The shortest lease of `SESSION`, in milliseconds.
    pub min_session_lease_ms: u64,
    /// After what silence a client's machine is probed for life; zero is never.
    pub tcp_keepalive: Duration,
    /// After what silence a client is closed, as Redis's `timeout`; zero is never.
    pub idle_timeout: Duration,
    /// The bounds, but those that may change.
    pub limits: Limits,
    /// What may change.
    pub live: Arc<Live>,
    /// The port that clients connect to; 0 where there is none.
    pub port: u16,
    /// When this gate started.
    pub started: Time,
    /// The same by the calendar.
    pub started_at: SystemTime,
    /// Forty hexadecimal digits, new with each start.
    pub run_id: String,
    /// Clients connected now.
    pub clients: AtomicUsize,
    /// What they may keep of replies that they have not read.
    pub budget: Arc<Budget>,
    /// What is measured of connections to Redis of their own.
    pub relays: Arc<RelayMetrics>,
    /// Where those wait whom Redis is asked about.
    pub turnstile: Arc<Turnstile>,
    /// What is logged seldom.
    pub warnings: Warnings,
}

/// Failed handshakes that are told of, each by a line: an operator who rolls out certificates wants to see
/// who has none.
const HANDSHAKES_A_MINUTE: u64 = 20;

/// What clients can bring about as often as they like.
#[derive(Debug)]
pub struct Warnings {
    /// As many clients as there may be.
    pub full: Seldom,
    /// The system has no socket for a client.
    pub accepts: Seldom,
    /// A client did not get through its handshake.
    pub handshakes: Seldom,
    /// Somebody speaks HTTP.
    pub cross_protocol: Seldom,
    /// It is not clear whose reply Redis sent.
    pub uncountable: Seldom,
    /// A client reads nothing, and what it sent cannot go on before it does.
    pub starved: Seldom,
    /// A transaction changed its connection too often.
    pub endless: Seldom,
}

impl Default for Warnings {
    fn default() -> Self {
        Self {
            full: Seldom::new(1),
            accepts: Seldom::new(1),
            handshakes: Seldom::new(HANDSHAKES_A_MINUTE),
            cross_protocol: Seldom::new(1),
            uncountable: Seldom::new(1),
            starved: Seldom::new(1),
            endless: Seldom::new(1),
        }
    }
}

impl Shared {
    fn locks(&self, database: u32, pattern: Option<Bytes>, count: Option<usize>) -> Vec<Bytes> {
        let pattern = pattern.map(|pattern| Pattern::new(&pattern));
        let matches = |name: &[u8]| pattern.as_ref().is_none_or(|it| it.matches(name));
        let (count, most_bytes) = (count.unwrap_or(LOCKS_COUNT), self.limits.relay_bytes);
        self.gate.locks(database, count, most_bytes, matches)
    }

    /// What is counted.
    pub fn counters(&self) -> &Counters {
        self.gate.counters()
    }

    /// What is measured, but for what is but what it is now.
    pub fn measured(&self) -> Measured<'_> {
        Measured {
            locks: self.gate.metrics(),
            upstream: self.gate.upstream_metrics(),
            relays: &self.relays,
        }
    }

    fn unreachable(&self, error: &io::Error) -> String {
        let upstream = self.upstream.as_ref().map(|address| &*address.endpoint);
        upstream.map_or_else(String::new, |upstream| error::unreachable(upstream, error))
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            now: clock::now(),
            started: self.started,
            run_id: &self.run_id,
            port: self.port,
            clients: self.clients.load(Ordering::Relaxed),
            max_clients: self.live.most_clients(),
            waiters: self.gate.waiters(),
            locks: self.gate.known(),
            kept_reply_bytes: self.budget.taken(),
            counters: self.counters(),
            measured: self.measured(),
            upstream: self.upstream.as_ref().map(|address| &*address.endpoint),
        }
    }
}

/// Serves one client until its connection has ended. When `shutdown` says so, who waits is told,
/// and what runs is finished.
pub async fn serve(
    shared: Arc<Shared>,
    stream: Stream,
    peer: String,
    id: u64,
    mut shutdown: watch::Receiver<bool>,
) {
    // A socket that takes no options is gone already.
    let Ok(mut session) = Session::new(shared, stream, &peer, id) else {
        return;
    };
    let changes = shutdown.clone();
    let mut told = pin!(shutdown.wait_for(|shutdown| *shutdown));
    let (mut awaited, mut draining) = (false, false);
    poll_fn(|cx| {
        // A task has one waker, so to wait for what changes once it is enough to be polled once; the
        // session is polled with every packet.
        if !draining && (!awaited || changes.has_changed().unwrap_or(true)) {
            awaited = true;
            if told.as_mut().poll(cx).is_ready() {
                draining = true;
                session.drain();
            }
        }
        session.poll(cx)
    })
    .await;
}
