//! What keeps a lease true after it was granted: it is renewed while its session lives, asked about
//! when the store told of a change, and written back when the store lost it. And who is told when
//! a lease that is bound to a connection (`SESSION`) ends.
//!
//! Before anything else a lost lease is written back; a renewal comes before what clients want, or
//! they could keep it waiting until the lease is over.

use super::{Asked, Errand, NOT_NOW_PAUSE_MS, Queue, Restore, Turn};
use crate::lock::{
    fault::{Fault, planted},
    lease::{Lease, renewal},
    vocabulary::{
        Action, Deadline, Ending, Happening, Outcome, Question, Refusal, Reply, RequestId, Time,
        Token, UserId,
    },
};

/// The pause before a lease is written back once more is doubled so often at most: to 51 s.
const MOST_DOUBLED: u32 = 9;

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
        let before = std::mem::replace(&mut self.lease, lease);
        let goes_on = |before: &Lease| {
            let same = |lease: &Lease| lease.is_of(before.user, &before.token);
            self.lease.as_ref().is_some_and(same)
        };
        // Who ended it has told how.
        if let Some(before) = before.as_ref().filter(|before| lost && !goes_on(before)) {
            turn.lease_over(before, before.ending(turn.now));
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

    /// The store lost data.
    pub(super) fn forgot(&mut self, released: Vec<Token>, turn: &Turn<'_>) {
        self.armed = None;
        self.belief = None;
        self.restore = None;
        self.restores_refused = 0;
        self.pace.now();
        if let Some(lease) = &mut self.lease {
            // Others may be granted the lock before it is written back, and then with much the same deadline; or
            // were, if what is there is from before.
            lease.fence_at = None;
            // Whoever releases it does not want it back.
            let released_now = self
                .asked
                .as_ref()
                .is_some_and(|asked| asked.releases(lease.user, &lease.token));
            if lease.is_to_be_written_back(turn.now, turn.settings)
                && (!released_now || planted(Fault::WrittenBackThoughReleased))
            {
                self.restore = Some(Restore {
                    at: turn.now,
                    over: released.clone(),
                });
            } else {
                lease.check_at = Some(turn.now);
            }
        }
        if let Some(asked) = &mut self.asked {
            // What it is answered may be from before the loss, or of a lock that was lost.
            asked.again = true;
            asked.forgotten = Some(released);
        }
    }

    /// Asks what keeps the lease true, if it is time. Returns whether it did.
    pub(super) fn keep_up(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(lease) = &self.lease else {
            self.restore = None;
            return false;
        };
        let (user, token) = (lease.user, lease.token.clone());
        let due = |restore: &mut Restore| restore.at <= turn.now;
        if let Some(Restore { over, .. }) = self.restore.take_if(due)
            && lease.is_to_be_written_back(turn.now, turn.settings)
        {
            let question = Question::Restore {
                user,
                token,
                lease_ms: match planted(Fault::WrittenBackTooShort) {
                    true => 1,
                    // Rounded up, or the store would let it end before its owner does.
                    false => lease.until.micros_since(turn.now).div_ceil(1_000),
                },
                fence: lease.fence,
                over,
            };
            self.ask(question, None, turn);
            return true;
        }
        let renewed = lease.session.is_some() && lease.renew_at <= turn.now;
        if renewed
            && self.restore.is_none()
            && !self.errands.iter().any(|e| e.releases(user, &token))
        {
            let question = Question::Extend {
                user,
                token,
                lease_ms: lease.lease_ms,
                expects: lease.deadline,
            };
            self.ask(question, None, turn);
            return true;
        }
        false
    }

    /// The lease is to be written back now.
    pub(super) fn is_to_restore(&self, now: Time) -> bool {
        self.restore
            .as_ref()
            .is_some_and(|restore| restore.at <= now)
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

    /// When the lease is due for a check or a renewal, unless a question is on its way.
    pub(super) fn upkeep_at(&self) -> Option<Time> {
        let lease = self.lease.as_ref().filter(|_| self.asked.is_none())?;
        let renew_at = match &self.restore {
            Some(restore) => Some(restore.at),
            None => lease.session.map(|_| lease.renew_at),
        };
        [renew_at, self.is_to_be_checked()]
            .into_iter()
            .flatten()
            .min()
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

    pub(super) fn restore_answered(
        &mut self,
        asked: &Asked,
        outcome: Outcome,
        turn: &mut Turn<'_>,
    ) {
        let Question::Restore { lease_ms, over, .. } = &asked.question else {
            return;
        };
        match outcome {
            Outcome::Granted {
                deadline, fresh, ..
            } => {
                if let Some(lease) = &mut self.lease {
                    let ours = fresh || lease.deadline == Some(deadline);
                    lease.deadline = ours.then_some(deadline);
                    lease.over_at = lease.over_at.max(over_at(turn.now, *lease_ms));
                    lease.confirm();
                }
                self.believe_lease(turn);
            }
            Outcome::Held { holder, ttl_ms } => self.held(holder, ttl_ms, turn),
            Outcome::Free => self.free(turn),
            // Tried again until the lease is over, ever less often; meanwhile others get their turn.
            _ => {
                let doubled = self.restores_refused.min(MOST_DOUBLED);
                self.restores_refused += 1;
                self.restore = Some(Restore {
                    at: turn.now.plus_millis(NOT_NOW_PAUSE_MS << doubled),
                    over: over.clone(),
                });
            }
        }
    }

    /// The store lost data while the question was on its way: what it was answered may be from
    /// before, so what it granted is written back.
    pub(super) fn restore_after(
        &mut self,
        mut released: Vec<Token>,
        question: &Question,
        turn: &Turn<'_>,
    ) {
        if let Question::HandOver { from, .. } = question {
            released.push(from.clone());
        }
        if let Some(lease) = &self.lease
            && lease.is_to_be_written_back(turn.now, turn.settings)
        {
            self.restore = Some(Restore {
                at: turn.now,
                over: released,
            });
        }
    }

    /// An extension that has to come after the writing back.
    pub(super) fn extend_later(&mut self, asked: Asked) {
        if let (
            Question::Extend {
                user,
                token,
                lease_ms,
                ..
            },
            Some((request, give_up_at)),
        ) = (asked.question, asked.teller)
        {
            let owner = super::Owner {
                request,
                user,
                token,
                give_up_at,
            };
            self.put_errand_back(Errand::Relock(owner, lease_ms));
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
        &self,
        asked: &Asked,
        (user, token): (UserId, &Token),
        lease_ms: u64,
        deadline: Option<Deadline>,
        fence: Option<u64>,
        now: Time,
    ) -> Lease {
        let before = self.lease_of(user, token);
        Lease {
            user,
            token: token.clone(),
            explicit: before.as_ref().is_none_or(|lease| lease.explicit),
            lease_ms,
            since: before.as_ref().map_or(now, |lease| lease.since),
            until: asked.sent_at.plus_millis(lease_ms),
            over_at: over_at(now, lease_ms),
            deadline,
            how: before.as_ref().and_then(|lease| lease.how),
            receivers: before.as_ref().map_or(0, |lease| lease.receivers),
            place: before.as_ref().and_then(|lease| lease.place),
            fence: fence.or(before.as_ref().and_then(|lease| lease.fence)),
            fence_at: None,
            session: before.and_then(|lease| lease.session),
            renew_at: renewal(asked.sent_at, lease_ms),
            changed: false,
            bare: matches!(asked.question, Question::Ask { bare: true, .. })
                && self.armed.is_none(),
            check_at: None,
        }
    }
}

/// When the store has let a lease end that it began just now at the latest: it may have moved the
/// deadline by 3 ms, and lets keys live to the end of a millisecond.
fn over_at(now: Time, lease_ms: u64) -> Time {
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
        match &self.question {
            Question::Release { user, token, .. } => *user == whose && token == what,
            Question::HandOver { user, from, .. } => *user == whose && from == what,
            _ => false,
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

    pub(super) fn lease_over(&mut self, lease: &Lease, how: Ending) {
        let since = lease.since;
        self.happened(Happening::LeaseOver { since, how });
    }
}
