//! The store's replies to acquisitions and handovers: they grant a waiter the lock, or show its holder.

use super::{Context, InFlight, Queue, Waiter};
use crate::lock::{
    event::{EndReason, GrantKind, LockMetric, Refusal, Reply},
    fault::{Fault, planted},
    lease::Lease,
    store_request::{Deadline, Fence, Outcome, StoreRequest},
};

/// The number of rivals at one lock that an operator should know of.
const CROWD: u32 = 8;

impl Queue {
    pub(super) fn acquire_replied(
        &mut self,
        in_flight: &InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Acquire {
            user,
            token,
            fence: asked_fence,
            bare,
            strict,
            ..
        } = &in_flight.store_request
        else {
            return;
        };
        match outcome {
            Outcome::Granted {
                deadline,
                fresh,
                fence,
            } => {
                if *strict && self.lease_of(*user, token).is_some() {
                    // The lock was free: the lease of an equal token is over.
                    self.put_lease(None, true, context);
                }
                let again = self.lease_of(*user, token).is_some();
                if !again {
                    self.turn_begins(context);
                }
                // Another instance may have granted the lock to a token that held it already, but not to a token that
                // lockgate made and gave no client.
                let ours = fresh || (in_flight.again && !again && !in_flight.explicit && !bare);
                // No new fence comes if the token keeps the fence it has.
                let is_sure = fence.is_some() || matches!(asked_fence, Fence::NewUnless(_));
                let fence = (fence, is_sure.then_some(deadline));
                let how =
                    (!again && (fresh || *bare || in_flight.again)).then_some(GrantKind::Free);
                self.granted(in_flight, ours.then_some(deadline), fence, how, context);
            }
            Outcome::Held { holder, ttl_ms } => {
                let is_ours = |lease: &Lease| Some(&lease.token) == holder.as_ref();
                if !self.lease.as_ref().is_some_and(is_ours) {
                    context.happened(LockMetric::InVain {
                        on_push: in_flight.on_push,
                    });
                    self.streak.found_held();
                }
                self.backoff.in_vain(in_flight.on_push);
                self.held(holder, ttl_ms, context);
            }
            Outcome::Unacknowledged { missing, done } => {
                self.unacknowledged(in_flight, missing, done, context);
            }
            Outcome::Refused(error) => {
                let refused = self.served_by(in_flight);
                let refused = refused.and_then(|no| self.waiters.take(no)).into_iter();
                for waiting in refused.flat_map(|waiter| waiter.requests) {
                    let reply = Reply::Refused(Refusal::Store(error.clone()));
                    context.reply(waiting.request, reply);
                }
                self.doubt(in_flight);
                // The store may refuse the fence but not the lock.
                if *asked_fence == Fence::No {
                    self.refuse_earlier(*user, in_flight.sent_at, &error, context);
                }
                self.left();
            }
            _ => debug_assert!(false, "no reply to this store request"),
        }
    }

    pub(super) fn handover_replied(
        &mut self,
        in_flight: InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        match outcome {
            Outcome::Granted {
                deadline,
                fresh,
                fence,
            } => {
                self.tell(&in_flight, Reply::Done, context);
                self.streak.hand_over();
                self.released(&in_flight, EndReason::HandedOver, context);
                let ours = fresh || (in_flight.again && !in_flight.explicit);
                let fence = (fence, fence.map(|_| deadline));
                let how = Some(GrantKind::Handover);
                self.granted(&in_flight, ours.then_some(deadline), fence, how, context);
            }
            Outcome::Held { holder, ttl_ms } => {
                self.not_released(&in_flight, context);
                self.held(holder, ttl_ms, context);
            }
            Outcome::Free => {
                self.not_released(&in_flight, context);
                self.free(context);
            }
            // The user may not grant the lock to the next waiter, or the store accepts no more writes.
            Outcome::Refused(_) => self.release_instead(in_flight, context),
            _ => debug_assert!(false, "asked again"),
        }
    }

    /// Begins a chain of handovers: this instance acquired the free lock.
    pub(super) fn turn_begins(&mut self, context: &mut Context<'_>) {
        let rivals = self.backoff.turn_begins();
        if rivals >= CROWD {
            context.happened(LockMetric::Crowded { rivals });
        }
        // The owner's own place is still among them.
        let others = self.waiters.len().saturating_sub(1);
        self.streak.begin(context.now, others);
    }

    /// Records the lease of the token that got the lock, and replies to all requests at its place. `deadline` is the one
    /// that this instance set, and `fence` comes with the deadline at which it is certain.
    fn granted(
        &mut self,
        in_flight: &InFlight,
        deadline: Option<Deadline>,
        (fence, fence_at): (Option<u64>, Option<Deadline>),
        how: Option<GrantKind>,
        context: &mut Context<'_>,
    ) {
        let Some((user, token, lease_ms)) = in_flight.store_request.grants_to() else {
            return;
        };
        let owner = (user, token);
        let mut lease = self.new_lease(in_flight, owner, lease_ms, deadline, fence, context.now);
        lease.fence_at = fence_at;
        lease.how = how.or(lease.how);
        lease.explicit = in_flight.explicit;
        lease.strict = in_flight.store_request.is_strict();
        self.unsure.remove(&(user, token.clone()));
        lease.replicas = in_flight.store_request.replicas();
        self.replicas_are_back(lease.replicas);
        // If a request joined meanwhile and wants another lease, a fence, or more replicas, the queue requests the lock
        // once more, as the holder. So it does after a handover, which no replica acknowledges: the client that
        // released has its reply by then.
        let acknowledged = |waiter: &Waiter| {
            waiter.replicas() <= lease.replicas || planted(Fault::GrantedUnacknowledged)
        };
        let suffices = |waiter: &Waiter| {
            waiter.lease_ms == lease.lease_ms
                && acknowledged(waiter)
                && (!waiter.wants_fence() || lease.sure_fence().is_some())
        };
        let served = self.served_by(in_flight);
        let granted = served.filter(|no| self.waiters.at(*no).is_some_and(suffices));
        if let Some(no) = granted
            && let Some(waiter) = self.waiters.take(no)
        {
            lease.waiter = Some(no);
            (lease.connection, lease.attempt) = (waiter.connection, waiter.attempt);
            self.grant_place(&mut lease, &waiter, context);
        }
        self.backoff.granted();
        let orphaned =
            lease.receivers == 0 && (lease.strict || self.served_by(in_flight).is_none());
        if orphaned && !planted(Fault::GoneGrantKept) {
            self.give_away(&lease);
        }
        let lost = self.lease_of(user, token).is_none();
        self.put_lease(Some(lease), lost, context);
        self.believe_lease(context);
    }

    /// Replies to all requests at the place whose token got the lock.
    fn grant_place(&self, lease: &mut Lease, waiter: &Waiter, context: &mut Context<'_>) {
        let over = context.now >= lease.expires_earliest && !planted(Fault::ExpiredDelivered);
        lease.explicit = waiter.explicit;
        let latest = waiter.requests.last().filter(|last| last.session && !over);
        lease.session = latest.map(|last| last.request);
        let most = match planted(Fault::JoinedNotAnswered) {
            true => 1,
            false => usize::MAX,
        };
        for waiting in waiter.requests.iter().take(most) {
            if over {
                context.reply(waiting.request, Reply::Refused(Refusal::Expired));
                continue;
            }
            lease.receivers += 1;
            let how = match lease.how.take() {
                Some(GrantKind::Free) if self.held_at >= waiting.since => GrantKind::Waited,
                how => how.unwrap_or(GrantKind::Again),
            };
            let reply = Reply::Granted {
                token: lease.token.clone(),
                until: lease.expires_earliest,
                since: lease.since,
                fence: lease.sure_fence().filter(|_| waiting.fence),
                session: lease.session == Some(waiting.request),
                how,
            };
            context.reply(waiting.request, reply);
        }
    }
}
