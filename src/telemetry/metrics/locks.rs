//! The metrics of locks, counted by the gate from the events of their queues: requests and their outcomes, leases
//! from their grant to their end.
//!
//! **Polls avoided** is an estimate, and its name says so: a request that waited 120 ms would, polling every 50 ms
//! (`metrics.poll_interval`), have sent Redis two commands in vain after its first attempt. It is added when the
//! wait is over, whatever its outcome; a wait shorter than the interval adds nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    exposition::{Family, Sample},
    histogram::{Histogram, WAITS},
};
use crate::{
    lock::{EndReason, GrantKind, LockMetric, Reply, Time},
    telemetry::counters::Counter,
};

/// The metrics of locks.
#[derive(Debug)]
pub struct LockMetrics {
    poll_interval_micros: u64,
    /// Time from a request to its grant.
    pub wait: Histogram<{ WAITS.len() }>,
    /// Time from a grant to the end of its lease.
    pub hold: Histogram<{ WAITS.len() }>,
    grants: Grants,
    timeouts: Counter,
    busy: Counter,
    departures: Counter,
    errors: Counter,
    undelivered: Counter,
    unlocks: Results,
    relocks: Results,
    leases: AtomicUsize,
    endings: Endings,
    lost_sessions: Counter,
    renewals: Counter,
    failed_renewals: Counter,
    yields: Counter,
    in_vain_on_push: Counter,
    in_vain_otherwise: Counter,
    told_of_nothing: Counter,
    polls_avoided: Counter,
}

/// Grants, by how they came about.
#[derive(Debug)]
struct Grants {
    free: Counter,
    handover: Counter,
    waited: Counter,
    again: Counter,
}

/// Outcomes of owners' requests.
#[derive(Debug)]
struct Results {
    done: Counter,
    not_held: Counter,
    error: Counter,
}

/// Leases that are over, by how they ended.
#[derive(Debug)]
struct Endings {
    released: Counter,
    handed_over: Counter,
    ran_out: Counter,
    lost: Counter,
}

/// The command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// `LOCK`.
    Lock,
    /// `TRYLOCK`.
    TryLock,
    /// `UNLOCK`.
    Unlock,
    /// `RELOCK`.
    Relock,
    /// An attempt of a client that spins. The session counts its reply.
    Attempt,
    /// A release or an extension by a command of Redis's own. The session counts its reply.
    Absorbed,
}

impl Request {
    /// Returns whether the request asks for the lock.
    pub fn wants_lock(self) -> bool {
        matches!(self, Self::Lock | Self::TryLock | Self::Attempt)
    }

    /// Returns whether the request came by a command of Redis's own. The session counts its reply.
    pub fn is_absorbed(self) -> bool {
        matches!(self, Self::Attempt | Self::Absorbed)
    }
}

impl LockMetrics {
    /// Creates the metrics at zero. Polls avoided are those of clients that poll at this interval, at least a
    /// microsecond.
    pub const fn new(poll_interval_micros: u64) -> Self {
        Self {
            poll_interval_micros,
            wait: Histogram::new(&WAITS),
            hold: Histogram::new(&WAITS),
            grants: Grants {
                free: Counter::new(),
                handover: Counter::new(),
                waited: Counter::new(),
                again: Counter::new(),
            },
            timeouts: Counter::new(),
            busy: Counter::new(),
            departures: Counter::new(),
            errors: Counter::new(),
            undelivered: Counter::new(),
            unlocks: Results::new(),
            relocks: Results::new(),
            leases: AtomicUsize::new(0),
            endings: Endings {
                released: Counter::new(),
                handed_over: Counter::new(),
                ran_out: Counter::new(),
                lost: Counter::new(),
            },
            lost_sessions: Counter::new(),
            renewals: Counter::new(),
            failed_renewals: Counter::new(),
            yields: Counter::new(),
            in_vain_on_push: Counter::new(),
            in_vain_otherwise: Counter::new(),
            told_of_nothing: Counter::new(),
            polls_avoided: Counter::new(),
        }
    }

    /// Counts the reply to a request, and the time that it took. The client may have `left` meanwhile.
    pub fn answered(&self, request: Request, micros: u64, reply: &Reply, left: bool) {
        if request == Request::Lock {
            self.waited(micros);
        }
        match (request, reply) {
            _ if request.is_absorbed() => {}
            (_, Reply::Granted { how, .. }) => {
                self.wait.count(micros);
                self.grants.of(*how).count();
            }
            (_, Reply::Nil) if left => self.departures.count(),
            (Request::TryLock, Reply::Nil) => self.busy.count(),
            (_, Reply::Nil) => self.timeouts.count(),
            (Request::Unlock, _) => self.unlocks.of(reply).count(),
            (Request::Relock, _) => self.relocks.of(reply).count(),
            _ => self.errors.count(),
        }
    }

    /// Counts an `UNLOCK` or `RELOCK` that needed no request to the store: its token cannot hold a lock.
    pub fn answered_at_once(&self, request: Request) {
        self.answered(request, 0, &Reply::NotHeld, false);
    }

    /// Counts a `LOCK` or `TRYLOCK` whose client left after this time, before the reply.
    pub fn left(&self, request: Request, micros: u64) {
        if request == Request::Lock {
            self.waited(micros);
        }
        if !request.is_absorbed() {
            self.departures.count();
        }
    }

    fn waited(&self, micros: u64) {
        let polls = micros / self.poll_interval_micros.max(1);
        if polls > 0 {
            self.polls_avoided.add(polls);
        }
    }

    /// Counts a grant that reached no client.
    pub fn undelivered(&self) {
        self.undelivered.count();
    }

    /// Counts the lease of one queue: whether it had one `before`, and has one `now`.
    pub fn lease_changed(&self, before: bool, now: bool) {
        match (before, now) {
            (false, true) => self.leases.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.leases.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Returns the number of this instance's leases that are not over.
    pub fn leases(&self) -> usize {
        self.leases.load(Ordering::Relaxed)
    }

    /// Counts a client that was notified that the lease bound to its connection is lost.
    pub fn lost_session(&self) {
        self.lost_sessions.count();
    }

    /// Counts an event of a lock that happened just now.
    pub fn happened(&self, now: Time, what: LockMetric) {
        match what {
            LockMetric::LeaseOver { since, how } => {
                self.hold.count(now.micros_since(since));
                self.endings.of(how).count();
            }
            LockMetric::Yielded => self.yields.count(),
            LockMetric::Renewed => self.renewals.count(),
            LockMetric::NotRenewed => self.failed_renewals.count(),
            LockMetric::InVain { on_push: true } => self.in_vain_on_push.count(),
            LockMetric::InVain { on_push: false } => self.in_vain_otherwise.count(),
            LockMetric::ToldOfNothing => self.told_of_nothing.count(),
            LockMetric::Crowded { .. } => {}
        }
    }

    /// Returns all families.
    pub fn families(&self) -> Vec<Family> {
        let grants = &self.grants;
        let endings = &self.endings;
        vec![
            Family::counters(
                "lockgate_grants_total",
                "Grants: of a lock found free, by handover, after waiting until it was found free, or to the same token again.",
                samples(
                    "how",
                    [
                        ("free", &grants.free),
                        ("handover", &grants.handover),
                        ("waited", &grants.waited),
                        ("again", &grants.again),
                    ],
                ),
            ),
            Family::histogram(
                "lockgate_wait_seconds",
                "From a LOCK or TRYLOCK to its grant.",
                self.wait.get(),
            ),
            Family::histogram(
                "lockgate_hold_seconds",
                "From a grant to the end of its lease, whatever ended it.",
                self.hold.get(),
            ),
            Family::gauge(
                "lockgate_leases",
                "Leases that this instance granted or extended and that are not over.",
                self.leases.load(Ordering::Relaxed),
            ),
            Family::counters(
                "lockgate_leases_ended_total",
                "Leases that are over: released, handed over, run out, or lost (overwritten or deleted in Redis).",
                samples(
                    "how",
                    [
                        ("released", &endings.released),
                        ("handed_over", &endings.handed_over),
                        ("ran_out", &endings.ran_out),
                        ("lost", &endings.lost),
                    ],
                ),
            ),
            Family::counter(
                "lockgate_timeouts_total",
                "LOCK commands whose WAIT ran out.",
                self.timeouts.get(),
            ),
            Family::counter(
                "lockgate_busy_trylocks_total",
                "TRYLOCK commands that found the lock held or awaited.",
                self.busy.get(),
            ),
            Family::counter(
                "lockgate_waiters_left_total",
                "LOCK and TRYLOCK commands whose client closed before they were answered.",
                self.departures.get(),
            ),
            Family::counter(
                "lockgate_lock_errors_total",
                "LOCK and TRYLOCK commands that the gate or Redis answered with an error.",
                self.errors.get(),
            ),
            Family::counter(
                "lockgate_undelivered_grants_total",
                "Grants that reached no client, and were given to the next one or taken back.",
                self.undelivered.get(),
            ),
            Family::counters(
                "lockgate_unlocks_total",
                "UNLOCK commands: released, not held by this token, or answered with an error.",
                self.unlocks.samples("released"),
            ),
            Family::counters(
                "lockgate_relocks_total",
                "RELOCK commands: extended, not held by this token, or answered with an error.",
                self.relocks.samples("extended"),
            ),
            Family::counter(
                "lockgate_lost_sessions_total",
                "SESSION owners that were told that their lock is lost.",
                self.lost_sessions.get(),
            ),
            Family::counter(
                "lockgate_renewals_total",
                "Leases of SESSION that were renewed.",
                self.renewals.get(),
            ),
            Family::counter(
                "lockgate_failed_renewals_total",
                "Renewals of a SESSION's lease that Redis refused or did not answer; each is tried again while the lease lasts.",
                self.failed_renewals.get(),
            ),
            Family::counter(
                "lockgate_yields_total",
                "Locks that were released although clients wait here, since handovers were many in a row.",
                self.yields.get(),
            ),
            Family::counters(
                "lockgate_asks_in_vain_total",
                "Questions for a lock that found it held elsewhere: asked because Redis told of a change, or for another reason. Many instances at one lock show here first.",
                samples(
                    "cause",
                    [
                        ("push", &self.in_vain_on_push),
                        ("other", &self.in_vain_otherwise),
                    ],
                ),
            ),
            Family::counter(
                "lockgate_pushes_of_nothing_total",
                "Pushes about locks that had not changed: Redis forgets what it tracks when its table is full (tracking-table-max-keys) or any database is flushed.",
                self.told_of_nothing.get(),
            ),
            Family::counter(
                "lockgate_estimated_polls_avoided_total",
                "An estimate, not a measurement: SETs in vain that the clients who waited would have sent after their first, had they polled every metrics.poll_interval; added at the end of each wait.",
                self.polls_avoided.get(),
            ),
        ]
    }
}

impl Grants {
    fn of(&self, how: GrantKind) -> &Counter {
        match how {
            GrantKind::Free => &self.free,
            GrantKind::Handover => &self.handover,
            GrantKind::Waited => &self.waited,
            GrantKind::Again => &self.again,
        }
    }
}

impl Endings {
    fn of(&self, how: EndReason) -> &Counter {
        match how {
            EndReason::Released => &self.released,
            EndReason::HandedOver => &self.handed_over,
            EndReason::RanOut => &self.ran_out,
            EndReason::Lost => &self.lost,
        }
    }
}

impl Results {
    const fn new() -> Self {
        Self {
            done: Counter::new(),
            not_held: Counter::new(),
            error: Counter::new(),
        }
    }

    fn of(&self, reply: &Reply) -> &Counter {
        match reply {
            Reply::Done => &self.done,
            Reply::NotHeld => &self.not_held,
            _ => &self.error,
        }
    }

    fn samples(&self, done: &'static str) -> Vec<Sample> {
        let (not_held, error) = (&self.not_held, &self.error);
        samples(
            "result",
            [(done, &self.done), ("not_held", not_held), ("error", error)],
        )
    }
}

/// Returns one sample for each value of a label.
pub(super) fn samples<const N: usize>(
    label: &'static str,
    counters: [(&'static str, &Counter); N],
) -> Vec<Sample> {
    let sample = |(value, counter): (_, &Counter)| Sample::of(label, value, counter.get());
    counters.into_iter().map(sample).collect()
}
