//! The driver of the queues: a map from lock name to [`Queue`](crate::lock::Queue). It brings the queues their events,
//! performs their actions and keeps their timers; it decides nothing itself.
//!
//! Here is what can be asked of it. Whatever happens to a lock goes to its queue by [`Gate::feed`]
//! (`feed.rs`): what clients want, what the store answers, pushes, timers, clients that vanish. The queue
//! handles it under the map's lock, which is never held across an await; what it wants done is done after.
//!
//! A reply has to reach its client. It goes to a [`Pending`], which tells the queue when it is
//! dropped before its reply came, and a grant goes on in a [`Grant`], which tells the queue when it
//! is dropped before it was delivered. So a client can vanish at any point, and nothing stays held
//! for nobody.

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
    clock,
    counters::Counters,
    identity::Credentials,
    limits::Limits,
    lock::{
        Event, LockRequest, Refusal, Reply, RequestId, Settings, Snapshot, Time, Token, UserId,
        Wait, WriteBack,
    },
    metrics::{
        locks::{LockMetrics, Request},
        upstream::UpstreamMetrics,
    },
    store::{Admission, Later, LockName, Look, Needed, Store},
};

mod dead_tokens;
mod ear;
mod feed;
mod label;
mod pending;
mod timers;
mod view;
mod warnings;

use dead_tokens::DeadTokens;
use ear::Ear;
use feed::{Caller, Entry};
pub use label::{Label, SAID_BYTES, Said};
pub use pending::{Answer, Bound, Grant, Pending};
use timers::Timers;
use view::SHARDS;
pub use view::{Busy, Held, View};
use warnings::Warnings;

/// What a name costs in a list beside its bytes: `$1024\r\n` and `\r\n`.
const NAME_OVERHEAD_BYTES: usize = 10;

/// Where clients wait for locks. Cheap to share; it ends with its last [`Arc`].
pub struct Gate {
    /// Boxed, since the table has more places than it uses, and for a moment twice as many while it grows.
    queues: DashMap<LockName, Box<Entry>>,
    /// As many as `queues` has, without asking every shard of it.
    known: AtomicUsize,
    /// As many requests as wait for a lock.
    waiting: AtomicUsize,
    asking: AtomicUsize,
    timers: Arc<Timers>,
    store: Arc<dyn Store>,
    settings: Settings,
    limits: Limits,
    counters: Counters,
    metrics: LockMetrics,
    warnings: Warnings,
    dead_tokens: DeadTokens,
    /// Locks for which a loss of data is not made good yet.
    recovering: AtomicUsize,
    /// Locks whose queues have not heard of the loss yet.
    untold: AtomicUsize,
    next_request: AtomicU64,
    seeds: RandomState,
    /// Where questions are awaited, whoever asks them.
    runtime: Handle,
    /// Itself, for what outlives the call that began it.
    this: Weak<Gate>,
}

/// Who asks: what the gate may show of a client.
#[derive(Debug, Clone)]
pub struct Client {
    /// On whose behalf.
    pub user: UserId,
    /// How it is shown.
    pub label: Arc<Label>,
}

/// What a client wants done to get a lock.
#[derive(Debug, Clone)]
pub struct Wish {
    /// When it asked.
    pub asked_at: Time,
    /// The token to hold the lock with; made here where none is given.
    pub token: Option<Token>,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// How long to wait, in milliseconds. None: for ever.
    pub wait_ms: Option<u64>,
    /// Not to wait at all.
    pub try_only: bool,
    /// With a fence.
    pub fence: bool,
    /// The lease is bound to the client's connection; where it is told that it is so no longer.
    /// There is one message for each grant with [`Grant::delivered`]'s [`Bound`] at most.
    pub session: Option<Mailbox>,
}

/// Where a client is told of the leases bound to its connection.
pub type Mailbox = mpsc::UnboundedSender<SessionOver>;

/// A lease is bound to the connection no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOver {
    /// The [`Bound::request`].
    pub request: RequestId,
    /// The client believes to hold the lock, and does not.
    pub lost: bool,
}

/// What `LOCKINFO` tells.
#[derive(Debug)]
pub struct Info {
    /// What the store says now.
    pub look: Look,
    /// What this gate knows.
    pub here: Option<(Snapshot, Option<Arc<Label>>)>,
}

impl Gate {
    /// A gate in front of a store, which counts what it does.
    ///
    /// # Panics
    /// Outside of a tokio runtime: it spawns the task that keeps the timers, which ends with the
    /// gate.
    pub fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        limits: Limits,
        metrics: LockMetrics,
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
            warnings: Warnings::default(),
            next_request: AtomicU64::new(0),
            seeds: RandomState::new(),
            runtime: Handle::current(),
            this: this.clone(),
        });
        store.listen(Arc::new(Ear(gate.this.clone())));
        store.connect();
        gate.runtime.spawn(timers::keep(gate.this.clone(), timers));
        if let Some(every) = gate.store.closes_unused_every() {
            gate.runtime.spawn(close_unused(gate.this.clone(), every));
        }
        gate
    }

    /// The name is one that no lock can have.
    pub fn is_reserved(&self, name: &LockName) -> bool {
        self.store.is_reserved(name)
    }

    /// `LOCK` and `TRYLOCK`. To drop the [`Pending`] is to leave the queue.
    pub fn lock(&self, client: &Client, name: LockName, wish: &Wish) -> Pending {
        let explicit = wish.token.is_some();
        let token = wish.token.clone().unwrap_or_else(new_token);
        let asked = match wish.try_only {
            true => Request::TryLock,
            false => Request::Lock,
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
        };
        self.feed(&name, Event::Lock(ask), Some(reply_to));
        pending
    }

    /// As many locks are known as may be. But that this one is not among them is only for those to know
    /// who may look at it. Where the store does not say so until then, the reply is the `late` one.
    fn refuse_one_more(&self, name: LockName, caller: Caller, until: Time, late: Reply) {
        let (look, gate) = (self.store.look(&name, caller.user), self.this.clone());
        let within = Duration::from_micros(until.micros_since(clock::now()));
        self.runtime.spawn(async move {
            let mut reply = match tokio::time::timeout(within, look).await {
                Ok(Ok(_)) => Reply::Refused(Refusal::TooManyLocks),
                Ok(Err(error)) => Reply::Refused(Refusal::Store(error)),
                Err(_) => late,
            };
            if let Some(gate) = gate.upgrade() {
                reply = gate.explained(&name, caller.user, reply, true);
                gate.answered(clock::now(), &caller, &reply);
            }
            // The pending one finds its reply there.
            let _ = caller.reply_to.send(reply);
        });
    }

    /// `UNLOCK`, asked for at that time. It runs even if the [`Pending`] is dropped.
    pub fn unlock(&self, client: &Client, name: LockName, token: Token, asked_at: Time) -> Pending {
        let (request, reply_to, pending) =
            self.request(client, &name, &token, Request::Unlock, asked_at);
        let event = Event::Unlock {
            request,
            asked_at,
            user: client.user,
            token,
        };
        self.feed(&name, event, Some(reply_to));
        pending
    }

    /// `RELOCK`, asked for at that time: the lease ends `lease_ms` milliseconds from now. It runs even
    /// if the [`Pending`] is dropped.
    pub fn relock(
        &self,
        client: &Client,
        name: LockName,
        token: Token,
        lease_ms: u64,
        asked_at: Time,
    ) -> Pending {
        let (request, reply_to, pending) =
            self.request(client, &name, &token, Request::Relock, asked_at);
        let event = Event::Relock {
            request,
            asked_at,
            user: client.user,
            token,
            lease_ms,
        };
        self.feed(&name, event, Some(reply_to));
        pending
    }

    /// `LOCKINFO`.
    ///
    /// # Errors
    /// What the store says, without the leading `-`.
    pub async fn info(self: Arc<Self>, client: Client, name: LockName) -> Result<Info, Bytes> {
        let look = self.store.look(&name, client.user).await?;
        let here = self.queues.get(&name).map(|entry| {
            let snapshot = entry.queue.snapshot(clock::now());
            (
                snapshot,
                entry
                    .holder
                    .clone()
                    .filter(|_| snapshot.held_here_ms.is_some()),
            )
        });
        Ok(Info { look, here })
    }

    /// Verifies the credentials that a client gave, or asks what it may do without any: as
    /// [`Store::admits`].
    pub fn admits(
        &self,
        credentials: Option<Credentials>,
        patience: Option<Duration>,
    ) -> Later<Admission> {
        self.store.admits(credentials, patience)
    }

    /// Why the store does not answer those who have not authenticated, where it knows: an error's text,
    /// without the leading `-`.
    pub fn trouble(&self, database: u32) -> Option<Bytes> {
        let key = Bytes::new();
        self.store
            .trouble(&LockName { database, key }, UserId::ANONYMOUS)
    }

    /// Whether this client may have [`Gate::locks`].
    ///
    /// # Errors
    /// What the store says, without the leading `-`.
    pub fn may_list(&self, database: u32, client: &Client) -> Later<Result<(), Bytes>> {
        self.store.may_list(database, client.user)
    }

    /// `LOCKS`: the locks of a database that are held or waited for here and whose name `matches`,
    /// most waiters first, `count` at most, and no more than have `most_bytes` together.
    pub fn locks(
        &self,
        database: u32,
        count: usize,
        most_bytes: usize,
        matches: impl Fn(&[u8]) -> bool,
    ) -> Vec<Bytes> {
        let now = clock::now();
        let count = count.min(most_bytes / NAME_OVERHEAD_BYTES);
        // Of those found so far, the one that is shown last is on top.
        let mut found: BinaryHeap<(Reverse<usize>, Bytes)> = BinaryHeap::new();
        for entry in &self.queues {
            let LockName { database: its, key } = entry.key();
            if *its != database || !matches(key) {
                continue;
            }
            let here = entry.queue.snapshot(now);
            if here.waiters > 0 || here.held_here_ms.is_some() {
                found.push((Reverse(here.waiters), key.clone()));
                if found.len() > count {
                    found.pop();
                }
            }
        }
        let mut left = most_bytes;
        let fits = |name: &Bytes| {
            let after = left.checked_sub(name.len() + NAME_OVERHEAD_BYTES);
            left = after.unwrap_or(left);
            after.is_some()
        };
        let found = found.into_sorted_vec().into_iter().map(|(_, name)| name);
        found.take_while(fits).collect()
    }

    /// What is counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What is measured of locks.
    pub fn metrics(&self) -> &LockMetrics {
        &self.metrics
    }

    /// What is measured of the store, where it is a Redis.
    pub fn upstream_metrics(&self) -> Option<&UpstreamMetrics> {
        self.store.metrics()
    }

    /// Locks this gate knows of: held, waited for, asked about, or known to be held elsewhere.
    pub fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// Requests that wait for a lock.
    pub fn waiters(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Questions on their way to the store.
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

    /// What the queues need of the store though they ask nothing now.
    fn needed(&self) -> Needed {
        let mut needed = Needed::default();
        for entry in &self.queues {
            let (users, link) = entry.queue.needs();
            let database = entry.key().database;
            needed
                .users
                .extend(users.into_iter().map(|user| (user, database)));
            needed.links.extend(link);
        }
        needed
    }
}

/// Has the store close what nobody uses, for as long as there is a gate.
async fn close_unused(gate: Weak<Gate>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(gate) = gate.upgrade() else { return };
        gate.store.close_unused(&|| gate.needed());
    }
}

/// A token that nobody has: a random UUID, version 4.
fn new_token() -> Token {
    let mut text = uuid::Uuid::encode_buffer();
    let text = uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text);
    Token::new(Bytes::copy_from_slice(text.as_bytes()))
}
