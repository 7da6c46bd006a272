//! Where locks live. A store answers one [`Question`] about one lock in one atomic step, and tells
//! its [`Listener`] when somebody else changes a lock that was read.
//!
//! - [`redis`]: a Redis (or Valkey) node, over one shared connection per user and database.
//! - [`embedded`]: the memory of this process.

use std::{collections::HashSet, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    lock::{Answer, LinkId, Question, UserId},
    metrics::upstream::UpstreamMetrics,
};

pub mod embedded;
pub mod redis;
mod task;

/// The name of a lock: the database it is in, and its key there without the configured prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName {
    /// The number of the database.
    pub database: u32,
    /// The name as clients give it.
    pub key: Bytes,
}

/// What a store says of a lock without touching it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Somebody holds it.
    pub held: bool,
    /// As `PTTL`: milliseconds to its expiry, -1 without one, -2 where nobody holds it.
    pub ttl_ms: i64,
}

/// Whether somebody who has not authenticated may do anything at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It may try.
    Welcome,
    /// Not without a password: the store's own error, without the leading `-`.
    Refused(Bytes),
    /// The store does not say; why, where that is known.
    Unanswered(Option<Bytes>),
}

/// What locks need of the store though nobody asks it anything now.
#[derive(Debug, Default)]
pub struct Needed {
    /// Users with leases or requests, by database.
    pub users: HashSet<(UserId, u32)>,
    /// Connections that are to tell of changes.
    pub links: HashSet<LinkId>,
}

/// A future that owns what it needs.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Where locks live.
pub trait Store: Send + Sync + 'static {
    /// Whom to tell when somebody else changes a lock. Called once, before any question.
    fn listen(&self, listener: Arc<dyn Listener>);

    /// Sees whether it can be reached, so that trouble is in the log before the first client comes.
    /// Call it within a runtime.
    fn connect(&self) {}

    /// Asks one question. Waits for a connection where there is none, but for an
    /// [`Ask`](crate::lock::Question::Ask) no longer than `within`; an answer that is lost with its connection, or a
    /// question that found none, is [`Outcome::Unknown`](crate::lock::Outcome::Unknown). The future may be
    /// dropped; the question is then asked or not.
    fn ask(&self, name: &LockName, question: &Question, within: Duration) -> Later<Answer>;

    /// Why the store does not answer, where it knows: an error's text, without the leading `-`.
    fn trouble(&self, name: &LockName, user: UserId) -> Option<Bytes> {
        let _ = (name, user);
        None
    }

    /// The name is that of a key which the store needs for itself.
    fn is_reserved(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// Whether somebody who connects now, and does not authenticate, may do anything. Waits for an
    /// answer no longer than `patience`; for ever without.
    fn admits_anonymous(&self, patience: Option<Duration>) -> Later<Admission> {
        let _ = patience;
        Box::pin(std::future::ready(Admission::Welcome))
    }

    /// Whether the user may see the names of all there is in the database.
    ///
    /// # Errors
    /// As [`Store::look`].
    fn may_list(&self, database: u32, user: UserId) -> Later<Result<(), Bytes>> {
        let _ = (database, user);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether a client who came now would be served, as far as it is for the store.
    ///
    /// # Errors
    /// Why not, in one line.
    fn is_ready(&self) -> Later<Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// How often [`Store::close_unused`] is to be called. None: never.
    fn closes_unused_every(&self) -> Option<Duration> {
        None
    }

    /// Closes the connections that nobody used for a while, and that no lock needs. What locks need is
    /// asked only where there is such a connection: it takes a look at every lock.
    fn close_unused(&self, needed: &dyn Fn() -> Needed) {
        let _ = needed;
    }

    /// What is measured of it, where it is a Redis.
    fn metrics(&self) -> Option<&UpstreamMetrics> {
        None
    }

    /// Looks at a lock without touching it.
    ///
    /// # Errors
    /// The store's own error, without the leading `-`, or `UPSTREAM` and the reason.
    fn look(&self, name: &LockName, user: UserId) -> Later<Result<Look, Bytes>>;
}

/// Who is told of changes. The methods do not block.
pub trait Listener: Send + Sync + 'static {
    /// Somebody else changed this lock, or may have.
    fn changed(&self, link: LinkId, name: &LockName);

    /// Any lock that was read on this connection may have changed: everything was flushed, or the
    /// connection broke and what it had to tell is lost.
    fn deaf(&self, link: LinkId);

    /// A question was refused, since as many connections are in use as may be.
    fn refused_connection(&self) {}

    /// The store lost data. Returns when every queue has heard of it; nothing is answered before.
    fn forgot(&self) -> Later<()>;
}
