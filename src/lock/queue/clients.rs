//! What clients do: they ask for the lock, stop waiting, are gone; and what follows from that for a lease that
//! was granted to nobody.

use super::{Asked, Errand, Place, Queue, Turn};
use crate::lock::{
    fault::{Fault, planted},
    lease::Lease,
    vocabulary::{LockRequest, Refusal, Reply, RequestId, Time, Token, UserId, Wait},
};

impl Queue {
    pub(super) fn lock(&mut self, ask: &LockRequest, turn: &mut Turn<'_>) {
        // Whoever asks with this token is there for it again.
        self.errands
            .take_where(|errand| errand.gives_away(ask.user, &ask.token));
        self.late
            .retain(|(_, user, token)| *user != ask.user || *token != ask.token);
        let knows = self.knows(ask.user, ask.wait, turn.now);
        if knows && self.places.requests() >= turn.settings.max_waiters {
            self.left();
            if ask.wait == Wait::No && self.belief.is_some() {
                return turn.reply(ask.request, Reply::Nil);
            }
            return turn.reply(ask.request, Reply::Refused(Refusal::TooManyWaiters));
        }
        if !knows {
            self.comes_as_a_stranger(ask.user, turn.now);
        }
        self.places.join(turn.now, ask, turn.settings);
        if let Some(lease) = self.lease.as_mut().filter(|lease| lease.bare) {
            // From now on somebody waits to be told.
            lease.bare = false;
            self.belief = None;
        }
    }

    pub(super) fn stop_waiting(
        &mut self,
        request: RequestId,
        user: UserId,
        token: &Token,
        turn: &mut Turn<'_>,
    ) {
        if self
            .asked
            .as_ref()
            .is_some_and(|asked| asked.is_for(user, token))
        {
            self.places.try_only(user, token, request);
        } else if self
            .places
            .leave(user, token, request, self.keep_until(turn))
        {
            turn.reply(request, Reply::Nil);
            self.left();
        }
    }

    pub(super) fn gone(
        &mut self,
        request: RequestId,
        user: UserId,
        token: &Token,
        turn: &Turn<'_>,
    ) {
        let keep_until = self.keep_until(turn);
        self.places.leave(user, token, request, keep_until);
        self.left();
    }

    /// Somebody waits no more. A lease that was granted while others with its token joined, and was told nobody
    /// yet, or was to be given back when such a one came, is given back.
    pub(super) fn left(&mut self) {
        let Some(lease) = self.lease.as_ref().filter(|it| it.receivers == 0) else {
            return;
        };
        let (user, token) = (lease.user, &lease.token);
        let under_way = |asked: &Asked| asked.is_for(user, token) || asked.releases(user, token);
        let is_wanted = self.places.of_owner(user, token).is_some()
            || self.asked.as_ref().is_some_and(under_way)
            || self.errands.iter().any(|e| e.gives_away(user, token));
        if !is_wanted {
            let lease = lease.clone();
            self.give_away(&lease);
        }
    }

    pub(super) fn undelivered(
        &mut self,
        request: RequestId,
        (user, token): (UserId, &Token),
        since: Time,
        turn: &mut Turn<'_>,
    ) {
        // Others may have been told of the same grant; theirs is no session then.
        self.session_closed(request, user, token, false, turn);
        let granted = |lease: &&mut Lease| lease.is_of(user, token) && lease.since == since;
        let Some(lease) = self.lease.as_mut().filter(granted) else {
            return;
        };
        lease.receivers = lease.receivers.saturating_sub(1);
        if lease.receivers > 0 {
            return;
        }
        let lease = lease.clone();
        if let (true, Some(no)) = (lease.explicit, lease.place)
            && self.places.of_owner(user, token).is_none()
            && let Some(keep_until) = self.keep_until(turn)
        {
            // Its connection closed in the very moment of the grant: as if it closed before.
            let (token, lease_ms) = (token.clone(), lease.lease_ms);
            let place = Place {
                user,
                token,
                explicit: true,
                lease_ms,
                requests: Vec::new(),
            };
            self.places.keep(no, place, keep_until);
        }
        if !planted(Fault::UndeliveredKept) {
            self.give_away(&lease);
        }
    }

    /// Nobody is there for a lease: the next one gets it, or it is taken back. A token that a client
    /// named may be in use at another gate, which then moved the deadline; one that lockgate made
    /// cannot be.
    pub(super) fn give_away(&mut self, lease: &Lease) {
        // Where the deadline may be another gate's and so may the client, the lease runs out.
        if lease.deadline.is_some() || !lease.explicit {
            self.errands.put(Errand::GiveAway {
                user: lease.user,
                token: lease.token.clone(),
                only_if: (lease.deadline)
                    .filter(|_| lease.explicit && !planted(Fault::DeadlineNotInsisted)),
            });
        }
    }

    pub(super) fn refuse_deadlocked(&mut self, turn: &mut Turn<'_>) {
        let lease = self.lease.as_ref().map(|lease| &lease.token);
        let Some(holder) = self.belief.as_ref().map(|belief| &belief.holder).or(lease) else {
            return;
        };
        let owner = self.lease.as_ref().filter(|lease| lease.token == *holder);
        let owner = owner.map(|lease| lease.user);
        // Who gives back another user's token gives nothing back.
        let rights = &self.rights;
        let concerns = |user| !rights.is_stranger(user) && owner.is_none_or(|it| it == user);
        for request in self.places.take_deadlocked(holder, concerns) {
            turn.reply(request, Reply::Refused(Refusal::Deadlock));
            self.left();
        }
    }
}
