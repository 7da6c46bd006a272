//! One connection to Redis, from its opening to its end. All requests of one user about the locks of one
//! database share it.
//!
//! Requests have no timers of their own; [`Link::watch`] monitors the connection for all of them. Several times
//! a second it checks whether requests wait without any reply, and after a long silence it sends a `PING`. It
//! counts its own checks, not time, so that a pause of this process does not look like a silence of Redis.

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, Value, aio::MultiplexedConnection};
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval},
};

use super::{
    acker::{self, Acker, Unacknowledged},
    handshake::{Opened, Peer, Subject},
    scripts::{Reading, Request},
    settings::{HELD_PING, LONGEST_PAUSE},
};
use crate::{
    clock,
    lock::{LinkId, Time},
    store::task::Task,
    telemetry::metrics::upstream::{Purpose, UpstreamMetrics},
};

/// A connection, and the state of its health.
pub(super) struct Link {
    /// The connection's number.
    pub(super) id: LinkId,
    /// Why `CLIENT TRACKING` is unavailable; none if Redis pushes changes.
    pub(super) mute: Option<String>,
    /// The connection as Redis lists it; none if Redis does not tell.
    pub(super) peer: Option<Peer>,
    /// No free lock may be granted on this connection before this, whatever other connections have found.
    pub(super) grace_until: Time,
    connection: MultiplexedConnection,
    acker: Acker,
    /// Requests sent, and requests that no caller waits for any more (answered or dropped).
    asked: AtomicU64,
    settled: AtomicU64,
    /// Replies received.
    answered: AtomicU64,
    /// Notified when a caller finds the connection unusable.
    useless: Notify,
    /// Notified when a caller drops a request before its reply. A `PING` takes its place, or a hanging Redis
    /// would go unnoticed once all callers lose patience.
    abandoned: Notify,
    metrics: Arc<UpstreamMetrics>,
}

impl Link {
    /// Creates the link on a new connection. Also returns the task that reads and writes it.
    pub(super) fn new(
        id: LinkId,
        opened: Opened,
        grace_until: Time,
        subject: &Arc<Subject>,
    ) -> (Self, Task) {
        let identity = opened.server.identity.as_ref().ok();
        let acker = Acker::new(Arc::clone(subject), identity);
        let link = Self {
            id,
            mute: opened.mute,
            peer: opened.peer,
            grace_until,
            connection: opened.connection,
            acker,
            asked: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            useless: Notify::new(),
            abandoned: Notify::new(),
            metrics: Arc::clone(&subject.metrics),
        };
        (link, opened.driver)
    }

    /// Returns whether Redis pushes changes of keys that were read on this connection.
    pub(super) fn tells(&self) -> bool {
        self.mute.is_none()
    }

    /// Sends a request; none if the connection broke before the reply.
    pub(super) async fn ask(&self, request: &Request) -> Option<Reading> {
        let purpose = request.purpose();
        match request.read(self.store_request(purpose, request.by_hash()).await?) {
            Reading::Unseen => {
                let reply = self.store_request(purpose, &request.in_full()).await?;
                Some(request.read(reply))
            }
            done => Some(done),
        }
    }

    /// Sends a command about a lock, as [`send`](Self::send), and measures Redis's latency.
    pub(super) async fn store_request(&self, purpose: Purpose, command: &Cmd) -> Option<Value> {
        let sent_at = clock::now();
        let reply = self.send(purpose, command).await?;
        let took = clock::now().micros_since(sent_at);
        self.metrics.latency.count(took);
        Some(reply)
    }

    /// Sends a command; none if the connection broke before the reply.
    pub(super) async fn send(&self, purpose: Purpose, command: &Cmd) -> Option<Value> {
        let _in_flight = self.metrics.asked(purpose);
        let mut sent = Sent::new(self);
        let reply = self.connection.clone().send_packed_command(command).await;
        sent.answered = reply.is_ok();
        reply.ok()
    }

    /// Reports that an acquisition of the lock with this key waits for replicas.
    pub(super) fn taken(&self, key: &[u8]) {
        self.acker.taken(key);
    }

    /// Returns whether fewer replicas than this number acknowledged the latest grants.
    pub(super) fn lacks(&self, replicas: u32) -> bool {
        self.acker.lacks(replicas)
    }

    /// Waits until this number of replicas have everything that Redis answered on this connection before.
    pub(super) async fn acknowledge(&self, replicas: u32) -> Result<(), Unacknowledged> {
        let command = acker::info_command();
        let info = self.send(Purpose::Info, &command);
        self.acker.acknowledge(replicas, info).await
    }

    /// Gives up the connection: [`watch`](Self::watch) returns.
    pub(super) fn give_up(&self) {
        self.useless.notify_one();
    }

    /// Returns when the connection broke or Redis stopped replying, with the reason. Calls `settled` once,
    /// after the connection has lived for [`LONGEST_PAUSE`]. While a loss of data would matter, one of the
    /// connections with `knows_redis` sends pings more often, so that the loss is noticed within the grace.
    pub(super) async fn watch(
        &self,
        driver: &mut Task,
        subject: &Subject,
        knows_redis: bool,
        mut settled: impl FnMut(),
    ) -> &'static str {
        let Subject {
            settings,
            data_loss,
            listener,
            fences,
            ..
        } = subject;
        let watches = knows_redis && data_loss.matters();
        let often = settings.ping.min(HELD_PING);
        let status = settings.status();
        let mut looks = interval(status);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ping: Option<Pin<Box<dyn Future<Output = Option<Value>> + Send + '_>>> = None;
        let (mut seen, mut unanswered, mut silent, mut lived) =
            (0, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        loop {
            let pong = async {
                match ping.as_mut() {
                    Some(ping) => ping.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = &mut *driver => return "it was closed",
                () = self.useless.notified() => return "it was given up",
                () = self.abandoned.notified() => silent = settings.ping,
                _ = pong => ping = None,
                _ = looks.tick() => {
                    let answered = self.answered.load(Ordering::Relaxed);
                    let waiting = self.asked.load(Ordering::Relaxed) > self.settled.load(Ordering::Relaxed);
                    let progress = answered != seen;
                    seen = answered;
                    unanswered = if waiting && !progress { unanswered + status } else { Duration::ZERO };
                    silent = if waiting || progress { Duration::ZERO } else { silent + status };
                    if lived < LONGEST_PAUSE && lived + status >= LONGEST_PAUSE {
                        settled();
                    }
                    lived += status;
                    if progress && watches {
                        data_loss.heard();
                    }
                    if watches && ping.is_none() && silent >= often
                        && (listener.has_stake() || !fences.is_empty())
                        && data_loss.is_silent_for(often)
                    {
                        // The other connections leave the ping to this one.
                        data_loss.heard();
                        silent = settings.ping;
                    }
                }
            }
            // One check more, since a request may have come just before the first.
            if unanswered > settings.timeout {
                return "Redis does not answer";
            }
            if silent >= settings.ping && ping.is_none() {
                silent = Duration::ZERO;
                ping = Some(Box::pin(async {
                    let command = redis::cmd("PING");
                    self.send(Purpose::Ping, &command).await
                }));
            }
        }
    }
}

/// A request in flight, for the link's counters.
struct Sent<'a> {
    link: &'a Link,
    answered: bool,
}

impl<'a> Sent<'a> {
    fn new(link: &'a Link) -> Self {
        link.asked.fetch_add(1, Ordering::Relaxed);
        Self {
            link,
            answered: false,
        }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.answered {
            self.link.answered.fetch_add(1, Ordering::Relaxed);
        } else {
            self.link.abandoned.notify_one();
        }
        self.link.settled.fetch_add(1, Ordering::Relaxed);
    }
}
