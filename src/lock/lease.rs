//! The lease that this gate granted, and the row of handovers it stands in.

use super::vocabulary::{Deadline, Settings, Time, Token, UserId};

/// A lease granted or extended by this gate, as far as this gate knows not over yet.
#[derive(Debug, Clone)]
pub struct Lease {
    /// On whose behalf.
    pub user: UserId,
    /// Who holds the lock.
    pub token: Token,
    /// The client named the token itself, so that it may be in use at another gate, too.
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
    /// Clients that were told of the grant and did not report that it never reached them.
    pub receivers: usize,
    /// The place in the queue that the lease was granted to.
    pub place: Option<u64>,
}

impl Lease {
    /// This token of this user holds the lease.
    pub fn is_of(&self, user: UserId, token: &Token) -> bool {
        self.user == user && self.token == *token
    }
}

/// Handovers in a row, without the lock being free in between. They are capped, or the clients of
/// one gate could keep everybody else's out for ever.
///
/// To be released is not enough: this gate knows of the release first, while other gates learn of it
/// by a push, and may delay their asks. So the lock then lies free for a pause. Where nobody else
/// wants it that is time lost, so the pauses are spaced out, until one of them is used.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    handoffs: u32,
    since: Time,
    /// When the last pause was made, or the first grant.
    paused_at: Option<Time>,
    /// A pause was made, and it is not known yet whether anybody used it.
    pausing: bool,
    /// Somebody used the last pause.
    rivals: bool,
}

/// Of the time spent on a lock that nobody else wants, pauses take this fraction at most.
const PAUSES_ARE_ONE_IN: u64 = 50;

impl Chain {
    /// The lock was taken when it was free.
    pub fn begin(&mut self, now: Time) {
        self.handoffs = 0;
        self.since = now;
        self.paused_at.get_or_insert(now);
        if std::mem::take(&mut self.pausing) {
            self.rivals = false;
        }
    }

    /// The lock was found held by somebody else.
    pub fn found_held(&mut self) {
        if std::mem::take(&mut self.pausing) {
            self.rivals = true;
        }
    }

    /// The lock was released though somebody waits here: how long to let others try, in milliseconds.
    pub fn pause_ms(&mut self, now: Time, settings: &Settings) -> u64 {
        let pause_ms = settings.yield_pause_ms;
        let last = self.paused_at.unwrap_or(now);
        if !self.rivals && now.millis_since(last) < pause_ms.saturating_mul(PAUSES_ARE_ONE_IN) {
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
        self.handoffs >= settings.max_handoffs
            || now.millis_since(self.since) >= settings.max_handoff_time_ms
    }
}
