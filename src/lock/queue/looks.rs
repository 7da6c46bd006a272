//! What an operator is shown of a queue beside its [`Snapshot`](super::Snapshot).

use super::Queue;
use crate::lock::{RequestId, Time};

impl Queue {
    /// How many milliseconds of the lease are left that this gate granted; zero without one.
    pub fn lease_left_ms(&self, now: Time) -> u64 {
        let lease = self.lease.as_ref();
        lease.map_or(0, |lease| lease.until.millis_since(now))
    }

    /// Somebody holds the lock, and not under a lease of this gate, as far as is known.
    pub fn is_held_elsewhere(&self) -> bool {
        self.lease.is_none() && self.belief.is_some()
    }

    /// The first of those who wait, in their order, and for how many milliseconds each does.
    pub fn first_waiting(&self, most: usize, now: Time) -> Vec<(RequestId, u64)> {
        let waiting = self.places.each_waiting().take(most);
        waiting
            .map(|waiting| (waiting.request, now.millis_since(waiting.since)))
            .collect()
    }
}
