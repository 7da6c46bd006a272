//! Recognises the commands by which clients of Redis take a lock without `LOCK`: `SET key token NX PX lease`, a script
//! that compares and deletes, and what well-known libraries send. Pure.
//!
//! - [`patterns`]: the keys that are locks.

pub mod patterns;

pub use patterns::{KeyPatterns, PatternError};

#[cfg(test)]
mod tests;
