//! Keeps one [`Link`] open for the locks of one user and database.
//!
//! A caller takes the open link, or waits for the next one. When a link breaks, the reconnector opens a new one. It
//! retries for ever, at growing intervals up to [`LONGEST_PAUSE`]. If Redis refuses access, waiting callers get
//! its error, as do those that call during the pause that follows. The next caller triggers a new attempt.
//!
//! Before the first request, the reconnector only tests that it can connect, and closes the connection again: in a
//! Redis without locks, lockgate is no additional client, and tracks no keys.
//!
//! A link ends in this order: new requests no longer find it; its task ends, which resets the socket and
//! answers every request on it with "unknown"; the listener is notified that its pushes are lost.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit, watch},
    time::timeout,
};

use super::{
    can_lock, grace,
    handshake::{self, NoLink, Peer, Subject},
    link::Link,
    settings::LONGEST_PAUSE,
};
use crate::{
    auth::identity::User,
    clock,
    error::NOAUTH,
    lock::{LinkId, Time, UserId},
    store::task::Task,
    transport::endpoint::Route,
};

/// The first pause before connecting again; doubled with each attempt.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Longest wait of a request for a connection that was lost or could not be opened: users that have a
/// connection may be waiting for the same lock.
const PATIENCE: Duration = Duration::from_millis(100);

/// The most requests of a recovery that are in flight at a time: other requests wait behind them, and the extension of
/// the grace does.
const RECOVERIES_IN_FLIGHT: usize = 1_024;

/// The state of the link.
enum State {
    /// No link yet, or no longer; the reason, where there is one.
    Down(Option<String>),
    /// An open link.
    Up(Arc<Link>),
    /// No link: Redis refused access.
    Refused(Refusal),
}

/// Redis's refusal of access.
struct Refusal {
    /// The number of the attempt.
    attempt: u64,
    text: Bytes,
    at: Time,
    /// Until when no new attempt begins, and callers get this refusal.
    until: Time,
}

/// The reconnector of one link.
pub(super) struct Reconnector {
    shared: Arc<Shared>,
    task: OnceLock<Task>,
    recoveries: Semaphore,
}

struct Shared {
    subject: Arc<Subject>,
    /// The number of the store's next link.
    next_id: Arc<AtomicU64>,
    state: watch::Sender<State>,
    /// The number of connection attempts that have begun.
    attempts: AtomicU64,
    /// There was a request, so a link is kept open.
    asked: AtomicBool,
    /// Since when the link has been lost or could not be opened, in microseconds of the process clock.
    down_since: AtomicU64,
    /// A request was not sent for lack of a link: the listener is notified when Redis admits or refuses the user.
    passed_over: AtomicBool,
    /// Notified when a caller waits for a link.
    wanted: Notify,
    /// When a caller last took the link, in microseconds of the process clock.
    used_at: AtomicU64,
}

impl Reconnector {
    /// Creates a reconnector. It opens nothing before [`begin`](Self::begin) or the first request.
    pub(super) fn new(subject: Subject, next_id: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new_cyclic(|this| {
            let reconnector = Weak::clone(this);
            let subject = Subject {
                reconnector,
                ..subject
            };
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
                recoveries: Semaphore::new(RECOVERIES_IN_FLIGHT),
            }
        })
    }

    /// Waits until a request of a recovery may be sent: not too many others are in flight, and every queue is notified.
    pub(super) async fn recovery(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        let permit = self.recoveries.acquire().await.ok();
        self.shared.subject.data_loss.notified().await;
        permit
    }

    /// Returns the open link, or waits for the next one.
    ///
    /// # Errors
    /// Redis's own error, if it refuses access: at an attempt that begins after this call, or at one whose pause is
    /// not over.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Bytes> {
        self.used();
        if let Some(known) = self.known() {
            return known;
        }
        let old = self.shared.attempts.load(Ordering::Acquire);
        self.shared.asked.store(true, Ordering::Release);
        self.begin();
        self.shared.wanted.notify_one();
        let mut states = self.shared.state.subscribe();
        let found = states
            .wait_for(|state| match state {
                State::Down(_) => false,
                State::Up(_) => true,
                State::Refused(refusal) => refusal.attempt > old,
            })
            .await;
        match found.as_deref() {
            Ok(State::Up(link)) => Ok(Arc::clone(link)),
            Ok(State::Refused(refusal)) => Err(refusal.text.clone()),
            // Unreachable while `self` owns the sender.
            Ok(State::Down(_)) | Err(_) => Err(Bytes::from_static(
                b"UPSTREAM there is no connection to Redis",
            )),
        }
    }

    /// Returns the open link, or the next one if it comes soon. None: the request must not wait, and the
    /// listener is notified when Redis admits or refuses the user.
    ///
    /// # Errors
    /// As [`link`](Self::link).
    pub(super) async fn link_soon(&self, within: Duration) -> Option<Result<Arc<Link>, Bytes>> {
        let down_for = match &*self.shared.state.borrow() {
            State::Down(Some(_)) => self.shared.down_for(),
            State::Down(None) | State::Up(_) | State::Refused(_) => Duration::ZERO,
        };
        let patience = PATIENCE.saturating_sub(down_for).min(within);
        if let Ok(link) = timeout(patience, self.link()).await {
            return Some(link);
        }
        self.shared.passed_over.store(true, Ordering::SeqCst);
        // The link or the refusal may have come just before the flag was set.
        self.known()
    }

    /// Returns the open link, or the refusal whose pause is not over.
    fn known(&self) -> Option<Result<Arc<Link>, Bytes>> {
        match &*self.shared.state.borrow() {
            State::Up(link) => Some(Ok(Arc::clone(link))),
            // A password that was accepted since may open the link.
            State::Refused(refusal)
                if clock::now() < refusal.until
                    && !self.shared.subject.user.is_verified_since(refusal.at) =>
            {
                Some(Err(refusal.text.clone()))
            }
            State::Down(_) | State::Refused(_) => None,
        }
    }

    /// Returns the open link.
    pub(super) fn open_link(&self) -> Option<Arc<Link>> {
        self.used();
        match &*self.shared.state.borrow() {
            State::Up(link) => Some(Arc::clone(link)),
            State::Down(_) | State::Refused(_) => None,
        }
    }

    fn used(&self) {
        let now = clock::now().micros();
        self.shared.used_at.store(now, Ordering::Relaxed);
    }

    /// Returns whether Redis owes replies on the open link.
    pub(super) fn is_asking(&self) -> bool {
        match &*self.shared.state.borrow() {
            State::Up(link) => link.is_asking(),
            State::Down(_) | State::Refused(_) => false,
        }
    }

    /// Starts connecting, unless it has started already. Until a caller asks for the [link](Self::link), this
    /// only tests the connection.
    pub(super) fn begin(&self) {
        self.task
            .get_or_init(|| Task::spawn(keep(Arc::clone(&self.shared))));
    }

    /// Returns when a caller last asked for the link, or when the reconnector was created.
    pub(super) fn used_at(&self) -> Time {
        Time::from_micros(self.shared.used_at.load(Ordering::Relaxed))
    }

    /// Returns the number of the open link.
    pub(super) fn link_now(&self) -> Option<LinkId> {
        match &*self.shared.state.borrow() {
            State::Up(link) => Some(link.id),
            State::Down(_) | State::Refused(_) => None,
        }
    }

    /// Returns the purpose of its links.
    pub(super) fn subject(&self) -> &Subject {
        &self.shared.subject
    }

    /// Returns why there is no link.
    pub(super) fn trouble(&self) -> Option<String> {
        match &*self.shared.state.borrow() {
            State::Down(reason) => reason.clone(),
            State::Up(_) | State::Refused(_) => None,
        }
    }

    /// Gives up a broken link. Returns when new requests no longer find it.
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
        self.notify_passed_over();
    }

    fn refused(&self, refusal: Refusal) {
        self.state.send_replace(State::Refused(refusal));
        self.notify_passed_over();
    }

    fn notify_passed_over(&self) {
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
    let subject = Arc::clone(&shared.subject);
    let mut keeper = Keeper {
        health: Health::new(&subject.user, subject.database, subject.data_loss.matters()),
        shared,
        subject: Arc::clone(&subject),
        previous: None,
        was_up: false,
        interrupted: false,
    };
    loop {
        let attempt = keeper.shared.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        let mut route = subject.settings.endpoint.route();
        match keeper.open(&mut route).await {
            Ok(None) => continue,
            Ok(Some(met)) if !keeper.shared.asked.load(Ordering::Acquire) => {
                keeper.close_until_wanted(met).await;
                continue;
            }
            Ok(Some(met)) => keeper.serve(met, &mut route).await,
            Err(NoLink::Failed(reason)) => keeper.failed(reason),
            Err(NoLink::Refused(text) | NoLink::WrongPassword(text)) => {
                keeper.refused(attempt, text).await;
                continue;
            }
        }
        keeper.interrupted = true;
        subject.settings.endpoint.doubt();
        let pause = keeper.health.pause();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = route.left() => {}
        }
    }
}

/// The task of a reconnector: opens one link after the other.
struct Keeper {
    shared: Arc<Shared>,
    subject: Arc<Subject>,
    health: Health,
    /// The previous link as Redis lists it: the next one ends whatever Redis still has of it.
    previous: Option<Peer>,
    /// There was a link that requests could use.
    was_up: bool,
    /// A link broke, or could not be opened.
    interrupted: bool,
}

impl Keeper {
    /// Opens a link, and checks whether Redis still has its data. None: the address has changed before that.
    async fn open(&mut self, route: &mut Route) -> Result<Option<Met>, NoLink> {
        let id = LinkId::new(self.shared.next_id.fetch_add(1, Ordering::Relaxed));
        let losses = self.subject.data_loss.losses();
        let opened = tokio::select! {
            opened = handshake::open(&self.subject, id, self.previous.as_ref()) => opened?,
            () = route.left() => return Ok(None),
        };
        self.health.opened(&opened);
        let met = meet(&self.subject, id, opened, losses, self.interrupted).await?;
        if route.is_left() {
            met.driver.end().await;
            return Ok(None);
        }
        Ok(Some(met))
    }

    /// Closes a link that only tested the connection. Returns when a caller wants one.
    async fn close_until_wanted(&mut self, met: Met) {
        self.health.well();
        met.driver.end().await;
        self.shared.state.send_replace(State::Down(None));
        self.shared.wanted.notified().await;
    }

    /// Lets callers use the link until it breaks, and then ends it.
    async fn serve(&mut self, met: Met, route: &mut Route) {
        let Met {
            link,
            mut driver,
            mut losses,
            grace,
        } = met;
        let knows_redis = grace.is_some();
        self.previous.clone_from(&link.peer);
        self.shared.up(&link);
        let again = std::mem::replace(&mut self.was_up, true);
        let open = self.subject.metrics.opened(again);
        let well = || self.health.well();
        let why = tokio::select! {
            why = link.watch(&mut driver, &self.subject, knows_redis, well) => why,
            _ = losses.changed() => "Redis lost data, as another connection found",
            () = route.left() => "the address of the master has changed, or may not be used now",
        };
        self.subject.metrics.lost();
        self.health.lost(why);
        self.shared.down(why.to_owned());
        drop((open, grace));
        let subject = Arc::clone(&self.subject);
        // A task of its own: this user may be dropped as unused meanwhile.
        let ended = tokio::spawn(async move {
            driver.end().await;
            link.report_unanswered(&subject);
            if link.tells() {
                subject.listener.tracking_lost(link.id);
            }
        });
        let _ = ended.await;
    }

    fn failed(&mut self, reason: String) {
        self.subject.metrics.failed();
        // Its log line names the waiters.
        if can_lock::class(reason.as_bytes()).is_none() {
            self.health.lost(&reason);
        }
        self.subject.can_lock.suspect(reason.clone());
        self.shared.down(reason);
    }

    /// Gives callers the refusal. Returns after a pause, when a caller wants a link.
    async fn refused(&mut self, attempt: u64, text: Bytes) {
        if self.health.refused(&text) {
            self.subject.metrics.failed();
        }
        // A refusal may be over at once: the first one delays no attempt.
        let pause = self.health.pause();
        let pause = if pause > SHORTEST_PAUSE {
            pause
        } else {
            Duration::ZERO
        };
        let at = clock::now();
        self.shared.refused(Refusal {
            attempt,
            text,
            at,
            until: at.plus(pause),
        });
        tokio::time::sleep(pause).await;
        self.shared.wanted.notified().await;
    }
}

/// A link that may be used.
struct Met {
    link: Arc<Link>,
    driver: Task,
    /// Changes when another connection finds a loss of data.
    losses: watch::Receiver<u64>,
    /// Sees each grace to its end, where Redis says who it is.
    grace: Option<Task>,
}

/// Sees whether Redis still has the data that it had, before anything is asked. A grace that begins here is seen to
/// its end from its beginning on: to tell very many queues of the loss may take longer.
async fn meet(
    subject: &Arc<Subject>,
    id: LinkId,
    opened: handshake::Opened,
    mut losses: watch::Receiver<u64>,
    interrupted: bool,
) -> Result<Met, NoLink> {
    let (data_loss, listener) = (&subject.data_loss, &subject.listener);
    if let Some(why) = &opened.server.takes_no_writes {
        return Err(NoLink::Failed(why.clone()));
    }
    let identity = opened.server.identity.clone().ok();
    let grace_until = match identity {
        None if interrupted => data_loss.unseen_grace_until().await,
        // Said in the log: nothing is written back.
        None | Some(_) => Time::default(),
    };
    let (link, driver) = Link::new(id, opened, grace_until, subject);
    let link = Arc::new(link);
    let mut grace = None;
    if let Some(identity) = identity {
        let (subject, link) = (Arc::clone(subject), Arc::clone(&link));
        grace = Some(Task::spawn(grace::see_to_it(
            subject,
            link,
            identity.clone(),
        )));
        data_loss.met(&identity, &mut losses, listener).await?;
    }
    Ok(Met {
        link,
        driver,
        losses,
        grace,
    })
}

/// The health of a link: paces the attempts, and logs changes rather than each attempt.
struct Health {
    user: Arc<User>,
    database: u32,
    next_pause: Duration,
    writes_back: bool,
    lost: bool,
    /// The effects that the log has.
    told: Vec<&'static str>,
}

impl Health {
    fn new(user: &Arc<User>, database: u32, writes_back: bool) -> Self {
        Self {
            user: Arc::clone(user),
            database,
            next_pause: SHORTEST_PAUSE,
            writes_back,
            lost: false,
            told: Vec::new(),
        }
    }

    /// Logs what does not work on a new link, once each, in one line.
    fn opened(&mut self, opened: &handshake::Opened) {
        let mut lacks = opened.lacks(self.writes_back);
        lacks.retain(|(effect, _)| !self.told.contains(effect));
        if lacks.is_empty() {
            return;
        }
        let effects = lacks.iter().map(|(effect, reason)| {
            self.told.push(effect);
            format!("{effect} ({reason})")
        });
        let lacks = effects.collect::<Vec<_>>().join("; ");
        tracing::warn!(
            user = self.user.name(),
            database = self.database,
            lacks,
            "in front of this Redis lockgate lacks something; `lockgate doctor` says what to change"
        );
    }

    /// Records that a link has lived for a while.
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

    /// Records a refusal. Returns whether it is a problem.
    fn refused(&mut self, text: &[u8]) -> bool {
        // `NOAUTH` is expected for the anonymous user.
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

    /// Returns the pause before the next attempt. It is random, so that many instances do not connect at once.
    fn pause(&mut self) -> Duration {
        let longest = self.next_pause;
        self.next_pause = (longest * 2).min(LONGEST_PAUSE);
        let random = u32::from(uuid::Uuid::new_v4().as_bytes()[0]);
        longest / 2 + longest / 2 * random / 255
    }
}
