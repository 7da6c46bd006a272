//! The Redis protocol, pure: where frames begin and end, and how replies are written.
//!
//! - [`request`]: the scanner of what clients send; it agrees with Redis 7 on what a frame is, or refuses.
//! - [`reply`]: the scanner of what Redis sends, RESP2 and RESP3.
//! - [`mod@write`]: the writer of lockgate's own replies.
//!
//! The scanners are resumable, allocate nothing, do not recurse, and cost O(bytes) however the
//! bytes are cut: commands and replies are relayed as they pass, so a value of 512 MB or a nesting
//! of 100,000 must cost no memory. Nothing here imports anything of this crate.

use thiserror::Error;

mod capture;
mod inline;
mod number;
pub mod reply;
pub mod request;
pub mod write;

pub use reply::{ReplyScanner, ReplyStep};
pub use request::{NAME_BYTES, RequestScanner, Step, arguments, plain_request};
pub use write::Writer;

/// Longest inline command, and longest `*<count>` or `$<length>` line, in bytes (Redis's
/// `PROTO_INLINE_MAX_SIZE`).
pub const LINE_BYTES: usize = 64 * 1024;

/// Longest argument that can be announced, in bytes (Redis's `proto-max-bulk-len`).
pub const BULK_BYTES: u64 = 512 * 1024 * 1024;

/// Most arguments of one command (Redis's own limit, `INT_MAX`).
pub const ARGUMENTS: u64 = i32::MAX as u64;

/// Most arguments of a command of somebody who has not authenticated, as in Redis.
pub const STRANGERS_ARGUMENTS: u64 = 10;

/// Longest argument of theirs, as in Redis.
pub const STRANGERS_BULK_BYTES: u64 = 16 * 1024;

/// The version of the protocol that a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Protocol {
    /// What every connection begins with.
    #[default]
    Resp2,
    /// After a `HELLO 3` that succeeded.
    Resp3,
}

/// Bytes that are not of the protocol. The connection they came on cannot be read any further.
/// For a client's bytes the text is what Redis says, to be sent after `-ERR `.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// An inline command is longer than [`LINE_BYTES`], or has a NUL, behind which Redis does not
    /// look for the end of the line.
    #[error("Protocol error: too big inline request")]
    TooBigInline,
    /// The quotes of an inline command do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The `*<count>` line is longer than [`LINE_BYTES`], or has a NUL.
    #[error("Protocol error: too big mbulk count string")]
    TooBigArgumentCount,
    /// The count of arguments is no number, or above [`ARGUMENTS`].
    #[error("Protocol error: invalid multibulk length")]
    InvalidArgumentCount,
    /// Above [`STRANGERS_ARGUMENTS`], of somebody who has not authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangersArgumentCount,
    /// A `$<length>` line is longer than [`LINE_BYTES`], or has a NUL.
    #[error("Protocol error: too big bulk count string")]
    TooBigBulkCount,
    /// The length of an argument is no number, negative, or above [`BULK_BYTES`].
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    /// Above [`STRANGERS_BULK_BYTES`], of somebody who has not authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangersBulkLength,
    /// An argument began with this byte.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// The name of a command has a NUL. Redis hashes the whole name but compares it up to the NUL
    /// only, so that by chance it runs a command of another name: not guessed at, but refused.
    #[error("Protocol error: NUL in the name of a command")]
    NulInName,
    /// One frame was expected, neither less nor more.
    #[error("Protocol error: not one whole request")]
    NotOneFrame,
    /// A command has more arguments than were asked for.
    #[error("Protocol error: too many arguments")]
    TooManyArguments,
    /// A reply began with this byte.
    #[error("a reply cannot begin with byte {0}")]
    ReplyKind(u8),
    /// The length of a reply or of one of its parts is no number or too large.
    #[error("a reply has an invalid length")]
    ReplyLength,
    /// A line or a string of a reply does not end with CR LF.
    #[error("a part of a reply does not end with CR LF")]
    ReplyEnd,
}
