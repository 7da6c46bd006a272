//! Where the locks live: in this process, or in the Redis that a URL names.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

const ALLOWED: &str = "\"embedded\", or redis://[user[:password]@]host[:port] \
                       (the database is each client's own choice)";

/// Where the locks live, and everything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// In the memory of this process.
    Embedded,
    /// In a Redis.
    Redis(RedisAddress),
}

/// What a `redis://` URL says. Printing one does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// A name or an IP address (version 6 without brackets).
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// The user, where one is named.
    pub username: Option<String>,
    /// The password, where one is given. Nothing may print it.
    pub password: Option<String>,
}

impl Upstream {
    /// Reads `embedded` or a URL; else says what is allowed, without repeating what was given.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == "embedded" {
            return Ok(Self::Embedded);
        }
        RedisAddress::parse(text)
            .map(Self::Redis)
            .ok_or_else(|| ALLOWED.to_owned())
    }
}

impl RedisAddress {
    /// As the `redis` crate reads it; but the database is each client's own choice, and an option
    /// that is not heeded must not look as if it were.
    fn parse(url: &str) -> Option<Self> {
        let after_scheme = url.strip_prefix("redis://")?;
        let bare = after_scheme.strip_suffix('/').unwrap_or(after_scheme);
        let info = url.into_connection_info().ok()?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return None;
        };
        if bare.contains(['/', '?', '#']) || *port == 0 {
            return None;
        }
        let redis = info.redis_settings();
        Some(Self {
            host: host.clone(),
            port: *port,
            username: redis.username().map(str::to_owned),
            password: redis.password().map(str::to_owned),
        })
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAddress")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "not shown"))
            .finish()
    }
}

impl fmt::Display for Upstream {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Redis(redis) => write!(f, "redis://{}:{}", redis.host, redis.port),
        }
    }
}
