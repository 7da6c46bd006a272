//! Admits clients that the store has to verify first, in the order in which they arrived, whichever of their
//! tasks the scheduler runs first after the store's reply. Without it a newly arrived client could overtake a
//! crowd of earlier ones: the reply only wakes their tasks, and others may be ahead of them.
//!
//! Each claim (these credentials, or none) has a line of its own, since one reply serves all of its clients.
//! No client waits for the reply to another claim.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::auth::identity::Credentials;

/// A client's claim: these credentials, or none.
type Claim = Option<Credentials>;

/// The lines of waiting clients, with at most one place for each client.
#[derive(Debug, Default)]
pub struct AdmissionQueue {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    next: u64,
    /// The places in each line, with the task to wake when the place becomes the first, if that task has
    /// polled.
    places: HashMap<Claim, BTreeMap<u64, Option<Waker>>>,
}

/// A place in a line. Dropping the ticket frees it.
#[derive(Debug)]
pub(crate) struct Ticket {
    admission_queue: Arc<AdmissionQueue>,
    claim: Claim,
    number: u64,
}

impl AdmissionQueue {
    /// Returns a ticket for the last place in the line of this claim.
    pub(crate) fn ticket(self: &Arc<Self>, claim: &Claim) -> Ticket {
        let mut lines = self.lock();
        let number = lines.next;
        lines.next += 1;
        let line = lines.places.entry(claim.clone()).or_default();
        line.insert(number, None);
        drop(lines);
        Ticket {
            admission_queue: Arc::clone(self),
            claim: claim.clone(),
            number,
        }
    }

    /// Returns whether the line of this claim is empty.
    pub(crate) fn is_free(&self, claim: &Claim) -> bool {
        !self.lock().places.contains_key(claim)
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // No code panics while it holds the mutex.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Returns ready once the place is the first in its line; wakes the task then.
    pub(crate) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        let mut lines = self.admission_queue.lock();
        let Some(line) = lines.places.get_mut(&self.claim) else {
            return Poll::Ready(());
        };
        match line.first_entry() {
            Some(first) if *first.key() != self.number => {
                line.insert(self.number, Some(cx.waker().clone()));
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut lines = self.admission_queue.lock();
        let Some(line) = lines.places.get_mut(&self.claim) else {
            return;
        };
        line.remove(&self.number);
        let first = line.first_entry();
        let waker = first.and_then(|mut first| first.get_mut().take());
        if line.is_empty() {
            lines.places.remove(&self.claim);
        }
        drop(lines);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn sees(self: &Arc<Self>, ticket: &Ticket) -> bool {
            let waker = Waker::from(Arc::clone(self));
            ticket.poll_turn(&Context::from_waker(&waker)).is_ready()
        }
    }

    #[test]
    fn they_go_in_in_the_order_in_which_they_came() {
        let admission_queue = Arc::new(AdmissionQueue::default());
        let [first, second, third] = [(); 3].map(|()| admission_queue.ticket(&None));
        let [ann, ben, cat] = [(); 3].map(|()| Arc::new(Woken::default()));
        assert!(!cat.sees(&third) && !ben.sees(&second) && ann.sees(&first));
        drop(first);
        assert_eq!((ben.times(), cat.times()), (1, 0));
        assert!(!cat.sees(&third) && ben.sees(&second));
        drop(second);
        assert_eq!(cat.times(), 1);
        assert!(cat.sees(&third));
        drop(third);
        assert!(ann.sees(&admission_queue.ticket(&None)));
        assert!(admission_queue.lock().places.is_empty());
    }

    #[test]
    fn the_lines_of_different_claims_do_not_wait_for_each_other() {
        let admission_queue = Arc::new(AdmissionQueue::default());
        let ann = Credentials::new(b"ann", b"pw");
        assert!(admission_queue.is_free(&ann));
        let [anonymous, first] = [None, ann.clone()].map(|claim| admission_queue.ticket(&claim));
        let second = admission_queue.ticket(&ann);
        let woken = Arc::new(Woken::default());
        assert!(woken.sees(&anonymous) && woken.sees(&first) && !woken.sees(&second));
        assert!(!admission_queue.is_free(&ann));
        drop((first, second));
        assert!(admission_queue.is_free(&ann) && !admission_queue.is_free(&None));
    }

    #[test]
    fn a_client_that_leaves_delays_no_other() {
        let admission_queue = Arc::new(AdmissionQueue::default());
        let [first, second, third] = [(); 3].map(|()| admission_queue.ticket(&None));
        let woken = Arc::new(Woken::default());
        assert!(!woken.sees(&third));
        drop(second);
        assert_eq!(woken.times(), 0, "there is still somebody before it");
        drop(first);
        assert_eq!(woken.times(), 1);
        assert!(woken.sees(&third));
    }
}
