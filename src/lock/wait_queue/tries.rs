//! Requests that wait for no more than the store request in flight, and attempts of clients that spin, which get there
//! when their time is up.

use super::{Keep, RequestId, Time, UserId, WaitQueue, Waiter, WaiterId};

impl WaitQueue {
    /// Makes the attempts at this place whose time is up wait for the store request in flight, until this moment.
    pub fn await_outcome(&mut self, no: WaiterId, now: Time, until: Time) {
        let Some(waiter) = self.taken.get_mut(&no) else {
            return;
        };
        for waiting in waiter.requests.iter_mut().filter(|it| it.is_attempt) {
            let at = (no, waiting.request);
            let Some(due) = waiting.due.filter(|due| *due <= now) else {
                continue;
            };
            if self.tries.insert(at) {
                waiting.due = Some(until);
                self.due.remove(&(due, no, Some(waiting.request)));
                self.due.insert((until, no, Some(waiting.request)));
            }
        }
    }

    /// Makes a request wait for nothing but the store request in flight.
    pub fn try_only(&mut self, request: RequestId) {
        if let Some(no) = self.of_request(request) {
            self.tries.insert((no, request));
        }
    }

    /// Returns whether an attempt of a client that spins does not wait except for the store request in flight.
    pub fn tries_attempt(&self) -> bool {
        let mut tries = self.tries.iter();
        tries.any(|(no, request)| self.is_attempt(*no, *request))
    }

    /// Takes out the requests that do not wait, at places that satisfy `of`. The places of clients that may return are
    /// kept as long as `keep` says.
    pub fn take_tries(
        &mut self,
        of: impl Fn(WaiterId, &Waiter) -> bool,
        keep: Keep,
    ) -> Vec<RequestId> {
        let concerns = |(no, _): &&(WaiterId, RequestId)| {
            self.taken.get(no).is_some_and(|waiter| of(*no, waiter))
        };
        let tries: Vec<_> = self.tries.iter().filter(concerns).copied().collect();
        for (no, request) in &tries {
            self.leave_place(*no, *request, Some(keep));
        }
        tries.into_iter().map(|(_, request)| request).collect()
    }

    /// Takes out the requests at this place that do not wait, and the attempts. The place is kept as long as `keep` says
    /// if the client may return to it.
    pub fn take_unwaiting(&mut self, no: WaiterId, keep: Keep) -> Vec<RequestId> {
        let requests = self.at(no).into_iter().flat_map(|waiter| &waiter.requests);
        let tries = |request| self.tries.contains(&(no, request));
        let unwaiting = requests.filter(|it| it.is_attempt || tries(it.request));
        let unwaiting: Vec<_> = unwaiting.map(|it| it.request).collect();
        for request in &unwaiting {
            self.leave_place(no, *request, Some(keep));
        }
        unwaiting
    }

    /// Takes out the attempts of this user, and keeps their places as long as `keep` says.
    pub fn take_attempts(&mut self, user: UserId, keep: Keep) -> Vec<(WaiterId, RequestId)> {
        let places = self.by_user.get(&user).into_iter().flatten();
        let waiting = places.filter_map(|no| self.waiting_at(*no)).flatten();
        let attempts = waiting.filter(|(no, request)| self.is_attempt(*no, *request));
        let attempts: Vec<_> = attempts.collect();
        for (no, request) in &attempts {
            self.leave_place(*no, *request, Some(keep));
        }
        attempts
    }

    /// Takes out the attempts that do not wait, for users that satisfy `of`, and keeps their places as long as `keep` says.
    pub fn take_attempts_that_try(
        &mut self,
        of: impl Fn(UserId) -> bool,
        keep: Keep,
    ) -> Vec<RequestId> {
        let is_of = |no| self.at(no).is_some_and(|waiter| of(waiter.user));
        let tries = self.tries.iter().copied().filter(|(no, _)| is_of(*no));
        let tries: Vec<_> = tries
            .filter(|(no, request)| self.is_attempt(*no, *request))
            .collect();
        for (no, request) in &tries {
            self.leave_place(*no, *request, Some(keep));
        }
        tries.into_iter().map(|(_, request)| request).collect()
    }

    pub(super) fn is_attempt(&self, no: WaiterId, request: RequestId) -> bool {
        let requests = self.at(no).into_iter().flat_map(|waiter| &waiter.requests);
        requests
            .into_iter()
            .any(|it| it.is_attempt && it.request == request)
    }
}
