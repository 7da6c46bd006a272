//! One connection to Redis, from its opening to its end. All requests of one user about the locks of one
//! database share it.
//!
//! Requests have no timers of their own; [`Link::watch`] monitors the connection for all of them. Several times
//! a second it checks whether Redis owes replies and sends none, also to callers that have lost patience; and after a
//! long silence it sends a `PING`. It counts its own checks, not time, so that a pause of this process does not look like
//! a silence of Redis.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};
use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval},
};

use super::{
    acker::{self, Acker, Unacknowledged},
    handshake::{Opened, Peer, Subject},
    requests::{self, SentRequest},
    scripts::{Reading, Request},
    settings::{HELD_PING, LONGEST_PAUSE},
    wire::Wire,
};
use crate::{
    clock,
    lock::{LinkId, Outcome, Time},
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
    wire: Arc<Wire>,
    acker: Acker,
    /// Notified when a caller finds the connection unusable.
    useless: Notify,
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
            wire: opened.wire,
            acker,
            useless: Notify::new(),
            metrics: Arc::clone(&subject.metrics),
        };
        (link, opened.driver)
    }

    /// Returns whether Redis pushes changes of keys that were read on this connection.
    pub(super) fn tells(&self) -> bool {
        self.mute.is_none()
    }

    /// Returns whether Redis owes replies.
    pub(super) fn is_asking(&self) -> bool {
        self.wire.in_flight() > 0
    }

    /// Sends a queue's request at once, where there is room. Otherwise returns it.
    pub(super) fn send_now(&self, request: SentRequest) -> Option<SentRequest> {
        self.wire.send_now(request)
    }

    /// Sends a request; none if the connection broke before the reply.
    pub(super) async fn ask(&self, request: &Request) -> Option<(Outcome, bool)> {
        let form = request.first_form();
        self.ask_until_done(request, Reading::Again(form)).await
    }

    /// Goes on with a request after this reading of the reply to a form of it: sends other forms until Redis executes
    /// one. Returns the outcome, and whether the key was read at the end. None: the connection broke.
    pub(super) async fn ask_until_done(
        &self,
        request: &Request,
        mut reading: Reading,
    ) -> Option<(Outcome, bool)> {
        loop {
            let form = match reading {
                Reading::Done { outcome, read } => return Some((outcome, read)),
                Reading::Again(form) => form,
            };
            let sent_at = clock::now();
            let reply = self
                .wire
                .send_bytes(request.purpose(form), |bytes| request.write(form, bytes))
                .await
                .ok()?;
            let took = clock::now().micros_since(sent_at);
            self.metrics.latency.count(took);
            reading = request.read(form, reply);
        }
    }

    /// Sends a command; none if the connection broke before the reply.
    pub(super) async fn send(&self, purpose: Purpose, command: &Cmd) -> Option<Value> {
        self.wire.send(purpose, command).await.ok()
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

    /// Reports every request that got no reply, after the connection has ended.
    pub(super) fn report_unanswered(&self, subject: &Subject) {
        for request in self.wire.take_unanswered() {
            requests::unanswered(subject, &request);
        }
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
        let (mut seen, mut unanswered, mut silent, mut lived) =
            (0, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        loop {
            tokio::select! {
                _ = &mut *driver => return "it was closed",
                () = self.useless.notified() => return "it was given up",
                _ = looks.tick() => {}
            }
            let answered = self.wire.answered();
            let waiting = self.is_asking();
            let progress = answered != seen;
            seen = answered;
            unanswered = if waiting && !progress {
                unanswered + status
            } else {
                Duration::ZERO
            };
            silent = if waiting || progress {
                Duration::ZERO
            } else {
                silent + status
            };
            if lived < LONGEST_PAUSE && lived + status >= LONGEST_PAUSE {
                settled();
            }
            lived += status;
            if progress && watches {
                data_loss.heard();
            }
            if watches
                && silent >= often
                && (listener.has_stake() || !fences.is_empty())
                && data_loss.unheard() >= often
            {
                // The other connections leave the ping to this one.
                data_loss.heard();
                silent = settings.ping;
            }
            // One check more, since a request may have come just before the first.
            if unanswered > settings.timeout {
                return "Redis does not answer";
            }
            if silent >= settings.ping {
                silent = Duration::ZERO;
                self.wire.send_unheard(Purpose::Ping, &redis::cmd("PING"));
            }
        }
    }
}
