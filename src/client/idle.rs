//! How long nothing was heard of a client (`idle_timeout`, Redis's `timeout`). The clock is looked at when
//! something is heard, and one timer per client runs at most; without a limit there is neither.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

/// One client's silence.
pub(super) struct Idle {
    most: Duration,
    heard_at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// A client that may be silent for so long. None: for ever, where that is zero.
    pub(super) fn new(most: Duration) -> Option<Box<Self>> {
        (!most.is_zero()).then(|| {
            Box::new(Self {
                most,
                heard_at: Instant::now(),
                timer: Box::pin(sleep(most)),
            })
        })
    }

    /// It sent something, or took something.
    pub(super) fn heard(&mut self) {
        self.heard_at = Instant::now();
    }

    /// Ready when it was silent for too long.
    pub(super) fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
