//! Who may know anything of the lock. Whether a user may is the store's to say, and it says so whenever
//! it answers or refuses a question of that user. But whoever waits behind others is not asked for yet,
//! and a lock that is known to be held is not asked about: there the store is asked on purpose, once for
//! each user and the time that somebody of it waits here. Until then the user is a stranger, who is told
//! nothing: not that the lock is held, nor that too many wait for it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{Queue, Turn};
use crate::lock::{
    fault::{Fault, planted},
    vocabulary::{LinkId, Question, Refusal, Reply, Time, UserId, Wait},
};

/// Who does not wait (`TRYLOCK`) is told that the lock is held if the store answered a question of its
/// user no longer ago than this, in milliseconds: to try again and again does not cost a question each time.
const KNOWN_FOR_MS: u64 = 1_000;

/// Users that are remembered beside those who wait, so that forgetting the others costs little.
const REMEMBERED: usize = 64;

/// What is known of the rights of users.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// When the store answered a question of the user last, and on which connection.
    answered: BTreeMap<UserId, (Time, Option<LinkId>)>,
    /// Users for whom somebody waits, and whom the store has not answered; in the order they came.
    strangers: VecDeque<UserId>,
}

impl Rights {
    /// A connection ended. Perhaps its user has, too.
    pub(super) fn deaf(&mut self, link: LinkId) {
        self.answered.retain(|_, (_, on)| *on != Some(link));
    }

    /// The user is not to be told anything yet.
    pub(super) fn is_stranger(&self, user: UserId) -> bool {
        self.strangers.contains(&user)
    }
}

impl Queue {
    /// The user may know of the lock.
    pub(super) fn knows(&self, user: UserId, wait: Wait, now: Time) -> bool {
        let Some((at, _)) = self.rights.answered.get(&user) else {
            return false;
        };
        let lately = at.plus_millis(KNOWN_FOR_MS) > now;
        let waits_already = wait != Wait::No && self.has_business(user);
        (lately || waits_already) && !self.rights.is_stranger(user)
    }

    /// Somebody of this user waits here, or holds the lock by a grant of this gate.
    fn has_business(&self, user: UserId) -> bool {
        self.places.has_user(user) || self.lease.as_ref().is_some_and(|lease| lease.user == user)
    }

    /// A request of a user who does not know of the lock takes its place.
    pub(super) fn comes_as_a_stranger(&mut self, user: UserId, now: Time) {
        if planted(Fault::StrangersNotAsked) || self.rights.is_stranger(user) {
            return;
        }
        self.rights.answered.remove(&user);
        self.rights.strangers.push_back(user);
        if self.rights.answered.len() > REMEMBERED + 2 * self.places.users() {
            let answered = std::mem::take(&mut self.rights.answered);
            let known = answered.into_iter().filter(|(user, (at, _))| {
                at.plus_millis(KNOWN_FOR_MS) > now || self.has_business(*user)
            });
            self.rights.answered = known.collect();
        }
    }

    /// The next user that the store has to be asked about, and can be.
    fn next_stranger(&mut self) -> Option<UserId> {
        // Some left meanwhile.
        while let Some(&user) = self.rights.strangers.front()
            && !self.places.waits(user)
        {
            self.rights.strangers.pop_front();
        }
        let mut strangers = self.rights.strangers.iter().copied();
        strangers.find(|user| self.places.waits(*user) && !self.cut_off.has(*user))
    }

    /// Asks whether the next stranger may know of the lock, if there is one. Returns whether it did.
    pub(super) fn ask_about_strangers(&mut self, turn: &mut Turn<'_>) -> bool {
        let stranger = self.next_stranger();
        if let Some(user) = stranger {
            self.ask(Question::Check { user }, None, turn);
        }
        stranger.is_some()
    }

    /// The store answered a question of this user.
    pub(super) fn store_answered(
        &mut self,
        user: UserId,
        link: Option<LinkId>,
        turn: &mut Turn<'_>,
    ) {
        let answered = &mut self.rights.answered;
        // Not every answer tells the connection.
        let link = link.or(answered.get(&user).and_then(|(_, before)| *before));
        answered.insert(user, (turn.now, link));
        if !self.rights.is_stranger(user) {
            return;
        }
        self.rights.strangers.retain(|stranger| *stranger != user);
        // Now it may be told what others are told at once.
        for (request, is_try) in self.places.take_beyond(turn.settings.max_waiters, user) {
            let reply = if is_try && self.belief.is_some() {
                Reply::Nil
            } else {
                Reply::Refused(Refusal::TooManyWaiters)
            };
            turn.reply(request, reply);
            self.left();
        }
        self.refuse_deadlocked(turn);
    }

    /// The store refused this stranger the lock: all of its requests that came before it was asked get the error, and
    /// cost the others no question each.
    pub(super) fn refuse_earlier(
        &mut self,
        user: UserId,
        asked_at: Time,
        error: &Bytes,
        turn: &mut Turn<'_>,
    ) {
        if !self.rights.is_stranger(user) {
            return;
        }
        for request in self.places.take_earlier(user, asked_at) {
            turn.reply(request, Reply::Refused(Refusal::Store(error.clone())));
        }
    }

    /// The store refused to tell this user anything: whoever of it waits as a stranger gets the error.
    pub(super) fn store_refused(&mut self, user: UserId, error: &Bytes, turn: &mut Turn<'_>) {
        if !self.rights.is_stranger(user) {
            return;
        }
        self.rights.strangers.retain(|stranger| *stranger != user);
        for request in self.places.take_all(user) {
            turn.reply(request, Reply::Refused(Refusal::Store(error.clone())));
            self.left();
        }
    }
}
