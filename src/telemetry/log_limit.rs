//! Rate limits for log lines that clients can trigger: each kind has a bounded number of lines per minute, so that
//! clients cannot fill the disk with the log. The next line reports how many were left out; the counters report how
//! often the event happened.

use std::sync::{Mutex, PoisonError};

use crate::clock;

/// The window in which lines are counted, in milliseconds.
const WINDOW_MS: u64 = 60_000;

/// A log line with a rate limit.
#[derive(Debug)]
pub struct LogLimit {
    /// Most lines within [`WINDOW_MS`].
    most: u64,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    began_ms: Option<u64>,
    /// Lines in this window, written or left out.
    lines: u64,
    left_out: u64,
}

impl LogLimit {
    /// Creates a line that is written at most `most` times per minute.
    pub fn new(most: u64) -> Self {
        let window = Mutex::default();
        Self { most, window }
    }

    /// Returns whether to write a line now, as the number of lines left out since the last one.
    pub fn is_due(&self) -> Option<u64> {
        self.is_due_at(clock::now().micros() / 1_000)
    }

    fn is_due_at(&self, now_ms: u64) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |began| now_ms.saturating_sub(began) >= WINDOW_MS;
        if window.began_ms.is_none_or(is_over) {
            (window.began_ms, window.lines) = (Some(now_ms), 0);
        }
        window.lines += 1;
        if window.lines > self.most {
            window.left_out += 1;
            return None;
        }
        Some(std::mem::take(&mut window.left_out))
    }
}

/// A log line about an event that matters only when it is frequent: at most one line per minute, when the event has
/// happened `least` times in that minute.
#[derive(Debug)]
pub struct Often {
    least: u64,
    window: Mutex<Window>,
}

impl Often {
    /// Creates a line for an event that has to happen `least` times in a minute.
    pub fn new(least: u64) -> Self {
        let window = Mutex::default();
        Self { least, window }
    }

    /// Counts the event, and returns whether to write a line now.
    pub fn is_due(&self) -> bool {
        self.is_due_at(clock::now().micros() / 1_000)
    }

    fn is_due_at(&self, now_ms: u64) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = |began| now_ms.saturating_sub(began) >= WINDOW_MS;
        if window.began_ms.is_none_or(is_over) {
            (window.began_ms, window.lines) = (Some(now_ms), 0);
        }
        window.lines += 1;
        window.lines == self.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute_when_it_has_happened_often() {
        let often = Often::new(2);
        let due = [0, 1, 2, 60_000, 120_000, 179_999].map(|now| often.is_due_at(now));
        assert_eq!(due, [false, true, false, false, false, true]);
    }

    #[test]
    fn so_often_a_minute_and_then_how_many_were_left_out() {
        let seldom = LogLimit::new(2);
        let due: Vec<_> = [0, 1, 2, 59_999, 60_000, 60_001, 60_002, 120_000]
            .map(|now| seldom.is_due_at(now))
            .to_vec();
        let left_out_two = Some(2);
        assert_eq!(
            due,
            [
                Some(0),
                Some(0),
                None,
                None,
                left_out_two,
                Some(0),
                None,
                Some(1)
            ]
        );
    }
}
