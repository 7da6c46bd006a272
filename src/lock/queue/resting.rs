//! A queue rests while it holds a lease, has no waiters, and has no store request in flight. Most held locks rest most of
//! the time. A resting queue keeps the state that it needs to go on, which takes half of the memory.
//!
//! [`Queue::rest`] names every field of the queue, so the compiler rejects a field that it forgets. It drops the state
//! that only decides whose turn is next.

use super::{CachedHolder, HandoverStreak, Lease, LinkId, Queue, Rights, Time, Waiters};
use crate::lock::wait_queue::Numbering;

/// A queue at rest. The next event wakes it.
#[derive(Debug, Clone)]
pub struct Resting {
    lease: Lease,
    /// When the store last reported the lease's owner as the holder, when its lease ends, and until when that is believed,
    /// as in [`CachedHolder`]. None: it is not believed any more.
    believed: Option<(Time, Option<Time>, Time)>,
    /// When the store last replied to a request of the lease's user on the connection that pushes changes.
    replied_at: Option<Time>,
    armed: Option<LinkId>,
    /// When the chain of handovers began that the lease may begin, and the last pause, as in [`HandoverStreak`].
    chain_since: Time,
    paused_at: Option<Time>,
    numbering: Numbering,
    store_requests: u64,
    held_at: Time,
    grace_until: Time,
}

impl Queue {
    /// Puts the queue to rest if it has nothing to do but to hold a lease. None: it has more, and is unchanged.
    pub fn rest(&mut self) -> Option<Resting> {
        let Self {
            waiters,
            ops,
            in_flight: None,
            cached_holder,
            told_of: None,
            lease: lease @ Some(_),
            streak,
            backoff,
            rights,
            cut_off,
            armed,
            trouble: None,
            unacknowledged: None,
            write_back_at: None,
            write_backs_refused: 0,
            watch: None,
            dead_holder: None,
            alive_again: None,
            late,
            unsure,
            store_requests,
            held_at,
            grace_until,
        } = self
        else {
            return None;
        };
        let owner = lease.as_ref()?;
        let numbering = waiters.rests()?;
        let (chain_since, paused_at) = streak.rests()?;
        let replied_at = rights.rests(owner.user, *armed)?;
        let is_idle = ops.is_empty() && late.is_empty() && unsure.is_empty() && !cut_off.any();
        let is_owner = |it: &CachedHolder| it.user == Some(owner.user) && it.holder == owner.token;
        if !is_idle || !backoff.rests() || !cached_holder.as_ref().is_none_or(is_owner) {
            return None;
        }
        let believed = cached_holder.take().map(
            |CachedHolder {
                 holder: _,
                 user: _,
                 since,
                 expires_latest,
                 until,
             }| (since, expires_latest, until),
        );
        Some(Resting {
            lease: lease.take()?,
            believed,
            replied_at,
            armed: *armed,
            chain_since,
            paused_at,
            numbering,
            store_requests: *store_requests,
            held_at: *held_at,
            grace_until: *grace_until,
        })
    }
}

impl Resting {
    /// Returns whether a client counts on the lease, as [`Snapshot::held_here_ms`](super::Snapshot) tells.
    pub fn is_held(&self) -> bool {
        self.lease.receivers > 0
    }

    /// Wakes the queue. `seed` determines the jitter.
    pub fn wake(self, seed: u64) -> Queue {
        Queue {
            waiters: Waiters::resumed(self.numbering),
            cached_holder: self
                .believed
                .map(|(since, expires_latest, until)| CachedHolder {
                    holder: self.lease.token.clone(),
                    user: Some(self.lease.user),
                    since,
                    expires_latest,
                    until,
                }),
            streak: HandoverStreak::resumed(self.chain_since, self.paused_at),
            rights: Rights::resumed(self.lease.user, self.armed, self.replied_at),
            armed: self.armed,
            store_requests: self.store_requests,
            held_at: self.held_at,
            grace_until: self.grace_until,
            lease: Some(self.lease),
            ..Queue::new(seed)
        }
    }
}
