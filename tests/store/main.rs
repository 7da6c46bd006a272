//! The stores, by what they promise the queue: the same questions to Redis and to memory, then what
//! only Redis can do: push, break, hang, refuse.

// Tests may panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bed;
mod failures;
mod fences;
mod forgetting;
mod network;
mod pushes;
mod questions;
mod redis;
mod refusals;
