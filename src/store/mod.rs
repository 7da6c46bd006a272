//! Where locks live. A store answers one [`Question`] about one lock in one atomic step, and tells
//! its [`Listener`] when somebody else changes a lock that was read.
//!
//! - [`redis`]: a Redis (or Valkey) node, over one shared connection per user and database.
//! - [`embedded`]: the memory of this process.

use std::{collections::HashSet, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    identity::{Credentials, User, Users},
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

/// The user on whose behalf a client may take locks.
#[derive(Debug, Clone)]
pub enum Admission {
    /// As this user.
    Welcome(Arc<User>),
    /// Not without a password, or not with this one: the store's own error, without the leading `-`.
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

    /// Asks one question. Waits for a connection where there is none, but no longer than `within`, nor for one that
    /// has been gone for long: such a question is not sent ([`Outcome::NoLink`](crate::lock::Outcome::NoLink)). An
    /// answer that is lost with its connection is [`Outcome::Unknown`](crate::lock::Outcome::Unknown). The future may
    /// be dropped; the question is then asked or not.
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

    /// Verifies the credentials that a client gave, or asks whether it may do anything without any. Neither the
    /// client's word counts, nor a reply on its own connection. Waits for an answer no longer than
    /// `patience`; for ever without.
    fn admits(
        &self,
        credentials: Option<Credentials>,
        patience: Option<Duration>,
    ) -> Later<Admission> {
        let _ = (credentials, patience);
        let anonymous = Users::default().anonymous();
        Box::pin(std::future::ready(Admission::Welcome(anonymous)))
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

    /// The user has a connection in this database, after questions of it were not sent for want of one
    /// ([`Outcome::NoLink`](crate::lock::Outcome::NoLink)).
    fn linked(&self, user: UserId, database: u32) {
        let _ = (user, database);
    }

    /// Any lock that was read on this connection may have changed: everything was flushed, or the
    /// connection broke and what it had to tell is lost.
    fn deaf(&self, link: LinkId);

    /// A question was refused, since as many connections are in use as may be.
    fn refused_connection(&self) {}

    /// What is left to do to make a loss of data good, and only for want of time: it gets smaller with each lock.
    /// Other instances are to leave free locks alone for a while longer.
    fn recovering(&self) -> usize {
        0
    }

    /// A loss of data has to be noticed soon: a client counts on a lease of this instance, or it remembers
    /// dead tokens that could be back.
    fn has_stake(&self) -> bool {
        false
    }

    /// The store lost data, and the grace goes on for so long. Returns when every queue has heard of it;
    /// nothing is answered before.
    fn forgot(&self, grace: Duration) -> Later<()>;
}
