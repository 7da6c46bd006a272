//! The stores, by what they promise the queue: the same store requests to Redis and to memory, then what
//! only Redis can do: push, break, hang, refuse.

// Tests may panic; clippy knows that of test functions, not of their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod fixture;
mod failures;
mod fences;
mod forgetting;
mod network;
mod pushes;
mod store_requests;
mod redis;
mod refusals;
