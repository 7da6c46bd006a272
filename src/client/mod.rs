//! One connected client.
//!
//! - [`command`]: pure: the arguments of a lock command, checked.
//! - [`local`]: pure: the ordinary commands where there is no Redis behind this gate.
//! - [`table`]: pure: what `COMMAND` says of the commands that live here.
//! - [`glob`]: pure: Redis's patterns.
//! - [`reply`]: pure: the writer of replies.

pub mod command;
pub mod glob;
pub mod local;
pub mod reply;
pub mod table;

#[cfg(test)]
mod testing;
