//! The passing of time: waits that end, holders and leases that are over, and clients whose request the store did not
//! answer in time.

use super::{Context, InFlight, PendingOp, Queue, pending_ops::Owner};
use crate::lock::{
    event::{Refusal, Reply},
    wait_queue::Due,
};

impl Queue {
    pub(super) fn timer(&mut self, context: &mut Context<'_>) {
        self.ops.wake(|at| at <= context.now);
        let served = self.in_flight.as_deref().and_then(|it| self.served_by(it));
        if let (Some(place), Some(in_flight)) = (served, &self.in_flight) {
            // A grant may be on its way: a refusal would waste it, and each one that takes longer than attempts wait.
            let sent_at = in_flight.sent_at;
            let until = sent_at.plus_millis(context.settings.answer_within_ms);
            self.waiters.await_outcome(place, context.now, until);
        }
        let keep = self.keep(context);
        for due in self.waiters.take_due(context.now, keep) {
            let is_served = served == Some(due.place);
            let reply = if due.is_attempt {
                self.attempt_is_over(&due, is_served, context)
            } else if due.is_try || self.is_unanswered(context) {
                // It is unknown whether the lock is held.
                self.unanswered()
            } else if let Some(error) = self.unacknowledged_for(due.replicas, is_served) {
                Reply::Refused(Refusal::Store(error))
            } else {
                Reply::Nil
            };
            context.reply(due.request, reply);
            self.left();
        }
        if self
            .cached_holder
            .as_ref()
            .is_some_and(|cached_holder| cached_holder.until <= context.now)
        {
            self.cached_holder = None;
            self.backoff.now();
        }
        self.tell_of_late_renewal(context);
        if self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.expires_latest <= context.now)
        {
            self.put_lease(None, true, context);
        }
        self.release_late(context);
        self.give_up(context);
        self.retry(context);
    }

    /// Replies to the clients whose store request took too long. Their releases still happen, but on lockgate's own
    /// behalf, and only of a lease whose deadline this instance knows.
    fn give_up(&mut self, context: &mut Context<'_>) {
        let reply = self.unanswered();
        let is_absorbed = |op: &PendingOp| op.owner().is_some_and(|owner| owner.absorbed);
        let undecided = match &self.in_flight {
            Some(in_flight) if in_flight.op.as_deref().is_some_and(is_absorbed) => {
                self.undecided(in_flight)
            }
            _ => reply.clone(),
        };
        if let Some(in_flight) = &mut self.in_flight
            && let Some((request, _)) = in_flight
                .reply_to
                .take_if(|(_, until)| *until <= context.now)
        {
            context.reply(request, undecided);
        }
        for op in self.ops.take_where(|op| op.is_due(context.now)) {
            match op {
                op if is_absorbed(&op) => {
                    let requests = op.owner().map(|owner| owner.request);
                    let reply = Reply::Refused(Refusal::NotSent);
                    requests
                        .into_iter()
                        .for_each(|request| context.reply(request, reply.clone()));
                }
                PendingOp::Unlock(owner) => {
                    context.reply(owner.request, reply.clone());
                    self.release_after_error(owner, context);
                }
                PendingOp::Relock(owner, _) => context.reply(owner.request, reply.clone()),
                PendingOp::GiveAway { .. } => {}
            }
        }
    }

    /// Releases the lock of a client that got an error for its `UNLOCK`.
    pub(super) fn release_after_error(&mut self, owner: Owner, context: &mut Context<'_>) {
        if let Some(mut lease) = self.lease_of(owner.user, &owner.token) {
            lease.session = None;
            // After the error the client may acquire the lock elsewhere with the same token.
            if lease.deadline.is_some() {
                lease.receivers = 0;
                self.ops.put(PendingOp::GiveAway {
                    user: owner.user,
                    token: owner.token,
                    only_if: lease.deadline,
                });
            }
            self.put_lease(Some(lease), false, context);
        }
    }

    /// Returns the reply to an attempt whose time is up: whether the store request in flight is for it (`served`).
    fn attempt_is_over(&self, due: &Due, served: bool, context: &Context<'_>) -> Reply {
        match &self.in_flight {
            Some(in_flight) if served => self.undecided(in_flight),
            // Redis itself would grant a free lock.
            _ if context.now < self.grace_until => Reply::Nil,
            _ if due.is_try || self.is_unanswered(context) => Reply::Refused(Refusal::NotSent),
            _ => Reply::Nil,
        }
    }

    /// Returns the reply to an absorbed command whose store request is in flight for too long.
    fn undecided(&self, in_flight: &InFlight) -> Reply {
        Reply::Refused(match self.trouble.as_deref() {
            // The store said that it did not execute the request.
            Some(error) if in_flight.retry_at.is_some() && !in_flight.again => {
                Refusal::Store(error.clone())
            }
            _ => Refusal::Upstream,
        })
    }

    /// Returns whether the lock's state is unknown because the store does not reply.
    fn is_unanswered(&self, context: &Context<'_>) -> bool {
        let late = |in_flight: &InFlight| {
            in_flight.again
                || in_flight.retry_at.is_some()
                || context.now.millis_since(in_flight.sent_at) >= context.settings.answer_within_ms
        };
        let troubled = self.trouble.is_some() || self.cut_off.any();
        let troubled = troubled || self.in_flight.as_deref().is_some_and(late);
        self.cached_holder.is_none() && troubled
    }

    pub(super) fn unanswered(&self) -> Reply {
        Reply::Refused(match self.trouble.as_deref() {
            Some(error) => Refusal::Store(error.clone()),
            None => Refusal::Upstream,
        })
    }
}
