//! Metrics in Prometheus's text format 0.0.4: `GET /metrics` on the admin address.
//!
//! - [`exposition`]: families of samples, and how they are written.
//! - [`histogram`]: counts of durations.
//! - [`locks`], [`upstream`], [`relays`]: the metrics of locks, of lockgate's own commands to Redis, and of relayed
//!   traffic.
//! - [`process`]: the metrics of any process: time, memory, files.
//!
//! Each component counts its own work in atomic numbers; nothing is computed before a scrape. Names and units
//! follow Prometheus's conventions: `_total` for counters, seconds and bytes. No lock's name, user, token or
//! address is a label: they are secret, and unbounded.

use std::sync::atomic::Ordering;

use crate::client::Shared;

pub mod exposition;
pub mod histogram;
pub mod locks;
mod process;
pub mod relays;
pub mod upstream;

use exposition::{Family, Sample, Value};
use locks::LockMetrics;
use relays::RelayMetrics;
use upstream::UpstreamMetrics;

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The sources of the metrics.
#[derive(Debug, Clone, Copy)]
pub struct Measured<'a> {
    /// Metrics of locks.
    pub locks: &'a LockMetrics,
    /// Metrics of lockgate's own commands to Redis; none where locks live in this process.
    pub upstream: Option<&'a UpstreamMetrics>,
    /// Metrics of the traffic between clients and Redis.
    pub relays: &'a RelayMetrics,
}

impl Measured<'_> {
    /// Returns all families.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.locks.families();
        families.extend(self.upstream.iter().flat_map(|it| it.families()));
        families.extend(self.relays.families());
        families
    }

    /// Returns the families without histograms, as fields of `INFO`: `lockgate_grants_free` for
    /// `lockgate_grants_total{how="free"}`.
    pub fn fields(&self) -> Vec<(String, u64)> {
        let mut fields = Vec::new();
        for Family { name, samples, .. } in self.families() {
            let name = name.strip_suffix("_total").unwrap_or(name);
            for sample in samples {
                if let Value::Whole(number) = sample.value {
                    let label = sample.label.map(|(_, value)| format!("_{value}"));
                    fields.push((format!("{name}{}", label.unwrap_or_default()), number));
                }
            }
        }
        fields
    }
}

/// Returns all metrics as text.
pub fn text(shared: &Shared) -> String {
    exposition::text(&families(shared))
}

/// Returns all metrics before they are written as text.
pub fn families(shared: &Shared) -> Vec<Family> {
    let mut families = about(shared);
    families.extend(shared.measured().families());
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
        Family::gauge(
            "lockgate_kept_reply_bytes",
            "Replies kept beyond limits.relay_bytes for clients that have not read them, of limits.kept_reply_bytes.",
            shared.budget.taken(),
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
