//! The lease that this gate granted, and the row of handovers it stands in.

use super::fault::{Fault, planted};
use super::vocabulary::{
    Deadline, Ending, How, RequestId, Settings, Time, Token, UserId, WriteBack,
};

/// Renewals come at multiples of this, in milliseconds, so that those of many locks travel together, but not so many
/// that they hold others up; for a short lease, at multiples of a fraction of it.
const RENEWAL_GRID_MS: u64 = 25;
const GRIDS_PER_LEASE: u64 = 40;

/// A session is told so long before the store may let its lease end, in milliseconds; for a short lease, a twelfth of
/// it.
const TOLD_BEFORE_MS: u64 = 100;

/// A lease granted or extended by this gate, as far as this gate knows not over yet.
#[derive(Debug, Clone)]
pub struct Lease {
    /// On whose behalf.
    pub user: UserId,
    /// Who holds the lock.
    pub token: Token,
    /// A client knows the token, which it named or was granted to the end of its connection, so that it may be in use
    /// at another gate, too.
    pub explicit: bool,
    /// The lease as it was asked for, in milliseconds.
    pub lease_ms: u64,
    /// When the token first got the lock.
    pub since: Time,
    /// The earliest moment at which the store may let the lease end: counted from before asking.
    pub until: Time,
    /// The moment by which the store has let it end: counted from after the answer.
    pub over_at: Time,
    /// The deadline that this gate set in the store. None where it found it set, so that it cannot
    /// tell its own grant from one made elsewhere.
    pub deadline: Option<Deadline>,
    /// How it came about, until the first client is told. The lock was found free, where nothing says
    /// that this client waited for it.
    pub how: Option<How>,
    /// Clients that were told of the grant and did not report that it never reached them.
    pub receivers: usize,
    /// The place in the queue that the lease was granted to.
    pub place: Option<u64>,
    /// The largest fence that came with it, where one was asked for.
    pub fence: Option<u64>,
    /// The deadline in the store with which this is its fence for certain. With another the lock may have been lost,
    /// granted to others with a larger one, and to this token again.
    pub fence_at: Option<Deadline>,
    /// The request to whose connection it is bound: it is renewed for as long as that lives.
    pub session: Option<RequestId>,
    /// When to renew it, where it is bound.
    pub renew_at: Time,
    /// A renewal was sent and not answered: the store may have its deadline or the one before.
    pub renewal_unknown: bool,
    /// The store told of a change since, and was not asked yet what it was.
    pub changed: bool,
    /// It was taken without looking: the store will tell of no change.
    pub bare: bool,
    /// When to ask whether it still stands; what the store had to tell of it may have been lost.
    pub check_at: Option<Time>,
}

impl Lease {
    /// This token of this user holds the lease.
    pub fn is_of(&self, user: UserId, token: &Token) -> bool {
        self.user == user && self.token == *token
    }

    /// When the client of a session is told that it could not be renewed: a little before the store
    /// may let it end, so that it is told before anybody else is granted the lock.
    pub fn lost_at(&self) -> Time {
        let margin = (self.lease_ms.saturating_mul(1_000) / 12).clamp(1, TOLD_BEFORE_MS * 1_000);
        Time::from_micros(self.until.micros().saturating_sub(margin))
    }

    /// How long after a renewal that the store refused it is tried again, in milliseconds: some twenty
    /// times in a lease, as long as that is neither often nor seldom.
    pub fn renewal_pause_ms(&self) -> u64 {
        (self.lease_ms / 32).clamp(100, 5_000)
    }

    /// How it ended, where nobody here ended it.
    pub fn ending(&self, now: Time) -> Ending {
        if now >= self.until {
            Ending::RanOut
        } else {
            Ending::Lost
        }
    }

    /// Its fence, where it is known that it has no larger one.
    pub fn sure_fence(&self) -> Option<u64> {
        self.fence.filter(|_| self.fence_at.is_some())
    }

    /// It was found to stand.
    pub fn confirm(&mut self) {
        self.changed = false;
        self.check_at = None;
    }

    /// A store that lost it is to get it back: somebody counts on it, and nobody is known to have
    /// ended it.
    pub fn is_to_be_written_back(&self, now: Time, settings: &Settings) -> bool {
        is_wanted_back(self.session.is_some(), settings)
            && !planted(Fault::NotWrittenBack)
            && self.receivers > 0
            && (!self.changed || planted(Fault::WrittenBackThoughChanged))
            && now < self.until
    }
}

/// Leases of this kind are written back.
pub fn is_wanted_back(session: bool, settings: &Settings) -> bool {
    match settings.write_back {
        WriteBack::All => true,
        WriteBack::Session => session,
        WriteBack::Off => false,
    }
}

/// When to renew a lease that began at `since`: when a quarter to a third of it is over. `sixth` are microseconds
/// between the half and the whole of a sixth of the lease, at random, so that the renewals of many locks that were taken
/// at a time come apart.
pub fn renewal(since: Time, lease_ms: u64, sixth: u64) -> Time {
    let micros = since.micros() + lease_ms.saturating_mul(1_000) / 6 + sixth;
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

/// Handovers in a row, without the lock being free in between. They are capped, or the clients of
/// one gate could keep everybody else's out for ever. Where other gates want the lock, too, a turn is those who waited
/// when it began, so that many gates with few waiters each take turns quickly.
///
/// To be released is not enough: this gate knows of the release first, while other gates learn of it
/// by a push, and may delay their asks. So the lock then lies free for a pause. Where nobody else
/// wants it that is time lost, so the pauses are spaced out, until one of them is used.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    handoffs: u32,
    /// Those who waited when the row began.
    waited: u32,
    since: Time,
    /// When the last pause was made, or the first grant.
    paused_at: Option<Time>,
    /// A pause was made, and it is not known yet whether anybody used it.
    pausing: bool,
    /// Somebody else wants the lock: so many pauses in a row have to go unused until that is believed no more.
    rivals: u32,
}

/// Where others are many or busy, a pause may go unused though they want the lock.
const UNUSED_PAUSES: u32 = 4;

/// Of the time spent on a lock that nobody else wants, pauses take this fraction at most.
const PAUSES_ARE_ONE_IN: u64 = 50;

impl Chain {
    /// The lock was taken when it was free, while so many wait.
    pub fn begin(&mut self, now: Time, waiting: usize) {
        self.handoffs = 0;
        self.waited = u32::try_from(waiting).unwrap_or(u32::MAX);
        self.since = now;
        self.paused_at.get_or_insert(now);
        if std::mem::take(&mut self.pausing) {
            self.rivals = self.rivals.saturating_sub(1);
        }
    }

    /// The lock was found held by somebody else.
    pub fn found_held(&mut self) {
        self.pausing = false;
        self.rivals = UNUSED_PAUSES;
    }

    /// The lock was released though somebody waits here: how long to let others try, in milliseconds.
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

    /// The lock was handed over.
    pub fn hand_over(&mut self) {
        self.handoffs = self.handoffs.saturating_add(1);
    }

    /// It is time to let the others try.
    pub fn is_long(&self, now: Time, settings: &Settings) -> bool {
        let most = match self.rivals {
            0 => settings.max_handoffs,
            _ => settings.max_handoffs.min(self.waited),
        };
        self.handoffs >= most || now.millis_since(self.since) >= settings.max_handoff_time_ms
    }
}
