//! Those of whom it has to be asked first whether they may come in go in in the order in which they came,
//! whichever of their tasks the scheduler runs first once it is known. Without it a whole crowd of new clients
//! could be overtaken by the next one: an answer only wakes a task, and others may be ahead of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// Where they queue; there are no more of them than clients.
#[derive(Debug, Default)]
pub struct Turnstile {
    line: Mutex<Line>,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    /// Each with whom to wake when it is the first, where it has asked for that.
    places: BTreeMap<u64, Option<Waker>>,
}

/// A place in the line. It is over when this is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    turnstile: Arc<Turnstile>,
    number: u64,
}

impl Turnstile {
    /// The last place.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        let mut line = self.lock();
        let number = line.next;
        line.next += 1;
        line.places.insert(number, None);
        drop(line);
        Ticket {
            turnstile: Arc::clone(self),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        // Nothing panics while it is held.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Whether nobody is before it any more; the task is woken when that is so.
    pub(super) fn poll_turn(&self, cx: &Context<'_>) -> Poll<()> {
        let mut line = self.turnstile.lock();
        match line.places.first_entry() {
            Some(first) if *first.key() != self.number => {
                line.places.insert(self.number, Some(cx.waker().clone()));
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut line = self.turnstile.lock();
        line.places.remove(&self.number);
        let first = line.places.first_entry();
        let waker = first.and_then(|mut first| first.get_mut().take());
        drop(line);
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
        let [first, second, third] = [(); 3].map(|()| turnstile.ticket());
        let [ann, ben, cat] = [(); 3].map(|()| Arc::new(Woken::default()));
        assert!(!cat.sees(&third) && !ben.sees(&second) && ann.sees(&first));
        drop(first);
        assert_eq!((ben.times(), cat.times()), (1, 0));
        assert!(!cat.sees(&third) && ben.sees(&second));
        drop(second);
        assert_eq!(cat.times(), 1);
        assert!(cat.sees(&third));
        drop(third);
        assert!(ann.sees(&turnstile.ticket()));
        assert!(turnstile.lock().places.is_empty());
    }

    #[test]
    fn who_leaves_keeps_nobody_waiting() {
        let turnstile = Arc::new(Turnstile::default());
        let [first, second, third] = [(); 3].map(|()| turnstile.ticket());
        let woken = Arc::new(Woken::default());
        assert!(!woken.sees(&third));
        drop(second);
        assert_eq!(woken.times(), 0, "there is still somebody before it");
        drop(first);
        assert_eq!(woken.times(), 1);
        assert!(woken.sees(&third));
    }
}
