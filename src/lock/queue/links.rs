//! Users without a connection to the store. Each user's questions go on a connection of its own, and the store may
//! take other users' connections and not this one's (`maxclients`). A question of such a user is not sent
//! ([`Outcome::NoLink`](crate::lock::Outcome::NoLink)), and the other users of the lock are not kept waiting for it:
//! the user's places and errands are passed over, and keep their order, until it has a connection again.

use std::collections::BTreeMap;

use super::{Asked, NOT_NOW_PAUSE_MS, Queue, Turn};
use crate::lock::{
    fault::{Fault, planted},
    vocabulary::{Question, Time, UserId},
};

/// The users that the store has no connection for, and when to ask for each all the same: the store tells when it has
/// one, but a queue may hear that before it hears of the want.
#[derive(Debug, Default)]
pub(super) struct CutOff(BTreeMap<UserId, Time>);

impl CutOff {
    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Questions of this user cannot be asked now.
    pub(super) fn has(&self, user: UserId) -> bool {
        self.0.contains_key(&user)
    }

    /// The user was answered, or has a connection again.
    pub(super) fn is_back(&mut self, user: UserId) {
        self.0.remove(&user);
    }

    /// From now on it is asked for those whose time has come.
    pub(super) fn expire(&mut self, now: Time) {
        self.0.retain(|_, until| *until > now);
    }

    /// When to ask for the first of them.
    pub(super) fn next_at(&self) -> Option<Time> {
        self.0.values().min().copied()
    }

    /// When to ask for this user.
    pub(super) fn until(&self, user: UserId) -> Option<Time> {
        self.0.get(&user).copied()
    }
}

impl Queue {
    /// When to ask for the first user without a connection, if there is anything to ask.
    pub(super) fn next_cut_off_at(&self) -> Option<Time> {
        self.cut_off.next_at().filter(|_| !self.is_idle())
    }

    /// The store has a connection for this user.
    pub(super) fn linked(&mut self, user: UserId, turn: &mut Turn<'_>) {
        self.cut_off.is_back(user);
        if let Some(asked) = &mut self.asked
            && asked.retry_at.is_some()
            && asked.question.user() == user
            && !planted(Fault::CutOffNotPassed)
        {
            asked.retry_at = Some(turn.now);
            self.retry(turn);
        }
    }

    /// The question was not sent, and others are not to wait for it.
    pub(super) fn not_sent(&mut self, mut asked: Asked, turn: &mut Turn<'_>) {
        let user = asked.question.user();
        let again_at = turn.now.plus_millis(turn.settings.answer_within_ms);
        if planted(Fault::CutOffNotPassed) {
            asked.retry_at = Some(again_at);
            self.asked = Some(asked);
            return;
        }
        self.cut_off.0.insert(user, again_at);
        // What its client was told of already is the gate's own affair.
        let errand = asked
            .errand
            .take_if(|_| asked.teller.is_some() && !asked.again);
        match (&asked.question, errand) {
            (_, Some(errand)) => self.errands.put_back(*errand),
            (Question::Ask { .. }, _) => {
                self.doubt(&asked);
                self.left();
            }
            // A lease whose user has no connection ends by itself.
            (Question::Check { .. }, _) if asked.teller.is_none() => {
                self.look_later(again_at);
                if let (None, Some(lease)) = (&self.belief, &mut self.lease) {
                    lease.check_at = Some(again_at);
                }
            }
            (Question::Restore { .. }, _) => self.restore_at = Some(again_at),
            (Question::Bury { .. }, _) => self.look_later(again_at),
            // A renewal stays due.
            (Question::Extend { .. }, _) if asked.teller.is_none() => {}
            // A first sending may have been done: what becomes of it is asked until it is known.
            _ => {
                asked.retry_at = Some(turn.now.plus_millis(NOT_NOW_PAUSE_MS));
                self.asked = Some(asked);
            }
        }
    }
}
