//! Where the locks live: in this process, or in the Redis that a URL names.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::typed::{Error, Typed};
use crate::identity::{CREDENTIAL_BYTES, Credentials, DEFAULT};

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

/// Which Redis, and the gate's own account there. Printing one does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// A name or an IP address (version 6 without brackets).
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Who the gate is where it asks on its own account. No client has the rights of it.
    pub user: Option<String>,
    /// Its password. Nothing may print it.
    pub password: Option<String>,
}

impl Upstream {
    /// The URL, and the account that it or the keys beside it name.
    pub(super) fn check(typed: &mut Typed) -> Result<Self, Error> {
        let mut upstream = typed.parse_secret("upstream.url", "embedded", Self::parse)?;
        let user = typed.parse("upstream.user", "", |text| Ok(text.to_owned()))?;
        let password = typed.parse_secret("upstream.password", "", |text| {
            let fits = Credentials::new(user.as_bytes(), text.as_bytes()).is_some();
            let most = format!("at most {CREDENTIAL_BYTES} bytes, with the user");
            fits.then(|| text.to_owned()).ok_or(most)
        })?;
        if let Self::Redis(redis) = &mut upstream {
            for (text, mine, key) in [
                (user, &mut redis.user, "upstream.user"),
                (password, &mut redis.password, "upstream.password"),
            ] {
                if !text.is_empty() && mine.replace(text).is_some() {
                    return Err(Error::Twice(
                        key.to_owned(),
                        "that in upstream.url".to_owned(),
                    ));
                }
            }
        }
        Ok(upstream)
    }

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
            user: redis.username().map(str::to_owned),
            password: redis.password().map(str::to_owned),
        })
    }

    /// The gate's own account. Without a name it is Redis's `default` user; a user may need no password.
    pub fn own(&self) -> Option<Credentials> {
        let (user, password) = (self.user.as_deref(), self.password.as_deref());
        let name = user.map_or(DEFAULT, str::as_bytes);
        user.or(password)?;
        Credentials::new(name, password.unwrap_or_default().as_bytes())
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAddress")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
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
