//! The pending operations at one lock: what clients want done with a lock that they claim to hold (`UNLOCK`, `RELOCK`),
//! and grants to take back.
//!
//! Only one store request about a lock is in flight at a time, so pending operations compete with waiters and with each
//! other for it. Three rules keep any client's operations from delaying the others:
//!
//! - **They alternate with waiters.** After a store request for an operation, the waiters have the next one.
//! - **They take turns by user.** The release by the known holder goes before all others, since it frees the lock.
//! - **One reply settles many.** A reply that names the holder shows that no other token holds the lock. It settles each
//!   operation that came before its request was sent, for users that may know of the lock. A refusal settles all earlier
//!   operations of its user. So a user's operations cost one store request for each round trip, however many there are.
//!   A reply to a request from before an operation came settles nothing for it: the lock may have changed hands.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
};

use bytes::Bytes;

use super::{CachedHolder, Context, InFlight, Queue};
use crate::lock::{
    event::{Refusal, Reply, RequestId, Settings, Time, Token, UserId, Wait},
    fault::{Fault, planted},
    lease::Lease,
    store_request::{Deadline, Outcome, StoreRequest, StoreRequestId},
};

/// An operation on a token that may hold the lock.
#[derive(Debug, Clone)]
pub(super) enum PendingOp {
    Unlock(Owner),
    Relock(Owner, u64),
    /// A grant that reached no client: the next waiter gets the lock, or the lock becomes free.
    GiveAway {
        user: UserId,
        token: Token,
        only_if: Option<Deadline>,
    },
}

/// A client that claims to hold the lock.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) request: RequestId,
    pub(super) user: UserId,
    pub(super) token: Token,
    /// When the client gets an error because the store did not reply.
    pub(super) give_up_at: Time,
    /// The number of the last store request that was sent before the pending operation came.
    pub(super) after: u64,
    /// The earliest retry of a pending operation whose token may yet come. A change of the lock ends the delay.
    pub(super) not_before: Option<Time>,
    /// The command is one of Redis's own. Other owners may have the same token.
    pub(super) absorbed: bool,
    /// The number of replicas that have to acknowledge an extension.
    pub(super) replicas: u32,
}

impl PendingOp {
    pub(super) fn give_up_at(&self) -> Option<Time> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner.give_up_at),
            Self::GiveAway { .. } => None,
        }
    }

    pub(super) fn user(&self) -> UserId {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => owner.user,
            Self::GiveAway { user, .. } => *user,
        }
    }

    /// Returns the client that the pending operation serves.
    pub(super) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner),
            Self::GiveAway { .. } => None,
        }
    }

    /// Returns the client that the pending operation serves.
    pub(super) fn owner_mut(&mut self) -> Option<&mut Owner> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner),
            Self::GiveAway { .. } => None,
        }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.give_up_at().is_some_and(|time| time <= now)
    }

    pub(super) fn gives_away(&self, whose: UserId, what: &Token) -> bool {
        matches!(self, Self::GiveAway { user, token, .. } if *user == whose && token == what)
    }

    /// Returns whether the pending operation ends the lease of this owner.
    pub(super) fn releases(&self, whose: UserId, what: &Token) -> bool {
        match self {
            Self::Unlock(owner) => owner.user == whose && owner.token == *what,
            Self::GiveAway { .. } => self.gives_away(whose, what),
            Self::Relock(..) => false,
        }
    }
}

impl Owner {
    pub(super) fn reply_to(&self) -> Option<(RequestId, Time)> {
        Some((self.request, self.give_up_at))
    }
}

/// The pending operations at one lock, by user. Those of one user are in the order in which they are given up.
#[derive(Debug, Default)]
pub(super) struct PendingOps {
    lanes: BTreeMap<UserId, VecDeque<PendingOp>>,
    /// The user of the latest pending operation that was sent.
    last: Option<UserId>,
    /// The latest store request was for a pending operation: the waiters have the next one.
    yields: bool,
    /// No postponed pending operation may run before this moment. None: no pending operation is postponed.
    wake_at: Option<Time>,
}

impl PendingOps {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingOp> {
        self.lanes.values().flatten()
    }

    /// Returns the users with pending operations.
    pub(super) fn users(&self) -> impl Iterator<Item = UserId> {
        self.lanes.keys().copied()
    }

    /// Returns the number of this user's pending operations.
    pub(super) fn of_user(&self, user: UserId) -> usize {
        self.lanes.get(&user).map_or(0, VecDeque::len)
    }

    /// Returns when the first pending operation is to be given up.
    pub(super) fn give_up_at(&self) -> Option<Time> {
        let firsts = self.lanes.values();
        firsts
            .filter_map(|lane| lane.iter().find_map(PendingOp::give_up_at))
            .min()
    }

    /// Puts a pending operation behind those of its user that are given up no later.
    pub(super) fn put(&mut self, op: PendingOp) {
        let give_up_at = op.give_up_at();
        let lane = self.lanes.entry(op.user()).or_default();
        let mut latest = lane.iter().rev().filter_map(PendingOp::give_up_at);
        let at = match latest.next() {
            Some(latest) if give_up_at.is_some_and(|it| latest > it) => {
                behind(lane, |at| Some(at) <= give_up_at)
            }
            _ => lane.len(),
        };
        lane.insert(at, op);
    }

    /// Puts a pending operation back that has to wait for another store request: it is the next of its user again.
    pub(super) fn put_back(&mut self, op: PendingOp) {
        let give_up_at = op.give_up_at();
        let not_before = op.owner().and_then(|owner| owner.not_before);
        self.wake_at = earlier(self.wake_at, not_before);
        let lane = self.lanes.entry(op.user()).or_default();
        let at = behind(lane, |at| Some(at) < give_up_at);
        lane.insert(at, op);
    }

    /// Takes out the pending operations that satisfy `is_so`.
    pub(super) fn take_where(
        &mut self,
        mut is_so: impl FnMut(&PendingOp) -> bool,
    ) -> Vec<PendingOp> {
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

    /// Takes out the first pending operation that satisfies `is_so`.
    fn take_first(&mut self, is_so: impl Fn(&PendingOp) -> bool) -> Option<PendingOp> {
        let found = self.lanes.iter().find_map(|(user, lane)| {
            let at = lane.iter().position(&is_so)?;
            Some((*user, at))
        });
        let (user, at) = found?;
        self.take(user, at)
    }

    /// Takes out the first pending operation that satisfies `may`, of the next user in turn that has one.
    fn take_next(&mut self, may: impl Fn(&PendingOp) -> bool) -> Option<PendingOp> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.lanes.range((after, Bound::Unbounded));
        let mut lanes = later.chain(&self.lanes);
        let (user, at) =
            lanes.find_map(|(user, lane)| Some((*user, lane.iter().position(&may)?)))?;
        self.take(user, at)
    }

    /// Ends the delay of each pending operation that is postponed until a moment that satisfies `is_time`.
    pub(super) fn wake(&mut self, is_time: impl Fn(Time) -> bool) {
        if !self.wake_at.is_some_and(&is_time) {
            return;
        }
        self.wake_at = None;
        let owners = self.lanes.values_mut().flatten();
        for owner in owners.filter_map(PendingOp::owner_mut) {
            owner.not_before.take_if(|at| is_time(*at));
            self.wake_at = earlier(self.wake_at, owner.not_before);
        }
    }

    /// Returns when to call [`PendingOps::wake`].
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wake_at.filter(|_| !self.lanes.is_empty())
    }

    fn take(&mut self, user: UserId, at: usize) -> Option<PendingOp> {
        let lane = self.lanes.get_mut(&user)?;
        let op = lane.remove(at);
        if lane.is_empty() {
            self.lanes.remove(&user);
            self.give_memory_back();
        }
        op
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

/// Returns the position behind the last pending operation whose time of giving up satisfies `is_so`.
fn behind(lane: &VecDeque<PendingOp>, is_so: impl Fn(Time) -> bool) -> usize {
    let is_so = |op: &PendingOp| op.give_up_at().is_some_and(&is_so);
    lane.iter().rposition(is_so).map_or(0, |at| at + 1)
}

/// The content of a store reply that concerns pending operations other than its own.
pub(super) struct News {
    told: Told,
    /// The user of the request.
    asker: UserId,
    /// The number of the request: it was sent after the pending operations whose `after` is lower.
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
            _ if in_flight.data_lost => Told::Nothing,
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
    /// Returns the client that claims by this request to hold the lock.
    pub(super) fn owner(
        &self,
        request: RequestId,
        asked_at: Time,
        (user, token): (UserId, Token),
        settings: &Settings,
    ) -> Owner {
        Owner {
            request,
            user,
            token,
            give_up_at: asked_at.plus_millis(settings.answer_within_ms),
            after: self.store_requests,
            not_before: None,
            absorbed: false,
            replicas: 0,
        }
    }

    /// Takes a pending operation. Refuses it if its user has too many, unless its token is known to hold the lock.
    pub(super) fn take_op(&mut self, op: PendingOp, context: &mut Context<'_>) {
        let is_full = self.ops.of_user(op.user()) >= context.settings.max_waiters;
        let is_cut_off = self.cut_off.has(op.user());
        match op.owner() {
            Some(owner) if is_cut_off && owner.absorbed => {
                context.reply(owner.request, Reply::Refused(Refusal::NotSent));
            }
            Some(owner) if is_full && !self.is_holder(owner.user, &owner.token) => {
                context.reply(owner.request, Reply::Refused(Refusal::TooManyWaiters));
            }
            _ => self.ops.put(op),
        }
    }

    /// Returns whether this token of this user holds the lock, as far as this instance knows.
    pub(super) fn is_holder(&self, user: UserId, token: &Token) -> bool {
        let by_the_books = |lease: &Lease| lease.is_of(user, token);
        let is_believed = |cached_holder: &CachedHolder| {
            cached_holder.holder == *token && cached_holder.user.is_none_or(|its| its == user)
        };
        self.lease.as_ref().is_some_and(by_the_books)
            || self.cached_holder.as_ref().is_some_and(is_believed)
    }

    /// Returns whether the waiters have the next store request. The pending operations have the one after it.
    pub(super) fn waiters_are_next(&mut self) -> bool {
        std::mem::take(&mut self.ops.yields) && !planted(Fault::OpsFirst)
    }

    /// Sends the store request of the next pending operation. Returns whether there was one.
    pub(super) fn run_op(&mut self, context: &mut Context<'_>) -> bool {
        while let Some(op) = self.next_op() {
            let user = op.user();
            let Some((store_request, reply_to)) = self.question_of(&op, context) else {
                continue;
            };
            (self.ops.last, self.ops.yields) = (Some(user), true);
            if self.is_one_of_many(&op) {
                // One reply settles all of them.
                self.ops.put_back(op);
                self.start(StoreRequest::Check { user }, None, context);
                return true;
            }
            self.start(store_request, reply_to, context);
            if let Some(in_flight) = &mut self.in_flight {
                in_flight.op = Some(Box::new(op));
            }
            return true;
        }
        false
    }

    fn next_op(&mut self) -> Option<PendingOp> {
        let mut ops = std::mem::take(&mut self.ops);
        let may = |op: &PendingOp| {
            let waits = match op {
                PendingOp::Relock(owner, _) => self.waits_for_write_back(owner.user, &owner.token),
                PendingOp::Unlock(_) | PendingOp::GiveAway { .. } => false,
            };
            let later = |owner: &Owner| owner.not_before.is_some();
            !waits && !op.owner().is_some_and(later) && !self.cut_off.has(op.user())
        };
        let frees = |op: &PendingOp| match op {
            PendingOp::Unlock(Owner { user, token, .. })
            | PendingOp::GiveAway { user, token, .. } => may(op) && self.is_holder(*user, token),
            PendingOp::Relock(..) => false,
        };
        let next = ops.take_first(frees).or_else(|| ops.take_next(may));
        self.ops = ops;
        next
    }

    /// Postpones the pending operation if its token is absent but another instance may yet write it back: until the
    /// lock changes, or the grace is over. Returns whether it did.
    pub(super) fn may_yet_come(&mut self, in_flight: &InFlight, context: &Context<'_>) -> bool {
        let (Some(ms), Some(_), Some(op)) = (in_flight.grace_ms, in_flight.reply_to, &in_flight.op)
        else {
            return false;
        };
        if planted(Fault::NotHeldWithinGrace) {
            return false;
        }
        self.put_off((**op).clone(), context.now.plus_millis(ms));
        true
    }

    fn put_off(&mut self, mut op: PendingOp, until: Time) {
        if let Some(owner) = op.owner_mut() {
            owner.not_before = Some(until);
        }
        self.ops.put_back(op);
    }

    /// Returns whether the pending operation's token is not known to hold the lock, and neither is that of at least one
    /// other pending operation of its user.
    fn is_one_of_many(&self, op: &PendingOp) -> bool {
        let is_in_doubt = |op: &PendingOp| {
            let owner = op.owner();
            owner.is_some_and(|it| {
                it.not_before.is_none()
                    && !self.is_holder(it.user, &it.token)
                    && !self.is_anothers(it.user, &it.token)
            })
        };
        let lane = self.ops.lanes.get(&op.user());
        is_in_doubt(op) && lane.is_some_and(|lane| lane.iter().any(is_in_doubt))
    }

    /// Settles the pending operations that came before this request was sent, if its reply decides them.
    pub(super) fn settle_ops(&mut self, news: &News, context: &mut Context<'_>) {
        if self.ops.is_empty() || planted(Fault::OpsOneByOne) {
            return;
        }
        let may_know = |user| self.knows(user, Wait::No, context.now);
        let knowing: Vec<_> = self.ops.users().filter(|it| may_know(*it)).collect();
        let mut ops = std::mem::take(&mut self.ops);
        let settled = ops.take_where(|op| {
            let is_late = |owner: &Owner| owner.after >= news.store_request.0;
            let Some(owner) = op.owner().filter(|owner| !is_late(owner)) else {
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
        self.ops = ops;
        if let (Some(ms), Told::Holder(_) | Told::Free) = (news.grace_ms, &news.told) {
            let again_at = context.now.plus_millis(ms);
            return settled
                .into_iter()
                .for_each(|op| self.put_off(op, again_at));
        }
        let reply = match &news.told {
            Told::Refused(error) => Reply::Refused(Refusal::Store(error.clone())),
            _ => Reply::NotHeld,
        };
        for owner in settled.iter().filter_map(PendingOp::owner) {
            context.reply(owner.request, reply.clone());
        }
    }
}
