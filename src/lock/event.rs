//! The events that can happen to a lock, and the actions that follow.

use std::{fmt, num::NonZeroU64, sync::Arc, time::Duration};

use bytes::Bytes;

use super::store_request::{Deadline, LinkId, StoreReply, StoreRequest, StoreRequestId};

/// A point in time on this instance's clock, which does not jump. Only differences are meaningful.
///
/// It is kept as the microseconds since the clock's zero plus one, so that an `Option<Time>` takes no more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(NonZeroU64);

impl Time {
    /// Returns the point `micros` microseconds after the clock's zero.
    pub const fn from_micros(micros: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(micros))
    }

    /// Returns the point `millis` milliseconds after the clock's zero.
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// Returns the microseconds since the clock's zero.
    pub const fn micros(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns the point `millis` milliseconds after this one, or the end of time on overflow.
    #[must_use]
    pub const fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000)))
    }

    /// Returns the point this span after this one, or the end of time on overflow.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(micros))
    }

    /// Returns the microseconds from `earlier` to this point, or zero if `earlier` is later.
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.micros().saturating_sub(earlier.micros())
    }

    /// Returns the whole milliseconds from `earlier` to this point, or zero if `earlier` is later.
    pub const fn millis_since(self, earlier: Self) -> u64 {
        self.micros_since(earlier) / 1_000
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::from_micros(0)
    }
}

/// The proof of ownership of a lock: the value of its key in the store. `Debug` prints only the length, since any
/// client that knows a token can release the lock.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// Creates a token from a copy of these bytes. The command parser checks the length of clients' tokens; the value of a key
    /// that lockgate did not write may be anything.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// Returns the bytes as the store holds them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// The identity that a request acts for. Equal tokens denote one owner only within one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct UserId(pub u32);

impl UserId {
    /// The user of a client that has not authenticated.
    pub const ANONYMOUS: Self = Self(0);
}

/// One `LOCK`, `TRYLOCK`, `UNLOCK` or `RELOCK` of one client, which gets exactly one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One connection of a client, from open to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The waiting time of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// No wait (`TRYLOCK`): nil as soon as this instance knows that the lock is held or awaited.
    No,
    /// Until this moment, then nil.
    Until(Time),
    /// Until the connection ends.
    Forever,
}

/// A `LOCK` or `TRYLOCK`.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// The request that gets the one reply.
    pub request: RequestId,
    /// When the request arrived. Earlier than the event if lockgate had to determine the user first.
    pub asked_at: Time,
    /// The user that the request acts for.
    pub user: UserId,
    /// The token to hold the lock with.
    pub token: Token,
    /// The client named the token itself, so it may return with it on another connection. No client knows a token that
    /// lockgate made until it is granted.
    pub explicit: bool,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// The waiting time.
    pub wait: Wait,
    /// The reply includes a fence.
    pub fence: bool,
    /// lockgate renews the lease for as long as the client's connection lives.
    pub session: bool,
    /// The number of replicas that acknowledge the grant before the client gets it.
    pub replicas: u32,
    /// The connection of the client.
    pub connection: ConnectionId,
    /// The request is one attempt of a client that spins. None: it is a `LOCK` or a `TRYLOCK`.
    pub attempt: Option<Attempt>,
}

impl LockRequest {
    /// Returns whether an equal token is another owner.
    pub fn is_strict(&self) -> bool {
        self.attempt.is_some_and(|attempt| attempt.strict)
    }
}

/// One attempt of a client that spins: it takes the lock by a command of Redis's own, which it repeats until the lock is
/// granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The token may be anybody's, as in `SET key 1 NX`: the attempt is refused if its own token holds the lock, and
    /// shares its place with no other request.
    pub strict: bool,
    /// The client is expected to make another attempt after a refusal, so the queue keeps its place.
    pub returns: bool,
}

/// An event at a lock. [`Queue::handle`](crate::lock::Queue::handle) takes each event together with the time.
#[derive(Debug, Clone)]
pub enum Event {
    /// A client requests the lock.
    Lock(LockRequest),
    /// A client releases the lock.
    Unlock {
        /// The request that gets the one reply.
        request: RequestId,
        /// When the request arrived, as in [`LockRequest`].
        asked_at: Time,
        /// The user that the request acts for.
        user: UserId,
        /// The token that should hold the lock.
        token: Token,
        /// The command is one of Redis's own. Other owners may have the same token.
        absorbed: bool,
    },
    /// A client releases the lock that its user holds by a grant of this instance, whatever its token.
    Delete {
        /// The request that gets the one reply.
        request: RequestId,
        /// When the request arrived, as in [`LockRequest`].
        asked_at: Time,
        /// The user that the request acts for.
        user: UserId,
    },
    /// An owner requests that its lease begin anew.
    Relock {
        /// The request that gets the one reply.
        request: RequestId,
        /// When the request arrived, as in [`LockRequest`].
        asked_at: Time,
        /// The user that the request acts for.
        user: UserId,
        /// The token that should hold the lock.
        token: Token,
        /// The new lease, in milliseconds.
        lease_ms: u64,
        /// The number of replicas that acknowledge the new lease before it counts; more if the grant had more.
        replicas: u32,
        /// The command is one of Redis's own.
        absorbed: bool,
    },
    /// The client of an unanswered `LOCK` or `TRYLOCK` is gone; no reply can reach it.
    Gone {
        /// The abandoned request.
        request: RequestId,
    },
    /// A `LOCK` or `TRYLOCK` stops waiting. It gets the outcome of the store request in flight for it, or nil at once
    /// if there is none.
    StopWaiting {
        /// The request that stops waiting.
        request: RequestId,
    },
    /// A [`Reply::Granted`] reached no client.
    Undelivered {
        /// The request that the grant answered.
        request: RequestId,
        /// The user of the grant.
        user: UserId,
        /// The token that was granted.
        token: Token,
        /// When that lease began. The event does not affect a later lease.
        since: Time,
    },
    /// The connection that a lease was bound to (`SESSION`) has ended. The event has no effect if the lease is bound to
    /// a later request by now.
    SessionClosed {
        /// The request that was granted.
        request: RequestId,
        /// Its user.
        user: UserId,
        /// Its token.
        token: Token,
        /// The client closed the connection, so the queue releases the lock. If lockgate closed it, the client may go
        /// on working: the lock is left to its lease.
        by_client: bool,
    },
    /// On the connection of a waiting `LOCK`, an `UNLOCK` of the same lock stands behind the `LOCK` and may not
    /// overtake it. If the token of the `UNLOCK` holds the lock, the `LOCK` can never be granted.
    UnlockBehind {
        /// The waiting `LOCK`.
        request: RequestId,
        /// The token of that `UNLOCK`.
        held_by: Token,
    },
    /// The acquisition in flight has taken the lock, and the store waits for the replicas to acknowledge it.
    Taken,
    /// The store replied.
    StoreReplied {
        /// The store request that the reply belongs to.
        store_request: StoreRequestId,
        /// The reply.
        store_reply: StoreReply,
        /// The driver's record of the holder that the reply names, if that token was dead before a loss of data.
        dead: Option<Dead>,
    },
    /// The store pushed on this connection that another client changed the lock.
    Changed {
        /// The connection. The queue ignores the event unless it last read the lock on this connection.
        link: LinkId,
    },
    /// Pushes about the lock on this connection may have been lost.
    TrackingLost {
        /// The connection. The queue ignores the event unless it last read the lock on this connection.
        link: LinkId,
        /// The earliest moment of the next store request: the many locks of one connection send theirs one after the
        /// other.
        ask_at: Time,
    },
    /// The store lost data: it restarted without them, or a replica without the latest writes took over. The queue
    /// writes back the lease that this instance granted. The event precedes every reply of the store from after the
    /// loss.
    DataLost {
        /// The dead tokens of this lock that the driver remembers.
        dead: Option<DeadWatch>,
    },
    /// The store has a connection for this user.
    Linked {
        /// The user.
        user: UserId,
    },
    /// The time of [`Queue::wake_at`](crate::lock::Queue::wake_at) has come.
    Timer,
}

impl Event {
    /// Returns the client's request that the event begins, which gets exactly one reply.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::Lock(send) => Some(send.request),
            Self::Unlock { request, .. }
            | Self::Delete { request, .. }
            | Self::Relock { request, .. } => Some(*request),
            _ => None,
        }
    }
}

/// An action that the driver carries out. The order of the actions of one event has no meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A reply to a client.
    Reply {
        /// The request that gets the reply.
        request: RequestId,
        /// The reply.
        reply: Reply,
    },
    /// A request to the store. The queue sends no other request about this lock before the reply.
    Send {
        /// The number that the reply carries.
        id: StoreRequestId,
        /// The request.
        store_request: StoreRequest,
        /// How long the request may wait for a connection, in milliseconds. A request that waited longer is not sent.
        /// An [`Acquire`](StoreRequest::Acquire) that waited for long gets [`NotYet`](super::Outcome::NotYet) even if a
        /// connection came.
        within_ms: u64,
    },
    /// A lease is no longer bound to the connection of this request. If the lock was `lost`, the driver has to notify
    /// the client, which believes that it holds the lock.
    SessionOver {
        /// The request that was granted with `session`.
        request: RequestId,
        /// The client neither released the lock nor took it over by a later request.
        lost: bool,
    },
    /// A token no longer holds the lock. The driver remembers that until [`DeadToken::expires_latest`]: after a loss of
    /// data the store may hold the token again, and then for no client.
    Dead {
        /// The token.
        dead_token: DeadToken,
        /// The store lost data while the release was in flight or shortly before: the token may be back already.
        before_loss: bool,
    },
    /// An occurrence for metrics and warnings, which requires no action.
    Happened(LockMetric),
}

/// An occurrence that no reply shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMetric {
    /// A lease that this instance granted or extended has ended.
    LeaseOver {
        /// When the token first got the lock, or when this instance learned that it had it.
        since: Time,
        /// How the lease ended.
        how: EndReason,
    },
    /// After many handovers in a row the lock was released although waiters remain here, so that other instances and
    /// direct clients get their turn.
    Yielded,
    /// An attempt to acquire the lock found another owner.
    InVain {
        /// A push caused the attempt.
        on_push: bool,
    },
    /// After this many failed attempts on pushes, this instance acquired a free lock: about this many other instances
    /// and direct clients want it.
    Crowded {
        /// The mean over the latest turns of this instance.
        rivals: u32,
    },
    /// A push came, but the lock is unchanged: the store no longer tracks its key for the connection.
    ToldOfNothing,
    /// A renewal of a session's lease succeeded.
    Renewed,
    /// A renewal of a session's lease failed.
    NotRenewed,
}

/// The way a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The lock was released.
    Released,
    /// The next waiter got the lock in the same step.
    HandedOver,
    /// The lease ran out.
    RanOut,
    /// The store had another owner or none before the lease ran out.
    Lost,
}

/// The one reply to a client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The token holds the lock.
    Granted {
        /// The token.
        token: Token,
        /// When the lease ends by this instance's record, which counts from before the store request. From that moment
        /// on the driver does not deliver the grant: it replies [`Refusal::Expired`], and returns the grant by
        /// [`Event::Undelivered`].
        until: Time,
        /// When the token first got the lock.
        since: Time,
        /// The fence, if the request wanted one.
        fence: Option<u64>,
        /// The lease is bound to the connection of this request, whose end the driver reports by
        /// [`Event::SessionClosed`].
        session: bool,
        /// How the grant came about.
        how: GrantKind,
    },
    /// `LOCK` or `TRYLOCK`: not granted.
    Nil,
    /// `UNLOCK`: released; `RELOCK`: the lease began anew.
    Done,
    /// `UNLOCK` or `RELOCK`: this token does not hold the lock.
    NotHeld,
    /// A release by a client whose attempt was just refused: another token is known to hold the lock.
    HeldByAnother,
    /// An error.
    Refused(Refusal),
}

/// The way a grant came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantKind {
    /// The lock was found free.
    Free,
    /// The previous owner's release handed the lock over in one step.
    Handover,
    /// The lock was held when the request came or later, and then found free.
    Waited,
    /// The token held the lock already: the same owner repeated its request.
    Again,
}

/// The reason for an error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The lease ended before the grant could be delivered: it was shorter than the way to the store.
    Expired,
    /// The holder's `UNLOCK` stands behind this `LOCK` on the same connection.
    Deadlock,
    /// The limit of waiting requests is reached.
    TooManyWaiters,
    /// The limit of known locks is reached.
    TooManyLocks,
    /// The store did not reply in time: it may have executed the request, or may yet do so.
    Upstream,
    /// An absorbed command was not sent, because the store has no connection for its user.
    NotSent,
    /// The store's own error, without the leading `-`.
    Store(Bytes),
}

/// The grants by which a dead token held a lock. The token is deleted if it is back by one of them, and by no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// The user on whose behalf the token held the lock, and is deleted.
    pub user: UserId,
    /// The latest deadline that this instance gave the token. A key that expires later is a newer grant of the same
    /// token. None: this instance set no deadline.
    pub not_after: Option<Deadline>,
    /// A later deadline that this instance gave the token before a `RELOCK` shortened the lease. Only a key with
    /// exactly this deadline is the same grant.
    pub or_at: Option<Deadline>,
}

impl Dead {
    /// Returns whether a key with this deadline is a grant of the dead token.
    pub fn covers(&self, deadline: Deadline) -> bool {
        self.not_after.is_none_or(|most| deadline <= most) || self.or_at == Some(deadline)
    }

    /// Combines the records of a token that is dead twice.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let both = self.not_after.zip(other.not_after);
        Self {
            not_after: both.map(|(one, other)| one.max(other)),
            or_at: self.or_at.max(other.or_at),
            ..other
        }
    }
}

/// A dead token: it held a lock and no longer does, because it was released, handed over, or lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadToken {
    /// The token.
    pub token: Token,
    /// Its grants.
    pub dead: Dead,
    /// When its lease would have ended.
    pub expires_latest: Time,
}

/// The watch for the dead tokens of one lock that the driver remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadWatch {
    /// A user that held the lock with one of them.
    pub user: UserId,
    /// When to look for them for the last time: when the last of their leases would have ended, or shortly after the
    /// grace if that is earlier.
    pub until: Time,
}

/// The leases that are written back into a store that lost them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBack {
    /// Every lease.
    All,
    /// `SESSION` leases.
    Session,
    /// No lease.
    Off,
}

/// The settings of a queue. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The number of handovers in a row after which the lock is released for real, so that others get their turn.
    pub max_handovers: u32,
    /// The time of handovers in a row after which the lock is released for real.
    pub max_handover_time_ms: u64,
    /// The pause after such a release before this instance requests the lock again.
    pub yield_pause_ms: u64,
    /// How long the queue keeps the place of a client with an explicit token after its connection closed or its `WAIT`
    /// ran out.
    pub reconnect_grace_ms: u64,
    /// The longest delay, after failed attempts, of an attempt that a push causes.
    pub max_delay_ms: u64,
    /// The longest time without a store request about a lock that has waiters.
    pub ask_at_least_every_ms: u64,
    /// The same if the store cannot push changes.
    pub poll_every_ms: u64,
    /// How long `TRYLOCK`, `UNLOCK` and `RELOCK` wait for the store's reply.
    pub answer_within_ms: u64,
    /// The leases that are written back into a store that lost them.
    pub write_back: WriteBack,
    /// The largest number of requests that wait for one lock, and of one user's pending operations there.
    pub max_waiters: usize,
    /// The largest number of places that are kept at one lock for clients that last waited on one connection.
    pub max_kept_by_connection: usize,
    /// The shortest lease that a renewal of a session requests.
    pub min_session_ms: u64,
}
