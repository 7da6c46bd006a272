//! Detects that Redis lost data. After a restart, or after a replica took over, the latest writes may be
//! missing.
//!
//! Every new connection reads the server's [`Identity`]. If the process or the history of the data differs from
//! before, Redis **lost data**:
//!
//! 1. The store gives up every other shared connection, so that each one checks the identity again.
//! 2. The listener is notified. Before any other request is sent, it has dead tokens deleted and its leases
//!    written back.
//! 3. During the grace (`grace`), no free lock is granted, so that other instances can do the same.
//!
//! While Redis takes no writes (it is still a replica, one of several masters, or loads its data), lockgate does not
//! use it. The steps above begin when it accepts the first write.
//!
//! A Redis that this instance meets for the first time may have lost what another instance granted. The
//! instance keeps the grace, unless the mark of this Redis says that the grace was kept before.
//!
//! A user that may not run `INFO` cannot see that Redis lost data. If other users of this instance can, such a
//! user takes no free lock for the length of the grace after its connection was interrupted: by then the others
//! have detected the loss.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Mutex, watch};

use super::{grace::MarkOperation, handshake::NoLink};
use crate::{clock, lock::Time, store::Listener, telemetry::metrics::upstream::UpstreamMetrics};

/// Redis's error for a write to a replica.
const REPLICA: &str = "READONLY You can't write against a read only replica.";

/// The error in front of a KeyDB that is one of several masters.
pub(super) const ACTIVE_REPLICA: &str = "READONLY This server is an active replica: another master may grant the same lock at the \
                              same time (role:active-replica).";

/// The identity of the server that a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// The process: new with each start.
    pub(super) run_id: String,
    /// The history of the data: changes when a replica takes over, and when the first replica connects.
    pub(super) replication_id: String,
    /// The server took over another master's data.
    pub(super) was_replica: bool,
    /// The remaining grace, or why the mark cannot be used.
    pub(super) grace_left: Result<Duration, String>,
}

/// Detects losses of data, from what all shared connections of a store saw.
pub(super) struct DataLossDetector {
    /// The length of the grace. None: write-back is off, and nothing waits for it.
    grace: Option<Duration>,
    seen: Arc<Mutex<Option<Identity>>>,
    /// The number of losses of data.
    losses: watch::Sender<u64>,
    /// Queues are being notified of a loss of data: no connection is used meanwhile.
    notifying: watch::Sender<bool>,
    /// No free lock may be granted before this.
    grace_until: watch::Sender<Time>,
    /// The last reply on a connection that can read the identity, in microseconds of the process clock.
    heard_at: AtomicU64,
    metrics: Arc<UpstreamMetrics>,
}

/// Returns the value of this field of `INFO`.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim)
}

/// Returns why a server may not be used for locks, by the sections `replication` and `persistence` of its `INFO`, in
/// Redis's own words.
pub(super) fn takes_no_writes(info: &str) -> Option<&'static str> {
    if field(info, "loading") == Some("1") {
        return Some("LOADING Redis is loading the dataset in memory");
    }
    field(info, "role").and_then(role_without_writes)
}

/// Returns why a server with this role may not be used for locks, though it may take writes: a replica forgets them,
/// and of several masters each grants the same lock.
pub(super) fn role_without_writes(role: &str) -> Option<&'static str> {
    match role {
        "slave" => Some(REPLICA),
        "active-replica" => Some(ACTIVE_REPLICA),
        _ => None,
    }
}

impl Identity {
    /// Parses the sections `server` and `replication` of `INFO`.
    pub(super) fn read(info: &str) -> Option<Self> {
        let field = |name| field(info, name);
        // Redis before version 4 has none; then only a restart can be detected.
        let replication_id = field("master_replid").unwrap_or_default();
        // Dragonfly has no `run_id`, and a new replication id with each start.
        let run_id = field("run_id").unwrap_or(replication_id);
        (!run_id.is_empty()).then(|| Self {
            run_id: run_id.to_owned(),
            replication_id: replication_id.to_owned(),
            // A server without replicas has no second history. A promoted replica has its master's.
            was_replica: field("master_replid2").is_some_and(|id| id.bytes().any(|it| it != b'0')),
            grace_left: Err("the mark was not read".to_owned()),
        })
    }

    /// Returns whether the server has the data that `before` had. A master begins a new history without the
    /// previous one, and keeps its data, when its first replica connects, and when its last replica has been
    /// gone for long.
    fn is_same(&self, before: &Self) -> bool {
        let same_history = self.replication_id == before.replication_id || !self.was_replica;
        self.run_id == before.run_id && same_history
    }
}

impl DataLossDetector {
    pub(super) fn new(grace: Option<Duration>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self {
            grace,
            seen: Arc::default(),
            losses: watch::Sender::new(0),
            notifying: watch::Sender::new(false),
            grace_until: watch::Sender::new(Time::default()),
            heard_at: AtomicU64::new(0),
            metrics,
        }
    }

    /// Returns whether write-back is on, so that each connection must read the server's identity.
    pub(super) fn matters(&self) -> bool {
        self.grace.is_some()
    }

    /// Changes whenever Redis lost data: connections opened before must be given up.
    pub(super) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// Waits until no queue is left to be notified of a loss of data.
    pub(super) async fn notified(&self) {
        let mut notifying = self.notifying.subscribe();
        // The sender lives as long as `self`.
        let _ = notifying.wait_for(|notifying| !notifying).await;
    }

    /// Returns the milliseconds for which no free lock may be granted.
    pub(super) fn grace_left_ms(&self) -> Option<u64> {
        left_ms(*self.grace_until.borrow())
    }

    /// Returns the same as a duration.
    pub(super) fn grace_left(&self) -> Option<Duration> {
        self.grace_left_ms().map(Duration::from_millis)
    }

    /// Returns what a connection to this Redis does with the mark of the grace. None: write-back is off.
    pub(super) fn mark_operation(&self, identity: &Identity) -> Option<MarkOperation> {
        let grace = self.grace?;
        // Locked while the queues are notified of a loss: then the mark exists.
        let known = self.seen.try_lock();
        Some(match known.as_deref() {
            // Only the mark was deleted.
            Ok(Some(before)) if identity.is_same(before) => MarkOperation::Begin(Duration::ZERO),
            // Its mark may be of an earlier time, where it was the upstream before.
            Ok(Some(_)) => MarkOperation::BeginAnew {
                grace,
                unheard: self.unheard(),
            },
            _ => MarkOperation::Begin(grace),
        })
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

    /// Returns how long every connection that can read the identity has been without a reply.
    pub(super) fn unheard(&self) -> Duration {
        let heard_at = Time::from_micros(self.heard_at.load(Ordering::Relaxed));
        Duration::from_micros(clock::now().micros_since(heard_at))
    }

    /// Returns until when no free lock may be granted on a connection that replaces another one and cannot read
    /// the server's identity.
    pub(super) async fn unseen_grace_until(&self) -> Time {
        match self.grace {
            Some(grace) if self.seen.lock().await.is_some() => after(grace),
            _ => Time::default(),
        }
    }

    /// Begins or extends the grace: no free lock is granted for this long from now on.
    pub(super) fn begin_grace(&self, grace: Duration) {
        let until = after(grace);
        self.grace_until
            .send_modify(|before| *before = until.max(*before));
    }

    /// Compares the identity behind a new connection with the one seen before. No request has been sent on the
    /// connection yet; it may be used when this returns. `losses` is the state under which the connection was
    /// opened.
    ///
    /// # Errors
    /// Another connection has found a loss of data meanwhile: this one may lead to the previous server.
    pub(super) async fn met(
        self: &Arc<Self>,
        identity: &Identity,
        losses: &mut watch::Receiver<u64>,
        listener: &Arc<dyn Listener>,
    ) -> Result<(), NoLink> {
        let Some(grace) = self.grace else {
            return Ok(());
        };
        // Held until every queue is notified: no other connection is used before.
        let mut seen = Arc::clone(&self.seen).lock_owned().await;
        if losses.has_changed().unwrap_or(false) {
            losses.mark_unchanged();
            return Err(NoLink::Failed("Redis lost data meanwhile".to_owned()));
        }
        let left = identity.grace_left.clone();
        let (data_lost, wait) = match &*seen {
            Some(before) if identity.is_same(before) => {
                self.begin_grace(left.unwrap_or_default());
                return Ok(());
            }
            before => (before.is_some(), left.unwrap_or(grace)),
        };
        *seen = Some(identity.clone());
        self.heard();
        self.begin_grace(wait);
        if data_lost {
            tracing::warn!(
                grace_ms = wait.as_millis(),
                "Redis restarted, or a replica took over: writing back the leases granted here"
            );
            self.metrics.lost_data();
            self.losses.send_modify(|losses| *losses += 1);
            losses.mark_unchanged();
            let notifying = Notifying::begin(self);
            let data_lost = listener.data_lost(wait);
            // A task of its own: this connection may be closed as unused meanwhile.
            let notified = tokio::spawn(async move {
                data_lost.await;
                drop((notifying, seen));
            });
            // It ends before the process does.
            let _ = notified.await;
        }
        Ok(())
    }
}

/// Marks the time during which queues are notified.
struct Notifying(Arc<DataLossDetector>);

impl Notifying {
    fn begin(detector: &Arc<DataLossDetector>) -> Self {
        detector.notifying.send_replace(true);
        Self(Arc::clone(detector))
    }
}

impl Drop for Notifying {
    fn drop(&mut self) {
        self.0.notifying.send_replace(false);
    }
}

/// Returns the milliseconds until then; none if it is past.
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
        assert_eq!(Identity::read("role:master\r\n"), None);
    }

    /// As in Dragonfly, where `master_replid` is new with each start.
    #[test]
    fn without_a_run_id_the_replication_id_is_the_identity() {
        let read = |id: &str| Identity::read(&format!("role:master\r\nmaster_replid:{id}\r\n"));
        let before = read("abc").unwrap();
        assert!(read("abc").unwrap().is_same(&before));
        assert!(!read("cba").unwrap().is_same(&before));
        // The mark of the grace names the process, and a name is not empty.
        assert_eq!(before.run_id, "abc");
        assert_eq!(read(""), None);
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
    fn a_replica_one_of_several_masters_and_one_that_loads_take_no_writes() {
        let reason = |info| takes_no_writes(info).unwrap_or_default();
        assert_eq!(reason("role:master\r\nloading:0\r\n"), "");
        assert!(reason("role:slave\r\nloading:0\r\n").starts_with("READONLY "));
        let active = reason("role:active-replica\r\n");
        assert!(active.starts_with("READONLY ") && active.contains("active replica"));
        assert!(reason("role:master\r\nloading:1\r\n").starts_with("LOADING "));
    }
}
