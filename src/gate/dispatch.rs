//! The path of an event through its queue. [`Gate::dispatch`] passes the event to the queue under the map's lock,
//! and performs the queue's actions after that. The store's reply returns as an event to the same queue.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use dashmap::mapref::{entry, one::RefMut};
use tokio::sync::oneshot;

use super::{Gate, Label, Mailbox, SessionOver};
use crate::{
    clock,
    lock::{
        Action, Event, Queue, Refusal, Reply, RequestId, StoreRequest, StoreRequestId, Time, UserId,
    },
    store::LockName,
    telemetry::metrics::locks::Request,
};

/// A lock with state in this instance.
pub(super) struct Entry {
    pub(super) queue: Queue,
    pub(super) callers: HashMap<RequestId, Caller>,
    /// The mailboxes to notify when a lease is no longer bound to its connection: one, or two while one grant
    /// follows another.
    sessions: Vec<(RequestId, Mailbox)>,
    /// The client that was granted the lease last. If it was not granted here, the client that extended it
    /// first.
    pub(super) holder: Option<Arc<Label>>,
    wake_at: Option<Time>,
}

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
            let todo = self.handle(name, event, caller);
            for delivery in todo.deliveries {
                events.extend(delivery.send().map(|event| (event, None)));
            }
            for (id, store_request, within) in todo.store_requests {
                let answered = self.ask(name, id, &store_request, within);
                events.extend(answered.map(|event| (event, None)));
            }
        }
    }

    fn handle(&self, name: &LockName, event: Event, caller: Option<Caller>) -> Todo {
        let mut todo = Todo::default();
        let idle = match caller {
            Some(caller) => {
                let mut entry = self.entry(name);
                if let Some(request) = event.request() {
                    if caller.asked.wants_lock() {
                        self.waiting.fetch_add(1, Ordering::Relaxed);
                    }
                    entry.callers.insert(request, caller);
                }
                self.step(name, &mut entry, event, &mut todo)
            }
            // A lock without any request here may still have a dead token in the store.
            None if matches!(event, Event::DataLost { dead: Some(_) }) => {
                let mut entry = self.entry(name);
                self.step(name, &mut entry, event, &mut todo)
            }
            None => match self.queues.get_mut(name) {
                Some(mut entry) => self.step(name, &mut entry, event, &mut todo),
                None => false,
            },
        };
        if idle
            && let Some((_, entry)) = self
                .queues
                .remove_if(name, |_, entry| entry.queue.is_idle())
        {
            self.known.fetch_sub(1, Ordering::Relaxed);
            let waiting = entry.callers.values().filter(|it| it.asked.wants_lock());
            self.waiting.fetch_sub(waiting.count(), Ordering::Relaxed);
        }
        todo
    }

    /// Returns the lock's entry, with a new queue if there was none.
    fn entry(&self, name: &LockName) -> RefMut<'_, LockName, Box<Entry>> {
        match self.queues.entry(name.clone()) {
            entry::Entry::Occupied(entry) => entry.into_ref(),
            entry::Entry::Vacant(entry) => {
                self.known.fetch_add(1, Ordering::Relaxed);
                entry.insert(Box::new(Entry::new(self.seeds.hash_one(name))))
            }
        }
    }

    /// Handles one event, under the map's lock. Returns whether the queue may be dropped.
    fn step(&self, name: &LockName, entry: &mut Entry, event: Event, todo: &mut Todo) -> bool {
        let now = clock::now();
        match &event {
            Event::Gone { request, .. } => {
                if let Some(caller) = self.take_caller(entry, *request) {
                    let waited = now.micros_since(caller.since);
                    self.metrics.left(caller.asked, waited);
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
        let (mut actions, held_since) = (Vec::new(), entry.queue.held_since());
        let recovered = entry.queue.is_recovering();
        entry.queue.handle(now, event, &self.settings, &mut actions);
        let holds_since = entry.queue.held_since();
        self.metrics
            .lease_changed(held_since.is_some(), holds_since.is_some());
        match (recovered, entry.queue.is_recovering()) {
            (false, true) => self.recovering.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.recovering.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        if holds_since != held_since {
            entry.holder = None;
        }
        for action in actions {
            match action {
                Action::Send {
                    id,
                    store_request,
                    within_ms,
                } => {
                    let within = Duration::from_millis(within_ms);
                    todo.store_requests.push((id, store_request, within));
                }
                Action::Reply { request, reply } => {
                    // Without a caller the client is gone: its `Pending` has reported that.
                    let Some(mut caller) = self.take_caller(entry, request) else {
                        continue;
                    };
                    let blind = entry.queue.is_blind();
                    let reply = self.explained(name, caller.user, reply, blind);
                    self.answered(now, &caller, &reply);
                    let relocked = caller.asked == Request::Relock && matches!(reply, Reply::Done);
                    if relocked && entry.holder.is_none() {
                        entry.holder = Some(Arc::clone(&caller.label));
                    }
                    if let Reply::Granted { session, .. } = &reply {
                        entry.holder = Some(Arc::clone(&caller.label));
                        let mailbox = caller.mailbox.take().filter(|_| *session);
                        entry
                            .sessions
                            .extend(mailbox.map(|mailbox| (request, mailbox)));
                    }
                    todo.deliveries.push(Delivery {
                        request,
                        caller,
                        reply,
                    });
                }
                Action::SessionOver { request, lost } => {
                    let at = entry
                        .sessions
                        .iter()
                        .position(|(bound, _)| *bound == request);
                    if let Some(at) = at {
                        let (request, mailbox) = entry.sessions.swap_remove(at);
                        if lost {
                            self.metrics.lost_session();
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
                }
            }
        }
        let wake_at = entry.queue.wake_at();
        if wake_at != entry.wake_at {
            self.timers.change(name, entry.wake_at, wake_at);
            entry.wake_at = wake_at;
        }
        entry.queue.is_idle()
    }

    fn take_caller(&self, entry: &mut Entry, request: RequestId) -> Option<Caller> {
        let caller = entry.callers.remove(&request)?;
        if entry.callers.is_empty() {
            // Most locks are held most of the time without waiters: this frees the memory.
            entry.callers = HashMap::new();
        }
        if caller.asked.wants_lock() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        Some(caller)
    }

    /// Counts the reply to this caller.
    pub(super) fn answered(&self, now: Time, caller: &Caller, reply: &Reply) {
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
        store_request: &StoreRequest,
        within: Duration,
    ) -> Option<Event> {
        let _runtime = self.runtime.enter();
        let mut answer = self.store.ask(name, store_request, within);
        if let Poll::Ready(answer) = answer
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            let dead = self.dead_tokens.of_holder(name, &answer);
            return Some(Event::StoreReplied {
                store_request: id,
                store_reply: answer,
                dead,
            });
        }
        let (gate, name) = (self.this.clone(), name.clone());
        self.asking.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let answer = answer.await;
            if let Some(gate) = gate.upgrade() {
                let dead = gate.dead_tokens.of_holder(&name, &answer);
                let answered = Event::StoreReplied {
                    store_request: id,
                    store_reply: answer,
                    dead,
                };
                gate.dispatch(&name, answered, None);
                // Decremented after the requests that follow from the reply are on their way.
                gate.asking.fetch_sub(1, Ordering::Relaxed);
            }
        });
        None
    }
}

impl Entry {
    fn new(seed: u64) -> Self {
        Self {
            queue: Queue::new(seed),
            callers: HashMap::new(),
            sessions: Vec::new(),
            holder: None,
            wake_at: None,
        }
    }
}

/// The actions that a queue requests.
#[derive(Default)]
struct Todo {
    deliveries: Vec<Delivery>,
    store_requests: Vec<(StoreRequestId, StoreRequest, Duration)>,
}

impl Delivery {
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
