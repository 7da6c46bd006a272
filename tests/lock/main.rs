//! The heart without its body: the queue of one lock, driven by tables of scenarios, by arbitrary
//! sequences of events, and by a seeded simulator of many bad days.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // they are tests

mod acknowledgements;
mod attempts;
mod fences;
mod harness;
mod kept_places;
mod leases;
mod metrics;
mod orphaned_grants;
mod pending_ops;
mod properties;
mod recovery;
mod resting;
mod scenarios;
mod sessions;
mod simulator;
mod users;
