//! The bounds: every buffer, queue and wait has one, with a name and a default. Operators set those in [`Limits`]
//! (section `[limits]` of the configuration); bounds that follow from the design are constants. The compiler checks
//! the relations between them.

use std::time::Duration;

pub use crate::resp::{ARGUMENTS, BULK_BYTES, LINE_BYTES};

/// Longest token that proves ownership of a lock, in bytes. The shortest has one byte.
pub const TOKEN_BYTES: usize = 256;

/// Least value of `limits.token_bytes`: a UUID, which lockgate generates where a client names no token.
pub const LEAST_TOKEN_BYTES: usize = 36;

/// Longest frame that lockgate reads whole before it decides what to do with it, in bytes: a lock command, or an
/// ordinary command that lockgate answers or amends.
pub const LOCK_COMMAND_BYTES: usize = 16 * 1024;

/// Most arguments of a lock command, its name included.
pub const LOCK_COMMAND_ARGUMENTS: usize = 16;

/// Commands kept behind a waiting `LOCK` that lockgate examines before other clients have their turn.
pub const LOOKED_AT_ONCE: usize = 32;

/// Commands of one client that Redis has not answered, consecutive ordinary ones counted as one: those that change
/// the connection, such as `SELECT`, take memory each. At the bound lockgate reads their replies before it relays
/// more.
pub const OWED_ENTRIES: usize = 8 * 1024;

/// The divisor that bounds one client's part of `limits.kept_reply_bytes`.
pub const KEPT_REPLY_SHARES: usize = 4;

/// Bytes that a grant counts for among the kept replies, beside its reply, its name and its token: the record that
/// takes the grant back where the reply cannot be written.
pub const KEPT_GRANT_BYTES: usize = 512;

/// Commands queued in one transaction, consecutive ordinary ones counted as one, so this bounds those that change
/// the connection, such as `SELECT`. A client that queues more gets an error and is closed.
pub const QUEUED_COMMANDS: usize = 64 * 1024;

/// Bytes of what a client says of its connection (its name, its library and the library's version) that are said again
/// when its connection to Redis ends and it gets another one. A client that says more is closed instead.
pub const CLIENT_STATEMENT_BYTES: usize = 512;

/// Most commands of one client that get an error each because Redis cannot be reached. A client that sent more at a time
/// gets one error, and is closed: the errors may be longer than the commands.
pub const REFUSED_COMMANDS: usize = 1_024;

/// Servers that lockgate remembers to have been the upstream, the latest ones.
pub const KNOWN_SERVERS: usize = 4;

/// Client connections to Redis that are being opened at a time; all others wait their turn. Redis's backlog of
/// connections that it has not accepted holds 511 (`tcp-backlog`), or 128 on older systems.
pub const CONNECTING: usize = 64;

/// Lookups of Redis's host name at a time for client connections, one thread each: as many as may be opening. The
/// instance's own connections have as many again, so that clients cannot keep it from its locks.
pub const LOOKUPS: usize = CONNECTING;

/// Most sentinels of a service that are watched; the configuration may name as many.
pub const SENTINELS: usize = 16;

/// Messages of one sentinel that are kept; later ones are left out, and the next question finds out.
pub const SENTINEL_MESSAGES: usize = 64;

/// Longest host name, in bytes, as in DNS.
pub const HOST_NAME_BYTES: usize = 253;

/// Longest lookup of the names of the addresses to listen on, at the start.
pub const LISTEN_LOOKUP: Duration = Duration::from_secs(10);

/// Bytes that are read of a file that holds a password: more than any password has.
pub const SECRET_FILE_BYTES: u64 = 64 * 1024;

/// Entries that lockgate adds to one reply, and to the replies in flight to one client. A single request that needs
/// more passes unchanged, with its reply; of several requests, the next waits. So lockgate owes a client little
/// more than Redis sends.
pub const AMENDED_ENTRIES: usize = 64;

/// How long no attempt is parked on the only connection of an address that holds a lock after one that was parked in
/// vain, in milliseconds: the holder may need that connection for its release.
pub const PROBE_MS: u64 = 1_000;

/// How long the absorbed commands of a user pass to Redis after it refused that user lockgate's own, in milliseconds.
pub const UNAUTHORIZED_MS: u64 = 60_000;

/// Most users remembered as such.
pub const UNAUTHORIZED_USERS: usize = 1_024;

/// Most bytes read from one socket at a time: a value of 16 KiB passes in one piece. One read may exceed a buffer's
/// bound.
pub const READ_BYTES: usize = 64 * 1024;

/// Open files beside those of clients: the log, the listener, connections shared by all.
pub const OWN_FILES: usize = 64;

/// Commands on one shared connection that Redis has not answered; further requests wait for their turn.
pub const REQUESTS_IN_FLIGHT: usize = 4 * 1024;

/// Longest reply to a command of lockgate's own, in bytes; a connection with a longer one is given up. Nearly all have a
/// few bytes, and the longest are texts of `INFO`.
pub const REPLY_BYTES: usize = 16 * 1024 * 1024;

/// Connections to the admin address at a time; one more is closed.
pub const ADMIN_CONNECTIONS: usize = 64;

/// Most patterns in one list of keys: each is compared with the keys of all commands that may concern a lock.
pub const KEY_PATTERNS: usize = 64;

/// The divisor that bounds the time for which an attempt is parked by its lease. Of the client libraries, the least
/// patient gives up an attempt after 5 % of its lease; half of that leaves time for the way to lockgate and back.
pub const PARK_PART: u64 = 40;

/// Most SHA1s in `absorb.release_scripts`.
pub const RELEASE_SCRIPTS: usize = 64;

/// Longest text of a script that lockgate tries to recognise, in bytes. The scripts of lock libraries have up to
/// 600.
pub const SCRIPT_BYTES: usize = 1024;

/// Scripts of clients that lockgate remembers by their SHA1, about 200 bytes each. A program has a handful; the bound
/// is for clients that put values into the text of a script. Beyond it, only the `EVALSHA` of a new script passes.
/// It bounds the memory of reported scripts as well.
pub const LEARNED_SCRIPTS: usize = 1_024;

/// Places at one lock that lockgate keeps for tokens that last waited on one connection. The next client of a pool may
/// wait on the connection meanwhile; and a client that makes a new token for each wait leaves place after place.
pub const KEPT_BY_CONNECTION: usize = 4;

/// Largest `REPLICAS`: more than any Redis has beside it.
pub const REPLICAS: u32 = 64;

/// Grants that one `WAIT` acknowledges. Further grants wait for the next one.
pub const ACKNOWLEDGED_TOGETHER: usize = 1_024;

/// Longest pause before replicas that were missing are asked again (`REPLICAS`), and so the longest time after their return
/// until they count.
pub const LONGEST_REPLICAS_PAUSE: Duration = Duration::from_secs(2);

/// The bounds that an operator may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Clients connected at a time; one more gets `-ERR max number of clients reached`.
    pub clients: usize,
    /// Locks that this instance knows at a time (held or waited for); one more gets `-MAXLOCKS`.
    pub locks: usize,
    /// Connections to Redis for locks: one for each user and database with locks; the locks of one more get an
    /// error.
    pub shared_connections: usize,
    /// Requests waiting for one lock; one more gets `-MAXWAITERS`.
    pub waiters: usize,
    /// `SESSION` leases bound to one client's connection; one more gets `-MAXSESSIONS`.
    pub session_locks: usize,
    /// Tokens released by this instance that it remembers in case Redis brings them back; about 200 bytes each,
    /// plus the name of the lock.
    pub released_tokens: usize,
    /// Longest name of a lock, in bytes.
    pub key_bytes: usize,
    /// Longest token that a client may name, in bytes.
    pub token_bytes: usize,
    /// Longest lock command, in bytes; a longer one is refused before it is buffered.
    pub lock_command_bytes: usize,
    /// Commands kept behind a waiting `LOCK`; then lockgate stops reading from that client.
    pub pipelined_commands: usize,
    /// Bytes kept behind a waiting `LOCK`; then lockgate stops reading from that client.
    pub pipelined_bytes: usize,
    /// Bytes in flight between one client and Redis, in each direction; then lockgate stops reading on the other
    /// side.
    pub relay_bytes: usize,
    /// Bytes of replies that clients have not read and that lockgate keeps beyond `relay_bytes`, for all clients
    /// together; one client keeps at most a quarter of it. lockgate keeps replies only where a command that the
    /// client sent behind them has to wait for them.
    pub kept_reply_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 10_000,
            locks: 1_000_000,
            shared_connections: 1_024,
            waiters: 10_000,
            session_locks: 256,
            released_tokens: 50_000,
            key_bytes: 1_024,
            token_bytes: TOKEN_BYTES,
            lock_command_bytes: LOCK_COMMAND_BYTES,
            pipelined_commands: 1_024,
            pipelined_bytes: 64 * 1024,
            relay_bytes: 256 * 1024,
            kept_reply_bytes: 256 * 1024 * 1024,
        }
    }
}

/// Least value of `limits.pipelined_bytes` and of `limits.relay_bytes`: a lock command must fit beside another one that
/// has arrived in part.
pub const LEAST_BUFFER_BYTES: usize = 2 * LOCK_COMMAND_BYTES;

/// Bytes of a lock command beside its key and its token: `limits.lock_command_bytes` exceeds the two by at least
/// this.
pub const OPTION_BYTES: usize = 1024;

/// Least value of `limits.lock_command_bytes`.
pub const LEAST_LOCK_COMMAND_BYTES: usize = 4 * 1024;

const _: () = {
    assert!(
        LOCK_COMMAND_BYTES < LINE_BYTES,
        "an inline lock command is bounded first"
    );
    assert!(
        LEAST_BUFFER_BYTES <= 64 * 1024,
        "the default of pipelined_bytes must be allowed"
    );
    assert!(
        LEAST_LOCK_COMMAND_BYTES >= 1_024 + TOKEN_BYTES + OPTION_BYTES,
        "the default of key_bytes must be allowed"
    );
};
