//! The upstream: the memory of this process, or the Redis that a URL names.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::typed::{Error, Typed};
use crate::{
    auth::identity::{CREDENTIAL_BYTES, Credentials, DEFAULT},
    transport::endpoint::Place,
};

const ALLOWED: &str = "\"embedded\", redis://[user[:password]@]host[:port], rediss:// the same with TLS, or \
                       unix:///path[?user=user&pass=password] (the database is each client's own choice)";

/// Where the locks and all other data live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// In the memory of this process.
    Embedded,
    /// In a Redis.
    Redis(RedisAddress),
}

/// A Redis, and lockgate's own account there. Printing one does not show the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    /// Its address.
    pub place: Place,
    /// Whether it uses TLS.
    pub tls: bool,
    /// The user that lockgate is to Redis on its own connections. Clients do not have its rights, unless all of
    /// them are this user to Redis (`[auth]`).
    pub user: Option<String>,
    /// Its password, which no output may show.
    pub password: Option<String>,
}

impl Upstream {
    /// Reads the URL, and the account in it or in the keys beside it.
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

    /// Reads `embedded` or a URL. The error lists what is allowed, without repeating the input.
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
    /// Reads a URL as the `redis` crate does. It may not name a database, which is each client's own choice, nor an
    /// option that would have no effect.
    fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let place_allowed = match scheme {
            "redis" | "rediss" => !rest
                .strip_suffix('/')
                .unwrap_or(rest)
                .contains(['/', '?', '#']),
            "unix" => rest.starts_with('/') && has_only_login(rest),
            _ => false,
        };
        if !place_allowed {
            return None;
        }
        // lockgate does TLS itself; the crate is built without it.
        let tls = scheme == "rediss";
        let info = match tls {
            true => format!("redis://{rest}").into_connection_info(),
            false => url.into_connection_info(),
        };
        let info = info.ok()?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) if *port != 0 => Place::Tcp {
                host: host.clone(),
                port: *port,
            },
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => return None,
        };
        let redis = info.redis_settings();
        Some(Self {
            place,
            tls,
            user: redis.username().map(str::to_owned),
            password: redis.password().map(str::to_owned),
        })
    }

    /// Returns lockgate's own account, if any. Without a name it is Redis's `default` user; a user may need no
    /// password.
    pub fn own(&self) -> Option<Credentials> {
        let (user, password) = (self.user.as_deref(), self.password.as_deref());
        let name = user.map_or(DEFAULT, str::as_bytes);
        user.or(password)?;
        Credentials::new(name, password.unwrap_or_default().as_bytes())
    }
}

/// Returns whether the options behind a socket's path are user and password only, each at most once.
fn has_only_login(rest: &str) -> bool {
    if rest.contains('#') {
        return false;
    }
    let Some((_, query)) = rest.split_once('?') else {
        return true;
    };
    let name = |field: &str| field.split_once('=').map(|(name, _)| name.to_owned());
    let names: Option<Vec<_>> = query.split('&').map(name).collect();
    names.is_some_and(|mut names| {
        names.sort_unstable();
        matches!(
            names.iter().map(String::as_str).collect::<Vec<_>>()[..],
            ["pass"] | ["user"] | ["pass", "user"]
        )
    })
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAddress")
            .field("place", &self.place)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "not shown"))
            .finish()
    }
}

impl fmt::Display for Upstream {
    /// Shows the URL without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("embedded"),
            Self::Redis(RedisAddress { place, tls, .. }) => match place {
                Place::Tcp { .. } if *tls => write!(f, "rediss://{place}"),
                Place::Tcp { .. } => write!(f, "redis://{place}"),
                Place::Unix(_) => write!(f, "unix://{place}"),
            },
        }
    }
}
