//! From when on a wait or a hold is logged: `log_slow_wait` and `log_slow_hold`, which a reload changes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The thresholds of the lines about long waits and holds. By default there are no such lines.
#[derive(Debug)]
pub struct SlowLog {
    wait_ms: AtomicU64,
    hold_ms: AtomicU64,
}

/// The threshold that nothing reaches.
const OFF: u64 = u64::MAX;

impl SlowLog {
    /// Logs waits and holds from these durations on. `None`: none.
    pub fn change(&self, wait: Option<Duration>, hold: Option<Duration>) {
        let ms = |it: Option<Duration>| {
            it.map_or(OFF, |it| u64::try_from(it.as_millis()).unwrap_or(OFF))
        };
        self.wait_ms.store(ms(wait), Ordering::Relaxed);
        self.hold_ms.store(ms(hold), Ordering::Relaxed);
    }

    /// Returns the wait from which on a line is due, in milliseconds; zero for every wait.
    pub fn wait_ms(&self) -> u64 {
        self.wait_ms.load(Ordering::Relaxed)
    }

    /// Returns the hold from which on a line is due, in milliseconds; zero for every hold.
    pub fn hold_ms(&self) -> u64 {
        self.hold_ms.load(Ordering::Relaxed)
    }
}

impl Default for SlowLog {
    fn default() -> Self {
        let off = || AtomicU64::new(OFF);
        Self {
            wait_ms: off(),
            hold_ms: off(),
        }
    }
}
