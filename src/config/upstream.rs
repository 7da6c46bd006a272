//! Where the locks live: in this process, or in the Redis that a URL names.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::typed::{Error, Typed};
use crate::{
    identity::{CREDENTIAL_BYTES, Credentials, DEFAULT},
    transport::endpoint::Place,
};

const ALLOWED: &str = "\"embedded\", redis://[user[:password]@]host[:port], rediss:// the same with TLS, or \
                       unix:///path[?user=user&pass=password] (the database is each client's own choice)";

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
    /// Where it is.
    pub place: Place,
    /// It speaks TLS.
    pub tls: bool,
    /// Who the gate is where it asks on its own account. No client has the rights of it, but where all
    /// clients are the gate to Redis (`[auth]`).
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
        // The TLS is ours, and the crate knows none here.
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

    /// The gate's own account. Without a name it is Redis's `default` user; a user may need no password.
    pub fn own(&self) -> Option<Credentials> {
        let (user, password) = (self.user.as_deref(), self.password.as_deref());
        let name = user.map_or(DEFAULT, str::as_bytes);
        user.or(password)?;
        Credentials::new(name, password.unwrap_or_default().as_bytes())
    }
}

/// Of what may stand behind the path of a socket, there are user and password only, each once.
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
    /// Without user and password.
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
