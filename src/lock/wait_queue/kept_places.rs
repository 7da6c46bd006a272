//! The places that a queue keeps for clients that are not there. The client's next request takes the place again; until
//! then the queue passes it over. Each lapses after a time, and their number is bounded.

use super::{WaitQueue, Waiter, WaiterId, rare_indexes::strict_of};
use crate::lock::{
    event::{ConnectionId, LockRequest, Time, Token, UserId},
    fault::{Fault, planted},
};

/// How long the place of a client that is gone, or was refused, is kept.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Until when.
    pub until: Time,
    /// The number of places that are kept at one lock. Beyond it, the latest one goes of the user with most.
    pub most: usize,
    /// The number of those whose clients last waited on one connection. Beyond it, the earliest one goes. Clients that
    /// spin do not count.
    pub most_by_connection: usize,
}

impl WaitQueue {
    /// Returns the number of places kept for tokens without a request.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns until when the place of this owner's latest refused attempt is kept.
    pub fn kept_until(&self, user: UserId, token: &Token) -> Option<Time> {
        let rare = self.rare.as_ref();
        let strict = rare.and_then(|rare| {
            let mut kept = rare.kept_strict.range(strict_of(token, user));
            kept.next_back()
        });
        let joined = self.by_owner.get(&(token.clone(), user));
        let no = strict.map(|(.., no)| no).or(joined)?;
        self.kept.get(no).map(|(_, until)| *until)
    }

    /// Keeps a place without waiters, so that its token can return to it.
    pub fn keep(&mut self, no: WaiterId, mut waiter: Box<Waiter>, keep: Keep) {
        let Keep { until, most, .. } = keep;
        waiter.requests = Vec::new();
        let owner = (waiter.token.clone(), waiter.user);
        if !waiter.is_strict()
            && let Some(before) = self.by_owner.get(&owner).copied()
        {
            // An owner needs only one place to return to.
            self.drop_kept(before);
        }
        self.own(no, &waiter);
        self.due.insert((until, no, None));
        if planted(Fault::KeptPlaceNotPassed) {
            self.taken.insert(no, waiter);
            return;
        }
        let rare = self.rare.get_or_insert_default();
        if waiter.is_strict() {
            rare.kept_strict.insert((owner.0, owner.1, no));
        }
        let (user, connection) = (waiter.user, waiter.connection);
        match waiter.attempt {
            Some(_) => rare.kept_of.insert((user, connection, no)),
            None => rare.kept_by_connection.insert((connection, no)),
        };
        let of_user = rare.kept_by_user.entry(user).or_default();
        of_user.insert((until, no));
        self.kept.insert(no, (waiter, until));
        if self.kept.len() > most {
            self.drop_one_kept(user);
        }
        self.drop_kept_beyond(keep.most_by_connection, connection);
    }

    /// Gives up the earliest kept place of this connection if it has more than `most`.
    fn drop_kept_beyond(&mut self, most: usize, connection: ConnectionId) {
        let of_it = (connection, WaiterId::MIN)..=(connection, WaiterId::MAX);
        let rare = self.rare.iter();
        let places = rare.flat_map(|rare| rare.kept_by_connection.range(of_it.clone()));
        if let Some(no) = places.map(|(_, no)| *no).rev().nth(most) {
            self.drop_kept(no);
        }
    }

    /// Gives up the place that is kept for this owner, unless its client spins: some clients release after each refused
    /// attempt.
    pub fn give_up_kept(&mut self, user: UserId, token: &Token) {
        let Some(no) = self.by_owner.get(&(token.clone(), user)).copied() else {
            return;
        };
        let kept = self.kept.get(&no).map(|(waiter, _)| waiter);
        if kept.is_some_and(|waiter| waiter.attempt.is_none()) {
            self.drop_kept(no);
        }
    }

    pub(super) fn drop_kept(&mut self, no: WaiterId) -> Option<Box<Waiter>> {
        let waiter = self.take_kept(no)?;
        self.disown(no, &waiter);
        Some(waiter)
    }

    /// Gives up the latest kept place of the user that has most of them, of equals this one: no user costs another one a
    /// place, and those that came first stay.
    fn drop_one_kept(&mut self, latest: UserId) {
        let rare = self.rare.iter();
        let users = rare.flat_map(|rare| &rare.kept_by_user);
        let most = users.max_by_key(|(user, places)| (places.len(), **user == latest));
        if let Some((_, no)) = most.and_then(|(_, places)| places.last()).copied() {
            self.drop_kept(no);
        }
    }

    /// Takes out a kept place; only its owner's index entries stay.
    pub(super) fn take_kept(&mut self, no: WaiterId) -> Option<Box<Waiter>> {
        let (waiter, until) = self.kept.remove(&no)?;
        self.due.remove(&(until, no, None));
        let rare = self.rare.get_or_insert_default();
        if let Some(of_user) = rare.kept_by_user.get_mut(&waiter.user) {
            of_user.remove(&(until, no));
            if of_user.is_empty() {
                rare.kept_by_user.remove(&waiter.user);
            }
        }
        if waiter.is_strict() {
            let strict = (waiter.token.clone(), waiter.user, no);
            rare.kept_strict.remove(&strict);
        }
        let (user, connection) = (waiter.user, waiter.connection);
        rare.kept_of.remove(&(user, connection, no));
        rare.kept_by_connection.remove(&(connection, no));
        Some(waiter)
    }

    /// Returns the place that a client left on this connection, if clients make a new token for each attempt. If not, the
    /// attempt is another client's: both take their connections from a pool.
    pub(super) fn left_on_connection(&mut self, send: &LockRequest) -> Option<WaiterId> {
        let strict = send.attempt?.strict;
        let first = (send.user, send.connection, WaiterId::MIN);
        let last = (send.user, send.connection, WaiterId::MAX);
        let mut left = self.rare.as_ref()?.kept_of.range(first..=last);
        let no = left.next().map(|(.., no)| *no)?;
        let (waiter, _) = self.kept.get_mut(&no)?;
        waiter.superseded = true;
        (self.tokens_change && waiter.is_strict() == strict).then_some(no)
    }
}
