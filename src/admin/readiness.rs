//! Whether Redis takes locks. However many requests ask, Redis is probed at most once a second; a request during a
//! probe waits for its result. A probe finishes even where no request waits for it any more: a client that gave up
//! and asks again finds the result.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use crate::gate::Gate;

/// How long a result counts.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Whether Redis takes locks; the error is the reason, in one line.
pub(super) type Ready = Result<(), Arc<str>>;

/// The latest probe.
pub(super) struct Readiness {
    gate: Arc<Gate>,
    latest: Arc<Mutex<Option<(Instant, Ready)>>>,
}

impl Readiness {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        let latest = Arc::default();
        Self { gate, latest }
    }

    /// Returns whether the store takes locks, or took them less than a second ago.
    pub(super) async fn ask(&self) -> Ready {
        // Held during the probe: other requests wait for its result.
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some((when, ready)) = &*latest
            && when.elapsed() < FRESH_FOR
        {
            return ready.clone();
        }
        let asked = self.gate.is_ready();
        let answer = tokio::spawn(async move {
            let ready: Ready = asked.await.map_err(Arc::from);
            *latest = Some((Instant::now(), ready.clone()));
            ready
        });
        answer
            .await
            .unwrap_or_else(|error| Err(error.to_string().into()))
    }
}
