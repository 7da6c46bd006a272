//! What lockgate itself asks Redis, on connections of its own: each command counts when it is sent, by
//! what it is for, and the questions about locks tell how long Redis took to answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{
    exposition::{Family, Sample},
    histogram::{Histogram, ROUND_TRIPS},
};
use crate::counters::Counter;

/// What is counted of the upstream.
#[derive(Debug)]
pub struct UpstreamMetrics {
    commands: [Counter; PURPOSES.len()],
    /// How long Redis took to answer a question about a lock.
    pub latency: Histogram<{ ROUND_TRIPS.len() }>,
    in_flight: AtomicUsize,
    open: AtomicUsize,
    reconnects: Counter,
    failures: Counter,
    pushes: Counter,
    losses: Counter,
}

/// What a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A plain `SET` that takes a lock of which nothing is known.
    Acquire,
    /// The script that takes a lock or tells who holds it.
    Ask,
    /// The script that releases a lock to the next one.
    Handover,
    /// The script that releases.
    Release,
    /// The script that extends or renews a lease.
    Extend,
    /// The script that tells who holds a lock.
    Check,
    /// The script that writes a lease back.
    Restore,
    /// The script that deletes a dead token which Redis holds again.
    Bury,
    /// For `LOCKINFO`.
    Look,
    /// For `LOCKS`.
    List,
    /// What finds the words of an error that a script does not tell.
    Explain,
    /// Whether the connection lives.
    Ping,
    /// Who Redis is, and whether it lost data.
    Info,
    /// The first words on a connection.
    Setup,
    /// Whether clients need a password.
    Admission,
}

/// Their names, in the order of the variants.
const PURPOSES: [(Purpose, &str); 15] = [
    (Purpose::Acquire, "acquire"),
    (Purpose::Ask, "ask"),
    (Purpose::Handover, "handover"),
    (Purpose::Release, "release"),
    (Purpose::Extend, "extend"),
    (Purpose::Check, "check"),
    (Purpose::Restore, "restore"),
    (Purpose::Bury, "bury"),
    (Purpose::Look, "look"),
    (Purpose::List, "list"),
    (Purpose::Explain, "explain"),
    (Purpose::Ping, "ping"),
    (Purpose::Info, "info"),
    (Purpose::Setup, "setup"),
    (Purpose::Admission, "admission"),
];

const _: () = {
    let mut at = 0;
    while at < PURPOSES.len() {
        assert!(PURPOSES[at].0 as usize == at, "the order of the variants");
        at += 1;
    }
};

/// A shared connection that is open. Dropped, it is not.
#[derive(Debug)]
pub struct Open(Arc<UpstreamMetrics>);

/// A command that was sent. Dropped, it is answered or given up.
#[derive(Debug)]
pub struct InFlight<'a>(&'a UpstreamMetrics);

impl UpstreamMetrics {
    /// Nothing was asked yet.
    pub const fn new() -> Self {
        Self {
            commands: [const { Counter::new() }; PURPOSES.len()],
            latency: Histogram::new(&ROUND_TRIPS),
            in_flight: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            reconnects: Counter::new(),
            failures: Counter::new(),
            pushes: Counter::new(),
            losses: Counter::new(),
        }
    }

    /// A command is sent.
    pub fn sent(&self, purpose: Purpose) {
        self.commands[purpose as usize].count();
    }

    /// The same, and until it is answered it counts as on its way.
    pub fn asked(&self, purpose: Purpose) -> InFlight<'_> {
        self.sent(purpose);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self)
    }

    /// A shared connection was opened; `again` after one that broke.
    pub fn opened(self: &Arc<Self>, again: bool) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        if again {
            self.reconnects.count();
        }
        Open(Arc::clone(self))
    }

    /// A shared connection could not be opened.
    pub fn failed(&self) {
        self.failures.count();
    }

    /// Redis told of a change.
    pub fn pushed(&self) {
        self.pushes.count();
    }

    /// Redis lost data.
    pub fn lost_data(&self) {
        self.losses.count();
    }

    /// All of it.
    pub fn families(&self) -> Vec<Family> {
        let commands = PURPOSES.iter().zip(&self.commands);
        let commands = commands.map(|((_, name), count)| Sample::of("kind", name, count.get()));
        vec![
            Family::counters(
                "lockgate_upstream_commands_total",
                "Commands that lockgate itself sent to Redis, by what they are for.",
                commands.collect(),
            ),
            Family::histogram(
                "lockgate_upstream_latency_seconds",
                "How long Redis took to answer a question about a lock.",
                self.latency.get(),
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
        ]
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

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
