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

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use redis::{Script, ServerError, Value};

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

/// A request in flight: how to write it, and how to read its reply.
#[derive(Debug, Clone)]
pub(super) struct Request {
    key: Arc<[u8]>,
    store_request: StoreRequest,
    /// A new fence will be at least this.
    floor: u64,
}

/// The form of a request on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A plain `SET` in place of `acquire.lua`: half the work for Redis, but it returns no deadline and arms no
    /// tracking. Nil says that the lock is held.
    Bare,
    /// The script's hash.
    ByHash,
    /// The whole script, which Redis then caches.
    InFull,
}

/// The meaning of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Redis executed nothing: send the request in this form.
    Again(Form),
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
    pub(super) fn new(key: Arc<[u8]>, store_request: StoreRequest, floor: u64) -> Self {
        Self {
            key,
            store_request,
            floor,
        }
    }

    /// Returns the form in which to send it first.
    pub(super) fn first_form(&self) -> Form {
        match self.store_request {
            StoreRequest::Acquire {
                bare: true,
                fence: Fence::No,
                replicas: 0,
                ..
            } => Form::Bare,
            _ => Form::ByHash,
        }
    }

    /// Appends the command to `out`.
    pub(super) fn write(&self, form: Form, out: &mut Vec<u8>) {
        let arguments = self.arguments();
        if form == Form::Bare {
            let mut command = Packer::begin(out, 6);
            command.word(b"SET").word(&self.key);
            command.argument(&arguments.values[0]).word(b"NX");
            command.word(b"PX").argument(&arguments.values[1]);
            return;
        }
        let script = self.script();
        let (keys, values) = (self.keys(), &arguments.values[..arguments.count]);
        let mut command = Packer::begin(out, 3 + keys + values.len());
        match form {
            Form::InFull => command.word(b"EVAL").word(script.text.as_bytes()),
            Form::ByHash | Form::Bare => command.word(b"EVALSHA").word(script.hash.as_bytes()),
        };
        command.number(keys as u64).word(&self.key);
        if keys == 2 {
            command.word(FENCE_KEY);
        }
        for value in values {
            command.argument(value);
        }
    }

    fn script(&self) -> &'static Prepared {
        let is_fenced = self.is_fenced();
        match &self.store_request {
            StoreRequest::Acquire { .. } if is_fenced => &ACQUIRE_FENCED_SCRIPT,
            StoreRequest::Acquire { .. } => &ACQUIRE_SCRIPT,
            StoreRequest::Handover { .. } if is_fenced => &HANDOVER_FENCED_SCRIPT,
            StoreRequest::Handover { .. } => &HANDOVER_SCRIPT,
            StoreRequest::Release { .. } => &RELEASE_SCRIPT,
            StoreRequest::Extend { .. } => &EXTEND_SCRIPT,
            StoreRequest::Check { .. } => &CHECK_SCRIPT,
            StoreRequest::WriteBack { .. } => &WRITE_BACK_SCRIPT,
            StoreRequest::DeleteDead { .. } => &DELETE_DEAD_SCRIPT,
        }
    }

    /// Returns the arguments of the script, without the last ones that say nothing.
    fn arguments(&self) -> ScriptArguments<'_> {
        let mut arguments = self.all_arguments();
        while let [.., ScriptArgument::Nothing] = arguments.values[..arguments.count] {
            arguments.count -= 1;
        }
        arguments
    }

    fn all_arguments(&self) -> ScriptArguments<'_> {
        let arguments = ScriptArguments::default();
        match &self.store_request {
            StoreRequest::Acquire {
                token,
                lease_ms,
                fence,
                expects,
                strict,
                ..
            } => {
                let arguments = arguments.token(token).number(*lease_ms).deadline(*expects);
                let arguments = match fence {
                    Fence::No => arguments.strict(*strict),
                    Fence::New => arguments.number(self.floor).deadline(None),
                    Fence::NewUnless(deadline) => {
                        arguments.number(self.floor).deadline(Some(*deadline))
                    }
                };
                arguments.only_longer(self.replicas() > 0)
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
                let arguments = arguments.token(from).token(to);
                let arguments = arguments.number(*lease_ms).deadline(*only_if);
                match fence {
                    true => arguments.number(self.floor),
                    false => arguments.strict(*strict),
                }
            }
            StoreRequest::Release { token, only_if, .. } => {
                arguments.token(token).deadline(*only_if)
            }
            StoreRequest::Extend {
                token,
                lease_ms,
                expects,
                mark,
                ..
            } => {
                let arguments = arguments.token(token).number(*lease_ms);
                let arguments = arguments.deadline(*expects);
                let arguments = match mark {
                    Mark::None => arguments.with(ScriptArgument::Nothing),
                    Mark::Kept => arguments.word("kept"),
                    Mark::Found => arguments.word("found"),
                };
                arguments.only_longer(self.replicas() > 0)
            }
            StoreRequest::Check { .. } => arguments,
            StoreRequest::WriteBack {
                token, lease_ms, ..
            } => arguments.token(token).number(*lease_ms),
            StoreRequest::DeleteDead { token, dead } => {
                let arguments = arguments.token(token);
                arguments.deadline(dead.not_after).deadline(dead.or_at)
            }
        }
    }

    /// Returns an acquisition without a fence, by a token that is expected to hold the lock, as a request that takes no
    /// free lock. None: it is none.
    pub(super) fn to_extension(&self) -> Option<Self> {
        let StoreRequest::Acquire {
            user,
            token,
            lease_ms,
            fence: Fence::No,
            expects: expects @ Some(_),
            ..
        } = &self.store_request
        else {
            return None;
        };
        let extension = StoreRequest::Extend {
            user: *user,
            token: token.clone(),
            lease_ms: *lease_ms,
            expects: *expects,
            mark: Mark::None,
            replicas: self.replicas(),
        };
        Some(Self::new(Arc::clone(&self.key), extension, 0))
    }

    /// Returns a request that only reads the holder of the same lock.
    pub(super) fn to_check(&self) -> Self {
        let user = self.store_request.user();
        Self::new(Arc::clone(&self.key), StoreRequest::Check { user }, 0)
    }

    /// Returns the number of replicas that have to acknowledge what the request grants.
    pub(super) fn replicas(&self) -> u32 {
        self.store_request.replicas()
    }

    /// Returns the same request that shortens a lease as well. None: this one does.
    pub(super) fn shortening(&self) -> Option<Self> {
        let mut shortening = self.clone();
        match &mut shortening.store_request {
            StoreRequest::Acquire { replicas, .. } | StoreRequest::Extend { replicas, .. }
                if *replicas > 0 =>
            {
                *replicas = 0;
                Some(shortening)
            }
            _ => None,
        }
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
        match &self.store_request {
            StoreRequest::Acquire { token, .. }
            | StoreRequest::Handover { to: token, .. }
            | StoreRequest::Extend { token, .. } => token != holder,
            _ => true,
        }
    }

    /// Returns the purpose of the request in this form, for the metrics.
    pub(super) fn purpose(&self, form: Form) -> Purpose {
        match &self.store_request {
            StoreRequest::Acquire { .. } if form == Form::Bare => Purpose::Set,
            StoreRequest::Acquire { .. } => Purpose::Acquire,
            StoreRequest::Handover { .. } => Purpose::Handover,
            StoreRequest::Release { .. } => Purpose::Release,
            StoreRequest::Extend { .. } => Purpose::Extend,
            StoreRequest::Check { .. } => Purpose::Check,
            StoreRequest::WriteBack { .. } => Purpose::WriteBack,
            StoreRequest::DeleteDead { .. } => Purpose::DeleteDead,
        }
    }

    /// Returns the key of the lock.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns whether the request is an acquisition: it may take a free lock.
    pub(super) fn acquires(&self) -> bool {
        matches!(self.store_request, StoreRequest::Acquire { .. })
    }

    /// Returns whether the request is part of the recovery from a loss of data.
    pub(super) fn recovers(&self) -> bool {
        matches!(
            self.store_request,
            StoreRequest::WriteBack { .. } | StoreRequest::DeleteDead { .. }
        )
    }

    /// Returns whether the request creates a fence.
    pub(super) fn is_fenced(&self) -> bool {
        wants_fence(&self.store_request)
    }

    fn keys(&self) -> usize {
        if self.is_fenced() { 2 } else { 1 }
    }

    /// Interprets the reply to the command in this form.
    pub(super) fn read(&self, form: Form, reply: Value) -> Reading {
        let releases = matches!(self.store_request, StoreRequest::Release { .. });
        let (outcome, read) = match reply {
            Value::Okay if form == Form::Bare => (granted(0, false), false),
            // The script says who holds the lock, or why Redis refuses.
            _ if form == Form::Bare => return Reading::Again(Form::ByHash),
            Value::ServerError(error) if error.code() == "NOSCRIPT" && form == Form::ByHash => {
                return Reading::Again(Form::InFull);
            }
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
            Value::Nil => {
                let deletes = matches!(self.store_request, StoreRequest::DeleteDead { .. });
                (Outcome::Free, !deletes)
            }
            Value::Array(items) => match held_or_done(items) {
                Some(outcome) => (outcome, true),
                None => (unexpected(), false),
            },
            _ => (unexpected(), false),
        };
        Reading::Done { outcome, read }
    }
}

/// Returns whether a grant by this request has a fence.
pub(super) fn wants_fence(store_request: &StoreRequest) -> bool {
    match store_request {
        StoreRequest::Acquire { fence, .. } => *fence != Fence::No,
        StoreRequest::Handover { fence, .. } => *fence,
        _ => false,
    }
}

/// Most arguments of a script.
const ARGUMENTS: usize = 6;

/// The arguments of a script, in order.
#[derive(Default)]
struct ScriptArguments<'a> {
    values: [ScriptArgument<'a>; ARGUMENTS],
    count: usize,
}

#[derive(Default, Clone, Copy)]
enum ScriptArgument<'a> {
    #[default]
    Nothing,
    Bytes(&'a [u8]),
    Number(u64),
}

impl<'a> ScriptArguments<'a> {
    fn with(mut self, value: ScriptArgument<'a>) -> Self {
        self.values[self.count] = value;
        self.count += 1;
        self
    }

    fn token(self, token: &'a Token) -> Self {
        self.with(ScriptArgument::Bytes(token.as_bytes()))
    }

    fn word(self, word: &'static str) -> Self {
        self.with(ScriptArgument::Bytes(word.as_bytes()))
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
        self.with(ScriptArgument::Number(number))
    }

    fn deadline(self, deadline: Option<Deadline>) -> Self {
        self.with(match deadline {
            Some(Deadline(at)) => ScriptArgument::Number(at),
            None => ScriptArgument::Nothing,
        })
    }
}

/// Writes one command.
struct Packer<'a>(&'a mut Vec<u8>);

impl<'a> Packer<'a> {
    /// Begins a command with this many words.
    fn begin(out: &'a mut Vec<u8>, words: usize) -> Self {
        let mut packer = Self(out);
        packer.line(b'*', words as u64);
        packer
    }

    fn word(&mut self, word: &[u8]) -> &mut Self {
        self.line(b'$', word.len() as u64);
        self.0.extend_from_slice(word);
        self.0.extend_from_slice(b"\r\n");
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        let (digits, from) = digits(number);
        self.word(&digits[from..])
    }

    fn argument(&mut self, argument: &ScriptArgument<'_>) -> &mut Self {
        match argument {
            ScriptArgument::Nothing => self.word(b""),
            ScriptArgument::Bytes(bytes) => self.word(bytes),
            ScriptArgument::Number(number) => self.number(*number),
        }
    }

    fn line(&mut self, kind: u8, number: u64) {
        let (digits, from) = digits(number);
        self.0.push(kind);
        self.0.extend_from_slice(&digits[from..]);
        self.0.extend_from_slice(b"\r\n");
    }
}

/// Returns the decimal digits of a number, and where they begin.
fn digits(mut number: u64) -> ([u8; 20], usize) {
    let (mut digits, mut from) = ([b'0'; 20], 20);
    loop {
        from -= 1;
        digits[from] += (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return (digits, from);
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
