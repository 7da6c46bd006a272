//! Those who wait for one lock, in the order they came. A place belongs to a token of a user; a
//! client that asks again with its token joins its own place.
//!
//! The place of a client that named its token is kept for a while after its connection closed:
//! client libraries close on a socket timeout and ask again on a new connection. Meanwhile it is
//! passed over.
//!
//! Every operation costs O(log n) in the number of those who wait, so that thousands may.

use std::collections::{BTreeMap, BTreeSet};

use super::fault::{Fault, planted};
use super::vocabulary::{LockRequest, RequestId, Settings, Time, Token, UserId, Wait};

/// The number of a place: lower came first.
pub type PlaceNo = u64;

/// One place in the queue.
#[derive(Debug, Clone)]
pub struct Place {
    /// On whose behalf.
    pub user: UserId,
    /// The token to hold the lock with.
    pub token: Token,
    /// The client named the token itself.
    pub explicit: bool,
    /// The lease that the latest request asked for, in milliseconds.
    pub lease_ms: u64,
    /// Who is answered when it is granted.
    pub requests: Vec<Waiting>,
}

impl Place {
    /// Somebody there wants to be told a fence.
    pub fn wants_fence(&self) -> bool {
        self.requests.iter().any(|waiting| waiting.fence)
    }
}

/// One request that waits at a place.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Whom to answer.
    pub request: RequestId,
    /// Since when it waits.
    pub since: Time,
    /// Until when.
    pub wait: Wait,
    /// Its reply is to tell a fence.
    pub fence: bool,
    /// The lease is to be bound to its connection.
    pub session: bool,
    /// When its reply is due. None: never.
    due: Option<Time>,
    /// Tokens whose `UNLOCK` stands behind it on its own connection.
    behind: Vec<Token>,
}

/// What is due.
#[derive(Debug)]
pub enum Due {
    /// The wait of a request that said how long: it is taken out.
    Wait(RequestId),
    /// The time that a request which does not wait may take: it is taken out.
    Try(RequestId),
}

/// Those who wait.
#[derive(Debug, Default)]
pub struct Places {
    next: PlaceNo,
    /// Somebody waits there.
    taken: BTreeMap<PlaceNo, Place>,
    /// Kept for a token whose connection closed, until the time given.
    kept: BTreeMap<PlaceNo, (Place, Time)>,
    by_owner: BTreeMap<(Token, UserId), PlaceNo>,
    due: BTreeSet<(Time, PlaceNo, Option<RequestId>)>,
    /// Requests that do not wait, only for the question on its way.
    tries: BTreeSet<(PlaceNo, RequestId)>,
    /// Requests with somebody's `UNLOCK` behind them.
    blocked: BTreeSet<(PlaceNo, RequestId)>,
    requests: usize,
}

impl Places {
    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Nobody waits, and no place is kept.
    pub fn is_idle(&self) -> bool {
        self.taken.is_empty() && self.kept.is_empty()
    }

    /// Requests that wait.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// The place that came first.
    pub fn first(&self) -> Option<&Place> {
        let first = match planted(Fault::NewcomerFirst) {
            true => self.taken.last_key_value(),
            false => self.taken.first_key_value(),
        };
        first.map(|(_, place)| place)
    }

    /// Since when the one who waits longest does.
    pub fn longest_since(&self) -> Option<Time> {
        // The first place came first; who joined it later waits shorter.
        self.first()
            .and_then(|place| place.requests.first())
            .map(|waiting| waiting.since)
    }

    /// The place of this owner, if somebody waits there.
    pub fn of_owner(&self, user: UserId, token: &Token) -> Option<&Place> {
        let no = self.by_owner.get(&(token.clone(), user))?;
        self.taken.get(no)
    }

    /// A place with this token, if somebody waits there; of this user where one is given.
    pub fn of_token(&self, token: &Token, user: Option<UserId>) -> Option<&Place> {
        let (least, most) = user.map_or((UserId(0), UserId(u32::MAX)), |user| (user, user));
        let mut same = self
            .by_owner
            .range((token.clone(), least)..=(token.clone(), most));
        same.find_map(|(_, no)| self.taken.get(no))
    }

    /// A request takes its place: the one its token has, or a new one at the end.
    pub fn join(&mut self, now: Time, ask: &LockRequest, settings: &Settings) {
        let owner = (ask.token.clone(), ask.user);
        let no = match self.by_owner.get(&owner) {
            Some(no) => *no,
            None => {
                self.next += 1;
                self.by_owner.insert(owner, self.next);
                self.next
            }
        };
        if let Some((place, until)) = self.kept.remove(&no) {
            self.due.remove(&(until, no, None));
            self.taken.insert(no, place);
        }
        let place = self.taken.entry(no).or_insert_with(|| Place {
            user: ask.user,
            token: ask.token.clone(),
            explicit: ask.explicit,
            lease_ms: ask.lease_ms,
            requests: Vec::with_capacity(1),
        });
        place.lease_ms = ask.lease_ms;
        place.explicit |= ask.explicit;
        let due = match ask.wait {
            Wait::No => Some(now.plus_millis(settings.answer_within_ms)),
            Wait::Until(until) => Some(until),
            Wait::Forever => None,
        };
        place.requests.push(Waiting {
            request: ask.request,
            since: now,
            wait: ask.wait,
            fence: ask.fence,
            session: ask.session,
            due,
            behind: Vec::new(),
        });
        self.requests += 1;
        self.due.extend(due.map(|due| (due, no, Some(ask.request))));
        if ask.wait == Wait::No {
            self.tries.insert((no, ask.request));
        }
    }

    /// Takes a place out, with all who wait there. A kept place stays.
    pub fn take(&mut self, user: UserId, token: &Token) -> Option<(PlaceNo, Place)> {
        let no = *self.by_owner.get(&(token.clone(), user))?;
        let place = self.taken.remove(&no)?;
        self.by_owner.remove(&(token.clone(), user));
        for waiting in &place.requests {
            self.forget(no, waiting);
        }
        Some((no, place))
    }

    /// Takes one request out; it is answered by the caller, or gone. Its place goes with its last
    /// request, or is kept until `keep_until` where the client may come back to it.
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

    fn leave_place(&mut self, no: PlaceNo, request: RequestId, keep_until: Option<Time>) -> bool {
        let Some(place) = self.taken.get_mut(&no) else {
            return false;
        };
        let Some(at) = place
            .requests
            .iter()
            .position(|waiting| waiting.request == request)
        else {
            return false;
        };
        let waiting = place.requests.remove(at);
        self.forget(no, &waiting);
        if self
            .taken
            .get(&no)
            .is_some_and(|place| place.requests.is_empty())
            && let Some(place) = self.taken.remove(&no)
        {
            match keep_until {
                Some(until) if place.explicit => self.keep(no, place, until),
                _ => {
                    self.by_owner.remove(&(place.token, place.user));
                }
            }
        }
        true
    }

    /// Keeps a place that nobody waits at for its token to come back to.
    pub fn keep(&mut self, no: PlaceNo, mut place: Place, until: Time) {
        place.requests = Vec::new();
        self.by_owner.insert((place.token.clone(), place.user), no);
        self.due.insert((until, no, None));
        if planted(Fault::KeptPlaceNotPassed) {
            self.taken.insert(no, place);
            return;
        }
        self.kept.insert(no, (place, until));
    }

    /// A request does not wait any longer but for the question on its way.
    pub fn try_only(&mut self, user: UserId, token: &Token, request: RequestId) {
        let Some(no) = self.by_owner.get(&(token.clone(), user)).copied() else {
            return;
        };
        if let Some(place) = self.taken.get_mut(&no)
            && let Some(waiting) = place.requests.iter_mut().find(|w| w.request == request)
        {
            waiting.wait = Wait::No;
            self.tries.insert((no, request));
        }
    }

    /// An `UNLOCK` with the token `held_by` stands behind a request.
    pub fn block(&mut self, user: UserId, token: &Token, request: RequestId, held_by: Token) {
        let Some(no) = self.by_owner.get(&(token.clone(), user)).copied() else {
            return;
        };
        if let Some(place) = self.taken.get_mut(&no)
            && let Some(waiting) = place.requests.iter_mut().find(|w| w.request == request)
        {
            waiting.behind.push(held_by);
            self.blocked.insert((no, request));
        }
    }

    /// Takes out the requests that the holder's own `UNLOCK` stands behind.
    pub fn take_deadlocked(&mut self, holder: &Token) -> Vec<RequestId> {
        let waits_for_itself = |(no, request): &&(PlaceNo, RequestId)| {
            self.taken.get(no).is_some_and(|place| {
                place
                    .requests
                    .iter()
                    .any(|w| w.request == *request && w.behind.contains(holder))
            })
        };
        let found: Vec<_> = self
            .blocked
            .iter()
            .filter(waits_for_itself)
            .copied()
            .collect();
        found
            .into_iter()
            .filter(|(no, request)| self.leave_place(*no, *request, None))
            .map(|(_, request)| request)
            .collect()
    }

    /// Takes out the requests that do not wait.
    pub fn take_tries(&mut self) -> Vec<RequestId> {
        let tries: Vec<_> = self.tries.iter().copied().collect();
        for (no, request) in &tries {
            self.leave_place(*no, *request, None);
        }
        tries.into_iter().map(|(_, request)| request).collect()
    }

    /// When the next reply is due, or a kept place given up.
    pub fn next_due(&self) -> Option<Time> {
        self.due.first().map(|(time, ..)| *time)
    }

    /// Takes out what is due.
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
                    if let Some((place, _)) = self.kept.remove(&no) {
                        self.by_owner.remove(&(place.token, place.user));
                    }
                }
            }
        }
        due
    }

    /// The books about a request that was taken out.
    fn forget(&mut self, no: PlaceNo, waiting: &Waiting) {
        self.requests -= 1;
        if let Some(due) = waiting.due {
            self.due.remove(&(due, no, Some(waiting.request)));
        }
        self.tries.remove(&(no, waiting.request));
        self.blocked.remove(&(no, waiting.request));
    }
}
