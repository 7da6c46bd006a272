//! The handling of the store's replies: what every reply shows, and the choice of the handler for its request.

use bytes::Bytes;

use super::{Context, InFlight, Queue, pending_ops::News};
use crate::lock::{
    event::{Dead, LockMetric},
    fault::{Fault, planted},
    store_request::{LinkId, Outcome, StoreReply, StoreRequest},
};

/// The error for a store reply that does not fit the request.
const NO_ANSWER: &[u8] = b"ERR the store gave no answer";

impl Queue {
    pub(super) fn store_replied(
        &mut self,
        mut in_flight: InFlight,
        store_reply: StoreReply,
        dead: Option<Dead>,
        context: &mut Context<'_>,
    ) {
        let StoreReply {
            mut outcome,
            armed,
            grace_ms,
        } = store_reply;
        in_flight.grace_ms = grace_ms;
        if in_flight.own && matches!(in_flight.store_request, StoreRequest::Extend { .. }) {
            let renewed = matches!(outcome, Outcome::Granted { .. });
            context.happened(match renewed {
                true => LockMetric::Renewed,
                false => LockMetric::NotRenewed,
            });
        }
        if !matches!(outcome, Outcome::NoLink) {
            self.cut_off.is_back(in_flight.store_request.user());
        }
        if let Outcome::WrongType(error) = outcome {
            // Another client put something else in the place of the lock.
            self.cached_holder = None;
            self.lose_lease(context);
            outcome = Outcome::Refused(error);
        }
        self.notice_extension(&in_flight, &outcome);
        let dirty = in_flight.dirty.clone();
        match outcome {
            Outcome::NoLink => self.not_sent(in_flight, context),
            Outcome::Unknown => self.ask_again(in_flight, context),
            Outcome::NotYet { ms } => self.ask_after_grace(in_flight, ms, context),
            Outcome::NotNow(error) => return self.ask_later(in_flight, error, context),
            Outcome::Free if matches!(in_flight.store_request, StoreRequest::Acquire { .. }) => {
                // This reply does not fit the request: the store does not work as it should.
                return self.ask_later(in_flight, Bytes::from_static(NO_ANSWER), context);
            }
            Outcome::Granted { .. }
            | Outcome::Held { .. }
            | Outcome::Free
            | Outcome::Unacknowledged { .. }
            | Outcome::WrongType(_)
            | Outcome::Refused(_) => self.decided(in_flight, outcome, armed, dead, context),
        }
        self.heed(&dirty, context);
    }

    /// Handles a reply that decides the request: the store executed or refused it.
    fn decided(
        &mut self,
        mut in_flight: InFlight,
        outcome: Outcome,
        armed: Option<LinkId>,
        dead: Option<Dead>,
        context: &mut Context<'_>,
    ) {
        self.trouble = None;
        in_flight.dirty.clear();
        if let (Some(dead), Outcome::Held { holder, .. }) = (dead, &outcome)
            && let Some(token) = holder
        {
            self.found_dead(&in_flight, token, dead);
        }
        // The store may refuse what replicas would not acknowledge without a look at the user's rights.
        let (user, refused) = (
            in_flight.store_request.user(),
            matches!(
                outcome,
                Outcome::Refused(_) | Outcome::Unacknowledged { done: None, .. }
            ),
        );
        // The cached holder was read on another connection, whose pushes may be lost.
        let stale = !planted(Fault::StaleBelief)
            && armed.is_some()
            && armed != self.armed
            && matches!(outcome, Outcome::Held { holder: None, .. });
        if armed.is_some() {
            self.armed = armed;
        }
        let news = News::of(&in_flight, &outcome);
        let (data_lost, grace_ms) = (in_flight.data_lost, in_flight.grace_ms);
        match &in_flight.store_request {
            StoreRequest::Acquire { .. } => self.acquire_replied(&in_flight, outcome, context),
            StoreRequest::Handover { .. } => self.handover_replied(in_flight, outcome, context),
            StoreRequest::Release { .. } => self.release_replied(&in_flight, outcome, context),
            StoreRequest::Extend { .. } => self.extend_replied(in_flight, outcome, context),
            StoreRequest::Check { .. } => self.check_replied(&in_flight, outcome, context),
            StoreRequest::WriteBack { .. } => self.write_back_replied(&in_flight, outcome, context),
            StoreRequest::DeleteDead { .. } => self.delete_dead_replied(outcome, context),
        }
        if !refused {
            self.authorize(user, armed, context);
        }
        self.settle_ops(&news, context);
        if data_lost {
            self.restore_after(user, grace_ms, context);
        }
        if stale {
            self.cached_holder = None;
            self.backoff.now();
            if let Some(lease) = &mut self.lease {
                lease.check_at = Some(context.now);
            }
        }
    }
}
