//! Recognises the commands by which clients of Redis take a lock without `LOCK`: `SET key token NX PX lease`, a script
//! that compares and deletes, and what well-known libraries send. Pure.
//!
//! - [`rules`]: which keys are locks, and what an attempt at one that is held gets.
//! - [`patterns`]: patterns of keys.
//! - [`shape`]: from a command to the request that it is.
//! - [`scripts`], `lua`: from the SHA1 or the text of a script to its meaning.
//! - [`reply`]: the replies that the clients expect.
//!
//! A command that is not surely understood has no shape, and passes to Redis unchanged.

mod lua;
pub mod patterns;
pub mod reply;
pub mod rules;
pub mod scripts;
pub mod shape;

pub use patterns::{KeyPatterns, PatternError};
pub use reply::{Replies, Reply};
pub use rules::{AbsorbSettings, Rules, Treatment};
pub use scripts::{Equal, ReleaseScripts, ReleaseScriptsError, Scripts};
pub use shape::{Ask, Shape};

#[cfg(test)]
mod tests;
