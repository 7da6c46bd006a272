//! Metrics in Prometheus's text format 0.0.4: `GET /metrics` on the admin address.
//!
//! - [`exposition`]: families of samples, and how they are written.
//! - [`histogram`]: counts of durations.
//! - [`locks`], [`absorb`], [`upstream`], [`sentinel`], [`relays`]: the metrics of locks, of absorbed commands, of
//!   lockgate's own commands to Redis, of what sentinels say, and of relayed traffic.
//! - [`process`]: the metrics of any process: time, memory, files.
//!
//! Each component counts its own work in atomic numbers; nothing is computed before a scrape. Names and units
//! follow Prometheus's conventions: `_total` for counters, seconds and bytes. No lock's name, user, token or
//! address is a label: they are secret, and unbounded.

pub mod absorb;
pub mod exposition;
pub mod histogram;
pub mod locks;
pub mod process;
pub mod relays;
pub mod sentinel;
pub mod upstream;

use absorb::AbsorbMetrics;
use exposition::{Family, Kind, Value};
use locks::LockMetrics;
use relays::RelayMetrics;
use upstream::UpstreamMetrics;

/// The media type of the text format.
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
    /// Metrics of absorbed commands.
    pub absorbed: &'a AbsorbMetrics,
}

impl Measured<'_> {
    /// Returns all families.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.locks.families();
        families.extend(self.absorbed.families());
        families.extend(self.upstream.iter().flat_map(|it| it.families()));
        families.extend(self.relays.families());
        families
    }

    /// Returns the families without histograms and times, as fields of `INFO`: `lockgate_grants_free` for
    /// `lockgate_grants_total{how="free"}`. Of the times, those that are current values have milliseconds.
    pub fn fields(&self) -> Vec<(String, u64)> {
        let mut fields = Vec::new();
        for family in self.families() {
            let Family {
                name,
                samples,
                kind,
                ..
            } = family;
            let name = name.strip_suffix("_total").unwrap_or(name);
            for sample in samples {
                let values = sample.labels.iter();
                let values: String = values.map(|(_, value)| format!("_{value}")).collect();
                match (sample.value, kind) {
                    (Value::Whole(number), _) => fields.push((format!("{name}{values}"), number)),
                    (Value::Micros(micros), Kind::Gauge) => {
                        let name = name.strip_suffix("_seconds").unwrap_or(name);
                        fields.push((format!("{name}{values}_ms"), micros / 1_000));
                    }
                    _ => {}
                }
            }
        }
        fields
    }
}
