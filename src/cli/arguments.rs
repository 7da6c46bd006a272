//! The command line. Without a subcommand the program serves.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use lockgate::config::Flags;

use super::exit;
use crate::demo;

/// The version, with the commit that it was built from where that is known (`build.rs`).
pub(crate) const VERSION: &str = env!("VERSION_WITH_COMMIT");

/// A proxy in front of Redis that adds LOCK, TRYLOCK, RELOCK and UNLOCK with waiting queues.
///
/// Every key of the configuration file can also be set in the environment: `lock.lease` as LOCKGATE_LOCK_LEASE. A
/// flag takes precedence over the environment, the environment over the file.
#[derive(Debug, Parser)]
#[command(name = "lockgate", version = VERSION, after_long_help = exit::HELP)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    /// The subcommand, which runs instead of serving.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) flags: Flags,
    /// Validate the configuration and every file that it names, and exit
    ///
    /// lockgate neither connects nor listens. Each error is a line on standard error, and the exit code is what it
    /// would be without this flag.
    #[arg(long)]
    pub(crate) check_config: bool,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare, on this terminal, clients that spin on a Redis with clients that wait in lockgate
    Demo(demo::Arguments),
    /// Try on the Redis of this configuration what lockgate needs, and say what locks lack and what to change
    ///
    /// Takes the flags, the environment and the file of the server, and examines Redis as the user upstream.user, or
    /// without logging in. It disturbs no instance, and leaves no key behind. Exit 0: everything works; 8: locks work,
    /// with less comfort or less safety; 1: a lock cannot be taken.
    Doctor(Flags),
    /// Ask the instance of this configuration for a sign of life: exit 0 if it answers, 1 if not
    ///
    /// For container engines. Takes the flags, the environment and the file that the instance was started with. An
    /// instance answers while Redis does not; GET /readyz on the admin address reports Redis, too.
    Health(Flags),
    /// Print a shell's completion script for lockgate's flags
    ///
    /// For example: lockgate completions bash > /etc/bash_completion.d/lockgate
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write lockgate's manual pages into a directory
    ///
    /// For example: lockgate man /usr/local/share/man/man1
    Man {
        /// The directory, which has to exist
        directory: PathBuf,
    },
}

/// Prints this shell's completion script.
pub(crate) fn print_completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "lockgate", &mut script);
    // A reader such as `head` may close the pipe early.
    let _ = io::stdout().write_all(&script);
}

/// Writes the manual pages of lockgate and its subcommands into a directory.
///
/// # Errors
/// The directory cannot be written to.
pub(crate) fn write_manual(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), directory)
}
