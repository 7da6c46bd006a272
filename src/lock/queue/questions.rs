//! The choice of the next store request, made anew after every event.

use super::{Asked, Errand, Queue, Turn};
use crate::lock::{
    fault::{Fault, planted},
    lease::{Lease, is_wanted_back},
    places::Place,
    vocabulary::{
        Action, Deadline, Fence, Mark, Question, QuestionId, Reply, RequestId, Settings, Time,
        Token, UserId,
    },
};

impl Queue {
    pub(super) fn go_on(&mut self, turn: &mut Turn<'_>) {
        if !self.unsure.is_empty() {
            self.take_back_unsure(turn);
        }
        if self.asked.is_some() || self.keep_up(turn) {
            return;
        }
        let asks = match self.waiters_are_next() {
            true => self.ask_for_waiters(turn) || self.run_errand(turn),
            false => self.run_errand(turn) || self.ask_for_waiters(turn),
        };
        if !asks && self.belief.is_none() {
            self.check(turn);
        }
    }

    /// Sends a store request for the waiters, if that is of use. Returns whether it did.
    fn ask_for_waiters(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(belief) = &self.belief else {
            let is_time = self.pace.ask_at() <= turn.now;
            let first = self.next_place().filter(|_| is_time).cloned();
            return first.inspect(|place| self.ask_for(place, turn)).is_some();
        };
        let of_holder = self.places.of_token(&belief.holder, belief.user);
        if let Some(place) = of_holder.filter(|it| !self.cut_off.has(it.user)) {
            self.ask_for(&place.clone(), turn);
            return true;
        }
        let rights = &self.rights;
        for request in self.places.take_tries(|user| !rights.is_unauthorized(user)) {
            turn.reply(request, Reply::Nil);
        }
        self.check_unauthorized(turn)
    }

    /// Returns the first place whose user is not cut off from the store.
    pub(super) fn next_place(&self) -> Option<&Place> {
        if self.cut_off.any() {
            return self.places.first_of(|user| !self.cut_off.has(user));
        }
        self.places.first()
    }

    fn ask_for(&mut self, place: &Place, turn: &mut Turn<'_>) {
        if self.is_anothers(place.user, &place.token) {
            // Once a check shows that the other user lost the lock, its lease is gone.
            return self.ask(Question::Check { user: place.user }, None, turn);
        }
        let lease = self.lease_of(place.user, &place.token);
        let fence_at = |lease: &Lease| lease.fence_at.filter(|_| lease.fence.is_some());
        let question = Question::Ask {
            user: place.user,
            token: place.token.clone(),
            lease_ms: place.lease_ms,
            fence: match lease.as_ref().and_then(fence_at) {
                _ if !place.wants_fence() => Fence::No,
                Some(deadline) => Fence::NewUnless(deadline),
                None => Fence::New,
            },
            expects: lease.and_then(|lease| lease.deadline),
            bare: self.is_bare(place, turn.settings),
        };
        self.ask(question, None, turn);
    }

    /// Returns whether the place has the only request for a lock of which nothing is known, without an explicit token,
    /// session or fence, for a lease that is not written back.
    fn is_bare(&self, place: &Place, settings: &Settings) -> bool {
        let session = place.requests.iter().any(|waiting| waiting.session);
        let known = self.armed.is_some() || self.belief.is_some() || self.lease.is_some();
        let alone = self.places.requests() == 1;
        // Without its deadline, a grant that reached no client could not be distinguished from a grant of the same
        // token that the client got elsewhere.
        let plain = !place.explicit && !session && !place.wants_fence();
        alone && plain && !known && !is_wanted_back(false, settings)
    }

    /// Returns the store request that serves this errand. None: nothing is left to do.
    pub(super) fn question_of(
        &self,
        errand: &Errand,
        turn: &Turn<'_>,
    ) -> Option<(Question, Option<(RequestId, Time)>)> {
        match errand {
            // The token does not hold the lock, but the store decides whether its user may know that.
            Errand::Unlock(owner) | Errand::Relock(owner, _)
                if self.is_anothers(owner.user, &owner.token) =>
            {
                Some((Question::Check { user: owner.user }, owner.teller()))
            }
            Errand::Relock(owner, lease_ms) => {
                let (user, token, lease_ms) = (owner.user, owner.token.clone(), *lease_ms);
                let lease = self.lease_of(user, &token);
                let expects = lease.and_then(|lease| lease.deadline);
                let question = Question::Extend {
                    user,
                    token,
                    lease_ms,
                    expects,
                    mark: Mark::None,
                };
                Some((question, owner.teller()))
            }
            Errand::Unlock(owner) => Some((
                self.release(owner.user, &owner.token, None, turn),
                owner.teller(),
            )),
            Errand::GiveAway {
                user,
                token,
                only_if,
            } => {
                let only_if = match (self.lease_of(*user, token), only_if) {
                    // A client came for the lease meanwhile.
                    (Some(lease), _) if lease.receivers > 0 => return None,
                    // The deadline moved since. Either this instance moved it, or another one, where the token is then
                    // in use.
                    (Some(lease), Some(_)) => Some(lease.deadline?),
                    (_, only_if) => *only_if,
                };
                Some((self.release(*user, token, only_if, turn), None))
            }
        }
    }

    /// Returns a handover if the token is known to hold the lock, the next waiter has the same user, and the chain is
    /// not too long; otherwise a release.
    fn release(
        &self,
        user: UserId,
        token: &Token,
        only_if: Option<Deadline>,
        turn: &Turn<'_>,
    ) -> Question {
        let holds = self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.token == *token)
            || self
                .belief
                .as_ref()
                .is_some_and(|belief| belief.holder == *token);
        match self.places.first() {
            Some(next)
                if holds
                    && (next.user == user || planted(Fault::HandedToAnotherUser))
                    && !self.chain.is_long(turn.now, turn.settings) =>
            {
                Question::HandOver {
                    user,
                    from: token.clone(),
                    only_if,
                    to: next.token.clone(),
                    lease_ms: next.lease_ms,
                    fence: next.wants_fence() && !planted(Fault::NoFenceOnHandover),
                }
            }
            _ => Question::Release {
                user,
                token: token.clone(),
                only_if,
            },
        }
    }

    pub(super) fn ask(
        &mut self,
        question: Question,
        teller: Option<(RequestId, Time)>,
        turn: &mut Turn<'_>,
    ) {
        let explicit = match &question {
            Question::Ask { user, token, .. }
            | Question::HandOver {
                user, to: token, ..
            } => self
                .places
                .of_owner(*user, token)
                .is_some_and(|place| place.explicit),
            _ => false,
        };
        let again = match &question {
            Question::Ask { user, token, .. } => {
                self.unsure.remove(&(*user, token.clone())).is_some()
            }
            _ => false,
        };
        let asked = Asked {
            id: QuestionId(0),
            question,
            own: teller.is_none(),
            teller,
            errand: None,
            sent_at: turn.now,
            again,
            on_push: self.pace.pushed(),
            dirty: Vec::new(),
            retry_at: None,
            explicit,
            forgotten: false,
            grace_ms: None,
        };
        self.send(asked, turn);
    }

    pub(super) fn send(&mut self, asked: Asked, turn: &mut Turn<'_>) {
        debug_assert!(self.asked.is_none(), "one question at a time");
        self.questions += 1;
        let id = QuestionId(self.questions);
        // By then the client has an error that leaves the outcome open, and may do something else.
        let within_micros = asked.teller.map(|(_, until)| until.micros_since(turn.now));
        turn.todo.push(Action::Ask {
            id,
            question: asked.question.clone(),
            within_ms: within_micros
                .map_or(turn.settings.answer_within_ms, |it| it.div_ceil(1_000)),
        });
        self.asked = Some(Asked {
            id,
            sent_at: turn.now,
            retry_at: None,
            forgotten: false,
            ..asked
        });
    }
}
