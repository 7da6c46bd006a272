//! The metrics of absorbed commands: commands of Redis's own that take, release or extend locks, and that lockgate
//! answers or passes on.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::exposition::{Family, Sample};
use crate::telemetry::counters::Counter;

/// The metrics of absorbed commands.
#[derive(Debug)]
pub struct AbsorbMetrics {
    attempts: Labelled<6>,
    releases: Labelled<3>,
    saved: Counter,
    passed: Labelled<9>,
    parked: AtomicUsize,
    ended_early: Labelled<3>,
}

/// The answer to an absorbed attempt to acquire a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptAnswer {
    /// Granted: the lock was free.
    Free,
    /// Granted by the handover of another client's release.
    Handover,
    /// Granted after a wait until the lock was found free.
    Waited,
    /// Granted to the token that held it already.
    Again,
    /// Refused at once.
    RefusedAtOnce,
    /// Refused after it was parked.
    RefusedParked,
}

/// The outcome of an absorbed release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseHow {
    /// The lock is free, or went to the next waiter.
    Released,
    /// Redis said that the token does not hold the lock.
    NotHeld,
    /// This instance knew that the token does not hold the lock.
    FromMemory,
}

/// The reason why a command about the key of an absorbed lock was not absorbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassedReason {
    /// It sets no expiry.
    NoExpiry,
    /// Its lease is not from `lock.min_lease` to `lock.max_lease`.
    Lease,
    /// Its token is empty or too long.
    Token,
    /// It names more than one key, or a key that is no name of a lock.
    Keys,
    /// Its script is unknown.
    Script,
    /// Its user has too few rights for lockgate's own commands.
    Rights,
    /// A limit was reached.
    Limit,
    /// It is part of a transaction.
    Transaction,
    /// The instance is shutting down.
    Draining,
}

/// The reason why the parking of an attempt ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyEnd {
    /// The client sent another command behind it.
    Behind,
    /// Too many connections of the client's address were parked.
    Share,
    /// The client closed the connection.
    Closed,
}

/// A parked attempt. Dropping it counts it as over.
#[derive(Debug)]
pub struct Parked(Arc<AbsorbMetrics>);

impl AbsorbMetrics {
    /// Creates the metrics at zero.
    pub const fn new() -> Self {
        // The values of each label stand in the order of its enum.
        Self {
            attempts: Labelled::new([
                "free",
                "handover",
                "waited",
                "again",
                "refused_at_once",
                "refused_parked",
            ]),
            releases: Labelled::new(["released", "not_held", "from_memory"]),
            saved: Counter::new(),
            passed: Labelled::new([
                "no_expiry",
                "lease",
                "token",
                "keys",
                "script",
                "rights",
                "limit",
                "transaction",
                "draining",
            ]),
            parked: AtomicUsize::new(0),
            ended_early: Labelled::new(["behind", "share", "closed"]),
        }
    }

    /// Counts an attempt to acquire a lock.
    pub fn attempt(&self, answer: AttemptAnswer) {
        self.attempts.count(answer as usize);
    }

    /// Counts a release.
    pub fn release(&self, how: ReleaseHow) {
        self.releases.count(how as usize);
    }

    /// Counts commands of clients that cost Redis none.
    pub fn saved(&self, commands: u64) {
        self.saved.add(commands);
    }

    /// Counts a command that passed to Redis or, without one, was answered as it is.
    pub fn passed(&self, reason: PassedReason) {
        self.passed.count(reason as usize);
    }

    /// Counts an attempt as parked.
    pub fn parked(self: &Arc<Self>) -> Parked {
        self.parked.fetch_add(1, Ordering::Relaxed);
        Parked(Arc::clone(self))
    }

    /// Counts a parking that ended before its time.
    pub fn ended_early(&self, why: EarlyEnd) {
        self.ended_early.count(why as usize);
    }

    /// Returns all families.
    pub fn families(&self) -> Vec<Family> {
        vec![
            Family::counters(
                "lockgate_absorbed_attempts_total",
                "Absorbed attempts: granted as LOCK is, refused at once, or refused after they were parked.",
                self.attempts.samples("answer"),
            ),
            Family::counters(
                "lockgate_absorbed_releases_total",
                "Absorbed releases: released (the lock may have gone to the next waiter), or not held by this token as Redis or this instance's memory said.",
                self.releases.samples("how"),
            ),
            Family::counter(
                "lockgate_absorbed_commands_saved_total",
                "Commands of clients that were absorbed and cost Redis none.",
                self.saved.get(),
            ),
            Family::counters(
                "lockgate_absorb_passed_total",
                "Commands about keys of absorb.keys or absorb.try_keys (without a Redis: any key) that were not absorbed, by reason: Redis, or lockgate without one, replied to them as they are.",
                self.passed.samples("reason"),
            ),
            Family::gauge(
                "lockgate_absorb_parked",
                "Absorbed attempts that are parked now.",
                self.parked.load(Ordering::Relaxed),
            ),
            Family::counters(
                "lockgate_absorb_ended_early_total",
                "Attempts parked for less than absorb.park: another command came behind, too many connections of the address were parked, or the client closed.",
                self.ended_early.samples("why"),
            ),
        ]
    }
}

impl Default for AbsorbMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of one family, one for each value of its label.
#[derive(Debug)]
struct Labelled<const N: usize> {
    values: [&'static str; N],
    counters: [Counter; N],
}

impl<const N: usize> Labelled<N> {
    const fn new(values: [&'static str; N]) -> Self {
        Self {
            values,
            counters: [const { Counter::new() }; N],
        }
    }

    fn count(&self, value: usize) {
        self.counters[value].count();
    }

    fn samples(&self, label: &'static str) -> Vec<Sample> {
        let counters = self.values.iter().zip(&self.counters);
        counters
            .map(|(value, counter)| Sample::of(label, value, counter.get()))
            .collect()
    }
}
