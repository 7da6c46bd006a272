//! The errands at one lock: what clients want done with a lock that they claim to hold (`UNLOCK`, `RELOCK`), and grants
//! to take back.
//!
//! Only one store request about a lock is in flight at a time, so errands compete with waiters and with each other for
//! it. Three rules keep any client's errands from delaying the others:
//!
//! - **Errands alternate with waiters.** After a store request for an errand, the waiters have the next one.
//! - **Errands take turns by user.** The release by the known holder goes before all others, since it frees the lock.
//! - **One reply settles many.** A reply that names the holder shows that no other token holds the lock. It settles
//!   each errand that came before its request was sent, for users that may know of the lock. A refusal settles all
//!   earlier errands of its user. So a user's errands cost one store request for each round trip, however many there
//!   are. A reply to a request from before an errand came settles nothing for it: the lock may have changed hands.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
};

use bytes::Bytes;

use super::{InFlight, Belief, Errand, Owner, Queue, Context};
use crate::lock::{
    fault::{Fault, planted},
    lease::Lease,
    vocabulary::{Outcome, StoreRequest, StoreRequestId, Refusal, Reply, Time, Token, UserId, Wait},
};

/// The errands at one lock, by user. Those of one user are in the order in which they are given up.
#[derive(Debug, Default)]
pub(super) struct Errands {
    lanes: BTreeMap<UserId, VecDeque<Errand>>,
    /// The user of the latest errand that was sent.
    last: Option<UserId>,
    /// The latest store request was for an errand: the waiters have the next one.
    yields: bool,
    /// No postponed errand may run before this moment. None: no errand is postponed.
    wake_at: Option<Time>,
}

impl Errands {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Errand> {
        self.lanes.values().flatten()
    }

    /// Returns the users with errands.
    pub(super) fn users(&self) -> impl Iterator<Item = UserId> {
        self.lanes.keys().copied()
    }

    /// Returns the number of this user's errands.
    pub(super) fn of_user(&self, user: UserId) -> usize {
        self.lanes.get(&user).map_or(0, VecDeque::len)
    }

    /// Returns when the first errand is to be given up.
    pub(super) fn give_up_at(&self) -> Option<Time> {
        let firsts = self.lanes.values();
        firsts
            .filter_map(|lane| lane.iter().find_map(Errand::give_up_at))
            .min()
    }

    /// Puts an errand behind those of its user that are given up no later.
    pub(super) fn put(&mut self, errand: Errand) {
        let give_up_at = errand.give_up_at();
        let lane = self.lanes.entry(errand.user()).or_default();
        let mut latest = lane.iter().rev().filter_map(Errand::give_up_at);
        let at = match latest.next() {
            Some(latest) if give_up_at.is_some_and(|it| latest > it) => {
                behind(lane, |at| Some(at) <= give_up_at)
            }
            _ => lane.len(),
        };
        lane.insert(at, errand);
    }

    /// Puts an errand back that has to wait for another store request: it is the next of its user again.
    pub(super) fn put_back(&mut self, errand: Errand) {
        let give_up_at = errand.give_up_at();
        let not_before = errand.owner().and_then(|owner| owner.not_before);
        self.wake_at = earlier(self.wake_at, not_before);
        let lane = self.lanes.entry(errand.user()).or_default();
        let at = behind(lane, |at| Some(at) < give_up_at);
        lane.insert(at, errand);
    }

    /// Takes out the errands that satisfy `is_so`.
    pub(super) fn take_where(&mut self, mut is_so: impl FnMut(&Errand) -> bool) -> Vec<Errand> {
        let mut taken = Vec::new();
        self.lanes.retain(|_, lane| {
            if lane.iter().any(&mut is_so) {
                let all = std::mem::take(lane);
                let (out, left): (VecDeque<_>, VecDeque<_>) =
                    all.into_iter().partition(|it| is_so(it));
                taken.extend(out);
                *lane = left;
            }
            !lane.is_empty()
        });
        self.give_memory_back();
        taken
    }

    /// Takes out the first errand that satisfies `is_so`.
    fn take_first(&mut self, is_so: impl Fn(&Errand) -> bool) -> Option<Errand> {
        let found = self.lanes.iter().find_map(|(user, lane)| {
            let at = lane.iter().position(&is_so)?;
            Some((*user, at))
        });
        let (user, at) = found?;
        self.take(user, at)
    }

    /// Takes out the first errand that satisfies `may`, of the next user in turn that has one.
    fn take_next(&mut self, may: impl Fn(&Errand) -> bool) -> Option<Errand> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.lanes.range((after, Bound::Unbounded));
        let mut lanes = later.chain(&self.lanes);
        let (user, at) =
            lanes.find_map(|(user, lane)| Some((*user, lane.iter().position(&may)?)))?;
        self.take(user, at)
    }

    /// Ends the delay of each errand that is postponed until a moment that satisfies `is_time`.
    pub(super) fn wake(&mut self, is_time: impl Fn(Time) -> bool) {
        if !self.wake_at.is_some_and(&is_time) {
            return;
        }
        self.wake_at = None;
        let owners = self.lanes.values_mut().flatten();
        for owner in owners.filter_map(Errand::owner_mut) {
            owner.not_before.take_if(|at| is_time(*at));
            self.wake_at = earlier(self.wake_at, owner.not_before);
        }
    }

    /// Returns when to call [`Errands::wake`].
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wake_at.filter(|_| !self.lanes.is_empty())
    }

    fn take(&mut self, user: UserId, at: usize) -> Option<Errand> {
        let lane = self.lanes.get_mut(&user)?;
        let errand = lane.remove(at);
        if lane.is_empty() {
            self.lanes.remove(&user);
            self.give_memory_back();
        }
        errand
    }

    /// Frees the tree: a tree that is empty again keeps room for eleven entries.
    fn give_memory_back(&mut self) {
        if self.lanes.is_empty() {
            self.lanes = BTreeMap::new();
        }
    }
}

/// Returns the earlier of two moments that may be none.
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}

/// Returns the position behind the last errand whose time of giving up satisfies `is_so`.
fn behind(lane: &VecDeque<Errand>, is_so: impl Fn(Time) -> bool) -> usize {
    let is_so = |errand: &Errand| errand.give_up_at().is_some_and(&is_so);
    lane.iter().rposition(is_so).map_or(0, |at| at + 1)
}

/// The content of a store reply that concerns errands other than its own.
pub(super) struct News {
    told: Told,
    /// The user of the request.
    asker: UserId,
    /// The number of the request: it was sent after the errands whose `after` is lower.
    store_request: StoreRequestId,
    /// The rest of the grace, in milliseconds: a token that is absent may yet come.
    grace_ms: Option<u64>,
}

enum Told {
    /// This token holds the lock.
    Holder(Token),
    /// The lock is free.
    Free,
    /// The store's error: the user may not send the request.
    Refused(Bytes),
    Nothing,
}

impl News {
    pub(super) fn of(in_flight: &InFlight, outcome: &Outcome) -> Self {
        let told = match (outcome, &in_flight.store_request) {
            // The reply may be from before a loss of data.
            _ if in_flight.forgotten => Told::Nothing,
            (Outcome::Held { holder, .. }, _) => holder.clone().map_or(Told::Nothing, Told::Holder),
            (Outcome::Free, _) => Told::Free,
            (Outcome::Refused(error), StoreRequest::Check { .. }) => Told::Refused(error.clone()),
            (
                Outcome::Granted { .. },
                StoreRequest::Acquire { token, .. }
                | StoreRequest::Handover { to: token, .. }
                | StoreRequest::Extend { token, .. },
            ) => Told::Holder(token.clone()),
            _ => Told::Nothing,
        };
        Self {
            told,
            asker: in_flight.store_request.user(),
            store_request: in_flight.id,
            grace_ms: in_flight.grace_ms,
        }
    }
}

impl Queue {
    /// Takes an errand. Refuses it if its user has too many, unless its token is known to hold the lock.
    pub(super) fn take_errand(&mut self, errand: Errand, context: &mut Context<'_>) {
        let is_full = self.errands.of_user(errand.user()) >= context.settings.max_waiters;
        match errand.owner() {
            Some(owner) if is_full && !self.is_holder(owner.user, &owner.token) => {
                context.reply(owner.request, Reply::Refused(Refusal::TooManyWaiters));
            }
            _ => self.errands.put(errand),
        }
    }

    /// Returns whether this token of this user holds the lock, as far as this instance knows.
    fn is_holder(&self, user: UserId, token: &Token) -> bool {
        let by_the_books = |lease: &Lease| lease.is_of(user, token);
        let is_believed =
            |belief: &Belief| belief.holder == *token && belief.user.is_none_or(|its| its == user);
        self.lease.as_ref().is_some_and(by_the_books)
            || self.belief.as_ref().is_some_and(is_believed)
    }

    /// Returns whether the waiters have the next store request. The errands have the one after it.
    pub(super) fn waiters_are_next(&mut self) -> bool {
        std::mem::take(&mut self.errands.yields) && !planted(Fault::ErrandsFirst)
    }

    /// Sends the store request of the next errand. Returns whether there was one.
    pub(super) fn run_errand(&mut self, context: &mut Context<'_>) -> bool {
        while let Some(errand) = self.next_errand() {
            let user = errand.user();
            let Some((store_request, reply_to)) = self.question_of(&errand, context) else {
                continue;
            };
            (self.errands.last, self.errands.yields) = (Some(user), true);
            if self.is_one_of_many(&errand) {
                // One reply settles all of them.
                self.errands.put_back(errand);
                self.start(StoreRequest::Check { user }, None, context);
                return true;
            }
            self.start(store_request, reply_to, context);
            if let Some(in_flight) = &mut self.in_flight {
                in_flight.errand = Some(Box::new(errand));
            }
            return true;
        }
        false
    }

    fn next_errand(&mut self) -> Option<Errand> {
        let mut errands = std::mem::take(&mut self.errands);
        let may = |errand: &Errand| {
            let waits = match errand {
                Errand::Relock(owner, _) => self.waits_for_write_back(owner.user, &owner.token),
                Errand::Unlock(_) | Errand::GiveAway { .. } => false,
            };
            let later = |owner: &Owner| owner.not_before.is_some();
            !waits && !errand.owner().is_some_and(later) && !self.cut_off.has(errand.user())
        };
        let frees = |errand: &Errand| match errand {
            Errand::Unlock(Owner { user, token, .. }) | Errand::GiveAway { user, token, .. } => {
                may(errand) && self.is_holder(*user, token)
            }
            Errand::Relock(..) => false,
        };
        let next = errands.take_first(frees).or_else(|| errands.take_next(may));
        self.errands = errands;
        next
    }

    /// Postpones the errand if its token is absent but another instance may yet write it back: until the lock changes,
    /// or the grace is over. Returns whether it did.
    pub(super) fn may_yet_come(&mut self, in_flight: &InFlight, context: &Context<'_>) -> bool {
        let (Some(ms), Some(_), Some(errand)) = (in_flight.grace_ms, in_flight.reply_to, &in_flight.errand)
        else {
            return false;
        };
        if planted(Fault::NotHeldWithinGrace) {
            return false;
        }
        self.put_off((**errand).clone(), context.now.plus_millis(ms));
        true
    }

    fn put_off(&mut self, mut errand: Errand, until: Time) {
        if let Some(owner) = errand.owner_mut() {
            owner.not_before = Some(until);
        }
        self.errands.put_back(errand);
    }

    /// Returns whether the errand's token is not known to hold the lock, and neither is that of at least one other
    /// errand of its user.
    fn is_one_of_many(&self, errand: &Errand) -> bool {
        let is_in_doubt = |errand: &Errand| {
            let owner = errand.owner();
            owner.is_some_and(|it| {
                it.not_before.is_none()
                    && !self.is_holder(it.user, &it.token)
                    && !self.is_anothers(it.user, &it.token)
            })
        };
        let lane = self.errands.lanes.get(&errand.user());
        is_in_doubt(errand) && lane.is_some_and(|lane| lane.iter().any(is_in_doubt))
    }

    /// Settles the errands that came before this request was sent, if its reply decides them.
    pub(super) fn settle_errands(&mut self, news: &News, context: &mut Context<'_>) {
        if self.errands.is_empty() || planted(Fault::ErrandsOneByOne) {
            return;
        }
        let may_know = |user| self.knows(user, Wait::No, context.now);
        let knowing: Vec<_> = self.errands.users().filter(|it| may_know(*it)).collect();
        let mut errands = std::mem::take(&mut self.errands);
        let settled = errands.take_where(|errand| {
            let is_late = |owner: &Owner| owner.after >= news.store_request.0;
            let Some(owner) = errand.owner().filter(|owner| !is_late(owner)) else {
                return false;
            };
            match &news.told {
                Told::Nothing => false,
                Told::Refused(_) => owner.user == news.asker,
                Told::Holder(token) if *token == owner.token => false,
                // A lease in this instance's state may yet be written back.
                Told::Holder(_) | Told::Free => {
                    knowing.contains(&owner.user) && !self.is_holder(owner.user, &owner.token)
                }
            }
        });
        self.errands = errands;
        if let (Some(ms), Told::Holder(_) | Told::Free) = (news.grace_ms, &news.told) {
            let again_at = context.now.plus_millis(ms);
            return settled
                .into_iter()
                .for_each(|errand| self.put_off(errand, again_at));
        }
        let reply = match &news.told {
            Told::Refused(error) => Reply::Refused(Refusal::Store(error.clone())),
            _ => Reply::NotHeld,
        };
        for owner in settled.iter().filter_map(Errand::owner) {
            context.reply(owner.request, reply.clone());
        }
    }
}
