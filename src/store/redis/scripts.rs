//! What Redis is asked: one Lua script for each question, atomic as every script is.
//!
//! - **A script that leaves the lock held ends with a read of the key.** The read arms
//!   `CLIENT TRACKING`; with `NOLOOP` a read before an own write does not, since the write strikes
//!   the key off the list of what is tracked. `PEXPIRETIME`, `PTTL` and `GET` are such reads. A
//!   release frees the lock and does not read it again: nobody here waits to be told.
//! - **Errors go back as Redis made them** (`pcall`, and the table returned as it is), so that a
//!   client reads `WRONGTYPE Operation against …` and not the script's name and line.
//! - **The deadline identifies a grant**, beside the token. It is `PEXPIRETIME`, or `TIME` + `PTTL`
//!   before Redis 7; that sum can be 1 ms off, so there a guard lets 1 ms pass.
//!
//! What the scripts return: an integer is the deadline of a grant made now, an array of one integer
//! that of a token that held the lock before, an array of two the holder and its `PTTL`, nil that nobody holds
//! the lock. `RELEASE` returns 1 or 0.

use std::sync::LazyLock;

use bytes::Bytes;
use redis::{Arg, Cmd, Script, ServerError, Value};

use crate::lock::{Deadline, Outcome, Question, Token};

/// `deadline()`: when the key expires, and by how many milliseconds that may be off.
/// -1 for never, -2 without a key; what Redis said where it refused.
const DEADLINE: &str = "
local function deadline()
    local at = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(at) == 'number' then return at, 0 end
    local now = redis.pcall('TIME')
    if now.err then return now end
    local ttl = redis.pcall('PTTL', KEYS[1])
    if type(ttl) ~= 'number' or ttl < 0 then return ttl, 0 end
    return now[1] * 1000 + math.floor(now[2] / 1000) + ttl, 1
end
";

/// `expires_at(moment)`: whether the key expires at that very moment.
const EXPIRES_AT: &str = "
local function expires_at(moment)
    local at, off = deadline()
    return type(at) == 'number' and math.abs(at - moment) <= off
end
";

/// `lease_anew(lease)`: the key expires that much from now, and not within 3 ms of when it would
/// have: whoever knew the old deadline can tell that it is not the one any more. Nor may a third
/// lease in the same moment end where the first did, so only a lease that is shorter by more than
/// the 100 ms that this can add up to moves the deadline back.
const LEASE_ANEW: &str = "
local function lease_anew(lease)
    local before, off = deadline()
    if type(before) ~= 'number' then return before end
    local set = redis.pcall('PEXPIRE', KEYS[1], lease)
    if type(set) ~= 'number' then return set end
    local after = deadline()
    if after < before + 3 + off and after > before - 100 then
        redis.pcall('PEXPIREAT', KEYS[1], before + 3 + off)
        after = deadline()
    end
    if type(after) ~= 'number' then return after end
    return {after}
end
";

/// ARGV: token, lease. The `SET` comes first because a free lock is the usual case, and because a
/// replica refuses it: what a replica says of the holder would be stale.
const ASK: &str = "
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
    local at = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(at) == 'number' then return at end
end
";

/// The rest of it. A grant whose deadline Redis does not tell is taken back. Where the `SET` was
/// refused for want of memory, a lease can begin anew all the same.
const ASK_FURTHER: &str = "
if set and set.ok then
    local at = deadline()
    if type(at) ~= 'number' then redis.pcall('DEL', KEYS[1]) end
    return at
end
if set and not string.find(set.err, 'OOM', 1, true) then return set end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if not holder then return set end
if holder == ARGV[1] then return lease_anew(ARGV[2]) end
return {holder, redis.pcall('PTTL', KEYS[1])}
";

/// ARGV: from, to, lease, and the deadline to insist on, or nothing.
const HAND_OVER: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' or not holder then return holder end
";

/// The rest of it.
const HAND_OVER_FURTHER: &str = "
if holder == ARGV[1] and (ARGV[4] == '' or expires_at(ARGV[4])) then
    local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if set.err then return set end
    return (deadline())
end
if holder == ARGV[2] then return {(deadline())} end
return {holder, redis.pcall('PTTL', KEYS[1])}
";

/// ARGV: token, and the deadline to insist on, or nothing.
const RELEASE: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if holder ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.pcall('DEL', KEYS[1]) end
";

/// The rest of it.
const RELEASE_FURTHER: &str = "
if expires_at(ARGV[2]) then return redis.pcall('DEL', KEYS[1]) end
return 0
";

/// ARGV: token, lease.
const EXTEND: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' or not holder then return holder end
if holder ~= ARGV[1] then return {holder, redis.pcall('PTTL', KEYS[1])} end
";

/// The rest of it.
const EXTEND_FURTHER: &str = "
return lease_anew(ARGV[2])
";

/// A script, and the hash that Redis knows it by once it has seen it.
struct Prepared {
    text: String,
    hash: String,
}

impl Prepared {
    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let hash = Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

// Making a Lua function costs Redis about as much as running a command, so what is usual comes
// before the functions.
static ASK_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[ASK, DEADLINE, LEASE_ANEW, ASK_FURTHER]));
static HAND_OVER_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[HAND_OVER, DEADLINE, EXPIRES_AT, HAND_OVER_FURTHER]));
static RELEASE_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[RELEASE, DEADLINE, EXPIRES_AT, RELEASE_FURTHER]));
static EXTEND_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[EXTEND, DEADLINE, LEASE_ANEW, EXTEND_FURTHER]));

/// A question on its way: the command, and how to read its answer.
pub(super) struct Request {
    script: &'static Prepared,
    command: Cmd,
    releases: bool,
}

/// What a reply means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Redis has not seen the script yet: send [`Request::in_full`].
    Unseen,
    /// The question is answered.
    Done {
        /// What was found and done.
        outcome: Outcome,
        /// The script ended with a read of the key.
        read: bool,
    },
}

impl Request {
    /// The question about the lock with this key.
    pub(super) fn new(key: &[u8], question: &Question) -> Self {
        match question {
            Question::Ask {
                token, lease_ms, ..
            } => Self::build(&ASK_SCRIPT, key, &[token.as_bytes()], Some(*lease_ms), None),
            Question::HandOver {
                from,
                only_if,
                to,
                lease_ms,
                ..
            } => Self::build(
                &HAND_OVER_SCRIPT,
                key,
                &[from.as_bytes(), to.as_bytes()],
                Some(*lease_ms),
                Some(*only_if),
            ),
            Question::Release { token, only_if, .. } => Self {
                releases: true,
                ..Self::build(
                    &RELEASE_SCRIPT,
                    key,
                    &[token.as_bytes()],
                    None,
                    Some(*only_if),
                )
            },
            Question::Extend {
                token, lease_ms, ..
            } => Self::build(
                &EXTEND_SCRIPT,
                key,
                &[token.as_bytes()],
                Some(*lease_ms),
                None,
            ),
        }
    }

    fn build(
        script: &'static Prepared,
        key: &[u8],
        tokens: &[&Bytes],
        lease_ms: Option<u64>,
        guard: Option<Option<Deadline>>,
    ) -> Self {
        let bytes = 80 + key.len() + tokens.iter().map(|token| token.len()).sum::<usize>();
        let mut command = Cmd::with_capacity(8, bytes);
        command.arg("EVALSHA").arg(&script.hash).arg(1).arg(key);
        for token in tokens {
            command.arg(&token[..]);
        }
        if let Some(lease_ms) = lease_ms {
            command.arg(lease_ms);
        }
        match guard {
            Some(Some(Deadline(at))) => {
                command.arg(at);
            }
            Some(None) => {
                command.arg("");
            }
            None => {}
        }
        Self {
            script,
            command,
            releases: false,
        }
    }

    /// The command by the script's hash.
    pub(super) fn by_hash(&self) -> &Cmd {
        &self.command
    }

    /// The command with the whole script, which Redis then remembers.
    pub(super) fn in_full(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.text);
        for argument in self.command.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }

    /// What the reply to either means.
    pub(super) fn read(&self, reply: Value) -> Reading {
        let (outcome, read) = match reply {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => return Reading::Unseen,
            Value::ServerError(error) => (refusal(&error), false),
            // Freed, so not read again; or not, and then the last that was done was to read it.
            Value::Int(0) if self.releases => (
                Outcome::Held {
                    holder: None,
                    ttl_ms: None,
                },
                true,
            ),
            Value::Int(_) if self.releases => (Outcome::Free, false),
            Value::Int(at) => (granted(at, true), true),
            Value::Nil => (Outcome::Free, true),
            Value::Array(items) => match held_or_done(items) {
                Some(outcome) => (outcome, true),
                None => (unexpected(), false),
            },
            _ => (unexpected(), false),
        };
        Reading::Done { outcome, read }
    }
}

fn granted(at: i64, fresh: bool) -> Outcome {
    // A key without expiry (somebody took it away) expires at the end of time.
    Outcome::Granted {
        deadline: Deadline(u64::try_from(at).unwrap_or(u64::MAX)),
        fresh,
    }
}

fn held_or_done(items: Vec<Value>) -> Option<Outcome> {
    let mut items = items.into_iter();
    match (items.next()?, items.next()) {
        (Value::Int(at), None) => Some(granted(at, false)),
        (Value::BulkString(holder), Some(ttl)) => Some(Outcome::Held {
            holder: Some(Token::new(holder)),
            ttl_ms: match ttl {
                Value::Int(ms) => u64::try_from(ms).ok(),
                _ => None,
            },
        }),
        _ => None,
    }
}

fn unexpected() -> Outcome {
    Outcome::Refused(Bytes::from_static(
        b"UPSTREAM Redis gave an answer that no script of ours gives",
    ))
}

/// Whether it may help to ask the same again later.
fn refusal(error: &ServerError) -> Outcome {
    let text = error_text(error);
    let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    match code {
        b"LOADING" | b"MASTERDOWN" | b"TRYAGAIN" | b"CLUSTERDOWN" | b"READONLY" | b"BUSY" => {
            Outcome::NotNow(text)
        }
        _ => Outcome::Refused(text),
    }
}

/// The error as Redis worded it, without the leading `-`.
pub(super) fn error_text(error: &ServerError) -> Bytes {
    let text = match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    };
    // Before Redis 7 some errors inside a script read `@user_script: 4: -READONLY You can't …`.
    match text
        .strip_prefix("@user_script")
        .and_then(|rest| rest.split_once(": -"))
    {
        Some((_, words)) => Bytes::copy_from_slice(words.trim_end().as_bytes()),
        None => Bytes::from(text),
    }
}
