//! The metrics of the sentinels that name the master.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use super::exposition::Family;
use crate::telemetry::counters::Counter;

/// The metrics of the sentinels.
#[derive(Debug, Default)]
pub struct SentinelMetrics {
    known: AtomicUsize,
    heard: AtomicUsize,
    failovers: Counter,
    /// When the last one was, in seconds since 1970; 0 where there was none.
    last_failover: AtomicU64,
    pauses: Counter,
}

impl SentinelMetrics {
    /// Records how many sentinels there are, and how many of them replied lately.
    pub fn sentinels(&self, known: usize, heard: usize) {
        self.known.store(known, Ordering::Relaxed);
        self.heard.store(heard, Ordering::Relaxed);
    }

    /// Counts a change of the master.
    pub fn failed_over(&self) {
        self.failovers.count();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        self.last_failover.store(now, Ordering::Relaxed);
    }

    /// Counts a pause of the locks for a failover.
    pub fn paused(&self) {
        self.pauses.count();
    }

    /// Returns how many sentinels there are, and how many of them replied lately.
    pub fn known_and_heard(&self) -> (usize, usize) {
        let get = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        (get(&self.known), get(&self.heard))
    }

    /// Returns when sentinels last announced another master, in seconds since 1970.
    pub fn last_failover(&self) -> Option<u64> {
        Some(self.last_failover.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Returns all families.
    pub fn families(&self) -> Vec<Family> {
        vec![
            Family::gauge(
                "lockgate_sentinels",
                "Sentinels of the service, as far as they say.",
                self.known.load(Ordering::Relaxed),
            ),
            Family::gauge(
                "lockgate_sentinels_heard",
                "Sentinels that replied lately.",
                self.heard.load(Ordering::Relaxed),
            ),
            Family::counter(
                "lockgate_failovers_total",
                "Changes of the master that sentinels announced.",
                self.failovers.get(),
            ),
            Family::gauge(
                "lockgate_last_failover_timestamp_seconds",
                "When sentinels last announced another master, in seconds since 1970; 0 where they never did.",
                usize::try_from(self.last_failover.load(Ordering::Relaxed)).unwrap_or(usize::MAX),
            ),
            Family::counter(
                "lockgate_failover_pauses_total",
                "Times that locks stood still while a failover promoted a replica.",
                self.pauses.get(),
            ),
        ]
    }
}
