//! Locks in the memory of this process: a map that serves the same requests as Redis.
//!
//! A lock is a token and a deadline. From its deadline on, every request finds the lock free. The sweeper, one
//! task with the deadlines in order, then removes it and notifies the listener, even without a request. The
//! listener receives nothing else: the party that changes a lock here learns the result from its reply.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::sync::Notify;

use super::{Later, Listener, LockName, LockStatus, Receipt, Store, task::Task};
use crate::{
    clock,
    lock::{
        Deadline, Fence, LinkId, Outcome, StoreReply, StoreRequest, StoreRequestId, Time, Token,
        UserId,
    },
};

/// The one "connection" to the memory of this process.
const LINK: LinkId = LinkId::new(0);

/// Longest sleep of the sweeper. Its timer stops while the machine is suspended; the deadlines do not.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Most locks removed under one hold of the mutex.
const SWEPT_AT_A_TIME: usize = 1_000;

/// The reply to a request that wants replicas.
const NO_REPLICAS: &[u8] = b"ERR REPLICAS takes a Redis, and this lockgate has none";

/// The store of locks in the memory of this process.
pub struct EmbeddedStore {
    shelf: Arc<Shelf>,
    sweeper: OnceLock<Task>,
}

struct Shelf {
    locks: Mutex<Locks>,
    listener: OnceLock<Arc<dyn Listener>>,
    /// Wakes the sweeper: a lock now expires before all others.
    sooner: Notify,
    /// The process clock at the start, and the milliseconds since 1970 at that moment.
    epoch: (Time, u64),
}

#[derive(Default)]
struct Locks {
    held: HashMap<LockName, Held>,
    deadlines: BTreeSet<(u64, LockName)>,
    /// The largest fence so far. One counter serves all locks.
    fence: u64,
}

struct Held {
    token: Token,
    deadline: u64,
}

impl EmbeddedStore {
    /// Creates a store without locks.
    pub fn new() -> Self {
        let since_1970 = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let epoch = (
            clock::now(),
            u64::try_from(since_1970.as_millis()).unwrap_or_default(),
        );
        let shelf = Shelf {
            locks: Mutex::default(),
            listener: OnceLock::new(),
            sooner: Notify::new(),
            epoch,
        };
        Self {
            shelf: Arc::new(shelf),
            sweeper: OnceLock::new(),
        }
    }

    /// Returns the number of locks in memory, including expired locks that are not swept yet.
    pub fn size(&self) -> usize {
        self.shelf.locks().held.len()
    }
}

impl Default for EmbeddedStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for EmbeddedStore {
    fn listen(&self, listener: Arc<dyn Listener>) {
        // The gate calls this once. A second listener would be a bug, and receives nothing.
        let _ = self.shelf.listener.set(listener);
    }

    fn ask(
        &self,
        name: &LockName,
        _: StoreRequestId,
        store_request: StoreRequest,
        _: Duration,
    ) -> Receipt {
        let shelf = &self.shelf;
        self.sweeper
            .get_or_init(|| Task::spawn(sweep(Arc::clone(shelf))));
        let outcome = shelf.answer(name, &store_request);
        // As in Redis: a release does not read the lock again.
        let read = !matches!(
            (&store_request, &outcome),
            (StoreRequest::Release { .. }, Outcome::Free)
        );
        Receipt::Answered(StoreReply {
            outcome,
            armed: read.then_some(LINK),
            grace_ms: None,
        })
    }

    fn status(&self, name: &LockName, _user: UserId) -> Later<Result<LockStatus, Bytes>> {
        let now = self.shelf.now();
        let ttl = self
            .shelf
            .locks()
            .find(name, now)
            .map(|held| held.deadline - now);
        let status = match ttl {
            Some(ttl) => LockStatus {
                held: true,
                ttl_ms: i64::try_from(ttl).unwrap_or(i64::MAX),
            },
            None => LockStatus {
                held: false,
                ttl_ms: -2,
            },
        };
        Box::pin(std::future::ready(Ok(status)))
    }
}

impl Shelf {
    fn locks(&self) -> MutexGuard<'_, Locks> {
        // No code panics half-way while it holds the lock.
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the milliseconds since 1970, by a clock that does not jump.
    fn now(&self) -> u64 {
        let (start, start_ms) = self.epoch;
        start_ms + clock::now().millis_since(start)
    }

    fn answer(&self, name: &LockName, store_request: &StoreRequest) -> Outcome {
        if store_request.replicas() > 0 {
            return Outcome::Refused(Bytes::from_static(NO_REPLICAS));
        }
        let now = self.now();
        let mut locks = self.locks();
        let first = locks.first_deadline();
        let outcome = locks.answer(name, store_request, now);
        if locks.first_deadline() < first || first.is_none() {
            self.sooner.notify_one();
        }
        outcome
    }
}

impl Locks {
    fn first_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the lock, unless it is free or expired.
    fn find(&self, name: &LockName, now: u64) -> Option<&Held> {
        self.held.get(name).filter(|held| held.deadline > now)
    }

    fn answer(&mut self, name: &LockName, store_request: &StoreRequest, now: u64) -> Outcome {
        let held = self
            .find(name, now)
            .map(|held| (held.token.clone(), held.deadline));
        match (store_request, held) {
            (
                StoreRequest::Acquire {
                    token,
                    lease_ms,
                    fence,
                    ..
                },
                None,
            ) => self.grant(
                name,
                token,
                now.saturating_add(*lease_ms),
                true,
                *fence != Fence::No,
                now,
            ),
            (
                StoreRequest::Handover {
                    to: token,
                    lease_ms,
                    fence,
                    ..
                },
                Some((holder, before)),
            ) if holder == *token && !store_request.is_strict() => {
                let deadline = lease_anew(before, now.saturating_add(*lease_ms));
                self.grant(name, token, deadline, false, *fence, now)
            }
            (
                StoreRequest::Acquire {
                    token,
                    lease_ms,
                    expects,
                    ..
                }
                | StoreRequest::Extend {
                    token,
                    lease_ms,
                    expects,
                    ..
                },
                Some((holder, before)),
            ) if holder == *token && !store_request.is_strict() => {
                let deadline = lease_anew(before, now.saturating_add(*lease_ms));
                let expected = *expects == Some(Deadline(before));
                let fence = match store_request {
                    StoreRequest::Acquire { fence, .. } => {
                        *fence != Fence::No && *fence != Fence::NewUnless(Deadline(before))
                    }
                    _ => false,
                };
                self.grant(name, token, deadline, expected, fence, now)
            }
            (
                StoreRequest::Handover {
                    from,
                    only_if,
                    to,
                    lease_ms,
                    fence,
                    ..
                },
                Some((holder, at)),
            ) if holder == *from && only_if.is_none_or(|only| only.0 == at) => {
                self.grant(name, to, now.saturating_add(*lease_ms), true, *fence, now)
            }
            (StoreRequest::Release { token, only_if, .. }, Some((holder, at)))
                if holder == *token && only_if.is_none_or(|only| only.0 == at) =>
            {
                self.remove(name);
                Outcome::Free
            }
            (StoreRequest::Release { .. } | StoreRequest::DeleteDead { .. }, _) => Outcome::Held {
                holder: None,
                ttl_ms: None,
            },
            // This store loses no data while the process lives, so `Restore` has nothing to write back.
            (_, Some((holder, at))) => Outcome::Held {
                holder: Some(holder),
                ttl_ms: Some(at - now),
            },
            (_, None) => Outcome::Free,
        }
    }

    fn grant(
        &mut self,
        name: &LockName,
        token: &Token,
        deadline: u64,
        fresh: bool,
        fence: bool,
        now: u64,
    ) -> Outcome {
        self.remove(name);
        self.held.insert(
            name.clone(),
            Held {
                token: token.clone(),
                deadline,
            },
        );
        self.deadlines.insert((deadline, name.clone()));
        if fence {
            // As in Redis: fences also rise across a restart.
            self.fence = (self.fence + 1).max(now.saturating_mul(1_000));
        }
        Outcome::Granted {
            deadline: Deadline(deadline),
            fresh,
            fence: fence.then_some(self.fence),
        }
    }

    fn remove(&mut self, name: &LockName) {
        if let Some(held) = self.held.remove(name) {
            self.deadlines.remove(&(held.deadline, name.clone()));
        }
    }

    /// Removes expired locks, at most [`SWEPT_AT_A_TIME`].
    fn remove_expired(&mut self, now: u64) -> Vec<LockName> {
        let mut gone = Vec::new();
        while gone.len() < SWEPT_AT_A_TIME && self.first_deadline().is_some_and(|at| at <= now) {
            if let Some((_, name)) = self.deadlines.pop_first() {
                self.held.remove(&name);
                gone.push(name);
            }
        }
        gone
    }
}

/// Returns the deadline of a renewed lease. It is at least 3 ms from the old one, so a client that knows the
/// old deadline can tell the two apart. A third lease in the same moment must not end where the first did
/// either. These shifts can add up to 100 ms, so the deadline only moves back if the new lease ends at least
/// 100 ms earlier.
fn lease_anew(before: u64, after: u64) -> u64 {
    let too_close = after < before.saturating_add(3) && after > before.saturating_sub(100);
    if too_close {
        before.saturating_add(3)
    } else {
        after
    }
}

/// Removes each lock when it expires.
async fn sweep(shelf: Arc<Shelf>) {
    loop {
        let now = shelf.now();
        let (gone, next) = {
            let mut locks = shelf.locks();
            (locks.remove_expired(now), locks.first_deadline())
        };
        if let Some(listener) = shelf.listener.get() {
            gone.iter().for_each(|name| listener.changed(LINK, name));
        }
        match next {
            Some(at) if at <= now => tokio::task::yield_now().await,
            Some(at) => {
                let sleep = Duration::from_millis(at - now).min(LONGEST_SLEEP);
                // A notification or the timeout: check again either way.
                let _ = tokio::time::timeout(sleep, shelf.sooner.notified()).await;
            }
            None => shelf.sooner.notified().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Mark;

    const USER: UserId = UserId(0);

    fn token(text: &'static str) -> Token {
        Token::new(text.as_bytes())
    }

    fn granted(deadline: u64) -> Outcome {
        Outcome::Granted {
            deadline: Deadline(deadline),
            fresh: true,
            fence: None,
        }
    }

    fn anew(deadline: u64) -> Outcome {
        Outcome::Granted {
            deadline: Deadline(deadline),
            fresh: false,
            fence: None,
        }
    }

    /// The sweeper may be late; replies are exact.
    #[test]
    fn from_its_deadline_on_a_lock_is_free_to_every_question() {
        let name = LockName {
            database: 0,
            key: b"a".as_slice().into(),
        };
        let (user, me, only_if) = (USER, token("me"), None);
        let ask = |lease_ms| StoreRequest::Acquire {
            user,
            token: me.clone(),
            lease_ms,
            fence: Fence::No,
            expects: None,
            bare: false,
            strict: false,
            replicas: 0,
        };
        let extend = StoreRequest::Extend {
            user,
            token: me.clone(),
            lease_ms: 100,
            expects: None,
            mark: Mark::None,
            replicas: 0,
        };
        let hand_over = StoreRequest::Handover {
            user,
            from: me.clone(),
            only_if,
            to: token("you"),
            lease_ms: 100,
            fence: false,
            strict: false,
        };
        let release = StoreRequest::Release {
            user,
            token: me.clone(),
            only_if,
        };
        let not_released = Outcome::Held {
            holder: None,
            ttl_ms: None,
        };
        for (store_request, before, after) in [
            (ask(100), anew(1_109), granted(1_110)),
            (extend, anew(1_109), Outcome::Free),
            (hand_over, granted(1_109), Outcome::Free),
            (release, Outcome::Free, not_released),
        ] {
            for (now, expected) in [(1_009, before), (1_010, after)] {
                let mut locks = Locks::default();
                assert_eq!(locks.answer(&name, &ask(10), 1_000), granted(1_010));
                let outcome = locks.answer(&name, &store_request, now);
                assert_eq!(outcome, expected, "{store_request:?} at {now}");
            }
        }
    }

    /// Locks leave no trace, however they ended.
    #[test]
    fn nothing_is_left_of_locks_that_ended() {
        let mut locks = Locks::default();
        let (user, me, only_if) = (USER, token("me"), None);
        for number in 0..5_000_u64 {
            let name = LockName {
                database: 0,
                key: number.to_string().into_bytes().into(),
            };
            let ask = StoreRequest::Acquire {
                user,
                token: me.clone(),
                lease_ms: 1 + number % 7,
                fence: Fence::No,
                expects: None,
                bare: false,
                strict: false,
                replicas: 0,
            };
            let extend = StoreRequest::Extend {
                user,
                token: me.clone(),
                lease_ms: 500,
                expects: None,
                mark: Mark::None,
                replicas: 0,
            };
            let release = StoreRequest::Release {
                user,
                token: me.clone(),
                only_if,
            };
            locks.answer(&name, &ask, 0);
            match number % 3 {
                0 => drop(locks.answer(&name, &extend, 0)),
                1 => drop(locks.answer(&name, &release, 0)),
                _ => {}
            }
        }
        let mut gone = 0;
        while locks.first_deadline().is_some_and(|at| at <= 500) {
            gone += locks.remove_expired(500).len();
        }
        assert_eq!(gone, 5_000 - 5_000 / 3 - 1);
        assert!(locks.held.is_empty() && locks.deadlines.is_empty());
    }
}
