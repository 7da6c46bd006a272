//! The memory that clients share for replies they have not read.
//!
//! A client that writes a whole pipeline before it reads would hang at a lock command in its middle: the
//! command runs when every reply before it has arrived, and they can arrive only if something keeps them.
//! lockgate keeps them within a budget that all clients share (`limits.kept_reply_bytes`). One client takes a
//! quarter of it at most. So no number of clients exhausts the machine, and no single client the budget.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::limits::KEPT_REPLY_SHARES;

/// The budget of all clients together.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    taken: AtomicUsize,
}

impl Budget {
    /// Creates a budget of this size, in bytes.
    pub fn new(most: usize) -> Self {
        let taken = AtomicUsize::new(0);
        Self { most, taken }
    }

    /// Returns the bytes that clients have taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |taken: usize| {
            let taken = taken.saturating_add(bytes);
            (taken <= self.most).then_some(taken)
        };
        let (set, read) = (Ordering::Relaxed, Ordering::Relaxed);
        self.taken.fetch_update(set, read, more).is_ok()
    }
}

/// One client's part of the budget. Dropping it returns the bytes.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    pub(crate) fn none_of(budget: Arc<Budget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Returns the bytes of this client.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes more bytes for this client. Returns false where the client, or all clients together, would
    /// exceed their bound.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let is_fair = self.bytes + bytes <= self.budget.most / KEPT_REPLY_SHARES;
        let grows = is_fair && self.budget.take(bytes);
        if grows {
            self.bytes += bytes;
        }
        grows
    }

    /// Returns the bytes beyond `bytes` to the budget.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if self.bytes > bytes {
            let less = self.bytes - bytes;
            self.budget.taken.fetch_sub(less, Ordering::Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_takes_a_quarter_at_most_and_all_together_the_budget() {
        let budget = Arc::new(Budget::new(1_000));
        let mut shares: Vec<_> = (0..5)
            .map(|_| Share::none_of(Arc::clone(&budget)))
            .collect();
        assert!(shares[0].grow(200) && !shares[0].grow(51) && shares[0].grow(50));
        for share in &mut shares[1..4] {
            assert!(share.grow(250));
        }
        assert!(!shares[4].grow(1), "all of it is taken");
        shares[0].shrink_to(240);
        assert!(shares[4].grow(10) && !shares[4].grow(1));
        assert_eq!(budget.taken(), 1_000);
        drop(shares);
        assert_eq!(budget.taken(), 0);
    }
}
