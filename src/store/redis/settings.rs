//! Which Redis, the gate's own account there, and how long to wait for it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use bytes::Bytes;

use crate::{identity::Credentials, transport::endpoint::Endpoint};

/// The longest pause before connecting again. A connection that lived for so long counts as well.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// While clients hold leases, Redis is asked this often at least whether it is there, so that a silent
/// failover is noticed within the grace.
pub const HELD_PING: Duration = Duration::from_millis(500);

/// How often, within the time that it has to answer, a connection is looked at.
const LOOKS: u32 = 8;

/// Within which time an instance with leases is sure to have noticed that its connection leads nowhere, and to
/// have opened another one, where Redis can be reached.
pub fn noticed_within(connect_timeout: Duration, timeout: Duration, ping: Duration) -> Duration {
    let look = look(timeout, ping);
    // The silence, the ping and its answer, each found at the next look.
    let lost = HELD_PING.min(ping) + look + timeout + 2 * look;
    lost + LONGEST_PAUSE + connect_timeout
}

fn look(timeout: Duration, ping: Duration) -> Duration {
    (timeout.min(ping) / LOOKS).max(Duration::from_millis(1))
}

/// Which Redis, the gate's own account there, and how long to wait for it.
#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// Its place.
    pub endpoint: Arc<Endpoint>,
    /// The gate's own account, for what it asks Redis on its own account (`INFO`). None: it asks as the
    /// user whose connection it is.
    pub own: Option<Credentials>,
    /// Bound of opening a connection, with the first words on it.
    pub connect_timeout: Duration,
    /// A connection on which questions wait and none was answered for so long counts as broken
    /// (noticed at most a quarter later).
    pub timeout: Duration,
    /// A connection that was silent for so long is asked whether it still lives.
    pub ping: Duration,
    /// For how long, after Redis lost data, no lock that is found free is taken, so that every gate
    /// can write back what it granted. None: nothing is written back.
    pub grace: Option<Duration>,
    /// Stands before the name of each lock, in Redis.
    pub key_prefix: Bytes,
    /// Most shared connections: one for each user and database with locks.
    pub connections: usize,
    /// One that nobody used for so long, and that no lock needs, is closed.
    pub idle: Duration,
}

impl RedisSettings {
    /// When a connection that is begun now is open or given up.
    pub(super) fn connect_deadline(&self) -> Instant {
        Instant::now() + self.connect_timeout
    }

    /// How often a connection is looked at.
    pub(super) fn look(&self) -> Duration {
        look(self.timeout, self.ping)
    }

    /// The error of those who are not answered, for this reason; one line, whatever the system says.
    pub(super) fn unreachable(&self, reason: &str) -> String {
        let endpoint = &self.endpoint;
        let text = format!("UPSTREAM no connection to Redis at {endpoint}: {reason}");
        text.replace(['\r', '\n'], " ")
    }
}
