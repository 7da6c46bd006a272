//! The gate as the store's listener: handles the store's notifications.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use super::{Gate, sweeps::TOLD_AT_A_TIME};
use crate::{
    clock,
    lock::{Event, LAST_LOOK_PART, LinkId, StoreReply, StoreRequestId, UserId},
    store::{Later, Listener, LockName},
};

/// The gate as the store's listener.
pub(super) struct StoreListener(pub(super) Weak<Gate>);

impl Listener for StoreListener {
    fn replied(&self, name: &LockName, id: StoreRequestId, store_reply: StoreReply) {
        if let Some(gate) = self.0.upgrade() {
            gate.replied(name, id, store_reply);
        }
    }

    fn changed(&self, link: LinkId, name: &LockName) {
        if let Some(gate) = self.0.upgrade() {
            gate.dispatch(name, Event::Changed { link }, None);
        }
    }

    fn taken(&self, name: &LockName) {
        if let Some(gate) = self.0.upgrade() {
            gate.dispatch(name, Event::Taken, None);
        }
    }

    fn linked(&self, user: UserId, database: u32) {
        if let Some(gate) = self.0.upgrade() {
            gate.sweep_linked(user, database);
        }
    }

    fn tracking_lost(&self, link: LinkId) {
        if let Some(gate) = self.0.upgrade() {
            gate.sweep_tracking_lost(link);
        }
    }

    fn refused_connection(&self) {
        if let Some(gate) = self.0.upgrade() {
            gate.counters.refused_shared_connections.count();
        }
    }

    fn waiters(&self) -> usize {
        self.0.upgrade().map_or(0, |gate| gate.waiters())
    }

    fn recovering(&self) -> usize {
        let gate = self.0.upgrade();
        // A queue that hears of the loss recovers from then on; that, too, is to count as progress.
        gate.map_or(0, |gate| {
            gate.recovering.load(Ordering::Relaxed) + 2 * gate.untold.load(Ordering::Relaxed)
        })
    }

    fn has_stake(&self) -> bool {
        let gate = self.0.upgrade();
        gate.is_some_and(|gate| {
            gate.metrics.leases() > 0 || gate.dead_tokens.until() > clock::now()
        })
    }

    fn data_lost(&self, grace: Duration) -> Later<()> {
        let gate = self.0.upgrade();
        Box::pin(async move {
            if let Some(gate) = gate {
                gate.data_lost(grace).await;
            }
        })
    }
}

impl Gate {
    /// The store lost data: notifies every queue, and creates one for each lock with dead tokens.
    async fn data_lost(self: Arc<Self>, grace: Duration) {
        let now = clock::now();
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let until = now.plus_millis(grace_ms.saturating_add(grace_ms / LAST_LOOK_PART));
        let mut watches = self.dead_tokens.lost_data(now);
        for watch in watches.values_mut() {
            watch.until = watch.until.min(until);
        }
        let with_queues = self.names().into_iter();
        let with_queues: Vec<_> = with_queues
            .map(|name| (watches.remove(&name), name))
            .collect();
        let others = watches.into_iter().map(|(name, dead)| (Some(dead), name));
        self.untold
            .store(with_queues.len() + others.len(), Ordering::Relaxed);
        // Leases first: a dead token matters only to others.
        for (told, (dead, name)) in with_queues.into_iter().chain(others).enumerate() {
            self.dispatch(&name, Event::DataLost { dead }, None);
            self.untold.fetch_sub(1, Ordering::Relaxed);
            if told % TOLD_AT_A_TIME == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(super) fn names(&self) -> Vec<LockName> {
        let names = self.queues.iter().map(|entry| entry.key().clone());
        names.collect()
    }
}
