//! Much of everything: long values, many commands at once, thousands of clients. What it costs is
//! bounded, and grows no faster than what is asked for.

mod arrival;
mod commands;
mod cost;
mod idle;
mod many_instances;
mod replicas;
mod values;

use std::{
    io::Write,
    net::TcpStream,
    thread::{self, JoinHandle},
};

use crate::support::Lockgate;

const MIB: u64 = 1024 * 1024;

/// What one client may cost at most, whatever it does.
const MOST_GROWTH_BYTES: u64 = 8 * MIB;

/// Writes all of it at once, which ends when the server has taken it, or takes no more.
pub(crate) fn pour(mut writer: TcpStream, bytes: Vec<u8>) -> JoinHandle<()> {
    writer.set_write_timeout(None).unwrap();
    thread::spawn(move || drop(writer.write_all(&bytes)))
}

/// The most memory that the gate needed for this, beyond what it had.
pub(crate) fn growth(gate: &Lockgate, what: impl FnOnce()) -> u64 {
    gate.forget_peak();
    let before = gate.rss_bytes();
    what();
    gate.peak_bytes().saturating_sub(before)
}
