//! The replies that clients of absorbed commands expect.

use crate::resp::Writer;

/// One reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// A status, as `+OK`.
    Status(&'static str),
    /// An error, its code first.
    Error(&'static str),
    /// An integer.
    Integer(i64),
    /// A string.
    Bulk(&'static str),
    /// Nil, in the place of a string.
    Null,
}

impl Reply {
    /// Writes the reply in the protocol version of `writer`.
    pub fn write(self, writer: &mut Writer<'_>) {
        match self {
            Self::Status(text) => writer.status(text),
            Self::Error(text) => writer.error(text),
            Self::Integer(value) => writer.integer(value),
            Self::Bulk(text) => writer.bulk(text),
            Self::Null => writer.null(),
        }
    }
}

/// The replies to one command, one for each outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replies {
    /// The lock was granted, released or extended.
    pub done: Reply,
    /// Another token holds the lock.
    pub refused: Reply,
    /// No token holds the lock that was to be released or extended.
    pub gone: Reply,
}

impl Replies {
    /// `:1` and `:0`.
    pub const NUMBERS: Self = Self::new(Reply::Integer(1), Reply::Integer(0));
    /// `:1` and nil, as a script's `true` and `false`.
    pub const TRUE_OR_NULL: Self = Self::new(Reply::Integer(1), Reply::Null);
    /// `+OK` and nil.
    pub const OK_OR_NULL: Self = Self::new(Reply::Status("OK"), Reply::Null);

    /// Creates replies that do not tell a lock of another token from a free one.
    pub const fn new(done: Reply, refused: Reply) -> Self {
        Self {
            done,
            refused,
            gone: refused,
        }
    }
}
