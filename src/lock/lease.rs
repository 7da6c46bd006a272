//! The lease that this instance granted, and the chain of handovers that it belongs to.

use super::event::{
    Attempt, ConnectionId, Dead, DeadToken, EndReason, GrantKind, RequestId, Settings, Time, Token,
    UserId, WriteBack,
};
use super::fault::{Fault, planted};
use super::store_request::Deadline;

/// The grid of renewals, in milliseconds. The renewals of many locks travel together at its multiples, but too few at
/// once to delay other requests. For a short lease the grid is a fraction of the lease.
const RENEWAL_GRID_MS: u64 = 25;
const GRIDS_PER_LEASE: u64 = 120;

/// How long before the possible end of its lease a session is notified, in milliseconds; for a short lease, a twelfth
/// of the lease.
const TOLD_BEFORE_MS: u64 = 100;

/// A lease that this instance granted or extended, and that has not ended as far as it knows.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The user of the holder.
    pub user: UserId,
    /// The token of the holder.
    pub token: Token,
    /// A client knows the token: it named the token, or held the lease until its session ended. So the token may be in
    /// use at another instance, too.
    pub explicit: bool,
    /// The lease as requested, in milliseconds.
    pub lease_ms: u64,
    /// When the token first got the lock.
    pub since: Time,
    /// The earliest moment at which the store may end the lease, counted from before the request.
    pub expires_earliest: Time,
    /// The moment by which the store has ended the lease, counted from after the reply.
    pub expires_latest: Time,
    /// The deadline that this instance set in the store. None: the reply did not show that this instance set it, so it
    /// cannot distinguish its own grant from one made elsewhere.
    pub deadline: Option<Deadline>,
    /// The key may get a later deadline than this instance knows: another instance granted or extended the lease and may
    /// write it back, or a write-back of this instance got no reply and may yet be executed.
    pub may_be_longer: bool,
    /// The latest deadline that this instance set before an extension shortened the lease, and the moment by which the
    /// store would have ended it.
    pub shortened_from: Option<(Deadline, Time)>,
    /// How the grant came about, until the first reply takes it. `Free` becomes `Waited` there if the client waited for
    /// the lock.
    pub how: Option<GrantKind>,
    /// An equal token is another owner.
    pub strict: bool,
    /// The connection of the latest request that was granted the lease.
    pub connection: ConnectionId,
    /// The attempt that was granted the lease. None: a `LOCK`, or the attempt was over by then.
    pub attempt: Option<Attempt>,
    /// The number of clients that count on the lease: they were granted or extended it, and the driver did not report
    /// the grant undelivered.
    pub receivers: usize,
    /// The place in the queue that the lease was granted to.
    pub waiter: Option<u64>,
    /// The largest fence granted with it, if one was requested.
    pub fence: Option<u64>,
    /// The deadline in the store with which `fence` is certain. With another deadline the lock may have been lost,
    /// granted to others with a larger fence, and granted to this token again.
    pub fence_at: Option<Deadline>,
    /// The request whose connection the lease is bound to. The queue renews the lease while that connection lives.
    pub session: Option<RequestId>,
    /// The number of replicas that acknowledged the grant, and have to acknowledge its renewals.
    pub replicas: u32,
    /// When to renew the lease, if it is bound.
    pub renew_at: Time,
    /// A renewal got no reply: the store may have its deadline or the one before.
    pub renewal_unknown: bool,
    /// The store pushed a change, and no reply has shown since what it was.
    pub changed: bool,
    /// The acquisition did not read the key: the store will push no change.
    pub bare: bool,
    /// When to check whether the lease still stands: a push came, or may have been lost.
    pub check_at: Option<Time>,
}

impl Lease {
    /// Returns whether this token of this user holds the lease.
    pub fn is_of(&self, user: UserId, token: &Token) -> bool {
        self.user == user && self.token == *token
    }

    /// Returns when the client of a session is notified that the lease could not be renewed: a little before the store
    /// may end the lease, and so before any other client is granted the lock.
    pub fn lost_at(&self) -> Time {
        let margin = (self.lease_ms.saturating_mul(1_000) / 12).clamp(1, TOLD_BEFORE_MS * 1_000);
        Time::from_micros(self.expires_earliest.micros().saturating_sub(margin))
    }

    /// Returns the pause before the retry of a renewal that the store refused, in milliseconds: some twenty retries in
    /// a lease, within bounds.
    pub fn renewal_pause_ms(&self) -> u64 {
        (self.lease_ms / 32).clamp(100, 5_000)
    }

    /// Returns how the lease ended, if this instance did not end it.
    pub fn ending(&self, now: Time) -> EndReason {
        if now >= self.expires_earliest {
            EndReason::RanOut
        } else {
            EndReason::Lost
        }
    }

    /// Returns the fence, if the lease certainly has no larger one.
    pub fn sure_fence(&self) -> Option<u64> {
        self.fence.filter(|_| self.fence_at.is_some())
    }

    /// Returns the latest deadline that this instance set, and the moment by which the store will have ended that
    /// lease.
    pub fn longest(&self) -> Option<(Deadline, Time)> {
        let now = self
            .deadline
            .map(|deadline| (deadline, self.expires_latest));
        self.shortened_from.max(now)
    }

    /// Returns the record of the token as dead, up to this deadline. The token of a strict attempt is dead at exactly its
    /// own deadline: at any other one it may be another client's.
    pub fn dead_token(&self, not_after: Option<Deadline>) -> DeadToken {
        let shortened_from = self.shortened_from.map(|(deadline, _)| deadline);
        let (not_after, or_at) = match self.strict {
            true => (Some(Deadline(0)), self.deadline),
            false => (not_after, shortened_from),
        };
        DeadToken {
            token: self.token.clone(),
            dead: Dead {
                user: self.user,
                not_after,
                or_at,
            },
            expires_latest: self.longest().map_or(self.expires_latest, |(_, at)| at),
        }
    }

    /// Records that the lease still stands.
    pub fn confirm(&mut self) {
        self.changed = false;
        self.check_at = None;
    }

    /// Returns whether a store that lost the lease should get it back: a client counts on it, and no end of it is
    /// known.
    pub fn is_to_be_written_back(&self, now: Time, settings: &Settings) -> bool {
        is_wanted_back(self.session.is_some(), settings)
            && !planted(Fault::NotWrittenBack)
            && self.receivers > 0
            && (!self.changed || planted(Fault::WrittenBackThoughChanged))
            && now < self.expires_earliest
    }
}

/// Returns whether leases of this kind are written back.
pub fn is_wanted_back(session: bool, settings: &Settings) -> bool {
    match settings.write_back {
        WriteBack::All => true,
        WriteBack::Session => session,
        WriteBack::Off => false,
    }
}

/// The latest renewal, as a fraction of the lease; the earliest is the half of it. The wide range spreads the renewals
/// of many locks that were taken together.
pub const LATEST_RENEWAL: (u64, u64) = (2, 5);

/// Returns when to renew a lease that began at `since`, if that is to be after this many microseconds.
pub fn renewal(since: Time, lease_ms: u64, after: u64) -> Time {
    let micros = since.micros().saturating_add(after);
    let grid = grid_micros(lease_ms);
    match planted(Fault::NoRenewal) {
        true => since.plus_millis(lease_ms),
        false => Time::from_micros(micros / grid * grid),
    }
}

fn grid_micros(lease_ms: u64) -> u64 {
    let micros = lease_ms.saturating_mul(1_000) / GRIDS_PER_LEASE;
    micros.clamp(1, RENEWAL_GRID_MS * 1_000)
}

/// A chain of handovers, in a row without the lock being free in between. Chains are capped, or the clients of one
/// instance could keep all others out for ever. If other instances want the lock, too, a chain serves at most as many
/// waiters as there were when it began, so that many instances with few waiters each take turns quickly.
///
/// A release alone is not enough: this instance knows of it first, while other instances learn of it by a push, and may
/// delay their attempts. So the lock then lies free for a pause. Without rivals the pause is lost time, so pauses are
/// spaced out until one of them is used.
#[derive(Debug, Clone, Default)]
pub struct HandoverStreak {
    handovers: u32,
    /// The number of waiters when the chain began.
    waited: u32,
    since: Time,
    /// When the last pause began, or the first chain.
    paused_at: Option<Time>,
    /// A pause was made, and it is open whether a rival used it.
    pausing: bool,
    /// The number of pauses in a row that have to go unused until rivals are ruled out. Zero: no rival wants the lock.
    rivals: u32,
}

/// The number of unused pauses that rule rivals out. Many or busy rivals may leave a pause unused although they want
/// the lock.
const UNUSED_PAUSES: u32 = 4;

/// The inverse of the largest share of time that pauses take on a lock without rivals.
const PAUSES_ARE_ONE_IN: u64 = 50;

impl HandoverStreak {
    /// Begins a chain: this instance acquired the free lock while this number of other places wait.
    pub fn begin(&mut self, now: Time, waiting: usize) {
        self.handovers = 0;
        self.waited = u32::try_from(waiting).unwrap_or(u32::MAX);
        self.since = now;
        self.paused_at.get_or_insert(now);
        if std::mem::take(&mut self.pausing) {
            self.rivals = self.rivals.saturating_sub(1);
        }
    }

    /// Returns when the chain began and when the last pause did, if nothing else is known. None: there is more.
    pub fn rests(&self) -> Option<(Time, Option<Time>)> {
        let Self {
            handovers: 0,
            waited: 0,
            since,
            paused_at,
            pausing: false,
            rivals: 0,
        } = *self
        else {
            return None;
        };
        Some((since, paused_at))
    }

    /// Goes on from what [`HandoverStreak::rests`] returned.
    pub fn resumed(since: Time, paused_at: Option<Time>) -> Self {
        Self {
            since,
            paused_at,
            ..Self::default()
        }
    }

    /// Records that another owner holds the lock.
    pub fn found_held(&mut self) {
        self.pausing = false;
        self.rivals = UNUSED_PAUSES;
    }

    /// Returns how long to let others try after a release with waiters left here, in milliseconds.
    pub fn pause_ms(&mut self, now: Time, settings: &Settings) -> u64 {
        let pause_ms = settings.yield_pause_ms;
        let last = self.paused_at.unwrap_or(now);
        if self.rivals == 0 && now.millis_since(last) < pause_ms.saturating_mul(PAUSES_ARE_ONE_IN) {
            return 0;
        }
        self.paused_at = Some(now);
        self.pausing = true;
        pause_ms
    }

    /// Records a handover.
    pub fn hand_over(&mut self) {
        self.handovers = self.handovers.saturating_add(1);
    }

    /// Returns whether others should get their turn.
    pub fn is_long(&self, now: Time, settings: &Settings) -> bool {
        let most = match self.rivals {
            0 => settings.max_handovers,
            _ => settings.max_handovers.min(self.waited),
        };
        self.handovers >= most || now.millis_since(self.since) >= settings.max_handover_time_ms
    }
}
