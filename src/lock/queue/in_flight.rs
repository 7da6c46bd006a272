//! The store request in flight, and whether it is sent again: the connection may have broken before the reply, or the
//! store may have put the request off.

use bytes::Bytes;

use super::{Context, PendingOp, Queue, recovery::LOOKED_AT_MS};
use crate::lock::{
    event::{Reply, RequestId, Time, Token, UserId},
    fault::{Fault, planted},
    store_request::{Deadline, Fence, LinkId, Mark, StoreRequest, StoreRequestId},
    wait_queue::{Waiter, WaiterId},
};

/// The pause before a retry after the store said "not now", in milliseconds.
pub(super) const NOT_NOW_PAUSE_MS: u64 = 100;

/// The store request in flight, or waiting for its retry.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: StoreRequestId,
    pub(super) store_request: StoreRequest,
    /// The client's request that gets the outcome of the release, extension or check, and until when it can use the
    /// outcome.
    pub(super) reply_to: Option<(RequestId, Time)>,
    /// The pending operation that the request serves.
    pub(super) op: Option<Box<PendingOp>>,
    pub(super) sent_at: Time,
    /// An earlier sending got no reply, or the store lost data since the first sending.
    pub(super) again: bool,
    /// A push caused the request.
    pub(super) on_push: bool,
    /// What connections reported meanwhile.
    pub(super) dirty: Vec<Dirty>,
    /// When to send the request again, if the store did not execute the latest sending.
    pub(super) retry_at: Option<Time>,
    /// The client named the token that the request may grant the lock.
    pub(super) explicit: bool,
    /// The place that the request may grant the lock.
    pub(super) place: Option<WaiterId>,
    /// The request is on lockgate's own behalf: no client gets the outcome.
    pub(super) own: bool,
    /// The acquisition has taken the lock, and waits for replicas.
    pub(super) taken: bool,
    /// The store lost data meanwhile.
    pub(super) data_lost: bool,
    /// The rest of the grace when the reply came.
    pub(super) grace_ms: Option<u64>,
}

/// A connection that reported a change, or broke, while a store request was in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dirty {
    pub(super) link: LinkId,
    /// When to check the lock, if the connection broke before it reported a change.
    pub(super) ask_at: Option<Time>,
}

impl InFlight {
    /// Returns whether the request may grant this owner the lock.
    pub(super) fn is_for(&self, whose: UserId, what: &Token) -> bool {
        let granted = self.store_request.grants_to();
        granted.is_some_and(|(user, token, _)| user == whose && token == what)
    }

    /// Returns whether the request ends the lease of this owner.
    pub(super) fn releases(&self, whose: UserId, what: &Token) -> bool {
        self.released()
            .is_some_and(|(user, token, _)| user == whose && token == what)
    }

    /// Returns the owner whose lease the request ends, and the deadline that the key must have.
    pub(super) fn released(&self) -> Option<(UserId, &Token, Option<Deadline>)> {
        match &self.store_request {
            StoreRequest::Release {
                user,
                token,
                only_if,
            }
            | StoreRequest::Handover {
                user,
                from: token,
                only_if,
                ..
            } => Some((*user, token, *only_if)),
            _ => None,
        }
    }
}

impl Queue {
    /// Returns the place that a grant by this request serves, if a request waits there: the place that requests with the
    /// token join, or that of a strict attempt.
    pub(super) fn served_by(&self, in_flight: &InFlight) -> Option<WaiterId> {
        let (user, token, lease_ms) = in_flight.store_request.grants_to()?;
        if !in_flight.store_request.is_strict() {
            return self.waiters.of_owner(user, token);
        }
        // The next attempt of the client may have come with another token or lease.
        let is_same = |waiter: &Waiter| waiter.token == *token && waiter.lease_ms == lease_ms;
        let place = in_flight.place;
        place.filter(|no| self.waiters.at(*no).is_some_and(is_same))
    }

    /// Sends a request again after the connection broke: the store may have executed it or not. Each request may be
    /// sent twice, as long as the client or lease that it serves is still there.
    pub(super) fn ask_again(&mut self, mut in_flight: InFlight, context: &mut Context<'_>) {
        in_flight.again = true;
        self.insist_on_deadline(&mut in_flight);
        if matches!(
            in_flight.store_request,
            StoreRequest::Handover { strict: true, .. }
        ) {
            // Its token may by now be that of another client, which would lose the lock.
            return self.release_instead(in_flight, context);
        }
        // The next connection may lead to a store that lacks data.
        if let StoreRequest::Acquire { fence, .. } = &mut in_flight.store_request
            && let Fence::NewUnless(_) = fence
        {
            *fence = Fence::New;
        }
        if let (
            StoreRequest::Extend {
                mark: Mark::Kept | Mark::Found,
                ..
            },
            Some(lease),
        ) = (&in_flight.store_request, &mut self.lease)
        {
            lease.renewal_unknown = true;
        }
        if let (StoreRequest::WriteBack { .. }, Some(lease)) =
            (&in_flight.store_request, &mut self.lease)
        {
            lease.may_be_longer = true;
        }
        if in_flight.reply_to.is_none() || !planted(Fault::UnlockNotAskedAgain) {
            self.ask_again_unless_gone(in_flight, context);
        }
    }

    /// Makes a release of an absorbed command that is sent again leave other owners with the same token alone, if this
    /// instance knows the deadline that the first sending found.
    fn insist_on_deadline(&self, in_flight: &mut InFlight) {
        let op = in_flight.op.as_ref().and_then(|op| op.owner());
        if op.is_some_and(|owner| owner.absorbed) {
            self.release_only_this_grant(in_flight);
        }
    }

    /// Gives a release the deadline of the lease that it ends, if it has none and this instance knows one.
    fn release_only_this_grant(&self, in_flight: &mut InFlight) {
        let known = in_flight.released().and_then(|(user, token, _)| {
            let lease = self.lease.as_ref().filter(|it| it.is_of(user, token));
            lease.and_then(|lease| lease.deadline)
        });
        if let StoreRequest::Release { only_if, .. } | StoreRequest::Handover { only_if, .. } =
            &mut in_flight.store_request
        {
            *only_if = only_if.or(known);
        }
    }

    /// Puts off a request until the grace of a store that lost data is over, when other instances have written back
    /// what they granted; or sends it anew if it waited for a connection. A handover becomes a release.
    pub(super) fn ask_after_grace(
        &mut self,
        in_flight: InFlight,
        ms: u64,
        context: &mut Context<'_>,
    ) {
        if matches!(in_flight.store_request, StoreRequest::Handover { .. }) {
            return self.release_instead(in_flight, context);
        }
        let ask_at = context.now.plus_millis(ms);
        if matches!(in_flight.store_request, StoreRequest::Acquire { .. }) {
            self.cached_holder = None;
            self.backoff.at(ask_at);
            self.doubt(&in_flight);
            if ms > 0 {
                self.grace_until = ask_at;
                let keep = self.keep(context);
                let rights = &self.rights;
                let may_know = |user| !rights.is_unauthorized(user);
                for request in self.waiters.take_attempts_that_try(may_know, keep) {
                    context.reply(request, Reply::Nil);
                }
            }
            self.left();
        } else {
            // Only acquisitions take a free lock, but a more careful store has its way.
            self.in_flight = Some(Box::new(InFlight {
                retry_at: Some(ask_at),
                ..in_flight
            }));
        }
    }

    /// Puts off a request that the store did not execute, and retries it for a client that is still there then.
    pub(super) fn ask_later(&mut self, in_flight: InFlight, error: Bytes, context: &Context<'_>) {
        self.trouble = Some(Box::new(error));
        let retry_at = Some(context.now.plus_millis(NOT_NOW_PAUSE_MS));
        self.in_flight = Some(Box::new(InFlight {
            retry_at,
            ..in_flight
        }));
    }

    /// Sends the request again that the store did not execute, if its time has come.
    pub(super) fn retry(&mut self, context: &mut Context<'_>) {
        if let Some(in_flight) = self
            .in_flight
            .take_if(|a| a.retry_at.is_some_and(|at| at <= context.now))
        {
            let dirty = in_flight.dirty.clone();
            self.ask_again_unless_gone(*in_flight, context);
            self.heed(&dirty, context);
        }
    }

    /// Sends a request again that the store may not have executed, if there is still reason to.
    pub(super) fn ask_again_unless_gone(
        &mut self,
        mut in_flight: InFlight,
        context: &mut Context<'_>,
    ) {
        let is_served = self.served_by(&in_flight).is_some();
        match &in_flight.store_request {
            StoreRequest::Acquire { .. } if !is_served => {
                self.doubt(&in_flight);
                self.left();
            }
            // The client has its reply. From now on the request is on lockgate's own behalf, and for that grant only,
            // since the token may be granted again elsewhere.
            StoreRequest::Release { only_if: None, .. }
            | StoreRequest::Handover { only_if: None, .. }
                if !in_flight.own
                    && in_flight
                        .reply_to
                        .is_none_or(|(_, until)| until <= context.now) =>
            {
                self.release_only_this_grant(&mut in_flight);
                if let Some((.., Some(_))) = in_flight.released() {
                    return self.send(in_flight, context);
                }
                self.doubt(&in_flight);
                if let Some((request, _)) = in_flight.reply_to {
                    context.reply(request, self.unanswered());
                }
            }
            // For an extension that follows a write-back, a renewal, and requests that serve a lease, the choice of the
            // next request decides whether they are still due.
            StoreRequest::Extend { user, token, .. } if self.waits_for_write_back(*user, token) => {
                self.extend_later(in_flight);
            }
            StoreRequest::Extend { .. } if in_flight.reply_to.is_none() => {}
            StoreRequest::WriteBack { .. } => self.write_back_at = Some(context.now),
            StoreRequest::DeleteDead { dead, .. } => {
                self.look_again(dead.user, LOOKED_AT_MS, context)
            }
            // The choice of the next request decides whether an unauthorized user still needs a check.
            StoreRequest::Check { .. } if in_flight.reply_to.is_none() => {
                self.look_later(context.now);
                if let (None, Some(lease)) = (&self.cached_holder, &mut self.lease) {
                    lease.check_at = Some(context.now);
                }
            }
            _ => self.send(in_flight, context),
        }
    }

    pub(super) fn tell(&self, in_flight: &InFlight, reply: Reply, context: &mut Context<'_>) {
        if let Some((request, _)) = in_flight.reply_to {
            context.reply(request, reply);
        }
    }
}
