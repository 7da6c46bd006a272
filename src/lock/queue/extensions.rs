//! The store's replies to extensions: a client's `RELOCK`, or the renewal of a session.

use super::{
    Context, InFlight, Queue,
    acknowledgement::{LEASE_STAYS, error_with},
};
use crate::lock::{
    event::{Refusal, Reply},
    fault::{Fault, planted},
    store_request::{Deadline, Outcome, StoreRequest},
};

impl Queue {
    pub(super) fn extend_replied(
        &mut self,
        in_flight: InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        match outcome {
            Outcome::Granted {
                deadline, fresh, ..
            } => self.extended(&in_flight, deadline, fresh, context),
            // The lease is written back first, and then the token holds the lock again.
            Outcome::Held { .. } | Outcome::Free if self.waits_for_write_back_of(&in_flight) => {
                self.extend_later(in_flight);
            }
            Outcome::Held { holder, ttl_ms } => {
                self.not_extended(&in_flight, context);
                self.held(holder, ttl_ms, context);
            }
            Outcome::Free => {
                self.not_extended(&in_flight, context);
                self.free(context);
            }
            Outcome::Unacknowledged { missing, done } => {
                let error = error_with(&missing.error, LEASE_STAYS);
                self.tell(&in_flight, Reply::Refused(Refusal::Store(error)), context);
                if let Some(done) = done {
                    self.deadline_moved(&in_flight, done, context);
                }
                self.renew_later(&in_flight, context);
            }
            Outcome::Refused(error) => {
                self.tell(&in_flight, Reply::Refused(Refusal::Store(error)), context);
                self.renew_later(&in_flight, context);
            }
            _ => debug_assert!(false, "asked again"),
        }
    }

    /// Puts off the next renewal after one that failed. The queue retries until the lease is over.
    fn renew_later(&mut self, in_flight: &InFlight, context: &Context<'_>) {
        if let (None, Some(lease)) = (in_flight.reply_to, &mut self.lease) {
            lease.renew_at = match planted(Fault::RenewalStopsAtError) {
                true => lease.expires_latest,
                false => context.now.plus_millis(lease.renewal_pause_ms()),
            };
        }
    }

    /// Reports that the token does not hold the lock, unless another instance may yet write it back.
    fn not_extended(&mut self, in_flight: &InFlight, context: &mut Context<'_>) {
        let here = match &in_flight.store_request {
            StoreRequest::Extend { user, token, .. } => self.lease_of(*user, token).is_some(),
            _ => false,
        };
        if here || !self.may_yet_come(in_flight, context) {
            self.tell(in_flight, Reply::NotHeld, context);
        }
    }

    /// Records that the lease began anew, for a client that requested it or as a renewal.
    fn extended(
        &mut self,
        in_flight: &InFlight,
        deadline: Deadline,
        fresh: bool,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Extend {
            user,
            token,
            lease_ms,
            expects,
            ..
        } = &in_flight.store_request
        else {
            return;
        };
        let before = self.lease_of(*user, token);
        let is_bound = before.as_ref().is_some_and(|lease| lease.session.is_some());
        // If the deadline was not set here, the token may be in use at another instance, too. But a client that extends
        // the lease here claims it for this instance, unless the lease is bound to a session.
        let relocked = in_flight.reply_to.is_some() && !is_bound;
        let stood =
            before.is_some_and(|lease| lease.fence_at.is_some() && lease.fence_at == *expects);
        let fence_at = (fresh && stood).then_some(deadline);
        let deadline = (fresh || relocked).then_some(deadline);
        let mut lease = self.new_lease(
            in_flight,
            (*user, token),
            *lease_ms,
            deadline,
            None,
            context.now,
        );
        lease.fence_at = fence_at;
        lease.may_be_longer |= !fresh;
        if in_flight.reply_to.is_some() {
            let over = context.now >= lease.expires_earliest;
            let reply = if over {
                Reply::Refused(Refusal::Expired)
            } else {
                Reply::Done
            };
            self.tell(in_flight, reply, context);
            // A client that extends the lease counts on it.
            lease.receivers += 1;
        } else if lease.receivers == 0 {
            // Its session ended meanwhile.
            self.give_away(&lease);
        }
        self.put_lease(Some(lease), true, context);
        self.believe_lease(context);
        self.replicas_are_back(in_flight.store_request.replicas());
    }

    /// Puts off an extension until after the write-back.
    pub(super) fn extend_later(&mut self, in_flight: InFlight) {
        if let (Some(op), Some(_)) = (in_flight.op, in_flight.reply_to) {
            self.ops.put_back(*op);
        }
        // A renewal stays due.
    }
}
