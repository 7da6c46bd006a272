//! The metrics of lockgate's own commands to Redis, on its own connections. Each command counts by its purpose when
//! it is sent. For requests about locks the time until Redis's reply counts, too.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use super::{
    exposition::{Family, Sample},
    histogram::{Histogram, ROUND_TRIPS},
    sentinel::SentinelMetrics,
};
use crate::{clock, telemetry::counters::Counter};

/// The metrics of the upstream.
#[derive(Debug)]
pub struct UpstreamMetrics {
    commands: [Counter; PURPOSES.len()],
    /// How long Redis took to reply to a request about a lock.
    pub latency: Histogram<{ ROUND_TRIPS.len() }>,
    acknowledgements: Histogram<{ ROUND_TRIPS.len() }>,
    unacknowledged: Counter,
    pub(crate) in_flight: AtomicUsize,
    open: AtomicUsize,
    reconnects: Counter,
    failures: Counter,
    pushes: Counter,
    losses: Counter,
    can_lock: AtomicBool,
    /// When a shared connection broke, in microseconds of the process clock; 0 since one was opened again.
    lost_at: AtomicU64,
    /// How long that took the last time, in microseconds.
    outage: AtomicU64,
    sentinels: OnceLock<Arc<SentinelMetrics>>,
}

/// The purpose of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A plain `SET` that takes a lock about which nothing is known.
    Set,
    /// The script that takes a lock or returns its holder.
    Acquire,
    /// The script that releases a lock to the next waiter.
    Handover,
    /// The script that releases a lock.
    Release,
    /// The script that extends or renews a lease.
    Extend,
    /// The script that returns the holder of a lock.
    Check,
    /// The script that writes a lease back.
    WriteBack,
    /// The script that deletes a dead token that Redis holds again.
    DeleteDead,
    /// The command behind `LOCKINFO`.
    Status,
    /// The command behind `LOCKS`.
    List,
    /// A command that finds the text of an error that a script does not return.
    Explain,
    /// A check whether the connection is alive.
    Ping,
    /// A check of Redis's identity, and whether it lost data.
    Info,
    /// The first commands on a connection.
    Setup,
    /// A check whether clients need a password.
    Admission,
    /// The write and the `WAIT` by which replicas acknowledge grants, together.
    Acknowledge,
}

/// The names of the purposes, in the order of the variants.
const PURPOSES: [(Purpose, &str); 16] = [
    (Purpose::Set, "set"),
    (Purpose::Acquire, "acquire"),
    (Purpose::Handover, "handover"),
    (Purpose::Release, "release"),
    (Purpose::Extend, "extend"),
    (Purpose::Check, "check"),
    (Purpose::WriteBack, "write_back"),
    (Purpose::DeleteDead, "delete_dead"),
    (Purpose::Status, "status"),
    (Purpose::List, "list"),
    (Purpose::Explain, "explain"),
    (Purpose::Ping, "ping"),
    (Purpose::Info, "info"),
    (Purpose::Setup, "setup"),
    (Purpose::Admission, "admission"),
    (Purpose::Acknowledge, "acknowledge"),
];

const _: () = {
    let mut at = 0;
    while at < PURPOSES.len() {
        assert!(PURPOSES[at].0 as usize == at, "the order of the variants");
        at += 1;
    }
};

/// An open shared connection. Dropping it counts it as closed.
#[derive(Debug)]
pub struct Open(Arc<UpstreamMetrics>);

impl UpstreamMetrics {
    /// Creates the metrics at zero.
    pub const fn new() -> Self {
        Self {
            commands: [const { Counter::new() }; PURPOSES.len()],
            latency: Histogram::new(&ROUND_TRIPS),
            acknowledgements: Histogram::new(&ROUND_TRIPS),
            unacknowledged: Counter::new(),
            in_flight: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            reconnects: Counter::new(),
            failures: Counter::new(),
            pushes: Counter::new(),
            losses: Counter::new(),
            can_lock: AtomicBool::new(true),
            lost_at: AtomicU64::new(0),
            outage: AtomicU64::new(0),
            sentinels: OnceLock::new(),
        }
    }

    /// Counts a command that is sent.
    pub fn sent(&self, purpose: Purpose) {
        self.commands[purpose as usize].count();
    }

    /// Counts a command that is sent, and that is in flight until it is [settled](Self::settled).
    pub fn asked(&self, purpose: Purpose) {
        self.sent(purpose);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts commands that were answered or given up.
    pub fn settled(&self, commands: usize) {
        self.in_flight.fetch_sub(commands, Ordering::Relaxed);
    }

    /// Counts a grant or a renewal that the replicas acknowledged after this many microseconds.
    pub fn acknowledged(&self, micros: u64) {
        self.acknowledgements.count(micros);
    }

    /// Counts a grant or a renewal that too few replicas acknowledged.
    pub fn unacknowledged(&self) {
        self.unacknowledged.count();
    }

    /// Counts a shared connection that was opened; `again` after one that broke.
    pub fn opened(self: &Arc<Self>, again: bool) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        if again {
            self.reconnects.count();
            let lost_at = self.lost_at.swap(0, Ordering::Relaxed);
            let outage = clock::now().micros().saturating_sub(lost_at);
            if lost_at != 0 {
                self.outage.store(outage, Ordering::Relaxed);
            }
        }
        Open(Arc::clone(self))
    }

    /// Records that a shared connection broke.
    pub fn lost(&self) {
        let now = clock::now().micros();
        // The first of several that break at a time counts.
        let _ = self
            .lost_at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Counts a shared connection that could not be opened.
    pub fn failed(&self) {
        self.failures.count();
    }

    /// Adds the metrics of the sentinels that name the master.
    pub fn with_sentinels(&self, sentinels: &Arc<SentinelMetrics>) {
        // The instance is wired once.
        let _ = self.sentinels.set(Arc::clone(sentinels));
    }

    /// Counts a push from Redis.
    pub fn pushed(&self) {
        self.pushes.count();
    }

    /// Counts a data loss of Redis.
    pub fn lost_data(&self) {
        self.losses.count();
    }

    /// Records whether Redis takes locks, as far as is known.
    pub fn can_lock(&self, can_lock: bool) {
        self.can_lock.store(can_lock, Ordering::Relaxed);
    }

    /// Returns how long it took to open a shared connection again, the last time that one broke.
    pub fn last_outage_ms(&self) -> u64 {
        self.outage.load(Ordering::Relaxed) / 1_000
    }

    /// Returns the number of commands that were sent.
    pub fn commands(&self) -> u64 {
        self.commands.iter().map(Counter::get).sum()
    }

    /// Returns all families.
    pub fn families(&self) -> Vec<Family> {
        let commands = PURPOSES.iter().zip(&self.commands);
        let commands = commands.map(|((_, name), count)| Sample::of("kind", name, count.get()));
        let mut families = vec![
            Family::counters(
                "lockgate_upstream_commands_total",
                "Commands that lockgate itself sent to Redis, by what they are for.",
                commands.collect(),
            ),
            Family::gauge(
                "lockgate_upstream_can_lock",
                "1 while Redis takes locks, as far as is known; 0 while it refuses them to everybody, or cannot be reached.",
                usize::from(self.can_lock.load(Ordering::Relaxed)),
            ),
            Family::histogram(
                "lockgate_upstream_latency_seconds",
                "How long Redis took to answer a question about a lock.",
                self.latency.get(),
            ),
            Family::histogram(
                "lockgate_acknowledgement_seconds",
                "How long replicas took to acknowledge a grant or a renewal (REPLICAS).",
                self.acknowledgements.get(),
            ),
            Family::counter(
                "lockgate_grants_unacknowledged_total",
                "Grants and renewals that too few replicas acknowledged in time (REPLICAS).",
                self.unacknowledged.get(),
            ),
            Family::gauge(
                "lockgate_upstream_in_flight",
                "Commands on shared connections that Redis has not answered.",
                self.in_flight.load(Ordering::Relaxed),
            ),
            Family::gauge(
                "lockgate_upstream_connections",
                "Shared connections to Redis that are open: one for each user and database with locks.",
                self.open.load(Ordering::Relaxed),
            ),
            Family::counter(
                "lockgate_upstream_reconnects_total",
                "Shared connections that were opened again after they broke.",
                self.reconnects.get(),
            ),
            Family::counter(
                "lockgate_upstream_connect_failures_total",
                "Attempts to open a shared connection that failed.",
                self.failures.get(),
            ),
            Family::counter(
                "lockgate_upstream_pushes_total",
                "Pushes of Redis that told of a change.",
                self.pushes.get(),
            ),
            Family::counter(
                "lockgate_upstream_data_losses_total",
                "Times that Redis was found to have lost data: it restarted, or a replica took over.",
                self.losses.get(),
            ),
            Family::gauge_seconds(
                "lockgate_upstream_last_outage_seconds",
                "How long it took to open a shared connection again, the last time that one broke.",
                self.outage.load(Ordering::Relaxed),
            ),
        ];
        families.extend(self.sentinels.get().iter().flat_map(|it| it.families()));
        families
    }
}

impl Default for UpstreamMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
