//! The program: flags, environment and file become a checked [`Config`], which [`lockgate::run`] serves until
//! SIGTERM or SIGINT. On SIGHUP the program reads the configuration again. A second SIGTERM or SIGINT exits without
//! waiting for clients.
//!
//! A wrong configuration prints one line to standard error before anything listens. [`cli::exit`] defines the
//! exit codes.

use std::{
    cell::Cell,
    convert::Infallible,
    future::pending,
    io,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use lockgate::{
    Config, Embedder, Error, Listening,
    config::{Flags, LogFormat},
    server::files,
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, oneshot},
};
use tracing::{error, info, warn};

mod cli;
mod demo;

use cli::{
    arguments::{self, Arguments, Command},
    banner, check, doctor,
    exit::Exit,
    health,
    log::Log,
    reload::{Began, Reloader},
    service,
};

/// Most of what lockgate allocates lives for one command, and musl's own allocator has one lock for all threads. See
/// docs/decisions.md.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Signals that arrive within this time count as one.
const ONE_TIME: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let Arguments {
        command,
        flags,
        check_config,
    } = Arguments::parse();
    let exit = match command {
        Some(Command::Completions { shell }) => {
            arguments::print_completions(shell);
            Exit::Done
        }
        Some(Command::Doctor(flags)) => doctor::run(flags, std::env::vars_os()),
        Some(Command::Health(flags)) => health::run(flags, std::env::vars_os()),
        Some(Command::Man { directory }) => match arguments::write_manual(&directory) {
            Ok(()) => Exit::Done,
            Err(error) => {
                eprintln!("lockgate: {}: {error}", directory.display());
                Exit::Failed
            }
        },
        Some(Command::Demo(arguments)) => {
            Log::start("error", LogFormat::Auto);
            demo::run(arguments)
        }
        None if check_config => check::check(flags, std::env::vars_os()),
        None => serve(flags),
    };
    exit.into()
}

/// Serves until a signal ends it.
fn serve(flags: Flags) -> Exit {
    // First of all: a file that this process opens later could get the number of a socket that was handed over.
    let sockets = service::sockets();
    let (mut config, said) = match Config::read(flags.clone(), std::env::vars_os()) {
        Ok(read) => read,
        Err(error) => {
            check::tell(&error);
            return Exit::of_configuration(&error);
        }
    };
    let log = Log::start(&config.log, config.log_format);
    let sockets = match sockets.map_err(Error::HandedOver) {
        Ok(sockets) => sockets,
        Err(error) => {
            error!("{error}");
            return Exit::of_gate(&error);
        }
    };
    files::make_room_for_clients(&mut config);
    let began_with = Began {
        said,
        asks_for_password: config.password.is_some(),
    };
    let (embedder, reloads) = Embedder::default().sockets(sockets).reloads();
    let reloader = Reloader::new(flags, began_with, log, reloads);
    let served = runtime(config.threads).and_then(|runtime| {
        let served = runtime.block_on(run(config, embedder, reloader));
        // Does not wait for a name lookup that is still running.
        runtime.shutdown_background();
        served
    });
    served.unwrap_or_else(|error| {
        error!("{error}");
        Exit::Failed
    })
}

/// Builds the runtime. With one thread, clients are served in the order in which their bytes arrived, as in Redis.
/// (In tokio's multi-threaded scheduler each thread serves the latest arrival first.)
fn runtime(threads: usize) -> io::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build()
}

/// Runs lockgate and handles the operator's signals. Fails where the system refuses a signal handler.
async fn run(config: Config, embedder: Embedder, reloader: Reloader) -> io::Result<Exit> {
    let mut end = ToldToEnd::new()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (listening, listens) = oneshot::channel();
    let embedder = embedder.on_listening(ready(config.clone(), listening));
    let drain = Cell::new(config.drain);
    let reload = async {
        // A SIGHUP that comes earlier takes effect once the instance listens.
        let Ok(status) = listens.await else {
            return pending::<Infallible>().await;
        };
        while hangup.recv().await.is_some() {
            service::reloading();
            if let Some(config) = reloader.reload().await {
                drain.set(config.drain);
            }
            service::ready(&status);
        }
        pending().await
    };
    let draining = Notify::new();
    let twice = async {
        // Awaited outside the macro: a disabled log level does not evaluate its arguments.
        let signal = end.told().await;
        info!("{signal}: shutting down");
        service::stopping(drain.get());
        draining.notify_one();
        let signal = end.told_again().await;
        warn!("{signal}: not waiting for clients to be done");
    };
    Ok(tokio::select! {
        biased;
        ended = lockgate::run(config, embedder, draining.notified()) => match ended {
            Ok(ended) if ended.cut > 0 => Exit::ClientsCut,
            Ok(_) => Exit::Done,
            Err(error) => {
                error!("{}", reloader.explain(&error));
                Exit::of_gate(&error)
            }
        },
        () = twice => Exit::ClientsCut,
        never = reload => match never {},
    })
}

/// Builds the callback that informs people and the service manager once clients can connect; `listening` gets the
/// status.
fn ready(
    config: Config,
    listening: oneshot::Sender<String>,
) -> impl FnOnce(Listening<'_>) + Send + 'static {
    move |listening_on| {
        let places: Vec<_> = listening_on
            .clients
            .iter()
            .map(ToString::to_string)
            .collect();
        let status = format!(
            "listening on {}; upstream {}",
            places.join(", "),
            config.upstream.url
        );
        banner::show(&config, listening_on);
        service::ready(&status);
        // The receiver may be gone.
        let _ = listening.send(status);
    }
}

/// The signals that end the program.
struct ToldToEnd {
    terminate: Signal,
    interrupt: Signal,
}

impl ToldToEnd {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next of these signals and returns its name.
    async fn told(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for another signal. Those within [`ONE_TIME`] repeat the first one: a wrapper (`timeout`, a shell)
    /// passes on a signal that its whole process group already received.
    async fn told_again(&mut self) -> &'static str {
        let first = Instant::now();
        loop {
            let signal = self.told().await;
            if first.elapsed() >= ONE_TIME {
                return signal;
            }
        }
    }
}
