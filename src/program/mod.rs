//! What the program has that the library has not: how it is called, what it tells people and service managers,
//! and what its end tells.
//!
//! - [`arguments`] are the flags and subcommands.
//! - [`exit`] has the exit codes.
//! - [`check`] is for `--check-config`.
//! - [`log`] says where the log goes, [`banner`] what people see first.
//! - [`reload`] is SIGHUP.
//! - [`service`] speaks with systemd.

pub(crate) mod arguments;
pub(crate) mod banner;
pub(crate) mod check;
pub(crate) mod exit;
pub(crate) mod log;
pub(crate) mod reload;
pub(crate) mod service;
