//! What this instance keeps of a lock: its queue, and who made the requests in it.
//!
//! A lock that is only held rests: an event wakes it, and [`Entry::rest`] lets it rest again.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, DefaultHasher},
    sync::Arc,
};

use super::{Label, Mailbox, dispatch::Caller};
use crate::{
    lock::{Queue, Reply, RequestId, Time, queue},
    telemetry::metrics::locks::Request,
};

/// A lock with state in this instance. Its parts are boxed, because the map has more slots than it uses, and briefly twice
/// as many while it grows.
pub(super) enum Entry {
    Awake(Box<Awake>),
    Resting(Box<Resting>),
}

/// A lock whose queue may have something to do.
pub(super) struct Awake {
    pub(super) queue: Queue,
    pub(super) callers: Callers,
    /// The mailboxes to notify when a lease is no longer bound to its connection: one, or two while one grant
    /// follows another.
    sessions: Vec<(RequestId, Mailbox)>,
    /// The client that was granted the lease last. If it was not granted here, the client that extended it
    /// first.
    pub(super) holder: Option<Arc<Label>>,
    /// Absorbed commands answered, less the requests to the store, since the balance was last counted as saved. None: the
    /// latest request came by a command of lockgate's own.
    pub(super) balance: Option<i32>,
    pub(super) wake_at: Option<Time>,
}

/// A lock that is held, with nothing to do for its queue, and with the rest as in [`Awake`].
pub(super) struct Resting {
    queue: queue::Resting,
    holder: Option<Arc<Label>>,
    balance: Option<i32>,
    wake_at: Option<Time>,
}

/// The pending requests by number. The gate assigns the numbers, so a client cannot cause hash collisions.
pub(super) type Callers = HashMap<RequestId, Caller, BuildHasherDefault<DefaultHasher>>;

impl Entry {
    /// Creates the entry of a lock of which nothing is known. `seed` is that of its queue.
    pub(super) fn new(seed: u64) -> Self {
        Self::Awake(Box::new(Awake {
            queue: Queue::new(seed),
            callers: Callers::default(),
            sessions: Vec::new(),
            holder: None,
            balance: None,
            wake_at: None,
        }))
    }

    /// Wakes the lock. `seed` returns the seed of its queue.
    pub(super) fn wake(&mut self, seed: impl FnOnce() -> u64) -> &mut Awake {
        if let Self::Resting(resting) = self {
            let awake = Awake {
                queue: resting.queue.clone().wake(seed()),
                callers: Callers::default(),
                sessions: Vec::new(),
                holder: resting.holder.take(),
                balance: resting.balance,
                wake_at: resting.wake_at,
            };
            *self = Self::Awake(Box::new(awake));
        }
        match self {
            Self::Awake(awake) => awake,
            Self::Resting(_) => unreachable!("it was woken"),
        }
    }

    /// Lets the lock rest, if it has nothing to do.
    pub(super) fn rest(&mut self) {
        if let Self::Awake(awake) = self
            && awake.callers.is_empty()
            && awake.sessions.is_empty()
            && let Some(queue) = awake.queue.rest()
        {
            *self = Self::Resting(Box::new(Resting {
                queue,
                holder: awake.holder.take(),
                balance: awake.balance,
                wake_at: awake.wake_at,
            }));
        }
    }

    /// Returns what the function returns of the queue.
    pub(super) fn queue<T>(&self, of: impl FnOnce(&Queue) -> T) -> T {
        match self {
            Self::Awake(awake) => of(&awake.queue),
            // It makes no attempts, so it needs no jitter.
            Self::Resting(resting) => of(&resting.queue.clone().wake(0)),
        }
    }

    /// Returns the number of waiting requests, if the lock is held or awaited here.
    pub(super) fn waiters(&self, now: Time) -> Option<usize> {
        match self {
            Self::Awake(awake) => {
                let here = awake.queue.snapshot(now);
                let is_here = here.waiters > 0 || here.held_here_ms.is_some();
                is_here.then_some(here.waiters)
            }
            // A list of many locks asks each of them.
            Self::Resting(resting) => resting.queue.is_held().then_some(0),
        }
    }

    /// Returns whether nothing is known of the lock and nothing is to be done.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Awake(awake) if awake.queue.is_idle())
    }

    pub(super) fn holder(&self) -> Option<&Arc<Label>> {
        match self {
            Self::Awake(awake) => awake.holder.as_ref(),
            Self::Resting(resting) => resting.holder.as_ref(),
        }
    }

    /// Returns who made this request, until it has its reply.
    pub(super) fn caller(&self, request: RequestId) -> Option<&Caller> {
        match self {
            Self::Awake(awake) => awake.callers.get(&request),
            Self::Resting(_) => None,
        }
    }
}

impl Awake {
    /// Records the holder that the reply shows, and the mailbox of a lease that is bound to its connection.
    pub(super) fn replied(&mut self, request: RequestId, caller: &mut Caller, reply: &Reply) {
        match reply {
            Reply::Granted { session, .. } => {
                self.holder = Some(Arc::clone(&caller.label));
                let mailbox = caller.mailbox.take().filter(|_| *session);
                self.sessions
                    .extend(mailbox.map(|mailbox| (request, mailbox)));
            }
            Reply::Done if caller.asked == Request::Relock => {
                self.holder.get_or_insert_with(|| Arc::clone(&caller.label));
            }
            _ => {}
        }
    }

    /// Counts one more absorbed command as answered. Returns how many commands were saved since the last time.
    pub(super) fn take_saved(&mut self) -> u64 {
        let balance = self.balance.get_or_insert(0);
        *balance = balance.saturating_add(1);
        let saved = u64::try_from(*balance).unwrap_or(0);
        *balance = (*balance).min(0);
        saved
    }

    pub(super) fn take_mailbox(&mut self, request: RequestId) -> Option<Mailbox> {
        let mut sessions = self.sessions.iter();
        let at = sessions.position(|(bound, _)| *bound == request)?;
        Some(self.sessions.swap_remove(at).1)
    }
}
