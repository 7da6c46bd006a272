//! Which Redis, as whom, and how long to wait for it.

use std::{fmt, time::Duration};

use bytes::Bytes;
use redis::{ConnectionAddr, IntoConnectionInfo};

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
    /// The database of a client that never selected one. (Each question names its own.)
    pub default_database: u32,
    /// Bound of opening a connection: once for reaching the address, once for the first words on it.
    pub connect_timeout: Duration,
    /// A connection on which questions wait and none was answered for so long counts as broken
    /// (noticed at most a quarter later).
    pub timeout: Duration,
    /// A connection that was silent for so long is asked whether it still lives.
    pub ping: Duration,
    /// Stands before the name of each lock, in Redis.
    pub key_prefix: Bytes,
}

impl RedisSettings {
    /// Takes address, credentials and default database from
    /// `redis://[user[:password]@]host[:port][/database]`; the rest has its defaults.
    ///
    /// # Errors
    /// The URL is not of that form, or asks for what is not served.
    pub fn from_url(url: &str) -> Result<Self, RedisUrlError> {
        // The crate's errors name what is wrong and quote nothing, so no password can be in one.
        let info = url
            .into_connection_info()
            .map_err(|error| RedisUrlError::Form(error.to_string()))?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(RedisUrlError::Transport);
        };
        let redis = info.redis_settings();
        Ok(Self {
            host: host.clone(),
            port: *port,
            username: redis.username().map(str::to_owned),
            password: redis.password().map(str::to_owned),
            default_database: u32::try_from(redis.db()).map_err(|_| RedisUrlError::Database)?,
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
            ping: Duration::from_secs(5),
            key_prefix: Bytes::new(),
        })
    }
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("default_database", &self.default_database)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .field("ping", &self.ping)
            .field("key_prefix", &self.key_prefix)
            .finish()
    }
}

/// Why a URL names no Redis that can be served. Never contains the password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisUrlError {
    /// Not of the form.
    #[error("not of the form redis://[user[:password]@]host[:port][/database]: {0}")]
    Form(String),
    /// A Unix socket, or TLS.
    #[error("only redis://, that is TCP without TLS, is served")]
    Transport,
    /// The database is not a number that Redis could have.
    #[error("the database is not a number from 0 to 4294967295")]
    Database,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_address_credentials_and_database() {
        let settings = RedisSettings::from_url("redis://ann:p%40ss@redis.example:7000/3").unwrap();
        assert_eq!(
            (settings.host.as_str(), settings.port),
            ("redis.example", 7000)
        );
        assert_eq!(settings.username.as_deref(), Some("ann"));
        assert_eq!(settings.password.as_deref(), Some("p@ss"));
        assert_eq!(settings.default_database, 3);
    }

    #[test]
    fn what_a_url_leaves_out_has_the_defaults_of_redis() {
        let settings = RedisSettings::from_url("redis://localhost").unwrap();
        assert_eq!(settings.port, 6379);
        assert_eq!((settings.username, settings.password), (None, None));
        assert_eq!(settings.default_database, 0);
    }

    #[test]
    fn nobody_is_shown_the_password() {
        let settings = RedisSettings::from_url("redis://:hunter2@localhost").unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
        for url in [
            "redis://:hunter2@local host",
            "redis://:hunter2@host/-1",
            "rediss://:hunter2@host",
            "redis://:hunter2@host/x",
        ] {
            let error = RedisSettings::from_url(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}");
        }
    }
}
