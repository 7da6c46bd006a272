//! What is measured, as Prometheus reads it (text format 0.0.4): `GET /metrics` on the admin address.
//!
//! - [`exposition`]: families of samples, and how they are written.
//! - [`histogram`]: how often something took how long.
//! - [`process`]: what every process tells: its time, its memory, its files.
//!
//! Who does something counts it, by an atomic number of its own; nothing is computed before somebody
//! asks. Names and units follow Prometheus's conventions: `_total` for what only grows, seconds and
//! bytes. No lock's name, no user, token or address is a label: they are secret, and without bound.

use std::sync::atomic::Ordering;

use crate::client::Shared;

pub mod exposition;
pub mod histogram;
mod process;

use exposition::{Family, Sample};

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Everything that is measured.
pub fn text(shared: &Shared) -> String {
    exposition::text(&families(shared))
}

/// The same, before it is written.
pub fn families(shared: &Shared) -> Vec<Family> {
    let mut families = about(shared);
    families.extend(process::families(shared.started_at));
    families
}

fn about(shared: &Shared) -> Vec<Family> {
    let gate = &shared.gate;
    let reasons = shared.counters().each();
    let refusals = reasons.map(|(reason, _, count)| Sample::of("reason", reason, count));
    vec![
        Family::gauges(
            "lockgate_build_info",
            "Always 1; what is running is in its labels.",
            vec![Sample::of("version", env!("CARGO_PKG_VERSION"), 1)],
        ),
        Family::gauge(
            "lockgate_clients",
            "Clients connected now.",
            shared.clients.load(Ordering::Relaxed),
        ),
        Family::gauge(
            "lockgate_clients_limit",
            "Clients that may be connected (limits.clients).",
            shared.live.most_clients(),
        ),
        Family::gauge(
            "lockgate_locks",
            "Locks that this gate knows of: held, waited for, or being asked about.",
            gate.known(),
        ),
        Family::gauge(
            "lockgate_waiters",
            "Requests that wait for a lock now.",
            gate.waiters(),
        ),
        Family::counters(
            "lockgate_refusals_total",
            "What was refused, closed, held back or forgotten, by reason: the counters of INFO lockgate.",
            refusals.collect(),
        ),
    ]
}

#[cfg(test)]
mod tests;
