//! The upkeep of a granted lease: the queue renews it while its session lives, checks it when the store reported a
//! change, and notifies the client when a lease that is bound to its connection (`SESSION`) ends.
//!
//! Recovery from a loss of data (`recovery`) comes before anything else. A renewal comes before the requests of
//! clients, which could otherwise delay it until the lease is over.

use super::{Context, InFlight, Queue};
use crate::lock::{
    event::{
        Action, ConnectionId, EndReason, LockMetric, Refusal, Reply, RequestId, Time, Token, UserId,
    },
    fault::{Fault, planted},
    lease::{LATEST_RENEWAL, Lease, renewal},
    store_request::{Deadline, MARK_MS, Mark, Outcome, StoreRequest},
};

impl Queue {
    // ── sessions ─────────────────────────────────────────────────────────────────────────────────

    pub(super) fn session_closed(
        &mut self,
        request: RequestId,
        user: UserId,
        token: &Token,
        by_client: bool,
        context: &mut Context<'_>,
    ) {
        let bound = |lease: &&mut Lease| lease.is_of(user, token) && lease.session == Some(request);
        let Some(lease) = self.lease.as_mut().filter(bound) else {
            return;
        };
        lease.session = planted(Fault::RenewalOutlivesSession).then_some(request);
        context.session_over(request, false);
        if by_client && !planted(Fault::SessionNotReleased) {
            lease.receivers = 0;
            // The client knows the token, and may continue with it at another instance.
            lease.explicit = true;
            self.give_back();
        }
    }

    /// Ends a session whose lease could not be renewed in time: the store may soon end the lease.
    pub(super) fn tell_of_late_renewal(&mut self, context: &mut Context<'_>) {
        let late = |lease: &&mut Lease| {
            lease.lost_at() <= context.now && !planted(Fault::LateRenewalNotTold)
        };
        if let Some(lease) = self.lease.as_mut().filter(late)
            && let Some(request) = lease.session.take()
        {
            lease.receivers = 0;
            lease.explicit = true;
            context.session_over(request, true);
            self.give_back();
        }
    }

    /// Gives the lease back: no client counts on it any more.
    fn give_back(&mut self) {
        if let Some(lease) = self.lease.clone() {
            self.give_away(&lease);
        }
    }

    /// Replaces the lease in this instance's state by another one or none. Notifies the connection that the previous
    /// lease was bound to, if the binding ends.
    pub(super) fn put_lease(
        &mut self,
        lease: Option<Lease>,
        lost: bool,
        context: &mut Context<'_>,
    ) {
        if lease.is_some() {
            // The pending operations that waited for this token can run.
            self.ops.wake(|_| true);
        }
        let before = std::mem::replace(&mut self.lease, lease);
        let goes_on = |before: &Lease| {
            let same = |lease: &Lease| lease.is_of(before.user, &before.token);
            self.lease.as_ref().is_some_and(same)
        };
        // If the lease was not lost, the caller has reported how it ended.
        if let Some(before) = before.as_ref().filter(|before| lost && !goes_on(before)) {
            context.lease_over(before, before.ending(context.now));
            context.lost_token(before);
        }
        let bound = self.lease.as_ref().and_then(|lease| lease.session);
        if let Some(request) = before.and_then(|lease| lease.session)
            && bound != Some(request)
            && !(lost && planted(Fault::LossNotTold))
        {
            context.session_over(request, lost);
        }
    }

    // ── store requests for the lease ─────────────────────────────────────────────────────────────

    /// Sends the store request that the lease needs, if it is time. Returns whether it did.
    pub(super) fn keep_up(&mut self, context: &mut Context<'_>) -> bool {
        if self.recover(context) {
            return true;
        }
        let Some(lease) = &self.lease else {
            return false;
        };
        let (user, token) = (lease.user, lease.token.clone());
        let renewed = lease.session.is_some() && lease.renew_at <= context.now;
        if renewed
            && self.write_back_at.is_none()
            && !self.cut_off.has(user)
            && !self.ops.iter().any(|e| e.releases(user, &token))
        {
            let store_request = StoreRequest::Extend {
                user,
                token,
                lease_ms: lease.lease_ms.max(context.settings.min_session_ms),
                expects: lease.deadline,
                mark: match lease.renewal_unknown {
                    true => Mark::Found,
                    false => Mark::Kept,
                },
                replicas: lease.replicas,
            };
            self.start(store_request, None, context);
            return true;
        }
        false
    }

    /// Checks whether the lease still stands, if it is time and no waiter will request the lock anyway.
    pub(super) fn check(&mut self, context: &mut Context<'_>) {
        if let Some(lease) = &self.lease
            && self.is_to_be_checked().is_some_and(|at| at <= context.now)
        {
            let user = lease.user;
            self.start(StoreRequest::Check { user }, None, context);
        }
    }

    /// Returns when the lease is due for a check or a renewal, or the lock for a look. None while a store request is in
    /// flight.
    pub(super) fn upkeep_at(&self) -> Option<Time> {
        if self.in_flight.is_some() {
            return None;
        }
        let lease = self.lease.as_ref();
        let renewed = |lease: &Lease| {
            let linked_at = self.cut_off.until(lease.user).unwrap_or_default();
            lease.session.map(|_| lease.renew_at.max(linked_at))
        };
        let renew_at = lease.and_then(|lease| self.write_back_at.or(renewed(lease)));
        let due = [renew_at, self.is_to_be_checked(), self.look_at()];
        due.into_iter().flatten().min()
    }

    fn is_to_be_checked(&self) -> Option<Time> {
        let lease = self.lease.as_ref().filter(|_| self.waiters.is_empty())?;
        lease.check_at
    }

    // ── replies of the store ─────────────────────────────────────────────────────────────────────

    pub(super) fn check_replied(
        &mut self,
        in_flight: &InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        let user = in_flight.store_request.user();
        // Only a client with another user's token gets a reply here.
        self.tell(
            in_flight,
            match &outcome {
                Outcome::Refused(error) => Reply::Refused(Refusal::Store(error.clone())),
                _ => Reply::NotHeld,
            },
            context,
        );
        match outcome {
            Outcome::Held { holder, ttl_ms } => self.held(holder, ttl_ms, context),
            Outcome::Free => self.free(context),
            refused => {
                if let Outcome::Refused(error) = refused {
                    self.store_refused(user, &error, context);
                }
                // The user may not read the lock, so no push comes either: the lease runs out.
                if let Some(lease) = self.lease.as_mut().filter(|lease| lease.user == user) {
                    lease.confirm();
                }
            }
        }
    }

    // ── this instance's state ────────────────────────────────────────────────────────────────────

    /// Returns when the token first got the lock, if this instance granted or extended a lease that is not over.
    pub fn held_since(&self) -> Option<Time> {
        self.lease.as_ref().map(|lease| lease.since)
    }

    /// Creates the lease of a token that was just granted the lock or an extension.
    pub(super) fn new_lease(
        &mut self,
        in_flight: &InFlight,
        (user, token): (UserId, &Token),
        lease_ms: u64,
        deadline: Option<Deadline>,
        fence: Option<u64>,
        now: Time,
    ) -> Lease {
        let before = self.lease_of(user, token);
        let longest_ms = match in_flight.store_request {
            StoreRequest::Extend { mark, .. } if mark != Mark::None => lease_ms + MARK_MS,
            _ => lease_ms,
        };
        let (part, whole) = LATEST_RENEWAL;
        let renewed_after = self.backoff.jittered(lease_ms.saturating_mul(part) / whole);
        Lease {
            user,
            token: token.clone(),
            explicit: before.as_ref().is_none_or(|lease| lease.explicit),
            lease_ms,
            since: before.as_ref().map_or(now, |lease| lease.since),
            expires_earliest: in_flight.sent_at.plus_millis(lease_ms),
            expires_latest: expires_latest(now, longest_ms),
            deadline,
            may_be_longer: before.as_ref().is_some_and(|it| it.may_be_longer),
            shortened_from: before
                .as_ref()
                .and_then(Lease::longest)
                .filter(|(longest, _)| Some(*longest) > deadline)
                .filter(|_| !planted(Fault::ShortenedForgotten)),
            how: before.as_ref().and_then(|lease| lease.how),
            strict: before.as_ref().is_some_and(|lease| lease.strict),
            connection: before.as_ref().map_or(ConnectionId(0), |it| it.connection),
            attempt: before.as_ref().and_then(|lease| lease.attempt),
            receivers: before.as_ref().map_or(0, |lease| lease.receivers),
            waiter: before.as_ref().and_then(|lease| lease.waiter),
            fence: fence.or(before.as_ref().and_then(|lease| lease.fence)),
            fence_at: None,
            replicas: before.as_ref().map_or(0, |lease| lease.replicas),
            session: before.and_then(|lease| lease.session),
            renew_at: renewal(in_flight.sent_at, lease_ms, renewed_after),
            renewal_unknown: false,
            changed: false,
            bare: matches!(
                in_flight.store_request,
                StoreRequest::Acquire { bare: true, .. }
            ) && self.armed.is_none(),
            check_at: None,
        }
    }
}

/// Returns the moment by which the store has ended a lease that began just now: the store may have moved the deadline
/// by 3 ms, and lets keys live to the end of a millisecond.
pub(super) fn expires_latest(now: Time, lease_ms: u64) -> Time {
    now.plus_millis(lease_ms.saturating_add(4))
}

impl Context<'_> {
    fn session_over(&mut self, request: RequestId, lost: bool) {
        self.actions.push(Action::SessionOver { request, lost });
    }

    pub(super) fn happened(&mut self, what: LockMetric) {
        self.actions.push(Action::Happened(what));
    }

    /// Reports the token of a lost lease as dead: at any deadline if lockgate made it. If this instance does not know
    /// the deadline of a named token, another instance may have granted the lock to it again, and knows more.
    fn lost_token(&mut self, lease: &Lease) {
        let not_after = lease.deadline.filter(|_| lease.explicit);
        let known = !lease.explicit || not_after.is_some() && !lease.may_be_longer;
        let counts = known && lease.expires_latest > self.now;
        if counts && !planted(Fault::LostForgotten) {
            self.actions.push(Action::Dead {
                dead_token: lease.dead_token(not_after),
                before_loss: false,
            });
        }
    }

    pub(super) fn lease_over(&mut self, lease: &Lease, how: EndReason) {
        let since = lease.since;
        self.happened(LockMetric::LeaseOver { since, how });
    }
}
