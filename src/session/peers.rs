//! The share of an address's connections that may be parked.
//!
//! A client library takes a connection from its pool for each attempt and each release. If all connections of the pool
//! are parked, the holder's release finds none, and everybody waits until an attempt is refused. So at most half of the
//! connections of an address are parked. First attempts take no more than a third: otherwise the client that releases and
//! makes its next attempt at once would always find a place, and the others, which sleep between two attempts, none.
//!
//! The only connection of an address that holds a lock may be a pool of one, or may be shared by tasks that do not wait for
//! each other's replies: then the release comes behind the parked attempt. Parking shows which it is, so the session
//! tries it from time to time.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use dashmap::DashMap;

use crate::lock::Time;

/// The addresses with connected clients.
#[derive(Debug, Default)]
pub struct Peers(DashMap<Box<str>, Arc<Peer>>);

/// The clients of one address.
#[derive(Debug, Default)]
struct Peer {
    connections: AtomicUsize,
    parked: AtomicUsize,
    held: Mutex<Held>,
}

/// The locks that the clients of an address hold by attempts: how many, and when the last of their leases ends.
#[derive(Debug, Default)]
struct Held {
    locks: usize,
    until: Time,
}

/// One connection, counted at its address until it is dropped.
#[derive(Debug)]
pub(super) struct Connected {
    peers: Arc<Peers>,
    address: Box<str>,
    peer: Arc<Peer>,
}

/// A parked attempt, counted at its address until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Peer>);

impl Peers {
    /// Counts a connection from `peer`, an address with its port.
    pub(super) fn connect(self: &Arc<Self>, peer: &str) -> Connected {
        let address: Box<str> = peer
            .rsplit_once(':')
            .map_or(peer, |(address, _)| address)
            .into();
        let entry = self.0.entry(address.clone()).or_default();
        entry.connections.fetch_add(1, Ordering::Relaxed);
        Connected {
            peers: Arc::clone(self),
            address,
            peer: Arc::clone(&entry),
        }
    }
}

impl Connected {
    /// Returns whether this is the only connection of its address.
    pub(super) fn is_only(&self) -> bool {
        self.peer.connections.load(Ordering::Relaxed) == 1
    }

    /// Returns whether this is the only connection of its address, and the address holds a lock.
    pub(super) fn is_holders_only(&self, now: Time) -> bool {
        self.is_only() && self.peer.held().any(now)
    }

    /// Returns a place to park at, unless too many connections of the address are parked. `returns`: a place
    /// is kept for the client.
    pub(super) fn park(&self, returns: bool) -> Option<Place> {
        let connections = self.peer.connections.load(Ordering::Relaxed);
        let most = match returns {
            true => connections / 2,
            false => connections / 3,
        };
        let most = most.max(1);
        let more = |parked| (parked < most).then_some(parked + 1);
        let (set, read) = (Ordering::Relaxed, Ordering::Relaxed);
        let parked = self.peer.parked.fetch_update(set, read, more);
        parked.is_ok().then(|| Place(Arc::clone(&self.peer)))
    }

    /// Records that a client of the address was granted a lock.
    pub(super) fn granted(&self, now: Time, lease_ms: u64) {
        let mut held = self.peer.held();
        held.locks = if held.any(now) { held.locks + 1 } else { 1 };
        held.until = held.until.max(now.plus_millis(lease_ms));
    }

    /// Records that a client of the address released a lock.
    pub(super) fn released(&self) {
        let mut held = self.peer.held();
        held.locks = held.locks.saturating_sub(1);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let connections = &self.peer.connections;
        if connections.fetch_sub(1, Ordering::Relaxed) == 1 {
            let is_unused = |peer: &Peer| peer.connections.load(Ordering::Relaxed) == 0;
            let peers = &self.peers.0;
            peers.remove_if(&self.address, |_, peer| is_unused(peer));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peer {
    fn held(&self) -> MutexGuard<'_, Held> {
        // No code panics while it holds this.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn any(&self, now: Time) -> bool {
        self.locks > 0 && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(1_000);

    fn connected(peers: &Arc<Peers>, ports: std::ops::Range<u16>) -> Vec<Connected> {
        let peer = |port| peers.connect(&format!("10.0.0.1:{port}"));
        ports.map(peer).collect()
    }

    #[test]
    fn at_most_half_of_the_connections_of_an_address_are_parked_and_a_third_by_first_attempts() {
        let peers = Arc::new(Peers::default());
        let nine = connected(&peers, 1..10);
        let first: Vec<_> = nine[..3].iter().map(|it| it.park(false)).collect();
        assert!(first.iter().all(Option::is_some) && nine[3].park(false).is_none());
        let fourth = nine[3].park(true);
        assert!(fourth.is_some() && nine[4].park(true).is_none());
        drop(first);
        assert!(nine[4].park(true).is_some());
        let other = peers.connect("10.0.0.2:1");
        assert!(other.park(false).is_some(), "of another address");
    }

    #[test]
    fn the_only_connection_is_the_holders_until_the_release_or_the_end_of_the_lease() {
        let peers = Arc::new(Peers::default());
        let only = peers.connect("10.0.0.1:1");
        assert!(only.park(false).is_some() && !only.is_holders_only(NOW));
        only.granted(NOW, 50);
        assert!(only.is_holders_only(NOW));
        assert!(!only.is_holders_only(NOW.plus_millis(50)));
        only.granted(NOW, 50);
        only.released();
        assert!(only.is_holders_only(NOW), "of two locks");
        let second = peers.connect("10.0.0.1:2");
        assert!(!only.is_holders_only(NOW));
        drop(second);
        only.released();
        assert!(!only.is_holders_only(NOW));
    }

    #[test]
    fn an_address_without_connections_is_forgotten() {
        let peers = Arc::new(Peers::default());
        drop(connected(&peers, 1..3));
        assert!(peers.0.is_empty());
    }
}
