//! What keeps a lease true after it was granted: it is renewed while its session lives, and asked about
//! when the store told of a change. And who is told when a lease that is bound to a connection
//! (`SESSION`) ends.
//!
//! Before anything else comes what a loss of data brings about (`recovery`); a renewal comes before what
//! clients want, or they could keep it waiting until the lease is over.

use super::{Asked, Errand, Queue, Turn};
use crate::lock::{
    fault::{Fault, planted},
    lease::{Lease, renewal},
    vocabulary::{
        Action, Dead, Deadline, Ending, Happening, MARK_MS, Mark, Outcome, Question, Refusal,
        Reply, RequestId, Time, Token, UserId,
    },
};

impl Queue {
    // ── sessions ─────────────────────────────────────────────────────────────────────────────

    pub(super) fn session_closed(
        &mut self,
        request: RequestId,
        user: UserId,
        token: &Token,
        by_client: bool,
        turn: &mut Turn<'_>,
    ) {
        let bound = |lease: &&mut Lease| lease.is_of(user, token) && lease.session == Some(request);
        let Some(lease) = self.lease.as_mut().filter(bound) else {
            return;
        };
        lease.session = planted(Fault::RenewalOutlivesSession).then_some(request);
        turn.session_over(request, false);
        if by_client && !planted(Fault::SessionNotReleased) {
            lease.receivers = 0;
            // Its client knows the token, and may go on with it at another gate.
            lease.explicit = true;
            self.give_back();
        }
    }

    /// A session's lease that could not be renewed in time: the store may soon let it end.
    pub(super) fn tell_of_late_renewal(&mut self, turn: &mut Turn<'_>) {
        let late =
            |lease: &&mut Lease| lease.lost_at() <= turn.now && !planted(Fault::LateRenewalNotTold);
        if let Some(lease) = self.lease.as_mut().filter(late)
            && let Some(request) = lease.session.take()
        {
            lease.receivers = 0;
            lease.explicit = true;
            turn.session_over(request, true);
            self.give_back();
        }
    }

    /// Nobody is there for the lease any more.
    fn give_back(&mut self) {
        if let Some(lease) = self.lease.clone() {
            self.give_away(&lease);
        }
    }

    /// The books have this lease from now on, or none. Whose connection the one before it was
    /// bound to is told so.
    pub(super) fn put_lease(&mut self, lease: Option<Lease>, lost: bool, turn: &mut Turn<'_>) {
        if lease.is_some() {
            // What waited for its token to come has it.
            self.errands.wake(|_| true);
        }
        let before = std::mem::replace(&mut self.lease, lease);
        let goes_on = |before: &Lease| {
            let same = |lease: &Lease| lease.is_of(before.user, &before.token);
            self.lease.as_ref().is_some_and(same)
        };
        // Who ended it has told how.
        if let Some(before) = before.as_ref().filter(|before| lost && !goes_on(before)) {
            turn.lease_over(before, before.ending(turn.now));
            turn.lost_token(before);
        }
        let bound = self.lease.as_ref().and_then(|lease| lease.session);
        if let Some(request) = before.and_then(|lease| lease.session)
            && bound != Some(request)
            && !(lost && planted(Fault::LossNotTold))
        {
            turn.session_over(request, lost);
        }
    }

    // ── what is asked for its sake ───────────────────────────────────────────────────────────

    /// Asks what keeps the lease true, if it is time. Returns whether it did.
    pub(super) fn keep_up(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.recover(turn) {
            return true;
        }
        let Some(lease) = &self.lease else {
            return false;
        };
        let (user, token) = (lease.user, lease.token.clone());
        let renewed = lease.session.is_some() && lease.renew_at <= turn.now;
        if renewed
            && self.restore_at.is_none()
            && !self.cut_off.has(user)
            && !self.errands.iter().any(|e| e.releases(user, &token))
        {
            let question = Question::Extend {
                user,
                token,
                lease_ms: lease.lease_ms.max(turn.settings.min_session_ms),
                expects: lease.deadline,
                mark: match lease.renewal_unknown {
                    true => Mark::Found,
                    false => Mark::Kept,
                },
            };
            self.ask(question, None, turn);
            return true;
        }
        false
    }

    /// Asks whether the lease still stands, if it is time and nobody who waits will ask anyway.
    pub(super) fn check(&mut self, turn: &mut Turn<'_>) {
        if let Some(lease) = &self.lease
            && self.is_to_be_checked().is_some_and(|at| at <= turn.now)
        {
            let user = lease.user;
            self.ask(Question::Check { user }, None, turn);
        }
    }

    /// When the lease is due for a check or a renewal, or the lock for a look, unless a question is on its way.
    pub(super) fn upkeep_at(&self) -> Option<Time> {
        if self.asked.is_some() {
            return None;
        }
        let lease = self.lease.as_ref();
        let renewed = |lease: &Lease| {
            let linked_at = self.cut_off.until(lease.user).unwrap_or_default();
            lease.session.map(|_| lease.renew_at.max(linked_at))
        };
        let renew_at = lease.and_then(|lease| self.restore_at.or(renewed(lease)));
        let due = [renew_at, self.is_to_be_checked(), self.look_at()];
        due.into_iter().flatten().min()
    }

    fn is_to_be_checked(&self) -> Option<Time> {
        let lease = self.lease.as_ref().filter(|_| self.places.is_empty())?;
        lease.check_at
    }

    // ── and what the store answers ───────────────────────────────────────────────────────────

    pub(super) fn check_answered(&mut self, asked: &Asked, outcome: Outcome, turn: &mut Turn<'_>) {
        let user = asked.question.user();
        // Whoever wants to be told has a token that is another user's.
        self.tell(
            asked,
            match &outcome {
                Outcome::Refused(error) => Reply::Refused(Refusal::Store(error.clone())),
                _ => Reply::NotHeld,
            },
            turn,
        );
        match outcome {
            Outcome::Held { holder, ttl_ms } => self.held(holder, ttl_ms, turn),
            Outcome::Free => self.free(turn),
            refused => {
                if let Outcome::Refused(error) = refused {
                    self.store_refused(user, &error, turn);
                }
                // Its user may not look, so no push comes either: the lease ends by itself.
                if let Some(lease) = self.lease.as_mut().filter(|lease| lease.user == user) {
                    lease.confirm();
                }
            }
        }
    }

    /// An extension that has to come after the writing back.
    pub(super) fn extend_later(&mut self, asked: Asked) {
        if let (Some(errand), Some(_)) = (asked.errand, asked.teller) {
            self.errands.put_back(*errand);
        }
        // A renewal is due still.
    }

    // ── the books ────────────────────────────────────────────────────────────────────────────

    /// Where this gate granted or extended a lease that is not over: when its token first got the lock.
    pub fn held_since(&self) -> Option<Time> {
        self.lease.as_ref().map(|lease| lease.since)
    }

    /// The lease of a token that was just granted it or had it extended.
    pub(super) fn new_lease(
        &mut self,
        asked: &Asked,
        (user, token): (UserId, &Token),
        lease_ms: u64,
        deadline: Option<Deadline>,
        fence: Option<u64>,
        now: Time,
    ) -> Lease {
        let before = self.lease_of(user, token);
        let longest_ms = match asked.question {
            Question::Extend { mark, .. } if mark != Mark::None => lease_ms + MARK_MS,
            _ => lease_ms,
        };
        // Renewals of leases that began together come apart.
        let sixth = self.pace.jittered(lease_ms / 6);
        Lease {
            user,
            token: token.clone(),
            explicit: before.as_ref().is_none_or(|lease| lease.explicit),
            lease_ms,
            since: before.as_ref().map_or(now, |lease| lease.since),
            until: asked.sent_at.plus_millis(lease_ms),
            over_at: over_at(now, longest_ms),
            deadline,
            how: before.as_ref().and_then(|lease| lease.how),
            receivers: before.as_ref().map_or(0, |lease| lease.receivers),
            place: before.as_ref().and_then(|lease| lease.place),
            fence: fence.or(before.as_ref().and_then(|lease| lease.fence)),
            fence_at: None,
            session: before.and_then(|lease| lease.session),
            renew_at: renewal(asked.sent_at, lease_ms, sixth),
            renewal_unknown: false,
            changed: false,
            bare: matches!(asked.question, Question::Ask { bare: true, .. })
                && self.armed.is_none(),
            check_at: None,
        }
    }
}

/// When the store has let a lease end that it began just now at the latest: it may have moved the
/// deadline by 3 ms, and lets keys live to the end of a millisecond.
pub(super) fn over_at(now: Time, lease_ms: u64) -> Time {
    now.plus_millis(lease_ms.saturating_add(4))
}

impl Errand {
    /// It ends the lease of this owner.
    fn releases(&self, whose: UserId, what: &Token) -> bool {
        match self {
            Self::Unlock(owner) => owner.user == whose && owner.token == *what,
            Self::GiveAway { .. } => self.gives_away(whose, what),
            Self::Relock(..) => false,
        }
    }
}

impl Asked {
    /// It ends the lease of this owner.
    pub(super) fn releases(&self, whose: UserId, what: &Token) -> bool {
        self.released()
            .is_some_and(|(user, token, _)| user == whose && token == what)
    }

    /// The owner whose lease it ends, and up to which deadline.
    pub(super) fn released(&self) -> Option<(UserId, &Token, Option<Deadline>)> {
        match &self.question {
            Question::Release {
                user,
                token,
                only_if,
            }
            | Question::HandOver {
                user,
                from: token,
                only_if,
                ..
            } => Some((*user, token, *only_if)),
            _ => None,
        }
    }
}

impl Turn<'_> {
    fn session_over(&mut self, request: RequestId, lost: bool) {
        self.todo.push(Action::SessionOver { request, lost });
    }

    pub(super) fn happened(&mut self, what: Happening) {
        self.todo.push(Action::Happened(what));
    }

    /// The token of this lease was found not to hold the lock any more. Where this instance does not know
    /// its deadline, another one may have extended it, and knows more.
    fn lost_token(&mut self, lease: &Lease) {
        let counts = lease.deadline.is_some() && lease.over_at > self.now;
        if counts && !planted(Fault::LostForgotten) {
            self.todo.push(Action::Died {
                token: lease.token.clone(),
                dead: Dead {
                    user: lease.user,
                    not_after: lease.deadline,
                },
                over_at: lease.over_at,
                before_loss: false,
            });
        }
    }

    pub(super) fn lease_over(&mut self, lease: &Lease, how: Ending) {
        let since = lease.since;
        self.happened(Happening::LeaseOver { since, how });
    }
}
