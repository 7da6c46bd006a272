//! The queue of one lock.
//!
//! The queue holds three things: its waiters ([`WaitQueue`]), the latest word of the store ([`CachedHolder`], and the
//! [`Lease`] if this instance granted it), and the store request in flight. At most one is in flight, so replies need
//! no sorting. After every event [`Queue::go_on`] (`store_requests`) chooses the next store request by these three,
//! whatever the event was:
//!
//! 1. pending operations: what clients want done with a lock that they hold, and grants to take back. They alternate
//!    with waiters;
//! 2. a lock that is believed to be held needs no request, unless the holder itself requests it again;
//! 3. otherwise the queue requests the lock for the first waiter.
//!
//! Recovery from a loss of data (`recovery`) and renewal (`renewal`) come before all that: the queue writes back the
//! lease that this instance granted if the store lost it, and renews it while its session lives. A check of a lease
//! that may have changed comes last.
//!
//! Each store request acts for one user, so the store decides what that user may do. The queue first checks a user that
//! would wait without a request of its own (`rights`). The lock passes from user to user in two steps, and equal tokens
//! of different users count as different tokens.
//!
//! A release becomes a handover if the next waiter has the same user: release and next grant in one step. A push is a
//! hint that a cached holder is out of date, never a fact.
//!
//! On its own behalf (no client took a grant) this instance changes a key with a client's token only if the key still
//! has the deadline that this instance set: a client that returned at another instance with the same token must not
//! lose its new grant.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    backoff::Backoff,
    event::{
        Action, Dead, Deadline, Event, LinkId, Refusal, Reply, RequestId, Settings, StoreRequest,
        StoreRequestId, Time, Token, UserId,
    },
    fault::{Fault, planted},
    lease::{HandoverStreak, Lease},
    wait_queue::{Due, WaitQueue, Waiter},
};

mod clients;
mod links;
mod looks;
mod pending_ops;
mod recovery;
mod renewal;
mod rights;
mod store_replies;
mod store_requests;

use links::CutOff;
use pending_ops::PendingOps;
pub use recovery::LAST_LOOK_PART;
use recovery::LOOKED_AT_MS;
use rights::Rights;

/// The pause before a retry after the store said "not now", in milliseconds.
const NOT_NOW_PAUSE_MS: u64 = 100;

/// The error for a store reply that does not fit the request.
const NO_ANSWER: &[u8] = b"ERR the store gave no answer";

/// The queue of one lock.
#[derive(Debug)]
pub struct Queue {
    waiters: WaitQueue,
    ops: PendingOps,
    in_flight: Option<InFlight>,
    cached_holder: Option<CachedHolder>,
    /// The cached holder that a push ended, until the next reply.
    told_of: Option<CachedHolder>,
    lease: Option<Lease>,
    streak: HandoverStreak,
    backoff: Backoff,
    rights: Rights,
    cut_off: CutOff,
    /// The connection that pushes changes.
    armed: Option<LinkId>,
    /// The error of the latest "not now", until the store replies otherwise.
    trouble: Option<Bytes>,
    /// When to write the lease back after the store lost data. None: not at all.
    write_back_at: Option<Time>,
    /// The number of write-backs that the store has refused since the loss.
    write_backs_refused: u32,
    /// The store lost data, and may hold dead tokens of this lock: the queue checks the lock, also when it changes.
    watch: Option<Box<Watch>>,
    /// A dead token that was found to hold the lock.
    dead_holder: Option<Box<(Token, Dead)>>,
    /// A dead token that is alive again: its deadline shows a new grant elsewhere.
    alive_again: Option<Box<Token>>,
    /// Tokens that may come to hold the lock late, by a store request that was given up, and when to release them once
    /// more.
    late: VecDeque<(Time, UserId, Token)>,
    /// Tokens that may hold the lock by a store request that is not sent again. If a client waits with such a token,
    /// its next request shows the outcome; otherwise the queue takes the token back.
    unsure: BTreeMap<(UserId, Token), Maker>,
    store_requests: u64,
    /// When the lock was last known to be held.
    held_at: Time,
}

/// The state of a queue for `LOCKINFO` and `LOCKS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// How long the lock has been held under a lease of this instance, in milliseconds.
    pub held_here_ms: Option<u64>,
    /// The number of waiting requests.
    pub waiters: usize,
    /// How long the longest-waiting request has waited, in milliseconds.
    pub longest_wait_ms: u64,
    /// The queue renews the lease while its owner's connection lives.
    pub session: bool,
    /// The fence of the lease.
    pub fence: Option<u64>,
}

/// A holder that the store reported, believed until `until`.
#[derive(Debug)]
struct CachedHolder {
    holder: Token,
    /// The user of the token, if this instance granted the lock.
    user: Option<UserId>,
    /// When the holder's lease ends, as far as this instance knows.
    expires_latest: Option<Time>,
    until: Time,
}

/// An operation on a token that may hold the lock.
#[derive(Debug, Clone)]
enum PendingOp {
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
struct Owner {
    request: RequestId,
    user: UserId,
    token: Token,
    /// When the client gets an error because the store did not reply.
    give_up_at: Time,
    /// The number of the last store request that was sent before the pending operation came.
    after: u64,
    /// The earliest retry of a pending operation whose token may yet come. A change of the lock ends the delay.
    not_before: Option<Time>,
}

/// The maker of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// No client knows the token.
    Lockgate,
    /// The token may be in use at another instance.
    Client,
}

/// A watch for dead tokens.
#[derive(Debug)]
struct Watch {
    user: UserId,
    /// When to check the lock for the last time.
    until: Time,
    /// When to check the lock next.
    look_at: Option<Time>,
}

/// The store request in flight, or waiting for its retry.
#[derive(Debug)]
struct InFlight {
    id: StoreRequestId,
    store_request: StoreRequest,
    /// The client's request that gets the outcome of the release, extension or check, and until when it can use the
    /// outcome.
    reply_to: Option<(RequestId, Time)>,
    /// The pending operation that the request serves.
    op: Option<Box<PendingOp>>,
    sent_at: Time,
    /// An earlier sending got no reply, or the store lost data since the first sending.
    again: bool,
    /// A push caused the request.
    on_push: bool,
    /// What connections reported meanwhile.
    dirty: Vec<Dirty>,
    /// When to send the request again, if the store did not execute the latest sending.
    retry_at: Option<Time>,
    /// The client named the token that the request may grant the lock.
    explicit: bool,
    /// The request is on lockgate's own behalf: no client gets the outcome.
    own: bool,
    /// The store lost data meanwhile.
    data_lost: bool,
    /// The rest of the grace when the reply came.
    grace_ms: Option<u64>,
}

/// A connection that reported a change, or broke, while a store request was in flight.
#[derive(Debug, Clone, Copy)]
struct Dirty {
    link: LinkId,
    /// When to check the lock, if the connection broke before it reported a change.
    ask_at: Option<Time>,
}

impl Queue {
    /// Creates the queue of a lock of which nothing is known. `seed` determines the jitter.
    pub fn new(seed: u64) -> Self {
        Self {
            waiters: WaitQueue::default(),
            ops: PendingOps::default(),
            in_flight: None,
            cached_holder: None,
            told_of: None,
            lease: None,
            streak: HandoverStreak::default(),
            backoff: Backoff::new(seed),
            rights: Rights::default(),
            cut_off: CutOff::default(),
            armed: None,
            trouble: None,
            write_back_at: None,
            write_backs_refused: 0,
            watch: None,
            dead_holder: None,
            alive_again: None,
            late: VecDeque::new(),
            unsure: BTreeMap::new(),
            store_requests: 0,
            held_at: Time::default(),
        }
    }

    /// Handles an event, and appends the actions that follow from it to `todo`.
    pub fn handle(
        &mut self,
        now: Time,
        event: Event,
        settings: &Settings,
        actions: &mut Vec<Action>,
    ) {
        let mut context = Context {
            now,
            settings,
            actions,
        };
        match event {
            Event::Lock(send) => self.lock(&send, &mut context),
            Event::Unlock {
                request,
                asked_at,
                user,
                token,
            } => {
                let give_up_at = context.give_up_at(asked_at);
                let owner = Owner {
                    request,
                    user,
                    token,
                    give_up_at,
                    after: self.store_requests,
                    not_before: None,
                };
                self.take_op(PendingOp::Unlock(owner), &mut context);
            }
            Event::Relock {
                request,
                asked_at,
                user,
                token,
                lease_ms,
            } => {
                let give_up_at = context.give_up_at(asked_at);
                let owner = Owner {
                    request,
                    user,
                    token,
                    give_up_at,
                    after: self.store_requests,
                    not_before: None,
                };
                self.take_op(PendingOp::Relock(owner, lease_ms), &mut context);
            }
            Event::Gone {
                request,
                user,
                token,
            } => self.gone(request, user, &token, &context),
            Event::StopWaiting {
                request,
                user,
                token,
            } => {
                self.stop_waiting(request, user, &token, &mut context);
            }
            Event::Undelivered {
                request,
                user,
                token,
                since,
            } => self.undelivered(request, (user, &token), since, &mut context),
            Event::SessionClosed {
                request,
                user,
                token,
                by_client,
            } => self.session_closed(request, user, &token, by_client, &mut context),
            Event::UnlockBehind {
                request,
                user,
                token,
                held_by,
            } => {
                self.waiters.block(user, &token, request, held_by);
                self.refuse_deadlocked(&mut context);
            }
            Event::StoreReplied {
                store_request,
                store_reply,
                dead,
            } => {
                if let Some(in_flight) = self
                    .in_flight
                    .take_if(|in_flight| in_flight.id == store_request)
                {
                    self.store_replied(in_flight, store_reply, dead, &mut context);
                }
            }
            Event::Changed { .. } if planted(Fault::PushIgnored) => {}
            Event::Changed { link } => self.changed(link, None, &context),
            Event::TrackingLost { link, ask_at } => {
                self.rights.tracking_lost(link);
                self.changed(link, Some(ask_at), &context);
            }
            Event::Linked { user } => {
                self.linked(user, &mut context);
                self.recover_again(user, now);
            }
            Event::DataLost { dead } => self.data_lost(dead, &context),
            Event::Timer => self.timer(&mut context),
        }
        self.cut_off.expire(now);
        self.go_on(&mut context);
        if self.cached_holder.is_some() {
            self.held_at = now;
        }
    }

    /// Returns when to send [`Event::Timer`] next. None: never.
    pub fn wake_at(&self) -> Option<Time> {
        let answers = self.ops.give_up_at();
        let reply_to = self
            .in_flight
            .as_ref()
            .and_then(|in_flight| in_flight.reply_to)
            .map(|(_, until)| until);
        let lease = self.lease.as_ref().map(|lease| match lease.session {
            Some(_) => lease.lost_at(),
            None => lease.expires_latest,
        });
        let late = self.late.front().map(|(time, ..)| *time);
        let next_ask = match (&self.in_flight, &self.cached_holder) {
            (Some(in_flight), _) => in_flight.retry_at,
            (None, Some(cached_holder)) => Some(cached_holder.until),
            (None, None) => self.next_place().map(|_| self.backoff.ask_at()),
        };
        let ends = (self.waiters.next_due()).filter(|_| !planted(Fault::WaitNotTimed));
        let due = [ends, answers, reply_to, lease, next_ask];
        due.into_iter()
            .chain([late, self.upkeep_at(), self.next_cut_off_at()])
            .chain([self.ops.wake_at()])
            .flatten()
            .min()
    }

    /// Returns whether nothing is known and nothing is to be done, so that the driver may forget the queue.
    pub fn is_idle(&self) -> bool {
        self.waiters.is_idle()
            && self.ops.is_empty()
            && self.in_flight.is_none()
            && self.cached_holder.is_none()
            && self.lease.is_none()
            && self.late.is_empty()
            && self.watch.is_none()
    }

    /// Returns whether nothing is known of the lock although a store request is in flight, or cannot be sent. A nil
    /// reply now means that the wait ran out, not that another owner holds the lock.
    pub fn is_blind(&self) -> bool {
        self.cached_holder.is_none() && (self.in_flight.is_some() || self.cut_off.any())
    }

    /// Returns the users with state or work here, and the connection that pushes changes.
    pub fn needs(&self) -> (BTreeSet<UserId>, Option<LinkId>) {
        let ops = self.ops.users();
        let mut users: BTreeSet<UserId> = self.waiters.each_user().chain(ops).collect();
        users.extend(self.lease.as_ref().map(|lease| lease.user));
        users.extend(
            self.in_flight
                .as_ref()
                .map(|in_flight| in_flight.store_request.user()),
        );
        users.extend(self.late.iter().map(|(_, user, _)| *user));
        users.extend(self.watch.as_ref().map(|watch| watch.user));
        (users, self.armed)
    }

    /// Returns the state for `LOCKINFO` and `LOCKS`.
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let lease = self.lease.as_ref().filter(|lease| lease.receivers > 0);
        Snapshot {
            held_here_ms: lease.map(|lease| now.millis_since(lease.since)),
            waiters: self.waiters.requests(),
            longest_wait_ms: self
                .waiters
                .longest_since()
                .map_or(0, |since| now.millis_since(since)),
            session: lease.is_some_and(|lease| lease.session.is_some()),
            fence: lease.and_then(|lease| lease.fence),
        }
    }

    // ── events from the store and the clock ──────────────────────────────────────────────────────

    /// Records that the lock changed, or (with `ask_at`) that it may have: pushes are lost.
    fn changed(&mut self, link: LinkId, ask_at: Option<Time>, context: &Context<'_>) {
        if let (Some(_), Some(lease)) = (ask_at, &mut self.lease) {
            // The next connection may lead to a store that lacks data.
            lease.fence_at = None;
        }
        if self.armed == Some(link) {
            if let Some(watch) = &mut self.watch {
                watch.look_at = Some(ask_at.unwrap_or(context.now));
            }
            self.ops.wake(|_| true);
            if self.is_writing_back() {
                // The change concerns the token that keeps the lease from being written back.
                self.write_back_at = self.write_back_at.map(|_| ask_at.unwrap_or(context.now));
            } else if let (None, Some(lease)) = (ask_at, &mut self.lease) {
                lease.changed = true;
            }
        }
        if let Some(in_flight) = &mut self.in_flight {
            // On the wire the push may precede the reply or follow it.
            match in_flight.dirty.iter_mut().find(|dirty| dirty.link == link) {
                _ if planted(Fault::NoDirtyMark) => {}
                // A reported change stays reported when the connection breaks.
                Some(dirty) => dirty.ask_at = dirty.ask_at.and(ask_at),
                None => in_flight.dirty.push(Dirty { link, ask_at }),
            }
        } else if self.armed == Some(link) {
            self.armed = None;
            self.told_of = self.cached_holder.take().filter(|_| ask_at.is_none());
            match ask_at {
                None => self
                    .backoff
                    .push(context.now, context.settings.max_delay_ms),
                Some(time) => self.backoff.at(time),
            }
            if let Some(lease) = &mut self.lease {
                lease.check_at = Some(self.backoff.ask_at());
            }
        }
    }

    fn timer(&mut self, context: &mut Context<'_>) {
        self.ops.wake(|at| at <= context.now);
        for due in self.waiters.take_due(context.now) {
            match due {
                Due::Try(request) => context.reply(request, self.unanswered()),
                // It is unknown whether the lock is held.
                Due::Wait(request) if self.is_unanswered(context) => {
                    context.reply(request, self.unanswered());
                }
                Due::Wait(request) => context.reply(request, Reply::Nil),
            }
            self.left();
        }
        if self
            .cached_holder
            .as_ref()
            .is_some_and(|cached_holder| cached_holder.until <= context.now)
        {
            self.cached_holder = None;
            self.backoff.now();
        }
        self.tell_of_late_renewal(context);
        if self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.expires_latest <= context.now)
        {
            self.put_lease(None, true, context);
        }
        self.release_late(context);
        self.give_up(context);
        self.retry(context);
    }

    /// Sends the request again that the store did not execute, if its time has come.
    fn retry(&mut self, context: &mut Context<'_>) {
        if let Some(in_flight) = self
            .in_flight
            .take_if(|a| a.retry_at.is_some_and(|at| at <= context.now))
        {
            let dirty = in_flight.dirty.clone();
            self.ask_again_unless_gone(in_flight, context);
            self.heed(&dirty, context);
        }
    }

    /// Sends a request again that the store may not have executed, if there is still reason to.
    fn ask_again_unless_gone(&mut self, mut in_flight: InFlight, context: &mut Context<'_>) {
        match &mut in_flight.store_request {
            StoreRequest::Acquire { user, token, .. }
                if self.waiters.of_owner(*user, token).is_none() =>
            {
                self.doubt(&in_flight);
                self.left();
            }
            // The client has its reply. From now on the request is on lockgate's own behalf, and for that grant only,
            // since the token may be granted again elsewhere.
            StoreRequest::Release {
                user,
                token: holder,
                only_if,
            }
            | StoreRequest::Handover {
                user,
                from: holder,
                only_if,
                ..
            } if !in_flight.own
                && only_if.is_none()
                && in_flight
                    .reply_to
                    .is_none_or(|(_, until)| until <= context.now) =>
            {
                let lease = self.lease.as_ref().filter(|l| l.is_of(*user, holder));
                *only_if = lease.and_then(|lease| lease.deadline);
                if only_if.is_some() {
                    return self.send(in_flight, context);
                }
                self.doubt(&in_flight);
                if let Some((request, _)) = in_flight.reply_to {
                    context.reply(request, self.unanswered());
                }
            }
            // For an extension that follows a write-back, a renewal, and requests that serve a lease, the choice of the
            // next request decides whether they are still due.
            StoreRequest::Extend { user, token, .. } if self.waits_for_write_back(*user, token) => {
                self.extend_later(in_flight);
            }
            StoreRequest::Extend { .. } if in_flight.reply_to.is_none() => {}
            StoreRequest::WriteBack { .. } => self.write_back_at = Some(context.now),
            StoreRequest::DeleteDead { dead, .. } => {
                self.look_again(dead.user, LOOKED_AT_MS, context)
            }
            // The choice of the next request decides whether an unauthorized user still needs a check.
            StoreRequest::Check { .. } if in_flight.reply_to.is_none() => {
                self.look_later(context.now);
                if let (None, Some(lease)) = (&self.cached_holder, &mut self.lease) {
                    lease.check_at = Some(context.now);
                }
            }
            _ => self.send(in_flight, context),
        }
    }

    /// Replies to the clients whose store request took too long. Their releases still happen, but on lockgate's own
    /// behalf, and only of a lease whose deadline this instance knows.
    fn give_up(&mut self, context: &mut Context<'_>) {
        let reply = self.unanswered();
        if let Some(in_flight) = &mut self.in_flight
            && let Some((request, _)) = in_flight
                .reply_to
                .take_if(|(_, until)| *until <= context.now)
        {
            context.reply(request, reply.clone());
        }
        for op in self.ops.take_where(|op| op.is_due(context.now)) {
            match op {
                PendingOp::Unlock(owner) => {
                    context.reply(owner.request, reply.clone());
                    if let Some(mut lease) = self.lease_of(owner.user, &owner.token) {
                        lease.session = None;
                        // After the error the client may acquire the lock elsewhere with the same token.
                        if lease.deadline.is_some() {
                            lease.receivers = 0;
                            self.ops.put(PendingOp::GiveAway {
                                user: owner.user,
                                token: owner.token,
                                only_if: lease.deadline,
                            });
                        }
                        self.put_lease(Some(lease), false, context);
                    }
                }
                PendingOp::Relock(owner, _) => context.reply(owner.request, reply.clone()),
                PendingOp::GiveAway { .. } => {}
            }
        }
    }

    /// Releases tokens once more that may have come to hold the lock late.
    fn release_late(&mut self, context: &Context<'_>) {
        while self
            .late
            .front()
            .is_some_and(|(time, ..)| *time <= context.now)
            && let Some((_, user, token)) = self.late.pop_front()
        {
            self.ops.put(PendingOp::GiveAway {
                user,
                token,
                only_if: None,
            });
        }
    }

    /// Returns whether the lock's state is unknown because the store does not reply.
    fn is_unanswered(&self, context: &Context<'_>) -> bool {
        let late = |in_flight: &InFlight| {
            in_flight.again
                || in_flight.retry_at.is_some()
                || context.now.millis_since(in_flight.sent_at) >= context.settings.answer_within_ms
        };
        let troubled = self.trouble.is_some() || self.cut_off.any();
        let troubled = troubled || self.in_flight.as_ref().is_some_and(late);
        self.cached_holder.is_none() && troubled
    }

    fn unanswered(&self) -> Reply {
        Reply::Refused(match &self.trouble {
            Some(error) => Refusal::Store(error.clone()),
            None => Refusal::Upstream,
        })
    }

    /// Returns until when to keep the place of a client that is gone. None: as many places are kept as requests may
    /// wait.
    fn keep_until(&self, context: &Context<'_>) -> Option<Time> {
        let has_room = self.waiters.kept() < context.settings.max_waiters;
        has_room.then(|| context.now.plus_millis(context.settings.reconnect_grace_ms))
    }

    fn lease_of(&self, user: UserId, token: &Token) -> Option<Lease> {
        self.lease.clone().filter(|lease| lease.is_of(user, token))
    }

    /// Returns whether another user holds the lock with this very token, by this instance's state. The store, which
    /// knows no users, would take one user for the other.
    fn is_anothers(&self, user: UserId, token: &Token) -> bool {
        let same = |lease: &Lease| lease.token == *token && lease.user != user;
        self.lease.as_ref().is_some_and(same)
    }
}

impl PendingOp {
    fn give_up_at(&self) -> Option<Time> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner.give_up_at),
            Self::GiveAway { .. } => None,
        }
    }

    fn user(&self) -> UserId {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => owner.user,
            Self::GiveAway { user, .. } => *user,
        }
    }

    /// Returns the client that the pending operation serves.
    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner),
            Self::GiveAway { .. } => None,
        }
    }

    /// Returns the client that the pending operation serves.
    fn owner_mut(&mut self) -> Option<&mut Owner> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner),
            Self::GiveAway { .. } => None,
        }
    }

    fn is_due(&self, now: Time) -> bool {
        self.give_up_at().is_some_and(|time| time <= now)
    }

    fn gives_away(&self, whose: UserId, what: &Token) -> bool {
        matches!(self, Self::GiveAway { user, token, .. } if *user == whose && token == what)
    }
}

impl Owner {
    fn reply_to(&self) -> Option<(RequestId, Time)> {
        Some((self.request, self.give_up_at))
    }
}

impl InFlight {
    /// Returns whether the request may grant this owner the lock.
    fn is_for(&self, whose: UserId, what: &Token) -> bool {
        match &self.store_request {
            StoreRequest::Acquire { user, token, .. } => *user == whose && token == what,
            StoreRequest::Handover { user, to, .. } => *user == whose && to == what,
            _ => false,
        }
    }
}

/// The handling of one event: its time, the settings, and the actions that follow from it.
struct Context<'a> {
    now: Time,
    settings: &'a Settings,
    actions: &'a mut Vec<Action>,
}

impl Context<'_> {
    fn reply(&mut self, request: RequestId, reply: Reply) {
        self.actions.push(Action::Reply { request, reply });
    }

    fn give_up_at(&self, asked_at: Time) -> Time {
        asked_at.plus_millis(self.settings.answer_within_ms)
    }
}
