//! Admits the clients that the store has to verify first, in the order in which they came, whichever of their
//! tasks the scheduler runs first once the answer is known. Without it a crowd of new clients could be overtaken
//! by the next one: an answer only wakes a task, and others may be ahead of it.
//!
//! There is one line for each claim (these credentials, or none), since one answer serves all of its clients;
//! none of them waits for the answer to another claim.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::identity::Credentials;

/// What a client claims: these credentials, or nothing.
type Claim = Option<Credentials>;

/// The lines; there are no more places in them than clients.
#[derive(Debug, Default)]
pub struct Turnstile {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    next: u64,
    /// Each place, with the task to wake when it is the first, where that has asked for it.
    places: HashMap<Claim, BTreeMap<u64, Option<Waker>>>,
}

/// A place in a line. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    turnstile: Arc<Turnstile>,
    claim: Claim,
    number: u64,
}

impl Turnstile {
    /// The last place in the line of this claim.
    pub(super) fn ticket(self: &Arc<Self>, claim: &Claim) -> Ticket {
        let mut lines = self.lock();
        let number = lines.next;
        lines.next += 1;
        let line = lines.places.entry(claim.clone()).or_default();
        line.insert(number, None);
        drop(lines);
        Ticket {
            turnstile: Arc::clone(self),
            claim: claim.clone(),
            number,
        }
    }

    /// Tells whether the line of this claim is empty.
    pub(super) fn is_free(&self, claim: &Claim) -> bool {
        !self.lock().places.contains_key(claim)
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // Nothing panics while it is held.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Whether no place is before it any more; the task is woken when that is so.
    pub(super) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        let mut lines = self.turnstile.lock();
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
        let mut lines = self.turnstile.lock();
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
        let turnstile = Arc::new(Turnstile::default());
        let [first, second, third] = [(); 3].map(|()| turnstile.ticket(&None));
        let [ann, ben, cat] = [(); 3].map(|()| Arc::new(Woken::default()));
        assert!(!cat.sees(&third) && !ben.sees(&second) && ann.sees(&first));
        drop(first);
        assert_eq!((ben.times(), cat.times()), (1, 0));
        assert!(!cat.sees(&third) && ben.sees(&second));
        drop(second);
        assert_eq!(cat.times(), 1);
        assert!(cat.sees(&third));
        drop(third);
        assert!(ann.sees(&turnstile.ticket(&None)));
        assert!(turnstile.lock().places.is_empty());
    }

    #[test]
    fn the_lines_of_different_claims_do_not_wait_for_each_other() {
        let turnstile = Arc::new(Turnstile::default());
        let ann = Credentials::new(b"ann", b"pw");
        assert!(turnstile.is_free(&ann));
        let [anonymous, first] = [None, ann.clone()].map(|claim| turnstile.ticket(&claim));
        let second = turnstile.ticket(&ann);
        let woken = Arc::new(Woken::default());
        assert!(woken.sees(&anonymous) && woken.sees(&first) && !woken.sees(&second));
        assert!(!turnstile.is_free(&ann));
        drop((first, second));
        assert!(turnstile.is_free(&ann) && !turnstile.is_free(&None));
    }

    #[test]
    fn who_leaves_keeps_nobody_waiting() {
        let turnstile = Arc::new(Turnstile::default());
        let [first, second, third] = [(); 3].map(|()| turnstile.ticket(&None));
        let woken = Arc::new(Woken::default());
        assert!(!woken.sees(&third));
        drop(second);
        assert_eq!(woken.times(), 0, "there is still somebody before it");
        drop(first);
        assert_eq!(woken.times(), 1);
        assert!(woken.sees(&third));
    }
}
