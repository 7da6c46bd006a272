//! Users without a connection to the store. Each user's requests go on a connection of its own, and the store may
//! accept other users' connections but not this one's (`maxclients`). The request of such a user is not sent
//! ([`Outcome::NoLink`](crate::lock::Outcome::NoLink)), and does not delay the other users of the lock: the queue
//! passes the user's places and pending operations over until it has a connection again. They keep their order.
//!
//! Absorbed commands do not wait for that: nothing was sent for them, and their own connection to Redis may work.

use std::collections::BTreeMap;

use super::{Context, InFlight, NOT_NOW_PAUSE_MS, PendingOp, Queue};
use crate::lock::{
    event::{Refusal, Reply, Time, UserId},
    fault::{Fault, planted},
    store_request::StoreRequest,
};

/// The users without a connection to the store, and when to send a request for each all the same. The store reports a
/// new connection, but that report may reach a queue before the report that the connection is missing.
#[derive(Debug, Default)]
pub(super) struct CutOff(BTreeMap<UserId, Time>);

impl CutOff {
    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns whether the requests of this user cannot be sent now.
    pub(super) fn has(&self, user: UserId) -> bool {
        self.0.contains_key(&user)
    }

    /// Records that the user got a reply or has a connection again.
    pub(super) fn is_back(&mut self, user: UserId) {
        self.0.remove(&user);
    }

    /// Ends the cut-off of the users whose time has come.
    pub(super) fn expire(&mut self, now: Time) {
        self.0.retain(|_, until| *until > now);
    }

    /// Returns when to send a request for the first of them.
    pub(super) fn next_at(&self) -> Option<Time> {
        self.0.values().min().copied()
    }

    /// Returns when to send a request for this user.
    pub(super) fn until(&self, user: UserId) -> Option<Time> {
        self.0.get(&user).copied()
    }
}

impl Queue {
    /// Returns when to send a request for the first user without a connection, if there is anything to send.
    pub(super) fn next_cut_off_at(&self) -> Option<Time> {
        self.cut_off.next_at().filter(|_| !self.is_idle())
    }

    /// Resumes the requests of this user, which has a connection now.
    pub(super) fn linked(&mut self, user: UserId, context: &mut Context<'_>) {
        self.cut_off.is_back(user);
        if let Some(in_flight) = &mut self.in_flight
            && in_flight.retry_at.is_some()
            && in_flight.store_request.user() == user
            && !planted(Fault::CutOffNotPassed)
        {
            in_flight.retry_at = Some(context.now);
            self.retry(context);
        }
    }

    /// Puts off a request that was not sent, so that other users do not wait for it.
    pub(super) fn not_sent(&mut self, mut in_flight: InFlight, context: &mut Context<'_>) {
        let user = in_flight.store_request.user();
        let again_at = context.now.plus_millis(context.settings.answer_within_ms);
        if planted(Fault::CutOffNotPassed) {
            in_flight.retry_at = Some(again_at);
            self.in_flight = Some(Box::new(in_flight));
            return;
        }
        self.cut_off.0.insert(user, again_at);
        // Once its client has a reply, the request is on lockgate's own behalf.
        let op = in_flight
            .op
            .take_if(|_| in_flight.reply_to.is_some() && !in_flight.again);
        let served = self.served_by(&in_flight).filter(|_| in_flight.again);
        let keep = self.keep(context);
        for (no, request) in self.waiters.take_attempts(user, keep) {
            // A first sending may have been executed.
            let refusal = match served == Some(no) {
                true => Refusal::Upstream,
                false => Refusal::NotSent,
            };
            context.reply(request, Reply::Refused(refusal));
        }
        let is_absorbed = |op: &PendingOp| op.owner().is_some_and(|owner| owner.absorbed);
        let ops = self
            .ops
            .take_where(|op| op.user() == user && is_absorbed(op));
        let unsent = op.as_deref().filter(|op| is_absorbed(op));
        for owner in ops.iter().chain(unsent).filter_map(PendingOp::owner) {
            context.reply(owner.request, Reply::Refused(Refusal::NotSent));
        }
        match (&in_flight.store_request, op) {
            (_, Some(op)) if is_absorbed(&op) => {}
            (_, Some(op)) => self.ops.put_back(*op),
            (StoreRequest::Acquire { .. }, _) => {
                self.doubt(&in_flight);
                self.left();
            }
            // A lease whose user has no connection runs out.
            (StoreRequest::Check { .. }, _) if in_flight.reply_to.is_none() => {
                self.look_later(again_at);
                if let (None, Some(lease)) = (&self.cached_holder, &mut self.lease) {
                    lease.check_at = Some(again_at);
                }
            }
            (StoreRequest::WriteBack { .. }, _) => self.write_back_at = Some(again_at),
            (StoreRequest::DeleteDead { .. }, _) => self.look_later(again_at),
            // A renewal stays due.
            (StoreRequest::Extend { .. }, _) if in_flight.reply_to.is_none() => {}
            (StoreRequest::Release { .. } | StoreRequest::Handover { .. }, _)
                if in_flight.reply_to.is_none() =>
            {
                self.release_later(in_flight, context);
            }
            // The store may have executed a first sending: the queue retries until it knows the outcome, or until its
            // client has an error.
            _ => {
                in_flight.retry_at = Some(context.now.plus_millis(NOT_NOW_PAUSE_MS));
                self.in_flight = Some(Box::new(in_flight));
            }
        }
    }

    /// Puts a release off that no client waits for. A lease that is over, or that this instance did not set, is left to
    /// its end.
    fn release_later(&mut self, in_flight: InFlight, context: &mut Context<'_>) {
        self.doubt(&in_flight);
        match in_flight.op.map(|op| *op) {
            Some(PendingOp::Unlock(owner)) => self.release_after_error(owner, context),
            Some(op) => {
                let is_there = |user, token| self.lease_of(user, token).is_some();
                if !matches!(&op, PendingOp::GiveAway { user, token, only_if: Some(_) } if !is_there(*user, token))
                {
                    self.ops.put_back(op);
                }
            }
            None => {}
        }
    }
}
