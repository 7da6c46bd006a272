//! One connected client.
//!
//! - [`command`]: pure: the arguments of a lock command, checked.
//! - [`glob`]: pure: Redis's patterns.

pub mod command;
pub mod glob;

#[cfg(test)]
mod reply;
#[cfg(test)]
mod testing;
