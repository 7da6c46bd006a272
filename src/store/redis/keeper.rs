//! Keeps one [`Link`] open for the locks of one user and database.
//!
//! Whoever wants to ask takes the link that is open, or waits for the next one. When a link breaks,
//! a new one is opened, for ever, ever less often up to [`LONGEST_PAUSE`]. Where Redis does not let
//! us in, those who wait are told in its words, and it is tried again when the next one comes.
//!
//! Until the first question a connection is only opened to see whether it can be, and closed again:
//! a Redis whose clients take no locks has no client more than them, and nobody who tracks.
//!
//! The order at a link's end: no new question finds it; its task ends, so that the socket is reset
//! and every question on it is answered "unknown"; the listener hears that it is deaf.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

use super::{
    grace,
    greeting::{self, NoLink, Subject},
    link::Link,
    settings::LONGEST_PAUSE,
};
use crate::{
    clock,
    error::NOAUTH,
    identity::User,
    lock::{LinkId, Time, UserId},
    store::task::Task,
};

/// The first pause before connecting again; doubled with each attempt.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// No question waits longer for a connection that was lost, or could not be opened: the lock may be wanted by users
/// who have one.
const PATIENCE: Duration = Duration::from_millis(100);

/// What there is to ask on.
enum State {
    /// Nothing yet, or not any more; and why.
    Down(Option<String>),
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
    /// There was a question: a link is kept open.
    asked: AtomicBool,
    /// Since when the link is lost or cannot be opened, in microseconds of the gate's clock.
    down_since: AtomicU64,
    /// A question was not sent for want of a link: the listener hears of the next one.
    passed_over: AtomicBool,
    /// Somebody waits for a link.
    wanted: Notify,
    /// When somebody asked for it last, in microseconds of the gate's clock.
    used_at: AtomicU64,
}

impl Keeper {
    /// Nothing is opened before it is told to [begin](Self::begin), or the first question.
    pub(super) fn new(subject: Subject, next_id: Arc<AtomicU64>) -> Self {
        let shared = Shared {
            subject: Arc::new(subject),
            next_id,
            state: watch::Sender::new(State::Down(None)),
            attempts: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            down_since: AtomicU64::new(0),
            passed_over: AtomicBool::new(false),
            wanted: Notify::new(),
            used_at: AtomicU64::new(clock::now().micros()),
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
        let now = clock::now().micros();
        self.shared.used_at.store(now, Ordering::Relaxed);
        if let State::Up(link) = &*self.shared.state.borrow() {
            return Ok(Arc::clone(link));
        }
        // What was refused before, or is being refused now, says nothing of this question.
        let old = self.shared.attempts.load(Ordering::Acquire);
        self.shared.asked.store(true, Ordering::Release);
        self.begin();
        self.shared.wanted.notify_one();
        let mut states = self.shared.state.subscribe();
        let found = states
            .wait_for(|state| match state {
                State::Down(_) => false,
                State::Up(_) => true,
                State::Refused(attempt, _) => *attempt > old,
            })
            .await;
        match found.as_deref() {
            Ok(State::Up(link)) => Ok(Arc::clone(link)),
            Ok(State::Refused(_, text)) => Err(text.clone()),
            // Not while `self` owns the sender.
            Ok(State::Down(_)) | Err(_) => Err(Bytes::from_static(
                b"UPSTREAM there is no connection to Redis",
            )),
        }
    }

    /// The link that is open, or the next one if it comes soon. None: no question waits for it, and the listener
    /// hears when there is one.
    ///
    /// # Errors
    /// As [`link`](Self::link).
    pub(super) async fn link_soon(&self, within: Duration) -> Option<Result<Arc<Link>, Bytes>> {
        let down_for = match &*self.shared.state.borrow() {
            State::Down(Some(_)) => self.shared.down_for(),
            State::Down(None) | State::Up(_) | State::Refused(..) => Duration::ZERO,
        };
        let patience = PATIENCE.saturating_sub(down_for).min(within);
        if let Ok(link) = timeout(patience, self.link()).await {
            return Some(link);
        }
        self.shared.passed_over.store(true, Ordering::SeqCst);
        // It may have come just before that was noted.
        match &*self.shared.state.borrow() {
            State::Up(link) => Some(Ok(Arc::clone(link))),
            State::Down(_) | State::Refused(..) => None,
        }
    }

    /// Begins to connect, unless that was done before: to see whether it can be done, until somebody
    /// asks for the [link](Self::link).
    pub(super) fn begin(&self) {
        self.task
            .get_or_init(|| Task::spawn(keep(Arc::clone(&self.shared))));
    }

    /// When somebody asked for the link last; or when this was made.
    pub(super) fn used_at(&self) -> Time {
        Time::from_micros(self.shared.used_at.load(Ordering::Relaxed))
    }

    /// The link that is open now.
    pub(super) fn link_now(&self) -> Option<LinkId> {
        match &*self.shared.state.borrow() {
            State::Up(link) => Some(link.id),
            State::Down(_) | State::Refused(..) => None,
        }
    }

    /// Why there is no link.
    pub(super) fn trouble(&self) -> Option<String> {
        match &*self.shared.state.borrow() {
            State::Down(reason) => reason.clone(),
            State::Up(_) | State::Refused(..) => None,
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

impl Shared {
    fn down(&self, reason: String) {
        let now = clock::now().micros();
        if !matches!(&*self.state.borrow(), State::Down(Some(_))) {
            self.down_since.store(now, Ordering::Relaxed);
        }
        self.state.send_replace(State::Down(Some(reason)));
    }

    fn down_for(&self) -> Duration {
        let since = Time::from_micros(self.down_since.load(Ordering::Relaxed));
        Duration::from_micros(clock::now().micros_since(since))
    }

    fn up(&self, link: &Arc<Link>) {
        self.state.send_replace(State::Up(Arc::clone(link)));
        if self.passed_over.swap(false, Ordering::SeqCst) {
            let Subject {
                user,
                database,
                listener,
                ..
            } = &*self.subject;
            listener.linked(user.id(), *database);
        }
    }
}

async fn keep(shared: Arc<Shared>) {
    let subject = &shared.subject;
    let mut health = Health::new(&subject.user, subject.database, subject.history.matters());
    // What Redis may still have of the last link is ended by the next.
    let (mut previous, mut broke, mut interrupted) = (None, false, false);
    loop {
        let attempt = shared.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let id = LinkId(shared.next_id.fetch_add(1, Ordering::Relaxed));
        let mut losses = subject.history.losses();
        let opened = match greeting::open(subject, id, previous.as_ref()).await {
            Ok(opened) => {
                health.opened(&opened);
                meet(subject, id, opened, &mut losses, interrupted).await
            }
            Err(no_link) => Err(no_link),
        };
        match opened {
            Ok(met) if !shared.asked.load(Ordering::Acquire) => {
                health.well();
                met.driver.end().await;
                shared.state.send_replace(State::Down(None));
                shared.wanted.notified().await;
                continue;
            }
            Ok(met) => {
                let Met {
                    link,
                    mut driver,
                    grace,
                } = met;
                let knows_redis = grace.is_some();
                previous.clone_from(&link.peer);
                shared.up(&link);
                let open = subject.metrics.opened(std::mem::replace(&mut broke, true));
                let well = || health.well();
                let why = tokio::select! {
                    why = link.watch(&mut driver, subject, knows_redis, well) => why,
                    _ = losses.changed() => "Redis lost data, as another connection found",
                };
                health.lost(why);
                shared.down(why.to_owned());
                drop((open, grace));
                driver.end().await;
                if link.tells() {
                    subject.listener.deaf(id);
                }
            }
            Err(NoLink::Failed(reason)) => {
                subject.metrics.failed();
                health.lost(&reason);
                shared.down(reason);
            }
            Err(NoLink::Refused(text) | NoLink::WrongPassword(text)) => {
                if health.refused(&text) {
                    subject.metrics.failed();
                }
                shared.state.send_replace(State::Refused(attempt, text));
                // Who comes later than the pause does not wait for it.
                let pause = tokio::time::sleep(health.pause());
                tokio::join!(shared.wanted.notified(), pause);
                continue;
            }
        }
        interrupted = true;
        tokio::time::sleep(health.pause()).await;
    }
}

/// A link that may be used.
struct Met {
    link: Arc<Link>,
    driver: Task,
    /// Sees each grace to its end, where Redis says who it is.
    grace: Option<Task>,
}

/// Sees whether Redis still has the data that it had, before anything is asked. A grace that begins here is seen to
/// its end from its beginning on: to tell very many queues of the loss may take longer.
async fn meet(
    subject: &Arc<Subject>,
    id: LinkId,
    opened: greeting::Opened,
    losses: &mut watch::Receiver<u64>,
    interrupted: bool,
) -> Result<Met, NoLink> {
    let (history, listener) = (&subject.history, &subject.listener);
    let identity = opened.identity.clone().ok();
    let grace_until = match identity {
        None if interrupted => history.unseen_grace_until().await,
        // Said in the log: nothing is written back.
        None | Some(_) => Time::default(),
    };
    let metrics = Arc::clone(&subject.metrics);
    let (link, driver) = Link::new(id, opened, grace_until, metrics);
    let link = Arc::new(link);
    let Some(identity) = identity else {
        let grace = None;
        return Ok(Met {
            link,
            driver,
            grace,
        });
    };
    let grace = {
        let (subject, link) = (Arc::clone(subject), Arc::clone(&link));
        Task::spawn(grace::see_to_it(subject, link, identity.clone()))
    };
    history.met(&identity, losses, listener).await?;
    Ok(Met {
        link,
        driver,
        grace: Some(grace),
    })
}

/// How it goes: paces the attempts, and logs what changes rather than each attempt.
struct Health {
    user: Arc<User>,
    database: u32,
    next_pause: Duration,
    writes_back: bool,
    lost: bool,
    told_mute: bool,
    told_unknown: bool,
    told_evicts: bool,
    told_no_account: bool,
    told_no_mark: bool,
}

impl Health {
    fn new(user: &Arc<User>, database: u32, writes_back: bool) -> Self {
        Self {
            user: Arc::clone(user),
            database,
            next_pause: SHORTEST_PAUSE,
            writes_back,
            lost: false,
            told_mute: false,
            told_unknown: false,
            told_evicts: false,
            told_no_account: false,
            told_no_mark: false,
        }
    }

    fn opened(&mut self, opened: &greeting::Opened) {
        let (user, database) = (self.user.name(), self.database);
        let user = user.as_deref();
        if let (Some(reason), false) = (&opened.no_account, self.told_no_account) {
            self.told_no_account = true;
            tracing::warn!(
                user,
                database,
                reason,
                "Redis does not let upstream.user in; it is asked as the client's user"
            );
        }
        if let (Some(reason), false) = (&opened.mute, self.told_mute) {
            self.told_mute = true;
            tracing::warn!(
                user,
                database,
                reason,
                "Redis does not tell of changes; locks are polled"
            );
        }
        if let (Err(reason), true, false) = (&opened.identity, self.writes_back, self.told_unknown)
        {
            self.told_unknown = true;
            tracing::warn!(
                user,
                database,
                reason,
                "Redis does not say who it is (INFO); leases are not written back when it loses them"
            );
        }
        if let (Ok(identity), true, false) = (&opened.identity, self.writes_back, self.told_no_mark)
            && identity.takes_no_writes.is_none()
            && let Err(reason) = &identity.grace_left
        {
            self.told_no_mark = true;
            tracing::warn!(
                user,
                database,
                reason,
                "Redis does not let this user write lockgate:grace; each start of lockgate grants nothing for \
                 write_back.grace"
            );
        }
        if let (Some(policy), false) = (&opened.evicts, self.told_evicts) {
            self.told_evicts = true;
            tracing::warn!(
                user,
                database,
                policy,
                "Redis may evict a lock before its lease is over; set maxmemory-policy noeviction"
            );
        }
    }

    /// A link has lived for a while.
    fn well(&mut self) {
        self.next_pause = SHORTEST_PAUSE;
        if std::mem::take(&mut self.lost) {
            tracing::info!(
                user = self.user.name(),
                database = self.database,
                "the connection to Redis for locks is back"
            );
        }
    }

    /// Returns whether that is trouble.
    fn refused(&mut self, text: &[u8]) -> bool {
        // Where Redis wants a password it is none that it wants one.
        let is_trouble = self.user.id() != UserId::ANONYMOUS || text != NOAUTH.as_bytes();
        if is_trouble {
            self.lost(&String::from_utf8_lossy(text));
        }
        is_trouble
    }

    fn lost(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.lost, true) {
            tracing::warn!(
                user = self.user.name(),
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
