//! Hides lock state from users that the store has not authorized. The store decides what a user may know, and shows it
//! with every reply to that user's requests. But the queue sends no request for a waiter behind others, nor for a lock
//! that is known to be held. There it sends a check on purpose, once for each user and the time that requests of that
//! user wait here. Until the reply the user is unauthorized and gets no information: not that the lock is held, nor
//! that the limit of waiters is reached.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Context, Queue};
use crate::lock::{
    event::{Refusal, Reply, Time, UserId, Wait},
    fault::{Fault, planted},
    store_request::{LinkId, StoreRequest},
};

/// How recent a reply of the store must be for `TRYLOCK` of the same user to get nil at once on a held lock, in
/// milliseconds: repeated attempts then do not cost a store request each.
const KNOWN_FOR_MS: u64 = 1_000;

/// The users remembered beyond those with places before old ones are forgotten, so that forgetting costs little.
const REMEMBERED: usize = 64;

/// The known rights of users.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// When the store last replied to a request of the user, and on which connection.
    store_replied: Replied,
    /// Unauthorized users with waiting requests, in arrival order: the store has not replied to them yet.
    unauthorized: VecDeque<UserId>,
}

/// When the store last replied to a request of each user, and on which connection. Sorted, since most locks have one
/// user, for whom a tree would take ten times the memory.
#[derive(Debug, Default)]
struct Replied(Vec<(UserId, (Time, Option<LinkId>))>);

impl Replied {
    fn at(&self, user: UserId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&user, |(user, _)| *user)
    }

    fn get(&self, user: UserId) -> Option<(Time, Option<LinkId>)> {
        self.at(user).ok().map(|at| self.0[at].1)
    }

    fn insert(&mut self, user: UserId, replied: (Time, Option<LinkId>)) {
        match self.at(user) {
            Ok(at) => self.0[at].1 = replied,
            Err(at) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, (user, replied));
            }
        }
    }

    fn remove(&mut self, user: UserId) {
        if let Ok(at) = self.at(user) {
            self.0.remove(at);
        }
    }
}

impl Rights {
    /// Returns when the store last replied to this user on this connection, if no more is known. None: more is.
    pub(super) fn rests(&self, user: UserId, link: Option<LinkId>) -> Option<Option<Time>> {
        match self.store_replied.0[..] {
            _ if !self.unauthorized.is_empty() => None,
            [] => Some(None),
            [(of, (at, on))] => ((of, on) == (user, link)).then_some(Some(at)),
            _ => None,
        }
    }

    /// Goes on from what [`Rights::rests`] returned.
    pub(super) fn resumed(user: UserId, link: Option<LinkId>, replied_at: Option<Time>) -> Self {
        let replied = replied_at.map(|at| (user, (at, link)));
        Self {
            store_replied: Replied(replied.into_iter().collect()),
            unauthorized: VecDeque::new(),
        }
    }

    /// Forgets the users whose connection ended: perhaps the user no longer exists.
    pub(super) fn tracking_lost(&mut self, link: LinkId) {
        self.store_replied
            .0
            .retain(|(_, (_, on))| *on != Some(link));
    }

    /// Returns whether the user is still unauthorized.
    pub(super) fn is_unauthorized(&self, user: UserId) -> bool {
        self.unauthorized.contains(&user)
    }
}

impl Queue {
    /// Returns whether the user may know of the lock.
    pub(super) fn knows(&self, user: UserId, wait: Wait, now: Time) -> bool {
        let Some((at, _)) = self.rights.store_replied.get(user) else {
            return false;
        };
        let lately = at.plus_millis(KNOWN_FOR_MS) > now;
        let waits_already = wait != Wait::No && self.has_business(user);
        (lately || waits_already) && !self.rights.is_unauthorized(user)
    }

    /// Returns whether the user has a place here, or holds the lock by a grant of this instance.
    fn has_business(&self, user: UserId) -> bool {
        self.waiters.has_user(user) || self.lease.as_ref().is_some_and(|lease| lease.user == user)
    }

    /// Records that a request of an unauthorized user takes a place.
    pub(super) fn joins_unauthorized(&mut self, user: UserId, now: Time) {
        if planted(Fault::UnauthorizedNotChecked) || self.rights.is_unauthorized(user) {
            return;
        }
        self.rights.store_replied.remove(user);
        self.rights.unauthorized.push_back(user);
        if self.rights.store_replied.0.len() > REMEMBERED + 2 * self.waiters.users() {
            let mut store_replied = std::mem::take(&mut self.rights.store_replied);
            store_replied.0.retain(|(user, (at, _))| {
                at.plus_millis(KNOWN_FOR_MS) > now || self.has_business(*user)
            });
            self.rights.store_replied = store_replied;
        }
    }

    /// Returns the next user that the store has to authorize, and that is not cut off from it.
    fn next_unauthorized(&mut self) -> Option<UserId> {
        // The requests of some users left meanwhile.
        while let Some(&user) = self.rights.unauthorized.front()
            && !self.waiters.waits(user)
        {
            self.rights.unauthorized.pop_front();
        }
        let mut unauthorized = self.rights.unauthorized.iter().copied();
        unauthorized.find(|user| self.waiters.waits(*user) && !self.cut_off.has(*user))
    }

    /// Sends a check for the next unauthorized user. Returns whether there was one.
    pub(super) fn check_unauthorized(&mut self, context: &mut Context<'_>) -> bool {
        let next = self.next_unauthorized();
        if let Some(user) = next {
            self.start(StoreRequest::Check { user }, None, context);
        }
        next.is_some()
    }

    /// Authorizes this user: the store replied to a request of it.
    pub(super) fn authorize(
        &mut self,
        user: UserId,
        link: Option<LinkId>,
        context: &mut Context<'_>,
    ) {
        let store_replied = &mut self.rights.store_replied;
        // Not every reply names the connection.
        let link = link.or(store_replied.get(user).and_then(|(_, before)| before));
        store_replied.insert(user, (context.now, link));
        if !self.rights.is_unauthorized(user) {
            return;
        }
        self.rights.unauthorized.retain(|it| *it != user);
        // Now the user may get the replies that others get at once.
        for (request, is_try) in self.waiters.take_beyond(context.settings.max_waiters, user) {
            let reply = if is_try && self.cached_holder.is_some() {
                Reply::Nil
            } else {
                Reply::Refused(Refusal::TooManyWaiters)
            };
            context.reply(request, reply);
            self.left();
        }
        self.refuse_deadlocked(context);
    }

    /// Replies with the store's error to all requests of this unauthorized user that came before the refused
    /// acquisition was sent, so that none of them costs the others a store request.
    pub(super) fn refuse_earlier(
        &mut self,
        user: UserId,
        asked_at: Time,
        error: &Bytes,
        context: &mut Context<'_>,
    ) {
        if !self.rights.is_unauthorized(user) {
            return;
        }
        for request in self.waiters.take_earlier(user, asked_at) {
            context.reply(request, Reply::Refused(Refusal::Store(error.clone())));
        }
    }

    /// Replies with the store's error to all waiting requests of this user, if it is unauthorized: the store refused a
    /// check.
    pub(super) fn store_refused(&mut self, user: UserId, error: &Bytes, context: &mut Context<'_>) {
        if !self.rights.is_unauthorized(user) {
            return;
        }
        self.rights.unauthorized.retain(|it| *it != user);
        for request in self.waiters.take_all(user) {
            context.reply(request, Reply::Refused(Refusal::Store(error.clone())));
            self.left();
        }
    }
}
