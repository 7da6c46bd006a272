//! The state of a queue that operators see beside its [`Snapshot`](super::Snapshot).

use bytes::Bytes;

use super::Queue;
use crate::lock::{RequestId, Time, Token, UserId};

impl Queue {
    /// Returns the rest of the lease that this instance granted, in milliseconds; zero without one.
    pub fn lease_left_ms(&self, now: Time) -> u64 {
        let lease = self.lease.as_ref();
        lease.map_or(0, |lease| lease.expires_earliest.millis_since(now))
    }

    /// Returns when the first waiting request joined.
    pub fn first_since(&self) -> Option<Time> {
        self.waiters.longest_since()
    }

    /// Returns whether the lock is held, but not under a lease of this instance, as far as it knows.
    pub fn is_held_elsewhere(&self) -> bool {
        self.lease.is_none() && self.cached_holder.is_some()
    }

    /// Returns the milliseconds since the store request in flight was sent, and the store's error if it puts requests off.
    pub fn last_asked(&self, now: Time) -> (Option<u64>, Option<&Bytes>) {
        let in_flight = self.in_flight.as_deref();
        let asked_ms = in_flight.map(|in_flight| now.millis_since(in_flight.sent_at));
        (asked_ms, self.trouble.as_deref())
    }

    /// Returns whether this request waits, and the store request in flight is not for it.
    pub fn is_queued(&self, request: RequestId) -> bool {
        let place = self.waiters.of_request(request);
        let served = self.in_flight.as_ref().and_then(|it| self.served_by(it));
        place.is_some() && place != served
    }

    /// Returns whether a place is kept for the next attempt with this token.
    pub fn keeps_place(&self, user: UserId, token: &Token) -> bool {
        self.waiters.kept_until(user, token).is_some()
    }

    /// Returns the first waiting requests in order, `most` at most, with the milliseconds that each has waited.
    pub fn first_waiting(&self, most: usize, now: Time) -> Vec<(RequestId, u64)> {
        let waiting = self.waiters.each_waiting().take(most);
        waiting
            .map(|waiting| (waiting.request, now.millis_since(waiting.since)))
            .collect()
    }
}
