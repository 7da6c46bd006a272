//! The events of clients: they request the lock, stop waiting, or are gone; and the end of a lease that was granted to
//! no client.

use super::{CachedHolder, Context, InFlight, PendingOp, Queue, Waiter, pending_ops::Owner};
use crate::lock::{
    event::{LockRequest, Refusal, Reply, RequestId, Time, Token, UserId, Wait},
    fault::{Fault, planted},
    lease::Lease,
};

/// How recent the store's word on a lock must be for attempts to be refused by it, in milliseconds.
pub const BELIEF_MS: u64 = 1_000;

/// How long after a refused attempt a release of its token is answered from memory, in milliseconds. Client libraries
/// that release after each refused attempt do so at once, and most then sleep for longer than this.
const CLEANUP_MS: u64 = 50;

impl Queue {
    pub(super) fn lock(&mut self, send: &LockRequest, context: &mut Context<'_>) {
        if !send.is_strict() {
            // A client that requests the lock with this token counts on the token again.
            self.ops
                .take_where(|op| op.gives_away(send.user, &send.token));
            self.late
                .retain(|(_, user, token)| *user != send.user || *token != send.token);
        }
        if send.attempt.is_some() {
            if self.cut_off.has(send.user) {
                return context.reply(send.request, Reply::Refused(Refusal::NotSent));
            }
            self.doubt_old_belief(context.now);
        }
        let knows = self.knows(send.user, send.wait, context.now);
        if knows && self.waiters.requests() >= context.settings.max_waiters {
            self.left();
            if send.wait == Wait::No && self.cached_holder.is_some() {
                return context.reply(send.request, Reply::Nil);
            }
            return context.reply(send.request, Reply::Refused(Refusal::TooManyWaiters));
        }
        if !knows {
            self.joins_unauthorized(send.user, context.now);
        }
        self.waiters.join(context.now, send, context.settings);
        if send.attempt.is_some()
            && send.wait == Wait::No
            && context.now < self.grace_until
            && knows
        {
            let keep = self.keep(context);
            self.waiters.leave(send.request, keep);
            context.reply(send.request, Reply::Nil);
        }
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.bare) {
            // From now on a client waits for pushes.
            lease.bare = false;
            self.cached_holder = None;
        }
    }

    pub(super) fn stop_waiting(&mut self, request: RequestId, context: &mut Context<'_>) {
        let place = self.waiters.of_request(request);
        let served = self.in_flight.as_deref().and_then(|it| self.served_by(it));
        // Redis would grant an attempt at a lock that is free, so it is refused only where a holder is known.
        let must_know = self.cached_holder.is_none() && self.is_attempt(request);
        let keep = self.keep(context);
        if place.is_some() && (place == served || must_know) {
            self.waiters.try_only(request);
        } else if self.waiters.leave(request, keep) {
            context.reply(request, Reply::Nil);
            self.left();
        }
    }

    /// Returns whether the request is an attempt of a client that spins.
    pub(super) fn is_attempt(&self, request: RequestId) -> bool {
        let place = self.waiters.of_request(request);
        let waiter = place.and_then(|no| self.waiters.at(no));
        waiter.is_some_and(|waiter| waiter.attempt.is_some())
    }

    pub(super) fn gone(&mut self, request: RequestId, context: &Context<'_>) {
        let keep = self.keep(context);
        self.waiters.leave(request, keep);
        self.left();
    }

    pub(super) fn unlock(&mut self, owner: Owner, context: &mut Context<'_>) {
        if owner.absorbed {
            if self.was_just_refused(&owner, context) {
                return context.reply(owner.request, Reply::HeldByAnother);
            }
            self.end_abandoned_attempts(&owner, context);
        }
        self.waiters.give_up_kept(owner.user, &owner.token);
        self.take_op(PendingOp::Unlock(owner), context);
    }

    /// Releases the lock if this user holds it by a grant of this instance.
    pub(super) fn delete(
        &mut self,
        request: RequestId,
        asked_at: Time,
        user: UserId,
        context: &mut Context<'_>,
    ) {
        // The owner of a session's lock is to be told, by a push of the store.
        let lease = self.lease.as_ref().filter(|it| it.attempt.is_some());
        let lease = lease.filter(|lease| {
            let holder = self.cached_holder.as_ref().map(|it| &it.holder);
            lease.user == user && holder == Some(&lease.token)
        });
        let Some(token) = lease.map(|lease| lease.token.clone()) else {
            // Redis deletes the key. The client's next attempt may come before the push.
            if self.cached_holder.take().is_some() {
                self.backoff.now();
            }
            return context.reply(request, Reply::NotHeld);
        };
        let mut owner = self.owner(request, asked_at, (user, token), context.settings);
        owner.absorbed = true;
        self.take_op(PendingOp::Unlock(owner), context);
    }

    /// Returns whether this token was refused a moment ago because another one holds the lock, and its user may know
    /// that. Some client libraries release after each refused attempt.
    fn was_just_refused(&self, owner: &Owner, context: &Context<'_>) -> bool {
        let Some(kept_until) = self.waiters.kept_until(owner.user, &owner.token) else {
            return false;
        };
        let kept_ms = context.settings.reconnect_grace_ms;
        let left_ms = kept_until.millis_since(context.now);
        let mut holder = self.cached_holder.iter().map(|it| &it.holder);
        let in_flight = self.in_flight.as_deref();
        kept_ms.saturating_sub(left_ms) <= CLEANUP_MS
            && self.knows(owner.user, Wait::Forever, context.now)
            && self.armed.is_some()
            && holder.any(|holder| *holder != owner.token)
            && !in_flight.is_some_and(|it| it.is_for(owner.user, &owner.token))
            && !self.unsure.contains_key(&(owner.user, owner.token.clone()))
    }

    /// Refuses the waiting attempts of a client that gave them up: it releases their token, which does not hold the lock.
    fn end_abandoned_attempts(&mut self, owner: &Owner, context: &mut Context<'_>) {
        if self.is_holder(owner.user, &owner.token) {
            return;
        }
        for request in self.waiters.strict_of(owner.user, &owner.token) {
            self.stop_waiting(request, context);
        }
    }

    /// Forgets the holder that the store reported too long ago to refuse attempts by it. A connection that went silent
    /// pushes no changes, and a client that spins would have asked Redis by now. The timer may be late.
    pub(super) fn doubt_old_belief(&mut self, now: Time) {
        let is_old = |it: &mut CachedHolder| it.since.plus_millis(BELIEF_MS).min(it.until) <= now;
        if !planted(Fault::OldBeliefRefuses) && self.cached_holder.take_if(is_old).is_some() {
            self.backoff.now();
        }
    }

    /// Gives back a lease that no client counts on, after a request stopped waiting. Either the lease was granted while
    /// other requests with its token joined, and no client has its reply yet, or a request with its token came just
    /// before the lease was given back.
    pub(super) fn left(&mut self) {
        let Some(lease) = self.lease.as_ref().filter(|it| it.receivers == 0) else {
            return;
        };
        let (user, token) = (lease.user, &lease.token);
        let under_way =
            |in_flight: &InFlight| in_flight.is_for(user, token) || in_flight.releases(user, token);
        let place = self.waiters.of_owner(user, token);
        let waiter = place.and_then(|no| self.waiters.at(no));
        let is_served = waiter.is_some_and(|waiter| !self.is_delayed(waiter));
        let is_wanted = !lease.strict && is_served
            || self.in_flight.as_deref().is_some_and(under_way)
            || self.ops.iter().any(|e| e.gives_away(user, token));
        if !is_wanted {
            let lease = lease.clone();
            self.give_away(&lease);
        }
    }

    pub(super) fn undelivered(
        &mut self,
        request: RequestId,
        (user, token): (UserId, &Token),
        since: Time,
        context: &mut Context<'_>,
    ) {
        // Other requests may share the grant; their lease is then bound to no session.
        self.session_closed(request, user, token, false, context);
        let granted = |lease: &&mut Lease| lease.is_of(user, token) && lease.since == since;
        let Some(lease) = self.lease.as_mut().filter(granted) else {
            return;
        };
        lease.receivers = lease.receivers.saturating_sub(1);
        if lease.receivers > 0 {
            return;
        }
        let lease = lease.clone();
        if let (true, Some(no)) = (lease.explicit, lease.waiter)
            && (lease.strict || self.waiters.of_owner(user, token).is_none())
        {
            // The connection closed at the very moment of the grant, which counts as before it.
            let waiter = Box::new(Waiter::of_lease(&lease));
            let keep = self.keep(context);
            self.waiters.keep(no, waiter, keep);
        }
        if !planted(Fault::UndeliveredKept) {
            self.give_away(&lease);
        }
    }

    /// Takes back a lease without a client: the next waiter gets the lock, or it becomes free. A token that a client
    /// named may be in use at another instance, which then moved the deadline; a token that lockgate made cannot be, but
    /// its own place may get the lock again.
    pub(super) fn give_away(&mut self, lease: &Lease) {
        let waits = self.waiters.of_owner(lease.user, &lease.token).is_some();
        // If the deadline may be another instance's, and the client too, the lease runs out.
        if lease.deadline.is_some() || !lease.explicit {
            self.ops.put(PendingOp::GiveAway {
                user: lease.user,
                token: lease.token.clone(),
                only_if: (lease.deadline)
                    .filter(|_| lease.explicit || waits)
                    .filter(|_| !planted(Fault::DeadlineNotInsisted)),
            });
        }
    }

    pub(super) fn refuse_deadlocked(&mut self, context: &mut Context<'_>) {
        let lease = self.lease.as_ref().map(|lease| &lease.token);
        let Some(holder) = self
            .cached_holder
            .as_ref()
            .map(|cached_holder| &cached_holder.holder)
            .or(lease)
        else {
            return;
        };
        let owner = self.lease.as_ref().filter(|lease| lease.token == *holder);
        let owner = owner.map(|lease| lease.user);
        // An `UNLOCK` of another user's token releases nothing.
        let rights = &self.rights;
        let concerns = |user| !rights.is_unauthorized(user) && owner.is_none_or(|it| it == user);
        for request in self.waiters.take_deadlocked(holder, concerns) {
            context.reply(request, Reply::Refused(Refusal::Deadlock));
            self.left();
        }
    }
}
