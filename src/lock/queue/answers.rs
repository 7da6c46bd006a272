//! The handling of the store's replies: which token holds the lock now, under which lease of this instance, how long
//! that is believed, and which clients get a reply.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    Asked, Belief, Dirty, Errand, Maker, NO_ANSWER, NOT_NOW_PAUSE_MS, Queue, Turn, errands::News,
};
use crate::lock::{
    fault::{Fault, planted},
    lease::Lease,
    vocabulary::{
        Action, Answer, Dead, Deadline, Ending, Fence, Happening, How, Mark, Outcome, Question,
        Refusal, Reply, Time, Token, UserId,
    },
};

/// How long a token that was released here and granted elsewhere is remembered, in milliseconds.
const FOREIGN_LEASE_MS: u64 = 60_000;

/// The number of rivals at one lock that an operator should know of.
const CROWD: u32 = 8;

/// The difference from which two readings of a key's expiry mean that its deadline was moved, in milliseconds.
const SAME_DEADLINE_MS: u64 = 20;

impl Queue {
    pub(super) fn answered(
        &mut self,
        mut asked: Asked,
        answer: Answer,
        dead: Option<Dead>,
        turn: &mut Turn<'_>,
    ) {
        let Answer {
            mut outcome,
            armed,
            grace_ms,
        } = answer;
        asked.grace_ms = grace_ms;
        if asked.own && matches!(asked.question, Question::Extend { .. }) {
            let renewed = matches!(outcome, Outcome::Granted { .. });
            turn.happened(match renewed {
                true => Happening::Renewed,
                false => Happening::NotRenewed,
            });
        }
        if !matches!(outcome, Outcome::NoLink) {
            self.cut_off.is_back(asked.question.user());
        }
        if let Outcome::WrongType(error) = outcome {
            // Another client put something else in the place of the lock.
            self.belief = None;
            self.lose_lease(turn);
            outcome = Outcome::Refused(error);
        }
        match outcome {
            Outcome::NoLink => {
                let dirty = asked.dirty.clone();
                self.not_sent(asked, turn);
                return self.heed(&dirty, turn);
            }
            Outcome::Unknown => {
                let dirty = asked.dirty.clone();
                self.ask_again(asked, turn);
                return self.heed(&dirty, turn);
            }
            Outcome::NotYet { ms } => {
                let dirty = asked.dirty.clone();
                self.ask_after_grace(asked, ms, turn);
                return self.heed(&dirty, turn);
            }
            Outcome::NotNow(error) => return self.ask_later(asked, error, turn),
            Outcome::Free if matches!(asked.question, Question::Ask { .. }) => {
                // This reply does not fit the request: the store does not work as it should.
                return self.ask_later(asked, Bytes::from_static(NO_ANSWER), turn);
            }
            Outcome::Granted { .. }
            | Outcome::Held { .. }
            | Outcome::Free
            | Outcome::WrongType(_)
            | Outcome::Refused(_) => {
                self.trouble = None;
            }
        }
        if let (Some(dead), Outcome::Held { holder, .. }) = (dead, &outcome)
            && let Some(token) = holder
        {
            self.found_dead(&asked, token, dead);
        }
        let (user, refused) = (
            asked.question.user(),
            matches!(outcome, Outcome::Refused(_)),
        );
        // The belief was read on another connection, whose pushes may be lost.
        let stale = !planted(Fault::StaleBelief)
            && armed.is_some()
            && armed != self.armed
            && matches!(outcome, Outcome::Held { holder: None, .. });
        if armed.is_some() {
            self.armed = armed;
        }
        let dirty = std::mem::take(&mut asked.dirty);
        let news = News::of(&asked, &outcome);
        let forgotten = asked.forgotten;
        match &asked.question {
            Question::Ask { .. } => self.ask_answered(&asked, outcome, turn),
            Question::HandOver { .. } => self.handover_answered(asked, outcome, turn),
            Question::Release { .. } => self.release_answered(&asked, outcome, turn),
            Question::Extend { .. } => self.extend_answered(asked, outcome, turn),
            Question::Check { .. } => self.check_answered(&asked, outcome, turn),
            Question::Restore { .. } => self.restore_answered(&asked, outcome, turn),
            Question::Bury { .. } => self.bury_answered(outcome, turn),
        }
        if !refused {
            self.store_answered(user, armed, turn);
        }
        self.settle_errands(&news, turn);
        if forgotten {
            self.restore_after(user, grace_ms, turn);
        }
        if stale {
            self.belief = None;
            self.pace.now();
            if let Some(lease) = &mut self.lease {
                lease.check_at = Some(turn.now);
            }
        }
        self.heed(&dirty, turn);
    }

    /// Applies what connections reported while a store request was in flight that got its reply or was dropped. The
    /// lock changed after that reply or just before; only the store knows.
    pub(super) fn heed(&mut self, dirty: &[Dirty], turn: &Turn<'_>) {
        if let Some(&Dirty { link, ask_at }) = dirty.iter().find(|d| self.armed == Some(d.link))
            && self.belief.is_some()
        {
            self.changed(link, ask_at, turn);
            // A push from the time of the request may be older than the reply.
            self.told_of = None;
        }
    }

    /// Sends a request again after the connection broke: the store may have executed it or not. Each request may be
    /// sent twice, as long as the client or lease that it serves is still there.
    fn ask_again(&mut self, mut asked: Asked, turn: &mut Turn<'_>) {
        asked.again = true;
        // The next connection may lead to a store that lacks data.
        if let Question::Ask { fence, .. } = &mut asked.question
            && let Fence::NewUnless(_) = fence
        {
            *fence = Fence::New;
        }
        if let (
            Question::Extend {
                mark: Mark::Kept | Mark::Found,
                ..
            },
            Some(lease),
        ) = (&asked.question, &mut self.lease)
        {
            lease.renewal_unknown = true;
        }
        if asked.teller.is_none() || !planted(Fault::UnlockNotAskedAgain) {
            self.ask_again_unless_gone(asked, turn);
        }
    }

    /// Records that the token of a request may hold the lock: the request is not sent again, but the store may have
    /// executed an earlier sending.
    pub(super) fn doubt(&mut self, asked: &Asked) {
        if let Question::Ask { user, token, .. }
        | Question::HandOver {
            user, to: token, ..
        } = &asked.question
            && asked.again
        {
            let maker = match asked.explicit {
                true => Maker::Client,
                false => Maker::Lockgate,
            };
            self.unsure.insert((*user, token.clone()), maker);
        }
    }

    /// Takes back the locks that may be held for no client. A token that a client named may be in use at another
    /// instance by now, and is left to its lease.
    pub(super) fn take_back_unsure(&mut self, turn: &Turn<'_>) {
        let unsure = std::mem::take(&mut self.unsure);
        let is_there =
            |(user, token): &(UserId, Token)| self.places.of_owner(*user, token).is_some();
        let (there, gone) = unsure.into_iter().partition(|(owner, _)| is_there(owner));
        self.unsure = there;
        let gone: BTreeMap<_, _> = gone;
        for ((user, token), maker) in gone {
            if maker == Maker::Client || planted(Fault::UnknownIsNotDone) {
                continue;
            }
            // The store may yet execute a request that was given up, so the queue releases the token once more by then.
            let again_at = turn.now.plus_millis(turn.settings.answer_within_ms);
            self.late.push_back((again_at, user, token.clone()));
            self.errands.put(Errand::GiveAway {
                user,
                token,
                only_if: None,
            });
        }
    }

    /// Puts off a request until the grace of a store that lost data is over, when other instances have written back
    /// what they granted; or sends it anew if it waited for a connection. A handover becomes a release.
    fn ask_after_grace(&mut self, asked: Asked, ms: u64, turn: &mut Turn<'_>) {
        if matches!(asked.question, Question::HandOver { .. }) {
            return self.release_instead(asked, turn);
        }
        let ask_at = turn.now.plus_millis(ms);
        if matches!(asked.question, Question::Ask { .. }) {
            self.belief = None;
            self.pace.at(ask_at);
            self.doubt(&asked);
            self.left();
        } else {
            // Only acquisitions take a free lock, but a more careful store has its way.
            self.asked = Some(Asked {
                retry_at: Some(ask_at),
                ..asked
            });
        }
    }

    /// Puts off a request that the store did not execute, and retries it for a client that is still there then.
    fn ask_later(&mut self, asked: Asked, error: Bytes, turn: &Turn<'_>) {
        self.trouble = Some(error);
        let retry_at = Some(turn.now.plus_millis(NOT_NOW_PAUSE_MS));
        self.asked = Some(Asked { retry_at, ..asked });
    }

    fn ask_answered(&mut self, asked: &Asked, outcome: Outcome, turn: &mut Turn<'_>) {
        let Question::Ask {
            user,
            token,
            lease_ms,
            fence: asked_fence,
            bare,
            ..
        } = &asked.question
        else {
            return;
        };
        match outcome {
            Outcome::Granted {
                deadline,
                fresh,
                fence,
            } => {
                let again = self.lease_of(*user, token).is_some();
                // No new fence comes if the token keeps the fence it has.
                let is_sure = fence.is_some() || matches!(asked_fence, Fence::NewUnless(_));
                let fence_at = is_sure.then_some(deadline);
                if !again {
                    // The owner's own place is still among them.
                    let others = self.places.len().saturating_sub(1);
                    let rivals = self.pace.turn_begins();
                    if rivals >= CROWD {
                        turn.happened(Happening::Crowded { rivals });
                    }
                    self.chain.begin(turn.now, others);
                }
                // Another instance may have granted the lock to a token that held it already, but not to a token that
                // lockgate made and gave no client.
                let ours = fresh || (asked.again && !again && !asked.explicit && !bare);
                let deadline = ours.then_some(deadline);
                let mut lease =
                    self.new_lease(asked, (*user, token), *lease_ms, deadline, fence, turn.now);
                lease.fence_at = fence_at;
                if !again && (fresh || *bare || asked.again) {
                    lease.how = Some(How::Free);
                }
                self.granted(asked, lease, turn);
            }
            Outcome::Held { holder, ttl_ms } => {
                let is_ours = |lease: &Lease| Some(&lease.token) == holder.as_ref();
                if !self.lease.as_ref().is_some_and(is_ours) {
                    turn.happened(Happening::InVain {
                        on_push: asked.on_push,
                    });
                    self.chain.found_held();
                }
                self.pace.in_vain(asked.on_push);
                self.held(holder, ttl_ms, turn);
            }
            Outcome::Refused(error) => {
                for waiting in self
                    .places
                    .take(*user, token)
                    .map_or(Vec::new(), |(_, p)| p.requests)
                {
                    turn.reply(
                        waiting.request,
                        Reply::Refused(Refusal::Store(error.clone())),
                    );
                }
                self.doubt(asked);
                // The store may refuse the fence but not the lock.
                if *asked_fence == Fence::No {
                    self.refuse_earlier(*user, asked.sent_at, &error, turn);
                }
                self.left();
            }
            _ => debug_assert!(false, "no answer to this question"),
        }
    }

    fn handover_answered(&mut self, asked: Asked, outcome: Outcome, turn: &mut Turn<'_>) {
        let Question::HandOver {
            user, to, lease_ms, ..
        } = &asked.question
        else {
            return;
        };
        match outcome {
            Outcome::Granted {
                deadline,
                fresh,
                fence,
            } => {
                self.tell(&asked, Reply::Done, turn);
                self.chain.hand_over();
                self.released(&asked, Ending::HandedOver, turn);
                let fence_at = fence.map(|_| deadline);
                let ours = fresh || (asked.again && !asked.explicit);
                let deadline = ours.then_some(deadline);
                let mut lease =
                    self.new_lease(&asked, (*user, to), *lease_ms, deadline, fence, turn.now);
                lease.fence_at = fence_at;
                lease.how = Some(How::Handover);
                self.granted(&asked, lease, turn);
            }
            Outcome::Held { holder, ttl_ms } => {
                self.not_released(&asked, turn);
                self.held(holder, ttl_ms, turn);
            }
            Outcome::Free => {
                self.not_released(&asked, turn);
                self.free(turn);
            }
            // The user may not grant the lock to the next waiter, or the store accepts no more writes.
            Outcome::Refused(_) => self.release_instead(asked, turn),
            _ => debug_assert!(false, "asked again"),
        }
    }

    /// Releases a lock that cannot be handed over; the next waiter then requests it.
    fn release_instead(&mut self, asked: Asked, turn: &mut Turn<'_>) {
        let released = asked.released();
        let Some((user, token, only_if)) = released.map(|(user, it, at)| (user, it.clone(), at))
        else {
            return;
        };
        self.doubt(&asked);
        let question = Question::Release {
            user,
            token,
            only_if,
        };
        self.send(Asked { question, ..asked }, turn);
    }

    fn release_answered(&mut self, asked: &Asked, outcome: Outcome, turn: &mut Turn<'_>) {
        let Question::Release { token, .. } = &asked.question else {
            return;
        };
        match outcome {
            Outcome::Free => {
                self.tell(asked, Reply::Done, turn);
                self.released(asked, Ending::Released, turn);
                self.free(turn);
                if !self.places.is_empty() && self.chain.is_long(turn.now, turn.settings) {
                    turn.happened(Happening::Yielded);
                    let pause_ms = self.chain.pause_ms(turn.now, turn.settings);
                    self.pace.pause(turn.now, pause_ms);
                }
            }
            Outcome::Held { .. } | Outcome::Granted { .. } => {
                if self
                    .belief
                    .as_ref()
                    .is_some_and(|belief| belief.holder == *token)
                {
                    self.belief = None;
                    self.pace.now();
                }
                self.not_released(asked, turn);
            }
            Outcome::Refused(error) => {
                self.tell(asked, Reply::Refused(Refusal::Store(error)), turn);
            }
            _ => debug_assert!(false, "asked again"),
        }
    }

    fn extend_answered(&mut self, asked: Asked, outcome: Outcome, turn: &mut Turn<'_>) {
        match outcome {
            Outcome::Granted {
                deadline, fresh, ..
            } => self.extended(&asked, deadline, fresh, turn),
            // The lease is written back first, and then the token holds the lock again.
            Outcome::Held { .. } | Outcome::Free if self.waits_for_write_back_of(&asked) => {
                self.extend_later(asked);
            }
            Outcome::Held { holder, ttl_ms } => {
                self.not_extended(&asked, turn);
                self.held(holder, ttl_ms, turn);
            }
            Outcome::Free => {
                self.not_extended(&asked, turn);
                self.free(turn);
            }
            Outcome::Refused(error) => {
                self.tell(&asked, Reply::Refused(Refusal::Store(error)), turn);
                if let (None, Some(lease)) = (asked.teller, &mut self.lease) {
                    // The queue retries until the lease is over.
                    lease.renew_at = match planted(Fault::RenewalStopsAtError) {
                        true => lease.over_at,
                        false => turn.now.plus_millis(lease.renewal_pause_ms()),
                    };
                }
            }
            _ => debug_assert!(false, "asked again"),
        }
    }

    /// Reports that the token does not hold the lock, unless another instance may yet write it back.
    fn not_extended(&mut self, asked: &Asked, turn: &mut Turn<'_>) {
        let here = match &asked.question {
            Question::Extend { user, token, .. } => self.lease_of(*user, token).is_some(),
            _ => false,
        };
        if here || !self.may_yet_come(asked, turn) {
            self.tell(asked, Reply::NotHeld, turn);
        }
    }

    /// Records that the lease began anew, for a client that requested it or as a renewal.
    fn extended(&mut self, asked: &Asked, deadline: Deadline, fresh: bool, turn: &mut Turn<'_>) {
        let Question::Extend {
            user,
            token,
            lease_ms,
            expects,
            ..
        } = &asked.question
        else {
            return;
        };
        let before = self.lease_of(*user, token);
        let is_bound = before.as_ref().is_some_and(|lease| lease.session.is_some());
        // If the deadline was not set here, the token may be in use at another instance, too. But a client that extends
        // the lease here claims it for this instance, unless the lease is bound to a session.
        let relocked = asked.teller.is_some() && !is_bound;
        let stood =
            before.is_some_and(|lease| lease.fence_at.is_some() && lease.fence_at == *expects);
        let fence_at = (fresh && stood).then_some(deadline);
        let deadline = (fresh || relocked).then_some(deadline);
        let mut lease = self.new_lease(asked, (*user, token), *lease_ms, deadline, None, turn.now);
        lease.fence_at = fence_at;
        if asked.teller.is_some() {
            let over = turn.now >= lease.until;
            let reply = if over {
                Reply::Refused(Refusal::Expired)
            } else {
                Reply::Done
            };
            self.tell(asked, reply, turn);
            // A client that extends the lease counts on it.
            lease.receivers += 1;
        } else if lease.receivers == 0 {
            // Its session ended meanwhile.
            self.give_away(&lease);
        }
        self.put_lease(Some(lease), true, turn);
        self.believe_lease(turn);
    }

    /// Handles a release that found that the token does not hold the lock.
    fn not_released(&mut self, asked: &Asked, turn: &mut Turn<'_>) {
        let Some((user, token, _)) = asked.released() else {
            return;
        };
        let (user, token) = (user, token.clone());
        let lease = self.lease_of(user, &token);
        if lease.is_none() && self.may_yet_come(asked, turn) {
            return;
        }
        // The token is gone by an earlier sending of this request, or by the loss of data after which the lease was to
        // be written back.
        let by_us = asked.again || (self.restore_at.is_some() && lease.is_some());
        let reply = match &lease {
            _ if !by_us => Reply::NotHeld,
            Some(lease) if turn.now < lease.until => Reply::Done,
            _ => Reply::Refused(Refusal::Upstream),
        };
        self.tell(asked, reply, turn);
        if let Some(lease) = lease {
            let how = match by_us {
                true => Ending::Released,
                false => lease.ending(turn.now),
            };
            // The lease was lost before, and its client gives it up now.
            self.released(asked, how, turn);
        }
    }

    pub(super) fn tell(&self, asked: &Asked, reply: Reply, turn: &mut Turn<'_>) {
        if let Some((request, _)) = asked.teller {
            turn.reply(request, reply);
        }
    }

    // ── consequences for this instance's state ───────────────────────────────────────────────────

    /// Records that the token holds the lock, and replies to all requests at its place.
    fn granted(&mut self, asked: &Asked, mut lease: Lease, turn: &mut Turn<'_>) {
        let (user, token) = (lease.user, lease.token.clone());
        self.unsure.remove(&(user, token.clone()));
        lease.explicit = asked.explicit;
        let over = turn.now >= lease.until && !planted(Fault::ExpiredDelivered);
        let place = self.places.of_owner(user, &token);
        let wants_more = |place: &super::Place| {
            place.lease_ms != lease.lease_ms
                || (place.wants_fence() && lease.sure_fence().is_none())
        };
        if place.is_some_and(wants_more) {
            // A request joined meanwhile and wants another lease or a fence: the queue requests the lock once more, as
            // the holder.
        } else if let Some((no, place)) = self.places.take(user, &token) {
            lease.explicit = place.explicit;
            lease.place = Some(no);
            let latest = place.requests.last().filter(|last| last.session && !over);
            lease.session = latest.map(|last| last.request);
            let joined = place
                .requests
                .len()
                .min(match planted(Fault::JoinedNotAnswered) {
                    true => 1,
                    false => usize::MAX,
                });
            for waiting in &place.requests[..joined] {
                let reply = if over {
                    Reply::Refused(Refusal::Expired)
                } else {
                    lease.receivers += 1;
                    Reply::Granted {
                        token: token.clone(),
                        until: lease.until,
                        since: lease.since,
                        fence: lease.sure_fence().filter(|_| waiting.fence),
                        session: lease.session == Some(waiting.request),
                        how: match lease.how.take() {
                            Some(How::Free) if self.held_at >= waiting.since => How::Waited,
                            how => how.unwrap_or(How::Again),
                        },
                    }
                };
                turn.reply(waiting.request, reply);
            }
        }
        self.pace.granted();
        let nobody = lease.receivers == 0 && self.places.of_owner(user, &token).is_none();
        if nobody && !planted(Fault::GoneGrantKept) {
            self.give_away(&lease);
        }
        let lost = self.lease_of(user, &token).is_none();
        self.put_lease(Some(lease), lost, turn);
        self.believe_lease(turn);
    }

    pub(super) fn believe_lease(&mut self, turn: &mut Turn<'_>) {
        if let Some(lease) = &self.lease {
            let (holder, user, over_at) = (lease.token.clone(), lease.user, lease.over_at);
            self.believe(holder, Some(user), Some(over_at), turn);
        }
    }

    /// Records the holder that the store reported. Without one the lock counts as free.
    pub(super) fn held(&mut self, holder: Option<Token>, ttl_ms: Option<u64>, turn: &mut Turn<'_>) {
        let Some(holder) = holder else {
            return self.free(turn);
        };
        match &mut self.lease {
            Some(lease) if lease.token == holder => lease.confirm(),
            _ => self.lose_lease(turn),
        }
        let user = self.lease.as_ref().map(|lease| lease.user);
        let before = self.told_of.take().filter(|before| before.holder == holder);
        // At exactly its time to live a key still exists.
        let over_at = ttl_ms.map(|ttl| {
            turn.now
                .plus_millis(ttl.saturating_add(u64::from(!planted(Fault::TimerAtTtl))))
        });
        let is_same = |(before, now): (Time, Time)| {
            before.millis_since(now).max(now.millis_since(before)) < SAME_DEADLINE_MS
        };
        let before = before.and_then(|before| before.over_at);
        if before.zip(over_at).is_some_and(is_same) {
            turn.happened(Happening::ToldOfNothing);
        }
        self.believe(holder, user, over_at, turn);
    }

    fn believe(
        &mut self,
        holder: Token,
        user: Option<UserId>,
        over_at: Option<Time>,
        turn: &mut Turn<'_>,
    ) {
        let settings = turn.settings;
        let ask_again_at = match self.armed {
            Some(_) => turn.now.plus_millis(settings.ask_at_least_every_ms),
            None => {
                let micros = self.pace.jittered(settings.poll_every_ms);
                Time::from_micros(turn.now.micros().saturating_add(micros))
            }
        };
        let until = over_at.map_or(ask_again_at, |over_at| over_at.min(ask_again_at));
        self.told_of = None;
        self.belief = Some(Belief {
            holder,
            user,
            over_at,
            until,
        });
        self.refuse_deadlocked(turn);
    }

    /// Records that the lock is free.
    pub(super) fn free(&mut self, turn: &mut Turn<'_>) {
        self.belief = None;
        self.told_of = None;
        self.pace.now();
        self.lose_lease(turn);
    }

    /// Drops the lease, which does not hold the lock, unless it is to be written back.
    fn lose_lease(&mut self, turn: &mut Turn<'_>) {
        match &mut self.lease {
            Some(lease) if self.restore_at.is_some() => lease.check_at = None,
            _ => self.put_lease(None, true, turn),
        }
    }

    /// Records that the token that the request was to release does not hold the lock any more.
    fn released(&mut self, asked: &Asked, how: Ending, turn: &mut Turn<'_>) {
        let Some((user, token, not_after)) = asked.released() else {
            return;
        };
        let token = token.clone();
        let lease = self.lease_of(user, &token);
        if !planted(Fault::ReleasedForgotten) {
            // A client may use its own token again elsewhere, though it should not. A token that lockgate made is
            // dead at any deadline.
            let named = lease.as_ref().filter(|lease| lease.explicit);
            let set_here = named.and_then(|lease| lease.deadline);
            let not_after = not_after
                .or(set_here)
                .filter(|_| !planted(Fault::BuriedWhateverDeadline));
            let longest = lease.as_ref().and_then(Lease::longest);
            let shortened = lease.as_ref().and_then(|lease| lease.shortened_from);
            let or_at = shortened.map(|(deadline, _)| deadline);
            let foreign = turn.now.plus_millis(FOREIGN_LEASE_MS);
            turn.todo.push(Action::Died {
                token: token.clone(),
                dead: Dead {
                    user,
                    not_after,
                    or_at,
                },
                over_at: longest
                    .map(|(_, over_at)| over_at)
                    .or(lease.map(|lease| lease.over_at))
                    .unwrap_or(foreign),
                before_loss: asked.forgotten || asked.grace_ms.is_some(),
            });
        }
        self.end_lease_of(user, &token, how, turn);
        if let Some(ms) = asked.grace_ms {
            // Another instance that granted the token may not know of its end, and write it back.
            self.look_again(user, ms, turn);
        }
    }

    /// Ends a lease that its client gave up or does not count on.
    fn end_lease_of(&mut self, user: UserId, token: &Token, how: Ending, turn: &mut Turn<'_>) {
        let kept = self.restore_at.is_some() && planted(Fault::WrittenBackThoughReleased);
        if let Some(lease) = self.lease_of(user, token).filter(|_| !kept) {
            turn.lease_over(&lease, how);
            self.put_lease(None, false, turn);
        }
    }
}
