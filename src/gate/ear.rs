//! The gate as the store's listener: what the store tells without being asked.

use std::sync::{Arc, Weak};

use super::Gate;
use crate::{
    clock,
    lock::{Event, LinkId, Time},
    store::{Later, Listener, LockName},
};

/// After a connection to the store was lost, its locks are asked about again one by one, this many
/// microseconds apart: 5,000 a second. So many that this would take more than half of the time within which
/// the store has to answer are asked about closer to each other, since nobody is told meanwhile.
const REASK_SPACING_MICROS: u64 = 200;

/// Queues that are told of a loss of data before other tasks get their turn.
const TOLD_AT_A_TIME: usize = 100;

/// The gate as the store's listener.
pub(super) struct Ear(pub(super) Weak<Gate>);

impl Listener for Ear {
    fn changed(&self, link: LinkId, name: &LockName) {
        if let Some(gate) = self.0.upgrade() {
            gate.feed(name, Event::Changed { link }, None);
        }
    }

    fn deaf(&self, link: LinkId) {
        if let Some(gate) = self.0.upgrade() {
            let runtime = gate.runtime.clone();
            runtime.spawn(gate.ask_again(link));
        }
    }

    fn refused_connection(&self) {
        if let Some(gate) = self.0.upgrade() {
            gate.counters.refused_shared_connections.count();
        }
    }

    fn forgot(&self) -> Later<()> {
        let gate = self.0.upgrade();
        Box::pin(async move {
            if let Some(gate) = gate {
                gate.forgot().await;
            }
        })
    }
}

impl Gate {
    /// The connection told its last: what it had to tell is lost, for every lock read on it.
    async fn ask_again(self: Arc<Self>, link: LinkId) {
        let names = self.names();
        let within_micros = self.settings.answer_within_ms.saturating_mul(1_000) / 2;
        let most_micros = within_micros / u64::try_from(names.len()).unwrap_or(u64::MAX).max(1);
        let mut ask_at = clock::now();
        for name in names {
            self.feed(&name, Event::Deaf { link, ask_at }, None);
            let spacing = REASK_SPACING_MICROS.min(most_micros);
            ask_at = Time::from_micros(ask_at.micros() + spacing);
        }
    }

    /// The store lost data: every queue is told, with the tokens released here that the store may
    /// have again.
    async fn forgot(self: Arc<Self>) {
        let mut released = self.released.by_lock(clock::now());
        for (told, name) in self.names().into_iter().enumerate() {
            let released = released.remove(&name).unwrap_or_default();
            self.feed(&name, Event::Forgot { released }, None);
            if told % TOLD_AT_A_TIME == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn names(&self) -> Vec<LockName> {
        let names = self.queues.iter().map(|entry| entry.key().clone());
        names.collect()
    }
}
