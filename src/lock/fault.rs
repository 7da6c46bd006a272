//! Faults that prove the checkers of the tests. Each is one line at its place in the state machine, which leaves out a
//! precaution. No shipped build contains a fault: without the cargo feature `planted-faults` [`planted`] is a constant,
//! and with it the crate compiles only with debug assertions.

#[cfg(all(feature = "planted-faults", not(debug_assertions)))]
compile_error!("planted faults are for tests with debug assertions only");

/// A step that is left out or done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The queue forgets a push that arrives while a store request is in flight. Such a push may be newer than the
    /// reply.
    NoDirtyMark,
    /// The queue still believes what it read on a broken connection after a reply on the next connection.
    StaleBelief,
    /// The queue takes a grant back whatever deadline the key has by now.
    DeadlineNotInsisted,
    /// The queue does not retry a renewal that failed.
    RenewalStopsAtError,
    /// The queue renews a lease although the connection that it was bound to has ended.
    RenewalOutlivesSession,
    /// The queue never renews a session.
    NoRenewal,
    /// The client gets no notice that the lock of its session was lost.
    LossNotTold,
    /// The client gets no notice that its session could not be renewed in time.
    LateRenewalNotTold,
    /// The queue does not release a session's lock when the client closes the connection.
    SessionNotReleased,
    /// The queue does not write back a lease that the store lost.
    NotWrittenBack,
    /// The queue writes a lease back although the store reported a change of the lock.
    WrittenBackThoughChanged,
    /// The queue writes a lease back for one millisecond only.
    WrittenBackTooShort,
    /// The driver, here the simulator's, takes a free lock during the grace.
    GraceNotKept,
    /// The driver, here the simulator's, does not raise the fence counter of a store that lost data to the fences it
    /// has seen.
    FenceNotRaised,
    /// The queue does not report a released token as dead, so the token is not deleted when it comes back.
    ReleasedForgotten,
    /// The queue forgets the deadline of a lease that an extension shortened.
    ShortenedForgotten,
    /// The queue does not report a lost token as dead, so the token is not deleted when it comes back.
    LostForgotten,
    /// The queue leaves a dead token alone that holds the lock again.
    DeadNotDeleted,
    /// A dead token is deleted whatever deadline the key has by then.
    DeadWhateverDeadline,
    /// A client gets its grant before the replicas that it asked for acknowledged it.
    GrantedUnacknowledged,
    /// The driver, here the simulator's, shortens a lease before the replicas acknowledged it.
    ShortenedUnacknowledged,
    /// The queue gives a lease up as soon as its write-back finds another token.
    ContestedIsLost,
    /// An owner gets `NotHeld` although another instance may yet write its lease back.
    NotHeldWithinGrace,
    /// The next owner gets no fence with a handover.
    NoFenceOnHandover,
    /// The queue takes an acquisition for not executed if its client left before the reply.
    UnknownIsNotDone,
    /// The queue does not send an `UNLOCK` again that got no reply.
    UnlockNotAskedAgain,
    /// The queue keeps a grant that reached no client.
    UndeliveredKept,
    /// The queue keeps a grant whose client left meanwhile.
    GoneGrantKept,
    /// The queue delivers a grant whose lease is over.
    ExpiredDelivered,
    /// The queue checks a lock at the very moment of its expiry, when the key still exists.
    TimerAtTtl,
    /// No timer wakes the queue at the end of a `WAIT`.
    WaitNotTimed,
    /// The queue does not pass over a place whose client left.
    KeptPlaceNotPassed,
    /// Of the requests that share a place, only the first gets a reply.
    JoinedNotAnswered,
    /// The latest place goes before all others.
    NewcomerFirst,
    /// The queue ignores pushes: it checks a changed lock only when its lease would have ended.
    PushIgnored,
    /// The queue writes a lease back although its release is in flight.
    WrittenBackThoughReleased,
    /// A user waits behind others without a check of its rights.
    UnauthorizedNotChecked,
    /// The queue hands the lock over to the next waiter of any user.
    HandedToAnotherUser,
    /// Pending operations go before waiters, however many pending operations there are.
    OpsFirst,
    /// Each pending operation costs a store request of its own.
    OpsOneByOne,
    /// A user without a connection to the store delays the waiters behind it.
    CutOffNotPassed,
    /// Strict attempts with the same token share a place and the lease.
    EqualTokensJoined,
    /// A refused attempt loses its place in the queue.
    AttemptForgotten,
    /// A client whose `WAIT` ran out loses its place in the queue.
    PlaceLostOnTimeout,
    /// Attempts are refused by what the store reported long ago.
    OldBeliefRefuses,
}

impl Fault {
    /// All faults.
    pub const ALL: &'static [Self] = &[
        Self::NoDirtyMark,
        Self::StaleBelief,
        Self::DeadlineNotInsisted,
        Self::RenewalStopsAtError,
        Self::RenewalOutlivesSession,
        Self::NoRenewal,
        Self::LossNotTold,
        Self::LateRenewalNotTold,
        Self::SessionNotReleased,
        Self::NotWrittenBack,
        Self::WrittenBackThoughChanged,
        Self::WrittenBackTooShort,
        Self::GraceNotKept,
        Self::FenceNotRaised,
        Self::ReleasedForgotten,
        Self::ShortenedForgotten,
        Self::LostForgotten,
        Self::DeadNotDeleted,
        Self::DeadWhateverDeadline,
        Self::GrantedUnacknowledged,
        Self::ShortenedUnacknowledged,
        Self::ContestedIsLost,
        Self::NotHeldWithinGrace,
        Self::NoFenceOnHandover,
        Self::UnknownIsNotDone,
        Self::UnlockNotAskedAgain,
        Self::UndeliveredKept,
        Self::GoneGrantKept,
        Self::ExpiredDelivered,
        Self::TimerAtTtl,
        Self::WaitNotTimed,
        Self::KeptPlaceNotPassed,
        Self::JoinedNotAnswered,
        Self::NewcomerFirst,
        Self::PushIgnored,
        Self::WrittenBackThoughReleased,
        Self::UnauthorizedNotChecked,
        Self::HandedToAnotherUser,
        Self::OpsFirst,
        Self::OpsOneByOne,
        Self::CutOffNotPassed,
        Self::EqualTokensJoined,
        Self::AttemptForgotten,
        Self::PlaceLostOnTimeout,
        Self::OldBeliefRefuses,
    ];
}

/// Returns whether this fault is planted.
#[cfg(not(feature = "planted-faults"))]
#[inline(always)]
pub const fn planted(_: Fault) -> bool {
    false
}

#[cfg(feature = "planted-faults")]
pub use planting::{plant, planted};

#[cfg(feature = "planted-faults")]
mod planting {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Returns whether this fault is planted.
    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }

    /// Plants this fault, or none, in the current thread.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }
}
