//! What a stranger can bring about as often as he likes is logged once a minute at most, or he fills the
//! disk; how often it happened, the counters tell.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock;

/// How long nothing is logged after something was.
const PAUSE_MS: u64 = 60_000;

/// One kind of line in the log.
#[derive(Debug, Default)]
pub struct Seldom {
    /// The time of the last one in milliseconds and one more; zero before the first.
    last_ms: AtomicU64,
}

impl Seldom {
    /// Whether to log now.
    pub fn is_due(&self) -> bool {
        self.is_due_at(clock::now().micros() / 1_000)
    }

    fn is_due_at(&self, now_ms: u64) -> bool {
        let last = self.last_ms.load(Ordering::Relaxed);
        let due = last == 0 || now_ms + 1 >= last.saturating_add(PAUSE_MS);
        // Of several at the same time one logs.
        due && (self.last_ms)
            .compare_exchange(last, now_ms + 1, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute() {
        let seldom = Seldom::default();
        let due: Vec<_> = [0, 1, 59_999, 60_000, 60_001, 119_999, 300_000]
            .map(|now| seldom.is_due_at(now))
            .to_vec();
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
