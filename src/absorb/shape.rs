//! What a client's command asks of one lock.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    reply::Replies,
    scripts::{Condition, Equal, Kind, Script, Scripts},
};
use crate::{lock::Token, resp::integer};

/// A request about one lock, in a command of Redis's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The key of the lock.
    pub key: Arc<[u8]>,
    /// The request.
    pub ask: Ask,
    /// The replies that the command has in Redis.
    pub replies: Replies,
}

/// The kind of a request, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Acquires the lock where it is free.
    Acquire {
        /// The token to hold it with: any bytes.
        token: Token,
        /// The lease in milliseconds, at least 1.
        lease_ms: u64,
        /// What happens where the token holds the lock already.
        equal: Equal,
    },
    /// Releases the lock where the token holds it.
    Release {
        /// The token: any bytes.
        token: Token,
    },
    /// Gives the lock a new lease where the token holds it.
    Extend {
        /// The token: any bytes.
        token: Token,
        /// The lease in milliseconds, at least 1.
        lease_ms: u64,
        /// Whether it is added to what is left of the lease before.
        adds: bool,
    },
    /// Releases the lock whatever token holds it. It is never refused.
    Delete,
}

impl Shape {
    /// Returns the place of the key in a command of this name, in any case, with this number of arguments, its name
    /// included. `None`: such a command has no shape, as nearly all.
    pub fn key_at(name: &[u8], arguments: usize) -> Option<usize> {
        let (at, word) = match (name.len(), arguments) {
            // SET key token NX has no lease, which operators want to know of.
            (3, 4 | 6) => (1, "SET"),
            (3, 2) => (1, "DEL"),
            (6, 2) => (1, "UNLINK"),
            (4, 5..) => (3, "EVAL"),
            (7, 5..) => (3, "EVALSHA"),
            (5, 4) => (1, "DELEX"),
            (7, 3) => (1, "DELIFEQ"),
            _ => return None,
        };
        name.eq_ignore_ascii_case(word.as_bytes()).then_some(at)
    }

    /// Returns the shape of a whole command, its name included, on a connection that uses `database`. `None`: the
    /// command passes.
    ///
    /// The shape shares no memory with the command. Its lease, its key and its token are not checked against any bound.
    pub fn of(command: &[Bytes], scripts: &Scripts, database: u32) -> Option<Self> {
        let (name, arguments) = command.split_first()?;
        let is = |word: &Bytes, name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        match arguments {
            [key] if is(name, "DEL") || is(name, "UNLINK") => {
                Some(Self::new(key, Ask::Delete, Replies::NUMBERS))
            }
            [key, token] if is(name, "DELIFEQ") => Some(Self::release(key, token)),
            [key, word, token] if is(name, "DELEX") && is(word, "IFEQ") => {
                Some(Self::release(key, token))
            }
            [key, token, options @ ..] if is(name, "SET") => Self::set(key, token, options),
            [script, keys, key, values @ ..] if keys == "1" => {
                let script = if is(name, "EVALSHA") {
                    scripts.by_sha1(script)
                } else if is(name, "EVAL") {
                    scripts.by_text(script)
                } else {
                    None
                };
                Self::script(&script?, key, values, database)
            }
            _ => None,
        }
    }

    fn new(key: &Bytes, ask: Ask, replies: Replies) -> Self {
        let key = Arc::from(&key[..]);
        Self { key, ask, replies }
    }

    fn release(key: &Bytes, token: &Bytes) -> Self {
        let token = Token::new(token);
        Self::new(key, Ask::Release { token }, Replies::NUMBERS)
    }

    fn set(key: &Bytes, token: &Bytes, options: &[Bytes]) -> Option<Self> {
        let (unit, lease) = match options {
            [nx, unit, lease] | [unit, lease, nx] if nx.eq_ignore_ascii_case(b"NX") => {
                (unit, lease)
            }
            _ => return None,
        };
        let unit_ms = match unit.to_ascii_uppercase().as_slice() {
            b"PX" => 1,
            b"EX" => 1_000,
            _ => return None,
        };
        let ask = Ask::Acquire {
            token: Token::new(token),
            lease_ms: lease_ms(unit_ms, lease)?,
            equal: Equal::Refused,
        };
        Some(Self::new(key, ask, Replies::OK_OR_NULL))
    }

    fn script(script: &Script, key: &Bytes, values: &[Bytes], database: u32) -> Option<Self> {
        let token = values.get(script.token)?;
        let number = |index: usize| integer(values.get(index)?);
        let fulfilled = match script.condition {
            Condition::Always => true,
            Condition::Is(index, word) => values.get(index)? == word,
            Condition::TokenLength(index) => number(index)? == token.len() as i64,
            Condition::Database(index) => number(index)? == i64::from(database),
        };
        if !fulfilled || values.len() != script.arguments {
            return None;
        }
        let lease_ms = || lease_ms(script.unit_ms, values.get(script.lease)?);
        let token = Token::new(token);
        let ask = match script.kind {
            Kind::Acquire(equal) => Ask::Acquire {
                token,
                lease_ms: lease_ms()?,
                equal,
            },
            Kind::Release => Ask::Release { token },
            Kind::Extend => Ask::Extend {
                token,
                lease_ms: lease_ms()?,
                adds: script.adds.is_some_and(|index| values[index] == "0"),
            },
        };
        Some(Self::new(key, ask, script.replies))
    }
}

/// Returns a lease of at least 1 ms.
fn lease_ms(unit_ms: i64, text: &[u8]) -> Option<u64> {
    let lease_ms = integer(text)?.checked_mul(unit_ms)?;
    u64::try_from(lease_ms)
        .ok()
        .filter(|lease_ms| *lease_ms > 0)
}
