//! The operators' view of the locks: the busiest ones, their holders and their waiters.
//!
//! A view visits every lock, shard by shard of the table, and blocks changes in a shard meanwhile. So the table
//! has many shards, and the visit reads only a few numbers of most locks. The details of the few locks shown
//! are read afterwards, one lock at a time.

use std::{cmp::Reverse, collections::BinaryHeap, hash::BuildHasher, sync::Arc};

use bytes::Bytes;

use super::{Gate, Label};
use crate::{
    clock,
    lock::Time,
    store::{Later, LockName},
    telemetry::metrics::locks::Request,
};

/// The number of shards of the table of queues. A visit blocks changes in its shard, so a shard must be small:
/// with 100,000 locks it has some hundreds.
pub(super) const SHARDS: usize = 256;

/// A view of all locks at one moment.
#[derive(Debug, Default)]
pub struct View {
    /// The locks with the names searched for, one entry for each search.
    pub found: Vec<Found>,
    /// The number of locks held under a lease of this instance.
    pub held: usize,
    /// The number of locks with waiters.
    pub awaited: usize,
    /// The number of waiting requests.
    pub waiters: usize,
    /// The longest current wait, in milliseconds.
    pub longest_wait_ms: u64,
}

/// The locks whose names contain a text, among those that are held or awaited.
#[derive(Debug)]
pub struct Found {
    /// Those with most waiters; of equals, those with the longest wait, then those held longest.
    pub busiest: Vec<LockSnapshot>,
    /// Their number, beyond those in `busiest` too.
    pub locks: usize,
}

/// A lock in a view.
#[derive(Debug)]
pub struct LockSnapshot {
    /// The lock's name.
    pub name: LockName,
    /// A number that identifies the lock while this process lives.
    pub id: u64,
    /// The lock's holder.
    pub held: Held,
    /// The number of waiting requests.
    pub waiters: usize,
    /// The longest current wait, in milliseconds.
    pub longest_wait_ms: u64,
    /// The first waiters.
    pub first: Vec<FirstWaiter>,
}

/// One of the first waiters of a lock.
#[derive(Debug)]
pub struct FirstWaiter {
    /// The client.
    pub client: Arc<Label>,
    /// How long it has waited, in milliseconds.
    pub waited_ms: u64,
    /// The client spins: this is one of its attempts, which is parked.
    pub spins: bool,
}

/// The holder of a lock.
#[derive(Debug, PartialEq, Eq)]
pub enum Held {
    /// A client of this instance.
    Here {
        /// The client that was granted the lock, or that extended the lease; none if only the token is known.
        holder: Option<Arc<Label>>,
        /// How long the lock has been held, in milliseconds.
        for_ms: u64,
        /// The rest of the lease, in milliseconds.
        lease_left_ms: u64,
        /// The lease is renewed while its owner's connection lives.
        session: bool,
        /// The client spins: it took the lock by a command of Redis's own.
        spins: bool,
    },
    /// A client that did not lock through this instance.
    Elsewhere,
    /// No holder, as far as this instance knows.
    Nobody {
        /// The milliseconds since the store was last asked; none if no request is in flight.
        asked_ms: Option<u64>,
        /// The error by which the store puts requests off.
        error: Option<Bytes>,
    },
}

/// The number of waiters, the longest wait, the time held. Locks with a higher rank are shown first.
type Rank = (usize, u64, u64);

/// The first locks by rank of those found so far.
#[derive(Default)]
struct Ranking {
    /// The top is the lock that would be shown last.
    first: BinaryHeap<(Reverse<Rank>, LockName)>,
    locks: usize,
}

impl Ranking {
    fn add(&mut self, rank: Reverse<Rank>, name: &LockName, most: usize) {
        self.locks += 1;
        let is_shown =
            self.first.len() < most || self.first.peek().is_some_and(|(last, _)| rank < *last);
        if is_shown {
            self.first.push((rank, name.clone()));
            if self.first.len() > most {
                self.first.pop();
            }
        }
    }
}

impl Gate {
    /// Checks whether the store would serve a new client, and grant it a free lock; if not, returns the reason in one line.
    pub fn is_ready(&self) -> Later<Result<(), String>> {
        self.store.is_ready()
    }

    /// Returns the totals, and for each of these texts the `most` busiest locks whose names contain it, with up to
    /// `most_waiters` waiters each. All names contain the empty text. One visit serves all texts.
    pub fn view(&self, most: usize, most_waiters: usize, texts: &[Bytes]) -> View {
        let (now, mut view) = (clock::now(), View::default());
        let rankings = self.rank(now, most, texts, &mut view);
        let found = rankings.into_iter().map(|ranking| {
            let first = ranking.first.into_sorted_vec().into_iter();
            let busiest = first.filter_map(|(_, name)| self.look_at(name, now, most_waiters));
            Found {
                busiest: busiest.collect(),
                locks: ranking.locks,
            }
        });
        view.found = found.collect();
        view
    }

    /// Returns how long the first request of a queue has waited, in microseconds, of the queue where that is longest;
    /// zero where none waits.
    ///
    /// Visits every lock, shard by shard, as [`Gate::view`] does: it is for scrapes, not for clients' commands.
    pub fn oldest_wait_micros(&self) -> u64 {
        if self.waiters() == 0 {
            return 0;
        }
        let queues = self.queues.iter();
        let oldest = queues
            .filter_map(|entry| entry.queue(|it| it.first_since()))
            .min();
        oldest.map_or(0, |since| clock::now().micros_since(since))
    }

    fn rank(&self, now: Time, most: usize, texts: &[Bytes], view: &mut View) -> Vec<Ranking> {
        let mut rankings: Vec<Ranking> = texts.iter().map(|_| Ranking::default()).collect();
        for entry in &self.queues {
            let here = entry.queue(|it| it.snapshot(now));
            if here.waiters == 0 && here.held_here_ms.is_none() {
                continue;
            }
            view.held += usize::from(here.held_here_ms.is_some());
            view.awaited += usize::from(here.waiters > 0);
            view.waiters += here.waiters;
            view.longest_wait_ms = view.longest_wait_ms.max(here.longest_wait_ms);
            let held_ms = here.held_here_ms.unwrap_or(0);
            let rank = Reverse((here.waiters, here.longest_wait_ms, held_ms));
            for (text, ranking) in texts.iter().zip(&mut rankings) {
                if contains(&entry.key().key, text) {
                    ranking.add(rank, entry.key(), most);
                }
            }
        }
        rankings
    }

    /// Returns the lock's details; none if it has no state here any more.
    fn look_at(&self, name: LockName, now: Time, most_waiters: usize) -> Option<LockSnapshot> {
        let entry = self.queues.get(&name)?;
        let (here, held, waiting) = entry.queue(|queue| {
            let here = queue.snapshot(now);
            let held = match (here.held_here_ms, queue.is_held_elsewhere()) {
                (Some(for_ms), _) => Held::Here {
                    holder: entry.holder().map(Arc::clone),
                    for_ms,
                    lease_left_ms: queue.lease_left_ms(now),
                    session: here.session,
                    spins: here.spins,
                },
                (None, true) => Held::Elsewhere,
                (None, false) => {
                    let (asked_ms, error) = queue.last_asked(now);
                    Held::Nobody {
                        asked_ms,
                        error: error.cloned(),
                    }
                }
            };
            (here, held, queue.first_waiting(most_waiters, now))
        });
        let first = waiting.into_iter().filter_map(|(request, waited_ms)| {
            let caller = entry.caller(request)?;
            Some(FirstWaiter {
                client: Arc::clone(&caller.label),
                waited_ms,
                spins: caller.asked == Request::Attempt,
            })
        });
        Some(LockSnapshot {
            id: self.seeds.hash_one(&name),
            held,
            waiters: here.waiters,
            longest_wait_ms: here.longest_wait_ms,
            first: first.collect(),
            name: name.clone(),
        })
    }
}

fn contains(name: &[u8], text: &[u8]) -> bool {
    text.is_empty() || name.windows(text.len()).any(|part| part == text)
}
