//! One connected client: its session, its commands, its relay to Redis. Under construction.

pub mod state;
