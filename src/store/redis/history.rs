//! Whether Redis still has the data that it had: a restart, or a replica that took over, may have
//! lost the latest writes.
//!
//! Every new connection asks who it is that it speaks with ([`Identity`]). Is that another process or
//! another history of data than before, then Redis **forgot**:
//!
//! 1. every other shared connection is given up, so that all look again;
//! 2. the listener hears of it, and has its leases written back, before anything else is asked;
//! 3. for the grace time nobody here may take a lock that is found free, so that other gates can
//!    write back theirs.
//!
//! What says that it takes no writes yet (it is a replica still, or loads its data) is not used at all,
//! and whenever a question finds that out the grace time begins anew: or it would be over when Redis
//! takes the first write.
//!
//! A Redis that started within the grace time before our first look at it may have forgotten as well:
//! other gates may have leases to write back.
//!
//! A user who may not ask who Redis is cannot see that it forgot. Where others here can, such a user takes no
//! free lock for the grace time after its connection was interrupted: by then they have seen it.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Mutex, watch};

use super::greeting::NoLink;
use crate::{clock, lock::Time, metrics::upstream::UpstreamMetrics, store::Listener};

/// Who it is that a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// New with each start of the process.
    pub(super) run_id: String,
    /// The history of the data: another one when a replica takes over.
    pub(super) replication_id: String,
    /// How long the process has run, in whole seconds, rounded either way.
    pub(super) uptime: Duration,
    /// Why it takes no writes, in the words of Redis; none where it does.
    pub(super) takes_no_writes: Option<String>,
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
            uptime: Duration::from_secs(field("uptime_in_seconds")?.parse().ok()?),
            takes_no_writes: if field("loading") == Some("1") {
                Some("LOADING Redis is loading the dataset in memory".to_owned())
            } else if field("role") == Some("slave") {
                Some("READONLY You can't write against a read only replica.".to_owned())
            } else {
                None
            },
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        self.run_id == other.run_id && self.replication_id == other.replication_id
    }
}

impl History {
    pub(super) fn new(grace: Option<Duration>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self {
            grace,
            seen: Mutex::new(None),
            losses: watch::Sender::new(0),
            grace_until: watch::Sender::new(Time::default()),
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

    /// Redis says that it takes no writes now. It may have lost data by the time that it does.
    pub(super) fn no_writes_yet(&self) {
        if let Some(grace) = self.grace {
            self.begin_grace(grace);
        }
    }

    /// Until when no lock that is found free may be taken on a connection that takes the place of another,
    /// and of which Redis does not say who it leads to.
    pub(super) async fn unseen_grace_until(&self) -> Time {
        match self.grace {
            Some(grace) if self.seen.lock().await.is_some() => after(grace),
            _ => Time::default(),
        }
    }

    fn begin_grace(&self, grace: Duration) {
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
            self.no_writes_yet();
            return Err(NoLink::Failed(why.clone()));
        }
        // Held until everybody has been told: no other connection is used before.
        let mut seen = self.seen.lock().await;
        if losses.has_changed().unwrap_or(false) {
            losses.mark_unchanged();
            return Err(NoLink::Failed("Redis lost data meanwhile".to_owned()));
        }
        // The seconds may be rounded up.
        let at_least = identity.uptime.saturating_sub(Duration::from_secs(1));
        let (forgot, wait) = match &*seen {
            Some(before) if before.is_same(identity) => return Ok(()),
            Some(_) => (true, grace),
            None => (false, grace.saturating_sub(at_least)),
        };
        *seen = Some(identity.clone());
        self.begin_grace(wait);
        if forgot {
            tracing::warn!(
                grace_ms = grace.as_millis(),
                "Redis restarted, or a replica took over: writing back the leases granted here"
            );
            self.metrics.lost_data();
            self.losses.send_modify(|losses| *losses += 1);
            losses.mark_unchanged();
            listener.forgot().await;
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

    #[test]
    fn an_identity_is_read_from_what_info_says() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nuptime_in_seconds:12\r\n\
                    # Replication\r\nrole:master\r\nmaster_replid:def\r\nmaster_replid2:0\r\n";
        let identity = Identity {
            run_id: "abc".to_owned(),
            replication_id: "def".to_owned(),
            uptime: Duration::from_secs(12),
            takes_no_writes: None,
        };
        assert_eq!(Identity::read(info), Some(identity));
        assert_eq!(Identity::read("role:master\r\n"), None);
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
