//! The program: flags, environment and file become a checked [`Config`], which
//! [`lockgate::run`] serves until SIGTERM or SIGINT. SIGHUP has it read the certificates again; who says
//! SIGTERM or SIGINT twice does not wait for clients to be done.
//!
//! A wrong configuration is one line on the standard error stream before anything listens. What the exit
//! codes mean is in [`program::exit`].

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::Arc,
};

use clap::Parser;
use lockgate::{
    config::{Config, Flags},
    files,
};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
    sync::Notify,
};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

mod demo;
mod program;

use program::{
    arguments::{self, Arguments, Command},
    check,
    exit::Exit,
};

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
            log_to_stderr("error");
            demo::run(arguments)
        }
        None if check_config => check::check(flags, std::env::vars_os()),
        None => serve(flags),
    };
    exit.into()
}

/// Serves until told to end.
fn serve(flags: Flags) -> Exit {
    let mut config = match Config::load(flags, std::env::vars_os()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("lockgate: {error}");
            return Exit::of_configuration(&error);
        }
    };
    log_to_stderr(&config.log);
    files::make_room_for_clients(&mut config);
    let served = runtime(config.threads).and_then(|runtime| runtime.block_on(run(config)));
    served.unwrap_or_else(|error| {
        error!("{error}");
        Exit::Failed
    })
}

/// For people on a terminal, for machines (one JSON object a line) anywhere else.
fn log_to_stderr(directive: &str) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(directive))
        .with_writer(io::stderr);
    if io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
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
async fn run(config: Config) -> io::Result<Exit> {
    let mut end = ToldToEnd::new()?;
    let mut hangup = signal(SignalKind::hangup())?;
    let reload = Arc::new(Notify::new());
    let reloader = Arc::clone(&reload);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            info!("SIGHUP: reading the certificates again");
            reloader.notify_one();
        }
    });
    let draining = Notify::new();
    let twice = async {
        info!("{}: shutting down", end.told().await);
        draining.notify_one();
        warn!("{}: not waiting for clients to be done", end.told().await);
    };
    Ok(tokio::select! {
        ended = lockgate::run(config, draining.notified(), &reload) => match ended {
            Ok(ended) if ended.cut > 0 => Exit::ClientsCut,
            Ok(_) => Exit::Done,
            Err(error) => {
                error!("{error}");
                Exit::of_gate(&error)
            }
        },
        () = twice => Exit::ClientsCut,
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
}
