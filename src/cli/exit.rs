//! Exit codes: service managers restart on some and not on others (`config/lockgate.service`), and a script learns
//! what to look at.

use std::process::ExitCode;

use lockgate::{ConfigError, Error};

/// How the program ended. `clap` also exits with 2 where the flags are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The program did what was asked.
    Done,
    /// The system failed while the program ran, `lockgate health` got no answer, or `lockgate doctor` found that no lock
    /// can be taken.
    Failed,
    /// Wrong use: a flag, a variable or the configuration file. A restart does not help.
    Wrong,
    /// An address or a socket cannot be listened on. A restart may help.
    CannotListen,
    /// A file that the configuration names cannot be used: a certificate, a key, a password. A restart does not
    /// help.
    UselessFile,
    /// A signal ended the program, but clients were disconnected: they were not done within `drain`, or a second
    /// signal came.
    ClientsCut,
    /// `lockgate demo` found no Redis server installed here.
    NoServer,
    /// `lockgate demo` cannot reach Redis, or Redis refuses what it asks.
    NoRedis,
    /// `lockgate doctor` found that locks work with less comfort or less safety.
    Degraded,
    /// A signal ended `lockgate demo` early; 130 is what shells have for Ctrl-C.
    Interrupted,
}

/// The text about exit codes in `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  failed while running; health: no answer; doctor: a lock cannot be taken
  2  wrong use: a flag, a variable of the environment, or the configuration file
  3  an address or a socket cannot be listened on
  4  a file that the configuration names is of no use: a certificate, a key or a password
  5  told to end, but clients were cut that were not done within `drain`, or when told twice
  6  demo: no Redis server is installed here, and none was named
  7  demo: Redis cannot be reached, or refuses what is asked
  8  doctor: locks work, with less comfort or less safety
  130  demo: ended before it was done";

impl Exit {
    /// Returns the exit for a configuration that is refused.
    pub(crate) fn of_configuration(error: &ConfigError) -> Self {
        match error {
            ConfigError::UselessFile { .. } => Self::UselessFile,
            _ => Self::Wrong,
        }
    }

    /// Returns the exit for an instance that cannot run.
    pub(crate) fn of_gate(error: &Error) -> Self {
        match error {
            Error::Listen { .. } | Error::HandedOver(_) => Self::CannotListen,
            Error::Tls { .. } => Self::UselessFile,
            _ => Self::Failed,
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
            Self::Degraded => 8,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
