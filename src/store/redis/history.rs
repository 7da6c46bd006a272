//! Whether Redis still has the data that it had: a restart, or a replica that took over, may have
//! lost the latest writes.
//!
//! Every new connection asks who it is that it speaks with ([`Identity`]). Is that another process or
//! another history of data than before, then Redis **lost data**:
//!
//! 1. every other shared connection is given up, so that all look again;
//! 2. the listener hears of it, and has dead tokens deleted and its leases written back, before anything
//!    else is asked;
//! 3. for the grace no lock that is found free is taken (`grace`), so that other instances can do the same.
//!
//! A Redis that takes no writes yet (it is a replica still, or loads its data) is not used at all: when it
//! takes the first write, all of that begins.
//!
//! A Redis that this instance meets for the first time may have lost what another instance granted: the
//! grace is kept, unless the mark of this Redis says that it was kept before.
//!
//! A user who may not ask who Redis is cannot see that it lost data. Where others here can, such a user takes
//! no free lock for the grace time after its connection was interrupted: by then they have seen it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Mutex, watch};

use super::greeting::NoLink;
use crate::{clock, lock::Time, metrics::upstream::UpstreamMetrics, store::Listener};

/// Who it is that a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// New with each start of the process.
    pub(super) run_id: String,
    /// The history of the data: another one when a replica takes over, and when the first replica comes.
    pub(super) replication_id: String,
    /// It took over the data of another master.
    pub(super) was_replica: bool,
    /// Why it takes no writes, in the words of Redis; none where it does.
    pub(super) takes_no_writes: Option<String>,
    /// What is left of its grace, or why its mark is of no use.
    pub(super) grace_left: Result<Duration, String>,
}

/// What was seen so far, by all shared connections of a store.
pub(super) struct History {
    /// None: nothing is written back, and nothing waits for it.
    grace: Option<Duration>,
    seen: Mutex<Option<Identity>>,
    /// Counts the losses of data.
    losses: watch::Sender<u64>,
    /// Until when no lock that is found free may be taken.
    grace_until: watch::Sender<Time>,
    /// When a connection that tells who Redis is was answered last, in microseconds of the clock.
    heard_at: AtomicU64,
    metrics: Arc<UpstreamMetrics>,
}

impl Identity {
    /// From the sections `server`, `replication` and `persistence` of `INFO`.
    pub(super) fn read(info: &str) -> Option<Self> {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        Some(Self {
            run_id: field("run_id")?.to_owned(),
            // Before Redis 4 there is none: then a restart is all that can be seen.
            replication_id: field("master_replid").unwrap_or_default().to_owned(),
            // Without replicas there is no second history; a promoted replica has that of its master.
            was_replica: field("master_replid2").is_some_and(|id| id.bytes().any(|it| it != b'0')),
            takes_no_writes: if field("loading") == Some("1") {
                Some("LOADING Redis is loading the dataset in memory".to_owned())
            } else if field("role") == Some("slave") {
                Some("READONLY You can't write against a read only replica.".to_owned())
            } else {
                None
            },
            grace_left: Err("the mark was not read".to_owned()),
        })
    }

    /// It has the data that `before` had. A master whose first replica comes, or whose last one has been gone
    /// for long, begins a new history that forgets the one before, and keeps its data.
    fn is_same(&self, before: &Self) -> bool {
        let same_history = self.replication_id == before.replication_id || !self.was_replica;
        self.run_id == before.run_id && same_history
    }
}

impl History {
    pub(super) fn new(grace: Option<Duration>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self {
            grace,
            seen: Mutex::new(None),
            losses: watch::Sender::new(0),
            grace_until: watch::Sender::new(Time::default()),
            heard_at: AtomicU64::new(0),
            metrics,
        }
    }

    /// Leases are written back, so each connection is to be asked who it leads to.
    pub(super) fn matters(&self) -> bool {
        self.grace.is_some()
    }

    /// Changes whenever Redis lost data: connections from before are to be given up.
    pub(super) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// Milliseconds for which no lock that is found free may be taken.
    pub(super) fn grace_left_ms(&self) -> Option<u64> {
        left_ms(*self.grace_until.borrow())
    }

    /// The same.
    pub(super) fn grace_left(&self) -> Option<Duration> {
        self.grace_left_ms().map(Duration::from_millis)
    }

    /// How long the grace is where this Redis has no mark of its own: the mark of one that this instance knows
    /// was deleted. None: nothing is written back.
    pub(super) fn grace_to_keep(&self, identity: &Identity) -> Option<Duration> {
        // Locked while all hear of a loss: then the mark is there.
        let known = self.seen.try_lock();
        match known.as_deref() {
            Ok(Some(before)) if identity.is_same(before) => self.grace.and(Some(Duration::ZERO)),
            _ => self.grace,
        }
    }

    /// Until when no lock that is found free may be taken, and each change of it.
    pub(super) fn graces(&self) -> watch::Receiver<Time> {
        self.grace_until.subscribe()
    }

    /// A connection that tells who Redis is was answered.
    pub(super) fn heard(&self) {
        let now = clock::now().micros();
        self.heard_at.store(now, Ordering::Relaxed);
    }

    /// None was answered for so long.
    pub(super) fn is_silent_for(&self, span: Duration) -> bool {
        let heard_at = Time::from_micros(self.heard_at.load(Ordering::Relaxed));
        Duration::from_micros(clock::now().micros_since(heard_at)) >= span
    }

    /// Until when no lock that is found free may be taken on a connection that takes the place of another,
    /// and of which Redis does not say who it leads to.
    pub(super) async fn unseen_grace_until(&self) -> Time {
        match self.grace {
            Some(grace) if self.seen.lock().await.is_some() => after(grace),
            _ => Time::default(),
        }
    }

    /// For so long from now on no lock that is found free may be taken.
    pub(super) fn begin_grace(&self, grace: Duration) {
        let until = after(grace);
        self.grace_until
            .send_modify(|before| *before = until.max(*before));
    }

    /// A connection was opened and leads to this Redis; nothing was asked on it yet. Returns when
    /// it may be used. `losses` is what the connection was opened under.
    ///
    /// # Errors
    /// Meanwhile another connection found that Redis lost data: this one may lead to the one before.
    pub(super) async fn met(
        &self,
        identity: &Identity,
        losses: &mut watch::Receiver<u64>,
        listener: &Arc<dyn Listener>,
    ) -> Result<(), NoLink> {
        let Some(grace) = self.grace else {
            return Ok(());
        };
        if let Some(why) = &identity.takes_no_writes {
            return Err(NoLink::Failed(why.clone()));
        }
        // Held until everybody has been told: no other connection is used before.
        let mut seen = self.seen.lock().await;
        if losses.has_changed().unwrap_or(false) {
            losses.mark_unchanged();
            return Err(NoLink::Failed("Redis lost data meanwhile".to_owned()));
        }
        let left = identity.grace_left.clone();
        let (forgot, wait) = match &*seen {
            Some(before) if identity.is_same(before) => {
                self.begin_grace(left.unwrap_or_default());
                return Ok(());
            }
            before => (before.is_some(), left.unwrap_or(grace)),
        };
        *seen = Some(identity.clone());
        self.begin_grace(wait);
        if forgot {
            tracing::warn!(
                grace_ms = wait.as_millis(),
                "Redis restarted, or a replica took over: writing back the leases granted here"
            );
            self.metrics.lost_data();
            self.losses.send_modify(|losses| *losses += 1);
            losses.mark_unchanged();
            listener.forgot(wait).await;
        }
        Ok(())
    }
}

/// Milliseconds until then; none where it is past.
pub(super) fn left_ms(until: Time) -> Option<u64> {
    let left = until.micros_since(clock::now());
    (left > 0).then(|| left.div_ceil(1_000))
}

fn after(grace: Duration) -> Time {
    let ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    clock::now().plus_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nuptime_in_seconds:12\r\n\
                        # Replication\r\nrole:master\r\nmaster_replid:def\r\nmaster_replid2:0000\r\n";

    #[test]
    fn an_identity_is_read_from_info() {
        let identity = Identity::read(INFO).unwrap();
        assert_eq!(identity.run_id, "abc");
        assert_eq!(identity.replication_id, "def");
        assert!(!identity.was_replica);
        assert_eq!(identity.takes_no_writes, None);
        assert_eq!(Identity::read("role:master\r\n"), None);
    }

    #[test]
    fn a_first_replica_is_no_loss_and_a_promotion_is() {
        let before = Identity::read(INFO).unwrap();
        let later = |replid: &str, replid2: &str| {
            let info = INFO.replace("def", replid).replace("0000", replid2);
            Identity::read(&info).unwrap()
        };
        assert!(later("def", "0000").is_same(&before));
        assert!(later("fed", "0000").is_same(&before));
        assert!(!later("fed", "def0").is_same(&before));
        let restarted = Identity::read(&INFO.replace("abc", "cba")).unwrap();
        assert!(!restarted.is_same(&before));
    }

    #[test]
    fn a_replica_and_one_that_loads_take_no_writes() {
        let reason = |more: &str| {
            let info = format!("run_id:abc\r\nuptime_in_seconds:12\r\n{more}");
            Identity::read(&info).unwrap().takes_no_writes
        };
        assert_eq!(reason("role:master\r\nloading:0\r\n"), None);
        assert!(
            reason("role:slave\r\nloading:0\r\n")
                .unwrap()
                .starts_with("READONLY ")
        );
        assert!(
            reason("role:master\r\nloading:1\r\n")
                .unwrap()
                .starts_with("LOADING ")
        );
    }
}
