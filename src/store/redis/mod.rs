//! Locks in a Redis node. A lock is a plain string key with an expiry; its value is the owner's token.
//!
//! - [`settings`]: the Redis address, lockgate's own account there, and the timeouts.
//! - `scripts`: one Lua script per kind of request (`lua/*.lua`).
//! - `acl_error`: the error of a script that the user may not run.
//! - `requests`: the path of a request, and of its outcome back to the queue.
//! - `link`: one connection, shared by all requests of one user in one database. Redis pushes changes of locks
//!   on it. `wire`: the task that owns its socket.
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
//! small: no task, no future, no timer, no lock held across an await.

use std::{
    future::Future,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak, atomic::AtomicU64},
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
    reconnector::Reconnector,
    scripts::{ACK_KEY, FENCE_KEY, GRACE_KEY, Request, error_text},
};
use super::{Admission, Later, Listener, LockName, LockStatus, Needed, Receipt, Store};
use crate::{
    auth::identity::{Credentials, Users},
    clock,
    lock::{Outcome, StoreRequest, StoreRequestId, UserId},
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
mod requests;
mod scripts;
mod server_info;
mod server_probe;
pub mod settings;
mod wire;

pub use server_probe::{ServerProbe, Sighting};
pub use settings::RedisSettings;

/// Bounds of the interval between searches for unused connections.
const SHORTEST_SWEEP: Duration = Duration::from_millis(25);
const LONGEST_SWEEP: Duration = Duration::from_secs(15);

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
                reconnector: Weak::new(),
            };
            Reconnector::new(subject, Arc::clone(&self.next_id))
        });
        Ok(Arc::clone(&entry))
    }

    fn key(&self, name: &LockName) -> Arc<[u8]> {
        if self.settings.key_prefix.is_empty() {
            return Arc::clone(&name.key);
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
        id: StoreRequestId,
        store_request: StoreRequest,
        within: Duration,
    ) -> Receipt {
        let reconnector = match self.reconnector(store_request.user(), name.database) {
            Ok(reconnector) => reconnector,
            Err(text) => return Receipt::Answered(requests::untold(Outcome::Refused(text))),
        };
        let floor = match scripts::wants_fence(&store_request) {
            // Larger than all that this instance has seen.
            true => self.fences.get(&name.database).map_or(0, |seen| *seen + 1),
            false => 0,
        };
        let request = Request::new(self.key(name), store_request, floor);
        match requests::send_now(&reconnector, name, id, request) {
            None => Receipt::Underway,
            Some(request) => Receipt::Later(Box::pin(requests::send(reconnector, request, within))),
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

    fn metrics(&self) -> Option<&Arc<UpstreamMetrics>> {
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
            // A pattern that no key of another program matches keeps the reply short.
            command.arg(0).arg("MATCH").arg(FENCE_KEY);
            command.arg("COUNT").arg(1);
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
            Arc::strong_count(reconnector) == 1
                && reconnector.used_at().plus_millis(idle_ms) <= now
                && !reconnector.is_asking()
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
