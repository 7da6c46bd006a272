//! Locks in a Redis node. A lock is a plain string key with an expiry; its value is the owner's token.
//!
//! - [`settings`]: the Redis address, lockgate's own account there, and the timeouts.
//! - `scripts`: one Lua script per kind of request (`lua/*.lua`).
//! - `acl_error`: the error of a script that the user may not run.
//! - `link`: one connection, shared by all requests of one user in one database. Redis pushes changes of locks
//!   on it.
//! - `handshake`: the socket, and the handshake on it; `credentials`: its `AUTH`.
//! - `server_probe`: a look at the server, to tell whether it is still the one that clients were connected to.
//! - `can_lock`: whether Redis takes locks; `readiness`: the probe that finds out.
//! - `server_info`: what `INFO` says of a server.
//! - `auth_probe`: verifies clients' credentials, on a connection of its own; `claims`: the queue in front of it.
//! - `reconnector`: opens a new link whenever one breaks.
//! - `acker`: waits until replicas acknowledge what a link granted.
//! - [`doctor`]: tries what lockgate needs of a Redis, for `lockgate doctor`.
//! - `data_loss`: detects that Redis lost data; `grace`: how long all instances then grant no free lock.
//!
//! Requests for many locks share a link, so that they travel in batches. The cost per request is therefore kept
//! small: no task, no timer, no lock held across an await.

use std::{
    future::Future,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use bytes::Bytes;
use dashmap::DashMap;
use redis::{Cmd, Value};

use self::{
    auth_probe::AuthProbe,
    can_lock::CanLock,
    data_loss::DataLossDetector,
    handshake::Subject,
    link::Link,
    reconnector::Reconnector,
    scripts::{ACK_KEY, FENCE_CEILING, FENCE_KEY, GRACE_KEY, Reading, Request, error_text},
};
use super::{Admission, Later, Listener, LockName, LockStatus, Needed, Store};
use crate::{
    auth::identity::{Credentials, Users},
    clock,
    lock::{Deadline, Fence, Outcome, StoreReply, StoreRequest, Time, UserId},
    telemetry::metrics::upstream::{Purpose, UpstreamMetrics},
};

mod acker;
mod acl_error;
mod auth_probe;
mod can_lock;
mod claims;
mod credentials;
mod data_loss;
pub mod doctor;
mod grace;
mod handshake;
mod link;
mod readiness;
mod reconnector;
mod scripts;
mod server_info;
mod server_probe;
pub mod settings;

pub use server_probe::{ServerProbe, Sighting};
pub use settings::RedisSettings;

/// Bounds of the interval between searches for unused connections.
const SHORTEST_SWEEP: Duration = Duration::from_millis(25);
const LONGEST_SWEEP: Duration = Duration::from_secs(15);

/// A lock request that has waited this long for a connection, in milliseconds, returns to its queue to be
/// issued anew: its lease counts from when it was issued, and its client may be gone.
const ANEW_AFTER_MS: u64 = 100;

/// The store of locks in a Redis node.
pub struct RedisStore {
    settings: Arc<RedisSettings>,
    users: Arc<Users>,
    listener: OnceLock<Arc<dyn Listener>>,
    reconnectors: DashMap<(UserId, u32), Arc<Reconnector>>,
    /// Held while a reconnector is created, so that there are never more than `connections`.
    making: Mutex<()>,
    auth_probe: AuthProbe,
    next_id: Arc<AtomicU64>,
    data_loss: Arc<DataLossDetector>,
    /// The largest fence seen, by database. The next one is larger, whatever data Redis lost.
    fences: Arc<DashMap<u32, u64>>,
    metrics: Arc<UpstreamMetrics>,
    can_lock: Arc<CanLock>,
}

impl RedisStore {
    /// Creates a store for these users. It connects on [`Store::connect`], or on the first request.
    pub fn new(settings: RedisSettings, users: Arc<Users>) -> Self {
        let settings = Arc::new(settings);
        let metrics = Arc::<UpstreamMetrics>::default();
        Self {
            listener: OnceLock::new(),
            reconnectors: DashMap::new(),
            making: Mutex::default(),
            auth_probe: AuthProbe::new(
                Arc::clone(&settings),
                Arc::clone(&users),
                Arc::clone(&metrics),
            ),
            next_id: Arc::new(AtomicU64::new(1)),
            data_loss: Arc::new(DataLossDetector::new(settings.grace, Arc::clone(&metrics))),
            fences: Arc::default(),
            can_lock: Arc::new(CanLock::new(Arc::clone(&settings), Arc::clone(&metrics))),
            users,
            settings,
            metrics,
        }
    }

    fn reconnector(&self, user: UserId, database: u32) -> Result<Arc<Reconnector>, Bytes> {
        if let Some(reconnector) = self.reconnectors.get(&(user, database)) {
            return Ok(Arc::clone(&reconnector));
        }
        let (Some(listener), Some(user)) = (self.listener.get(), self.users.get(user)) else {
            return Err(Bytes::from_static(
                b"ERR the store does not know this user, or has no listener",
            ));
        };
        // No code panics while it holds this.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let whose = (user.id(), database);
        if !self.reconnectors.contains_key(&whose)
            && self.reconnectors.len() >= self.settings.connections
        {
            listener.refused_connection();
            return Err(Bytes::from_static(
                b"ERR max number of users and databases with locks reached \
                  (limits.shared_connections)",
            ));
        }
        let entry = self.reconnectors.entry(whose).or_insert_with(|| {
            let subject = Subject {
                settings: Arc::clone(&self.settings),
                user,
                database,
                listener: Arc::clone(listener),
                data_loss: Arc::clone(&self.data_loss),
                fences: Arc::clone(&self.fences),
                metrics: Arc::clone(&self.metrics),
                can_lock: Arc::clone(&self.can_lock),
            };
            Arc::new(Reconnector::new(subject, Arc::clone(&self.next_id)))
        });
        Ok(Arc::clone(&entry))
    }

    /// Sends a request for a fence that is larger than all that this instance has seen.
    fn ask_with_fence(
        &self,
        name: &LockName,
        reconnector: Arc<Reconnector>,
        store_request: StoreRequest,
        within: Duration,
    ) -> Later<StoreReply> {
        let (fences, data_loss) = (Arc::clone(&self.fences), Arc::clone(&self.data_loss));
        let (key, database) = (self.key(name), name.database);
        let acquires = matches!(store_request, StoreRequest::Acquire { .. });
        Box::pin(async move {
            if let (false, Some(ms)) = (acquires, data_loss.grace_left_ms()) {
                // Another instance that has seen larger fences may not have raised the counter yet.
                return untold(Outcome::NotYet { ms });
            }
            let floor = fences.get(&database).map_or(0, |seen| *seen + 1);
            let request = Request::new(&key, &store_request, floor);
            let answer = match acquires {
                true => acquire(&reconnector, &request, &data_loss, within).await,
                false => ask(&reconnector, &request, &data_loss, within).await,
            };
            if let Outcome::Granted {
                fence: Some(fence), ..
            } = answer.outcome
                && fence < FENCE_CEILING
            {
                let mut seen = fences.entry(database).or_default();
                *seen = fence.max(*seen);
            }
            answer
        })
    }

    fn key(&self, name: &LockName) -> Bytes {
        if self.settings.key_prefix.is_empty() {
            return name.key.clone();
        }
        [&self.settings.key_prefix[..], &name.key[..]]
            .concat()
            .into()
    }
}

impl Store for RedisStore {
    fn listen(&self, listener: Arc<dyn Listener>) {
        self.can_lock.listen(Arc::clone(&listener));
        // The gate calls this once. A second listener would be a bug, and receives nothing.
        let _ = self.listener.set(listener);
    }

    fn connect(&self) {
        self.can_lock.begin();
        if let Ok(reconnector) = self.reconnector(UserId::ANONYMOUS, 0) {
            reconnector.begin();
        }
    }

    fn ask(
        &self,
        name: &LockName,
        store_request: &StoreRequest,
        within: Duration,
    ) -> Later<StoreReply> {
        let reconnector = match self.reconnector(store_request.user(), name.database) {
            Ok(reconnector) => reconnector,
            Err(text) => return Box::pin(std::future::ready(untold(Outcome::Refused(text)))),
        };
        if wants_fence(store_request) {
            return self.ask_with_fence(name, reconnector, store_request.clone(), within);
        }
        let (key, data_loss) = (self.key(name), Arc::clone(&self.data_loss));
        let request = Request::new(&key, store_request, 0);
        match store_request {
            StoreRequest::Acquire {
                token,
                lease_ms,
                bare: true,
                ..
            } => {
                let first = scripts::bare(&key, token, *lease_ms);
                Box::pin(async move {
                    match acquire_bare(&reconnector, &first, &data_loss, within).await {
                        Some(answer) => answer,
                        None => acquire(&reconnector, &request, &data_loss, within).await,
                    }
                })
            }
            StoreRequest::Acquire { .. } => {
                Box::pin(async move { acquire(&reconnector, &request, &data_loss, within).await })
            }
            StoreRequest::WriteBack { .. } | StoreRequest::DeleteDead { .. } => {
                Box::pin(async move {
                    let _permit = reconnector.recovery().await;
                    ask(&reconnector, &request, &data_loss, within).await
                })
            }
            _ => Box::pin(async move { ask(&reconnector, &request, &data_loss, within).await }),
        }
    }

    fn trouble(&self, name: &LockName, user: UserId) -> Option<Bytes> {
        let trouble = self.reconnectors.get(&(user, name.database))?.trouble();
        let Some(reason) = trouble else {
            let ms = self.data_loss.grace_left_ms()?;
            let text = format!(
                "UPSTREAM Redis lost data, or is new to lockgate: for {ms} ms no free lock is granted, and a token \
                 that is not there may yet come (write_back.grace)"
            );
            return Some(Bytes::from(text));
        };
        if can_lock::class(reason.as_bytes()).is_some() {
            return Some(Bytes::from(reason));
        }
        Some(Bytes::from(self.settings.unreachable(&reason)))
    }

    fn is_reserved(&self, name: &LockName) -> bool {
        let prefix = &self.settings.key_prefix;
        let is = |key: &[u8]| key.strip_prefix(&prefix[..]) == Some(&name.key[..]);
        is(FENCE_KEY) || is(GRACE_KEY) || is(ACK_KEY)
    }

    fn metrics(&self) -> Option<&UpstreamMetrics> {
        Some(&self.metrics)
    }

    fn status(&self, name: &LockName, user: UserId) -> Later<Result<LockStatus, Bytes>> {
        let reconnector = match self.reconnector(user, name.database) {
            Ok(reconnector) => reconnector,
            Err(text) => return Box::pin(std::future::ready(Err(text))),
        };
        let (key, limit) = (self.key(name), self.settings.timeout);
        Box::pin(async move { in_time(limit, status(&reconnector, &key)).await })
    }

    fn admits(
        &self,
        credentials: Option<Credentials>,
        patience: Option<Duration>,
    ) -> Later<Admission> {
        self.auth_probe.ask(credentials, patience)
    }

    fn is_ready(&self) -> Later<Result<(), String>> {
        let can_lock = Arc::clone(&self.can_lock);
        Box::pin(async move { can_lock.probe().await })
    }

    fn may_list(&self, database: u32, user: UserId) -> Later<Result<(), Bytes>> {
        let reconnector = match self.reconnector(user, database) {
            Ok(reconnector) => reconnector,
            Err(text) => return Box::pin(std::future::ready(Err(text))),
        };
        let limit = self.settings.timeout;
        Box::pin(async move {
            let mut command = redis::cmd("SCAN");
            command.arg(0).arg("COUNT").arg(1);
            in_time(limit, read(&reconnector, Purpose::List, &command))
                .await
                .map(drop)
        })
    }

    fn closes_unused_every(&self) -> Option<Duration> {
        Some((self.settings.idle / 4).clamp(SHORTEST_SWEEP, LONGEST_SWEEP))
    }

    fn close_unused(&self, needed: &dyn Fn() -> Needed) {
        let idle_ms = u64::try_from(self.settings.idle.as_millis()).unwrap_or(u64::MAX);
        let now = clock::now();
        let is_unused = |reconnector: &Arc<Reconnector>| {
            // A caller that is about to send a request holds a reference.
            Arc::strong_count(reconnector) == 1 && reconnector.used_at().plus_millis(idle_ms) <= now
        };
        if self
            .reconnectors
            .iter()
            .any(|reconnector| is_unused(&reconnector))
        {
            let needed = needed();
            let mut closed = Vec::new();
            self.reconnectors.retain(|whose, reconnector| {
                let link = reconnector.link_now();
                let tells = link.is_some_and(|link| needed.links.contains(&link));
                let stays = tells || needed.users.contains(whose) || !is_unused(reconnector);
                if !stays {
                    closed.extend(link);
                }
                stays
            });
            if let Some(listener) = self.listener.get() {
                closed
                    .into_iter()
                    .for_each(|link| listener.tracking_lost(link));
            }
        }
        self.users.forget_unused();
    }
}

async fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, Bytes>>,
) -> Result<T, Bytes> {
    let late = Bytes::from_static(b"UPSTREAM Redis does not answer in time");
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or(Err(late))
}

fn wants_fence(store_request: &StoreRequest) -> bool {
    match store_request {
        StoreRequest::Acquire { fence, .. } => *fence != Fence::No,
        StoreRequest::Handover { fence, .. } => *fence,
        _ => false,
    }
}

/// Sends an acquisition, which waits up to `limit` for a connection. If it may take a free lock, it is put off during the
/// grace. It is issued anew when it waited too long.
async fn acquire(
    reconnector: &Reconnector,
    request: &Request,
    data_loss: &DataLossDetector,
    limit: Duration,
) -> StoreReply {
    let asked_at = clock::now();
    let link = match link_within(reconnector, limit).await {
        Ok(link) => link,
        Err(outcome) => return untold(outcome),
    };
    if let Some(ms) = puts_off(data_loss, asked_at) {
        // A token that holds the lock, as after a handover, takes no free one.
        let reply = match request.to_extension().filter(|_| ms > 0) {
            Some(extension) => ask_on(&link, reconnector, &extension, data_loss).await,
            None => untold(Outcome::NotYet { ms }),
        };
        return match reply.outcome {
            Outcome::Free => untold(Outcome::NotYet { ms }),
            _ => reply,
        };
    }
    match data_loss::left_ms(link.grace_until) {
        Some(ms) => hold_back(&link, request, ms).await,
        None => ask_on(&link, reconnector, request, data_loss).await,
    }
}

/// Sends a request that takes no free lock, and waits up to `limit` for a connection.
async fn ask(
    reconnector: &Reconnector,
    request: &Request,
    data_loss: &DataLossDetector,
    limit: Duration,
) -> StoreReply {
    let asked_at = clock::now();
    let link = match link_within(reconnector, limit).await {
        Ok(link) => link,
        Err(outcome) => return untold(outcome),
    };
    // If this process was paused, the connection may come after the limit.
    if Duration::from_micros(clock::now().micros_since(asked_at)) > limit {
        return untold(Outcome::NoLink);
    }
    ask_on(&link, reconnector, request, data_loss).await
}

/// Returns the link, if it comes within `limit`.
///
/// # Errors
/// The outcome of a request that is not sent.
async fn link_within(reconnector: &Reconnector, limit: Duration) -> Result<Arc<Link>, Outcome> {
    match reconnector.link_soon(limit).await {
        Some(link) => link.map_err(Outcome::Refused),
        None => Err(Outcome::NoLink),
    }
}

/// Sends a request on this link, which is given up if it is of no use for the next request.
async fn ask_on(
    link: &Arc<Link>,
    reconnector: &Reconnector,
    request: &Request,
    data_loss: &DataLossDetector,
) -> StoreReply {
    // While replicas are missing, no lock is taken in vain.
    let replicas = request.replicas();
    if link.lacks(replicas)
        && let Err(missing) = link.acknowledge(replicas).await
    {
        if missing.is_elsewhere() {
            // What was taken on it is given back by now.
            reconnector.give_up(link).await;
        }
        return untold(missing.outcome(None));
    }
    let Some(Reading::Done { mut outcome, read }) = link.ask(request).await else {
        // A caller that sends the request again must not find the same link.
        reconnector.give_up(link).await;
        return untold(Outcome::Unknown);
    };
    if let Outcome::Refused(text) = &outcome
        && acl_error::is_by_script(text)
    {
        outcome = Outcome::Refused(acl_error::in_words_of_redis(link, request.key()).await);
    }
    reconnector.can_lock().replied(request.purpose(), &outcome);
    let says = |word: &[u8]| matches!(&outcome, Outcome::NotNow(text) if text.starts_with(word));
    if says(b"READONLY") || says(b"LOADING") || says(b"MASTERDOWN") {
        // The address may resolve to a new master by now. If this server accepts writes again, it may have lost
        // data.
        reconnector.give_up(link).await;
    }
    let reply = StoreReply {
        outcome,
        armed: (read && link.tells()).then_some(link.id),
        grace_ms: data_loss.grace_left_ms(),
    };
    acknowledged(link, reconnector, request, (reply, data_loss)).await
}

/// Waits until the replicas that the request wants acknowledged what it granted on this link, or the longer lease that it
/// found, which it then shortens.
async fn acknowledged(
    link: &Arc<Link>,
    reconnector: &Reconnector,
    request: &Request,
    (reply, data_loss): (StoreReply, &DataLossDetector),
) -> StoreReply {
    let (done, shortening) = match &reply.outcome {
        _ if request.replicas() == 0 => return reply,
        Outcome::Granted {
            deadline, fresh, ..
        } => (Some((*deadline, *fresh)), None),
        outcome @ Outcome::Held { .. } if !request.is_in_vain(outcome) => {
            (None, request.shortening())
        }
        _ => return reply,
    };
    if request.purpose() == Purpose::Acquire && done.is_some() {
        link.taken(request.key());
    }
    match (link.acknowledge(request.replicas()).await, shortening) {
        (Ok(()), None) => reply,
        (Ok(()), Some(shortening)) => {
            Box::pin(ask_on(link, reconnector, &shortening, data_loss)).await
        }
        (Err(missing), _) => StoreReply {
            outcome: missing.outcome(done),
            ..reply
        },
    }
}

/// Returns after how many milliseconds a lock request issued at `asked_at` must be issued anew; none if it can
/// be sent now.
fn puts_off(data_loss: &DataLossDetector, asked_at: Time) -> Option<u64> {
    let is_old = clock::now().millis_since(asked_at) >= ANEW_AFTER_MS;
    data_loss.grace_left_ms().or(is_old.then_some(0))
}

/// Puts off a request of a user that may take no free lock for `ms`. If another token holds the lock, the reply
/// is that holder: users that wait for the lock in this instance and are not held back need it too.
async fn hold_back(link: &Link, request: &Request, ms: u64) -> StoreReply {
    match link.ask(&request.to_check()).await {
        Some(Reading::Done { outcome, read }) if request.is_in_vain(&outcome) => StoreReply {
            outcome,
            armed: (read && link.tells()).then_some(link.id),
            grace_ms: Some(ms),
        },
        _ => untold(Outcome::NotYet { ms }),
    }
}

/// Takes the lock with a plain `SET`. None: the caller must send the full request.
async fn acquire_bare(
    reconnector: &Reconnector,
    first: &Cmd,
    data_loss: &DataLossDetector,
    limit: Duration,
) -> Option<StoreReply> {
    let asked_at = clock::now();
    let Some(link) = reconnector.link_soon(limit).await else {
        return Some(untold(Outcome::NoLink));
    };
    let link = link.ok()?;
    if let Some(ms) = puts_off(data_loss, asked_at) {
        return Some(untold(Outcome::NotYet { ms }));
    }
    if data_loss::left_ms(link.grace_until).is_some() {
        return None;
    }
    match link.store_request(Purpose::Set, first).await {
        Some(Value::Okay) => {
            reconnector.can_lock().granted();
            let granted = Outcome::Granted {
                deadline: Deadline(0),
                fresh: false,
                fence: None,
            };
            Some(untold(granted))
        }
        Some(_) => None,
        None => {
            reconnector.give_up(&link).await;
            Some(untold(Outcome::Unknown))
        }
    }
}

async fn status(reconnector: &Reconnector, key: &[u8]) -> Result<LockStatus, Bytes> {
    let mut command = redis::cmd("PTTL");
    match read(reconnector, Purpose::Status, command.arg(key)).await? {
        Value::Int(ttl_ms) => Ok(LockStatus {
            held: ttl_ms != -2,
            ttl_ms,
        }),
        _ => Err(Bytes::from_static(
            b"UPSTREAM Redis gave an answer that PTTL does not give",
        )),
    }
}

/// Returns the reply to a read-only command.
async fn read(reconnector: &Reconnector, purpose: Purpose, command: &Cmd) -> Result<Value, Bytes> {
    loop {
        let link = reconnector.link().await?;
        match link.send(purpose, command).await {
            Some(Value::ServerError(error)) => return Err(error_text(&error)),
            Some(value) => return Ok(value),
            // The command is read-only, so it may be sent again.
            None => reconnector.give_up(&link).await,
        }
    }
}

/// Returns an [`StoreReply`] after which no push will come.
fn untold(outcome: Outcome) -> StoreReply {
    StoreReply {
        outcome,
        armed: None,
        grace_ms: None,
    }
}
