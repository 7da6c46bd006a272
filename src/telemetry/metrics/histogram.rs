//! Histograms of durations: one number for each range. A count costs two atomic additions, which every lock
//! operation can afford.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds for how long clients wait for a lock and hold it, in microseconds: 1 ms to 10 minutes.
pub const WAITS: [u64; 18] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
];

/// Bounds for round trips to Redis, in microseconds: 100 µs to 2.5 s.
pub const ROUND_TRIPS: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000,
];

/// Counts of durations in `N` ranges, and beyond the last.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    /// The longest duration of each range, in microseconds.
    bounds: &'static [u64; N],
    counts: [AtomicU64; N],
    beyond: AtomicU64,
    sum_micros: AtomicU64,
}

/// The counts of a [`Histogram`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// The longest duration of each range, in microseconds.
    pub bounds: &'static [u64],
    /// The number of durations in each range; one more than bounds, for those beyond the last.
    pub counts: Vec<u64>,
    /// The sum of all durations, in microseconds.
    pub sum_micros: u64,
}

impl<const N: usize> Histogram<N> {
    /// Creates an empty histogram. The bounds must rise.
    pub const fn new(bounds: &'static [u64; N]) -> Self {
        Self {
            bounds,
            counts: [const { AtomicU64::new(0) }; N],
            beyond: AtomicU64::new(0),
            sum_micros: AtomicU64::new(0),
        }
    }

    /// Counts one duration.
    pub fn count(&self, micros: u64) {
        let range = self.bounds.partition_point(|bound| *bound < micros);
        let count = self.counts.get(range).unwrap_or(&self.beyond);
        count.fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the counts.
    pub fn get(&self) -> Distribution {
        let counts = self.counts.iter().chain([&self.beyond]);
        Distribution {
            bounds: self.bounds,
            counts: counts.map(|count| count.load(Ordering::Relaxed)).collect(),
            sum_micros: self.sum_micros.load(Ordering::Relaxed),
        }
    }
}

impl Distribution {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_range_that_is_not_shorter() {
        let histogram = Histogram::new(&[10, 20]);
        for micros in [0, 10, 11, 20, 21, 1_000] {
            histogram.count(micros);
        }
        let got = histogram.get();
        assert_eq!(got.counts, [2, 2, 2]);
        assert_eq!((got.count(), got.sum_micros), (6, 1_062));
    }

    #[test]
    fn bounds_rise() {
        assert!(WAITS.is_sorted_by(|a, b| a < b) && ROUND_TRIPS.is_sorted_by(|a, b| a < b));
    }
}
