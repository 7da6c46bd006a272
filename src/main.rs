//! The program: flags, environment and file become a checked [`Config`], which
//! [`lockgate::run`] serves until SIGTERM or SIGINT. SIGHUP has it read the certificates again.
//!
//! A wrong configuration is one line on the standard error stream and exit code 2, before anything
//! listens; a failure while running is exit code 1.

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
    signal::unix::{SignalKind, signal},
    sync::Notify,
};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

/// Wrong use, as `clap` has it too.
const WRONG_USE: u8 = 2;

fn main() -> ExitCode {
    let mut config = match Config::load(Flags::parse(), std::env::vars_os()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("lockgate: {error}");
            return ExitCode::from(WRONG_USE);
        }
    };
    log_to_stderr(&config.log);
    files::make_room_for_clients(&mut config);
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error}");
            ExitCode::FAILURE
        }
    }
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

fn serve(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    runtime(config.threads)?.block_on(until_told_to_end(config))
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

async fn until_told_to_end(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let reload = Arc::new(Notify::new());
    let reloader = Arc::clone(&reload);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            info!("SIGHUP: reading the certificates again");
            reloader.notify_one();
        }
    });
    let shutdown = async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        info!("{name}: shutting down");
    };
    Ok(lockgate::run(config, shutdown, &reload).await?)
}
