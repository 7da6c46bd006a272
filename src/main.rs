//! The program: flags, environment and file become a checked [`Config`], which
//! [`lockgate::run`] serves until SIGTERM or SIGINT. SIGHUP has the configuration read again; who says
//! SIGTERM or SIGINT twice does not wait for clients to be done.
//!
//! A wrong configuration is one line on the standard error stream before anything listens. What the exit
//! codes mean is in [`program::exit`].

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
    config::{Config, Flags},
    error::Error,
    files,
    host::{Host, Ready, Sockets},
    reload::Order,
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::{Notify, mpsc, oneshot},
};
use tracing::{error, info, warn};

mod demo;
mod program;

use program::{
    arguments::{self, Arguments, Command},
    banner, check,
    exit::Exit,
    log::Log,
    reload::{Began, Reloader},
    service,
};

/// Signals that come within this time say one thing.
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
        Some(Command::Demo(arguments)) => {
            Log::start("error");
            demo::run(arguments)
        }
        None if check_config => check::check(flags, std::env::vars_os()),
        None => serve(flags),
    };
    exit.into()
}

/// Serves until told to end.
fn serve(flags: Flags) -> Exit {
    // First of all: later a file of ours might have the number of one.
    let sockets = service::sockets();
    let (mut config, said) = match Config::read(flags.clone(), std::env::vars_os()) {
        Ok(read) => read,
        Err(error) => {
            check::tell(&error);
            return Exit::of_configuration(&error);
        }
    };
    let log = Log::start(&config.log);
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
    let (orders, inbox) = mpsc::channel(1);
    let reloader = Reloader::new(flags, began_with, log, orders);
    let served = runtime(config.threads).and_then(|runtime| {
        let served = runtime.block_on(run(config, sockets, inbox, reloader));
        // A name that is still being looked up is not waited for.
        runtime.shutdown_background();
        served
    });
    served.unwrap_or_else(|error| {
        error!("{error}");
        Exit::Failed
    })
}

/// With one thread, clients are served in the order in which they were heard, as Redis does. (Of
/// tokio's scheduler for several, each thread serves the one heard last first.)
fn runtime(threads: usize) -> io::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(threads).enable_all().build()
}

/// Runs the gate as its operator says. Fails where the system has no signals for us.
async fn run(
    config: Config,
    sockets: Sockets,
    orders: mpsc::Receiver<Order>,
    reloader: Reloader,
) -> io::Result<Exit> {
    let mut end = ToldToEnd::new()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let (listening, listens) = oneshot::channel();
    let host = Host {
        sockets,
        orders,
        ready: ready(config.clone(), listening),
    };
    let drain = Cell::new(config.drain);
    let reload = async {
        // What comes before is done when it listens.
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
        // Named first: what is not logged is not evaluated.
        let signal = end.told().await;
        info!("{signal}: shutting down");
        service::stopping(drain.get());
        draining.notify_one();
        let signal = end.told_again().await;
        warn!("{signal}: not waiting for clients to be done");
    };
    Ok(tokio::select! {
        biased;
        ended = lockgate::run(config, host, draining.notified()) => match ended {
            Ok(ended) if ended.cut > 0 => Exit::ClientsCut,
            Ok(_) => Exit::Done,
            Err(error) => {
                error!("{error}");
                Exit::of_gate(&error)
            }
        },
        () = twice => Exit::ClientsCut,
        never = reload => match never {},
    })
}

/// What is told to people and the service manager once clients can connect; `listening` gets the status.
fn ready(config: Config, listening: oneshot::Sender<String>) -> Ready {
    Box::new(move |listening_on| {
        let places: Vec<_> = listening_on
            .clients
            .iter()
            .map(ToString::to_string)
            .collect();
        let status = format!(
            "listening on {}; upstream {}",
            places.join(", "),
            config.upstream
        );
        banner::show(&config, listening_on);
        service::ready(&status);
        // Whoever does not wait for it does not listen.
        let _ = listening.send(status);
    })
}

/// The signals that say so.
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

    /// Returns when the next of them comes, with its name.
    async fn told(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// The same for another time: what comes at once is the same time once more, by a wrapper that passes on
    /// what its whole group hears already (`timeout`, a shell).
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
