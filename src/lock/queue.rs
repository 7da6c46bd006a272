//! The queue of one lock.
//!
//! The queue holds three things: its waiters ([`Waiters`]), the latest word of the store ([`CachedHolder`], and the
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
//! `store_replies` passes a reply on to the handler of its request: `grants`, `releases`, `extensions`, `renewal` (of
//! checks), or `recovery`; `acknowledgement` handles grants that too few replicas acknowledged. `holder` records what the
//! reply shows of the holder, and `in_flight` sends a request again that got no decision.
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
    event::{Action, Dead, Event, Reply, RequestId, Settings, Time, Token, UserId},
    fault::{Fault, planted},
    lease::{HandoverStreak, Lease},
    store_request::LinkId,
    wait_queue::{Keep, Waiter, Waiters},
};

mod acknowledgement;
mod clients;
mod extensions;
mod grants;
mod holder;
mod in_flight;
mod links;
mod looks;
mod pending_ops;
mod recovery;
mod releases;
mod renewal;
mod resting;
mod rights;
mod store_replies;
mod store_requests;
mod timer;
mod unsure;

use acknowledgement::Unacknowledged;
pub use clients::BELIEF_MS;
use holder::CachedHolder;
use in_flight::{Dirty, InFlight, NOT_NOW_PAUSE_MS};
use links::CutOff;
use pending_ops::{PendingOp, PendingOps};
pub use recovery::LAST_LOOK_PART;
pub use resting::Resting;
use rights::Rights;
use unsure::Maker;

/// The queue of one lock.
#[derive(Debug)]
pub struct Queue {
    waiters: Waiters,
    ops: PendingOps,
    in_flight: Option<Box<InFlight>>,
    cached_holder: Option<CachedHolder>,
    /// The cached holder that a push ended, until the next reply.
    told_of: Option<Box<CachedHolder>>,
    lease: Option<Lease>,
    streak: HandoverStreak,
    backoff: Backoff,
    rights: Rights,
    cut_off: CutOff,
    /// The connection that pushes changes.
    armed: Option<LinkId>,
    /// The error of the latest "not now", until the store replies otherwise.
    trouble: Option<Box<Bytes>>,
    /// The latest grant that too few replicas acknowledged, if none that wanted as many counts since.
    unacknowledged: Option<Box<Unacknowledged>>,
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
    /// When the grace is over in which the store let no free lock be taken.
    grace_until: Time,
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
    /// The lease was granted to an attempt of a client that spins.
    pub spins: bool,
    /// The number of replicas that acknowledged the grant.
    pub replicas: u32,
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

impl Queue {
    /// Creates the queue of a lock of which nothing is known. `seed` determines the jitter.
    pub fn new(seed: u64) -> Self {
        Self {
            waiters: Waiters::default(),
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
            unacknowledged: None,
            write_back_at: None,
            write_backs_refused: 0,
            watch: None,
            dead_holder: None,
            alive_again: None,
            late: VecDeque::new(),
            unsure: BTreeMap::new(),
            store_requests: 0,
            held_at: Time::default(),
            grace_until: Time::default(),
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
                absorbed,
            } => {
                let mut owner = self.owner(request, asked_at, (user, token), settings);
                owner.absorbed = absorbed;
                self.unlock(owner, &mut context);
            }
            Event::Delete {
                request,
                asked_at,
                user,
            } => self.delete(request, asked_at, user, &mut context),
            Event::Relock {
                request,
                asked_at,
                user,
                token,
                lease_ms,
                replicas,
                absorbed,
            } => {
                let mut owner = self.owner(request, asked_at, (user, token), settings);
                (owner.absorbed, owner.replicas) = (absorbed, replicas);
                self.take_op(PendingOp::Relock(owner, lease_ms), &mut context);
            }
            Event::Gone { request } => self.gone(request, &context),
            Event::StopWaiting { request } => self.stop_waiting(request, &mut context),
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
            // An attempt ends whatever stands behind it.
            Event::UnlockBehind { request, .. } if self.is_attempt(request) => {}
            Event::UnlockBehind { request, held_by } => {
                self.waiters.block(request, held_by);
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
                    self.store_replied(*in_flight, store_reply, dead, &mut context);
                }
            }
            Event::Taken => self.taken(),
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
        self.end_delay(now);
        self.go_on(&mut context);
        self.waiters.settle();
        if self.cached_holder.is_some() {
            self.held_at = now;
        }
    }

    /// Returns when to send [`Event::Timer`] next. None: never.
    pub fn wake_at(&self) -> Option<Time> {
        let answers = self.ops.give_up_at();
        let reply_to = self
            .in_flight
            .as_deref()
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
            (None, None) => self.next_ask_at(),
        };
        let ends = (self.waiters.next_due()).filter(|_| !planted(Fault::WaitNotTimed));
        let due = [ends, answers, reply_to, lease, next_ask];
        due.into_iter()
            .chain([late, self.upkeep_at(), self.next_cut_off_at()])
            .chain([self.ops.wake_at(), self.delayed_until()])
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

    /// Returns the holder's token, and how many milliseconds its lease lasts at least.
    pub fn holder(&self, now: Time) -> Option<(&Token, u64)> {
        let lease = self.lease.as_ref()?;
        let left_ms = lease.expires_earliest.millis_since(now);
        (left_ms > 0).then_some((&lease.token, left_ms))
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
            spins: lease.is_some_and(|lease| lease.attempt.is_some()),
            replicas: lease.map_or(0, |lease| lease.replicas),
        }
    }

    // ── events from the store and the clock ──────────────────────────────────────────────────────

    /// Returns how long to keep the place of a client that is gone, or was refused.
    fn keep(&self, context: &Context<'_>) -> Keep {
        Keep {
            until: context.now.plus_millis(context.settings.reconnect_grace_ms),
            most: context.settings.max_waiters,
            most_by_connection: context.settings.max_kept_by_connection,
        }
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
}
