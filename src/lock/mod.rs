//! The wait queue of one lock, as a state machine. Events go in with the time, and actions come out. The module does no
//! I/O, reads no clock, and takes all randomness from the driver's seed, so that a test or a seeded simulator can drive
//! it.
//!
//! - [`event`]: every event ([`Event`]) and every action ([`Action`]); both enums are closed.
//! - [`store_request`]: every request to the store ([`StoreRequest`]), and its replies.
//! - [`queue`]: [`Queue`], one lock: its waiters, its presumed holder, and the store request in flight.
//! - [`wait_queue`]: the waiters, in order.
//! - [`lease`]: the lease that this instance granted.
//! - [`backoff`]: the delay before the next attempt to acquire the lock.
//! - [`fault`]: faults that tests plant to prove that their checkers catch them.

pub mod backoff;
pub mod event;
pub mod fault;
pub mod lease;
pub mod queue;
pub mod store_request;
pub mod wait_queue;

pub use event::*;
pub use queue::{BELIEF_MS, LAST_LOOK_PART, Queue, Resting, Snapshot};
pub use store_request::*;
