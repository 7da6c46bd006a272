//! The requests to Redis: one Lua script per kind of request, atomic as every script is.
//!
//! - **A script that leaves the lock held ends with a read of the key.** The read arms `CLIENT TRACKING`. With
//!   `NOLOOP`, a read before the connection's own write does not, since the write removes the key from the
//!   tracking table. `PEXPIRETIME`, `PTTL` and `GET` are such reads. A release frees the lock and does not read
//!   it again: no waiter here needs the push.
//! - **Errors return as Redis made them** (`pcall`, and the table returned unchanged), so that a client reads
//!   `WRONGTYPE Operation against …` and not the script's name and line.
//! - **Of a holder, a script returns at most the length of a token**, and one byte more, which shows that the
//!   value is no token. The key may belong to another program, and its value may be 512 MB long.
//! - **The deadline identifies a grant**, together with the token. It is `PEXPIRETIME`, or `TIME` + `PTTL`
//!   before Redis 7. That sum can be 1 ms off, so the guards then tolerate 1 ms.
//!
//! What the scripts return:
//!
//! - An integer is the deadline of a fresh grant.
//! - An array of one integer is the deadline of a token that held the lock before.
//! - With a fence, the array has three integers: the deadline, the fence (0 is none), and 1 or 0 for fresh or
//!   not.
//! - An array of two is the holder and its `PTTL`.
//! - Nil says that the lock is free.
//! - `RELEASE` returns 1 or 0.

use std::sync::LazyLock;

use bytes::Bytes;
use redis::{Arg, Cmd, Script, ServerError, Value};

use crate::{
    limits::TOKEN_BYTES,
    lock::{Deadline, Fence, MARK_MS, Mark, Outcome, StoreRequest, Token},
    metrics::upstream::Purpose,
};

/// The scripts contain these numbers as text.
const _: () = assert!(
    TOKEN_BYTES + 1 == 257,
    "as much of a holder as the scripts tell"
);
const _: () = assert!(MARK_MS == 256, "what the script of extensions counts by");

/// `deadline()`: when the key expires, and by how many milliseconds that may be off. -1 for never, -2 without a
/// key; Redis's error if it refused.
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

/// `expires_at(moment)`: whether the key expires at exactly that moment.
const EXPIRES_AT: &str = "
local function expires_at(moment)
    local at, off = deadline()
    return type(at) == 'number' and math.abs(at - moment) <= off
end
";

/// `lease_anew(lease)`: sets the expiry to that much from now, and at least 3 ms from the old deadline, so a
/// client that knows the old deadline can tell the two apart. A third lease in the same moment must not end
/// where the first did either. These shifts can add up to 100 ms, so the deadline only moves back if the new
/// lease ends at least 100 ms earlier.
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

/// ARGV: token, lease, and the deadline that the key should have if the token holds the lock, or nothing. The
/// `SET` comes first, because a free lock is the usual case, and because a replica refuses it: a replica's view
/// of the holder would be stale.
const ACQUIRE: &str = "
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
    local at = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(at) == 'number' then return at end
end
";

/// The rest of `ACQUIRE`. A grant whose deadline Redis does not return is taken back. If Redis refused the `SET`
/// for lack of memory, a token that holds the lock can still get a new lease.
const ACQUIRE_FURTHER: &str = "
if set and set.ok then
    local at = deadline()
    if type(at) ~= 'number' then redis.pcall('DEL', KEYS[1]) end
    return at
end
if set and not string.find(set.err, 'OOM', 1, true) then return set end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if not holder then return set end
if holder ~= ARGV[1] then return {string.sub(holder, 1, 257), redis.pcall('PTTL', KEYS[1])} end
local expected = ARGV[3] ~= '' and expires_at(ARGV[3])
local at = lease_anew(ARGV[2])
if expected and type(at) == 'table' and not at.err then return at[1] end
return at
";

/// `next_fence(floor)`: a new fence, larger than all before, or Redis's error if it refused. Lua's numbers are
/// exact below 2^53; microseconds since 1970 reach that in the year 2255.
const NEXT_FENCE: &str = "
local function next_fence(floor)
    local before = redis.pcall('GET', KEYS[2])
    if type(before) == 'table' then return before end
    local now = redis.pcall('TIME')
    if now.err then return now end
    local fence = math.max(now[1] * 1000000 + now[2], tonumber(floor))
    if before then
        local number = string.match(before, '^%d+$') and tonumber(before)
        if not number or number >= 9007199254740991 then
            return {err = 'ERR the fence counter is not a number below 2^53, delete it: ' .. KEYS[2]}
        end
        fence = math.max(fence, number + 1)
    end
    local set = redis.pcall('SET', KEYS[2], string.format('%.0f', fence))
    if set.err then return set end
    return fence
end
";

/// ARGV: token, lease, expected deadline, floor of the fence, and the deadline with which the token already has
/// a fence (returned as 0), or nothing. KEYS: the lock, the fence counter. As [`ACQUIRE`], with a fence; without a
/// fence there is no grant.
const ACQUIRE_FENCED: &str = "
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.ok then
    local fence = next_fence(ARGV[4])
    local at = deadline()
    if type(fence) == 'number' and type(at) == 'number' then return {at, fence, 1} end
    redis.pcall('DEL', KEYS[1])
    if type(fence) ~= 'number' then return fence end
    return at
end
if set and not string.find(set.err, 'OOM', 1, true) then return set end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if not holder then return set end
if holder ~= ARGV[1] then return {string.sub(holder, 1, 257), redis.pcall('PTTL', KEYS[1])} end
local expected = ARGV[3] ~= '' and expires_at(ARGV[3])
local fence = ARGV[5] ~= '' and expires_at(ARGV[5]) and 0 or next_fence(ARGV[4])
if type(fence) ~= 'number' then return fence end
local at = lease_anew(ARGV[2])
if type(at) ~= 'table' or at.err then return at end
return {at[1], fence, expected and 1 or 0}
";

/// `refused()`: Redis's error if it is a replica, whose view of the holder would be stale. An empty `SETRANGE`
/// changes nothing, and creates no key.
const REFUSED: &str = "
local function refused()
    local try = redis.pcall('SETRANGE', KEYS[1], 0, '')
    return type(try) == 'table' and try.err and string.find(try.err, 'READONLY', 1, true) and try
end
";

/// `found(holder)`: the holder and its `PTTL`; nil if the lock is free.
const FOUND: &str = "
local function found(holder)
    local try = refused()
    if try then return try end
    return holder and {string.sub(holder, 1, 257), redis.pcall('PTTL', KEYS[1])}
end
";

/// ARGV: from, to, lease, the deadline to insist on, or nothing, and the floor of the fence.
const HANDOVER: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
";

/// The rest of `HANDOVER`.
const HAND_OVER_FURTHER: &str = "
if holder == ARGV[1] and (ARGV[4] == '' or expires_at(ARGV[4])) then
    local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if set.err then return set end
    return (deadline())
end
if holder == ARGV[2] then return lease_anew(ARGV[3]) end
return found(holder)
";

/// The rest of `HANDOVER`, with a fence for the new holder.
const HANDOVER_FENCED: &str = "
local from = holder == ARGV[1] and (ARGV[4] == '' or expires_at(ARGV[4]))
if not from and holder ~= ARGV[2] then return found(holder) end
local fence = next_fence(ARGV[5])
if type(fence) ~= 'number' then return fence end
if from then
    local set = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    if set.err then return set end
    return {(deadline()), fence, 1}
end
local at = lease_anew(ARGV[3])
if type(at) ~= 'table' or at.err then return at end
return {at[1], fence, 0}
";

/// ARGV: token, and the deadline to insist on, or nothing.
const RELEASE: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if holder == ARGV[1] and ARGV[2] == '' then return redis.pcall('DEL', KEYS[1]) end
";

/// The rest of `RELEASE`.
const RELEASE_FURTHER: &str = "
if holder == ARGV[1] and expires_at(ARGV[2]) then return redis.pcall('DEL', KEYS[1]) end
return refused() or 0
";

/// ARGV: token, lease, the deadline that the key should have, or nothing, and the mark of a renewal: nothing,
/// `kept` or `found`.
const EXTEND: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
";

/// The rest of `EXTEND`.
const EXTEND_FURTHER: &str = "
if holder ~= ARGV[1] then return found(holder) end
local expected = ARGV[3] ~= '' and expires_at(ARGV[3])
if ARGV[4] == 'found' and ARGV[3] ~= '' and not expected then
    local before, off = deadline()
    expected = type(before) == 'number' and (before - ARGV[3] + off) % 256 <= 2 * off
end
local at = lease_anew(ARGV[2])
if not expected or type(at) ~= 'table' or at.err then return at end
local more = (ARGV[3] - at[1]) % 256
if ARGV[4] ~= '' and more > 0 then
    redis.pcall('PEXPIREAT', KEYS[1], at[1] + more)
    return (deadline())
end
return at[1]
";

/// Returns the holder, or the error if the user may not lock, even while another token holds the lock. The
/// empty `SETRANGE` changes nothing, and fails for a user without write access.
const CHECK: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
local try = redis.pcall('SETRANGE', KEYS[1], 0, '')
if type(try) == 'table' and try.err then
    for _, words in ipairs({'READONLY', 'NOPERM', 'ACL failure', 'user executing the script'}) do
        if string.find(try.err, words, 1, true) then return try end
    end
end
if not holder then return false end
local ttl = redis.pcall('PTTL', KEYS[1])
if type(ttl) == 'table' then return ttl end
return {string.sub(holder, 1, 257), ttl}
";

/// ARGV: token, and the rest of its lease.
const WRITE_BACK: &str = "
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set and set.err then return set end
if set then return (deadline()) end
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
local ttl = redis.pcall('PTTL', KEYS[1])
if holder ~= ARGV[1] then return holder and {string.sub(holder, 1, 257), ttl} end
if type(ttl) == 'number' and ttl >= 0 and ttl < tonumber(ARGV[2]) then
    redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
    return (deadline())
end
return {(deadline())}
";

/// ARGV: token, and the latest deadline with which it is deleted, or nothing.
const DELETE_DEAD: &str = "
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then return holder end
if holder == ARGV[1] then
    local at, off = deadline()
    if type(at) ~= 'number' then return at end
    local function is_at(moment) return moment ~= '' and math.abs(at - moment) <= off end
    if ARGV[2] == '' or is_at(ARGV[3]) or (at >= 0 and at <= ARGV[2] + off) then
        local deleted = redis.pcall('DEL', KEYS[1])
        if type(deleted) == 'table' then return deleted end
        return false
    end
end
return found(holder)
";

/// ARGV: the largest fence granted. Later fences are larger, whatever the clock of Redis shows.
pub(super) const RAISE_FENCE: &str = "
local before = redis.pcall('GET', KEYS[1])
if type(before) == 'table' then return before end
local number = before and (string.match(before, '^%d+$') and tonumber(before) or math.huge) or 0
if number < tonumber(ARGV[1]) then return redis.pcall('SET', KEYS[1], ARGV[1]) end
return 0
";

/// A script, and the hash by which Redis knows it once it has run.
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

// Creating a Lua function costs Redis about as much as running a command, so the usual path comes before the
// functions.
static ACQUIRE_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[ACQUIRE, DEADLINE, EXPIRES_AT, LEASE_ANEW, ACQUIRE_FURTHER]));
static ACQUIRE_FENCED_SCRIPT: LazyLock<Prepared> = LazyLock::new(|| {
    Prepared::new(&[DEADLINE, EXPIRES_AT, LEASE_ANEW, NEXT_FENCE, ACQUIRE_FENCED])
});
static HANDOVER_SCRIPT: LazyLock<Prepared> = LazyLock::new(|| {
    let parts = [HANDOVER, DEADLINE, EXPIRES_AT, LEASE_ANEW, REFUSED, FOUND];
    Prepared::new(&[&parts[..], &[HAND_OVER_FURTHER]].concat())
});
static HANDOVER_FENCED_SCRIPT: LazyLock<Prepared> = LazyLock::new(|| {
    let parts = [HANDOVER, DEADLINE, EXPIRES_AT, LEASE_ANEW, REFUSED, FOUND];
    Prepared::new(&[&parts[..], &[NEXT_FENCE, HANDOVER_FENCED]].concat())
});
static RELEASE_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[RELEASE, DEADLINE, EXPIRES_AT, REFUSED, RELEASE_FURTHER]));
static EXTEND_SCRIPT: LazyLock<Prepared> = LazyLock::new(|| {
    let parts = [EXTEND, DEADLINE, EXPIRES_AT, LEASE_ANEW, REFUSED, FOUND];
    Prepared::new(&[&parts[..], &[EXTEND_FURTHER]].concat())
});
static CHECK_SCRIPT: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(&[CHECK]));
static WRITE_BACK_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[DEADLINE, WRITE_BACK]));
static DELETE_DEAD_SCRIPT: LazyLock<Prepared> =
    LazyLock::new(|| Prepared::new(&[DEADLINE, REFUSED, FOUND, DELETE_DEAD]));

/// The key of the fence counter, one in each database.
pub(super) const FENCE_KEY: &[u8] = b"lockgate:fence";

/// The key of the grace's mark, in database 0.
pub(super) const GRACE_KEY: &[u8] = b"lockgate:grace";

/// Fences from here on do not raise the floor of the next one. No clock reaches them before the year 2246, so
/// an operator set the counter by hand, and deleting it must undo that.
pub(super) const FENCE_CEILING: u64 = (1 << 53) - (1 << 48);

/// Returns the plain `SET` of [`ACQUIRE`]: half the work for Redis, but it returns no deadline and arms no
/// tracking.
pub(super) fn bare(key: &[u8], token: &Token, lease_ms: u64) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(&token.as_bytes()[..]);
    command.arg("NX").arg("PX").arg(lease_ms);
    command
}

/// A request in flight: the command, and how to read its reply.
pub(super) struct Request {
    purpose: Purpose,
    script: &'static Prepared,
    command: Cmd,
}

/// The meaning of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Redis does not have the script yet: send [`Request::in_full`].
    Unseen,
    /// Redis executed the request.
    Done {
        /// The state found and the action taken.
        outcome: Outcome,
        /// The script ended with a read of the key.
        read: bool,
    },
}

impl Request {
    /// Creates the request for the lock with this key. A new fence will be at least `floor`.
    pub(super) fn new(key: &[u8], store_request: &StoreRequest, floor: u64) -> Self {
        use Purpose::{Acquire, Check, DeleteDead, Extend, Handover, Release, WriteBack};
        match store_request {
            StoreRequest::Acquire {
                token,
                lease_ms,
                fence,
                expects,
                ..
            } => {
                let fenced = *fence != Fence::No;
                let arguments = Arguments::of(key, fenced).token(token);
                let arguments = arguments.number(*lease_ms).deadline(*expects);
                if !fenced {
                    return arguments.to(Acquire, &ACQUIRE_SCRIPT);
                }
                let arguments = arguments.number(floor).deadline(match fence {
                    Fence::NewUnless(deadline) => Some(*deadline),
                    Fence::New | Fence::No => None,
                });
                arguments.to(Acquire, &ACQUIRE_FENCED_SCRIPT)
            }
            StoreRequest::Handover {
                from,
                only_if,
                to,
                lease_ms,
                fence,
                ..
            } => {
                let script = if *fence {
                    &HANDOVER_FENCED_SCRIPT
                } else {
                    &HANDOVER_SCRIPT
                };
                let arguments = Arguments::of(key, *fence).token(from).token(to);
                let arguments = arguments.number(*lease_ms).deadline(*only_if);
                let arguments = match fence {
                    true => arguments.number(floor),
                    false => arguments,
                };
                arguments.to(Handover, script)
            }
            StoreRequest::Release { token, only_if, .. } => {
                let arguments = Arguments::of(key, false).token(token).deadline(*only_if);
                arguments.to(Release, &RELEASE_SCRIPT)
            }
            StoreRequest::Extend {
                token,
                lease_ms,
                expects,
                mark,
                ..
            } => {
                let arguments = Arguments::of(key, false).token(token).number(*lease_ms);
                let arguments = arguments.deadline(*expects).word(match mark {
                    Mark::None => "",
                    Mark::Kept => "kept",
                    Mark::Found => "found",
                });
                arguments.to(Extend, &EXTEND_SCRIPT)
            }
            StoreRequest::Check { .. } => Arguments::of(key, false).to(Check, &CHECK_SCRIPT),
            StoreRequest::WriteBack {
                token, lease_ms, ..
            } => {
                let arguments = Arguments::of(key, false).token(token).number(*lease_ms);
                arguments.to(WriteBack, &WRITE_BACK_SCRIPT)
            }
            StoreRequest::DeleteDead { token, dead } => {
                let arguments = Arguments::of(key, false).token(token);
                let arguments = arguments.deadline(dead.not_after).deadline(dead.or_at);
                arguments.to(DeleteDead, &DELETE_DEAD_SCRIPT)
            }
        }
    }

    /// Returns a request that only reads the holder of the same lock.
    pub(super) fn to_check(&self) -> Self {
        Arguments::of(self.key(), false).to(Purpose::Check, &CHECK_SCRIPT)
    }

    /// Returns whether another token holds the lock, given the outcome of [the check](Self::to_check).
    pub(super) fn is_in_vain(&self, checked: &Outcome) -> bool {
        let Outcome::Held {
            holder: Some(holder),
            ..
        } = checked
        else {
            return false;
        };
        let is_holder = |argument| matches!(argument, Arg::Simple(it) if it == holder.as_bytes());
        !self.command.args_iter().any(is_holder)
    }

    /// Returns the purpose, for the metrics.
    pub(super) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Returns the key of the lock.
    pub(super) fn key(&self) -> &[u8] {
        // The key follows the hash and the number of keys.
        let key = self.command.args_iter().nth(3);
        match key {
            Some(Arg::Simple(key)) => key,
            _ => b"",
        }
    }

    /// Returns whether the request creates a fence.
    fn is_fenced(&self) -> bool {
        matches!(self.command.args_iter().nth(2), Some(Arg::Simple(b"2")))
    }

    /// Returns the command with the script's hash.
    pub(super) fn by_hash(&self) -> &Cmd {
        &self.command
    }

    /// Returns the command with the whole script, which Redis then caches.
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

    /// Interprets the reply to either command.
    pub(super) fn read(&self, reply: Value) -> Reading {
        let releases = self.purpose == Purpose::Release;
        let (outcome, read) = match reply {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => return Reading::Unseen,
            Value::ServerError(error) => match refusal(&error) {
                // The fence counter may be the key of the wrong type.
                Outcome::WrongType(text) if self.is_fenced() => (Outcome::Refused(text), false),
                outcome => (outcome, false),
            },
            // Not released: the script has read the key and changed nothing. Released: it did not read the key
            // again.
            Value::Int(0) if releases => (
                Outcome::Held {
                    holder: None,
                    ttl_ms: None,
                },
                true,
            ),
            Value::Int(_) if releases => (Outcome::Free, false),
            Value::Int(at) => (granted(at, true), true),
            Value::Nil => (Outcome::Free, self.purpose != Purpose::DeleteDead),
            Value::Array(items) => match held_or_done(items) {
                Some(outcome) => (outcome, true),
                None => (unexpected(), false),
            },
            _ => (unexpected(), false),
        };
        Reading::Done { outcome, read }
    }
}

/// The keys and arguments of a script, in order.
struct Arguments {
    keys: Vec<Bytes>,
    values: Vec<Bytes>,
}

impl Arguments {
    fn of(key: &[u8], fence: bool) -> Self {
        let mut keys = vec![Bytes::copy_from_slice(key)];
        keys.extend(fence.then(|| Bytes::from_static(FENCE_KEY)));
        Self {
            keys,
            values: Vec::with_capacity(5),
        }
    }

    fn token(mut self, token: &Token) -> Self {
        self.values.push(token.as_bytes().clone());
        self
    }

    fn word(mut self, word: &'static str) -> Self {
        self.values.push(Bytes::from_static(word.as_bytes()));
        self
    }

    fn number(self, number: u64) -> Self {
        self.number_or_nothing(Some(number))
    }

    fn number_or_nothing(mut self, number: Option<u64>) -> Self {
        let text = number.map_or_else(String::new, |number| number.to_string());
        self.values.push(Bytes::from(text));
        self
    }

    fn deadline(self, deadline: Option<Deadline>) -> Self {
        self.number_or_nothing(deadline.map(|Deadline(at)| at))
    }

    fn to(self, purpose: Purpose, script: &'static LazyLock<Prepared>) -> Request {
        let script: &'static Prepared = script;
        let all = || self.keys.iter().chain(&self.values);
        let bytes = 80 + all().map(Bytes::len).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + self.keys.len() + self.values.len(), bytes);
        command
            .arg("EVALSHA")
            .arg(&script.hash)
            .arg(self.keys.len());
        for argument in all() {
            command.arg(&argument[..]);
        }
        Request {
            purpose,
            script,
            command,
        }
    }
}

fn granted(at: i64, fresh: bool) -> Outcome {
    // A key without expiry (another client removed it) expires at the end of time.
    Outcome::Granted {
        deadline: Deadline(u64::try_from(at).unwrap_or(u64::MAX)),
        fresh,
        fence: None,
    }
}

fn granted_with_fence(at: i64, number: i64, fresh: bool) -> Outcome {
    Outcome::Granted {
        deadline: Deadline(u64::try_from(at).unwrap_or(u64::MAX)),
        fresh,
        fence: u64::try_from(number).ok().filter(|number| *number > 0),
    }
}

fn held_or_done(items: Vec<Value>) -> Option<Outcome> {
    let mut items = items.into_iter();
    match (items.next()?, items.next()) {
        (Value::Int(at), None) => Some(granted(at, false)),
        (Value::Int(at), Some(Value::Int(fence))) => Some(granted_with_fence(
            at,
            fence,
            items.next() == Some(Value::Int(1)),
        )),
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

/// Classifies an error by whether the same request may succeed later.
fn refusal(error: &ServerError) -> Outcome {
    let text = error_text(error);
    let code = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    match code {
        b"LOADING" | b"MASTERDOWN" | b"TRYAGAIN" | b"CLUSTERDOWN" | b"READONLY" | b"BUSY"
        | b"NOREPLICAS" | b"MISCONF" => Outcome::NotNow(text),
        b"WRONGTYPE" => Outcome::WrongType(text),
        _ => Outcome::Refused(text),
    }
}

/// Returns the error as Redis worded it, without the leading `-`.
pub(super) fn error_text(error: &ServerError) -> Bytes {
    let text = match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    };
    // Before Redis 7, some errors inside a script read `@user_script: 4: -READONLY You can't …`.
    match text
        .strip_prefix("@user_script")
        .and_then(|rest| rest.split_once(": -"))
    {
        Some((_, words)) => Bytes::copy_from_slice(words.trim_end().as_bytes()),
        None => Bytes::from(text),
    }
}
