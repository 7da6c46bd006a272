//! The readers of the page, and their events: one event a second, the same for all that search for the same text in
//! the names of locks. Without readers only the counters are read; with readers also the locks
//! ([`Gate::view`](crate::gate::Gate::view)), and Redis is probed. All searches share one visit of the locks a second,
//! so that no number of searches costs clients more.

use std::{
    collections::{BTreeMap, BTreeSet},
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
    history::{Counted, History, unix_ms},
    readiness::{Readiness, Ready},
};
use crate::{
    gate::{Held, Label, LockSnapshot, View},
    session::Shared,
    telemetry::escape::escape,
};

/// Interval between events.
const EVERY: Duration = Duration::from_secs(1);

/// Event streams at a time; one more is refused.
const STREAMS: usize = 16;

/// Events queued for one reader, the history among them; a reader that exceeds this is disconnected.
const EVENTS: usize = 4;

/// Number of locks shown.
const LOCKS: usize = 20;

/// Number of waiters shown for each lock.
const WAITERS: usize = 10;

/// Bytes shown of a longer name.
const NAME_BYTES: usize = 256;

/// Longest text that a reader searches for, in bytes.
pub(super) const TEXT_BYTES: usize = 256;

/// The source of the events, and its readers.
pub(super) struct Watch {
    shared: Arc<Shared>,
    readiness: Arc<Readiness>,
    places: Arc<Semaphore>,
    readers: Mutex<Vec<Reader>>,
    history: Mutex<History>,
    upstream: Mutex<Upstream>,
    asking: AtomicBool,
}

/// A reader: the text that it searches for, and the way to it.
struct Reader {
    text: Bytes,
    events: mpsc::Sender<Bytes>,
}

/// One stream of events. Dropping it frees its slot.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) next: mpsc::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

/// The latest state of Redis, and since when it has lasted.
#[derive(Debug, Default)]
struct Upstream(Option<(Ready, Instant)>);

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, readiness: Arc<Readiness>) -> Self {
        Self {
            shared,
            readiness,
            places: Arc::new(Semaphore::new(STREAMS)),
            readers: Mutex::default(),
            history: Mutex::default(),
            upstream: Mutex::default(),
            asking: AtomicBool::new(false),
        }
    }

    /// Adds a reader of the locks whose names contain `text`. It gets the history at once. None: there are [`STREAMS`]
    /// already.
    pub(super) fn read(&self, text: Bytes) -> Option<Events> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (events, next) = mpsc::channel(EVENTS);
        let history = locked(&self.history).all();
        // A browser that lost the connection retries after this many milliseconds.
        let first = format!("retry: 1000\n{}", event("history", &history));
        let _ = events.try_send(first.into());
        locked(&self.readers).push(Reader { text, events });
        Some(Events {
            next,
            _place: place,
        })
    }

    /// Disconnects all readers.
    pub(super) fn end(&self) {
        locked(&self.readers).clear();
    }

    /// Takes a sample and sends an event once a second, forever.
    pub(super) async fn go_on(self: Arc<Self>) {
        let mut seconds = interval(EVERY);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            seconds.tick().await;
            let counted = Counted::of(&self.shared.measured());
            let waiters = self.shared.gate.waiters();
            locked(&self.history).add(counted.clone(), waiters);
            locked(&self.readers).retain(|reader| !reader.events.is_closed());
            let texts = self.texts();
            if texts.is_empty() {
                *locked(&self.upstream) = Upstream::default();
                continue;
            }
            Arc::clone(&self).ask_upstream();
            let states = self.states(&counted, texts);
            // A reader that is too slow has to reconnect. One that has just come gets the next event.
            locked(&self.readers).retain(|reader| {
                let event = states.get(&reader.text);
                event.is_none_or(|event| reader.events.try_send(event.clone()).is_ok())
            });
        }
    }

    /// Probes Redis in a task of its own: a probe may take longer than a second.
    fn ask_upstream(self: Arc<Self>) {
        if !self.asking.swap(true, Ordering::Relaxed) {
            tokio::spawn(async move {
                let ready = self.readiness.ask().await;
                locked(&self.upstream).says(ready);
                self.asking.store(false, Ordering::Relaxed);
            });
        }
    }

    /// Returns the texts that readers search for; the empty one if a reader does not search.
    fn texts(&self) -> BTreeSet<Bytes> {
        let readers = locked(&self.readers);
        readers.iter().map(|reader| reader.text.clone()).collect()
    }

    /// Returns the event of the readers of each text.
    fn states(&self, counted: &Counted, texts: BTreeSet<Bytes>) -> BTreeMap<Bytes, Bytes> {
        let texts: Vec<_> = texts.into_iter().collect();
        let view = self.shared.gate.view(LOCKS, WAITERS, &texts);
        let mut state = self.state(counted, &view);
        let events = view.found.iter().map(|found| {
            state["found"] = json!(found.locks);
            state["locks"] = found.busiest.iter().map(lock).collect();
            event("state", &state).into()
        });
        texts.into_iter().zip(events).collect()
    }

    fn state(&self, counted: &Counted, view: &View) -> Value {
        let shared = &self.shared;
        let upstream = shared.upstream.as_ref();
        let upstream = upstream.map(|address| address.endpoint.to_string());
        let mut upstream = locked(&self.upstream).json(upstream.as_deref());
        upstream["sentinels"] = self.sentinels();
        json!({
            "now": unix_ms(),
            "version": env!("CARGO_PKG_VERSION"),
            "up_ms": crate::clock::now().millis_since(shared.started),
            "upstream": upstream,
            "clients": shared.clients.load(Ordering::Relaxed),
            "max_clients": shared.live.most_clients(),
            "known": shared.gate.known(),
            "grants": counted.grants,
            "relayed": counted.relayed,
            "asked": counted.asked,
            "sample": locked(&self.history).latest(),
            "held": view.held,
            "awaited": view.awaited,
            "waiters": view.waiters,
            "longest_wait_ms": view.longest_wait_ms,
        })
    }
}

impl Watch {
    /// Returns what is known of the sentinels, and of the last failover and its cost; null without sentinels.
    fn sentinels(&self) -> Value {
        let Some(sentinels) = &self.shared.sentinels else {
            return Value::Null;
        };
        let (known, heard) = sentinels.metrics().known_and_heard();
        let at_ms = sentinels.metrics().last_failover().map(|at| at * 1_000);
        let upstream = self.shared.gate.upstream_metrics();
        json!({
            "known": known,
            "heard": heard,
            "last_failover_ms": at_ms,
            "outage_ms": upstream.map(|it| it.last_outage_ms()),
        })
    }
}

impl Upstream {
    fn says(&mut self, ready: Ready) {
        match &self.0 {
            // The reason may change while Redis stays down.
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
        let why = why.map(|why| escape(why.as_bytes()));
        let for_ms = for_ms.map(|for_ms| u64::try_from(for_ms).unwrap_or(u64::MAX));
        json!({ "name": name, "ready": ready, "why": why, "for_ms": for_ms })
    }
}

fn lock(busy: &LockSnapshot) -> Value {
    let key = &busy.name.key;
    let start = key.get(..NAME_BYTES).unwrap_or(key);
    let mut lock = json!({
        // As text, since a JavaScript number cannot hold it.
        "id": format!("{:016x}", busy.id),
        "database": busy.name.database,
        "name": escape(start),
        "bytes": key.len(),
        "is_cut": start.len() < key.len(),
        "waiters": busy.waiters,
        "longest_wait_ms": busy.longest_wait_ms,
        "first": busy.first.iter().map(|first| {
            let mut waiter = client(&first.client);
            waiter["waited_ms"] = json!(first.waited_ms);
            waiter["spins"] = json!(first.spins);
            waiter
        }).collect::<Value>(),
    });
    match &busy.held {
        Held::Here {
            holder,
            for_ms,
            lease_left_ms,
            session,
            spins,
        } => {
            lock["held"] = json!("here");
            lock["holder"] = holder.as_deref().map_or(Value::Null, client);
            lock["held_ms"] = json!(for_ms);
            lock["lease_left_ms"] = json!(lease_left_ms);
            lock["session"] = json!(session);
            lock["spins"] = json!(spins);
        }
        Held::Elsewhere => lock["held"] = json!("elsewhere"),
        Held::Nobody { asked_ms, error } => {
            lock["held"] = json!("nobody");
            lock["asked_ms"] = json!(asked_ms);
            lock["error"] = json!(error.as_deref().map(escape));
        }
    }
    lock
}

fn client(label: &Label) -> Value {
    json!({
        "address": escape(label.address.as_bytes()),
        "name": label.name(),
        "library": label.library(),
    })
}

/// Returns a server-sent event. JSON has no line breaks.
fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind the lock is consistent at any time.
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
