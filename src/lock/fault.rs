//! Faults to prove the checkers of the tests with: each is one line at its place in the heart, which
//! leaves out what this code took pains to do. None is ever there in what is shipped: without the
//! cargo feature `planted-faults` [`planted`] is a constant, and with it nothing compiles but with
//! debug assertions on.

#[cfg(all(feature = "planted-faults", not(debug_assertions)))]
compile_error!("planted faults are for tests with debug assertions only");

/// Something that is left out or done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A push that comes while a question is on its way, so that it may be newer than the answer,
    /// is forgotten.
    NoDirtyMark,
    /// What was read on a connection that broke is believed after an answer on the next one.
    StaleBelief,
    /// What is taken back is taken back whatever deadline it has by now.
    DeadlineNotInsisted,
    /// A renewal that fails is not tried again.
    RenewalStopsAtError,
    /// A lease is renewed although the connection that it was bound to has ended.
    RenewalOutlivesSession,
    /// A session is not renewed at all.
    NoRenewal,
    /// A client is not told that the lock of its session was lost.
    LossNotTold,
    /// A client is not told that its session could not be renewed in time.
    LateRenewalNotTold,
    /// A session's lock is not released when its client closes the connection.
    SessionNotReleased,
    /// A lease that the store lost is not written back.
    NotWrittenBack,
    /// A lease is written back although the store told that the lock was changed.
    WrittenBackThoughChanged,
    /// A lease is written back for a millisecond only.
    WrittenBackTooShort,
    /// A lock that is found free is taken during the grace: by the driver, which here is the
    /// simulator's.
    GraceNotKept,
    /// The fence counter of a store that lost data is not raised to what was told: by the driver, too.
    FenceNotRaised,
    /// Released tokens are forgotten, so that one which comes back from the dead is not overwritten.
    ReleasedForgotten,
    /// A lost token is forgotten, so that it comes back from the dead.
    LostForgotten,
    /// A dead token that holds the lock again is left there.
    DeadNotBuried,
    /// A token that this instance gave back on its own account is dead whatever deadline it has by now.
    BuriedWhateverDeadline,
    /// A lease is given up as soon as another token is in its place.
    ContestedIsLost,
    /// An owner is told that it does not hold the lock though another instance may yet write its lease back.
    NotHeldWithinGrace,
    /// The next one gets no fence with a handover.
    NoFenceOnHandover,
    /// A question that was not answered before its client left is taken for not done.
    UnknownIsNotDone,
    /// An `UNLOCK` that was not answered is not asked again.
    UnlockNotAskedAgain,
    /// A grant that reached nobody is kept.
    UndeliveredKept,
    /// A grant to somebody who left meanwhile is kept.
    GoneGrantKept,
    /// A grant is delivered though its lease is over.
    ExpiredDelivered,
    /// A lock is asked about at the very moment when it expires, when it is still there.
    TimerAtTtl,
    /// Nothing wakes the queue at the end of a `WAIT`.
    WaitNotTimed,
    /// A place whose client left is not passed over.
    KeptPlaceNotPassed,
    /// Of the requests that share a place only the first is answered.
    JoinedNotAnswered,
    /// A `LOCK` gets a place ahead of those who wait.
    NewcomerFirst,
    /// A lock that is told to be changed is not asked about before its lease would be over.
    PushIgnored,
    /// A lease is written back although its release is under way.
    WrittenBackThoughReleased,
    /// A user who would wait behind others waits, whatever rights it has.
    StrangersNotAsked,
    /// The lock is handed over to whoever is next, of whatever user.
    HandedToAnotherUser,
    /// Errands go before those who wait, however many there are.
    ErrandsFirst,
    /// Each errand costs a question of its own.
    ErrandsOneByOne,
    /// A user without a connection keeps those behind it waiting.
    CutOffNotPassed,
}

impl Fault {
    /// All of them.
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
        Self::LostForgotten,
        Self::DeadNotBuried,
        Self::BuriedWhateverDeadline,
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
        Self::StrangersNotAsked,
        Self::HandedToAnotherUser,
        Self::ErrandsFirst,
        Self::ErrandsOneByOne,
        Self::CutOffNotPassed,
    ];
}

/// Whether this fault is to be made now.
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

    /// Whether this fault is to be made now.
    pub fn planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }

    /// From now on this thread makes this fault, or none.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }
}
