//! lockgate's reading of the wire, held against a real Redis: whether both see the same frames,
//! and whether the replies that Redis owes are counted to the last one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // they are tests

mod counting;
mod rooms;

mod redis;
