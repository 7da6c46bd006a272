//! The metrics of relayed traffic. A session counts its traffic by itself and adds it here at the end of each
//! round, so relayed commands cost no atomic operation each.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::exposition::{Family, Sample};
use crate::telemetry::counters::Counter;

/// The metrics of relays.
#[derive(Debug)]
pub struct RelayMetrics {
    commands: Counter,
    bytes_to_redis: Counter,
    bytes_from_redis: Counter,
    open: AtomicUsize,
    opened: Counter,
    detached: Counter,
}

/// The traffic of one connection since it was last added.
#[derive(Debug, Default, Clone, Copy)]
pub struct Traffic {
    /// Commands, as far as they can be counted.
    pub commands: u64,
    /// Bytes that the socket to Redis took.
    pub to_redis: u64,
    /// Bytes read from the socket to Redis.
    pub from_redis: u64,
}

/// An open connection. Dropping it counts it as closed.
#[derive(Debug)]
pub struct Open(Arc<RelayMetrics>);

impl RelayMetrics {
    /// Creates the metrics at zero.
    pub const fn new() -> Self {
        Self {
            commands: Counter::new(),
            bytes_to_redis: Counter::new(),
            bytes_from_redis: Counter::new(),
            open: AtomicUsize::new(0),
            opened: Counter::new(),
            detached: Counter::new(),
        }
    }

    /// Counts a connection that ended because Redis was gone, and whose client stays.
    pub fn detached(&self) {
        self.detached.count();
    }

    /// Counts a connection to Redis that was opened for a client.
    pub fn opened(self: &Arc<Self>) -> Open {
        self.opened.count();
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// Adds the traffic of a connection.
    pub fn passed(&self, traffic: Traffic) {
        let settle = |counter: &Counter, count| {
            if count > 0 {
                counter.add(count);
            }
        };
        settle(&self.commands, traffic.commands);
        settle(&self.bytes_to_redis, traffic.to_redis);
        settle(&self.bytes_from_redis, traffic.from_redis);
    }

    /// Returns the number of relayed commands.
    pub fn commands(&self) -> u64 {
        self.commands.get()
    }

    /// Returns all families.
    pub fn families(&self) -> Vec<Family> {
        let (to, from) = (self.bytes_to_redis.get(), self.bytes_from_redis.get());
        vec![
            Family::counter(
                "lockgate_relayed_commands_total",
                "Commands of clients that went to Redis as they are.",
                self.commands.get(),
            ),
            Family::counters(
                "lockgate_relayed_bytes_total",
                "Bytes on the clients' own connections to Redis.",
                vec![
                    Sample::of("direction", "to_redis", to),
                    Sample::of("direction", "from_redis", from),
                ],
            ),
            Family::gauge(
                "lockgate_relay_connections",
                "Clients' own connections to Redis that are open.",
                self.open.load(Ordering::Relaxed),
            ),
            Family::counter(
                "lockgate_relay_connections_opened_total",
                "Clients' own connections to Redis that were opened.",
                self.opened.get(),
            ),
            Family::counter(
                "lockgate_relay_connections_detached_total",
                "Clients' own connections to Redis that ended because Redis was gone, and whose clients stayed.",
                self.detached.get(),
            ),
        ]
    }
}

impl Default for RelayMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
