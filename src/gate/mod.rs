//! The driver of the queues: a map from lock name to [`Queue`](crate::lock::Queue). It passes events to the
//! queues, performs their actions and keeps their timers. It decides nothing itself.
//!
//! This file is the gate's interface. Every event of a lock reaches its queue through [`Gate::dispatch`]
//! (`dispatch.rs`): clients' requests, the store's replies, pushes, timers, clients that vanish. The queue handles
//! the event under the map's lock, which is never held across an await; the gate performs the resulting actions
//! afterwards.
//!
//! A reply must reach its client. The reply goes to a [`Pending`], which notifies the queue if it is dropped
//! before the reply came. A grant continues in a [`Grant`], which notifies the queue if it is dropped before
//! delivery. So a client can vanish at any point, and no lock stays held without an owner.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    hash::RandomState,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashMap;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use crate::{
    auth::identity::Credentials,
    clock,
    limits::Limits,
    lock::{
        Attempt, ConnectionId, Event, LockRequest, Refusal, Reply, RequestId, Settings, Snapshot,
        Time, Token, UserId, Wait, WriteBack,
    },
    store::{Admission, Later, LockName, LockStatus, Needed, Store},
    telemetry::{
        counters::Counters,
        metrics::{
            absorb::AbsorbMetrics,
            locks::{LockMetrics, Request},
            upstream::UpstreamMetrics,
        },
        slow_log::SlowLog,
    },
};

mod dead_tokens;
mod dispatch;
mod entry;
mod label;
mod lock_log;
mod pending;
mod store_listener;
mod sweeps;
mod timers;
mod view;
mod warnings;

use dead_tokens::DeadTokens;
use dispatch::Caller;
use entry::Entry;
pub use label::{CLIENT_INFO_BYTES, ClientInfo, Label};
use lock_log::LockLog;
pub use pending::{Answer, Bound, Grant, Pending};
use store_listener::StoreListener;
use sweeps::Sweeps;
use timers::Timers;
use view::SHARDS;
pub use view::{FirstWaiter, Found, Held, LockSnapshot, View};
use warnings::Warnings;

/// Upper bound of the bytes around a name in a reply, such as `$1024\r\n` and `\r\n`.
const NAME_OVERHEAD_BYTES: usize = 10;

/// The driver of all queues. It is shared cheaply, and ends with its last [`Arc`].
pub struct Gate {
    queues: DashMap<LockName, Entry>,
    /// The length of `queues`, without visiting every shard.
    known: AtomicUsize,
    /// The number of requests that wait for a lock.
    waiting: AtomicUsize,
    asking: AtomicUsize,
    timers: Arc<Timers>,
    store: Arc<dyn Store>,
    settings: Settings,
    limits: Limits,
    counters: Counters,
    metrics: LockMetrics,
    absorbed: Arc<AbsorbMetrics>,
    warnings: Warnings,
    log: LockLog,
    dead_tokens: DeadTokens,
    /// The number of locks that have not recovered from a loss of data yet.
    recovering: AtomicUsize,
    /// Locks whose queues have not heard of the loss yet.
    untold: AtomicUsize,
    sweeps: Sweeps,
    next_request: AtomicU64,
    seeds: RandomState,
    /// The runtime that awaits the store's replies, whichever thread sends the requests.
    runtime: Handle,
    /// A reference to itself, for tasks that outlive the call that started them.
    this: Weak<Gate>,
}

/// A client, as the gate knows it.
#[derive(Debug, Clone)]
pub struct Client {
    /// The user on whose behalf the client acts.
    pub user: UserId,
    /// The label that operators see.
    pub label: Arc<Label>,
}

/// A client's wish for a lock.
#[derive(Debug, Clone)]
pub struct LockOptions {
    /// When the client asked.
    pub asked_at: Time,
    /// The token to hold the lock with. None: the gate creates one.
    pub token: Option<Token>,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// How long to wait, in milliseconds. None: for ever.
    pub wait_ms: Option<u64>,
    /// `TRYLOCK`: does not wait at all.
    pub try_only: bool,
    /// The client wants a fence.
    pub fence: bool,
    /// Binds the lease to the client's connection. The mailbox receives a message when the lease is no longer
    /// bound: at most one for each grant with [`Grant::delivered`]'s [`Bound`].
    pub session: Option<Mailbox>,
    /// The number of replicas that have to acknowledge the grant.
    pub replicas: u32,
    /// The client's connection.
    pub connection: ConnectionId,
    /// The request is one attempt of a client that spins.
    pub attempt: Option<Attempt>,
}

/// A client's wish for a new lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension {
    /// The lease from now on, in milliseconds.
    pub lease_ms: u64,
    /// The number of replicas that have to acknowledge it; more if the grant had more.
    pub replicas: u32,
}

/// The channel that notifies a client of the leases bound to its connection.
pub type Mailbox = mpsc::UnboundedSender<SessionOver>;

/// A notification that a lease is no longer bound to the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOver {
    /// The [`Bound::request`].
    pub request: RequestId,
    /// The client believes that it holds the lock, and does not.
    pub lost: bool,
}

/// The reply to `LOCKINFO`.
#[derive(Debug)]
pub struct Info {
    /// The state in the store now.
    pub status: LockStatus,
    /// The state in this instance.
    pub here: Option<(Snapshot, Option<Arc<Label>>)>,
}

impl Gate {
    /// Creates a gate in front of a store. It records its activity in `metrics`, and logs waits and holds that last as
    /// long as `slow` says.
    ///
    /// # Panics
    /// Outside of a tokio runtime. The gate spawns the task that keeps the timers, which ends with the gate.
    pub fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        limits: Limits,
        metrics: LockMetrics,
        slow: Arc<SlowLog>,
    ) -> Arc<Self> {
        let timers = Arc::new(Timers::default());
        let gate = Arc::new_cyclic(|this| Self {
            queues: DashMap::with_shard_amount(SHARDS),
            known: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            asking: AtomicUsize::new(0),
            timers: Arc::clone(&timers),
            store: Arc::clone(&store),
            settings,
            recovering: AtomicUsize::new(0),
            untold: AtomicUsize::new(0),
            dead_tokens: DeadTokens::new(match settings.write_back {
                WriteBack::Off => 0,
                WriteBack::All | WriteBack::Session => limits.released_tokens,
            }),
            limits,
            counters: Counters::new(),
            metrics,
            absorbed: Arc::default(),
            warnings: Warnings::default(),
            log: LockLog::new(slow),
            sweeps: Sweeps::default(),
            next_request: AtomicU64::new(0),
            seeds: RandomState::new(),
            runtime: Handle::current(),
            this: this.clone(),
        });
        store.listen(Arc::new(StoreListener(gate.this.clone())));
        store.connect();
        gate.runtime.spawn(timers::keep(gate.this.clone(), timers));
        if let Some(every) = gate.store.closes_unused_every() {
            gate.runtime.spawn(close_unused(gate.this.clone(), every));
        }
        gate
    }

    /// Returns whether no lock can have this name.
    pub fn is_reserved(&self, name: &LockName) -> bool {
        self.store.is_reserved(name)
    }

    /// Runs `LOCK` or `TRYLOCK`. Dropping the [`Pending`] leaves the queue.
    pub fn lock(&self, client: &Client, name: LockName, wish: &LockOptions) -> Pending {
        let explicit = wish.token.is_some();
        let token = wish.token.clone().unwrap_or_else(new_token);
        let asked = match (&wish.attempt, wish.try_only) {
            (Some(_), _) => Request::Attempt,
            (None, true) => Request::TryLock,
            (None, false) => Request::Lock,
        };
        let (request, mut reply_to, pending) =
            self.request(client, &name, &token, asked, wish.asked_at);
        reply_to.mailbox.clone_from(&wish.session);
        let wait = match (wish.try_only, wish.wait_ms) {
            (true, _) => Wait::No,
            (false, None) => Wait::Forever,
            (false, Some(millis)) => Wait::Until(wish.asked_at.plus_millis(millis)),
        };
        let full = self.known.load(Ordering::Relaxed) >= self.limits.locks;
        if full && !self.queues.contains_key(&name) {
            let answered_by = wish.asked_at.plus_millis(self.settings.answer_within_ms);
            let (until, late) = match wait {
                Wait::Until(until) if until < answered_by => (until, Reply::Nil),
                _ => (answered_by, Reply::Refused(Refusal::Upstream)),
            };
            self.refuse_one_more(name, reply_to, until, late);
            return pending;
        }
        let (user, lease_ms) = (client.user, wish.lease_ms);
        let ask = LockRequest {
            request,
            asked_at: wish.asked_at,
            user,
            token,
            explicit,
            lease_ms,
            wait,
            fence: wish.fence,
            session: wish.session.is_some(),
            replicas: wish.replicas,
            connection: wish.connection,
            attempt: wish.attempt,
        };
        self.dispatch(&name, Event::Lock(ask), Some(reply_to));
        pending
    }

    /// Refuses a lock because the limit on locks is reached. The store confirms the user's access first: the
    /// refusal shows that this lock is not among the known ones, which only authorized users may learn. If the
    /// store does not confirm it by `until`, the reply is `late`.
    fn refuse_one_more(&self, name: LockName, caller: Caller, until: Time, late: Reply) {
        let (status, gate) = (self.store.status(&name, caller.user), self.this.clone());
        let within = Duration::from_micros(until.micros_since(clock::now()));
        self.runtime.spawn(async move {
            let mut reply = match tokio::time::timeout(within, status).await {
                Ok(Ok(_)) => Reply::Refused(Refusal::TooManyLocks),
                Ok(Err(error)) => Reply::Refused(Refusal::Store(error)),
                Err(_) => late,
            };
            if let Some(gate) = gate.upgrade() {
                reply = gate.explained(&name, caller.user, reply, true);
                gate.answered(&name, clock::now(), &caller, &reply);
            }
            // The `Pending` finds its reply there.
            let _ = caller.reply_to.send(reply);
        });
    }

    /// Returns whether this instance has state of the lock, or may have.
    pub fn knows(&self, name: &LockName) -> bool {
        self.queues.contains_key(name)
    }

    /// Returns whether the lock is held under a lease of this instance, as far as it knows.
    pub fn has_lease(&self, name: &LockName) -> bool {
        let entry = self.queues.get(name);
        entry.is_some_and(|entry| entry.queue(|it| it.held_since().is_some()))
    }

    /// Returns whether a place is kept for the next attempt with this token.
    pub fn keeps_place(&self, name: &LockName, user: UserId, token: &Token) -> bool {
        let entry = self.queues.get(name);
        entry.is_some_and(|entry| entry.queue(|it| it.keeps_place(user, token)))
    }

    /// Returns whether a request only waits: no request to the store is on its way for it.
    fn is_queued(&self, name: &LockName, request: RequestId) -> bool {
        let entry = self.queues.get(name);
        entry.is_some_and(|entry| entry.queue(|it| it.is_queued(request)))
    }

    /// Returns the token that holds the lock under a lease of this instance, as far as it knows, and how many
    /// milliseconds that lease lasts at least.
    pub fn holder(&self, name: &LockName) -> Option<(Token, u64)> {
        let entry = self.queues.get(name)?;
        entry.queue(|queue| {
            let (token, left_ms) = queue.holder(clock::now())?;
            Some((token.clone(), left_ms))
        })
    }

    /// Returns whether a request for the lock would be refused because of the limit on locks.
    pub fn is_full_for(&self, name: &LockName) -> bool {
        self.known.load(Ordering::Relaxed) >= self.limits.locks && !self.knows(name)
    }

    /// Runs `UNLOCK`, which the client sent at `asked_at`, or a release by a command of Redis's own (`absorbed`). It
    /// runs even if the [`Pending`] is dropped.
    pub fn unlock(
        &self,
        client: &Client,
        name: LockName,
        token: Token,
        asked_at: Time,
        absorbed: bool,
    ) -> Pending {
        let asked = match absorbed {
            true => Request::Absorbed,
            false => Request::Unlock,
        };
        let (request, reply_to, pending) = self.request(client, &name, &token, asked, asked_at);
        let event = Event::Unlock {
            request,
            asked_at,
            user: client.user,
            token,
            absorbed,
        };
        self.dispatch(&name, event, Some(reply_to));
        pending
    }

    /// Releases the lock if the client's user holds it by a grant of this instance, whatever its token. It runs even if
    /// the [`Pending`] is dropped.
    pub fn delete(&self, client: &Client, name: LockName, asked_at: Time) -> Pending {
        let no_token = Token::new([]);
        let (request, reply_to, pending) =
            self.request(client, &name, &no_token, Request::Absorbed, asked_at);
        let event = Event::Delete {
            request,
            asked_at,
            user: client.user,
        };
        self.dispatch(&name, event, Some(reply_to));
        pending
    }

    /// Runs `RELOCK`, which the client sent at `asked_at`, or an extension by a command of Redis's own (`absorbed`): the
    /// lease begins anew. It runs even if the [`Pending`] is dropped.
    pub fn relock(
        &self,
        client: &Client,
        name: LockName,
        token: Token,
        extension: Extension,
        asked_at: Time,
        absorbed: bool,
    ) -> Pending {
        let asked = match absorbed {
            true => Request::Absorbed,
            false => Request::Relock,
        };
        let (request, reply_to, pending) = self.request(client, &name, &token, asked, asked_at);
        let event = Event::Relock {
            request,
            asked_at,
            user: client.user,
            token,
            lease_ms: extension.lease_ms,
            replicas: extension.replicas,
            absorbed,
        };
        self.dispatch(&name, event, Some(reply_to));
        pending
    }

    /// Runs `LOCKINFO`.
    ///
    /// # Errors
    /// The store's error, without the leading `-`.
    pub async fn info(self: Arc<Self>, client: Client, name: LockName) -> Result<Info, Bytes> {
        let status = self.store.status(&name, client.user).await?;
        let here = self.queues.get(&name).map(|entry| {
            let snapshot = entry.queue(|it| it.snapshot(clock::now()));
            let holder = entry.holder().filter(|_| snapshot.held_here_ms.is_some());
            (snapshot, holder.map(Arc::clone))
        });
        Ok(Info { status, here })
    }

    /// Verifies a client's credentials, or checks what it may do without any, as [`Store::admits`].
    pub fn admits(
        &self,
        credentials: Option<Credentials>,
        patience: Option<Duration>,
    ) -> Later<Admission> {
        self.store.admits(credentials, patience)
    }

    /// Returns why the store does not reply to anonymous clients, where it knows: an error's text, without the
    /// leading `-`.
    pub fn trouble(&self, database: u32) -> Option<Bytes> {
        let key = Arc::default();
        self.store
            .trouble(&LockName { database, key }, UserId::ANONYMOUS)
    }

    /// Checks whether this client may call [`Gate::locks`].
    ///
    /// # Errors
    /// The store's error, without the leading `-`.
    pub fn may_list(&self, database: u32, client: &Client) -> Later<Result<(), Bytes>> {
        self.store.may_list(database, client.user)
    }

    /// Runs `LOCKS`: returns the locks of a database that are held or awaited here and whose name `matches`.
    /// The locks with most waiters come first, at most `count`, and at most `most_bytes` in the reply.
    pub fn locks(
        &self,
        database: u32,
        count: usize,
        most_bytes: usize,
        matches: impl Fn(&[u8]) -> bool,
    ) -> Vec<Arc<[u8]>> {
        let now = clock::now();
        let count = count.min(most_bytes / NAME_OVERHEAD_BYTES);
        // The top is the lock that would be shown last of those found so far.
        let mut found: BinaryHeap<(Reverse<usize>, Arc<[u8]>)> = BinaryHeap::new();
        for entry in &self.queues {
            let LockName { database: its, key } = entry.key();
            if *its != database || !matches(key) {
                continue;
            }
            if let Some(waiters) = entry.waiters(now) {
                found.push((Reverse(waiters), Arc::clone(key)));
                if found.len() > count {
                    found.pop();
                }
            }
        }
        let mut left = most_bytes;
        let fits = |name: &Arc<[u8]>| {
            let after = left.checked_sub(name.len() + NAME_OVERHEAD_BYTES);
            left = after.unwrap_or(left);
            after.is_some()
        };
        let found = found.into_sorted_vec().into_iter().map(|(_, name)| name);
        found.take_while(fits).collect()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the metrics of locks.
    pub fn metrics(&self) -> &LockMetrics {
        &self.metrics
    }

    /// Returns the metrics of absorbed commands.
    pub fn absorbed(&self) -> &Arc<AbsorbMetrics> {
        &self.absorbed
    }

    /// Returns the metrics of the store, if it is a Redis.
    pub fn upstream_metrics(&self) -> Option<&Arc<UpstreamMetrics>> {
        self.store.metrics()
    }

    /// Returns the number of locks with state in this instance: held, awaited, with a store request, or known
    /// to be held elsewhere.
    pub fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that wait for a lock.
    pub fn waiters(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of requests on their way to the store.
    pub fn asking(&self) -> usize {
        self.asking.load(Ordering::Relaxed)
    }

    fn request(
        &self,
        client: &Client,
        name: &LockName,
        token: &Token,
        asked: Request,
        asked_at: Time,
    ) -> (RequestId, Caller, Pending) {
        let id = RequestId(self.next_request.fetch_add(1, Ordering::Relaxed));
        let (reply_to, reply) = oneshot::channel();
        let (user, label) = (client.user, Arc::clone(&client.label));
        let caller = Caller {
            asked,
            since: asked_at,
            left: false,
            reply_to,
            user,
            label,
            mailbox: None,
        };
        let (gate, waits) = (self.this.clone(), asked.wants_lock());
        (
            id,
            caller,
            Pending::new(gate, name.clone(), id, user, token.clone(), waits, reply),
        )
    }

    /// Returns what the queues need of the store while they send no requests.
    fn needed(&self) -> Needed {
        let mut needed = Needed::default();
        for entry in &self.queues {
            let (users, link) = entry.queue(|it| it.needs());
            let database = entry.key().database;
            needed
                .users
                .extend(users.into_iter().map(|user| (user, database)));
            needed.links.extend(link);
        }
        needed
    }
}

/// Lets the store close unused connections, while the gate exists.
async fn close_unused(gate: Weak<Gate>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(gate) = gate.upgrade() else { return };
        gate.store.close_unused(&|| gate.needed());
    }
}

/// Creates a unique token: a random UUID, version 4.
fn new_token() -> Token {
    let mut text = uuid::Uuid::encode_buffer();
    let text = uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text);
    Token::new(text.as_bytes())
}
