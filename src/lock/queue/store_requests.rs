//! The choice of the next store request, made anew after every event.

use super::{Context, InFlight, PendingOp, Queue};
use crate::lock::{
    event::{Action, Reply, RequestId, Settings, Time, Token, UserId},
    fault::{Fault, planted},
    lease::{Lease, is_wanted_back},
    store_request::{Deadline, Fence, Mark, StoreRequest, StoreRequestId},
    wait_queue::{Waiter, WaiterId},
};

impl Queue {
    pub(super) fn go_on(&mut self, context: &mut Context<'_>) {
        if !self.unsure.is_empty() {
            self.take_back_unsure(context);
        }
        self.reply_to_tries(context);
        if self.in_flight.is_some() || self.keep_up(context) {
            return;
        }
        let asks = match self.waiters_are_next() {
            true => self.ask_for_waiters(context) || self.run_op(context),
            false => self.run_op(context) || self.ask_for_waiters(context),
        };
        if !asks && self.cached_holder.is_none() {
            self.check(context);
        }
    }

    /// Sends a store request for the waiters, if that is of use. Returns whether it did.
    fn ask_for_waiters(&mut self, context: &mut Context<'_>) -> bool {
        if self.waiters.tries_attempt() {
            // An earlier request may have been in flight for long.
            self.doubt_old_belief(context.now);
        }
        let Some(cached_holder) = &self.cached_holder else {
            let absent = self.absent_lease();
            let is_absent = absent.is_some_and(|lease| context.now < lease.expires_earliest);
            let next = match is_absent {
                true => self.place_of_absent_lease(),
                false => self.next_place(),
            };
            let is_time = self.backoff.ask_at() <= context.now;
            let next = next.filter(|_| is_time);
            if let Some((no, waiter)) = next.map(|(no, waiter)| (no, waiter.clone())) {
                self.ask_for(no, &waiter, context);
                return true;
            }
            return is_absent && self.reply_as_held(context);
        };
        let of_holder = self
            .waiters
            .of_token(&cached_holder.holder, cached_holder.user);
        if let Some((no, waiter)) = of_holder.filter(|(_, it)| self.may_ask_for(it)) {
            self.ask_for(no, &waiter.clone(), context);
            return true;
        }
        self.reply_as_held(context)
    }

    /// Replies to requests that do not wait: the lock is held. Sends a check for a user that may not know that yet.
    /// Returns whether it did.
    fn reply_as_held(&mut self, context: &mut Context<'_>) -> bool {
        let keep = self.keep(context);
        let rights = &self.rights;
        let may_know = |_, waiter: &Waiter| !rights.is_unauthorized(waiter.user);
        for request in self.waiters.take_tries(may_know, keep) {
            context.reply(request, Reply::Nil);
        }
        self.check_unauthorized(context)
    }

    /// Returns the first place whose user is not cut off from the store, and that no pause delays.
    pub(super) fn next_place(&self) -> Option<(WaiterId, &Waiter)> {
        if self.cut_off.any() || self.unacknowledged.is_some() {
            return self.waiters.first_of(|it| self.may_ask_for(it));
        }
        self.waiters.first()
    }

    /// Returns the place of the client that holds the lock by a lease that the store lacks.
    fn place_of_absent_lease(&self) -> Option<(WaiterId, &Waiter)> {
        let lease = self.absent_lease()?;
        let place = self.waiters.of_token(&lease.token, Some(lease.user));
        place.filter(|(_, it)| !it.is_strict() && self.may_ask_for(it))
    }

    /// Returns when to send the next store request for the waiters, if nothing is known of the holder.
    pub(super) fn next_ask_at(&self) -> Option<Time> {
        let ask_at = self.backoff.ask_at();
        match self.absent_lease() {
            Some(lease) if self.place_of_absent_lease().is_none() => self
                .next_place()
                .map(|_| ask_at.max(lease.expires_earliest)),
            _ => self.next_place().map(|_| ask_at),
        }
    }

    fn may_ask_for(&self, waiter: &Waiter) -> bool {
        !self.cut_off.has(waiter.user) && !self.is_delayed(waiter)
    }

    fn ask_for(&mut self, no: WaiterId, waiter: &Waiter, context: &mut Context<'_>) {
        if self.is_anothers(waiter.user, &waiter.token) {
            // Once a check shows that the other user lost the lock, its lease is gone.
            return self.start(StoreRequest::Check { user: waiter.user }, None, context);
        }
        let strict = waiter.is_strict() && !planted(Fault::EqualTokensJoined);
        let lease = self.lease_of(waiter.user, &waiter.token);
        let lease = lease.filter(|_| !strict);
        let fence_at = |lease: &Lease| lease.fence_at.filter(|_| lease.fence.is_some());
        let store_request = StoreRequest::Acquire {
            user: waiter.user,
            token: waiter.token.clone(),
            lease_ms: waiter.lease_ms,
            fence: match lease.as_ref().and_then(fence_at) {
                _ if !waiter.wants_fence() => Fence::No,
                Some(deadline) => Fence::NewUnless(deadline),
                None => Fence::New,
            },
            expects: lease.and_then(|lease| lease.deadline),
            bare: self.is_bare(waiter, context.settings),
            strict,
            replicas: match planted(Fault::GrantedUnacknowledged) {
                true => 0,
                false => waiter.replicas(),
            },
        };
        self.start_for(Some(no), store_request, None, context);
    }

    /// Returns whether the place has the only request for a lock of which nothing is known, without an explicit token,
    /// session, fence or replicas, for a lease that is not written back.
    fn is_bare(&self, waiter: &Waiter, settings: &Settings) -> bool {
        let session = waiter.requests.iter().any(|waiting| waiting.session);
        let known = self.armed.is_some() || self.cached_holder.is_some() || self.lease.is_some();
        let alone = self.waiters.requests() == 1;
        // Without its deadline, a grant that reached no client could not be distinguished from a grant of the same
        // token that the client got elsewhere.
        let plain = !waiter.explicit && !session && !waiter.wants_fence() && waiter.replicas() == 0;
        alone && plain && !known && !is_wanted_back(false, settings)
    }

    /// Returns the store request that serves this pending operation. None: nothing is left to do.
    pub(super) fn question_of(
        &self,
        op: &PendingOp,
        context: &Context<'_>,
    ) -> Option<(StoreRequest, Option<(RequestId, Time)>)> {
        match op {
            // The token does not hold the lock, but the store decides whether its user may know that. Commands of Redis's
            // own go by the token alone.
            PendingOp::Unlock(owner) | PendingOp::Relock(owner, _)
                if !owner.absorbed && self.is_anothers(owner.user, &owner.token) =>
            {
                Some((StoreRequest::Check { user: owner.user }, owner.reply_to()))
            }
            PendingOp::Relock(owner, lease_ms) => {
                let (user, token, lease_ms) = (owner.user, owner.token.clone(), *lease_ms);
                let lease = self.lease_of(user, &token);
                let expects = lease.as_ref().and_then(|lease| lease.deadline);
                let store_request = StoreRequest::Extend {
                    user,
                    token,
                    lease_ms,
                    expects,
                    mark: Mark::None,
                    // A replica with the earlier deadline would end the lease early.
                    replicas: lease.map_or(0, |lease| lease.replicas).max(owner.replicas),
                };
                Some((store_request, owner.reply_to()))
            }
            PendingOp::Unlock(owner) => Some((
                self.release(owner.user, &owner.token, None, context),
                owner.reply_to(),
            )),
            PendingOp::GiveAway {
                user,
                token,
                only_if,
            } => {
                let only_if = match (self.lease_of(*user, token), only_if) {
                    // A client came for the lease meanwhile.
                    (Some(lease), _) if lease.receivers > 0 => return None,
                    // The deadline moved since. Either this instance moved it, or another one, where the token is then
                    // in use.
                    (Some(lease), Some(_)) => Some(lease.deadline?),
                    (_, only_if) => *only_if,
                };
                Some((self.release(*user, token, only_if, context), None))
            }
        }
    }

    /// Returns a handover if the token is known to hold the lock, the next waiter has the same user, and the chain is
    /// not too long; otherwise a release.
    fn release(
        &self,
        user: UserId,
        token: &Token,
        only_if: Option<Deadline>,
        context: &Context<'_>,
    ) -> StoreRequest {
        let holds = self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.token == *token)
            || self
                .cached_holder
                .as_ref()
                .is_some_and(|cached_holder| cached_holder.holder == *token);
        match self.next_place() {
            Some((_, next))
                if holds
                    && (next.user == user || planted(Fault::HandedToAnotherUser))
                    && !self.streak.is_long(context.now, context.settings) =>
            {
                StoreRequest::Handover {
                    user,
                    from: token.clone(),
                    only_if,
                    to: next.token.clone(),
                    lease_ms: next.lease_ms,
                    fence: next.wants_fence() && !planted(Fault::NoFenceOnHandover),
                    strict: next.is_strict() && !planted(Fault::EqualTokensJoined),
                }
            }
            _ => StoreRequest::Release {
                user,
                token: token.clone(),
                only_if,
            },
        }
    }

    pub(super) fn start(
        &mut self,
        store_request: StoreRequest,
        reply_to: Option<(RequestId, Time)>,
        context: &mut Context<'_>,
    ) {
        let place = match &store_request {
            StoreRequest::Handover { .. } => self.next_place().map(|(no, _)| no),
            _ => None,
        };
        self.start_for(place, store_request, reply_to, context);
    }

    fn start_for(
        &mut self,
        place: Option<WaiterId>,
        store_request: StoreRequest,
        reply_to: Option<(RequestId, Time)>,
        context: &mut Context<'_>,
    ) {
        let waiter = place.and_then(|no| self.waiters.at(no));
        let explicit = waiter.is_some_and(|waiter| waiter.explicit);
        let again = match &store_request {
            // An equal token may be another client's.
            StoreRequest::Acquire { strict: true, .. } => false,
            StoreRequest::Acquire { user, token, .. } => {
                self.unsure.remove(&(*user, token.clone())).is_some()
            }
            _ => false,
        };
        let in_flight = InFlight {
            id: StoreRequestId(0),
            store_request,
            own: reply_to.is_none(),
            reply_to,
            op: None,
            sent_at: context.now,
            again,
            on_push: self.backoff.pushed(),
            dirty: Vec::new(),
            retry_at: None,
            explicit,
            place,
            taken: false,
            data_lost: false,
            grace_ms: None,
        };
        self.send(in_flight, context);
    }

    pub(super) fn send(&mut self, in_flight: InFlight, context: &mut Context<'_>) {
        debug_assert!(self.in_flight.is_none(), "one question at a time");
        self.store_requests += 1;
        let id = StoreRequestId(self.store_requests);
        // By then the client has an error that leaves the outcome open, and may do something else.
        let within_micros = in_flight
            .reply_to
            .map(|(_, until)| until.micros_since(context.now));
        context.actions.push(Action::Send {
            id,
            store_request: in_flight.store_request.clone(),
            within_ms: within_micros
                .map_or(context.settings.answer_within_ms, |it| it.div_ceil(1_000)),
        });
        self.in_flight = Some(Box::new(InFlight {
            id,
            sent_at: context.now,
            retry_at: None,
            taken: false,
            data_lost: false,
            ..in_flight
        }));
    }
}
