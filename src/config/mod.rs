//! The configuration, in two stages: the text that the operator typed ([`typed`]: file, environment, flags), and
//! the checked values ([`Config`]).
//!
//! Each key stands once, in [`Config::check`], with its default and its bounds. A typed key that the check does not
//! ask for is unknown, so there is no second list of names. An error is one line that names the key, where it was
//! typed, and the allowed values. `config/lockgate.toml` documents every key, and a test holds it to this file.

use std::{ffi::OsString, ops::RangeInclusive, path::PathBuf, time::Duration};

use bytes::Bytes;
use tracing_subscriber::EnvFilter;

use crate::{
    absorb::AbsorbSettings,
    auth::password::Password,
    limits::{
        KEPT_BY_CONNECTION, LEAST_BUFFER_BYTES, LEAST_LOCK_COMMAND_BYTES, LEAST_TOKEN_BYTES,
        LOCK_COMMAND_BYTES, Limits, OPTION_BYTES, REPLICAS, TOKEN_BYTES,
    },
    lock::{Settings, WriteBack},
    store::redis::settings::noticed_within,
    transport::address::Address,
};

mod absorb;
mod admin;
mod auth;
mod builder;
mod findings;
pub mod live;
mod secret;
mod sentinel;
mod tls;
mod typed;
mod upstream;

pub use admin::Admin;
pub use builder::ConfigBuilder;
pub use sentinel::Sentinel;
pub use tls::{Tls, UpstreamTls};
pub use typed::{Error, Flags, StatedSettings};
use typed::{Typed, shown};
pub use upstream::{RedisAddress, Upstream};

/// A checked configuration. [`Config::default`] has the defaults of `config/lockgate.toml`; printing one shows no
/// password.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Address to listen on; port 0 takes a free one. None: no address.
    #[doc(hidden)]
    pub listen: Option<Address>,
    /// Unix socket to listen on.
    #[doc(hidden)]
    pub unix_socket: Option<UnixSocket>,
    /// Listener for TLS clients.
    #[doc(hidden)]
    pub tls: Option<Tls>,
    /// Admin address, over HTTP.
    #[doc(hidden)]
    pub admin: Option<Admin>,
    /// Whether clients on other machines are refused where no password is required.
    #[doc(hidden)]
    pub protected_mode: bool,
    /// Password that clients have to give first.
    #[doc(hidden)]
    pub password: Option<Password>,
    /// Threads that serve clients.
    #[doc(hidden)]
    pub threads: usize,
    /// What to log, as a filter of `tracing`: `info`, or `warn,lockgate=debug`.
    #[doc(hidden)]
    pub log: String,
    /// How log lines are written.
    #[doc(hidden)]
    pub log_format: LogFormat,
    /// The wait for a lock from which on its end is logged.
    #[doc(hidden)]
    pub log_slow_wait: Option<Duration>,
    /// The hold of a lock from which on its end is logged.
    #[doc(hidden)]
    pub log_slow_hold: Option<Duration>,
    /// The section `[upstream]`.
    #[doc(hidden)]
    pub upstream: UpstreamSettings,
    /// The section `[write_back]`.
    #[doc(hidden)]
    pub write_back: WriteBackSettings,
    /// How long clients may take to finish at shutdown.
    #[doc(hidden)]
    pub drain: Duration,
    /// Silence after which TCP probes a client's machine; zero disables it.
    #[doc(hidden)]
    pub tcp_keepalive: Duration,
    /// Silence after which a client is closed, as Redis's `timeout`; zero disables it.
    #[doc(hidden)]
    pub idle_timeout: Duration,
    /// The section `[lock]`.
    #[doc(hidden)]
    pub lock: LockSettings,
    /// The section `[absorb]`.
    #[doc(hidden)]
    pub absorb: AbsorbSettings,
    /// The bounds.
    #[doc(hidden)]
    pub limits: Limits,
    /// How often a client would poll for a lock, for the estimate of avoided polls.
    #[doc(hidden)]
    pub poll_interval: Duration,
    queue: QueueTimes,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, journald's form in the systemd journal, JSON anywhere else.
    Auto,
    /// Text for people.
    Text,
    /// One JSON object a line.
    Json,
    /// Text with its priority in front (`<4>`), as systemd's journal reads it.
    Journald,
}

/// A Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its path.
    pub path: PathBuf,
    /// Its mode as a file: a client that may write to it may connect.
    pub mode: u32,
}

/// Where the locks and all other data live, and how lockgate connects there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// The memory of this process, or a Redis.
    pub url: Upstream,
    /// TLS towards Redis, where the upstream is a Redis with TLS.
    pub tls: Option<UpstreamTls>,
    /// The section `[sentinel]`, where sentinels tell the address of the Redis.
    pub sentinel: Option<Sentinel>,
    /// Bound on connecting to Redis.
    pub connect_timeout: Duration,
    /// How long a reply of Redis may take before its connection counts as broken.
    pub timeout: Duration,
    /// Silence after which a connection that receives pushes is pinged.
    pub ping: Duration,
    /// Idle time after which a shared connection is closed, unless a lock needs it.
    pub idle_timeout: Duration,
}

/// The recovery of leases after Redis lost data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteBackSettings {
    /// Which leases are written back.
    pub leases: WriteBack,
    /// How long after the loss no lock that is found free is taken.
    pub grace: Duration,
}

/// The locks that clients get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockSettings {
    /// Prefix that turns the name of a lock into its key in Redis.
    pub key_prefix: Bytes,
    /// The number of replicas that acknowledge a grant to a request that names none.
    pub replicas: u32,
    /// How long the replicas have for that.
    pub replicas_timeout: Duration,
    /// The leases that clients get and may ask for.
    pub leases: Leases,
}

/// The leases that clients get and may ask for, in milliseconds: `min_ms <= default_ms <= max_ms`; `min_session_ms`
/// has the same bounds as `default_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leases {
    /// The lease of a request that names none.
    pub default_ms: u64,
    /// The shortest lease.
    pub min_ms: u64,
    /// The shortest lease that is bound to a connection, and so renewed. At most `max_ms`.
    pub min_session_ms: u64,
    /// The longest lease.
    pub max_ms: u64,
}

/// The fields of [`Settings`] that the rest of [`Config`] does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueTimes {
    max_handovers: u32,
    max_handover_time_ms: u64,
    yield_pause_ms: u64,
    reconnect_grace_ms: u64,
    max_delay_ms: u64,
    ask_at_least_every_ms: u64,
    poll_every_ms: u64,
}

/// The part of the default grace for writing leases back, once every instance has noticed the loss.
const TO_WRITE_BACK: Duration = Duration::from_millis(500);
const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// One year as `humantime` counts it, so that the bound reads `1year`.
const YEAR: Duration = Duration::from_secs(31_557_600);

/// Default of `lock.min_session_lease`: such a lease is renewed three to four times in its length.
const LEAST_SESSION: Duration = Duration::from_secs(1);

/// The default of `lock.replicas_timeout`, where `upstream.timeout` is longer.
const REPLICAS_TIMEOUT: Duration = Duration::from_millis(100);

/// The allowed values of an address to listen on.
const ADDRESS: &str = "a host and a port: \"127.0.0.1:6380\", \"[::1]:6380\", \"localhost:6380\", or \":6380\" for \
                       every interface";

/// Longest `lock.key_prefix`, in bytes.
const MOST_PREFIX_BYTES: usize = 1_024;

/// Largest value of any count.
const MOST: usize = u32::MAX as usize;

/// Largest buffer of one client, in bytes.
const MOST_BUFFER_BYTES: usize = 1024 * 1024 * 1024;

impl Config {
    /// Begins a configuration.
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }

    /// Loads the configuration from the flags, the environment and the file that one of them names, with what was
    /// typed for each key.
    ///
    /// # Errors
    /// As [`ConfigBuilder::build`].
    #[doc(hidden)]
    pub fn read(
        flags: Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(Self, StatedSettings), Error> {
        ConfigBuilder::from(flags).environment(environment).read()
    }

    /// Returns where clients will connect, as far as that is known before listening (port 0 is a free one).
    #[doc(hidden)]
    pub fn places(&self) -> Vec<String> {
        let secure = self.tls.as_ref().map(|tls| format!("{} (TLS)", tls.listen));
        let plain = self.listen.as_ref().map(Address::to_string);
        let socket = self.unix_socket.as_ref();
        let socket = socket.map(|socket| socket.path.display().to_string());
        [plain, secure, socket].into_iter().flatten().collect()
    }

    /// Returns what an operator may expect of this configuration and does not get.
    #[doc(hidden)]
    pub fn remarks(&self) -> Vec<&'static str> {
        let own_password =
            matches!(&self.upstream.url, Upstream::Redis(it) if it.password.is_some());
        // With a password of this instance, clients have the rights of its own account.
        let remark = (own_password && self.password.is_none()).then_some(
            "the password of the upstream is lockgate's own: clients authenticate to Redis themselves (AUTH), \
             unless auth.password is set",
        );
        remark.into_iter().collect()
    }

    /// Returns the settings of the queues of locks.
    #[doc(hidden)]
    pub fn lock_settings(&self) -> Settings {
        Settings {
            max_handovers: self.queue.max_handovers,
            max_handover_time_ms: self.queue.max_handover_time_ms,
            yield_pause_ms: self.queue.yield_pause_ms,
            reconnect_grace_ms: self.queue.reconnect_grace_ms,
            max_delay_ms: self.queue.max_delay_ms,
            ask_at_least_every_ms: self.queue.ask_at_least_every_ms,
            poll_every_ms: self.queue.poll_every_ms,
            answer_within_ms: millis(self.upstream.timeout),
            write_back: match self.upstream.url {
                // The memory of this process loses nothing before the process ends.
                Upstream::Embedded => WriteBack::Off,
                Upstream::Redis(_) => self.write_back.leases,
            },
            max_waiters: self.limits.waiters,
            max_kept_by_connection: KEPT_BY_CONNECTION,
            min_session_ms: self.lock.leases.min_session_ms,
        }
    }

    /// Returns [`Config::poll_interval`] in microseconds.
    #[doc(hidden)]
    pub fn poll_interval_micros(&self) -> u64 {
        millis(self.poll_interval).saturating_mul(1_000)
    }

    fn check(typed: &mut Typed) -> Result<Self, Error> {
        let unix_socket = UnixSocket::check(typed)?;
        let tls = Tls::check(typed)?;
        let elsewhere = unix_socket.is_some() || tls.is_some();
        let upstream = UpstreamSettings::check(typed)?;
        let lock = LockSettings::check(typed, &upstream)?;
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
            log_format: typed.parse("log_format", "auto", log_format)?,
            log_slow_wait: typed.parse("log_slow_wait", "off", slow)?,
            log_slow_hold: typed.parse("log_slow_hold", "off", slow)?,
            write_back: WriteBackSettings::check(typed, &upstream)?,
            upstream,
            drain: duration(typed, "drain", "5s", Duration::ZERO..=HOUR)?,
            tcp_keepalive: duration(typed, "tcp_keepalive", "5m", Duration::ZERO..=HOUR)?,
            idle_timeout: duration(typed, "idle_timeout", "0s", Duration::ZERO..=YEAR)?,
            absorb: absorb::check(typed, &lock.key_prefix)?,
            lock,
            poll_interval: duration(typed, "metrics.poll_interval", "50ms", MILLISECOND..=HOUR)?,
            queue: QueueTimes::check(typed)?,
            limits: check_limits(typed)?,
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        // There is no input; the first of the tests covers this.
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

impl UpstreamSettings {
    fn check(typed: &mut Typed) -> Result<Self, Error> {
        let url = Upstream::check(typed)?;
        let speaks_tls = matches!(&url, Upstream::Redis(redis) if redis.tls);
        let sentinel = Sentinel::check(typed, &url)?;
        let mut time = |key, default, most| duration(typed, key, default, MILLISECOND..=most);
        Ok(Self {
            connect_timeout: time("upstream.connect_timeout", "1s", HOUR)?,
            timeout: time("upstream.timeout", "2s", HOUR)?,
            ping: time("upstream.ping", "5s", HOUR)?,
            idle_timeout: time("upstream.idle_timeout", "1m", DAY)?,
            tls: UpstreamTls::check(typed, speaks_tls, sentinel.is_some())?,
            sentinel,
            url,
        })
    }
}

impl WriteBackSettings {
    fn check(typed: &mut Typed, upstream: &UpstreamSettings) -> Result<Self, Error> {
        let UpstreamSettings {
            connect_timeout,
            timeout,
            ping,
            ..
        } = *upstream;
        Ok(Self {
            leases: typed.parse("write_back.leases", "all", write_back)?,
            grace: grace(typed, noticed_within(connect_timeout, timeout, ping))?,
        })
    }
}

impl LockSettings {
    fn check(typed: &mut Typed, upstream: &UpstreamSettings) -> Result<Self, Error> {
        let most = match upstream.url {
            Upstream::Embedded => 0,
            Upstream::Redis(_) => REPLICAS as usize,
        };
        Ok(Self {
            replicas: number(typed, "lock.replicas", 0, 0..=most)?
                .try_into()
                .unwrap_or(REPLICAS),
            replicas_timeout: replicas_timeout(typed, upstream.timeout)?,
            key_prefix: typed.parse("lock.key_prefix", "", key_prefix)?,
            leases: Leases::check(typed)?,
        })
    }
}

/// Redis counts as hanging after `upstream.timeout`, so the replicas have less.
fn replicas_timeout(typed: &mut Typed, timeout: Duration) -> Result<Duration, Error> {
    let most = timeout.saturating_sub(MILLISECOND).max(MILLISECOND);
    let default = REPLICAS_TIMEOUT.min(most);
    typed.parse("lock.replicas_timeout", &shown(default), |text| {
        read_duration(text, &(MILLISECOND..=most))
            .map_err(|range| format!("{range}, below upstream.timeout"))
    })
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
            max_handover_time_ms: ms("lock.max_handover_time", "5s", MILLISECOND..=DAY)?,
            yield_pause_ms: ms("lock.yield_pause", "20ms", zero..=HOUR)?,
            reconnect_grace_ms: ms("queue.reconnect_grace", "2s", zero..=HOUR)?,
            max_delay_ms: ms("ask.max_delay", "15ms", zero..=HOUR)?,
            ask_at_least_every_ms: ms("ask.at_least_every", "60s", MILLISECOND..=DAY)?,
            poll_every_ms: ms("ask.poll_every", "100ms", MILLISECOND..=HOUR)?,
            max_handovers: number(typed, "lock.max_handovers", 64, 1..=MOST)?
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
        pipelined_commands: number(
            typed,
            "limits.pipelined_commands",
            default.pipelined_commands,
            1..=MOST,
        )?,
        pipelined_bytes: number(
            typed,
            "limits.pipelined_bytes",
            default.pipelined_bytes,
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

/// Reads a duration of whole milliseconds, such as `2s` or `1m 30s`.
fn duration(
    typed: &mut Typed,
    key: &'static str,
    default: &str,
    allowed: RangeInclusive<Duration>,
) -> Result<Duration, Error> {
    typed.parse(key, default, |text| read_duration(text, &allowed))
}

fn read_duration(text: &str, allowed: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let in_bounds = |value: &Duration| {
        allowed.contains(value) && value.subsec_nanos().is_multiple_of(1_000_000)
    };
    let value = match humantime::parse_duration(text) {
        Ok(value) => value,
        // The only duration that needs no unit.
        Err(_) if text == "0" => Duration::ZERO,
        Err(_) => {
            let with_unit = ["s", "ms"].map(|unit| format!("{text}{unit}"));
            let possible = |text: &&String| {
                let value = humantime::parse_duration(text);
                value.is_ok_and(|value| in_bounds(&value))
            };
            let possible = with_unit.iter().filter(possible);
            let possible: Vec<_> = possible.map(|text| format!("{text:?}")).collect();
            let meant = match possible.is_empty() {
                true => "such as \"2s\" or \"15ms\"".to_owned(),
                false => possible.join(" or "),
            };
            return Err(format!("a duration with its unit: {meant}"));
        }
    };
    if in_bounds(&value) {
        return Ok(value);
    }
    let (from, to) = (shown(*allowed.start()), shown(*allowed.end()));
    Err(format!("whole milliseconds, from {from} to {to}"))
}

fn number(
    typed: &mut Typed,
    key: &'static str,
    default: usize,
    allowed: RangeInclusive<usize>,
) -> Result<usize, Error> {
    typed.parse(key, &default.to_string(), |text| {
        let read = text.parse().ok();
        read.filter(|value| allowed.contains(value)).ok_or_else(|| {
            let (from, to) = (allowed.start(), allowed.end());
            let meant = without_unit(text).filter(|value| allowed.contains(value));
            let meant = meant.map_or_else(String::new, |value| format!(": {value}"));
            format!("a whole number from {from} to {to}{meant}")
        })
    })
}

/// Returns the number that a text with one of Redis's units stands for: `64kb` is 65536, `64k` is 64000.
fn without_unit(text: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "k" => 1_000,
        "kb" => 1_024,
        "m" => 1_000_000,
        "mb" => 1_024 * 1_024,
        "g" => 1_000_000_000,
        "gb" => 1_024 * 1_024 * 1_024,
        _ => return None,
    };
    digits.trim().parse::<usize>().ok()?.checked_mul(factor)
}

/// Returns half of the cores, at least one. Measured on two cores: 50 clients do 38,000 locks a second with one
/// thread and 20,000 with two, since Redis needs a core of its own and threads that wake each other cost more than
/// they gain.
fn half_of_the_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

/// Reads the grace. Every instance must have noticed the loss within it; the default leaves half a second more to
/// write leases back.
fn grace(typed: &mut Typed, noticed: Duration) -> Result<Duration, Error> {
    let whole = u64::try_from(noticed.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
    let noticed = Duration::from_millis(whole);
    let (shortest, default) = (noticed + MILLISECOND, noticed + TO_WRITE_BACK);
    typed.parse("write_back.grace", &shown(default), |text| {
        read_duration(text, &(shortest..=DAY))
    })
}

fn write_back(text: &str) -> Result<WriteBack, String> {
    match text {
        "all" => Ok(WriteBack::All),
        "session" => Ok(WriteBack::Session),
        "off" => Ok(WriteBack::Off),
        _ => Err("all, session or off".to_owned()),
    }
}

/// Reads the address to listen on; `off` is allowed only where clients can connect `elsewhere`.
fn listen(text: &str, elsewhere: bool) -> Result<Option<Address>, String> {
    match text {
        "off" if elsewhere => Ok(None),
        "off" => Err(format!(
            "{ADDRESS}; or tls.listen or a unixsocket beside it"
        )),
        _ => address(text).map(Some),
    }
}

fn address(text: &str) -> Result<Address, String> {
    Address::parse(text).ok_or_else(|| format!("{ADDRESS}, or off"))
}

/// Reads a boolean as TOML or Redis writes it.
fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "true" | "yes" => Ok(true),
        "false" | "no" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// Reads the name of a file; an empty one is none.
fn file(text: &str) -> Result<Option<PathBuf>, String> {
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

/// Reads a file mode as `chmod` takes it.
fn file_mode(text: &str) -> Result<u32, String> {
    // TOML's octal numbers have this prefix.
    let text = text.strip_prefix("0o").unwrap_or(text);
    let digits = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if digits && mode <= 0o777 => Ok(mode),
        _ => Err("the mode of a file, from 0 to 777".to_owned()),
    }
}

/// Reads a directive of `tracing`. To `tracing` a lone word is the name of a module, which would turn `verbose`
/// into silence; here it has to be a level.
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

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        "journald" => Ok(LogFormat::Journald),
        _ => Err("auto, text, json or journald".to_owned()),
    }
}

/// Reads from when on something counts as slow.
fn slow(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    let read = read_duration(text, &(Duration::ZERO..=DAY));
    read.map(Some)
        .map_err(|allowed| format!("{allowed}, or off"))
}

fn key_prefix(text: &str) -> Result<Bytes, String> {
    if text.len() <= MOST_PREFIX_BYTES {
        Ok(Bytes::copy_from_slice(text.as_bytes()))
    } else {
        Err(format!("at most {MOST_PREFIX_BYTES} bytes"))
    }
}

/// Returns whole milliseconds; a checked duration is far from the end of their range.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
