//! Which Redis, as whom, and how long to wait for it.

use std::{fmt, time::Duration};

use bytes::Bytes;

/// The longest pause before connecting again. A connection that lived for so long counts as well.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Which Redis, as whom, and how long to wait for it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// A name or an address; resolved anew for each connection.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The ACL user; none is Redis's `default`.
    pub username: Option<String>,
    /// Its password; none is no authentication.
    pub password: Option<String>,
    /// Bound of opening a connection: once for reaching the address, once for the first words on it.
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
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("ping", &self.ping)
            .field("grace", &self.grace)
            .field("key_prefix", &self.key_prefix)
            .finish()
    }
}
