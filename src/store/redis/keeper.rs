//! Keeps one [`Link`] open for the locks of one user and database.
//!
//! Whoever wants to ask takes the link that is open, or waits for the next one. When a link breaks,
//! a new one is opened, for ever, ever less often up to [`LONGEST_PAUSE`]. Where Redis does not let
//! us in, those who wait are told in its words, and it is tried again when the next one comes.
//!
//! The order at a link's end: no new question finds it; its task ends, so that the socket is reset
//! and every question on it is answered "unknown"; the listener hears that it is deaf.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use super::{
    greeting::{self, NoLink, Subject},
    link::Link,
};
use crate::{lock::LinkId, store::task::Task};

/// The first pause before connecting again; doubled with each attempt.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause before connecting again. A link that lived for so long counts as well.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What there is to ask on.
enum State {
    /// Nothing yet, or not any more.
    Down,
    /// This.
    Up(Arc<Link>),
    /// Nothing, and Redis said why at that attempt.
    Refused(u64, Bytes),
}

/// Keeps one link open.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    task: OnceLock<Task>,
}

struct Shared {
    subject: Arc<Subject>,
    /// The number of the store's next link.
    next_id: Arc<AtomicU64>,
    state: watch::Sender<State>,
    /// Attempts to connect that have begun.
    attempts: AtomicU64,
    /// Somebody waits for a link.
    wanted: Notify,
}

impl Keeper {
    /// Nothing is opened before the first question.
    pub(super) fn new(subject: Subject, next_id: Arc<AtomicU64>) -> Self {
        let shared = Shared {
            subject: Arc::new(subject),
            next_id,
            state: watch::Sender::new(State::Down),
            attempts: AtomicU64::new(0),
            wanted: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
            task: OnceLock::new(),
        }
    }

    /// The link that is open, or the next one.
    ///
    /// # Errors
    /// Redis's own error, where it does not let us in.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Bytes> {
        if let State::Up(link) = &*self.shared.state.borrow() {
            return Ok(Arc::clone(link));
        }
        // What was refused before, or is being refused now, says nothing of this question.
        let old = self.shared.attempts.load(Ordering::Acquire);
        self.task
            .get_or_init(|| Task::spawn(keep(Arc::clone(&self.shared))));
        self.shared.wanted.notify_one();
        let mut states = self.shared.state.subscribe();
        let found = states
            .wait_for(|state| match state {
                State::Down => false,
                State::Up(_) => true,
                State::Refused(attempt, _) => *attempt > old,
            })
            .await;
        match found.as_deref() {
            Ok(State::Up(link)) => Ok(Arc::clone(link)),
            Ok(State::Refused(_, text)) => Err(text.clone()),
            // Not while `self` owns the sender.
            Ok(State::Down) | Err(_) => Err(Bytes::from_static(
                b"UPSTREAM there is no connection to Redis",
            )),
        }
    }

    /// The link is of no use any more; returns when no new question finds it.
    pub(super) async fn give_up(&self, link: &Arc<Link>) {
        link.give_up();
        let mut states = self.shared.state.subscribe();
        // The sender lives as long as `self`.
        let _ = states
            .wait_for(|state| !matches!(state, State::Up(now) if Arc::ptr_eq(now, link)))
            .await;
    }
}

async fn keep(shared: Arc<Shared>) {
    let subject = &shared.subject;
    let mut health = Health::new(subject.database);
    // What Redis may still have of the last link is ended by the next.
    let mut previous = None;
    loop {
        let attempt = shared.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let id = LinkId(shared.next_id.fetch_add(1, Ordering::Relaxed));
        match greeting::open(subject, id, previous.as_ref()).await {
            Ok(opened) => {
                let (link, mut driver) = Link::new(id, opened);
                let link = Arc::new(link);
                previous.clone_from(&link.peer);
                health.opened(&link);
                shared.state.send_replace(State::Up(Arc::clone(&link)));
                let why = link
                    .watch(&mut driver, &subject.settings, LONGEST_PAUSE, || {
                        health.well()
                    })
                    .await;
                health.lost(why);
                shared.state.send_replace(State::Down);
                driver.end().await;
                if link.tells() {
                    subject.listener.deaf(id);
                }
            }
            Err(NoLink::Failed(reason)) => health.lost(&reason),
            Err(NoLink::Refused(text)) => {
                health.lost(&String::from_utf8_lossy(&text));
                shared.state.send_replace(State::Refused(attempt, text));
                shared.wanted.notified().await;
            }
        }
        tokio::time::sleep(health.pause()).await;
    }
}

/// How it goes: paces the attempts, and logs what changes rather than each attempt.
struct Health {
    database: u32,
    next_pause: Duration,
    lost: bool,
    told_mute: bool,
}

impl Health {
    fn new(database: u32) -> Self {
        Self {
            database,
            next_pause: SHORTEST_PAUSE,
            lost: false,
            told_mute: false,
        }
    }

    fn opened(&mut self, link: &Link) {
        if let (Some(reason), false) = (&link.mute, self.told_mute) {
            self.told_mute = true;
            tracing::warn!(
                database = self.database,
                reason,
                "Redis does not tell of changes; locks are polled"
            );
        }
    }

    /// A link has lived for a while.
    fn well(&mut self) {
        self.next_pause = SHORTEST_PAUSE;
        if std::mem::take(&mut self.lost) {
            tracing::info!(
                database = self.database,
                "the connection to Redis for locks is back"
            );
        }
    }

    fn lost(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.lost, true) {
            tracing::warn!(
                database = self.database,
                reason,
                "no connection to Redis for locks; trying again"
            );
        }
    }

    /// How long to wait before the next attempt. Random, so that many gates do not come at once.
    fn pause(&mut self) -> Duration {
        let longest = self.next_pause;
        self.next_pause = (longest * 2).min(LONGEST_PAUSE);
        let random = u32::from(uuid::Uuid::new_v4().as_bytes()[0]);
        longest / 2 + longest / 2 * random / 255
    }
}
