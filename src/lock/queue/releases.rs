//! The store's replies to releases: they end a lease, or show that the token does not hold the lock.

use super::{Context, InFlight, Queue};
use crate::lock::{
    event::{Action, Dead, DeadToken, EndReason, LockMetric, Refusal, Reply},
    fault::{Fault, planted},
    store_request::{Outcome, StoreRequest},
};

/// How long a token that was released here and granted elsewhere is remembered, in milliseconds.
const FOREIGN_LEASE_MS: u64 = 60_000;

impl Queue {
    pub(super) fn release_replied(
        &mut self,
        in_flight: &InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Release { token, .. } = &in_flight.store_request else {
            return;
        };
        match outcome {
            Outcome::Free => {
                self.tell(in_flight, Reply::Done, context);
                self.released(in_flight, EndReason::Released, context);
                self.free(context);
                if !self.waiters.is_empty() && self.streak.is_long(context.now, context.settings) {
                    context.happened(LockMetric::Yielded);
                    let pause_ms = self.streak.pause_ms(context.now, context.settings);
                    self.backoff.pause(context.now, pause_ms);
                }
            }
            Outcome::Held { .. } | Outcome::Granted { .. } => {
                if self
                    .cached_holder
                    .as_ref()
                    .is_some_and(|cached_holder| cached_holder.holder == *token)
                {
                    self.cached_holder = None;
                    self.backoff.now();
                }
                self.not_released(in_flight, context);
            }
            Outcome::Refused(error) => {
                self.tell(in_flight, Reply::Refused(Refusal::Store(error)), context);
            }
            _ => debug_assert!(false, "asked again"),
        }
    }

    /// Releases a lock that cannot be handed over; the next waiter then requests it.
    pub(super) fn release_instead(&mut self, in_flight: InFlight, context: &mut Context<'_>) {
        let Some((user, token, only_if)) = in_flight.released() else {
            return;
        };
        self.doubt(&in_flight);
        let store_request = StoreRequest::Release {
            user,
            token: token.clone(),
            only_if,
        };
        self.send(
            InFlight {
                store_request,
                ..in_flight
            },
            context,
        );
    }

    /// Handles a release that found that the token does not hold the lock.
    pub(super) fn not_released(&mut self, in_flight: &InFlight, context: &mut Context<'_>) {
        let Some((user, token, _)) = in_flight.released() else {
            return;
        };
        let lease = self.lease_of(user, token);
        if lease.is_none() && self.may_yet_come(in_flight, context) {
            return;
        }
        // The token is gone by an earlier sending of this request, or by the loss of data after which the lease was to
        // be written back.
        let by_us = in_flight.again || (self.write_back_at.is_some() && lease.is_some());
        let reply = match &lease {
            _ if !by_us => Reply::NotHeld,
            Some(lease) if context.now < lease.expires_earliest => Reply::Done,
            _ => Reply::Refused(Refusal::Upstream),
        };
        self.tell(in_flight, reply, context);
        if let Some(lease) = lease {
            let how = match by_us {
                true => EndReason::Released,
                false => lease.ending(context.now),
            };
            // The lease was lost before, and its client gives it up now.
            self.released(in_flight, how, context);
        }
    }

    /// Records that the token that the request was to release does not hold the lock any more.
    pub(super) fn released(
        &mut self,
        in_flight: &InFlight,
        how: EndReason,
        context: &mut Context<'_>,
    ) {
        let Some((user, token, not_after)) = in_flight.released() else {
            return;
        };
        let lease = self.lease_of(user, token);
        // Whatever grant brought it back has ended, too.
        self.alive_again.take_if(|alive| **alive == *token);
        let op = in_flight.op.as_ref().and_then(|op| op.owner());
        // An absorbed command may release the token of another owner, which uses it again.
        let is_known = lease.is_some() || !op.is_some_and(|owner| owner.absorbed);
        if is_known && !planted(Fault::ReleasedForgotten) {
            // A client may use its own token again elsewhere, though it should not. A token that lockgate made is
            // dead at any deadline.
            let named = lease.as_ref().filter(|lease| lease.explicit);
            let set_here = named.filter(|lease| !lease.may_be_longer);
            let not_after = not_after
                .or(set_here.and_then(|lease| lease.deadline))
                .filter(|_| !planted(Fault::DeadWhateverDeadline));
            let foreign = || DeadToken {
                token: token.clone(),
                dead: Dead {
                    user,
                    not_after,
                    or_at: None,
                },
                expires_latest: context.now.plus_millis(FOREIGN_LEASE_MS),
            };
            let ours = lease.as_ref().map(|lease| lease.dead_token(not_after));
            context.actions.push(Action::Dead {
                dead_token: ours.unwrap_or_else(foreign),
                before_loss: in_flight.data_lost || in_flight.grace_ms.is_some(),
            });
        }
        // Its client gave the lease up, or does not count on it.
        let kept = self.write_back_at.is_some() && planted(Fault::WrittenBackThoughReleased);
        if let Some(lease) = lease.filter(|_| !kept) {
            context.lease_over(&lease, how);
            self.put_lease(None, false, context);
        }
        if let Some(ms) = in_flight.grace_ms {
            // Another instance that granted the token may not know of its end, and write it back.
            self.look_again(user, ms, context);
        }
    }
}
