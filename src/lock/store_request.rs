//! The requests of the state machine to the store, and the store's replies.

use std::num::NonZeroU64;

use bytes::Bytes;

use super::event::{Dead, Token, UserId};

/// One request to the store, whose reply carries the same number. Unique within a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreRequestId(pub u64);

/// One connection to the store, from open to close. A new connection has a new number. It is kept as the number plus one,
/// so that an `Option<LinkId>` takes no more memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(NonZeroU64);

impl LinkId {
    /// Returns the connection with this number.
    pub const fn new(number: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(number))
    }

    /// Returns its number.
    pub const fn number(self) -> u64 {
        self.0.get() - 1
    }
}

/// The moment at which the key expires, in milliseconds since 1970 on the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Deadline(pub u64);

/// The fence that an [`Acquire`](StoreRequest::Acquire) requests. A new fence is larger than all before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// No fence.
    No,
    /// A new fence.
    New,
    /// A new fence, unless the token holds the lock with exactly this deadline: then it has its fence already. With
    /// another deadline, others may have been granted the lock meanwhile.
    NewUnless(Deadline),
}

/// The mark that a renewal leaves in the deadline: the remainder of the expected deadline modulo [`MARK_MS`] stays the
/// same. It distinguishes the renewal from what another instance did with the same token. It lengthens the lease by
/// less than [`MARK_MS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// No mark: the lease is exactly as long as requested.
    None,
    /// The new deadline keeps the remainder.
    Kept,
    /// The new deadline keeps the remainder. A key that has that remainder already counts as having the expected
    /// deadline, from an earlier sending without a reply.
    Found,
}

/// The modulus of the deadlines of renewals, in milliseconds.
pub const MARK_MS: u64 = 256;

/// One atomic step in the store. The queue may send each step again if the reply was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreRequest {
    /// An acquisition: if the lock is free or the token holds it, the token holds it for `lease_ms` from now on. If the
    /// token held it already, its deadline moves by at least 3 ms.
    Acquire {
        /// The user that the request acts for.
        user: UserId,
        /// The token to hold the lock with.
        token: Token,
        /// The lease, in milliseconds.
        lease_ms: u64,
        /// The fence to grant with it.
        fence: Fence,
        /// The deadline that the key has if the token holds the lock by a grant of this instance.
        expects: Option<Deadline>,
        /// Nothing is known of the lock, and no client needs pushes about it while the token holds it. The store may
        /// take the lock in the cheapest way, and the reply may leave `fresh` false.
        bare: bool,
        /// A token that holds the lock already is refused. `expects` is none, and there is no fence.
        strict: bool,
        /// The number of replicas that have to acknowledge the grant. If fewer do in time, the outcome is
        /// [`Outcome::Unacknowledged`]. The lease of a token that holds the lock already is shortened only after the
        /// acknowledgement.
        replicas: u32,
    },
    /// A handover: if `from` holds the lock, `to` holds it for `lease_ms` from now on. If `to` holds it already, the
    /// store executed an earlier sending: the lease begins anew, and its deadline moves by at least 3 ms.
    Handover {
        /// The user that the request acts for.
        user: UserId,
        /// The token of the holder.
        from: Token,
        /// The deadline that the key must have, so that a client that was granted the same token elsewhere meanwhile
        /// loses nothing. None: any.
        only_if: Option<Deadline>,
        /// The token of the next holder.
        to: Token,
        /// The lease, in milliseconds.
        lease_ms: u64,
        /// The next holder gets a new fence, larger than all before.
        fence: bool,
        /// If `to` holds the lock already, it does not count as the next holder. There is no fence.
        strict: bool,
    },
    /// A release: if the token holds the lock, the lock is free from now on.
    Release {
        /// The user that the request acts for.
        user: UserId,
        /// The token of the holder.
        token: Token,
        /// The deadline that the key must have. None: any.
        only_if: Option<Deadline>,
    },
    /// An extension: if the token holds the lock, it holds it for `lease_ms` from now on. Its deadline moves by at
    /// least 3 ms.
    Extend {
        /// The user that the request acts for.
        user: UserId,
        /// The token of the holder.
        token: Token,
        /// The lease, in milliseconds.
        lease_ms: u64,
        /// The deadline that the key has if no other instance extended the lease. [`Outcome::Granted::fresh`] reports
        /// whether the key had it.
        expects: Option<Deadline>,
        /// The mark of the new deadline. It has no effect without an expected deadline.
        mark: Mark,
        /// The number of replicas that have to acknowledge the new deadline, as in an acquisition: before it if it
        /// shortens the lease, else after it.
        replicas: u32,
    },
    /// A read of the holder, which changes nothing.
    Check {
        /// The user that the request acts for.
        user: UserId,
    },
    /// A write-back after the store lost data: if the lock is free, the token holds it for `lease_ms` from now on. If
    /// the token holds it already, it does so for at least `lease_ms`.
    WriteBack {
        /// The user that the request acts for.
        user: UserId,
        /// The token of the holder, by this instance's state.
        token: Token,
        /// The rest of its lease, in milliseconds.
        lease_ms: u64,
    },
    /// The deletion of a dead token after the store lost data: if the token holds the lock again, the lock is free from
    /// now on.
    DeleteDead {
        /// The token.
        token: Token,
        /// The user that the request acts for, and the deadlines that the key may have.
        dead: Dead,
    },
}

impl StoreRequest {
    /// Returns the user that the request acts for.
    pub fn user(&self) -> UserId {
        match self {
            Self::Acquire { user, .. }
            | Self::Handover { user, .. }
            | Self::Release { user, .. }
            | Self::Extend { user, .. }
            | Self::Check { user }
            | Self::WriteBack { user, .. } => *user,
            Self::DeleteDead { dead, .. } => dead.user,
        }
    }

    /// Returns the number of replicas that have to acknowledge what the request grants.
    pub fn replicas(&self) -> u32 {
        match self {
            Self::Acquire { replicas, .. } | Self::Extend { replicas, .. } => *replicas,
            _ => 0,
        }
    }

    /// Returns whether the request grants a strict attempt the lock.
    pub fn is_strict(&self) -> bool {
        matches!(
            self,
            Self::Acquire { strict: true, .. } | Self::Handover { strict: true, .. }
        )
    }

    /// Returns the owner that the request may grant the lock, and the lease in milliseconds.
    pub fn grants_to(&self) -> Option<(UserId, &Token, u64)> {
        match self {
            Self::Acquire {
                user,
                token,
                lease_ms,
                ..
            }
            | Self::Handover {
                user,
                to: token,
                lease_ms,
                ..
            } => Some((*user, token, *lease_ms)),
            _ => None,
        }
    }
}

/// A reply of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreReply {
    /// The result of the request.
    pub outcome: Outcome,
    /// The connection that pushes other clients' changes of the lock from now on. None: no push will come, because the
    /// request did not read the lock or got no reply, or because the store cannot push.
    pub armed: Option<LinkId>,
    /// The rest of the grace after a loss of data, in milliseconds. Until its end other instances may write back what
    /// they granted: a token that is absent may yet come.
    pub grace_ms: Option<u64>,
}

/// The replicas that are missing for a grant to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// The error, without the leading `-`.
    pub error: Bytes,
    /// The number of replicas that a grant can count on for now.
    pub have: u32,
    /// After how many milliseconds a retry may help. None: never.
    pub again_ms: Option<u64>,
}

/// The result of a request to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// `Acquire`, `Handover`, `Extend`, `WriteBack`: the token holds the lock until `deadline`.
    Granted {
        /// When the key expires.
        deadline: Deadline,
        /// The lock was free or another token held it, or the key had the deadline that the request expected. False if
        /// the token held the lock already: by an earlier sending of this request, or by a grant that another instance
        /// made or extended.
        fresh: bool,
        /// The new fence, if the request wanted one.
        fence: Option<u64>,
    },
    /// `Acquire`, `Handover`, `Extend`, `WriteBack`, `DeleteDead`: not done, this owner holds the lock. `Check`: this
    /// owner holds the lock. `Release`: not done, and nothing more is known.
    Held {
        /// The value of the key. None: not reported.
        holder: Option<Token>,
        /// The remaining time to live of the key, in milliseconds. None: unlimited, or not reported.
        ttl_ms: Option<u64>,
    },
    /// `Handover`, `Extend`: not done, the lock is free. `Check`: the lock is free. `Release`, `DeleteDead`: done.
    Free,
    /// Not done, and a retry does not help: the store's own error, without the leading `-`.
    Refused(Bytes),
    /// Not done: the key holds no string, and so no lock. The store's own error, without the leading `-`.
    WrongType(Bytes),
    /// Not done, and a later retry may help (the store is loading, is a replica, …): the store's own error, without the
    /// leading `-`.
    NotNow(Bytes),
    /// `Acquire`, `Extend`: too few replicas acknowledged it, so it does not count.
    Unacknowledged {
        /// The replicas that are missing.
        missing: Missing,
        /// The token holds the lock all the same, until this deadline, and whether the grant is
        /// [fresh](Outcome::Granted::fresh). None: the store changed nothing.
        done: Option<(Deadline, bool)>,
    },
    /// Not sent: an `Acquire`, or a `Handover` with a fence, within the grace. The store lost data, and other instances
    /// may yet write back what they granted, and raise the fence counter: until its end no free lock may be taken. An
    /// `Acquire` that waited long for a connection also gets this, and is to be sent anew.
    NotYet {
        /// The milliseconds until then; 0 is at once.
        ms: u64,
    },
    /// The connection broke: the store may have executed the request or not, or the request may not have been sent.
    Unknown,
    /// Not sent: the store has had no connection for the user for a while. [`Event::Linked`](super::Event::Linked)
    /// reports the next one.
    NoLink,
}
