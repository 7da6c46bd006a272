//! What an operator sees of the locks: those that most wait for, who holds them, and who waits.
//!
//! A look goes over every lock, shard by shard of the table, and keeps a shard from changing meanwhile; so
//! the table has many shards, and of most locks only a few numbers are read. What is told of the few that
//! are shown is read after that, of each by itself.

use std::{cmp::Reverse, collections::BinaryHeap, hash::BuildHasher, sync::Arc};

use super::{Gate, Label};
use crate::{
    clock,
    lock::Time,
    store::{Later, LockName},
};

/// Parts of the table of queues. While one is looked at nothing in it changes, so each is to be small: with
/// 100,000 locks some hundreds.
pub(super) const SHARDS: usize = 256;

/// What is seen of all locks at one moment.
#[derive(Debug, Default)]
pub struct View {
    /// Those that most wait for; of equals, those waited for or held longest.
    pub busiest: Vec<Busy>,
    /// How many are held under a lease of this gate.
    pub held: usize,
    /// How many somebody waits for.
    pub awaited: usize,
    /// How many requests wait.
    pub waiters: usize,
    /// How long the one who waits longest does, in milliseconds.
    pub longest_wait_ms: u64,
}

/// One lock.
#[derive(Debug)]
pub struct Busy {
    /// Its name.
    pub name: LockName,
    /// A number by which it is known again, while this process lives.
    pub id: u64,
    /// Who has it.
    pub held: Held,
    /// Requests that wait.
    pub waiters: usize,
    /// How long the one who waits longest does, in milliseconds.
    pub longest_wait_ms: u64,
    /// The first of those who wait, and for how many milliseconds each does.
    pub first: Vec<(Arc<Label>, u64)>,
}

/// Who has a lock.
#[derive(Debug, PartialEq, Eq)]
pub enum Held {
    /// A client of this gate.
    Here {
        /// Whom it was granted to, or who extended it; none where only its token is known.
        holder: Option<Arc<Label>>,
        /// For how many milliseconds.
        for_ms: u64,
        /// How many milliseconds of its lease are left.
        lease_left_ms: u64,
        /// The lease is renewed for as long as its owner's connection lives.
        session: bool,
    },
    /// Somebody who did not ask here.
    Elsewhere,
    /// Nobody, as far as is known here.
    Nobody,
}

/// Waiters, the longest wait, the time held: what comes first in this order is shown first.
type Rank = (usize, u64, u64);

impl Gate {
    /// Whether the store would serve a client who came now; else why not, in one line.
    pub fn is_ready(&self) -> Later<Result<(), String>> {
        self.store.is_ready()
    }

    /// The `most` busiest locks with `most_waiters` of each, and what there is of all.
    pub fn view(&self, most: usize, most_waiters: usize) -> View {
        let (now, mut view) = (clock::now(), View::default());
        let mut found = self.rank(now, most, &mut view).into_sorted_vec();
        view.busiest = found
            .drain(..)
            .filter_map(|(_, name)| self.look_at(name, now, most_waiters))
            .collect();
        view
    }

    fn rank(
        &self,
        now: Time,
        most: usize,
        view: &mut View,
    ) -> BinaryHeap<(Reverse<Rank>, LockName)> {
        // Of those found so far, the one that is shown last is on top.
        let mut found = BinaryHeap::with_capacity(most + 1);
        for entry in &self.queues {
            let here = entry.queue.snapshot(now);
            if here.waiters == 0 && here.held_here_ms.is_none() {
                continue;
            }
            view.held += usize::from(here.held_here_ms.is_some());
            view.awaited += usize::from(here.waiters > 0);
            view.waiters += here.waiters;
            view.longest_wait_ms = view.longest_wait_ms.max(here.longest_wait_ms);
            let held_ms = here.held_here_ms.unwrap_or(0);
            let rank = Reverse((here.waiters, here.longest_wait_ms, held_ms));
            let is_shown = found.len() < most
                || (found.peek()).is_some_and(|(last, _): &(Reverse<Rank>, _)| rank < *last);
            if is_shown {
                found.push((rank, entry.key().clone()));
                if found.len() > most {
                    found.pop();
                }
            }
        }
        found
    }

    /// None where it is not known any more.
    fn look_at(&self, name: LockName, now: Time, most_waiters: usize) -> Option<Busy> {
        let entry = self.queues.get(&name)?;
        let (here, queue) = (entry.queue.snapshot(now), &entry.queue);
        let held = match (here.held_here_ms, queue.is_held_elsewhere()) {
            (Some(for_ms), _) => Held::Here {
                holder: entry.holder.clone(),
                for_ms,
                lease_left_ms: queue.lease_left_ms(now),
                session: here.session,
            },
            (None, true) => Held::Elsewhere,
            (None, false) => Held::Nobody,
        };
        let waiting = queue.first_waiting(most_waiters, now).into_iter();
        let first = waiting.filter_map(|(request, waited_ms)| {
            let caller = entry.callers.get(&request)?;
            Some((Arc::clone(&caller.label), waited_ms))
        });
        Some(Busy {
            id: self.seeds.hash_one(&name),
            held,
            waiters: here.waiters,
            longest_wait_ms: here.longest_wait_ms,
            first: first.collect(),
            name: name.clone(),
        })
    }
}
