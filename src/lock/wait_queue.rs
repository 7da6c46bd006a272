//! The waiters for one lock, in arrival order. A place belongs to a token of a user; a client that requests the lock
//! again with its token joins its own place.
//!
//! The queue keeps the place of a client that named its token for a while after its connection closed or its `WAIT` ran
//! out: client libraries close the connection on a socket timeout, and retry on a new one, and clients with bounded
//! timeouts wait in slices. Meanwhile the queue passes the place over.
//!
//! A client that spins makes one attempt after the other, and is refused in between ([`Attempt`]). The queue keeps its
//! place until the next attempt, which finds the place by its token. Some clients make a new token for each attempt; where
//! they do, the next attempt on the connection has the place. Each strict attempt has a place of its own, since others may
//! use the same token.
//!
//! Joining, leaving and timing out cost O(log n) in the number of waiters, so that a lock can have thousands.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
};

use super::event::{
    Attempt, ConnectionId, LockRequest, RequestId, Settings, Time, Token, UserId, Wait,
};
use super::{
    fault::{Fault, planted},
    lease::Lease,
};

mod kept_places;
mod rare_indexes;
mod tries;

pub use kept_places::Keep;
use rare_indexes::{RareIndexes, strict_of};

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
    /// The connection of the latest request.
    pub connection: ConnectionId,
    /// The latest attempt of a client that spins. None: the place of a `LOCK`.
    pub attempt: Option<Attempt>,
    /// Its connection made an attempt with another token since.
    superseded: bool,
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

    /// Returns the number of replicas that have to acknowledge a grant to this place: the most that a request wants.
    pub fn replicas(&self) -> u32 {
        let wanted = self.requests.iter().map(|waiting| waiting.replicas);
        wanted.max().unwrap_or(0)
    }

    /// Returns whether the place belongs to one attempt, which no request joins.
    pub fn is_strict(&self) -> bool {
        self.attempt.is_some_and(|attempt| attempt.strict)
    }

    /// Creates the place of a token whose lease reached no client.
    pub fn of_lease(lease: &Lease) -> Self {
        Self {
            user: lease.user,
            token: lease.token.clone(),
            explicit: true,
            connection: lease.connection,
            attempt: lease.attempt,
            superseded: false,
            lease_ms: lease.lease_ms,
            requests: Vec::new(),
        }
    }

    /// Returns whether the client may return to the place after its connection closed or its request was refused.
    fn may_return(&self) -> bool {
        self.explicit && self.attempt.is_none_or(|attempt| attempt.returns)
    }
}

/// One request that waits at a place.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The request that gets the reply.
    pub request: RequestId,
    /// When the request joined.
    pub since: Time,
    /// The reply includes a fence.
    pub fence: bool,
    /// The grant binds the lease to the connection of the request.
    pub session: bool,
    /// The number of replicas that have to acknowledge the grant.
    pub replicas: u32,
    /// The request is an attempt of a client that spins.
    is_attempt: bool,
    /// The request is a `TRYLOCK`, which keeps no place.
    is_trylock: bool,
    /// When its reply is due. None: never.
    due: Option<Time>,
}

/// A request that was taken out because its time is up.
#[derive(Debug)]
pub struct Due {
    /// The request.
    pub request: RequestId,
    /// Its place.
    pub place: WaiterId,
    /// It does not wait except for the store request in flight, and got no reply of the store in time. Otherwise its
    /// `WAIT` ended.
    pub is_try: bool,
    /// It is an attempt of a client that spins.
    pub is_attempt: bool,
    /// The number of replicas that would have had to acknowledge the grant.
    pub replicas: u32,
}

/// The places at one lock.
#[derive(Debug, Default)]
pub struct WaitQueue {
    next: WaiterId,
    /// Places with waiters.
    taken: BTreeMap<WaiterId, Box<Waiter>>,
    /// Places kept for a token without a request, until the time given.
    kept: BTreeMap<WaiterId, (Box<Waiter>, Time)>,
    /// The places that requests with the same token join.
    by_owner: BTreeMap<(Token, UserId), WaiterId>,
    /// A client that spins made its next attempt with another token. If one returned with its token since, this is false.
    tokens_change: bool,
    by_request: BTreeMap<RequestId, WaiterId>,
    /// All places, by user.
    by_user: BTreeMap<UserId, BTreeSet<WaiterId>>,
    due: BTreeSet<(Time, WaiterId, Option<RequestId>)>,
    /// Requests that do not wait, except for the store request in flight.
    tries: BTreeSet<(WaiterId, RequestId)>,
    rare: Option<Box<RareIndexes>>,
}

/// The places at one lock, with memory only while there are any: most locks are held most of the time without waiters,
/// and a tree that is empty again keeps room for eleven entries.
#[derive(Debug, Default)]
pub struct Waiters {
    places: Option<Box<WaitQueue>>,
    numbering: Numbering,
}

/// What outlives the places at a lock.
#[derive(Debug, Default, Clone, Copy)]
pub struct Numbering {
    next: WaiterId,
    tokens_change: bool,
}

static NO_PLACES: WaitQueue = WaitQueue {
    next: 0,
    taken: BTreeMap::new(),
    kept: BTreeMap::new(),
    by_owner: BTreeMap::new(),
    tokens_change: false,
    by_request: BTreeMap::new(),
    by_user: BTreeMap::new(),
    due: BTreeSet::new(),
    tries: BTreeSet::new(),
    rare: None,
};

impl Waiters {
    /// Frees the memory if there are no places.
    pub fn settle(&mut self) {
        if let Some(places) = self.places.take_if(|places| places.is_idle()) {
            self.numbering = Numbering {
                next: places.next,
                tokens_change: places.tokens_change,
            };
        }
    }

    /// Returns what is to be kept if there are no places. None: there are.
    pub fn rests(&self) -> Option<Numbering> {
        self.places.is_none().then_some(self.numbering)
    }

    /// Goes on without places.
    pub fn resumed(numbering: Numbering) -> Self {
        Self {
            places: None,
            numbering,
        }
    }
}

impl Deref for Waiters {
    type Target = WaitQueue;

    fn deref(&self) -> &WaitQueue {
        self.places.as_deref().unwrap_or(&NO_PLACES)
    }
}

impl DerefMut for Waiters {
    fn deref_mut(&mut self) -> &mut WaitQueue {
        self.places.get_or_insert_with(|| {
            Box::new(WaitQueue {
                next: self.numbering.next,
                tokens_change: self.numbering.tokens_change,
                ..WaitQueue::default()
            })
        })
    }
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
        self.by_request.len()
    }

    /// Returns the number of places with waiters.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the earliest place.
    pub fn first(&self) -> Option<(WaiterId, &Waiter)> {
        let first = match planted(Fault::NewcomerFirst) {
            true => self.taken.last_key_value(),
            false => self.taken.first_key_value(),
        };
        first.map(|(no, waiter)| (*no, &**waiter))
    }

    /// Returns the earliest place that satisfies `is_so`.
    pub fn first_of(&self, is_so: impl Fn(&Waiter) -> bool) -> Option<(WaiterId, &Waiter)> {
        let mut places = self.taken.iter().map(|(no, waiter)| (*no, &**waiter));
        places.find(|(_, waiter)| is_so(waiter))
    }

    /// Returns when the request that waits longest joined.
    pub fn longest_since(&self) -> Option<Time> {
        // The first place is the earliest; requests that joined it later wait shorter.
        self.first()
            .and_then(|(_, waiter)| waiter.requests.first())
            .map(|waiting| waiting.since)
    }

    /// Returns the waiting requests in the order of their places.
    pub fn each_waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.taken.values().flat_map(|waiter| &waiter.requests)
    }

    /// Returns this place, if a request waits there.
    pub fn at(&self, no: WaiterId) -> Option<&Waiter> {
        self.taken.get(&no).map(|waiter| &**waiter)
    }

    /// Returns the place that requests of this owner join, if a request waits there.
    pub fn of_owner(&self, user: UserId, token: &Token) -> Option<WaiterId> {
        let no = self.by_owner.get(&(token.clone(), user))?;
        self.taken.contains_key(no).then_some(*no)
    }

    /// Returns the place where this request waits.
    pub fn of_request(&self, request: RequestId) -> Option<WaiterId> {
        self.by_request.get(&request).copied()
    }

    /// Returns the strict attempts of this owner that wait.
    pub fn strict_of(&self, user: UserId, token: &Token) -> Vec<RequestId> {
        let rare = self.rare.iter();
        let places = rare.flat_map(|rare| rare.strict.range(strict_of(token, user)));
        let places = places.filter_map(|(.., no)| self.taken.get(no));
        let requests = places.flat_map(|waiter| &waiter.requests);
        requests.map(|waiting| waiting.request).collect()
    }

    /// Returns a place that requests with this token join, if a request waits there; one of this user if a user is
    /// given.
    pub fn of_token(&self, token: &Token, user: Option<UserId>) -> Option<(WaiterId, &Waiter)> {
        let (least, most) = user.map_or((UserId(0), UserId(u32::MAX)), |user| (user, user));
        let mut same = self
            .by_owner
            .range((token.clone(), least)..=(token.clone(), most));
        same.find_map(|(_, no)| Some((*no, self.at(*no)?)))
    }

    /// Adds a request at the place of its token, at the place that its client left, or at a new place at the end.
    pub fn join(&mut self, now: Time, send: &LockRequest, settings: &Settings) {
        let same_token = self.of_same_token(send);
        let repeats = same_token.is_some_and(|no| self.kept.contains_key(&no));
        self.tokens_change &= !(repeats && send.attempt.is_some());
        let found = same_token.or_else(|| self.left_on_connection(send));
        let no = found.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        let mut waiter = match self.take_kept(no).or_else(|| self.taken.remove(&no)) {
            Some(waiter) => waiter,
            None => Box::new(Waiter {
                user: send.user,
                token: send.token.clone(),
                explicit: send.explicit,
                connection: send.connection,
                attempt: None,
                superseded: false,
                lease_ms: send.lease_ms,
                requests: Vec::with_capacity(1),
            }),
        };
        waiter.superseded = false;
        self.disown(no, &waiter);
        waiter.token.clone_from(&send.token);
        (waiter.connection, waiter.attempt) = (send.connection, send.attempt);
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
            fence: send.fence,
            session: send.session,
            replicas: send.replicas,
            is_attempt: send.attempt.is_some(),
            is_trylock: send.attempt.is_none() && send.wait == Wait::No,
            due,
        });
        self.own(no, &waiter);
        self.taken.insert(no, waiter);
        self.by_request.insert(send.request, no);
        self.due
            .extend(due.map(|due| (due, no, Some(send.request))));
        if send.wait == Wait::No {
            self.tries.insert((no, send.request));
        }
    }

    /// Returns the place that the token of this request belongs to: the one that such requests join, or one that a
    /// strict attempt left.
    fn of_same_token(&self, send: &LockRequest) -> Option<WaiterId> {
        let (token, user) = (&send.token, send.user);
        if !send.is_strict() || planted(Fault::EqualTokensJoined) {
            return self.by_owner.get(&(token.clone(), user)).copied();
        }
        let mut kept = self
            .rare
            .as_ref()?
            .kept_strict
            .range(strict_of(token, user));
        kept.next().map(|(.., no)| *no)
    }

    /// Takes out a place with all its requests. A kept place stays.
    pub fn take(&mut self, no: WaiterId) -> Option<Box<Waiter>> {
        let waiter = self.taken.remove(&no)?;
        self.disown(no, &waiter);
        for waiting in &waiter.requests {
            self.forget(no, waiting);
        }
        Some(waiter)
    }

    /// Takes out one request, which the caller answers or whose client is gone. The place goes with its last request,
    /// or is kept as long as `keep` says if the client may return to it. Returns whether the request waited.
    pub fn leave(&mut self, request: RequestId, keep: Keep) -> bool {
        match self.of_request(request) {
            Some(no) => self.leave_place(no, request, Some(keep)),
            None => false,
        }
    }

    fn leave_place(&mut self, no: WaiterId, request: RequestId, keep: Option<Keep>) -> bool {
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
            self.disown(no, &waiter);
            let forgotten = waiting.is_attempt && planted(Fault::AttemptForgotten);
            if let Some(keep) = keep
                && waiter.may_return()
                && !waiting.is_trylock
                && !forgotten
            {
                self.keep(no, waiter, keep);
            }
        }
        true
    }

    /// Records that an `UNLOCK` with the token `held_by` stands behind a request.
    pub fn block(&mut self, request: RequestId, held_by: Token) {
        let Some(no) = self.of_request(request) else {
            return;
        };
        let rare = self.rare.get_or_insert_default();
        let behind = rare.behind.entry(request).or_default();
        behind.push(held_by.clone());
        rare.blocked.insert((held_by, no, request));
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
        let rare = self.rare.iter();
        let found = rare.flat_map(|rare| rare.blocked.range(first.clone()..=last.clone()));
        let found = found.filter(|(_, no, _)| is_of(no));
        let found: Vec<_> = found.map(|(_, no, request)| (*no, *request)).collect();
        found
            .into_iter()
            .filter(|(no, request)| self.leave_place(*no, *request, None))
            .map(|(_, request)| request)
            .collect()
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
        let mut beyond = self.requests().saturating_sub(most);
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

    /// Takes out the requests whose time is up, and the kept places that lapse. The places of clients that may return are
    /// kept as long as `keep` says.
    pub fn take_due(&mut self, now: Time, keep: Keep) -> Vec<Due> {
        let mut due = Vec::new();
        while let Some(&(time, no, request)) = self.due.first()
            && time <= now
        {
            self.due.pop_first();
            match request {
                Some(request) => {
                    let is_attempt = self.is_attempt(no, request);
                    let requests = self.at(no).into_iter().flat_map(|waiter| &waiter.requests);
                    let mut of_it = requests.filter(|it| it.request == request);
                    let replicas = of_it.next().map_or(0, |it| it.replicas);
                    due.push(Due {
                        request,
                        place: no,
                        is_try: self.tries.contains(&(no, request)),
                        is_attempt,
                        replicas,
                    });
                    let lost = !is_attempt && planted(Fault::PlaceLostOnTimeout);
                    self.leave_place(no, request, Some(keep).filter(|_| !lost));
                }
                None => {
                    let lapsed = self.drop_kept(no);
                    self.tokens_change |= lapsed.is_some_and(|waiter| waiter.superseded);
                }
            }
        }
        due
    }

    /// Adds a place to the indexes.
    fn own(&mut self, no: WaiterId, waiter: &Waiter) {
        self.by_user.entry(waiter.user).or_default().insert(no);
        let (token, user) = (waiter.token.clone(), waiter.user);
        if !waiter.is_strict() || planted(Fault::EqualTokensJoined) {
            self.by_owner.insert((token, user), no);
        } else {
            let rare = self.rare.get_or_insert_default();
            rare.strict.insert((token, user, no));
        }
    }

    /// Removes a place from the indexes.
    fn disown(&mut self, no: WaiterId, waiter: &Waiter) {
        let owner = (waiter.token.clone(), waiter.user);
        if self.by_owner.get(&owner) == Some(&no) {
            self.by_owner.remove(&owner);
        }
        if let Some(rare) = &mut self.rare {
            rare.strict.remove(&(owner.0, owner.1, no));
        }
        if let Some(waiters) = self.by_user.get_mut(&waiter.user) {
            waiters.remove(&no);
            if waiters.is_empty() {
                self.by_user.remove(&waiter.user);
            }
        }
    }

    /// Removes a request that was taken out from the indexes.
    fn forget(&mut self, no: WaiterId, waiting: &Waiting) {
        self.by_request.remove(&waiting.request);
        if let Some(due) = waiting.due {
            self.due.remove(&(due, no, Some(waiting.request)));
        }
        self.tries.remove(&(no, waiting.request));
        if let Some(rare) = &mut self.rare {
            let behind = rare.behind.remove(&waiting.request);
            for held_by in behind.into_iter().flatten() {
                rare.blocked.remove(&(held_by, no, waiting.request));
            }
        }
    }
}
