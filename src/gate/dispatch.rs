//! The path of an event through its queue. [`Gate::dispatch`] passes the event to the queue under the map's lock,
//! and performs the queue's actions after that. The store's reply returns as an event to the same queue.

use std::{
    hash::BuildHasher,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use dashmap::mapref::{entry, one::RefMut};
use tokio::sync::oneshot;

use super::{
    Gate, Label, Mailbox, SessionOver,
    entry::{Awake, Callers, Entry},
};
use crate::{
    clock,
    lock::{
        Action, EndReason, Event, LockMetric, Refusal, Reply, RequestId, StoreReply, StoreRequest,
        StoreRequestId, Time, UserId,
    },
    store::{LockName, Receipt},
    telemetry::metrics::locks::Request,
};

/// The origin of a request that has no reply yet.
pub(super) struct Caller {
    pub(super) asked: Request,
    pub(super) since: Time,
    /// The client has closed its connection: a nil counts as a departure.
    pub(super) left: bool,
    pub(super) reply_to: oneshot::Sender<Reply>,
    pub(super) user: UserId,
    pub(super) label: Arc<Label>,
    pub(super) mailbox: Option<Mailbox>,
}

/// A reply on its way to its client.
struct Delivery {
    request: RequestId,
    caller: Caller,
    reply: Reply,
}

impl Gate {
    /// Passes an event to the lock's queue and performs the resulting actions. With a caller, the event is a
    /// new request, and a lock without a queue gets one.
    pub(super) fn dispatch(&self, name: &LockName, event: Event, caller: Option<Caller>) {
        let mut events = vec![(event, caller)];
        while let Some((event, caller)) = events.pop() {
            let mut todo = self.handle(name, event, caller);
            // The reply to a release wakes a client that has time; a grant wakes one that has waited.
            todo.deliveries.sort_by_key(|it| !it.is_grant());
            for delivery in todo.deliveries {
                events.extend(delivery.send().map(|event| (event, None)));
            }
            for (id, store_request, within) in todo.store_requests {
                let answered = self.ask(name, id, store_request, within);
                events.extend(answered.map(|event| (event, None)));
            }
        }
    }

    fn handle(&self, name: &LockName, event: Event, caller: Option<Caller>) -> Todo {
        let mut todo = Todo::default();
        // A lock without any request here may still have a dead token in the store.
        let begins = caller.is_some() || matches!(event, Event::DataLost { dead: Some(_) });
        let entry = match begins {
            true => Some(self.entry(name)),
            false => self.queues.get_mut(name),
        };
        let Some(mut entry) = entry else { return todo };
        let awake = entry.wake(|| self.seeds.hash_one(name));
        if let (Some(caller), Some(request)) = (caller, event.request()) {
            if caller.asked.wants_lock() {
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
            awake.balance = (caller.asked.is_absorbed()).then(|| awake.balance.unwrap_or(0));
            self.log.asked(name, &caller);
            awake.callers.insert(request, caller);
        }
        self.step(name, awake, event, &mut todo);
        let idle = entry.is_idle();
        if !idle {
            entry.rest();
        }
        drop(entry);
        if idle
            && let Some((_, mut entry)) = self.queues.remove_if(name, |_, entry| entry.is_idle())
        {
            self.known.fetch_sub(1, Ordering::Relaxed);
            let callers = entry.wake(|| 0).callers.values();
            let waiting = callers.filter(|it| it.asked.wants_lock());
            self.waiting.fetch_sub(waiting.count(), Ordering::Relaxed);
        }
        todo
    }

    /// Returns the lock's entry, with a new queue if there was none.
    fn entry(&self, name: &LockName) -> RefMut<'_, LockName, Entry> {
        match self.queues.entry(name.clone()) {
            entry::Entry::Occupied(entry) => entry.into_ref(),
            entry::Entry::Vacant(entry) => {
                self.known.fetch_add(1, Ordering::Relaxed);
                entry.insert(Entry::new(self.seeds.hash_one(name)))
            }
        }
    }

    /// Handles one event, under the map's lock.
    fn step(&self, name: &LockName, entry: &mut Awake, event: Event, todo: &mut Todo) {
        let now = clock::now();
        self.received(name, entry, &event, now);
        todo.closed_by_us = matches!(
            event,
            Event::SessionClosed {
                by_client: false,
                ..
            }
        );
        for action in self.actions_of(entry, event, now, todo) {
            self.perform(name, entry, action, now, todo);
        }
        let wake_at = entry.queue.wake_at();
        if wake_at != entry.wake_at {
            self.timers.change(name, entry.wake_at, wake_at);
            entry.wake_at = wake_at;
        }
    }

    /// Records what the event alone says of its caller and of the timer.
    fn received(&self, name: &LockName, entry: &mut Awake, event: &Event, now: Time) {
        match event {
            Event::Gone { request, .. } => {
                if let Some(caller) = self.take_caller(entry, *request) {
                    let waited = now.micros_since(caller.since);
                    self.metrics.left(caller.asked, waited);
                    self.log.left(name, &caller, now);
                }
            }
            Event::StopWaiting { request, .. } => {
                if let Some(caller) = entry.callers.get_mut(request) {
                    caller.left = true;
                }
            }
            Event::Undelivered { .. } => self.metrics.undelivered(),
            // The timer behind this event is used up.
            Event::Timer => entry.wake_at = None,
            _ => {}
        }
    }

    /// Passes the event to the queue, and counts leases and recoveries that begin or end by it. Adds to `todo` which
    /// lease ended.
    fn actions_of(
        &self,
        entry: &mut Awake,
        event: Event,
        now: Time,
        todo: &mut Todo,
    ) -> Vec<Action> {
        let queue = &mut entry.queue;
        let before = (queue.held_since(), queue.is_recovering());
        let mut actions = Vec::new();
        queue.handle(now, event, &self.settings, &mut actions);
        let after = (queue.held_since(), queue.is_recovering());
        self.metrics
            .lease_changed(before.0.is_some(), after.0.is_some());
        match (before.1, after.1) {
            (false, true) => self.recovering.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.recovering.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        if before.0 != after.0 {
            todo.holder_before = entry.holder.take();
        }
        todo.ended = actions.iter().find_map(|action| match action {
            Action::Happened(LockMetric::LeaseOver { how, .. }) => Some(*how),
            _ => None,
        });
        actions
    }

    /// Performs an action, or adds it to `todo` if it must not run under the map's lock.
    fn perform(
        &self,
        name: &LockName,
        entry: &mut Awake,
        action: Action,
        now: Time,
        todo: &mut Todo,
    ) {
        match action {
            Action::Send {
                id,
                store_request,
                within_ms,
            } => {
                let within = Duration::from_millis(within_ms);
                entry.balance = entry.balance.map(|balance| balance.saturating_sub(1));
                todo.store_requests.push((id, store_request, within));
            }
            Action::Reply { request, reply } => {
                let delivery = self.delivery(name, entry, request, reply, now);
                todo.deliveries.extend(delivery);
            }
            Action::SessionOver { request, lost } => {
                if let Some(mailbox) = entry.take_mailbox(request) {
                    if lost {
                        self.metrics.lost_session();
                    }
                    if let Some(cause) = todo.cause(lost) {
                        let owner = todo.holder_before.as_ref().or(entry.holder.as_ref());
                        self.log.session_lost(name, owner.map(|it| &**it), cause);
                    }
                    // Without a receiver the connection has ended.
                    let _ = mailbox.send(SessionOver { request, lost });
                }
            }
            Action::Dead {
                dead_token,
                before_loss,
            } => {
                let dead_tokens = &self.dead_tokens;
                if !dead_tokens.remember(name, dead_token, before_loss, now) {
                    self.counters.forgotten_released_tokens.count();
                }
            }
            Action::Happened(what) => {
                self.metrics.happened(now, what);
                self.warnings.happened(name, what);
                if let LockMetric::LeaseOver { since, how } = what {
                    let holder = todo.holder_before.as_deref();
                    self.log.lease_over(name, holder, since, how, now);
                }
            }
        }
    }

    /// Returns the delivery of a reply, and records what the reply says of the holder. None: the client is gone, and
    /// its `Pending` has reported that.
    fn delivery(
        &self,
        name: &LockName,
        entry: &mut Awake,
        request: RequestId,
        reply: Reply,
        now: Time,
    ) -> Option<Delivery> {
        let mut caller = self.take_caller(entry, request)?;
        // Why the store does not reply does not show whether it executed an absorbed command.
        let reply = match caller.asked.is_absorbed() {
            true => reply,
            false => self.explained(name, caller.user, reply, entry.queue.is_blind()),
        };
        self.answered(name, now, &caller, &reply);
        entry.replied(request, &mut caller, &reply);
        if caller.asked.is_absorbed() {
            self.absorbed.saved(entry.take_saved());
        }
        Some(Delivery {
            request,
            caller,
            reply,
        })
    }

    fn take_caller(&self, entry: &mut Awake, request: RequestId) -> Option<Caller> {
        let caller = entry.callers.remove(&request)?;
        if entry.callers.is_empty() {
            // Most locks are held most of the time without waiters: this frees the memory.
            entry.callers = Callers::default();
        }
        if caller.asked.wants_lock() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Some(caller)
    }

    /// Counts and logs the reply to this caller.
    pub(super) fn answered(&self, name: &LockName, now: Time, caller: &Caller, reply: &Reply) {
        self.log.answered(name, caller, reply, now);
        let took = now.micros_since(caller.since);
        self.metrics
            .answered(caller.asked, took, reply, caller.left);
        if let Reply::Refused(refusal) = reply {
            self.counters.refused(refusal);
        }
    }

    /// Replaces the reply with the store's reason for not replying, where that is known: instead of a generic
    /// error, or of a nil that would read as "the lock is held".
    pub(super) fn explained(
        &self,
        name: &LockName,
        user: UserId,
        reply: Reply,
        blind: bool,
    ) -> Reply {
        let unanswered = match &reply {
            Reply::Refused(Refusal::Upstream) => true,
            Reply::Nil => blind,
            _ => false,
        };
        let trouble = unanswered.then(|| self.store.trouble(name, user));
        match trouble.flatten() {
            Some(error) => Reply::Refused(Refusal::Store(error)),
            None => reply,
        }
    }

    /// Sends a request to the store. The request is on its way when this returns. An immediate reply is
    /// returned; any other comes back as an event.
    fn ask(
        &self,
        name: &LockName,
        id: StoreRequestId,
        store_request: StoreRequest,
        within: Duration,
    ) -> Option<Event> {
        // Before the request is on its way, since the reply may come at once.
        self.asking.fetch_add(1, Ordering::Relaxed);
        let _runtime = self.runtime.enter();
        match self.store.ask(name, id, store_request, within) {
            Receipt::Answered(answer) => {
                self.asking.fetch_sub(1, Ordering::Relaxed);
                return Some(self.store_replied(name, id, answer));
            }
            Receipt::Underway => {}
            Receipt::Later(answer) => {
                let (gate, name) = (self.this.clone(), name.clone());
                tokio::spawn(async move {
                    let answer = answer.await;
                    if let Some(gate) = gate.upgrade() {
                        gate.replied(&name, id, answer);
                    }
                });
            }
        }
        None
    }

    /// Passes the reply to a request that was on its way to the queue.
    pub(super) fn replied(&self, name: &LockName, id: StoreRequestId, answer: StoreReply) {
        let event = self.store_replied(name, id, answer);
        self.dispatch(name, event, None);
        // Decremented after the requests that follow from the reply are on their way.
        self.asking.fetch_sub(1, Ordering::Relaxed);
    }

    fn store_replied(&self, name: &LockName, id: StoreRequestId, answer: StoreReply) -> Event {
        Event::StoreReplied {
            store_request: id,
            dead: self.dead_tokens.of_holder(name, &answer),
            store_reply: answer,
        }
    }
}

/// The actions that a queue requests by an event.
#[derive(Default)]
struct Todo {
    deliveries: Vec<Delivery>,
    store_requests: Vec<(StoreRequestId, StoreRequest, Duration)>,
    /// The holder whose lease is over by the event, if it is known.
    holder_before: Option<Arc<Label>>,
    /// How a lease ended by the event.
    ended: Option<EndReason>,
    /// lockgate closed the connection of a session.
    closed_by_us: bool,
}

impl Todo {
    /// Returns why a lease is no longer bound to its connection, if its client did not bring that about.
    fn cause(&self, lost: bool) -> Option<&'static str> {
        Some(match (lost, self.ended) {
            (false, _) if !self.closed_by_us => return None,
            (false, _) => "lockgate closed its connection; the lease runs on",
            (true, Some(EndReason::RanOut)) => "the lease expired before it could be renewed",
            (true, Some(_)) => "deleted or overwritten",
            (true, None) => "not renewed in time",
        })
    }
}

impl Delivery {
    fn is_grant(&self) -> bool {
        matches!(self.reply, Reply::Granted { .. })
    }

    /// Sends the reply. A grant without a receiver becomes an event.
    fn send(self) -> Option<Event> {
        let (request, user) = (self.request, self.caller.user);
        match self.caller.reply_to.send(self.reply) {
            Err(Reply::Granted { token, since, .. }) => Some(Event::Undelivered {
                request,
                user,
                token,
                since,
            }),
            Ok(()) | Err(_) => None,
        }
    }
}
