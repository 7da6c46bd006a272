//! The upstream: the memory of this process, or the Redis that a URL names.

use std::fmt;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::{
    secret,
    typed::{Error, Typed},
};
use crate::{
    auth::identity::{CREDENTIAL_BYTES, Credentials, DEFAULT},
    limits::SENTINELS,
    transport::{address::Address, endpoint::Place},
};

const ALLOWED: &str = "\"embedded\", host:port, redis://[user[:password]@]host[:port], rediss:// the same with TLS, \
                       redis+sentinel://[user[:password]@]host[:port][,host[:port]…]/service, rediss+sentinel:// the \
                       same with TLS, or unix:///path[?user=user&pass=password]";

/// The port of sentinels.
const SENTINEL_PORT: u16 = 26_379;

/// Longest name of a service, in bytes.
const SERVICE_BYTES: usize = 256;

const ONE_DATABASE: &str = "no database other than 0, redis://host[:port]/0, since a lock lives in the database that its \
                            client selects: name the database in the clients' URLs, or let them SELECT it";

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
        let keys = ("upstream.password", "upstream.password_file");
        let password = secret::check(typed, keys.0, keys.1, |text| {
            let fits = Credentials::new(user.as_bytes(), text).is_some();
            let text = String::from_utf8(text.to_vec()).ok().filter(|_| fits);
            text.ok_or_else(|| format!("UTF-8 of at most {CREDENTIAL_BYTES} bytes, with the user"))
        })?;
        if let Self::Redis(redis) = &mut upstream {
            let user = Some((user, "upstream.user")).filter(|(user, _)| !user.is_empty());
            for (beside, in_url) in [(user, &mut redis.user), (password, &mut redis.password)] {
                if let Some((text, key)) = beside
                    && in_url.replace(text).is_some()
                {
                    return Err(typed.twice(key, "upstream.url", "that in "));
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
            .map_err(str::to_owned)
    }
}

impl RedisAddress {
    /// Reads `host:port`, or a URL as the `redis` crate does. A URL may name no option that would have no effect. The
    /// error is the allowed values.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let place = match text.contains("://") {
            true => return Self::parse_url(text),
            false => Address::parse(text).and_then(Address::destination),
        };
        let (host, port) = place.ok_or(ALLOWED)?;
        Ok(Self {
            place: Place::Tcp { host, port },
            tls: false,
            user: None,
            password: None,
        })
    }

    fn parse_url(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or(ALLOWED)?;
        if let Some(scheme) = SENTINEL_SCHEMES.iter().find(|it| it.name == scheme) {
            return Self::parse_sentinels(scheme, rest);
        }
        let place_allowed = match scheme {
            "redis" | "rediss" => !rest.contains(['?', '#']),
            "unix" => rest.starts_with('/') && has_only_login(rest),
            _ => false,
        };
        if !place_allowed {
            return Err(ALLOWED);
        }
        // lockgate does TLS itself; the crate is built without it.
        let tls = scheme == "rediss";
        let info = match tls {
            true => format!("redis://{rest}").into_connection_info(),
            false => url.into_connection_info(),
        };
        let info = info.map_err(|_| ALLOWED)?;
        let place = match info.addr() {
            ConnectionAddr::Tcp(host, port) if *port != 0 => Place::Tcp {
                host: host.clone(),
                port: *port,
            },
            ConnectionAddr::Unix(path) => Place::Unix(path.clone()),
            _ => return Err(ALLOWED),
        };
        let redis = info.redis_settings();
        if redis.db() != 0 {
            return Err(ONE_DATABASE);
        }
        Ok(Self {
            place,
            tls,
            user: redis.username().map(str::to_owned),
            password: redis.password().map(str::to_owned),
        })
    }

    /// Reads `[user[:password]@]host[:port][,host[:port]…]/service`, or as Lettuce writes the service: behind a `#`, or as
    /// `?sentinelMasterId=service`.
    fn parse_sentinels(scheme: &SentinelScheme, rest: &str) -> Result<Self, &'static str> {
        let ends: &[&str] = match scheme.is_of_lettuce {
            false => &["/"],
            true => &["/?sentinelMasterId=", "?sentinelMasterId=", "/#", "#"],
        };
        let split = ends.iter().find_map(|end| rest.rsplit_once(end));
        let (authority, service) = split.filter(|(_, it)| is_service(it)).ok_or(ALLOWED)?;
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let sentinels: Option<Vec<_>> = hosts.split(',').map(sentinel).collect();
        let sentinels = sentinels.ok_or(ALLOWED)?;
        if sentinels.len() > SENTINELS {
            return Err(ALLOWED);
        }
        // The account is written as in other URLs.
        let account = Self::parse_url(&format!("redis://{login}localhost"))?;
        Ok(Self {
            place: Place::Master {
                service: service.to_owned(),
                sentinels,
            },
            tls: scheme.tls,
            ..account
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

/// A scheme of URLs that name sentinels.
struct SentinelScheme {
    name: &'static str,
    tls: bool,
    is_of_lettuce: bool,
}

const SENTINEL_SCHEMES: [SentinelScheme; 4] = {
    const fn scheme(name: &'static str, tls: bool, is_of_lettuce: bool) -> SentinelScheme {
        SentinelScheme {
            name,
            tls,
            is_of_lettuce,
        }
    }
    [
        scheme("redis+sentinel", false, false),
        scheme("rediss+sentinel", true, false),
        scheme("redis-sentinel", false, true),
        scheme("rediss-sentinel", true, true),
    ]
};

/// Returns whether a service may have this name: as `sentinel.c` allows.
fn is_service(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=SERVICE_BYTES).contains(&name.len()) && name.bytes().all(allowed)
}

/// Reads the address of a sentinel, with its port or without.
fn sentinel(text: &str) -> Option<(String, u16)> {
    let with_port = || Address::parse(&format!("{text}:{SENTINEL_PORT}"));
    Address::parse(text).or_else(with_port)?.destination()
}

/// Returns whether the options behind a socket's path are user, password and database only, each at most once.
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
        let known = |name: &String| ["db", "pass", "user"].contains(&name.as_str());
        let given = names.len();
        names.sort_unstable();
        names.dedup();
        names.len() == given && names.iter().all(known)
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
                Place::Master { .. } if *tls => write!(f, "rediss+sentinel://{place}"),
                Place::Master { .. } => write!(f, "redis+sentinel://{place}"),
            },
        }
    }
}
