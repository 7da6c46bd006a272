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
#[derive(Debug, Clone, Default)]
pub struct Chain {
    handoffs: u32,
    since: Time,
}

impl Chain {
    /// The lock was taken when it was free.
    pub fn begin(&mut self, now: Time) {
        *self = Self {
            handoffs: 0,
            since: now,
        };
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
