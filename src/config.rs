//! What an operator can say, in two stages: what was typed ([`typed`]: file, environment, flags),
//! and what of it was checked ([`Config`]).
//!
//! Each key stands once, in [`Config::check`], with its default and its bounds; what was typed and
//! asked for by nobody is an unknown key, so no list of names has to be kept beside it. A wrong
//! key or value is one line that names it, where it was typed, and what is allowed.
//! `config/lockgate.toml` documents every key, and a test holds it to this file.

use std::{ffi::OsString, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use bytes::Bytes;
use tracing_subscriber::EnvFilter;

use crate::{
    limits::{
        LEAST_BUFFER_BYTES, LEAST_LOCK_COMMAND_BYTES, LEAST_TOKEN_BYTES, LOCK_COMMAND_BYTES,
        Limits, OPTION_BYTES, TOKEN_BYTES,
    },
    lock::{Settings, WriteBack},
    password::Password,
    store::redis::settings::noticed_within,
};

mod admin;
mod auth;
mod findings;
mod tls;
mod typed;
mod upstream;

pub use admin::Admin;
pub use tls::{Tls, UpstreamTls};
pub use typed::{Error, Flags, Said};
use typed::{Typed, shown};
pub use upstream::{RedisAddress, Upstream};

/// What the program does, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The address to listen on; port 0 takes a free one. None: no address.
    pub listen: Option<SocketAddr>,
    /// The socket in the file system to listen on.
    pub unix_socket: Option<UnixSocket>,
    /// Where clients come in with TLS.
    pub tls: Option<Tls>,
    /// Where operators look in over HTTP.
    pub admin: Option<Admin>,
    /// Clients that are not on this machine are refused where nobody asks them for a password.
    pub protected_mode: bool,
    /// What clients have to say first.
    pub password: Option<Password>,
    /// Threads that serve clients.
    pub threads: usize,
    /// What to log, as `tracing` filters it: `info`, or `warn,lockgate=debug`.
    pub log: String,
    /// Where the locks live, and everything else.
    pub upstream: Upstream,
    /// TLS to Redis, where the upstream is a Redis that speaks it.
    pub upstream_tls: Option<UpstreamTls>,
    /// How long connecting to Redis may take.
    pub connect_timeout: Duration,
    /// How long an answer of Redis may take before its connection counts as broken.
    pub timeout: Duration,
    /// A connection that is to tell of changes is asked for a sign of life when silent this long.
    pub ping: Duration,
    /// A shared connection that nobody used for so long, and that no lock needs, is closed.
    pub idle: Duration,
    /// Which leases are written back into a Redis that lost data.
    pub write_back: WriteBack,
    /// For how long then no lock that is found free is taken.
    pub grace: Duration,
    /// How long clients may take to be done once the gate shuts down.
    pub drain: Duration,
    /// After what silence a client's machine is probed for life; zero is never.
    pub tcp_keepalive: Duration,
    /// After what silence a client is closed, as Redis's `timeout`; zero is never.
    pub idle_timeout: Duration,
    /// Put before the name of every lock to make its key in Redis.
    pub key_prefix: Bytes,
    /// The leases a client gets and may ask for.
    pub leases: Leases,
    /// The bounds.
    pub limits: Limits,
    /// How often a client would poll for a lock, for an estimate of the polls it is spared.
    pub poll_interval: Duration,
    queue: QueueTimes,
}

/// A socket in the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its path.
    pub path: PathBuf,
    /// Who may connect, as the mode of a file: who may write to it.
    pub mode: u32,
}

/// The leases a client gets and may ask for, in milliseconds; `min_ms <= default_ms <= max_ms`, and as much of
/// `min_session_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leases {
    /// For a client that names none.
    pub default_ms: u64,
    /// The shortest.
    pub min_ms: u64,
    /// The shortest that is bound to a connection, and so renewed. At most `max_ms`.
    pub min_session_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

/// What [`Settings`] has beyond the rest of [`Config`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueTimes {
    max_handoffs: u32,
    max_handoff_time_ms: u64,
    yield_pause_ms: u64,
    return_ms: u64,
    max_delay_ms: u64,
    ask_at_least_every_ms: u64,
    poll_every_ms: u64,
}

/// What remains of the default grace to write leases back, once every instance has noticed the loss.
const TO_WRITE_BACK: Duration = Duration::from_millis(500);
const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// As `humantime` counts it, so that the bound reads `1year`.
const YEAR: Duration = Duration::from_secs(31_557_600);

/// The default of `lock.min_session_lease`: such a lease is renewed some four times in its time.
const LEAST_SESSION: Duration = Duration::from_secs(1);

/// Longest `lock.key_prefix`, in bytes.
const MOST_PREFIX_BYTES: usize = 1_024;

/// Largest number of anything that is counted.
const MOST: usize = u32::MAX as usize;

/// Largest buffer of one client, in bytes.
const MOST_BUFFER_BYTES: usize = 1024 * 1024 * 1024;

impl Config {
    /// The configuration from the flags, the environment and the file that one of them names. A
    /// flag goes before the environment, the environment before the file, the file before the
    /// default.
    ///
    /// # Errors
    /// A file that cannot be read, a key or a `LOCKGATE_*` variable that is not known, a value
    /// that is not allowed.
    pub fn load(
        flags: Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        Self::read(flags, environment).map(|(config, _)| config)
    }

    /// The same, and what was said of each key, to be held against what is said later.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn read(
        flags: Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(Self, Said), Error> {
        let mut typed = Typed::read(flags, environment)?;
        let config = Self::check(&mut typed)?;
        Ok((config, typed.refuse_the_rest()?))
    }

    /// Where clients come in: what is to be listened on, as far as it is known before (port 0 is a free one).
    pub fn places(&self) -> Vec<String> {
        let secure = self.tls.as_ref().map(|tls| format!("{} (TLS)", tls.listen));
        let plain = self.listen.map(|address| address.to_string());
        let socket = self.unix_socket.as_ref();
        let socket = socket.map(|socket| socket.path.display().to_string());
        [plain, secure, socket].into_iter().flatten().collect()
    }

    /// How the queues of locks behave.
    pub fn lock_settings(&self) -> Settings {
        Settings {
            max_handoffs: self.queue.max_handoffs,
            max_handoff_time_ms: self.queue.max_handoff_time_ms,
            yield_pause_ms: self.queue.yield_pause_ms,
            return_ms: self.queue.return_ms,
            max_delay_ms: self.queue.max_delay_ms,
            ask_at_least_every_ms: self.queue.ask_at_least_every_ms,
            poll_every_ms: self.queue.poll_every_ms,
            answer_within_ms: millis(self.timeout),
            write_back: match self.upstream {
                // The memory of this process forgets nothing before the process ends.
                Upstream::Embedded => WriteBack::Off,
                Upstream::Redis(_) => self.write_back,
            },
            max_waiters: self.limits.waiters,
            min_session_ms: self.leases.min_session_ms,
        }
    }

    /// [`Config::poll_interval`] in microseconds.
    pub fn poll_interval_micros(&self) -> u64 {
        millis(self.poll_interval).saturating_mul(1_000)
    }

    fn check(typed: &mut Typed) -> Result<Self, Error> {
        let connect_timeout =
            duration(typed, "upstream.connect_timeout", "1s", MILLISECOND..=HOUR)?;
        let timeout = duration(typed, "upstream.timeout", "2s", MILLISECOND..=HOUR)?;
        let ping = duration(typed, "upstream.ping", "5s", MILLISECOND..=HOUR)?;
        let unix_socket = UnixSocket::check(typed)?;
        let tls = Tls::check(typed)?;
        let elsewhere = unix_socket.is_some() || tls.is_some();
        let upstream = Upstream::check(typed)?;
        let speaks_tls = matches!(&upstream, Upstream::Redis(redis) if redis.tls);
        Ok(Self {
            listen: typed.parse("listen", "127.0.0.1:6380", |text| listen(text, elsewhere))?,
            unix_socket,
            tls,
            admin: Admin::check(typed)?,
            protected_mode: typed.parse("protected_mode", "true", yes_or_no)?,
            password: auth::check(typed)?,
            threads: match number(typed, "threads", 0, 0..=1024)? {
                0 => half_of_the_cores(),
                threads => threads,
            },
            log: typed.parse("log", "info", log)?,
            upstream,
            upstream_tls: UpstreamTls::check(typed, speaks_tls)?,
            connect_timeout,
            write_back: typed.parse("write_back.leases", "all", write_back)?,
            grace: grace(typed, noticed_within(connect_timeout, timeout, ping))?,
            drain: duration(typed, "drain", "5s", Duration::ZERO..=HOUR)?,
            tcp_keepalive: duration(typed, "tcp_keepalive", "5m", Duration::ZERO..=HOUR)?,
            idle_timeout: duration(typed, "idle_timeout", "0s", Duration::ZERO..=YEAR)?,
            timeout,
            ping,
            idle: duration(typed, "upstream.idle", "1m", MILLISECOND..=DAY)?,
            key_prefix: typed.parse("lock.key_prefix", "", key_prefix)?,
            leases: Leases::check(typed)?,
            poll_interval: duration(typed, "metrics.poll_interval", "50ms", MILLISECOND..=HOUR)?,
            queue: QueueTimes::check(typed)?,
            limits: check_limits(typed)?,
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        // No input of anybody is involved; the first of the tests is for this.
        Self::check(&mut Typed::default()).expect("the defaults are allowed")
    }
}

impl UnixSocket {
    fn check(typed: &mut Typed) -> Result<Option<Self>, Error> {
        let mode = typed.parse("unixsocketperm", "700", file_mode)?;
        let path = typed.parse("unixsocket", "", file)?;
        Ok(path.map(|path| Self { path, mode }))
    }
}

impl Leases {
    fn check(typed: &mut Typed) -> Result<Self, Error> {
        let min = duration(typed, "lock.min_lease", "10ms", MILLISECOND..=YEAR)?;
        let max = duration(typed, "lock.max_lease", "24h", min..=YEAR)?;
        let default = duration(typed, "lock.lease", "30s", min..=max)?;
        let of_session = shown(LEAST_SESSION.clamp(min, max));
        let of_session = duration(typed, "lock.min_session_lease", &of_session, min..=max)?;
        Ok(Self {
            default_ms: millis(default),
            min_ms: millis(min),
            min_session_ms: millis(of_session),
            max_ms: millis(max),
        })
    }
}

impl QueueTimes {
    fn check(typed: &mut Typed) -> Result<Self, Error> {
        let zero = Duration::ZERO;
        let mut ms = |key, default, allowed| duration(typed, key, default, allowed).map(millis);
        Ok(Self {
            max_handoff_time_ms: ms("lock.max_handoff_time", "5s", MILLISECOND..=DAY)?,
            yield_pause_ms: ms("lock.yield_pause", "20ms", zero..=HOUR)?,
            return_ms: ms("queue.return", "2s", zero..=HOUR)?,
            max_delay_ms: ms("ask.max_delay", "15ms", zero..=HOUR)?,
            ask_at_least_every_ms: ms("ask.at_least_every", "60s", MILLISECOND..=DAY)?,
            poll_every_ms: ms("ask.poll_every", "100ms", MILLISECOND..=HOUR)?,
            max_handoffs: number(typed, "lock.max_handoffs", 64, 1..=MOST)?
                .try_into()
                .unwrap_or(u32::MAX),
        })
    }
}

fn check_limits(typed: &mut Typed) -> Result<Limits, Error> {
    let default = Limits::default();
    let buffer = LEAST_BUFFER_BYTES..=MOST_BUFFER_BYTES;
    let token_bytes = number(
        typed,
        "limits.token_bytes",
        default.token_bytes,
        LEAST_TOKEN_BYTES..=TOKEN_BYTES,
    )?;
    let lock_command_bytes = number(
        typed,
        "limits.lock_command_bytes",
        default.lock_command_bytes,
        LEAST_LOCK_COMMAND_BYTES..=LOCK_COMMAND_BYTES,
    )?;
    Ok(Limits {
        clients: number(typed, "limits.clients", default.clients, 1..=MOST)?,
        locks: number(typed, "limits.locks", default.locks, 1..=MOST)?,
        shared_connections: number(
            typed,
            "limits.shared_connections",
            default.shared_connections,
            1..=MOST,
        )?,
        waiters: number(typed, "limits.waiters", default.waiters, 1..=MOST)?,
        session_locks: number(
            typed,
            "limits.session_locks",
            default.session_locks,
            1..=MOST,
        )?,
        released_tokens: number(
            typed,
            "limits.released_tokens",
            default.released_tokens,
            0..=MOST,
        )?,
        key_bytes: number(
            typed,
            "limits.key_bytes",
            default.key_bytes,
            1..=lock_command_bytes - token_bytes - OPTION_BYTES,
        )?,
        token_bytes,
        lock_command_bytes,
        kept_commands: number(
            typed,
            "limits.kept_commands",
            default.kept_commands,
            1..=MOST,
        )?,
        kept_bytes: number(
            typed,
            "limits.kept_bytes",
            default.kept_bytes,
            buffer.clone(),
        )?,
        relay_bytes: number(typed, "limits.relay_bytes", default.relay_bytes, buffer)?,
        kept_reply_bytes: number(
            typed,
            "limits.kept_reply_bytes",
            default.kept_reply_bytes,
            0..=MOST,
        )?,
    })
}

/// A duration of whole milliseconds, such as `2s` or `1m 30s`.
fn duration(
    typed: &mut Typed,
    key: &'static str,
    default: &str,
    allowed: RangeInclusive<Duration>,
) -> Result<Duration, Error> {
    typed.parse(key, default, |text| {
        let value = match humantime::parse_duration(text) {
            Ok(value) => value,
            // The one duration that means something without a unit.
            Err(_) if text == "0" => Duration::ZERO,
            Err(_) => return Err("a duration with its unit, such as \"2s\" or \"15ms\"".to_owned()),
        };
        let whole = value.subsec_nanos().is_multiple_of(1_000_000);
        if allowed.contains(&value) && whole {
            return Ok(value);
        }
        let (from, to) = (shown(*allowed.start()), shown(*allowed.end()));
        Err(format!("whole milliseconds, from {from} to {to}"))
    })
}

fn number(
    typed: &mut Typed,
    key: &'static str,
    default: usize,
    allowed: RangeInclusive<usize>,
) -> Result<usize, Error> {
    typed.parse(key, &default.to_string(), |text| {
        text.parse()
            .ok()
            .filter(|value| allowed.contains(value))
            .ok_or_else(|| {
                format!(
                    "a whole number from {} to {}",
                    allowed.start(),
                    allowed.end()
                )
            })
    })
}

/// At least one. Measured on two cores: with one thread 50 clients do 38,000 locks a second, with two
/// 20,000, since Redis wants a core of its own and threads that wake each other cost more than they do.
fn half_of_the_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

/// Every instance must have noticed the loss; by default it has half a second more to write back.
fn grace(typed: &mut Typed, noticed: Duration) -> Result<Duration, Error> {
    let whole = u64::try_from(noticed.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    let noticed = Duration::from_millis(whole);
    let (shortest, default) = (noticed + MILLISECOND, noticed + TO_WRITE_BACK);
    duration(typed, "write_back.grace", &shown(default), shortest..=DAY)
}

fn write_back(text: &str) -> Result<WriteBack, String> {
    match text {
        "all" => Ok(WriteBack::All),
        "session" => Ok(WriteBack::Session),
        "off" => Ok(WriteBack::Off),
        _ => Err("all, session or off".to_owned()),
    }
}

/// Nowhere is allowed where clients can come in `elsewhere`.
fn listen(text: &str, elsewhere: bool) -> Result<Option<SocketAddr>, String> {
    match text {
        "off" if elsewhere => Ok(None),
        "off" => {
            Err("an IP address and a port; or tls.listen or a unixsocket beside it".to_owned())
        }
        _ => address(text).map(Some),
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "an IP address and a port, such as \"127.0.0.1:6380\", or off".to_owned())
}

/// As TOML has it, and as Redis has it.
fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "true" | "yes" => Ok(true),
        "false" | "no" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// The name of a file; the empty one is none.
fn file(text: &str) -> Result<Option<PathBuf>, String> {
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

/// As `chmod` takes it.
fn file_mode(text: &str) -> Result<u32, String> {
    // Or as TOML writes numbers of that base.
    let text = text.strip_prefix("0o").unwrap_or(text);
    let digits = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if digits && mode <= 0o777 => Ok(mode),
        _ => Err("the mode of a file, from 0 to 777".to_owned()),
    }
}

/// A directive of `tracing`. To `tracing` a lone word is the name of a module, which would turn
/// `verbose` into silence; here it has to be a level.
fn log(text: &str) -> Result<String, String> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let level_or_pair = |part: &str| {
        let part = part.trim();
        part.contains('=') || levels.iter().any(|level| part.eq_ignore_ascii_case(level))
    };
    match EnvFilter::try_new(text) {
        Ok(_) if text.split(',').all(level_or_pair) => Ok(text.to_owned()),
        _ => Err(
            "a level (off, error, warn, info, debug, trace), or module=level, separated by commas"
                .to_owned(),
        ),
    }
}

fn key_prefix(text: &str) -> Result<Bytes, String> {
    if text.len() <= MOST_PREFIX_BYTES {
        Ok(Bytes::copy_from_slice(text.as_bytes()))
    } else {
        Err(format!("at most {MOST_PREFIX_BYTES} bytes"))
    }
}

/// Whole milliseconds; what was checked is far from the end of their range.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
