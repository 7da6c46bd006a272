//! Events for every queue, which connections to the store bring about. One task passes them on, one kind after the
//! other, and events of one connection that come meanwhile are one: any client may flush a database as often as it
//! likes, and Redis pushes each flush to each connection.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::Gate;
use crate::{
    clock,
    lock::{Event, LinkId, Time, UserId},
    store::LockName,
};

/// After a connection to the store was lost, the queues check its locks again one by one, this many
/// microseconds apart: 5,000 a second. If that would take more than half of the store's reply timeout, the
/// spacing shrinks, because waiters get no pushes meanwhile.
const REASK_SPACING_MICROS: u64 = 200;

/// Queues notified before other tasks get their turn.
pub(super) const TOLD_AT_A_TIME: usize = 100;

/// The events that have not reached every queue.
#[derive(Default)]
pub(super) struct Sweeps(Mutex<Due>);

#[derive(Default)]
struct Due {
    /// Users that have a connection again, with the database.
    users: BTreeSet<(UserId, u32)>,
    /// Connections whose pushes are lost.
    links: BTreeSet<LinkId>,
    /// The task is there.
    runs: bool,
}

/// What the task does next.
enum Sweep {
    Linked(BTreeSet<(UserId, u32)>),
    TrackingLost(LinkId),
}

impl Sweeps {
    fn due(&self) -> MutexGuard<'_, Due> {
        // No code panics while it holds this.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what to do next. None: nothing, and the task ends.
    fn next(&self) -> Option<Sweep> {
        let mut due = self.due();
        if !due.users.is_empty() {
            return Some(Sweep::Linked(std::mem::take(&mut due.users)));
        }
        let link = due.links.pop_first();
        due.runs = link.is_some();
        link.map(Sweep::TrackingLost)
    }
}

impl Gate {
    /// Notifies every queue in the database that the user has a connection again, so that it can send the requests that
    /// were not sent.
    pub(super) fn sweep_linked(self: Arc<Self>, user: UserId, database: u32) {
        self.sweep(|due| due.users.insert((user, database)));
    }

    /// Notifies every queue that pushes of the connection are lost: every lock read on it is checked again.
    pub(super) fn sweep_tracking_lost(self: Arc<Self>, link: LinkId) {
        self.sweep(|due| due.links.insert(link));
    }

    fn sweep(self: Arc<Self>, add: impl FnOnce(&mut Due) -> bool) {
        let ran = {
            let mut due = self.sweeps.due();
            add(&mut due);
            std::mem::replace(&mut due.runs, true)
        };
        if !ran {
            let runtime = self.runtime.clone();
            runtime.spawn(self.make_sweeps());
        }
    }

    async fn make_sweeps(self: Arc<Self>) {
        while let Some(sweep) = self.sweeps.next() {
            let names = self.names();
            match sweep {
                Sweep::Linked(users) => self.linked(&names, &users).await,
                Sweep::TrackingLost(link) => self.tracking_lost(&names, link).await,
            }
        }
    }

    async fn linked(&self, names: &[LockName], users: &BTreeSet<(UserId, u32)>) {
        for (told, name) in names.iter().enumerate() {
            for (user, _) in users
                .iter()
                .filter(|(_, database)| *database == name.database)
            {
                self.dispatch(name, Event::Linked { user: *user }, None);
            }
            if told % TOLD_AT_A_TIME == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn tracking_lost(&self, names: &[LockName], link: LinkId) {
        let within_micros = self.settings.answer_within_ms.saturating_mul(1_000) / 2;
        let most_micros = within_micros / u64::try_from(names.len()).unwrap_or(u64::MAX).max(1);
        let mut ask_at = clock::now();
        for (told, name) in names.iter().enumerate() {
            self.dispatch(name, Event::TrackingLost { link, ask_at }, None);
            let spacing = REASK_SPACING_MICROS.min(most_micros);
            ask_at = Time::from_micros(ask_at.micros() + spacing);
            if told % TOLD_AT_A_TIME == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}
