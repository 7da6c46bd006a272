//! The stores, by what they promise the queue: the same store requests to Redis and to memory, then what
//! only Redis can do: push, break, hang, refuse.

// Tests may panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod failures;
mod fences;
mod fixture;
mod forgetting;
mod network;
mod pushes;
mod redis;
mod refusals;
mod store_requests;
