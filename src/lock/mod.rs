//! The heart: the queue of one lock as a state machine. Events go in with the time, actions come
//! out. It does no I/O, reads no clock and draws no random number, so that a test or a seeded
//! simulator can be its driver.
//!
//! - [`vocabulary`]: everything that can happen ([`Event`]) and everything that can be done about
//!   it ([`Action`]); both are closed.
//! - [`queue`]: [`Queue`], one lock: who waits, who is believed to hold it, what was asked.
//! - [`places`]: those who wait, in order.
//! - [`lease`]: the lease that this gate granted.
//! - [`pace`]: how long to wait before asking the store again.
//! - [`fault`]: what tests leave out to see that it is missed.

pub mod fault;
pub mod lease;
pub mod pace;
pub mod places;
pub mod queue;
pub mod vocabulary;

pub use queue::{LAST_LOOK_PART, Queue, Snapshot};
pub use vocabulary::*;
