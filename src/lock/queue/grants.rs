//! The store's replies to acquisitions and handovers: they grant a waiter the lock, or show its holder.

use super::{Context, InFlight, Queue};
use crate::lock::{
    event::{EndReason, Fence, GrantKind, LockMetric, Outcome, Refusal, Reply, StoreRequest},
    fault::{Fault, planted},
    lease::Lease,
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
            lease_ms,
            fence: asked_fence,
            bare,
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
                let again = self.lease_of(*user, token).is_some();
                // No new fence comes if the token keeps the fence it has.
                let is_sure = fence.is_some() || matches!(asked_fence, Fence::NewUnless(_));
                let fence_at = is_sure.then_some(deadline);
                if !again {
                    // The owner's own place is still among them.
                    let others = self.waiters.len().saturating_sub(1);
                    let rivals = self.backoff.turn_begins();
                    if rivals >= CROWD {
                        context.happened(LockMetric::Crowded { rivals });
                    }
                    self.streak.begin(context.now, others);
                }
                // Another instance may have granted the lock to a token that held it already, but not to a token that
                // lockgate made and gave no client.
                let ours = fresh || (in_flight.again && !again && !in_flight.explicit && !bare);
                let deadline = ours.then_some(deadline);
                let mut lease = self.new_lease(
                    in_flight,
                    (*user, token),
                    *lease_ms,
                    deadline,
                    fence,
                    context.now,
                );
                lease.fence_at = fence_at;
                if !again && (fresh || *bare || in_flight.again) {
                    lease.how = Some(GrantKind::Free);
                }
                self.granted(in_flight, lease, context);
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
            Outcome::Refused(error) => {
                for waiting in self
                    .waiters
                    .take(*user, token)
                    .map_or(Vec::new(), |(_, p)| p.requests)
                {
                    context.reply(
                        waiting.request,
                        Reply::Refused(Refusal::Store(error.clone())),
                    );
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
        let StoreRequest::Handover {
            user, to, lease_ms, ..
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
                self.tell(&in_flight, Reply::Done, context);
                self.streak.hand_over();
                self.released(&in_flight, EndReason::HandedOver, context);
                let fence_at = fence.map(|_| deadline);
                let ours = fresh || (in_flight.again && !in_flight.explicit);
                let deadline = ours.then_some(deadline);
                let mut lease = self.new_lease(
                    &in_flight,
                    (*user, to),
                    *lease_ms,
                    deadline,
                    fence,
                    context.now,
                );
                lease.fence_at = fence_at;
                lease.how = Some(GrantKind::Handover);
                self.granted(&in_flight, lease, context);
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

    /// Records that the token holds the lock, and replies to all requests at its place.
    fn granted(&mut self, in_flight: &InFlight, mut lease: Lease, context: &mut Context<'_>) {
        let (user, token) = (lease.user, lease.token.clone());
        self.unsure.remove(&(user, token.clone()));
        lease.explicit = in_flight.explicit;
        let over = context.now >= lease.expires_earliest && !planted(Fault::ExpiredDelivered);
        let waiter = self.waiters.of_owner(user, &token);
        let wants_more = |waiter: &super::Waiter| {
            waiter.lease_ms != lease.lease_ms
                || (waiter.wants_fence() && lease.sure_fence().is_none())
        };
        if waiter.is_some_and(wants_more) {
            // A request joined meanwhile and wants another lease or a fence: the queue requests the lock once more, as
            // the holder.
        } else if let Some((no, waiter)) = self.waiters.take(user, &token) {
            lease.explicit = waiter.explicit;
            lease.waiter = Some(no);
            let latest = waiter.requests.last().filter(|last| last.session && !over);
            lease.session = latest.map(|last| last.request);
            let joined = waiter
                .requests
                .len()
                .min(match planted(Fault::JoinedNotAnswered) {
                    true => 1,
                    false => usize::MAX,
                });
            for waiting in &waiter.requests[..joined] {
                let reply = if over {
                    Reply::Refused(Refusal::Expired)
                } else {
                    lease.receivers += 1;
                    Reply::Granted {
                        token: token.clone(),
                        until: lease.expires_earliest,
                        since: lease.since,
                        fence: lease.sure_fence().filter(|_| waiting.fence),
                        session: lease.session == Some(waiting.request),
                        how: match lease.how.take() {
                            Some(GrantKind::Free) if self.held_at >= waiting.since => {
                                GrantKind::Waited
                            }
                            how => how.unwrap_or(GrantKind::Again),
                        },
                    }
                };
                context.reply(waiting.request, reply);
            }
        }
        self.backoff.granted();
        let orphaned = lease.receivers == 0 && self.waiters.of_owner(user, &token).is_none();
        if orphaned && !planted(Fault::GoneGrantKept) {
            self.give_away(&lease);
        }
        let lost = self.lease_of(user, &token).is_none();
        self.put_lease(Some(lease), lost, context);
        self.believe_lease(context);
    }
}
