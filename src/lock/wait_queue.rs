//! The waiters for one lock, in arrival order. A place belongs to a token of a user; a client that requests the lock
//! again with its token joins its own place.
//!
//! The queue keeps the place of a client that named its token for a while after its connection closed: client libraries
//! close the connection on a socket timeout, and retry on a new one. Meanwhile the queue passes the place over.
//!
//! Joining, leaving and timing out cost O(log n) in the number of waiters, so that a lock can have thousands.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{LockRequest, RequestId, Settings, Time, Token, UserId, Wait};
use super::fault::{Fault, planted};

/// The number of a waiter. An earlier one has a lower number.
pub type WaiterId = u64;

/// A token of a user at its place in the queue.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The user of the client.
    pub user: UserId,
    /// The token to hold the lock with.
    pub token: Token,
    /// The client named the token itself.
    pub explicit: bool,
    /// The lease of the latest request, in milliseconds.
    pub lease_ms: u64,
    /// The requests that get a reply when the lock is granted.
    pub requests: Vec<Waiting>,
}

impl Waiter {
    /// Returns whether a request at this place wants a fence.
    pub fn wants_fence(&self) -> bool {
        self.requests.iter().any(|waiting| waiting.fence)
    }
}

/// One request that waits at a place.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The request that gets the reply.
    pub request: RequestId,
    /// When the request joined.
    pub since: Time,
    /// The waiting time.
    pub wait: Wait,
    /// The reply includes a fence.
    pub fence: bool,
    /// The grant binds the lease to the connection of the request.
    pub session: bool,
    /// When its reply is due. None: never.
    due: Option<Time>,
    /// Tokens whose `UNLOCK` stands behind the request on the same connection.
    behind: Vec<Token>,
}

/// A request that was taken out because its time is up.
#[derive(Debug)]
pub enum Due {
    /// A request whose `WAIT` ended.
    Wait(RequestId),
    /// A request that does not wait, and got no reply of the store in time.
    Try(RequestId),
}

/// The places at one lock.
#[derive(Debug, Default)]
pub struct WaitQueue {
    next: WaiterId,
    /// Places with waiters.
    taken: BTreeMap<WaiterId, Waiter>,
    /// Places kept for a token whose connection closed, until the time given.
    kept: BTreeMap<WaiterId, (Waiter, Time)>,
    by_owner: BTreeMap<(Token, UserId), WaiterId>,
    /// All places, by user.
    by_user: BTreeMap<UserId, BTreeSet<WaiterId>>,
    due: BTreeSet<(Time, WaiterId, Option<RequestId>)>,
    /// Requests that do not wait, except for the store request in flight.
    tries: BTreeSet<(WaiterId, RequestId)>,
    /// Requests with an `UNLOCK` behind them, by the token of the `UNLOCK`. Thousands may stand behind each request.
    blocked: BTreeSet<(Token, WaiterId, RequestId)>,
    requests: usize,
}

impl WaitQueue {
    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Returns whether no request waits and no place is kept.
    pub fn is_idle(&self) -> bool {
        self.taken.is_empty() && self.kept.is_empty()
    }

    /// Returns the number of waiting requests.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Returns the number of places with waiters.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the number of places kept for tokens whose connection closed.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Returns the earliest place.
    pub fn first(&self) -> Option<&Waiter> {
        let first = match planted(Fault::NewcomerFirst) {
            true => self.taken.last_key_value(),
            false => self.taken.first_key_value(),
        };
        first.map(|(_, waiter)| waiter)
    }

    /// Returns the earliest place of a user that satisfies `is_so`.
    pub fn first_of(&self, is_so: impl Fn(UserId) -> bool) -> Option<&Waiter> {
        self.taken.values().find(|waiter| is_so(waiter.user))
    }

    /// Returns when the request that waits longest joined.
    pub fn longest_since(&self) -> Option<Time> {
        // The first place is the earliest; requests that joined it later wait shorter.
        self.first()
            .and_then(|waiter| waiter.requests.first())
            .map(|waiting| waiting.since)
    }

    /// Returns the waiting requests in the order of their places.
    pub fn each_waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.taken.values().flat_map(|waiter| &waiter.requests)
    }

    /// Returns the place of this owner, if a request waits there.
    pub fn of_owner(&self, user: UserId, token: &Token) -> Option<&Waiter> {
        let no = self.by_owner.get(&(token.clone(), user))?;
        self.taken.get(no)
    }

    /// Returns a place with this token where a request waits; one of this user if a user is given.
    pub fn of_token(&self, token: &Token, user: Option<UserId>) -> Option<&Waiter> {
        let (least, most) = user.map_or((UserId(0), UserId(u32::MAX)), |user| (user, user));
        let mut same = self
            .by_owner
            .range((token.clone(), least)..=(token.clone(), most));
        same.find_map(|(_, no)| self.taken.get(no))
    }

    /// Adds a request at the place of its token, or at a new place at the end.
    pub fn join(&mut self, now: Time, send: &LockRequest, settings: &Settings) {
        let owner = (send.token.clone(), send.user);
        let no = match self.by_owner.get(&owner) {
            Some(no) => *no,
            None => {
                self.next += 1;
                self.own(owner, self.next);
                self.next
            }
        };
        if let Some((waiter, until)) = self.kept.remove(&no) {
            self.due.remove(&(until, no, None));
            self.taken.insert(no, waiter);
        }
        let waiter = self.taken.entry(no).or_insert_with(|| Waiter {
            user: send.user,
            token: send.token.clone(),
            explicit: send.explicit,
            lease_ms: send.lease_ms,
            requests: Vec::with_capacity(1),
        });
        waiter.lease_ms = send.lease_ms;
        waiter.explicit |= send.explicit;
        let due = match send.wait {
            Wait::No => Some(send.asked_at.plus_millis(settings.answer_within_ms)),
            Wait::Until(until) => Some(until),
            Wait::Forever => None,
        };
        waiter.requests.push(Waiting {
            request: send.request,
            since: now,
            wait: send.wait,
            fence: send.fence,
            session: send.session,
            due,
            behind: Vec::new(),
        });
        self.requests += 1;
        self.due
            .extend(due.map(|due| (due, no, Some(send.request))));
        if send.wait == Wait::No {
            self.tries.insert((no, send.request));
        }
    }

    /// Takes out a place with all its requests. A kept place stays.
    pub fn take(&mut self, user: UserId, token: &Token) -> Option<(WaiterId, Waiter)> {
        let no = *self.by_owner.get(&(token.clone(), user))?;
        let waiter = self.taken.remove(&no)?;
        self.disown(no, &waiter);
        for waiting in &waiter.requests {
            self.forget(no, waiting);
        }
        self.give_memory_back();
        Some((no, waiter))
    }

    /// Takes out one request, which the caller answers or whose client is gone. The place goes with its last request,
    /// or is kept until `keep_until` if the client may return to it. Returns whether the request waited.
    pub fn leave(
        &mut self,
        user: UserId,
        token: &Token,
        request: RequestId,
        keep_until: Option<Time>,
    ) -> bool {
        match self.by_owner.get(&(token.clone(), user)) {
            Some(no) => self.leave_place(*no, request, keep_until),
            None => false,
        }
    }

    fn leave_place(&mut self, no: WaiterId, request: RequestId, keep_until: Option<Time>) -> bool {
        let Some(waiter) = self.taken.get_mut(&no) else {
            return false;
        };
        let Some(at) = waiter
            .requests
            .iter()
            .position(|waiting| waiting.request == request)
        else {
            return false;
        };
        let waiting = waiter.requests.remove(at);
        self.forget(no, &waiting);
        if self
            .taken
            .get(&no)
            .is_some_and(|waiter| waiter.requests.is_empty())
            && let Some(waiter) = self.taken.remove(&no)
        {
            match keep_until {
                Some(until) if waiter.explicit => self.keep(no, waiter, until),
                _ => self.disown(no, &waiter),
            }
        }
        self.give_memory_back();
        true
    }

    /// Keeps a place without waiters, so that its token can return to it.
    pub fn keep(&mut self, no: WaiterId, mut waiter: Waiter, until: Time) {
        waiter.requests = Vec::new();
        // An owner needs only one place to return to.
        let owner = (waiter.token.clone(), waiter.user);
        if let Some(before) = self.by_owner.get(&owner).copied()
            && let Some((other, until)) = self.kept.remove(&before)
        {
            self.due.remove(&(until, before, None));
            self.disown(before, &other);
        }
        self.own(owner, no);
        self.due.insert((until, no, None));
        if planted(Fault::KeptPlaceNotPassed) {
            self.taken.insert(no, waiter);
            return;
        }
        self.kept.insert(no, (waiter, until));
    }

    /// Makes a request wait for nothing but the store request in flight.
    pub fn try_only(&mut self, user: UserId, token: &Token, request: RequestId) {
        let Some(no) = self.by_owner.get(&(token.clone(), user)).copied() else {
            return;
        };
        if let Some(waiter) = self.taken.get_mut(&no)
            && let Some(waiting) = waiter.requests.iter_mut().find(|w| w.request == request)
        {
            waiting.wait = Wait::No;
            self.tries.insert((no, request));
        }
    }

    /// Records that an `UNLOCK` with the token `held_by` stands behind a request.
    pub fn block(&mut self, user: UserId, token: &Token, request: RequestId, held_by: Token) {
        let Some(no) = self.by_owner.get(&(token.clone(), user)).copied() else {
            return;
        };
        if let Some(waiter) = self.taken.get_mut(&no)
            && let Some(waiting) = waiter.requests.iter_mut().find(|w| w.request == request)
        {
            waiting.behind.push(held_by.clone());
            self.blocked.insert((held_by, no, request));
        }
    }

    /// Takes out the requests with the holder's own `UNLOCK` behind them, for users that satisfy `of`.
    pub fn take_deadlocked(
        &mut self,
        holder: &Token,
        of: impl Fn(UserId) -> bool,
    ) -> Vec<RequestId> {
        let first = (holder.clone(), WaiterId::MIN, RequestId(u64::MIN));
        let last = (holder.clone(), WaiterId::MAX, RequestId(u64::MAX));
        let is_of = |no| self.taken.get(no).is_some_and(|waiter| of(waiter.user));
        let found = self.blocked.range(first..=last);
        let found = found.filter(|(_, no, _)| is_of(no));
        let found: Vec<_> = found.map(|(_, no, request)| (*no, *request)).collect();
        found
            .into_iter()
            .filter(|(no, request)| self.leave_place(*no, *request, None))
            .map(|(_, request)| request)
            .collect()
    }

    /// Takes out the requests that do not wait, for users that satisfy `of`.
    pub fn take_tries(&mut self, of: impl Fn(UserId) -> bool) -> Vec<RequestId> {
        let concerns = |(no, _): &&(WaiterId, RequestId)| {
            self.taken.get(no).is_some_and(|waiter| of(waiter.user))
        };
        let tries: Vec<_> = self.tries.iter().filter(concerns).copied().collect();
        self.take_requests(&tries);
        tries.into_iter().map(|(_, request)| request).collect()
    }

    /// Returns the number of users with a place.
    pub fn users(&self) -> usize {
        self.by_user.len()
    }

    /// Returns the users with a place.
    pub fn each_user(&self) -> impl Iterator<Item = UserId> {
        self.by_user.keys().copied()
    }

    /// Returns whether the user has a place, be it a kept one.
    pub fn has_user(&self, user: UserId) -> bool {
        self.by_user.contains_key(&user)
    }

    /// Returns whether a request of this user waits.
    pub fn waits(&self, user: UserId) -> bool {
        let waiters = self.by_user.get(&user).into_iter().flatten();
        waiters.into_iter().any(|no| self.taken.contains_key(no))
    }

    /// Takes out all requests of a user. Kept places stay.
    pub fn take_all(&mut self, user: UserId) -> Vec<RequestId> {
        let waiters = self.by_user.get(&user).into_iter().flatten();
        let waiting: Vec<_> = waiters
            .filter_map(|no| self.waiting_at(*no))
            .flatten()
            .collect();
        self.take_requests(&waiting);
        waiting.into_iter().map(|(_, request)| request).collect()
    }

    /// Takes out the requests of a user that joined before this moment. Kept places stay.
    pub fn take_earlier(&mut self, user: UserId, before: Time) -> Vec<RequestId> {
        let waiters = self.by_user.get(&user).into_iter().flatten();
        let taken = waiters.filter_map(|no| Some((*no, self.taken.get(no)?)));
        let waiting = taken.flat_map(|(no, waiter)| waiter.requests.iter().map(move |it| (no, it)));
        let earlier = waiting.filter(|(_, waiting)| waiting.since < before);
        let earlier: Vec<_> = earlier.map(|(no, it)| (no, it.request)).collect();
        self.take_requests(&earlier);
        earlier.into_iter().map(|(_, request)| request).collect()
    }

    /// Takes out the requests of a user that wait behind `most` others. Returns for each whether it does not wait
    /// except for the store request in flight.
    pub fn take_beyond(&mut self, most: usize, user: UserId) -> Vec<(RequestId, bool)> {
        let mut beyond = self.requests.saturating_sub(most);
        let mut found = Vec::new();
        for (no, waiter) in self.taken.iter().rev() {
            let here = waiter.requests.len().min(beyond);
            if here == 0 {
                break;
            }
            beyond -= here;
            if waiter.user == user {
                let latest = waiter.requests.iter().rev().take(here);
                found.extend(latest.map(|waiting| (*no, waiting.request)));
            }
        }
        let is_try = |at: &(WaiterId, RequestId)| (at.1, self.tries.contains(at));
        let requests = found.iter().map(is_try).collect();
        self.take_requests(&found);
        requests
    }

    fn waiting_at(&self, no: WaiterId) -> Option<impl Iterator<Item = (WaiterId, RequestId)>> {
        let waiter = self.taken.get(&no)?;
        Some(
            waiter
                .requests
                .iter()
                .map(move |waiting| (no, waiting.request)),
        )
    }

    fn take_requests(&mut self, requests: &[(WaiterId, RequestId)]) {
        for (no, request) in requests {
            self.leave_place(*no, *request, None);
        }
    }

    /// Returns when the next reply is due or the next kept place lapses.
    pub fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(time, ..)| *time)
    }

    /// Takes out the requests whose time is up, and the kept places that lapse.
    pub fn take_due(&mut self, now: Time) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some(&(time, no, request)) = self.due.first()
            && time <= now
        {
            self.due.pop_first();
            match request {
                Some(request) => {
                    let is_try = self.tries.contains(&(no, request));
                    self.leave_place(no, request, None);
                    due.push(if is_try {
                        Due::Try(request)
                    } else {
                        Due::Wait(request)
                    });
                }
                None => {
                    if let Some((waiter, _)) = self.kept.remove(&no) {
                        self.disown(no, &waiter);
                    }
                }
            }
        }
        self.give_memory_back();
        due
    }

    fn own(&mut self, owner: (Token, UserId), no: WaiterId) {
        self.by_user.entry(owner.1).or_default().insert(no);
        self.by_owner.insert(owner, no);
    }

    /// Removes a place from the indexes.
    fn disown(&mut self, no: WaiterId, waiter: &Waiter) {
        let owner = (waiter.token.clone(), waiter.user);
        if self.by_owner.get(&owner) == Some(&no) {
            self.by_owner.remove(&owner);
        }
        if let Some(waiters) = self.by_user.get_mut(&waiter.user) {
            waiters.remove(&no);
            if waiters.is_empty() {
                self.by_user.remove(&waiter.user);
            }
        }
    }

    /// Frees the trees of an idle lock: most locks are held most of the time without waiters, and a tree that is empty
    /// again keeps room for eleven entries, which would be most of the memory of a lock.
    fn give_memory_back(&mut self) {
        if self.is_idle() {
            *self = Self {
                next: self.next,
                ..Self::default()
            };
        }
    }

    /// Removes a request that was taken out from the indexes.
    fn forget(&mut self, no: WaiterId, waiting: &Waiting) {
        self.requests -= 1;
        if let Some(due) = waiting.due {
            self.due.remove(&(due, no, Some(waiting.request)));
        }
        self.tries.remove(&(no, waiting.request));
        for held_by in &waiting.behind {
            let blocked = (held_by.clone(), no, waiting.request);
            self.blocked.remove(&blocked);
        }
    }
}
