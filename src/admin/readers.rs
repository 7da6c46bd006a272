//! Those who look at the page, and what they are told: once a second, the same for all of them together.
//! While nobody looks nothing is looked at but counters; while somebody does, the locks are ([`Gate::view`](crate::gate::Gate::view)),
//! and Redis is asked whether it answers.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{MissedTickBehavior, interval},
};

use super::{
    Subject,
    history::{Counted, History, unix_ms},
    readiness::{Readiness, Ready},
};
use crate::{
    gate::{Busy, Held, Label, View},
    metrics::exposition::Family,
    shown::shown,
};

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(1);

/// Streams of events at a time; one more is refused.
const STREAMS: usize = 16;

/// Events on their way to one reader, the history among them; one who has not taken so many is let go.
const EVENTS: usize = 4;

/// Locks that are shown.
const LOCKS: usize = 20;

/// Of those who wait for a lock, so many are shown.
const WAITERS: usize = 10;

/// Of a longer name, so many bytes are shown.
const NAME_BYTES: usize = 256;

/// What is seen, and by whom.
pub(super) struct Watch {
    subject: Subject,
    readiness: Arc<Readiness>,
    places: Arc<Semaphore>,
    readers: Mutex<Vec<mpsc::Sender<Bytes>>>,
    history: Mutex<History>,
    upstream: Mutex<Upstream>,
    asking: AtomicBool,
}

/// One stream of events. Dropped, its place is free.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) next: mpsc::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

/// What Redis said last, and since when it says so.
#[derive(Debug, Default)]
struct Upstream(Option<(Ready, Instant)>);

impl Watch {
    pub(super) fn new(subject: Subject, readiness: Arc<Readiness>) -> Self {
        Self {
            subject,
            readiness,
            places: Arc::new(Semaphore::new(STREAMS)),
            readers: Mutex::default(),
            history: Mutex::default(),
            upstream: Mutex::default(),
            asking: AtomicBool::new(false),
        }
    }

    /// One more reader, who gets the history at once. None where there are as many as may be.
    pub(super) fn read(&self) -> Option<Events> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (reader, next) = mpsc::channel(EVENTS);
        let history = locked(&self.history).all();
        // A browser that lost the connection tries again after so many milliseconds.
        let first = format!("retry: 1000\n{}", event("history", &history));
        let _ = reader.try_send(first.into());
        locked(&self.readers).push(reader);
        Some(Events {
            next,
            _place: place,
        })
    }

    /// Everything that is measured.
    pub(super) fn families(&self) -> Vec<Family> {
        (self.subject.families)()
    }

    /// Everybody is let go.
    pub(super) fn end(&self) {
        locked(&self.readers).clear();
    }

    /// Looks once a second, for ever.
    pub(super) async fn go_on(self: Arc<Self>) {
        let mut seconds = interval(EVERY);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            seconds.tick().await;
            let counted = Counted::of(&self.families());
            let waiters = self.subject.gate.waiters();
            locked(&self.history).add(counted.clone(), waiters);
            locked(&self.readers).retain(|reader| !reader.is_closed());
            if locked(&self.readers).is_empty() {
                *locked(&self.upstream) = Upstream::default();
                continue;
            }
            Arc::clone(&self).ask_upstream();
            let state = self.state(&counted);
            let event = Bytes::from(event("state", &state));
            // Who does not take it in time has to come again.
            locked(&self.readers).retain(|reader| reader.try_send(event.clone()).is_ok());
        }
    }

    /// Redis may take longer than a second to say nothing.
    fn ask_upstream(self: Arc<Self>) {
        if !self.asking.swap(true, Ordering::Relaxed) {
            tokio::spawn(async move {
                let ready = self.readiness.ask().await;
                locked(&self.upstream).says(ready);
                self.asking.store(false, Ordering::Relaxed);
            });
        }
    }

    fn state(&self, counted: &Counted) -> Value {
        let Subject {
            gate,
            upstream,
            clients,
            max_clients,
            started,
            ..
        } = &self.subject;
        let view = gate.view(LOCKS, WAITERS);
        json!({
            "now": unix_ms(),
            "version": env!("CARGO_PKG_VERSION"),
            "up_ms": crate::clock::now().millis_since(*started),
            "upstream": locked(&self.upstream).json(upstream.as_deref()),
            "clients": clients(),
            "max_clients": max_clients(),
            "known": gate.known(),
            "grants": counted.grants,
            "relayed": counted.relayed,
            "asked": counted.asked,
            "sample": locked(&self.history).latest(),
            "held": view.held,
            "awaited": view.awaited,
            "waiters": view.waiters,
            "longest_wait_ms": view.longest_wait_ms,
            "locks": locks(&view),
        })
    }
}

impl Upstream {
    fn says(&mut self, ready: Ready) {
        match &self.0 {
            // Why it does not answer may change while it does not.
            Some((before, since)) if before.is_ok() == ready.is_ok() => {
                self.0 = Some((ready, *since));
            }
            _ => self.0 = Some((ready, Instant::now())),
        }
    }

    fn json(&self, name: Option<&str>) -> Value {
        let (ready, why, for_ms) = match &self.0 {
            None => (None, None, None),
            Some((ready, since)) => {
                let why = ready.as_ref().err();
                (Some(ready.is_ok()), why, Some(since.elapsed().as_millis()))
            }
        };
        let why = why.map(|why| shown(why.as_bytes()));
        let for_ms = for_ms.map(|for_ms| u64::try_from(for_ms).unwrap_or(u64::MAX));
        json!({ "name": name, "ready": ready, "why": why, "for_ms": for_ms })
    }
}

fn locks(view: &View) -> Value {
    view.busiest.iter().map(lock).collect()
}

fn lock(busy: &Busy) -> Value {
    let key = &busy.name.key;
    let start = key.get(..NAME_BYTES).unwrap_or(key);
    let mut lock = json!({
        // More than a number of JavaScript holds.
        "id": format!("{:016x}", busy.id),
        "database": busy.name.database,
        "name": shown(start),
        "bytes": key.len(),
        "is_cut": start.len() < key.len(),
        "waiters": busy.waiters,
        "longest_wait_ms": busy.longest_wait_ms,
        "first": busy.first.iter().map(|(label, waited_ms)| {
            let mut waiter = client(label);
            waiter["waited_ms"] = json!(waited_ms);
            waiter
        }).collect::<Value>(),
    });
    match &busy.held {
        Held::Here {
            holder,
            for_ms,
            lease_left_ms,
            session,
        } => {
            lock["held"] = json!("here");
            lock["holder"] = holder.as_deref().map_or(Value::Null, client);
            lock["held_ms"] = json!(for_ms);
            lock["lease_left_ms"] = json!(lease_left_ms);
            lock["session"] = json!(session);
        }
        Held::Elsewhere => lock["held"] = json!("elsewhere"),
        Held::Nobody => lock["held"] = json!("nobody"),
    }
    lock
}

fn client(label: &Label) -> Value {
    json!({
        "address": shown(label.address.as_bytes()),
        "name": label.name(),
        "library": label.library(),
    })
}

/// As a browser reads it: JSON has no line breaks.
fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind it is whole at any time.
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
