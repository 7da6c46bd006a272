//! Parses the arguments of a lock command. Pure.
//!
//! docs/commands.md describes the grammar. Where Redis has the same error, lockgate uses Redis's words, so
//! that client libraries and operators recognise it. Errors are checked in Redis's order: number of
//! arguments, syntax, numbers, ranges.
//!
//! Keys and tokens are copied out of the arguments. Those are slices of a read buffer, and a request that
//! waits for hours would keep the whole buffer in memory.

pub mod glob;
pub mod table;

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::{limits::REPLICAS, lock::Token, resp::integer};

/// The name of a lock command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `LOCK key [TOKEN token] [PX milliseconds | EX seconds] [WAIT milliseconds] [FENCE] [SESSION] [REPLICAS n]`
    Lock,
    /// `TRYLOCK key [TOKEN token] [PX milliseconds | EX seconds] [FENCE] [SESSION] [REPLICAS n]`
    TryLock,
    /// `RELOCK key token [PX milliseconds | EX seconds] [REPLICAS n]`
    Relock,
    /// `UNLOCK key token`
    Unlock,
    /// `LOCKINFO key`
    LockInfo,
    /// `LOCKS [MATCH pattern] [COUNT n]`
    Locks,
}

impl Verb {
    /// Returns the lock command of this name, in any case. The session checks every command of every client,
    /// so length and first byte rule out nearly all others.
    pub fn of(name: &[u8]) -> Option<Self> {
        let verb = match (name.len(), name.first()?.to_ascii_lowercase()) {
            (4, b'l') => Self::Lock,
            (5, b'l') => Self::Locks,
            (6, b'r') => Self::Relock,
            (6, b'u') => Self::Unlock,
            (7, b't') => Self::TryLock,
            (8, b'l') => Self::LockInfo,
            _ => return None,
        };
        name.eq_ignore_ascii_case(verb.name().as_bytes())
            .then_some(verb)
    }

    /// Returns the name in lower case, as Redis writes it in errors and in `COMMAND`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::TryLock => "trylock",
            Self::Relock => "relock",
            Self::Unlock => "unlock",
            Self::LockInfo => "lockinfo",
            Self::Locks => "locks",
        }
    }
}

/// Returns whether a command of this name, in upper case, begins an HTTP request, which most likely a browser
/// sends on behalf of another site. Redis drops such a client, and so does lockgate.
pub fn is_cross_protocol(name: &[u8]) -> bool {
    matches!(name, b"POST" | b"HOST:")
}

/// A parsed lock command. Printing one shows no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `LOCK` and `TRYLOCK`.
    Lock {
        /// The name of the lock.
        key: Arc<[u8]>,
        /// The token to hold it with, of 1 to `token_bytes` bytes. `None`: lockgate generates one.
        token: Option<Token>,
        /// The lease in milliseconds, between the minimum and the maximum. `None`: the default.
        lease_ms: Option<u64>,
        /// Longest wait in milliseconds, at least 1. `None`: no limit, or a `TRYLOCK`.
        wait_ms: Option<u64>,
        /// `TRYLOCK`: does not wait.
        try_only: bool,
        /// The reply includes a fence.
        fence: bool,
        /// The lease is bound to the connection.
        session: bool,
        /// The replicas that acknowledge the grant, at most [`REPLICAS`]. `None`: the default.
        replicas: Option<u32>,
    },
    /// `RELOCK`.
    Relock {
        /// The name of the lock.
        key: Arc<[u8]>,
        /// The token that should hold it: any bytes. One that is no valid token holds nothing.
        token: Token,
        /// The lease in milliseconds, between the minimum and the maximum. `None`: the default.
        lease_ms: Option<u64>,
        /// The replicas that acknowledge the new lease, at most [`REPLICAS`]. `None`: the default.
        replicas: Option<u32>,
    },
    /// `UNLOCK`.
    Unlock {
        /// The name of the lock.
        key: Arc<[u8]>,
        /// The token that should hold it: any bytes. One that is no valid token holds nothing.
        token: Token,
    },
    /// `LOCKINFO`.
    LockInfo {
        /// The name of the lock.
        key: Arc<[u8]>,
    },
    /// `LOCKS`.
    Locks {
        /// The pattern that names have to match (see [`glob`](glob)).
        pattern: Option<Bytes>,
        /// Most names in the reply, at least 1.
        count: Option<usize>,
    },
}

impl Command {
    /// Returns the name of the lock that the command is about.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Lock { key, .. }
            | Self::Relock { key, .. }
            | Self::Unlock { key, .. }
            | Self::LockInfo { key } => Some(key),
            Self::Locks { .. } => None,
        }
    }
}

/// The bounds on lock commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Longest name of a lock, in bytes.
    pub key_bytes: usize,
    /// Longest token, in bytes.
    pub token_bytes: usize,
    /// Longest frame, in bytes. A longer one is refused unread.
    pub command_bytes: usize,
    /// Shortest lease, in milliseconds.
    pub min_lease_ms: u64,
    /// Longest lease, in milliseconds.
    pub max_lease_ms: u64,
}

/// The error in a lock command. It displays as the client's error, without the leading `-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The first argument is not the name of a lock command.
    #[error("ERR unknown command")]
    NotALockCommand,
    /// Too few arguments, or too many.
    #[error("ERR wrong number of arguments for '{}' command", .0.name())]
    WrongArity(Verb),
    /// An unknown option, a repeated one, one without its value, or one that excludes another.
    #[error("ERR syntax error")]
    Syntax,
    /// Not an integer, or beyond 64 bits.
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    /// A lease of zero or less, below the minimum or above the maximum.
    #[error("ERR invalid expire time in '{}' command", .0.name())]
    InvalidExpire(Verb),
    /// A negative `WAIT`.
    #[error("ERR timeout is negative")]
    NegativeWait,
    /// A token for `LOCK` or `TRYLOCK` that is empty or too long.
    #[error("ERR TOKEN must have 1 to {most} bytes")]
    TokenSize {
        /// Longest token, in bytes.
        most: usize,
    },
    /// The name of the lock is too long.
    #[error("ERR lock name is longer than {most} bytes (limits.key_bytes)")]
    KeyTooLong {
        /// Longest name, in bytes.
        most: usize,
    },
}

/// Parses a lock command: its name and its arguments.
///
/// # Errors
/// The error in the command, in the client's words. Nothing has happened then.
pub fn parse(arguments: &[Bytes], bounds: &Bounds) -> Result<Command, CommandError> {
    let (name, rest) = arguments
        .split_first()
        .ok_or(CommandError::NotALockCommand)?;
    let verb = Verb::of(name).ok_or(CommandError::NotALockCommand)?;
    match (verb, rest) {
        (Verb::Lock | Verb::TryLock, [key, options @ ..]) => lock(verb, key, options, bounds),
        (Verb::Relock, [key, token, options @ ..]) => {
            let options = Options::read(verb, options)?;
            Ok(Command::Relock {
                key: name_of_lock(key, bounds)?,
                token: Token::new(token),
                lease_ms: options.lease_ms(verb, bounds)?,
                replicas: options.replicas()?,
            })
        }
        (Verb::Unlock, [key, token]) => Ok(Command::Unlock {
            key: name_of_lock(key, bounds)?,
            token: Token::new(token),
        }),
        (Verb::LockInfo, [key]) => Ok(Command::LockInfo {
            key: name_of_lock(key, bounds)?,
        }),
        (Verb::Locks, options) => {
            let options = Options::read(verb, options)?;
            Ok(Command::Locks {
                count: options.count()?,
                pattern: options
                    .pattern
                    .map(|pattern| Bytes::copy_from_slice(pattern)),
            })
        }
        _ => Err(CommandError::WrongArity(verb)),
    }
}

fn lock(
    verb: Verb,
    key: &Bytes,
    options: &[Bytes],
    bounds: &Bounds,
) -> Result<Command, CommandError> {
    let options = Options::read(verb, options)?;
    let lease_ms = options.lease_ms(verb, bounds)?;
    let wait_ms = options.wait_ms()?;
    let replicas = options.replicas()?;
    if let Some(token) = options.token
        && !(1..=bounds.token_bytes).contains(&token.len())
    {
        return Err(CommandError::TokenSize {
            most: bounds.token_bytes,
        });
    }
    Ok(Command::Lock {
        key: name_of_lock(key, bounds)?,
        token: options.token.map(Token::new),
        lease_ms,
        wait_ms,
        try_only: verb == Verb::TryLock,
        fence: options.fence.is_some(),
        session: options.session.is_some(),
        replicas,
    })
}

fn name_of_lock(key: &Bytes, bounds: &Bounds) -> Result<Arc<[u8]>, CommandError> {
    if key.len() > bounds.key_bytes {
        return Err(CommandError::KeyTooLong {
            most: bounds.key_bytes,
        });
    }
    Ok(Arc::from(&key[..]))
}

/// The unit of a lease.
#[derive(Clone, Copy)]
enum Unit {
    Milliseconds,
    Seconds,
}

/// The options of one command, with their values not parsed yet.
#[derive(Default)]
struct Options<'a> {
    token: Option<&'a Bytes>,
    lease: Option<(Unit, &'a Bytes)>,
    wait: Option<&'a Bytes>,
    fence: Option<()>,
    session: Option<()>,
    replicas: Option<&'a Bytes>,
    pattern: Option<&'a Bytes>,
    count: Option<&'a Bytes>,
}

impl<'a> Options<'a> {
    /// Sorts the words after the fixed arguments of `verb` into options.
    fn read(verb: Verb, words: &'a [Bytes]) -> Result<Self, CommandError> {
        let locks = matches!(verb, Verb::Lock | Verb::TryLock);
        let leases = locks || verb == Verb::Relock;
        let lists = verb == Verb::Locks;
        let mut options = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            if locks && is("TOKEN") {
                once(&mut options.token, words.next())?;
            } else if leases && is("PX") {
                let value = words.next().map(|value| (Unit::Milliseconds, value));
                once(&mut options.lease, value)?;
            } else if leases && is("EX") {
                let value = words.next().map(|value| (Unit::Seconds, value));
                once(&mut options.lease, value)?;
            } else if verb == Verb::Lock && is("WAIT") {
                once(&mut options.wait, words.next())?;
            } else if locks && is("FENCE") {
                once(&mut options.fence, Some(()))?;
            } else if locks && is("SESSION") {
                once(&mut options.session, Some(()))?;
            } else if leases && is("REPLICAS") {
                once(&mut options.replicas, words.next())?;
            } else if lists && is("MATCH") {
                once(&mut options.pattern, words.next())?;
            } else if lists && is("COUNT") {
                once(&mut options.count, words.next())?;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    fn lease_ms(&self, verb: Verb, bounds: &Bounds) -> Result<Option<u64>, CommandError> {
        let Some((unit, text)) = self.lease else {
            return Ok(None);
        };
        let number = integer(text).ok_or(CommandError::NotAnInteger)?;
        let lease_ms = match unit {
            Unit::Milliseconds => Some(number),
            Unit::Seconds => number.checked_mul(1_000),
        };
        lease_ms
            .and_then(|lease_ms| u64::try_from(lease_ms).ok())
            .filter(|lease_ms| *lease_ms > 0)
            .filter(|lease_ms| (bounds.min_lease_ms..=bounds.max_lease_ms).contains(lease_ms))
            .map(Some)
            .ok_or(CommandError::InvalidExpire(verb))
    }

    fn wait_ms(&self) -> Result<Option<u64>, CommandError> {
        let Some(text) = self.wait else {
            return Ok(None);
        };
        let number = integer(text).ok_or(CommandError::NotAnInteger)?;
        let wait_ms = u64::try_from(number).map_err(|_| CommandError::NegativeWait)?;
        Ok((wait_ms > 0).then_some(wait_ms))
    }

    fn replicas(&self) -> Result<Option<u32>, CommandError> {
        let Some(text) = self.replicas else {
            return Ok(None);
        };
        let number = integer(text).and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| *number <= REPLICAS);
        number.map(Some).ok_or(CommandError::NotAnInteger)
    }

    /// Parses `COUNT` as `SCAN` does: zero or less is a syntax error.
    fn count(&self) -> Result<Option<usize>, CommandError> {
        let Some(text) = self.count else {
            return Ok(None);
        };
        let number = integer(text).ok_or(CommandError::NotAnInteger)?;
        if number < 1 {
            return Err(CommandError::Syntax);
        }
        Ok(Some(usize::try_from(number).unwrap_or(usize::MAX)))
    }
}

/// Fills an option that may occur once, with a value that must be present.
fn once<T>(slot: &mut Option<T>, value: Option<T>) -> Result<(), CommandError> {
    if slot.is_some() || value.is_none() {
        return Err(CommandError::Syntax);
    }
    *slot = value;
    Ok(())
}

#[cfg(test)]
mod tests;
