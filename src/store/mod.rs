//! The storage of locks. A [`Store`] answers each [`StoreRequest`] about one lock in one atomic step. It notifies
//! its [`Listener`] when another party changes a lock that was read.
//!
//! - [`redis`]: a Redis (or Valkey) node, over one shared connection per user and database.
//! - [`embedded`]: the memory of this process.

use std::{collections::HashSet, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    auth::identity::{Credentials, User, Users},
    lock::{LinkId, StoreReply, StoreRequest, StoreRequestId, UserId},
    telemetry::metrics::upstream::UpstreamMetrics,
};

pub mod embedded;
pub mod redis;
pub(crate) mod task;

/// The name of a lock: its database, and its key there without the configured prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName {
    /// The database's number.
    pub database: u32,
    /// The name as clients send it.
    pub key: Arc<[u8]>,
}

/// The state of a lock, read without changing it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockStatus {
    /// The lock is held.
    pub held: bool,
    /// Milliseconds until expiry, as `PTTL` returns them: -1 without an expiry, -2 if the lock is free.
    pub ttl_ms: i64,
}

/// The store's verdict on a client: the user on whose behalf it may take locks, or none.
#[derive(Debug, Clone)]
pub enum Admission {
    /// Admitted as this user.
    Welcome(Arc<User>),
    /// Rejected, without a password or with a wrong one: the store's own error, without the leading `-`.
    Refused(Bytes),
    /// The store did not reply; the reason, where it is known.
    Unanswered(Option<Bytes>),
}

/// The users and connections that locks depend on while no request is in flight.
#[derive(Debug, Default)]
pub struct Needed {
    /// Users with leases or requests, with the database.
    pub users: HashSet<(UserId, u32)>,
    /// Connections on which locks expect pushes.
    pub links: HashSet<LinkId>,
}

/// A boxed future that borrows nothing.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The receipt for a request that was passed to the store.
pub enum Receipt {
    /// The store has replied.
    Answered(StoreReply),
    /// The request is on its way. [`Listener::replied`] gets the reply, once.
    Underway,
    /// The future sends the request, and returns the reply. The caller may drop it; the request may then be sent or
    /// not.
    Later(Later<StoreReply>),
}

/// The storage of locks.
pub trait Store: Send + Sync + 'static {
    /// Sets the listener to notify when another party changes a lock. Called once, before any request.
    fn listen(&self, listener: Arc<dyn Listener>);

    /// Tests the connection, so that a problem is in the log before the first client connects. Must be called
    /// within a runtime.
    fn connect(&self) {}

    /// Sends one request. Without a connection, the request waits up to `within`, but not for a connection that
    /// has been down for long: then it is not sent ([`Outcome::NoLink`](crate::lock::Outcome::NoLink)). If the
    /// connection breaks before the reply, the outcome is [`Outcome::Unknown`](crate::lock::Outcome::Unknown).
    fn ask(
        &self,
        name: &LockName,
        id: StoreRequestId,
        store_request: StoreRequest,
        within: Duration,
    ) -> Receipt;

    /// Returns why the store does not reply, where it knows: an error's text, without the leading `-`.
    fn trouble(&self, name: &LockName, user: UserId) -> Option<Bytes> {
        let _ = (name, user);
        None
    }

    /// Returns whether the store uses this key for itself.
    fn is_reserved(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// Verifies a client's credentials, or checks what Redis allows without any. The store checks with Redis
    /// itself: neither the client's claim counts, nor a reply on the client's own connection. Waits for a reply
    /// up to `patience`, or for ever without one.
    fn admits(
        &self,
        credentials: Option<Credentials>,
        patience: Option<Duration>,
    ) -> Later<Admission> {
        let _ = (credentials, patience);
        let anonymous = Users::default().anonymous();
        Box::pin(std::future::ready(Admission::Welcome(anonymous)))
    }

    /// Checks whether the user may list all names in the database.
    ///
    /// # Errors
    /// As [`Store::status`].
    fn may_list(&self, database: u32, user: UserId) -> Later<Result<(), Bytes>> {
        let _ = (database, user);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Checks whether the store would serve a new client, and grant it a free lock.
    ///
    /// # Errors
    /// The reason, in one line.
    fn is_ready(&self) -> Later<Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the interval at which to call [`Store::close_unused`]. None: never.
    fn closes_unused_every(&self) -> Option<Duration> {
        None
    }

    /// Closes the connections that have been idle for a while and that no lock needs. Calls `needed` only if
    /// such a connection exists, because it visits every lock.
    fn close_unused(&self, needed: &dyn Fn() -> Needed) {
        let _ = needed;
    }

    /// Returns the upstream metrics, if the store is a Redis.
    fn metrics(&self) -> Option<&Arc<UpstreamMetrics>> {
        None
    }

    /// Reads the state of a lock without changing it.
    ///
    /// # Errors
    /// The store's own error, without the leading `-`, or `UPSTREAM` and the reason.
    fn status(&self, name: &LockName, user: UserId) -> Later<Result<LockStatus, Bytes>>;
}

/// The receiver of a store's notifications. The methods do not block.
pub trait Listener: Send + Sync + 'static {
    /// The store replied to a request that was [under way](Receipt::Underway). Pushes that the same connection brought
    /// before the reply were reported before it.
    fn replied(&self, name: &LockName, id: StoreRequestId, store_reply: StoreReply);

    /// Another party changed this lock, or may have.
    fn changed(&self, link: LinkId, name: &LockName);

    /// The acquisition in flight has taken this lock, and waits for the replicas to acknowledge it.
    fn taken(&self, name: &LockName) {
        let _ = name;
    }

    /// The user has a connection in this database again, after the store did not send some of its requests
    /// ([`Outcome::NoLink`](crate::lock::Outcome::NoLink)).
    fn linked(&self, user: UserId, database: u32) {
        let _ = (user, database);
    }

    /// Any lock that was read on this connection may have changed: Redis flushed all data, or the connection
    /// broke and its pending pushes are lost.
    fn tracking_lost(&self, link: LinkId);

    /// The store refused a request because the limit on shared connections is reached.
    fn refused_connection(&self) {}

    /// Returns the number of requests that wait for a lock.
    fn waiters(&self) -> usize {
        0
    }

    /// What is left to do to make a loss of data good, and only for want of time: it gets smaller with each lock.
    /// Other instances are to leave free locks alone for a while longer.
    fn recovering(&self) -> usize {
        0
    }

    /// Returns whether this instance must notice a loss of data soon: one of its clients relies on a lease, or
    /// it remembers dead tokens that could be back.
    fn has_stake(&self) -> bool {
        false
    }

    /// The store lost data, and the grace lasts this long. Returns when every queue has been notified; the
    /// store delivers no reply before that.
    fn data_lost(&self, grace: Duration) -> Later<()>;
}
