//! The settings of a Redis store: the address, lockgate's own account there, and the timeouts.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use bytes::Bytes;

use crate::{auth::identity::Credentials, transport::endpoint::Endpoint};

/// The longest pause before connecting again. A connection that lived this long counts as healthy.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Longest silence before a `PING` while clients hold leases, so that a silent failover is noticed within the grace.
pub const HELD_PING: Duration = Duration::from_millis(500);

/// The number of health checks of a connection within its reply timeout.
const LOOKS: u32 = 8;

/// Returns the time within which an instance with leases notices a dead connection and reaches Redis again, if
/// Redis can be reached.
pub fn noticed_within(connect_timeout: Duration, timeout: Duration, ping: Duration) -> Duration {
    let status = status(timeout, ping);
    // The silence shows at the next check, the missing reply at most two checks after its timeout.
    let lost = HELD_PING.min(ping) + status + timeout + 2 * status;
    lost + LONGEST_PAUSE + connect_timeout
}

fn status(timeout: Duration, ping: Duration) -> Duration {
    (timeout.min(ping) / LOOKS).max(Duration::from_millis(1))
}

/// The settings of a Redis store: the address, lockgate's own account there, and the timeouts.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// The address.
    pub endpoint: Arc<Endpoint>,
    /// lockgate's own account, for its own commands (`INFO`). None: it sends them as the connection's user.
    pub own: Option<Credentials>,
    /// Bound of opening a connection, with the handshake on it.
    pub connect_timeout: Duration,
    /// A connection counts as broken if requests wait and no reply came for this long (noticed at most a
    /// quarter later).
    pub timeout: Duration,
    /// lockgate sends a `PING` on a connection that has been silent for this long.
    pub ping: Duration,
    /// The grace: how long after a loss of data no free lock is granted, so that every instance can write its
    /// leases back. None: nothing is written back.
    pub grace: Option<Duration>,
    /// The prefix of each lock's key in Redis.
    pub key_prefix: Bytes,
    /// How long replicas have to acknowledge a grant.
    pub replicas_timeout: Duration,
    /// Most shared connections: one for each user and database with locks.
    pub connections: usize,
    /// A connection that has been unused for this long, and that no lock needs, is closed.
    pub idle: Duration,
}

impl RedisSettings {
    /// When a connection that is begun now is open or given up.
    pub(super) fn connect_deadline(&self) -> Instant {
        Instant::now() + self.connect_timeout
    }

    /// How often a connection is looked at.
    pub(super) fn status(&self) -> Duration {
        status(self.timeout, self.ping)
    }

    /// Returns the error for requests without a reply, with this reason; one line, whatever the reason
    /// contains.
    pub(super) fn unreachable(&self, reason: &str) -> String {
        let endpoint = &self.endpoint;
        let text = format!("UPSTREAM no connection to Redis at {endpoint}: {reason}");
        text.replace(['\r', '\n'], " ")
    }
}
