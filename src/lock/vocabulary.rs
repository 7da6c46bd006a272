//! The words of the heart: what can happen to a lock, and what can be done about it.

use std::fmt;

use bytes::Bytes;

/// A point in time on the gate's clock, which does not jump. Only differences mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time(u64);

impl Time {
    /// The point `micros` microseconds after the clock's zero.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The point `millis` milliseconds after the clock's zero.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Microseconds since the clock's zero.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// The point `millis` milliseconds after this one; the end of time where that overflows.
    #[must_use]
    pub const fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000)))
    }

    /// Microseconds from `earlier` to this point; none where `earlier` is later.
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Whole milliseconds from `earlier` to this point; none where `earlier` is later.
    pub const fn millis_since(self, earlier: Self) -> u64 {
        self.micros_since(earlier) / 1_000
    }
}

/// What proves ownership of a lock: the value of its key in the store. Printing one shows its
/// length only, since whoever knows a token can release the lock.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(Bytes);

impl Token {
    /// A token of these bytes. Whether their number is allowed is checked where commands are read;
    /// the value that a foreign key holds may be anything.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes as they stand in the store.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({} bytes)", self.0.len())
    }
}

/// The identity on whose behalf something is done: equal tokens are one owner only within one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct UserId(pub u32);

impl UserId {
    /// Whoever has not said who it is.
    pub const ANONYMOUS: Self = Self(0);
}

/// One `LOCK`, `TRYLOCK`, `UNLOCK` or `RELOCK` of one client: exactly one reply goes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One question to the store; its answer comes back under the same number. Unique within a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuestionId(pub u64);

/// One connection to the store, from its opening to its end. A new connection has a new number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// The moment at which the key expires, in milliseconds since 1970 by the clock of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Deadline(pub u64);

/// How long a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all (`TRYLOCK`): nil as soon as the lock is known to be held or awaited.
    No,
    /// Until this moment, then nil.
    Until(Time),
    /// As long as the connection lives.
    Forever,
}

/// A `LOCK` or `TRYLOCK`.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// To whom the one reply goes.
    pub request: RequestId,
    /// When the client asked: before now, where it had to be found out on whose behalf.
    pub asked_at: Time,
    /// On whose behalf.
    pub user: UserId,
    /// The token to hold the lock with.
    pub token: Token,
    /// The client named the token itself, so it may come back with it on another connection; a
    /// token that lockgate made is known to nobody else until it is granted.
    pub explicit: bool,
    /// The lease, in milliseconds.
    pub lease_ms: u64,
    /// How long to wait.
    pub wait: Wait,
    /// The reply is to tell a fence.
    pub fence: bool,
    /// The lease is to be renewed for as long as the client's connection lives.
    pub session: bool,
}

/// What can happen to a lock. Every event carries the time by [`Queue::handle`](crate::lock::Queue::handle).
#[derive(Debug, Clone)]
pub enum Event {
    /// A client wants the lock.
    Lock(LockRequest),
    /// A client gives the lock back.
    Unlock {
        /// To whom the one reply goes.
        request: RequestId,
        /// When the client asked, as in [`LockRequest`].
        asked_at: Time,
        /// On whose behalf.
        user: UserId,
        /// The token that should hold the lock.
        token: Token,
    },
    /// An owner wants its lease to begin anew.
    Relock {
        /// To whom the one reply goes.
        request: RequestId,
        /// When the client asked, as in [`LockRequest`].
        asked_at: Time,
        /// On whose behalf.
        user: UserId,
        /// The token that should hold the lock.
        token: Token,
        /// The new lease, in milliseconds.
        lease_ms: u64,
    },
    /// The client of a `LOCK` or `TRYLOCK` that was not answered yet is gone; no reply can reach it.
    Gone {
        /// The request that nobody waits for any more.
        request: RequestId,
        /// Its user.
        user: UserId,
        /// Its token.
        token: Token,
    },
    /// A `LOCK` or `TRYLOCK` is not to wait any longer: it gets what the question on its way
    /// brings, or nil at once where none is on its way for it.
    StopWaiting {
        /// The request that does not wait any longer.
        request: RequestId,
        /// Its user.
        user: UserId,
        /// Its token.
        token: Token,
    },
    /// A [`Reply::Granted`] could reach no client.
    Undelivered {
        /// The request that it answered.
        request: RequestId,
        /// The user of the grant.
        user: UserId,
        /// The token that was granted.
        token: Token,
        /// Since when that lease was there. Means nothing for a later one.
        since: Time,
    },
    /// The connection that a lease was bound to (`SESSION`) has ended. Means nothing where the lease
    /// is bound to a later request by now.
    SessionClosed {
        /// The request that was granted.
        request: RequestId,
        /// Its user.
        user: UserId,
        /// Its token.
        token: Token,
        /// The client closed it, so the lock is released. Where the gate did, the client may go on
        /// working: the lock is left to its lease.
        by_client: bool,
    },
    /// Behind a waiting `LOCK`, on the same connection, stands the `UNLOCK` of this lock with this
    /// token, and it may not overtake. Should that token hold the lock, the `LOCK` can never be granted.
    UnlockBehind {
        /// The waiting `LOCK`.
        request: RequestId,
        /// Its user.
        user: UserId,
        /// Its token.
        token: Token,
        /// The token of the `UNLOCK` behind it.
        held_by: Token,
    },
    /// The store answered.
    Answered {
        /// Which question.
        question: QuestionId,
        /// What it said.
        answer: Answer,
        /// The driver remembers the holder that the answer names as dead since before a loss of data.
        dead: Option<Dead>,
    },
    /// The store said on this connection that somebody else changed the lock.
    Changed {
        /// The connection; ignored unless it is the one that the lock was last read on.
        link: LinkId,
    },
    /// What this connection was to tell about the lock may have been lost.
    Deaf {
        /// The connection; ignored unless it is the one that the lock was last read on.
        link: LinkId,
        /// Not to ask before this moment: the many locks of one connection ask one after the other.
        ask_at: Time,
    },
    /// The store lost data: it restarted without them, or a replica without the latest writes took over.
    /// The lease that this instance granted is written back. Comes before any answer of the store from
    /// after the loss.
    Forgot {
        /// The driver remembers dead tokens of this lock.
        dead: Option<Burial>,
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
    /// The request that the event begins: exactly one reply will go to it.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::Lock(ask) => Some(ask.request),
            Self::Unlock { request, .. } | Self::Relock { request, .. } => Some(*request),
            _ => None,
        }
    }
}

/// What is to be done. The order of actions of one event means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Answer a client.
    Reply {
        /// Whom.
        request: RequestId,
        /// With what.
        reply: Reply,
    },
    /// Ask the store. No other question about this lock follows before the answer.
    Ask {
        /// The number that the answer comes back under.
        id: QuestionId,
        /// What to ask.
        question: Question,
        /// For how many milliseconds there is reason to: what waits longer for a connection is not asked. An
        /// [`Ask`](Question::Ask) waits for ever.
        within_ms: u64,
    },
    /// A lease is bound to the connection of this request no longer. Where the lock was `lost` the
    /// client has to be told: it believes to hold it.
    SessionOver {
        /// The request that was granted with `session`.
        request: RequestId,
        /// It was neither released by the client nor taken over by a later request of it.
        lost: bool,
    },
    /// The token does not hold the lock any more. The driver remembers that until `over_at`: after a loss
    /// of data the store may hold the token again, and then for no client.
    Died {
        /// The token.
        token: Token,
        /// On whose behalf it is deleted where it is back, and up to which deadline.
        dead: Dead,
        /// When its lease would have been over.
        over_at: Time,
        /// The store lost data since it was asked: the token may be back already.
        before_loss: bool,
    },
    /// Nothing is to be done: something happened that somebody may want to count.
    Happened(Happening),
}

/// What shows in no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// A lease that this gate granted or extended is over.
    LeaseOver {
        /// When the token first got the lock, or this gate heard that it had it.
        since: Time,
        /// How it ended.
        how: Ending,
    },
    /// Handovers were many in a row: the lock was released though somebody waits here, so that others
    /// get their turn.
    Yielded,
    /// The store was asked for the lock, and somebody elsewhere held it.
    InVain {
        /// It was asked because it told of a change.
        on_push: bool,
    },
    /// After asking in vain so often, on pushes, this gate was granted a lock that was free: about so many gates and
    /// clients of the store itself want it.
    Crowded {
        /// The mean of the latest turns of this gate.
        rivals: u32,
    },
    /// A push came, and the lock is as it was: the store has forgotten what is tracked on the connection.
    ToldOfNothing,
    /// A lease that is bound to a connection began anew.
    Renewed,
    /// The same was tried in vain.
    NotRenewed,
}

/// How a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The lock was released.
    Released,
    /// The next one got the lock in the same step.
    HandedOver,
    /// It ran out.
    RanOut,
    /// The store had another owner or none, before its time.
    Lost,
}

/// The one reply to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The token holds the lock.
    Granted {
        /// The token.
        token: Token,
        /// When its lease ends by the gate's own record, which counts from before the store was
        /// asked. Not to be delivered from then on, but refused as [`Refusal::Expired`] and
        /// given back by [`Event::Undelivered`].
        until: Time,
        /// Since when the lease is there, by the same record.
        since: Time,
        /// The fence, where the request asked for one.
        fence: Option<u64>,
        /// The lease is bound to the connection of this request: its end is to be told by
        /// [`Event::SessionClosed`].
        session: bool,
        /// How it came about.
        how: How,
    },
    /// `LOCK` or `TRYLOCK`: not granted.
    Nil,
    /// `UNLOCK`: released; `RELOCK`: the lease began anew.
    Done,
    /// `UNLOCK` or `RELOCK`: this token does not hold the lock.
    NotHeld,
    /// An error.
    Refused(Refusal),
}

/// How a grant came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The lock was found free.
    Free,
    /// Its owner released it to this one, in one step.
    Handover,
    /// It was held when the request came, or since, and then found free.
    Waited,
    /// The token had the lock already: the same owner asked again.
    Again,
}

/// Why a request gets an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The lease was over before the grant could be delivered: shorter than the way to the store.
    Expired,
    /// The holder's `UNLOCK` stands behind this `LOCK` on its own connection.
    Deadlock,
    /// As many wait as may.
    TooManyWaiters,
    /// As many locks are known as may be.
    TooManyLocks,
    /// The store did not answer in time.
    Upstream,
    /// The store's own error, without the leading `-`.
    Store(Bytes),
}

/// Whether an [`Ask`](Question::Ask) is for a fence, too. A new one is larger than all before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// It is not.
    No,
    /// For a new one.
    New,
    /// The token has one, if it holds the lock until this very moment; for a new one if not, since others may have
    /// been granted the lock meanwhile.
    NewUnless(Deadline),
}

/// A token that held a lock and does not any more: released, handed on, or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead {
    /// The user on whose behalf it held the lock.
    pub user: UserId,
    /// The latest deadline that this instance gave it. A key that expires later was granted to the same
    /// token since. None: this instance set none.
    pub not_after: Option<Deadline>,
}

impl Dead {
    /// What is known of a token that died twice.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let both = self.not_after.zip(other.not_after);
        Self {
            not_after: both.map(|(one, other)| one.max(other)),
            ..other
        }
    }
}

/// The tokens of one lock that the driver remembers as dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burial {
    /// A user who held the lock with one of them.
    pub user: UserId,
    /// When the last of their leases would have been over.
    pub until: Time,
}

/// What a renewal leaves in the deadline, so that it can be told from what another gate did with the same token: the
/// remainder of the expected deadline by [`MARK_MS`] stays the same. The lease is longer by so much at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Nothing: the lease is as long as it was asked for.
    None,
    /// The remainder.
    Kept,
    /// The remainder; and a key that has it already has the expected deadline, by an earlier sending that was not
    /// answered.
    Found,
}

/// What the deadlines of renewals are counted by, in milliseconds.
pub const MARK_MS: u64 = 256;

/// One atomic step in the store. Each may be sent again when its answer was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Is the lock free, or held by this very token? Then the token holds it from now on for
    /// `lease_ms`. A token that holds it already gets its deadline moved by at least 3 ms.
    Ask {
        /// On whose behalf.
        user: UserId,
        /// Who wants the lock.
        token: Token,
        /// For how long, in milliseconds.
        lease_ms: u64,
        /// Whether with a fence.
        fence: Fence,
        /// The deadline that the key has if the token holds the lock by a grant of this gate.
        expects: Option<Deadline>,
        /// Nothing is known of the lock, and nobody needs to be told of its changes while the token
        /// holds it: it may be taken in the cheapest way, and the answer may leave `fresh` false.
        bare: bool,
    },
    /// Does `from` hold the lock? Then `to` holds it from now on for `lease_ms`. Does `to` hold it
    /// already? Then it was done before, and the lease begins anew, its deadline moved by at least 3 ms.
    HandOver {
        /// On whose behalf.
        user: UserId,
        /// Who holds it.
        from: Token,
        /// Only if the key expires at this moment, so that nothing is taken from a client that was
        /// granted the same token elsewhere meanwhile.
        only_if: Option<Deadline>,
        /// Who is to hold it.
        to: Token,
        /// For how long, in milliseconds.
        lease_ms: u64,
        /// With a new fence, larger than all before.
        fence: bool,
    },
    /// Does the token hold the lock? Then it is free from now on.
    Release {
        /// On whose behalf.
        user: UserId,
        /// Who holds it.
        token: Token,
        /// Only if the key expires at this moment.
        only_if: Option<Deadline>,
    },
    /// Does the token hold the lock? Then it holds it from now on for `lease_ms`, its deadline
    /// moved by at least 3 ms.
    Extend {
        /// On whose behalf.
        user: UserId,
        /// Who holds it.
        token: Token,
        /// For how long, in milliseconds.
        lease_ms: u64,
        /// The deadline that the key has if nobody else extended the lease;
        /// [`Outcome::Granted::fresh`] tells whether it had it.
        expects: Option<Deadline>,
        /// How the new deadline is to be recognized. Means nothing without an expected one.
        mark: Mark,
    },
    /// Who holds the lock? Changes nothing.
    Check {
        /// On whose behalf.
        user: UserId,
    },
    /// After the store lost data: is the lock free? Then the token holds it from now on for `lease_ms`.
    /// Does the token hold it already? Then it does so for `lease_ms` at least.
    Restore {
        /// On whose behalf.
        user: UserId,
        /// Who holds it, by the books of this instance.
        token: Token,
        /// What is left of its lease, in milliseconds.
        lease_ms: u64,
    },
    /// After the store lost data: does this dead token hold the lock again? Then it is free from now on.
    Bury {
        /// On whose behalf.
        user: UserId,
        /// The token.
        token: Token,
        /// Only if the key expires by then.
        not_after: Option<Deadline>,
    },
}

impl Question {
    /// The user on whose behalf the question is asked.
    pub fn user(&self) -> UserId {
        match self {
            Self::Ask { user, .. }
            | Self::HandOver { user, .. }
            | Self::Release { user, .. }
            | Self::Extend { user, .. }
            | Self::Check { user }
            | Self::Restore { user, .. }
            | Self::Bury { user, .. } => *user,
        }
    }
}

/// What the store answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What was found and done.
    pub outcome: Outcome,
    /// The connection that will tell when somebody else changes the lock from now on. None where
    /// nothing will be told: the question did not read the lock, was not answered, or the store
    /// cannot tell.
    pub armed: Option<LinkId>,
    /// The store lost data lately, and for so many more milliseconds other instances may write back what
    /// they granted: a token that is not there may yet come.
    pub grace_ms: Option<u64>,
}

/// What a question found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// `Ask`, `HandOver`, `Extend`, `Restore`: the token holds the lock, until `deadline`.
    Granted {
        /// When the key expires.
        deadline: Deadline,
        /// The lock was somebody else's or nobody's before, or the key had the deadline that the
        /// question expected. False where the token held the lock already: by an earlier sending
        /// of this question, or by a grant that another gate made or extended.
        fresh: bool,
        /// The new fence, where the question wanted one.
        fence: Option<u64>,
    },
    /// `Ask`, `HandOver`, `Extend`, `Restore`: not done, somebody else holds the lock. `Check`:
    /// this one holds it. `Release`: not done, and nothing more is known.
    Held {
        /// The value of the key. None where the question did not tell.
        holder: Option<Token>,
        /// How long the key lives from now on, in milliseconds. None: forever, or not told.
        ttl_ms: Option<u64>,
    },
    /// `HandOver`, `Extend`: not done, nobody holds the lock. `Check`: nobody holds it.
    /// `Release`, `Bury`: done.
    Free,
    /// Not done, and asking again the same will not help: the store's own error, without the
    /// leading `-`.
    Refused(Bytes),
    /// Not done: the key holds no string, and so no lock. The store's own error, without the leading `-`.
    WrongType(Bytes),
    /// Not done, and asking again later may help (the store is loading, is a replica, …): the
    /// store's own error, without the leading `-`.
    NotNow(Bytes),
    /// `Ask`, and a `HandOver` with a fence: not sent. The store lost data, and other instances may yet write back
    /// what they granted, and raise the fence counter: for so many milliseconds no lock that is found free may be
    /// taken. Or (`Ask`) it could not be reached for long, and is to be asked anew.
    NotYet {
        /// Milliseconds from now; 0 is at once.
        ms: u64,
    },
    /// The connection broke: it may have been done or not, or may not have been sent.
    Unknown,
    /// Not sent: the store has no connection for the user, and has had none for a while. [`Event::Linked`] tells
    /// when it has one.
    NoLink,
}

/// Which leases are written back into a store that lost them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteBack {
    /// Every lease.
    All,
    /// Those of `SESSION`.
    Session,
    /// None.
    Off,
}

/// How a queue behaves. Times are in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Handovers in a row before the lock is released for real, so that others get their turn.
    pub max_handoffs: u32,
    /// Time of handovers in a row before the lock is released for real.
    pub max_handoff_time_ms: u64,
    /// After such a release, how long before this gate asks again.
    pub yield_pause_ms: u64,
    /// How long the place of a client with an explicit token is kept after its connection closed.
    pub return_ms: u64,
    /// After asks in vain, the longest delay of the next one that a push brings about.
    pub max_delay_ms: u64,
    /// A lock that is waited for is asked about at least this often.
    pub ask_at_least_every_ms: u64,
    /// The same where the store cannot tell of changes.
    pub poll_every_ms: u64,
    /// How long `TRYLOCK`, `UNLOCK` and `RELOCK` wait for the store's answer.
    pub answer_within_ms: u64,
    /// Which leases are written back into a store that lost them.
    pub write_back: WriteBack,
    /// Requests that may wait at a time, and errands of one user.
    pub max_waiters: usize,
    /// A lease that is bound to a connection is renewed for so long at least.
    pub min_session_ms: u64,
}
