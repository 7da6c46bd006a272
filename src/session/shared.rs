//! The state that all clients of an instance share.

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

use super::{
    Session, admission_queue::AdmissionQueue, budget::Budget, peers::Peers,
    unauthorized::Unauthorized,
};
use crate::{
    absorb::Rules,
    auth::{guard::Guard, identity::Users},
    clock,
    command::{self, glob::Pattern},
    config::live::LiveConfig,
    error,
    gate::Gate,
    limits::Limits,
    lock::{Time, Token},
    relay::{Instance, connector::Connector, local::information::Facts},
    sentinel::Sentinels,
    store::LockName,
    telemetry::{
        counters::Counters,
        log_limit::LogLimit,
        metrics::{Measured, absorb::AbsorbMetrics, relays::RelayMetrics},
    },
};

/// Most names in a reply to `LOCKS` without `COUNT`.
const LOCKS_COUNT: usize = 1_000;

/// The state that all clients share.
pub struct Shared {
    /// The gate, with the wait queues of all locks.
    pub gate: Arc<Gate>,
    /// The users on whose behalf lock commands run.
    pub users: Arc<Users>,
    /// The upstream Redis. `None`: this process keeps the locks.
    pub upstream: Option<Arc<Connector>>,
    /// Those that tell where the upstream is, where it is a service; they end with the instance.
    pub sentinels: Option<Arc<Sentinels>>,
    /// Longest wait for a reply of Redis, where the command sets no wait of its own.
    pub timeout: Duration,
    /// The check of lockgate's own password, where it has one.
    pub guard: Option<Guard>,
    /// Refuses clients of other machines, unless clients have to give a password or show a certificate.
    pub protected_mode: bool,
    /// The bounds on lock commands.
    pub bounds: command::Bounds,
    /// Lease of a lock command that names none, in milliseconds.
    pub default_lease_ms: u64,
    /// The number of replicas that acknowledge a grant to a request that names none.
    pub default_replicas: u32,
    /// Shortest lease of a `SESSION` lock, in milliseconds.
    pub min_session_lease_ms: u64,
    /// Idle time after which TCP keepalive probes the client's machine; zero: never.
    pub tcp_keepalive: Duration,
    /// Idle time after which lockgate closes a client, like Redis's `timeout`; zero: never.
    pub idle_timeout: Duration,
    /// The limits, except those that a reload may change.
    pub limits: Limits,
    /// The settings that a reload may change.
    pub live: Arc<LiveConfig>,
    /// The port that clients connect to; 0 without a TCP listener.
    pub port: u16,
    /// The monotonic time at which this instance started.
    pub started: Time,
    /// The same moment as calendar time.
    pub started_at: SystemTime,
    /// Forty hexadecimal digits, new with each start.
    pub run_id: String,
    /// The number of connected clients.
    pub clients: AtomicUsize,
    /// The memory for replies that clients have not read.
    pub budget: Arc<Budget>,
    /// The metrics of the clients' connections to Redis.
    pub relays: Arc<RelayMetrics>,
    /// The order in which clients enter after Redis has verified them.
    pub admission_queue: Arc<AdmissionQueue>,
    /// The addresses of the connected clients.
    pub peers: Arc<Peers>,
    /// The users without the rights that absorbed commands need.
    pub unauthorized: Unauthorized,
    /// The rate limits of log lines.
    pub warnings: Warnings,
}

/// Log lines a minute for failed handshakes: an operator who rolls out certificates needs to see which
/// clients lack one.
const HANDSHAKES_A_MINUTE: u64 = 20;

/// Log lines a minute for unknown scripts, each of which is reported once.
const UNKNOWN_SCRIPTS_A_MINUTE: u64 = 20;

/// Rate limits of log lines that clients can trigger.
#[derive(Debug)]
pub struct Warnings {
    /// The maximum number of clients is connected.
    pub full: LogLimit,
    /// The system has no socket for a client.
    pub accepts: LogLimit,
    /// A client's TLS handshake failed.
    pub handshakes: LogLimit,
    /// A client speaks HTTP.
    pub cross_protocol: LogLimit,
    /// A reply of Redis matches no command for certain.
    pub uncountable: LogLimit,
    /// A client reads nothing, and its commands cannot proceed before it does.
    pub starved: LogLimit,
    /// A transaction changes its connection too often.
    pub endless: LogLimit,
    /// A client closed its connection while its attempt was parked.
    pub impatient: LogLimit,
    /// A script on the keys of locks is unknown.
    pub unknown_scripts: LogLimit,
}

impl Default for Warnings {
    fn default() -> Self {
        Self {
            full: LogLimit::new(1),
            accepts: LogLimit::new(1),
            handshakes: LogLimit::new(HANDSHAKES_A_MINUTE),
            cross_protocol: LogLimit::new(1),
            uncountable: LogLimit::new(1),
            starved: LogLimit::new(1),
            endless: LogLimit::new(1),
            impatient: LogLimit::new(1),
            unknown_scripts: LogLimit::new(UNKNOWN_SCRIPTS_A_MINUTE),
        }
    }
}

impl Shared {
    pub(super) fn locks(
        &self,
        database: u32,
        pattern: Option<Bytes>,
        count: Option<usize>,
    ) -> Vec<Arc<[u8]>> {
        let pattern = pattern.map(|pattern| Pattern::new(&pattern));
        let matches = |name: &[u8]| pattern.as_ref().is_none_or(|it| it.matches(name));
        let (count, most_bytes) = (count.unwrap_or(LOCKS_COUNT), self.limits.relay_bytes);
        self.gate.locks(database, count, most_bytes, matches)
    }

    /// Returns the event counters.
    pub fn counters(&self) -> &Counters {
        self.gate.counters()
    }

    /// Returns the metrics of locks, of absorbed commands, of the upstream and of relays.
    pub fn measured(&self) -> Measured<'_> {
        Measured {
            locks: self.gate.metrics(),
            upstream: self.gate.upstream_metrics().map(|it| &**it),
            relays: &self.relays,
            absorbed: self.gate.absorbed(),
        }
    }

    /// Returns the metrics of absorbed commands.
    pub fn absorb_metrics(&self) -> &Arc<AbsorbMetrics> {
        self.gate.absorbed()
    }

    pub(super) fn unreachable(&self, error: &io::Error) -> String {
        let upstream = self.upstream.as_ref().map(|address| &*address.endpoint);
        upstream.map_or_else(String::new, |upstream| error::unreachable(upstream, error))
    }
}

impl Instance for Shared {
    fn connector(&self) -> Option<&Arc<Connector>> {
        self.upstream.as_ref()
    }

    fn relay_metrics(&self) -> &Arc<RelayMetrics> {
        &self.relays
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

    fn rules(&self) -> Arc<Rules> {
        self.live.rules()
    }

    fn token_of(&self, database: u32, key: &[u8]) -> Option<Token> {
        let key = self.live.rules().lock_name(key)?.into();
        let (token, _) = self.gate.holder(&LockName { database, key })?;
        Some(token)
    }
}

/// Serves one client, if there is one, until its connection has ended. On `shutdown`, waiting clients get an error and
/// commands in flight finish.
#[expect(
    clippy::manual_async_fn,
    reason = "an async function keeps room for an argument twice, and so does a caller that takes it out of an Option"
)]
pub(crate) fn serve(
    mut session: Option<Session>,
    mut shutdown: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send {
    async move {
        let Some(session) = &mut session else { return };
        let changes = shutdown.clone();
        let mut told = pin!(shutdown.wait_for(|shutdown| *shutdown));
        let (mut awaited, mut draining) = (false, false);
        poll_fn(|cx| {
            // The task has one waker, so a single poll registers it for the shutdown, which comes once. The
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
}
