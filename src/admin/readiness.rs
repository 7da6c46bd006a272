//! Whether Redis answers. However many want to know, Redis is asked once a second at most, and one who
//! asks while it is being asked waits for that answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::Mutex;

use crate::gate::Gate;

/// How long an answer counts.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// Why not, in one line.
pub(super) type Ready = Result<(), Arc<str>>;

/// What is known of it.
pub(super) struct Readiness {
    gate: Arc<Gate>,
    latest: Mutex<Option<(Instant, Ready)>>,
}

impl Readiness {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        let latest = Mutex::default();
        Self { gate, latest }
    }

    /// Whether the store answers: now, or less than a second ago.
    pub(super) async fn ask(&self) -> Ready {
        // Held while it is asked: the others wait for the answer.
        let mut latest = self.latest.lock().await;
        if let Some((when, ready)) = &*latest
            && when.elapsed() < FRESH_FOR
        {
            return ready.clone();
        }
        let ready = self.gate.is_ready().await.map_err(Arc::from);
        *latest = Some((Instant::now(), ready.clone()));
        ready
    }
}
