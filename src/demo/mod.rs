//! `lockgate demo`: what lockgate does for a given Redis, on one terminal, in seconds. The same clients take one
//! lock, first spinning, as is common, then spinning through a lockgate in front of the same Redis, then by `LOCK`.
//! Every figure shown was measured meanwhile.
//!
//! - [`contest`]: the clients, and their results.
//! - [`client`]: how each client speaks to Redis and to lockgate.
//! - [`observer`]: Redis's own figures.
//! - [`server`]: the Redis that is started where none is named.
//! - [`gate`]: the lockgate.
//! - [`progress`], [`report`]: the output.
//!
//! It leaves nothing: the keys have a name of their own and are deleted at the end, also after Ctrl-C, and would
//! expire anyway; the server that it starts ends with it; the lockgate is a thread.

use std::{
    ffi::OsString,
    io::{self, Write},
    iter,
    path::PathBuf,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use clap::Args;
use lockgate::{
    config::{self, Config, ConfigBuilder, Flags, RedisAddress, Upstream},
    limits::OWN_FILES,
    server::files,
    telemetry::metrics::upstream::UpstreamMetrics,
    transport::{endpoint::Endpoint, tls::TlsClient},
};
use thiserror::Error;
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{sleep, timeout},
};

use crate::cli::exit::Exit;

mod client;
mod contest;
mod gate;
mod observer;
mod progress;
mod report;
mod server;

use client::{Target, Trouble};
use contest::{Contest, LONGEST, Outcome, Rules, Way};
use gate::Gate;
use observer::Observer;
use progress::Progress;
use report::Comparison;
use server::Server;

/// Most clients.
const MOST_CLIENTS: usize = 10_000;

/// Longest hold, and longest sleep between two attempts; the shortest is a millisecond.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Open files of one client: its own end, lockgate's end, and lockgate's connection to Redis.
const FILES_EACH: usize = 3;

/// How long the demo looks for other clients' commands.
const QUIET: Duration = Duration::from_millis(250);

/// Bound on removing the keys.
const CLEAN_WITHIN: Duration = Duration::from_secs(2);

/// The arguments of the demo.
#[derive(Debug, Clone, Args)]
pub(crate) struct Arguments {
    /// The Redis to measure with, as in lockgate's own --upstream; without it the demo starts one
    ///
    /// Certificates and a password can be in the environment, as LOCKGATE_UPSTREAM_CA and
    /// LOCKGATE_UPSTREAM_PASSWORD. The demo uses three keys named lockgate:demo:… there, and removes them at the end.
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Number of clients that want the lock, from 1 to 10000
    #[arg(long, value_name = "N", default_value = "100", value_parser = clients)]
    clients: usize,
    /// How long each client holds it, from 1ms to 10s
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = pause)]
    hold: Duration,
    /// How long a spinning client sleeps between two attempts, from 1ms to 10s
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = pause)]
    poll: Duration,
}

/// The reason why there is no comparison.
#[derive(Debug, Error)]
enum Failure {
    /// The arguments do not go together.
    #[error("{0}")]
    Wrong(String),
    /// The upstream is refused.
    #[error("{0}")]
    Configuration(#[from] config::Error),
    /// A TLS file cannot be used.
    #[error("{0}")]
    Tls(#[from] lockgate::error::Error),
    /// No server is installed, and none was named.
    #[error(
        "there is no redis-server (or valkey-server) here to show it with. Install one:\n\n  \
         Debian, Ubuntu  apt-get install redis-server\n  \
         Fedora, RHEL    dnf install redis      (or valkey)\n  \
         Alpine          apk add redis          (or valkey)\n  \
         Arch            pacman -S valkey\n  \
         macOS           brew install redis\n\n\
         or name one that is running:\n\n  \
         lockgate demo --upstream redis://127.0.0.1:6379"
    )]
    NoServer,
    /// The installed server does not start.
    #[error("{} does not start: {said}", program.display())]
    NotStarted {
        /// The server.
        program: PathBuf,
        /// Its last line of output.
        said: String,
    },
    /// Redis cannot be reached, or refuses a command.
    #[error("Redis: {trouble}{}", hint(trouble))]
    Redis {
        /// The reason.
        trouble: Trouble,
    },
    /// The same for the lockgate in front of it.
    #[error("through lockgate: {0}")]
    Lockgate(Trouble),
    /// A signal ended the demo.
    #[error("ended before it was done{}", if *.is_clean { "; nothing is left of it" } else { "" })]
    Interrupted {
        /// Whether no key is left in Redis.
        is_clean: bool,
    },
    /// The system lacks a resource.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Failure {
    fn interrupted() -> Self {
        Self::Interrupted { is_clean: false }
    }

    fn redis(trouble: Trouble) -> Self {
        Self::Redis { trouble }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Wrong(_) => Exit::Wrong,
            Self::Configuration(error) => Exit::of_configuration(error),
            Self::Tls(error) => Exit::of_gate(error),
            Self::NoServer => Exit::NoServer,
            Self::Redis { .. } => Exit::NoRedis,
            Self::Interrupted { .. } => Exit::Interrupted,
            Self::NotStarted { .. } | Self::Lockgate(_) | Self::System(_) => Exit::Failed,
        }
    }
}

/// Returns a hint at a remedy.
fn hint(trouble: &Trouble) -> &'static str {
    match trouble {
        Trouble::Said(text) if text.starts_with("NOAUTH") || text.starts_with("WRONGPASS") => {
            "\n(a user and password can be in the URL, or the password in LOCKGATE_UPSTREAM_PASSWORD)"
        }
        Trouble::Said(text) if text.starts_with("NOPERM") => {
            "\n(the demo needs what docs/access.md says that who locks needs, INFO, and the keys lockgate:demo:*)"
        }
        _ => "",
    }
}

/// Whether a signal asked the demo to end.
#[derive(Clone)]
struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Handles Ctrl-C, a closed terminal, and a service manager's signal.
    fn on_signals() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (tell, told) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                tell.send_replace(true);
            }
        });
        Ok(Self(told))
    }

    /// Waits for such a signal.
    async fn told(&self) {
        // The sending task lives as long as the runtime.
        let _ = self.0.clone().wait_for(|told| *told).await;
    }
}

/// Runs the demo.
pub(crate) fn run(arguments: Arguments) -> Exit {
    let shown = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::from)
        .and_then(|runtime| {
            let shown = runtime.block_on(show(arguments));
            // Does not wait for a name lookup that is still running.
            runtime.shutdown_background();
            shown
        });
    match shown {
        Ok(()) => Exit::Done,
        // A reader such as `head` may close the pipe early.
        Err(Failure::System(error)) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(failure) => {
            eprintln!("lockgate demo: {failure}");
            failure.exit()
        }
    }
}

async fn show(arguments: Arguments) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let keys = Keys::new();
    let rules = rules(&arguments)?;
    make_room(rules.clients)?;
    let (config, redis, server) = match &arguments.upstream {
        Some(url) => {
            let (config, redis) = configuration(url, &keys, about_upstream())?;
            (config, redis, None)
        }
        None => {
            let program = server::installed().ok_or(Failure::NoServer)?;
            let server = Server::start(&program, rules.clients);
            let server = unless(&stop, server).await?;
            let url = format!("redis://{}", server.address());
            let (config, redis) = configuration(&url, &keys, iter::empty())?;
            (config, redis, Some(server))
        }
    };
    let tls = lockgate::tls_to_redis(&config)?;
    let target = Target {
        endpoint: Endpoint::new(redis.place, tls.clone()),
        user: redis.user,
        password: redis.password,
        within: config.upstream.connect_timeout,
    };
    let stage = Stage {
        rules,
        stop,
        config,
        tls,
        target,
        keys,
        is_own: server.is_some(),
        upstream: arguments.upstream,
    };
    let observer = unless(&stage.stop, stage.observer()).await?;
    let result = stage.perform(observer).await;
    let is_clean = stage.clean().await;
    // Only after its keys are removed.
    drop(server);
    result.map_err(|failure| match failure {
        Failure::Interrupted { .. } => Failure::Interrupted { is_clean },
        failure => failure,
    })
}

/// Everything that a run needs.
struct Stage {
    rules: Rules,
    stop: Stop,
    config: Config,
    tls: Option<Arc<TlsClient>>,
    target: Target,
    keys: Keys,
    /// Whether the demo started the Redis.
    is_own: bool,
    upstream: Option<String>,
}

/// The keys of the locks, one for each way, all of which contain a unique name.
struct Keys([String; 3]);

impl Keys {
    fn new() -> Self {
        let name = uuid::Uuid::new_v4().simple();
        Self(Way::ALL.map(|way| format!("lockgate:demo:{name}:{}", way.name())))
    }

    fn of(&self, way: Way) -> &str {
        &self.0[way as usize]
    }
}

impl Stage {
    /// Connects an observer. If that fails, there is nothing to clean up yet.
    async fn observer(&self) -> Result<Observer, Failure> {
        let observer = Observer::connect(&self.target).await;
        observer.map_err(|trouble| match trouble {
            Trouble::Broken(error) => {
                let text = format!("cannot connect to {}: {error}", self.config.upstream.url);
                Failure::redis(io::Error::new(error.kind(), text).into())
            }
            other => Failure::redis(other),
        })
    }

    async fn perform(&self, mut observer: Observer) -> Result<(), Failure> {
        let rules = self.rules;
        let others = unless(&self.stop, self.look_around(&mut observer)).await?;
        let redis = &self.target;
        let mut contest =
            async |way, target, lockgate| self.contest(way, target, lockgate, &mut observer).await;
        let spinning = contest(Way::Spinning, redis, None).await?;
        let gate = Gate::start(self.config.clone(), self.tls.clone()).await?;
        let target = gate.target(redis);
        unless(&self.stop, async {
            let tried = self.try_lockgate(&target).await;
            tried.map_err(Failure::Lockgate)
        })
        .await?;
        let metrics = Some(gate.metrics());
        let absorbed = contest(Way::Absorbed, &target, metrics).await?;
        let lock = contest(Way::Lock, &target, metrics).await?;
        let comparison = Comparison {
            rules,
            outcomes: [spinning, absorbed, lock],
            others,
            upstream: self
                .upstream
                .as_ref()
                .map(|_| self.config.upstream.url.to_string()),
        };
        say(&comparison.text())
    }

    /// Takes both locks once through lockgate, which has then been running for a while.
    async fn try_lockgate(&self, target: &Target) -> Result<(), Trouble> {
        gate::try_once(target, self.keys.of(Way::Lock)).await?;
        let mut client = Observer::connect(target).await?;
        contest::try_once(&mut client, self.keys.of(Way::Absorbed)).await
    }

    /// Checks Redis's version and room for clients, and that it permits the demo's commands. Returns how many
    /// commands other clients sent in [`QUIET`].
    async fn look_around(&self, observer: &mut Observer) -> Result<u64, Failure> {
        let tried = async {
            let first = observer.look().await?;
            contest::try_once(observer, self.keys.of(Way::Spinning)).await?;
            Ok(first)
        };
        let first = tried.await.map_err(Failure::redis)?;
        let needed = self.rules.clients + 1;
        if let Some(most) = first.most_clients
            && most < first.clients + needed
        {
            return Err(Failure::Wrong(format!(
                "{} clients are more than this Redis takes: it has {} of at most {most} (maxclients)",
                self.rules.clients, first.clients
            )));
        }
        let place = match self.is_own {
            true => format!(
                "{}, started for this, at {}",
                first.server, self.config.upstream.url
            ),
            false => format!("{} at {}", first.server, self.config.upstream.url),
        };
        say(&report::introduction(self.rules, &place))?;
        let before = observer.look().await.map_err(Failure::redis)?;
        sleep(QUIET).await;
        let after = observer.look().await.map_err(Failure::redis)?;
        Ok(before.others_until(&after))
    }

    async fn contest(
        &self,
        way: Way,
        target: &Target,
        lockgate: Option<&UpstreamMetrics>,
        observer: &mut Observer,
    ) -> Result<Outcome, Failure> {
        let contest = Contest {
            rules: self.rules,
            way,
            target,
            lockgate,
            key: self.keys.of(way),
        };
        let done = Arc::new(AtomicUsize::new(0));
        let bar = Progress::start(
            way.name(),
            way.color().1,
            self.rules.clients,
            Arc::clone(&done),
        );
        let outcome = contest.run(observer, done, &self.stop).await;
        drop(bar);
        let outcome = outcome?;
        say(&report::line(way, self.rules, &outcome))?;
        Ok(outcome)
    }

    /// Removes the keys. Returns whether nothing is left. If Redis has gone away, the keys expire or went with it.
    async fn clean(&self) -> bool {
        let removed = async {
            let mut observer = Observer::connect(&self.target).await?;
            let [spinning, absorbed, lock] = &self.keys.0;
            observer.call(&["DEL", spinning, absorbed, lock]).await
        };
        let is_clean = matches!(timeout(CLEAN_WITHIN, removed).await, Ok(Ok(_)));
        if !is_clean && !self.is_own {
            eprintln!(
                "lockgate demo: cannot remove {}, which expire within 30 s",
                self.keys.0.join(", ")
            );
        }
        is_clean || self.is_own
    }
}

/// Runs `what`, unless a signal ends the demo first.
async fn unless<T>(
    stop: &Stop,
    what: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = what => done,
        () = stop.told() => Err(Failure::interrupted()),
    }
}

/// Prints text, without colours where they are not wanted or cannot be shown.
fn say(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn clients(text: &str) -> Result<usize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=MOST_CLIENTS).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {MOST_CLIENTS} is allowed"))
}

fn pause(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(1)..=LONGEST_PAUSE;
    let pause = humantime::parse_duration(text).ok();
    let pause = pause.filter(|pause| allowed.contains(pause));
    pause.ok_or_else(|| "a time from 1ms to 10s is allowed, with its unit".to_owned())
}

/// Checks the rules: even without lost time, the contest has to end within its bound.
fn rules(arguments: &Arguments) -> Result<Rules, Failure> {
    let rules = Rules {
        clients: arguments.clients,
        hold: arguments.hold,
        poll: arguments.poll,
    };
    let clients = u32::try_from(rules.clients).unwrap_or(u32::MAX);
    let least = rules.hold.saturating_mul(clients);
    if least > LONGEST {
        let shown = humantime::format_duration;
        return Err(Failure::Wrong(format!(
            "{clients} clients that hold the lock {} each need {}, and a contest is stopped after {}: take \
             fewer, or a shorter --hold",
            shown(rules.hold),
            shown(least),
            shown(LONGEST)
        )));
    }
    Ok(rules)
}

/// Raises the limit of open files to what the clients need.
fn make_room(clients: usize) -> Result<(), Failure> {
    let needed = clients * FILES_EACH + OWN_FILES;
    let allowed = files::raise(needed);
    if allowed < needed {
        let possible = allowed.saturating_sub(OWN_FILES) / FILES_EACH;
        return Err(Failure::Wrong(format!(
            "{clients} clients take {needed} open files, and the system allows {allowed} (ulimit -n): take \
             --clients {possible} at most"
        )));
    }
    Ok(())
}

/// Returns lockgate's configuration for this upstream, with the defaults for everything but `absorb.keys`, and the
/// Redis.
fn configuration(
    url: &str,
    keys: &Keys,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(Config, RedisAddress), Failure> {
    let flags = Flags {
        upstream: Some(url.to_owned()),
        ..Flags::default()
    };
    let config = ConfigBuilder::from(flags)
        .environment(environment)
        .set("absorb.keys", keys.of(Way::Absorbed))
        .build()?;
    match config.upstream.url.clone() {
        Upstream::Redis(redis) => Ok((config, redis)),
        Upstream::Embedded => Err(Failure::Wrong(
            "--upstream embedded has no Redis to compare with".to_owned(),
        )),
    }
}

/// Returns the environment's settings of the upstream, except its URL.
fn about_upstream() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name.starts_with("LOCKGATE_UPSTREAM_") && name != "LOCKGATE_UPSTREAM_URL"
    })
}
