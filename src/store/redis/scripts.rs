//! The requests to Redis: one Lua script per kind of request (`lua/*.lua`), atomic as every script is.
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
    telemetry::metrics::upstream::Purpose,
};

/// The scripts contain these numbers as text.
const _: () = assert!(
    TOKEN_BYTES + 1 == 257,
    "as much of a holder as the scripts tell"
);
const _: () = assert!(MARK_MS == 256, "what the script of extensions counts by");

/// Raises the fence counter.
pub(super) const RAISE_FENCE: &str = include_str!("lua/raise_fence.lua");

/// The functions that a script includes by a line `-- include NAME`.
const LIBRARY: [(&str, &str); 7] = [
    ("deadline", include_str!("lua/lib/deadline.lua")),
    ("expires_at", include_str!("lua/lib/expires_at.lua")),
    ("lease_anew", include_str!("lua/lib/lease_anew.lua")),
    ("next_fence", include_str!("lua/lib/next_fence.lua")),
    ("refused", include_str!("lua/lib/refused.lua")),
    ("found", include_str!("lua/lib/found.lua")),
    ("shortens", include_str!("lua/lib/shortens.lua")),
];

/// A script with the functions that it includes, and the hash by which Redis knows it once it has run.
///
/// Creating a Lua function costs Redis about as much as running a command, so a script includes its functions behind
/// its usual path.
struct Prepared {
    text: String,
    hash: String,
}

impl Prepared {
    fn new(file: &str) -> Self {
        let mut text = String::new();
        for line in file.lines() {
            let name = line.strip_prefix("-- include ");
            let function = LIBRARY.iter().find(|(it, _)| Some(*it) == name);
            text += function.map_or(line, |(_, function)| function.trim_end());
            text += "\n";
        }
        debug_assert!(!text.contains("-- include "), "unknown: {text}");
        let hash = Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| Prepared::new(include_str!(concat!("lua/", $file))))
    };
}

static ACQUIRE_SCRIPT: LazyLock<Prepared> = script!("acquire.lua");
static ACQUIRE_FENCED_SCRIPT: LazyLock<Prepared> = script!("acquire_fenced.lua");
static HANDOVER_SCRIPT: LazyLock<Prepared> = script!("handover.lua");
static HANDOVER_FENCED_SCRIPT: LazyLock<Prepared> = script!("handover_fenced.lua");
static RELEASE_SCRIPT: LazyLock<Prepared> = script!("release.lua");
static EXTEND_SCRIPT: LazyLock<Prepared> = script!("extend.lua");
static CHECK_SCRIPT: LazyLock<Prepared> = script!("check.lua");
static WRITE_BACK_SCRIPT: LazyLock<Prepared> = script!("write_back.lua");
static DELETE_DEAD_SCRIPT: LazyLock<Prepared> = script!("delete_dead.lua");

/// The key of the fence counter, one in each database.
pub(super) const FENCE_KEY: &[u8] = b"lockgate:fence";

/// The key of the grace's mark, in database 0.
pub(super) const GRACE_KEY: &[u8] = b"lockgate:grace";

/// The key that lockgate writes in database 0 before it waits for the replicas.
pub(super) const ACK_KEY: &[u8] = b"lockgate:ack";

/// The argument of scripts that leaves a lease alone that would end earlier.
const ONLY_LONGER: &str = "only longer";

/// Fences from here on do not raise the floor of the next one. No clock reaches them before the year 2246, so
/// an operator set the counter by hand, and deleting it must undo that.
pub(super) const FENCE_CEILING: u64 = (1 << 53) - (1 << 48);

/// Returns the plain `SET` of `acquire.lua`: half the work for Redis, but it returns no deadline and arms no
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
    /// The number of replicas that have to acknowledge the grant.
    replicas: u32,
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
        Self {
            replicas: store_request.replicas(),
            ..Self::of(key, store_request, floor)
        }
    }

    fn of(key: &[u8], store_request: &StoreRequest, floor: u64) -> Self {
        use Purpose::{Acquire, Check, DeleteDead, Extend, Handover, Release, WriteBack};
        match store_request {
            StoreRequest::Acquire {
                token,
                lease_ms,
                fence,
                expects,
                strict,
                ..
            } => {
                let fenced = *fence != Fence::No;
                let arguments = Arguments::of(key, fenced).token(token);
                let arguments = arguments.number(*lease_ms).deadline(*expects);
                let only_longer = store_request.replicas() > 0;
                if !fenced {
                    let arguments = arguments.strict(*strict).only_longer(only_longer);
                    return arguments.to(Acquire, &ACQUIRE_SCRIPT);
                }
                let arguments = arguments.number(floor).deadline(match fence {
                    Fence::NewUnless(deadline) => Some(*deadline),
                    Fence::New | Fence::No => None,
                });
                let arguments = arguments.only_longer(only_longer);
                arguments.to(Acquire, &ACQUIRE_FENCED_SCRIPT)
            }
            StoreRequest::Handover {
                from,
                only_if,
                to,
                lease_ms,
                fence,
                strict,
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
                    false => arguments.strict(*strict),
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
                let arguments = arguments.only_longer(store_request.replicas() > 0);
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

    /// Returns an acquisition without a fence, by a token that is expected to hold the lock, as a request that takes no
    /// free lock. None: it is none.
    pub(super) fn to_extension(&self) -> Option<Self> {
        if self.purpose != Purpose::Acquire || self.is_fenced() {
            return None;
        }
        // The values follow the hash, the number of keys, and the key.
        let values: Vec<_> = self.command.args_iter().skip(4).collect();
        let [
            Arg::Simple(token),
            Arg::Simple(lease),
            Arg::Simple(expects),
            ..,
        ] = values[..]
        else {
            return None;
        };
        if expects.is_empty() {
            return None;
        }
        let mut arguments = Arguments::of(self.key(), false);
        let values = [token, lease, expects].map(Bytes::copy_from_slice);
        arguments.values.extend(values);
        let arguments = arguments.word("").only_longer(self.replicas > 0);
        Some(Self {
            replicas: self.replicas,
            ..arguments.to(Purpose::Extend, &EXTEND_SCRIPT)
        })
    }

    /// Returns a request that only reads the holder of the same lock.
    pub(super) fn to_check(&self) -> Self {
        Arguments::of(self.key(), false).to(Purpose::Check, &CHECK_SCRIPT)
    }

    /// Returns the number of replicas that have to acknowledge what the request grants.
    pub(super) fn replicas(&self) -> u32 {
        self.replicas
    }

    /// Returns the same request that shortens a lease as well. None: this one does.
    pub(super) fn shortening(&self) -> Option<Self> {
        if self.replicas == 0 {
            return None;
        }
        let mut command = Cmd::new();
        let arguments: Vec<_> = self.command.args_iter().collect();
        let (_only_longer, others) = arguments.split_last()?;
        for argument in others {
            if let Arg::Simple(bytes) = argument {
                command.arg(*bytes);
            }
        }
        Some(Self {
            purpose: self.purpose,
            script: self.script,
            command,
            replicas: 0,
        })
    }

    /// Returns whether another token holds the lock, given an outcome that names the holder.
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

    /// Adds the argument that makes a token that holds the lock already no owner.
    fn strict(self, strict: bool) -> Self {
        match strict {
            true => self.word("strict"),
            false => self,
        }
    }

    /// Adds the argument that leaves a lease alone that would end earlier. It is the last one.
    fn only_longer(self, only_longer: bool) -> Self {
        match only_longer {
            true => self.word(ONLY_LONGER),
            false => self,
        }
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
            replicas: 0,
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

/// Returns whether the same command may succeed later.
pub(super) fn is_passing(error: &ServerError) -> bool {
    matches!(refusal(error), Outcome::NotNow(_))
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
