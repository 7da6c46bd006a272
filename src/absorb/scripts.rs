//! The scripts that lock libraries run: from the SHA1 or the text of a script to what it asks of a lock.
//!
//! The libraries' own scripts are known by their SHA1 from the start, because many clients send `EVALSHA` alone. Any
//! other text is known by its [normal form](super::lua), or not at all: what a client does not surely ask for,
//! lockgate must not do. The SHA1s of such texts are remembered for the `EVALSHA` that follows.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use thiserror::Error;

use super::{
    lua::{Lexeme, is_form, normal_form},
    reply::{Replies, Reply},
};
use crate::limits::{LEARNED_SCRIPTS, RELEASE_SCRIPTS, SCRIPT_BYTES};

/// What a script asks of the lock at its only key, and where its arguments say so. Arguments count from zero, as
/// `ARGV[1]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script {
    /// The kind of request.
    pub kind: Kind,
    /// The number of arguments.
    pub arguments: usize,
    /// The argument that is the token.
    pub token: usize,
    /// The argument that is the lease, except in a release.
    pub lease: usize,
    /// The unit of the lease, in milliseconds.
    pub unit_ms: i64,
    /// The argument that is `0` where an extension adds the lease to what is left of the one before.
    pub adds: Option<usize>,
    /// The condition on the arguments under which it does what `kind` says.
    pub condition: Condition,
    /// The replies, as Redis converts them.
    pub replies: Replies,
}

/// The kind of a request about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sets the key to the token, with a lease, where the key is free.
    Acquire(Equal),
    /// Deletes the key where it holds the token.
    Release,
    /// Gives the key a new lease where it holds the token.
    Extend,
}

/// What an acquisition does where its own token holds the lock already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Equal {
    /// It is refused, as any other.
    Refused,
    /// It is granted again, with a new lease.
    Again,
}

/// A condition on the arguments of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// None is needed.
    Always,
    /// This argument is these bytes.
    Is(usize, &'static str),
    /// This argument is the length of the token, in bytes.
    TokenLength(usize),
    /// This argument is the number of the connection's database.
    Database(usize),
}

const RELEASE: Script = Script {
    kind: Kind::Release,
    arguments: 1,
    token: 0,
    lease: 1,
    unit_ms: 1,
    adds: None,
    condition: Condition::Always,
    replies: Replies::NUMBERS,
};

const EXTEND: Script = Script {
    kind: Kind::Extend,
    arguments: 2,
    ..RELEASE
};

const EXTEND_SECONDS: Script = Script {
    unit_ms: 1_000,
    ..EXTEND
};

const ACQUIRE: Script = Script {
    kind: Kind::Acquire(Equal::Refused),
    ..EXTEND
};

const ACQUIRE_SECONDS: Script = Script {
    unit_ms: 1_000,
    ..ACQUIRE
};

const ACQUIRE_AGAIN: Script = Script {
    kind: Kind::Acquire(Equal::Again),
    ..EXTEND
};

/// The replies of redsync's release.
const GONE_IS_MINUS_ONE: Replies = Replies {
    gone: Reply::Integer(-1),
    ..Replies::NUMBERS
};

/// Lock4j's release converts its reply to a string.
const TRUE_OR_FALSE: Replies = Replies::new(Reply::Bulk("true"), Reply::Bulk("false"));

/// An error of aioredlock's scripts, as Redis 7 sends it. Redis 6 sends no `ERR`; aioredlock reads neither.
const HELD: Reply = Reply::Error("ERR ERROR");

/// The replies of aioredlock's release.
const GONE_IS_OK: Replies = Replies {
    done: Reply::Integer(1),
    refused: HELD,
    gone: Reply::Status("OK"),
};

/// A script of @sesamecare-oss/redlock, which first selects the database of its first argument.
const fn in_database(script: Script) -> Script {
    Script {
        arguments: script.arguments + 1,
        token: 1,
        lease: 2,
        condition: Condition::Database(0),
        ..script
    }
}

const fn with(replies: Replies, script: Script) -> Script {
    Script { replies, ..script }
}

/// The scripts of libraries, by the SHA1 of the exact text.
#[rustfmt::skip]
const LIBRARIES: &[(&str, Script)] = &[
    // redis-py 8.1
    ("c3f8721cbb97f72bc19e972846bd7aaf91901658", RELEASE),
    ("a4e8783852e6b949f9ef3a97212805108459a890", Script { arguments: 3, adds: Some(2), ..EXTEND }),
    ("1cac51482acf5858da00f6d685d68f886cd6b6b2", EXTEND),
    // redlock-py 1.0.8
    ("4e92fdc63815b3a0a2dd1c1df3694de73607c88d", RELEASE),
    // pottery 3.0.1
    ("a4aada0b36710970eedaaaeec4a6b7d8c78c4f80", RELEASE),
    ("ba015a80261b616e7a62d35df0b8e3edbe6c9414", EXTEND),
    // aioredlock 0.7.3
    ("c75a9bf1538efcdb1f383acc3e273c5089d57e58", with(Replies::new(Reply::Status("OK"), HELD), ACQUIRE_AGAIN)),
    ("241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5", with(GONE_IS_OK, RELEASE)),
    // sherlock 0.4.1
    ("7bcdefae3714859f68f1f2377bddae74a1af9391", ACQUIRE_SECONDS),
    ("bfb9f817b2e860fe4fc58656b2bf657d3fdc2be1", RELEASE),
    ("8a7fdef25bdef981900f982f5773edaf35000372", EXTEND_SECONDS),
    // redlock (npm) 4.2.0
    ("e5a322e2634ef59a516e8ea150cb085afafee684", ACQUIRE),
    ("0f0f23b9048b36752b5be114f357ba083449f908", RELEASE),
    ("ce46f80993d5dac20dd066eb301a4e37994bdbed", EXTEND),
    // redlock (npm) 5.0.0-beta.2
    ("96da70f7716f27d278a5218544df37fd8b0a5e4c", ACQUIRE),
    ("e4612211c9f8f51c257e26e056b0a654b3187242", RELEASE),
    ("aed6f382e410db8ba7926d4e5e9aab410bf2a78a", EXTEND),
    // @sesamecare-oss/redlock 1.4.0
    ("1b77b94aa78451d55dfa97e18819bfbfc596cb5b", in_database(ACQUIRE)),
    ("df51f6837dcfe303d334e6abea9aeae192bab216", in_database(RELEASE)),
    ("820e9778d2b6733e9ed771e4be90ae73a95a6f3b", in_database(EXTEND)),
    // redis-semaphore 5.8.0
    ("7157921a7cc7cfba979acf6d63f073151df17d12", RELEASE),
    ("594683e49a64ebaf975caf5f8079a1d097c438f1", EXTEND),
    // bsm/redislock 0.9.4. A token longer than the second argument has metadata, which do not count as token.
    ("80a1b5f2cfccec3b7119ba7721d2127682b691a7",
        Script { arguments: 3, lease: 2, condition: Condition::TokenLength(1), ..with(Replies::OK_OR_NULL, ACQUIRE_AGAIN) }),
    ("cf0e94b2e9ffc7e04395cf88f7583fc309985910", RELEASE),
    ("a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf", EXTEND),
    // redsync 4.18.1
    ("e950836ed1e694540c503ef9972b8de518044d3b", with(GONE_IS_MINUS_ONE, RELEASE)),
    ("d75bb8b5bd13532ddedd17762e772346e39b321e", EXTEND),
    // Spring Integration 6.4.1
    ("175897a4e379e99e79a54937be09226f76cdcfe5", with(Replies::TRUE_OR_NULL, ACQUIRE_AGAIN)),
    ("f0f9038aa2b6d6c3436c72d147573ea2a58f0ef2", with(Replies::TRUE_OR_NULL, RELEASE)),
    ("356d97191f2b63031781ccc0e8e82f02e1995a90", with(Replies::TRUE_OR_NULL, RELEASE)),
    ("879e0f7b8d83c3266d4e996627438c05dbda0b89", with(Replies::TRUE_OR_NULL, EXTEND)),
    // Lock4j 2.2.7
    ("7ea1efbea425b62e6593f238a6c18bf25907dbd9", with(Replies::OK_OR_NULL, ACQUIRE)),
    ("8346c71009ae4c895ff1757a6743ec825a38b42d", with(TRUE_OR_FALSE, RELEASE)),
    ("86b4fe869d9cbdd1d98fbd1a558026fd419f7ce5", EXTEND),
    // redlock-rb 2.0.6
    ("ceb2b2062e40c51a2b3963fd078bc71f11bdc65c",
        Script { arguments: 3, condition: Condition::Is(2, "yes"), ..with(Replies::OK_OR_NULL, ACQUIRE_AGAIN) }),
    ("8e4905cee18e7c3188d10f2b8b170e403baed34f", RELEASE),
    // Laravel, php-lock/lock 3, rslock 0.7, redlock (Elixir)
    ("647c65a442733a1aa440f99908d249d13b4d6c4a", RELEASE),
    ("d220654d7721ae520b15ed0e24a4cc97024efa08", RELEASE),
    ("daf86bbf8740dd3ca86733367a016364b2110627", RELEASE),
    ("5c252c1a0eaeeb4522fbbb982baba4e74ddfcd0d", RELEASE),
    // RedLock.net 2.3.2, with either end of lines
    ("18b2a577dbe847b16bebde190d69a1613d68e60e", RELEASE),
    ("cb0427378f700ddb2f0e9394dbb0a40bd6dba04a", RELEASE),
];

/// Returns the usual texts of a script that compares the key with the token and then does `$act`, with every semicolon
/// that the grammar allows.
#[rustfmt::skip]
macro_rules! compare_and {
    ($act:literal, $script:expr) => {[
        (concat!("if redis.call('get', KEYS[1]) == ARGV[1] then return ", $act, "; else return 0; end;"), $script),
        (concat!("if redis.call('get', KEYS[1]) == ARGV[1] then return ", $act, "; end; return 0;"), $script),
        (concat!("if redis.call('get', KEYS[1]) == ARGV[1] then return ", $act, "; end;"), with(Replies::TRUE_OR_NULL, $script)),
        (concat!("if redis.call('get', KEYS[1]) == ARGV[1] then ", $act, "; return 1; else return 0; end;"), $script),
        (concat!("if redis.call('get', KEYS[1]) == ARGV[1] then ", $act, "; return 1; end; return 0;"), $script),
        (concat!("if redis.call('get', KEYS[1]) == ARGV[1] then ", $act, "; return true; end; return false;"),
            with(Replies::TRUE_OR_NULL, $script)),
        (concat!("if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0; end; return ", $act, ";"), $script),
        (concat!("if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0; end; ", $act, "; return 1;"), $script),
        (concat!("local token = redis.call('get', KEYS[1]); if token == ARGV[1] then return ", $act, "; else return 0; end;"), $script),
        (concat!("local token = redis.call('get', KEYS[1]); if token == ARGV[1] then return ", $act, "; end; return 0;"), $script),
        (concat!("local token = redis.call('get', KEYS[1]); if token == ARGV[1] then ", $act, "; return true; end; return false;"),
            with(Replies::TRUE_OR_NULL, $script)),
        (concat!("local token = redis.call('get', KEYS[1]); if not token or token ~= ARGV[1] then return 0; end; ", $act, "; return 1;"),
            $script),
    ]};
}

const RELEASES: [(&str, Script); 12] = compare_and!("redis.call('del', KEYS[1])", RELEASE);
const EXTENSIONS: [(&str, Script); 12] =
    compare_and!("redis.call('pexpire', KEYS[1], ARGV[2])", EXTEND);
const EXTENSIONS_BY_SECONDS: [(&str, Script); 12] =
    compare_and!("redis.call('expire', KEYS[1], ARGV[2])", EXTEND_SECONDS);

/// The texts of other shapes.
#[rustfmt::skip]
const OTHERS: &[(&str, Script)] = &[
    // Locals for everything, as in redis-semaphore.
    ("local key = KEYS[1]; local token = ARGV[1]; \
      if redis.call('get', key) == token then return redis.call('del', key); end; return 0;", RELEASE),
    ("local key = KEYS[1]; local token = ARGV[1]; local lease = ARGV[2]; local value = redis.call('get', key); \
      if value == token then redis.call('pexpire', key, lease); return 1; end; return 0;", EXTEND),
    // The result in a local, as in sherlock.
    ("local result = 0; if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]); result = 1; end; \
      return result;", RELEASE),
    // Any number of keys, as in redlock (npm).
    ("local count = 0; for i, key in ipairs(KEYS) do if redis.call('get', key) == ARGV[1] then \
      redis.call('del', key); count = count + 1; end; end; return count;", RELEASE),
    // redsync
    ("local value = redis.call('get', KEYS[1]); if value == ARGV[1] then return redis.call('del', KEYS[1]); \
      elseif value == false then return -1; else return 0; end;", with(GONE_IS_MINUS_ONE, RELEASE)),
    // aioredlock
    ("local value = redis.call('get', KEYS[1]); if not value then return redis.status_reply('OK'); \
      elseif value == ARGV[1] then return redis.call('del', KEYS[1]); \
      else return redis.error_reply('ERROR'); end;", with(GONE_IS_OK, RELEASE)),
    // Lock4j
    ("if redis.call('get', KEYS[1]) == ARGV[1] then return tostring(redis.call('del', KEYS[1]) == 1); \
      else return 'false'; end;", with(TRUE_OR_FALSE, RELEASE)),
    // SET in a script, as in Lock4j.
    ("return redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]);", with(Replies::OK_OR_NULL, ACQUIRE)),
    ("return redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2], 'nx');", with(Replies::OK_OR_NULL, ACQUIRE)),
    ("return redis.call('set', KEYS[1], ARGV[1], 'nx', 'ex', ARGV[2]);", with(Replies::OK_OR_NULL, ACQUIRE_SECONDS)),
    ("return redis.call('set', KEYS[1], ARGV[1], 'ex', ARGV[2], 'nx');", with(Replies::OK_OR_NULL, ACQUIRE_SECONDS)),
];

/// Returns all texts, one for each normal form.
pub(super) fn texts() -> Vec<(&'static str, Script)> {
    [&RELEASES, &EXTENSIONS, &EXTENSIONS_BY_SECONDS, OTHERS].concat()
}

/// The SHA1 of a script's text.
type Sha1 = [u8; 20];

/// The releases that the operator names by their SHA1: scripts that only compare and delete, with the token as their
/// only argument, and return 1 or 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReleaseScripts(Vec<Sha1>);

/// The error in a list of SHA1s. Its text is what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReleaseScriptsError {
    /// A word is no SHA1.
    #[error(
        "SHA1s of 40 hexadecimal digits, as SCRIPT LOAD returns them, separated by commas; {0:?} is none"
    )]
    NotASha1(String),
    /// There are more than [`RELEASE_SCRIPTS`].
    #[error("at most {RELEASE_SCRIPTS} SHA1s")]
    TooMany,
}

impl ReleaseScripts {
    /// Parses a list of SHA1s, separated by commas, with spaces around them or not. It may be empty.
    ///
    /// # Errors
    /// One of them is no SHA1, or they are too many.
    pub fn parse(list: &str) -> Result<Self, ReleaseScriptsError> {
        let words = list.split(',').map(str::trim);
        let words = words.filter(|word| !word.is_empty());
        let sha1s = words.map(|word| {
            let sha1 = sha1_of_hex(word.as_bytes());
            sha1.ok_or_else(|| ReleaseScriptsError::NotASha1(word.to_owned()))
        });
        let sha1s: Vec<_> = sha1s.collect::<Result<_, _>>()?;
        if sha1s.len() > RELEASE_SCRIPTS {
            return Err(ReleaseScriptsError::TooMany);
        }
        Ok(Self(sha1s))
    }
}

/// The scripts that are known, and those that clients taught.
#[derive(Debug)]
pub struct Scripts {
    forms: Vec<(Vec<Lexeme<'static>>, Script)>,
    known: HashMap<Sha1, Script>,
    seen: Arc<Seen>,
}

/// The scripts that clients sent. Reloads of the configuration keep them.
#[derive(Debug, Default)]
struct Seen {
    learned: RwLock<HashMap<Sha1, Script>>,
    reported: Mutex<HashSet<Sha1>>,
}

impl Scripts {
    /// Creates the scripts of libraries, and those that the operator names.
    pub fn new(releases: &ReleaseScripts) -> Self {
        let named = releases.0.iter().map(|sha1| (*sha1, RELEASE));
        let libraries = LIBRARIES.iter();
        let libraries =
            libraries.filter_map(|(hash, script)| Some((sha1_of_hex(hash.as_bytes())?, *script)));
        let forms = texts().into_iter();
        let forms =
            forms.filter_map(|(text, script)| Some((normal_form(text.as_bytes())?, script)));
        Self {
            forms: forms.collect(),
            // Of two entries for a SHA1 the last one counts.
            known: named.chain(libraries).collect(),
            seen: Arc::default(),
        }
    }

    /// Creates the scripts for another list of the operator's. Both share what clients taught.
    pub fn renamed(&self, releases: &ReleaseScripts) -> Self {
        Self {
            seen: Arc::clone(&self.seen),
            ..Self::new(releases)
        }
    }

    /// Returns the script of this SHA1, in hexadecimal digits of either case.
    pub fn by_sha1(&self, hex: &[u8]) -> Option<Script> {
        self.remembered(&sha1_of_hex(hex)?)
    }

    /// Returns the script of this text, and remembers its SHA1.
    pub fn by_text(&self, text: &[u8]) -> Option<Script> {
        if text.len() > SCRIPT_BYTES {
            return None;
        }
        let sha1 = sha1_of(text);
        if let Some(script) = self.remembered(&sha1) {
            return Some(script);
        }
        let found = normal_form(text)?;
        let mut forms = self.forms.iter();
        let (_, script) = forms.find(|(form, _)| is_form(&found, form))?;
        let learned = self.seen.learned.write();
        let mut learned = learned.unwrap_or_else(PoisonError::into_inner);
        if learned.len() >= LEARNED_SCRIPTS {
            // Clients that put values into their texts must not keep those of others out.
            learned.clear();
        }
        learned.insert(sha1, *script);
        Some(*script)
    }

    fn remembered(&self, sha1: &Sha1) -> Option<Script> {
        let learned = || {
            let learned = self.seen.learned.read();
            let learned = learned.unwrap_or_else(PoisonError::into_inner);
            learned.get(sha1).copied()
        };
        self.known.get(sha1).copied().or_else(learned)
    }

    /// Returns the SHA1 of an unknown script, in hexadecimal digits, if it is to be reported to the operator: once for
    /// each script, up to [`LEARNED_SCRIPTS`]. `name` is the command that runs it, and `script` its SHA1 or its text.
    pub fn news(&self, name: &[u8], script: &[u8]) -> Option<String> {
        let sha1 = match name.eq_ignore_ascii_case(b"EVALSHA") {
            true => sha1_of_hex(script)?,
            false => sha1_of(script),
        };
        if self.remembered(&sha1).is_some() {
            return None;
        }
        let reported = self.seen.reported.lock();
        let mut reported = reported.unwrap_or_else(PoisonError::into_inner);
        let is_news = reported.len() < LEARNED_SCRIPTS && reported.insert(sha1);
        is_news.then(|| hex(&sha1))
    }

    /// Returns the SHA1 of a script's text in hexadecimal digits, and remembers it if the script is known by its text.
    pub fn load(&self, text: &[u8]) -> String {
        self.by_text(text);
        hex(&sha1_of(text))
    }
}

fn sha1_of(text: &[u8]) -> Sha1 {
    let mut sha1 = Sha1::default();
    sha1.copy_from_slice(digest(&SHA1_FOR_LEGACY_USE_ONLY, text).as_ref());
    sha1
}

fn hex(sha1: &Sha1) -> String {
    sha1.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha1_of_hex(hex: &[u8]) -> Option<Sha1> {
    let mut sha1 = Sha1::default();
    if hex.len() != 2 * sha1.len() {
        return None;
    }
    for (byte, digits) in sha1.iter_mut().zip(hex.chunks(2)) {
        for digit in digits {
            *byte = *byte << 4 | char::from(*digit).to_digit(16)? as u8;
        }
    }
    Some(sha1)
}
