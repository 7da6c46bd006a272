//! How the program ended, as a number for whoever started it: service managers restart on some and not on
//! others (`config/lockgate.service`), and a script can tell what to look at.

use std::process::ExitCode;

use lockgate::{config, error::Error};

/// The end of the program. `clap` ends it with 2, too, where the flags are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Done,
    /// The system failed us while running.
    Failed,
    /// Wrong use: a flag, a variable or the configuration file. Starting again does not help.
    Wrong,
    /// An address or a socket cannot be listened on. Starting again may help.
    CannotListen,
    /// A file that the configuration names is of no use: a certificate, a key, a password. Starting again
    /// does not help.
    UselessFile,
    /// Told to end, it did, but cut clients that were not done within `drain`, or when told twice.
    ClientsCut,
    /// `lockgate demo` found no Redis server installed here.
    NoServer,
    /// `lockgate demo` cannot reach Redis, or Redis refuses what it asks.
    NoRedis,
    /// `lockgate demo` was told to end before it was done; as shells have it for Ctrl-C.
    Interrupted,
}

/// What `--help` says of them.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  failed while running
  2  wrong use: a flag, a variable of the environment, or the configuration file
  3  an address or a socket cannot be listened on
  4  a file that the configuration names is of no use: a certificate, a key or a password
  5  told to end, but clients were cut that were not done within `drain`, or when told twice
  6  demo: no Redis server is installed here, and none was named
  7  demo: Redis cannot be reached, or refuses what is asked
  130  demo: ended before it was done";

impl Exit {
    /// That the configuration is refused.
    pub(crate) fn of_configuration(error: &config::Error) -> Self {
        match error {
            config::Error::UselessFile { .. } => Self::UselessFile,
            _ => Self::Wrong,
        }
    }

    /// That the gate cannot run.
    pub(crate) fn of_gate(error: &Error) -> Self {
        match error {
            Error::Listen { .. } | Error::HandedOver(_) => Self::CannotListen,
            Error::Tls { .. } => Self::UselessFile,
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Wrong => 2,
            Self::CannotListen => 3,
            Self::UselessFile => 4,
            Self::ClientsCut => 5,
            Self::NoServer => 6,
            Self::NoRedis => 7,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
