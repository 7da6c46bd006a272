//! The heart without its body: the queue of one lock, driven by tables of scenarios, by arbitrary
//! sequences of events, and by a seeded simulator of many bad days.

mod desk;
mod properties;
mod scenarios;
mod simulator;
