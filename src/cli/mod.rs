//! The parts of the program that the library does not have: the command line, output for people and service
//! managers, and exit codes.
//!
//! - [`arguments`]: the flags and subcommands.
//! - [`exit`]: the exit codes.
//! - [`check`] implements `--check-config`; [`health`] asks a running instance for a sign of life; [`doctor`] examines
//!   Redis.
//! - [`log`]: where the log goes; [`banner`]: what people see first.
//! - [`reload`] implements SIGHUP.
//! - [`service`]: the interface to systemd.

pub(crate) mod arguments;
pub(crate) mod banner;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod exit;
pub(crate) mod health;
pub(crate) mod log;
pub(crate) mod reload;
pub(crate) mod service;
