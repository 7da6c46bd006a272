//! The last minutes in numbers: one sample a second, kept even while no reader is connected, since an operator
//! often opens the page after the incident. A sample holds what was counted in its second.

use std::{
    collections::VecDeque,
    time::{Instant, SystemTime},
};

use serde_json::{Value, json};

use crate::telemetry::metrics::{Measured, histogram::Distribution, upstream::UpstreamMetrics};

/// Number of samples kept: ten minutes. Each takes some 80 bytes.
const SAMPLES: usize = 600;

/// Totals since the start.
#[derive(Debug, Clone)]
pub(super) struct Counted {
    /// Locks granted.
    pub(super) grants: u64,
    /// Commands relayed to Redis.
    pub(super) relayed: u64,
    /// lockgate's own commands to Redis; none where locks live in this process.
    pub(super) asked: Option<u64>,
    waits: Distribution,
}

/// The numbers of about one second.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Milliseconds since 1970.
    at_ms: u64,
    /// Rates per second.
    grants: f64,
    relayed: f64,
    asked: Option<f64>,
    /// At the end of the second.
    waiters: usize,
    /// Of the grants in the second, in milliseconds.
    median_wait_ms: Option<f64>,
    p99_wait_ms: Option<f64>,
}

/// The samples of the last minutes.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    before: Option<(Instant, Counted)>,
}

impl Counted {
    pub(super) fn of(measured: &Measured<'_>) -> Self {
        let waits = measured.locks.wait.get();
        Self {
            // Each grant counts its wait.
            grants: waits.count(),
            relayed: measured.relays.commands(),
            asked: measured.upstream.map(UpstreamMetrics::commands),
            waits,
        }
    }
}

impl History {
    /// Adds the sample of the second that has ended.
    pub(super) fn add(&mut self, counted: Counted, waiters: usize) {
        let now = Instant::now();
        if let Some((since, before)) = self.before.replace((now, counted.clone())) {
            let seconds = (now - since).as_secs_f64().max(f64::MIN_POSITIVE);
            let rate = |now: u64, before| now.saturating_sub(before) as f64 / seconds;
            let asked = counted.asked.zip(before.asked);
            let waited = difference(&counted.waits, &before.waits);
            let quantile = |of| waited.as_ref().map(|waited| quantile_ms(waited, of));
            if self.samples.len() >= SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample {
                at_ms: unix_ms(),
                grants: rate(counted.grants, before.grants),
                relayed: rate(counted.relayed, before.relayed),
                asked: asked.map(|(now, before)| rate(now, before)),
                waiters,
                median_wait_ms: quantile(0.5),
                p99_wait_ms: quantile(0.99),
            });
        }
    }

    /// Returns all samples, the oldest first.
    pub(super) fn all(&self) -> Value {
        self.samples.iter().map(Sample::json).collect()
    }

    /// Returns the latest sample.
    pub(super) fn latest(&self) -> Value {
        self.samples.back().map_or(Value::Null, Sample::json)
    }
}

impl Sample {
    /// Returns the sample in the order in which the page reads it: a list is shorter than an object.
    fn json(&self) -> Value {
        let short = |number: f64| (number * 10.0).round() / 10.0;
        json!([
            self.at_ms,
            short(self.grants),
            short(self.relayed),
            self.asked.map(short),
            self.waiters,
            self.median_wait_ms.map(short),
            self.p99_wait_ms.map(short),
        ])
    }
}

/// Returns the milliseconds since 1970.
pub(super) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Returns what was counted in between; none where nothing was.
fn difference(now: &Distribution, before: &Distribution) -> Option<Distribution> {
    let counts = now.counts.iter().zip(&before.counts);
    let between = Distribution {
        bounds: now.bounds,
        counts: counts
            .map(|(now, before)| now.saturating_sub(*before))
            .collect(),
        sum_micros: 0,
    };
    (between.count() > 0).then_some(between)
}

/// Returns a quantile of these times, in milliseconds. Within a range the times count as evenly spread, as in
/// Prometheus; times beyond the last range count as its end.
fn quantile_ms(times: &Distribution, part: f64) -> f64 {
    let rank = part * times.count() as f64;
    let (mut below, mut from) = (0.0, 0);
    for (bound, count) in times.bounds.iter().zip(&times.counts) {
        let count = *count as f64;
        if count > 0.0 && below + count >= rank {
            let within = (rank - below) / count;
            return (from as f64 + (*bound - from) as f64 * within) / 1_000.0;
        }
        below += count;
        from = *bound;
    }
    from as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &[u64] = &[10_000, 20_000, 40_000];

    fn distribution(counts: [u64; 4]) -> Distribution {
        Distribution {
            bounds: BOUNDS,
            counts: counts.to_vec(),
            sum_micros: 0,
        }
    }

    #[test]
    fn quantiles_lie_within_their_range() {
        let times = distribution([0, 100, 100, 0]);
        assert_eq!(quantile_ms(&times, 0.25), 15.0);
        assert_eq!(quantile_ms(&times, 0.5), 20.0);
        assert_eq!(quantile_ms(&times, 0.99), 39.6);
        assert_eq!(quantile_ms(&distribution([0, 0, 0, 5]), 0.5), 40.0);
        assert_eq!(quantile_ms(&distribution([1, 0, 0, 0]), 0.99), 9.9);
        let (before, now) = (distribution([5, 5, 0, 0]), distribution([5, 7, 0, 0]));
        assert_eq!(difference(&now, &before).unwrap().counts, [0, 2, 0, 0]);
        assert!(difference(&now, &now).is_none());
    }

    #[test]
    fn a_sample_is_what_was_counted_in_its_second_and_only_so_many_are_kept() {
        let counted = |grants| Counted {
            grants,
            relayed: 0,
            asked: None,
            waits: distribution([0; 4]),
        };
        let mut history = History::default();
        history.add(counted(1_000), 0);
        assert_eq!(history.latest(), Value::Null, "a second has a beginning");
        for second in 1..=SAMPLES as u64 + 10 {
            // However short this second is here, it had no grants.
            history.add(counted(1_000), second as usize);
        }
        let samples = history.all();
        let samples = samples.as_array().unwrap();
        assert_eq!(samples.len(), SAMPLES);
        assert_eq!(samples[0][4], 11, "the oldest go");
        assert_eq!(
            (&samples[0][1], &samples[0][3]),
            (&json!(0.0), &Value::Null)
        );
        history.add(counted(1_001), 0);
        assert!(history.latest()[1].as_f64().unwrap() > 0.0);
    }
}
