//! Whether Redis takes locks. A Redis that answers may still refuse every lock: as a replica, in a cluster that is
//! down, or without memory. lockgate then is not ready, and logs when that begins and ends.
//!
//! Replies to lock requests and failed connections raise a suspicion. A [probe](super::readiness) on a connection of
//! its own confirms or refutes it, at most once a [`PAUSE`], until it is over: the end is noticed without any client.
//! So errors that concern one user or one key never count. Where the probe lacks the rights to find out, the reply
//! itself counts, until a later grant or for [`COUNTS_FOR_MS`].

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::sleep};

use super::{
    readiness::{self, Verdict},
    settings::RedisSettings,
};
use crate::{
    clock,
    lock::{Outcome, Time},
    store::{Listener, task::Task},
    telemetry::{
        escape::escape,
        log_limit::LogLimit,
        metrics::upstream::{Purpose, UpstreamMetrics},
    },
};

/// The pause between two probes of the same suspicion, or of two suspicions.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a reply counts that no probe can confirm, in milliseconds.
const COUNTS_FOR_MS: u64 = 5_000;

/// Log lines a minute about the beginning of a trouble. Clients can cause some: by filling the memory, or by scripts
/// that do not end.
const LINES_A_MINUTE: u64 = 10;

/// The classes of errors that Redis gives to every lock request, whoever sends it.
const CLASSES: [&str; 8] = [
    "READONLY",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "LOADING",
    "NOREPLICAS",
    "MISCONF",
    "OOM",
    "BUSY",
];

/// Returns the class of an error that Redis gives to every lock request.
pub(super) fn class(error: &[u8]) -> Option<&'static str> {
    let word = error.split(|byte| *byte == b' ').next()?;
    CLASSES.into_iter().find(|class| class.as_bytes() == word)
}

/// Whether Redis takes locks.
pub(super) struct CanLock {
    settings: Arc<RedisSettings>,
    metrics: Arc<UpstreamMetrics>,
    listener: OnceLock<Arc<dyn Listener>>,
    /// There is a suspicion: only then does a grant have to be recorded.
    is_suspected: AtomicBool,
    evidence: Mutex<Evidence>,
    suspected: Arc<Notify>,
    prober: OnceLock<Task>,
    lines: LogLimit,
}

#[derive(Default)]
struct Evidence {
    suspicion: Option<Suspicion>,
    trouble: Option<Trouble>,
}

/// The latest sign that Redis takes no locks, with no grant since.
struct Suspicion {
    at: Time,
    error: String,
}

/// Redis takes no locks.
struct Trouble {
    since: Time,
    /// The log has a line about it, so its end gets one as well.
    is_logged: bool,
    /// The log has a line with the clients that wait.
    names_waiters: bool,
}

impl CanLock {
    pub(super) fn new(settings: Arc<RedisSettings>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self {
            settings,
            metrics,
            listener: OnceLock::new(),
            is_suspected: AtomicBool::new(false),
            evidence: Mutex::default(),
            suspected: Arc::default(),
            prober: OnceLock::new(),
            lines: LogLimit::new(LINES_A_MINUTE),
        }
    }

    /// Sets the listener that knows how many clients wait.
    pub(super) fn listen(&self, listener: Arc<dyn Listener>) {
        // The gate calls this once.
        let _ = self.listener.set(listener);
    }

    /// Starts to probe whenever there is a suspicion. Must be called within a runtime.
    pub(super) fn begin(self: &Arc<Self>) {
        self.prober.get_or_init(|| {
            let (this, suspected) = (Arc::downgrade(self), Arc::clone(&self.suspected));
            Task::spawn(async move {
                loop {
                    suspected.notified().await;
                    let Some(this) = this.upgrade() else { return };
                    // Repeats itself while there is a trouble.
                    let _ = this.probe().await;
                    drop(this);
                    sleep(PAUSE).await;
                }
            })
        });
    }

    /// Records the outcome of a request with this purpose.
    pub(super) fn replied(&self, purpose: Purpose, outcome: &Outcome) {
        match outcome {
            Outcome::NotNow(error) | Outcome::Refused(error) if class(error).is_some() => {
                self.suspect(String::from_utf8_lossy(error).into_owned());
            }
            // Releases and renewals succeed without memory, too.
            Outcome::Granted { .. } if matches!(purpose, Purpose::Acquire | Purpose::Handover) => {
                self.granted();
            }
            _ => {}
        }
    }

    /// Records that Redis granted a lock.
    pub(super) fn granted(&self) {
        if self.is_suspected.load(Ordering::Relaxed) {
            self.evidence().suspicion = None;
        }
    }

    /// Records a sign that Redis takes no locks: its error, or why it cannot be reached.
    pub(super) fn suspect(&self, error: String) {
        let at = clock::now();
        self.evidence().suspicion = Some(Suspicion { at, error });
        self.is_suspected.store(true, Ordering::Relaxed);
        self.suspected.notify_one();
    }

    /// Probes Redis, and records the result.
    ///
    /// # Errors
    /// Why a client that comes now could not take a lock, in one line.
    pub(super) async fn probe(&self) -> Result<(), String> {
        let verdict = readiness::probe(&self.settings).await;
        let error = self.evidence().settle(&verdict, clock::now());
        self.is_suspected.store(error.is_some(), Ordering::Relaxed);
        self.metrics.can_lock(error.is_none());
        if error.is_some() {
            self.suspected.notify_one();
        }
        self.log(error.as_deref());
        match (verdict, error) {
            (Verdict::Unreachable(reason), _) => Err(self.settings.unreachable(&reason)),
            (_, Some(error)) if class(error.as_bytes()).is_none() => {
                Err(self.settings.unreachable(&error))
            }
            (_, Some(error)) => Err(error.replace(['\r', '\n'], " ")),
            (_, None) => Ok(()),
        }
    }

    /// Logs a trouble that begins or that clients begin to feel, or its end. Connections that fail have a line
    /// already.
    fn log(&self, error: Option<&str>) {
        let mut evidence = self.evidence();
        let Some(error) = error else {
            if let Some(trouble) = evidence.trouble.take().filter(|it| it.is_logged) {
                let after_ms = clock::now().millis_since(trouble.since);
                tracing::info!(after_ms, "Redis takes locks again");
            }
            return;
        };
        let trouble = evidence.trouble.get_or_insert_with(|| Trouble {
            since: clock::now(),
            is_logged: false,
            names_waiters: false,
        });
        let waiters = self.listener.get().map_or(0, |it| it.waiters());
        let is_new = !trouble.is_logged || (waiters > 0 && !trouble.names_waiters);
        if let (Some(class), true) = (class(error.as_bytes()), is_new)
            && let Some(left_out) = self.lines.is_due()
        {
            trouble.is_logged = true;
            trouble.names_waiters = waiters > 0;
            let error = escape(error.as_bytes());
            tracing::warn!(class, error, waiters, left_out, "Redis takes no locks");
        }
    }

    fn evidence(&self) -> MutexGuard<'_, Evidence> {
        // The evidence is consistent at any time.
        self.evidence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Evidence {
    /// Weighs the verdict against the suspicion. Returns why Redis takes no locks; none if it does, as far as is
    /// known.
    fn settle(&mut self, verdict: &Verdict, now: Time) -> Option<String> {
        let counts = |suspicion: &Suspicion| match verdict {
            Verdict::Refuses(_) | Verdict::Takes => false,
            // Connections that are open may still serve.
            Verdict::Unreachable(_) => true,
            // Redis replies, so it is not out of reach.
            Verdict::Unknown => {
                let is_fresh = now.millis_since(suspicion.at) < COUNTS_FOR_MS;
                is_fresh && is_of_redis(&suspicion.error)
            }
        };
        self.suspicion = self.suspicion.take().filter(counts);
        match verdict {
            Verdict::Refuses(error) => Some(error.clone()),
            _ => self.suspicion.as_ref().map(|it| it.error.clone()),
        }
    }
}

/// Returns whether this is an error that Redis gives whatever the key is. Where a cluster lacks the slot of one key, it
/// may serve the others.
fn is_of_redis(error: &str) -> bool {
    class(error.as_bytes()).is_some() && !error.starts_with("CLUSTERDOWN Hash slot")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_millis(10_000);

    fn suspected(error: &str, at_ms: u64) -> Evidence {
        let (at, error) = (Time::from_millis(at_ms), error.to_owned());
        Evidence {
            suspicion: Some(Suspicion { at, error }),
            trouble: None,
        }
    }

    #[test]
    fn errors_of_one_user_have_no_class() {
        for error in [
            "NOPERM this user has no permissions",
            "NOAUTH Authentication required.",
            "WRONGTYPE Operation against a key",
            "WRONGPASS invalid username-password pair",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "MOVED 1 127.0.0.1:1",
            "ERR OOM",
            "OOMPH",
            "",
        ] {
            assert_eq!(class(error.as_bytes()), None, "{error}");
        }
        assert_eq!(class(b"OOM command not allowed"), Some("OOM"));
        assert_eq!(class(b"BUSY"), Some("BUSY"));
    }

    #[test]
    fn what_the_probe_finds_counts_more_than_what_clients_were_told() {
        let refuses = Verdict::Refuses("OOM x".to_owned());
        let told = suspected("BUSY y", 10_000).settle(&refuses, NOW);
        assert_eq!(told.as_deref(), Some("OOM x"));
        let mut evidence = suspected("BUSY y", 10_000);
        assert_eq!(evidence.settle(&Verdict::Takes, NOW), None);
        assert!(evidence.suspicion.is_none());
    }

    #[test]
    fn a_probe_without_rights_leaves_what_clients_were_told_for_a_while() {
        let settle = |error, at_ms| suspected(error, at_ms).settle(&Verdict::Unknown, NOW);
        assert_eq!(settle("BUSY y", 5_001).as_deref(), Some("BUSY y"));
        assert_eq!(settle("BUSY y", 5_000), None);
        assert_eq!(settle("CLUSTERDOWN Hash slot not served", 10_000), None);
        assert_eq!(settle("connection refused", 10_000), None);
        let down = "CLUSTERDOWN The cluster is down";
        assert_eq!(settle(down, 10_000).as_deref(), Some(down));
    }

    #[test]
    fn a_redis_that_is_out_of_reach_takes_no_locks_where_one_was_missed() {
        let unreachable = Verdict::Unreachable("nobody is there".to_owned());
        let told = suspected("broken pipe", 1).settle(&unreachable, NOW);
        assert_eq!(told.as_deref(), Some("broken pipe"));
        assert_eq!(Evidence::default().settle(&unreachable, NOW), None);
    }
}
