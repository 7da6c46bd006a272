//! Where the locks live: in this process, or in the Redis that a URL names.

use std::fmt;

/// Redis's own port.
const DEFAULT_PORT: u16 = 6379;

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
        text.strip_prefix("redis://")
            .and_then(RedisAddress::parse)
            .map(Self::Redis)
            .ok_or_else(|| ALLOWED.to_owned())
    }
}

impl RedisAddress {
    /// What follows `redis://`.
    fn parse(rest: &str) -> Option<Self> {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return None;
        }
        let (identity, address) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (username, password) = identity.split_once(':').unwrap_or((identity, ""));
        let (host, port) = host_and_port(address)?;
        let named = |text: String| (!text.is_empty()).then_some(text);
        Some(Self {
            host: host.to_owned(),
            port,
            username: named(decoded(username)?),
            password: named(decoded(password)?),
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

/// `host`, `host:port`, `[::1]` or `[::1]:port`.
fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, rest) = match address.strip_prefix('[') {
        Some(address) => address.split_once(']')?,
        None => address.split_at(address.find(':').unwrap_or(address.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None if rest.is_empty() => DEFAULT_PORT,
        None => return None,
    };
    let wrong = |c: char| c.is_whitespace() || c.is_control() || c == ']';
    (!host.is_empty() && !host.contains(wrong)).then_some((host, port))
}

/// The text with its `%41` replaced by `A`; none where it is not valid.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
            rest = after.get(2..)?;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}
