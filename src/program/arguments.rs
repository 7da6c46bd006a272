//! How the program is called. Without a subcommand it serves.

use std::io::{self, Write};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use lockgate::config::Flags;

use super::exit;
use crate::demo;

/// The version, and the commit that it was built of where that is known (`build.rs`).
pub(crate) const VERSION: &str = env!("VERSION_WITH_COMMIT");

/// A proxy in front of Redis that adds LOCK, TRYLOCK, RELOCK and UNLOCK with waiting queues.
///
/// Every key of the configuration file can also be given by the environment: `lock.lease` as
/// LOCKGATE_LOCK_LEASE. A flag goes before the environment, the environment before the file.
#[derive(Debug, Parser)]
#[command(name = "lockgate", version = VERSION, after_long_help = exit::HELP)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) flags: Flags,
    /// Only tell whether the configuration is right and every file that it names can be used
    ///
    /// Nothing is connected to and nothing is listened on. Each thing that is wrong is a line on the standard
    /// error stream, and the exit code is what it would be without this flag.
    #[arg(long)]
    pub(crate) check_config: bool,
}

/// What there is beside serving.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show on this terminal what lockgate does for a Redis: clients that spin, and clients that wait in it
    Demo(demo::Arguments),
    /// Print what a shell needs to complete the flags of lockgate
    ///
    /// For example: lockgate completions bash > /etc/bash_completion.d/lockgate
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Prints what this shell needs to complete the flags.
pub(crate) fn print_completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "lockgate", &mut script);
    // Whoever reads only the beginning of it wants no more.
    let _ = io::stdout().write_all(&script);
}
