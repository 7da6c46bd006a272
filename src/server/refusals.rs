//! Who was refused is in the log, each by a line of its own; but whoever knocks without end fills no
//! disk with it.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::warn;

use crate::transport::listener::Peer;

/// Lines in the log within [`WINDOW`]; the others are counted only.
const LINES: u32 = 20;

/// Over how long lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Tells the log of clients that were refused.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    refused: u32,
}

impl Refusals {
    /// This client was refused.
    pub(super) fn tell(&self, peer: &Peer, why: &impl fmt::Display) {
        let untold = {
            let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match window.count(Instant::now()) {
                Some(untold) => untold,
                None => return,
            }
        };
        if untold > 0 {
            warn!("{untold} more clients were refused within a second");
        }
        warn!(client = %peer, "a client was refused: {why}");
    }
}

impl Window {
    /// One more. Whether it is told of, and then how many were not before.
    fn count(&mut self, now: Instant) -> Option<u32> {
        let mut untold = 0;
        if self.began.is_none_or(|began| now - began >= WINDOW) {
            untold = self.refused.saturating_sub(LINES);
            *self = Self {
                began: Some(now),
                refused: 0,
            };
        }
        self.refused = self.refused.saturating_add(1);
        (self.refused <= LINES).then_some(untold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knocks_without_end_is_counted() {
        let (start, mut window) = (Instant::now(), Window::default());
        let told = (0..1_000).filter(|_| window.count(start).is_some()).count();
        assert_eq!(told, LINES as usize);
        assert_eq!(window.count(start + WINDOW), Some(1_000 - LINES));
        assert_eq!(window.count(start + WINDOW), Some(0));
        assert_eq!(window.count(start + 2 * WINDOW), Some(0));
    }
}
