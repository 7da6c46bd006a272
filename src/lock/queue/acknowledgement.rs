//! Grants that too few replicas acknowledged. Such a grant does not count: the queue gives it back as one that reached no
//! client, and its waiter keeps its place. The reply says how many replicas a grant can count on for now, and when to
//! try again. Until then the lock goes to waiters that want no more of them, and a `TRYLOCK` that wants more is refused at
//! once. A retry is the lock's one store request in flight: it delays the lock's other clients until the store replies.
//!
//! An extension that is not acknowledged leaves the lease as it was: the store lengthens a lease before the
//! acknowledgement, and shortens it after that. The key may then end later than the lease does by the client's count,
//! never earlier.

use bytes::Bytes;

use super::{Context, InFlight, Queue};
use crate::lock::{
    event::{Refusal, Reply, Time},
    store_request::{Deadline, Missing, StoreRequest},
    wait_queue::{Waiter, WaiterId},
};

/// The fate of a grant that does not count.
const GIVEN_BACK: &str = "the lock is given back";

/// The fate of a lease that was not extended.
pub(super) const LEASE_STAYS: &str = "the lease stays as it was";

/// The error for a `LOCK` whose `WAIT` ends before its first acknowledgement.
const NOT_YET: &[u8] = b"NOREPLICAS not acknowledged within WAIT; the lock is given back";

/// The latest grant that too few replicas acknowledged.
#[derive(Debug)]
pub(super) struct Unacknowledged {
    /// The number of replicas that a grant can count on.
    have: u32,
    /// Until when no place that wants more is served.
    until: Option<Time>,
    /// The error for clients that stop waiting.
    error: Bytes,
}

impl Queue {
    /// Returns whether the place wants more acknowledgements than there were a moment ago.
    pub(super) fn is_delayed(&self, waiter: &Waiter) -> bool {
        let latest = self.unacknowledged.as_ref();
        latest.is_some_and(|it| it.until.is_some() && waiter.replicas() > it.have)
    }

    /// Returns when the delayed places are served again.
    pub(super) fn delayed_until(&self) -> Option<Time> {
        let latest = self.unacknowledged.as_ref();
        latest.filter(|_| !self.waiters.is_empty())?.until
    }

    /// Ends the pause after an unacknowledged grant, if its time has come.
    pub(super) fn end_delay(&mut self, now: Time) {
        if let Some(latest) = &mut self.unacknowledged {
            latest.until.take_if(|until| *until <= now);
        }
    }

    /// Records that this number of replicas acknowledged a grant.
    pub(super) fn replicas_are_back(&mut self, number: u32) {
        self.unacknowledged.take_if(|latest| number > latest.have);
    }

    /// Returns the error for a request that stops waiting, if the lock is free but for its acknowledgements. `is_served`:
    /// the store request in flight is for its place.
    pub(super) fn unacknowledged_for(&self, replicas: u32, is_served: bool) -> Option<Bytes> {
        let is_taken = |in_flight: &InFlight| in_flight.taken;
        if is_served && self.in_flight.as_deref().is_some_and(is_taken) {
            return Some(Bytes::from_static(NOT_YET));
        }
        let latest = self.unacknowledged.as_ref()?;
        let is_given_back = || self.lease.as_ref().is_some_and(|it| it.receivers == 0);
        let is_free = self.cached_holder.is_none() || is_given_back();
        (is_free && replicas > latest.have).then(|| latest.error.clone())
    }

    /// Handles the news that the acquisition in flight has taken the lock, and waits for replicas.
    pub(super) fn taken(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.taken = matches!(in_flight.store_request, StoreRequest::Acquire { .. });
        }
    }

    /// Replies to requests that do not wait, where acknowledgements decide: to others the lock is held that the acquisition
    /// in flight has taken, and those that want more replicas than there are get no lock.
    pub(super) fn reply_to_tries(&mut self, context: &mut Context<'_>) {
        let keep = self.keep(context);
        if let Some(in_flight) = self.in_flight.as_ref().filter(|it| it.taken) {
            let served = self.served_by(in_flight);
            let rights = &self.rights;
            let is_behind = |no: WaiterId, waiter: &Waiter| {
                Some(no) != served && !rights.is_unauthorized(waiter.user)
            };
            for request in self.waiters.take_tries(is_behind, keep) {
                context.reply(request, Reply::Nil);
            }
        }
        let latest = self.unacknowledged.as_ref();
        let latest = latest.filter(|it| it.until.is_some() && self.cached_holder.is_none());
        let Some((have, error)) = latest.map(|it| (it.have, it.error.clone())) else {
            return;
        };
        let wants_more = |_, waiter: &Waiter| waiter.replicas() > have;
        for request in self.waiters.take_tries(wants_more, keep) {
            context.reply(request, Reply::Refused(Refusal::Store(error.clone())));
            self.left();
        }
    }

    /// Handles an acquisition that does not count.
    pub(super) fn unacknowledged(
        &mut self,
        in_flight: &InFlight,
        missing: Missing,
        done: Option<(Deadline, bool)>,
        context: &mut Context<'_>,
    ) {
        let Some((user, token, _)) = in_flight.store_request.grants_to() else {
            return;
        };
        let before = self.lease_of(user, token);
        let Missing {
            error,
            have,
            again_ms,
        } = missing;
        self.unacknowledged = again_ms.map(|ms| {
            Box::new(Unacknowledged {
                have,
                until: Some(context.now.plus_millis(ms)),
                error: error.clone(),
            })
        });
        match (&before, done) {
            (Some(lease), _) if lease.receivers > 0 => {
                if let Some(done) = done {
                    self.deadline_moved(in_flight, done, context);
                }
                self.refuse_place(in_flight, &error_with(&error, LEASE_STAYS), context);
            }
            // Another instance granted the lock to this token before: its client may count on it.
            (None, Some((_, false))) if in_flight.explicit => {
                self.cached_holder = None;
                self.refuse_place(in_flight, &error_with(&error, LEASE_STAYS), context);
            }
            _ => {
                self.refuse_waiter(
                    in_flight,
                    error,
                    (again_ms.is_some(), done.is_some()),
                    context,
                );
                self.took_for_no_client(in_flight, done, context);
            }
        }
        self.doubt(in_flight);
        // The lease goes back, since its place is not served.
        self.left();
    }

    /// Records the lease that the acquisition took, and that no client counts on.
    fn took_for_no_client(
        &mut self,
        in_flight: &InFlight,
        done: Option<(Deadline, bool)>,
        context: &mut Context<'_>,
    ) {
        let Some((user, token, lease_ms)) = in_flight.store_request.grants_to() else {
            return;
        };
        let before = self.lease_of(user, token);
        if let Some((deadline, fresh)) = done {
            if before.is_none() {
                self.turn_begins(context);
            }
            let owner = (user, token);
            let ours = (fresh || !in_flight.explicit).then_some(deadline);
            let mut lease = self.new_lease(in_flight, owner, lease_ms, ours, None, context.now);
            lease.explicit = in_flight.explicit;
            self.put_lease(Some(lease), before.is_none(), context);
            self.believe_lease(context);
        } else if before.is_none() {
            self.cached_holder = None;
            self.told_of = None;
            self.backoff.now();
        }
    }

    /// Refuses the requests that do not wait at the place of an acquisition that does not count; all of them, if a retry
    /// does not help.
    fn refuse_waiter(
        &mut self,
        in_flight: &InFlight,
        error: Bytes,
        (may_pass, was_taken): (bool, bool),
        context: &mut Context<'_>,
    ) {
        let error = match was_taken {
            true => error_with(&error, GIVEN_BACK),
            false => error,
        };
        let Some(no) = self.served_by(in_flight).filter(|_| may_pass) else {
            return self.refuse_place(in_flight, &error, context);
        };
        let keep = self.keep(context);
        for request in self.waiters.take_unwaiting(no, keep) {
            context.reply(request, Reply::Refused(Refusal::Store(error.clone())));
        }
    }

    /// Refuses all requests at the place that the acquisition serves.
    fn refuse_place(&mut self, in_flight: &InFlight, error: &Bytes, context: &mut Context<'_>) {
        let served = self.served_by(in_flight);
        let refused = served.and_then(|no| self.waiters.take(no)).into_iter();
        for waiting in refused.flat_map(|waiter| waiter.requests) {
            let reply = Reply::Refused(Refusal::Store(error.clone()));
            context.reply(waiting.request, reply);
        }
    }

    /// Records that the store moved the deadline of a lease whose length stays as it was, since a replica that takes over
    /// may have the earlier deadline. The store only lengthens a lease before replicas acknowledge it.
    pub(super) fn deadline_moved(
        &mut self,
        in_flight: &InFlight,
        (deadline, fresh): (Deadline, bool),
        context: &mut Context<'_>,
    ) {
        let (StoreRequest::Acquire {
            user,
            token,
            lease_ms,
            ..
        }
        | StoreRequest::Extend {
            user,
            token,
            lease_ms,
            ..
        }) = &in_flight.store_request
        else {
            return;
        };
        let Some(before) = self.lease_of(*user, token) else {
            return;
        };
        let owner = (*user, token);
        let known = fresh.then_some(deadline);
        let mut lease = self.new_lease(in_flight, owner, *lease_ms, known, None, context.now);
        lease.lease_ms = before.lease_ms;
        lease.expires_earliest = match fresh {
            true => before.expires_earliest,
            // Another instance may have shortened the lease.
            false => lease.expires_earliest.min(before.expires_earliest),
        };
        lease.expires_latest = lease.expires_latest.max(before.expires_latest);
        lease.may_be_longer |= !fresh;
        let stood = before.fence_at.is_some() && before.fence_at == before.deadline;
        lease.fence_at = known.filter(|_| stood);
        lease.renew_at = before.renew_at;
        self.put_lease(Some(lease), false, context);
        self.believe_lease(context);
    }
}

/// Returns the store's error with the fate of the lock or the lease.
pub(super) fn error_with(error: &Bytes, fate: &str) -> Bytes {
    [&error[..], b"; ", fate.as_bytes()].concat().into()
}
