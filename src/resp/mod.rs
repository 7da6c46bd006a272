//! The Redis protocol, pure: where frames begin and end, and how replies are written.
//!
//! - [`request`]: the scanner of clients' requests; it agrees with Redis 7 on what a frame is, or refuses.
//! - [`reply`]: the scanner of Redis's replies, RESP2 and RESP3.
//! - [`mod@write`]: the writer of lockgate's own replies.
//!
//! The scanners are resumable, allocate nothing, do not recurse, and cost O(bytes) however the bytes are cut:
//! commands and replies are relayed as they arrive, so a value of 512 MB or a nesting of 100,000 must cost no
//! memory. Nothing here imports anything of this crate.

use thiserror::Error;

mod capture;
mod inline;
mod number;
pub mod reply;
pub mod request;
pub mod write;

pub use reply::{ReplyScanner, ReplyStep};
pub use request::{
    NAME_BYTES, RequestScanner, Step, arguments, plain_argument, plain_count, plain_request,
};
pub use write::Writer;

/// Longest inline command, and longest `*<count>` or `$<length>` line, in bytes (Redis's
/// `PROTO_INLINE_MAX_SIZE`).
pub const LINE_BYTES: usize = 64 * 1024;

/// Longest argument that can be announced, in bytes (Redis's `proto-max-bulk-len`).
pub const BULK_BYTES: u64 = 512 * 1024 * 1024;

/// Most arguments of one command (Redis's own limit, `INT_MAX`).
pub const ARGUMENTS: u64 = i32::MAX as u64;

/// Most arguments of an unauthenticated client's command, as in Redis.
pub const STRANGERS_ARGUMENTS: u64 = 10;

/// Longest argument of an unauthenticated client's command, in bytes, as in Redis.
pub const STRANGERS_BULK_BYTES: u64 = 16 * 1024;

/// The protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Protocol {
    /// The version that every connection begins with.
    #[default]
    Resp2,
    /// After a `HELLO 3` that succeeded.
    Resp3,
}

/// Bytes that are not of the protocol. Their connection cannot be read any further. For a client's bytes the text
/// is Redis's own, to be sent after `-ERR `.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// An inline command is longer than [`LINE_BYTES`], or has a NUL, where Redis stops looking for the end of the
    /// line.
    #[error("Protocol error: too big inline request")]
    TooBigInline,
    /// The quotes of an inline command do not match.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The `*<count>` line is longer than [`LINE_BYTES`], or has a NUL.
    #[error("Protocol error: too big mbulk count string")]
    TooBigArgumentCount,
    /// The count of arguments is not a number, or above [`ARGUMENTS`].
    #[error("Protocol error: invalid multibulk length")]
    InvalidArgumentCount,
    /// The count of an unauthenticated client's arguments is above [`STRANGERS_ARGUMENTS`].
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangersArgumentCount,
    /// A `$<length>` line is longer than [`LINE_BYTES`], or has a NUL.
    #[error("Protocol error: too big bulk count string")]
    TooBigBulkCount,
    /// The length of an argument is not a number, negative, or above [`BULK_BYTES`].
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    /// The length of an unauthenticated client's argument is above [`STRANGERS_BULK_BYTES`].
    #[error("Protocol error: unauthenticated bulk length")]
    StrangersBulkLength,
    /// An argument began with this byte.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// The name of a command has a NUL. Redis hashes the whole name but compares it only up to the NUL, so it may
    /// by chance run a command of another name. lockgate refuses such a name.
    #[error("Protocol error: NUL in the name of a command")]
    NulInName,
    /// The input is not exactly one frame.
    #[error("Protocol error: not one whole request")]
    NotOneFrame,
    /// A command has more arguments than the caller allows.
    #[error("Protocol error: too many arguments")]
    TooManyArguments,
    /// A reply began with this byte.
    #[error("a reply cannot begin with byte {0}")]
    ReplyKind(u8),
    /// The length of a reply or of one of its parts is not a number, or too large.
    #[error("a reply has an invalid length")]
    ReplyLength,
    /// A line or a string of a reply does not end with CR LF.
    #[error("a part of a reply does not end with CR LF")]
    ReplyEnd,
}

/// Parses an integer exactly as Redis does (`string2ll`): decimal, 64 bits, no `+`, no space, no leading
/// zero, no `-0`.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() == text.len() => Some(0),
        [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(text).ok()?.parse().ok()
        }
        _ => None,
    }
}
