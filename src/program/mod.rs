//! What the program has that the library has not: how it is called, and what its end tells.
//!
//! - [`arguments`] are the flags and subcommands.
//! - [`exit`] has the exit codes.
//! - [`check`] is for `--check-config`.

pub(crate) mod arguments;
pub(crate) mod check;
pub(crate) mod exit;
