//! The idle time of a client (`idle_timeout`, Redis's `timeout`). Activity reads the clock, and one timer per
//! client runs at most. Without a limit, neither is needed.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// One client's idle time.
pub(crate) struct Idle {
    most: Duration,
    heard_at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// Creates the idle timer of a client. `None`: `most` is zero, no limit.
    pub(crate) fn new(most: Duration) -> Option<Box<Self>> {
        (!most.is_zero()).then(|| {
            Box::new(Self {
                most,
                heard_at: Instant::now(),
                timer: Box::pin(sleep(most)),
            })
        })
    }

    /// Records that the client sent or took something.
    pub(crate) fn heard(&mut self) {
        self.heard_at = Instant::now();
    }

    /// Returns ready once the client has been idle for too long.
    pub(crate) fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            let until = self.heard_at + self.most;
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(until);
        }
    }
}
