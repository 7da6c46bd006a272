//! Grants that too few replicas acknowledged. Such a grant does not count: the store takes it back, and its waiter keeps
//! its place and is served again after a pause. Meanwhile the lock goes to waiters that want fewer replicas, so that a
//! request for more replicas than there are delays no other client.

use bytes::Bytes;

use super::{Context, InFlight, NOT_NOW_PAUSE_MS, Queue};
use crate::lock::{
    event::{Action, EndReason, Refusal, Reply, Time},
    store_request::{Deadline, StoreRequest},
    wait_queue::Waiter,
};

/// The latest grant that too few replicas acknowledged.
#[derive(Debug)]
pub(super) struct Unacknowledged {
    /// The number of replicas that it wanted.
    replicas: u32,
    /// Until when no place that wants as many is served.
    until: Option<Time>,
    /// The error for clients that stop waiting.
    error: Bytes,
}

impl Queue {
    /// Returns whether the place wants more acknowledgements than there were a moment ago.
    pub(super) fn is_delayed(&self, waiter: &Waiter) -> bool {
        let latest = self.unacknowledged.as_ref();
        latest.is_some_and(|it| it.until.is_some() && waiter.replicas() >= it.replicas)
    }

    /// Returns when the delayed places are served again.
    pub(super) fn delayed_until(&self) -> Option<Time> {
        let latest = self.unacknowledged.as_ref();
        latest.filter(|_| !self.waiters.is_empty())?.until
    }

    /// Ends the pause after an unacknowledged grant, if its time has come.
    pub(super) fn end_delay(&mut self, now: Time) {
        if let Some(latest) = &mut self.unacknowledged {
            latest.until.take_if(|until| *until <= now);
        }
    }

    /// Returns the error for a request that stops waiting, if the lock is free but for its acknowledgements.
    pub(super) fn unacknowledged_for(&self, replicas: u32) -> Option<Bytes> {
        let latest = self.unacknowledged.as_ref()?;
        let is_free = self.cached_holder.is_none() && replicas >= latest.replicas;
        is_free.then(|| latest.error.clone())
    }

    /// Handles an acquisition that the store took back.
    pub(super) fn taken_back(
        &mut self,
        in_flight: &InFlight,
        error: Bytes,
        may_pass: bool,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Acquire {
            user,
            token,
            replicas,
            ..
        } = &in_flight.store_request
        else {
            return;
        };
        // The lease of a handover, which no client knows of.
        if let Some(lease) = self.lease_of(*user, token) {
            context.lease_over(&lease, EndReason::Released);
            context.actions.push(Action::Dead {
                dead_token: lease.dead_token(lease.deadline.filter(|_| lease.explicit)),
                before_loss: in_flight.data_lost || in_flight.grace_ms.is_some(),
            });
            self.put_lease(None, false, context);
        }
        self.cached_holder = None;
        self.told_of = None;
        self.backoff.now();
        if let Some(no) = self.served_by(in_flight) {
            let keep = self.keep(context);
            let refused = match may_pass {
                true => self.waiters.take_unwaiting(no, keep),
                false => {
                    let refused = self.waiters.take(no).into_iter();
                    let requests = refused.flat_map(|waiter| waiter.requests);
                    requests.map(|waiting| waiting.request).collect()
                }
            };
            for request in refused {
                context.reply(request, Reply::Refused(Refusal::Store(error.clone())));
            }
        }
        self.unacknowledged = may_pass.then(|| {
            Box::new(Unacknowledged {
                replicas: *replicas,
                until: Some(context.now.plus_millis(NOT_NOW_PAUSE_MS)),
                error,
            })
        });
        self.doubt(in_flight);
        self.left();
    }

    /// Handles an acquisition by a token that held the lock before and still does. Its earlier lease stands.
    pub(super) fn still_held(
        &mut self,
        in_flight: &InFlight,
        error: &Bytes,
        kept: (Deadline, bool),
        context: &mut Context<'_>,
    ) {
        self.deadline_moved(in_flight, kept, context);
        let served = self.served_by(in_flight);
        let refused = served.and_then(|no| self.waiters.take(no)).into_iter();
        for waiting in refused.flat_map(|waiter| waiter.requests) {
            let reply = Reply::Refused(Refusal::Store(error.clone()));
            context.reply(waiting.request, reply);
        }
        self.doubt(in_flight);
        self.left();
    }

    /// Records that the store moved the deadline of a lease whose length stays as it was, since a replica that takes over
    /// may have the earlier deadline.
    pub(super) fn deadline_moved(
        &mut self,
        in_flight: &InFlight,
        (deadline, fresh): (Deadline, bool),
        context: &mut Context<'_>,
    ) {
        let (StoreRequest::Acquire {
            user,
            token,
            lease_ms,
            ..
        }
        | StoreRequest::Extend {
            user,
            token,
            lease_ms,
            ..
        }) = &in_flight.store_request
        else {
            return;
        };
        let Some(before) = self.lease_of(*user, token) else {
            return;
        };
        let owner = (*user, token);
        let known = fresh.then_some(deadline);
        let mut lease = self.new_lease(in_flight, owner, *lease_ms, known, None, context.now);
        lease.lease_ms = before.lease_ms;
        lease.expires_earliest = lease.expires_earliest.min(before.expires_earliest);
        lease.expires_latest = lease.expires_latest.max(before.expires_latest);
        lease.may_be_longer |= !fresh;
        let stood = before.fence_at.is_some() && before.fence_at == before.deadline;
        lease.fence_at = known.filter(|_| stood);
        lease.renew_at = context.now.plus_millis(lease.renewal_pause_ms());
        self.put_lease(Some(lease), false, context);
        self.believe_lease(context);
    }
}
