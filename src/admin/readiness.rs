//! Whether Redis answers. However many want to know, Redis is asked once a second at most, and one who
//! asks while it is being asked waits for that answer. It comes even where nobody waits for it any more: who is
//! impatient and asks again finds it.

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
    latest: Arc<Mutex<Option<(Instant, Ready)>>>,
}

impl Readiness {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        let latest = Arc::default();
        Self { gate, latest }
    }

    /// Whether the store answers: now, or less than a second ago.
    pub(super) async fn ask(&self) -> Ready {
        // Held while it is asked: the others wait for the answer.
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
