//! The sentinels of a service, and where its master is.
//!
//! - `reply`, pure: what sentinels say.
//! - `belief`, pure: what is believed of it.
//! - `watcher`: the connection to one sentinel: it asks, and hears messages.
//!
//! Every sentinel is subscribed to, and asked again and again: the leader of a failover announces the new master a second
//! after the others do (measured with Redis 7.0.15). The sentinels name each other, so some of them are enough to begin
//! with.
//!
//! Endpoints learn the address by a channel. Those of lockgate's own connections lose it while the locks must stand still:
//! during a failover, and in an isolated instance that shall stop. Clients' connections keep it.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

use self::{
    belief::{Belief, Learned},
    reply::{Claim, Event, Other},
};
use crate::{
    auth::identity::Credentials,
    clock,
    limits::SENTINELS,
    lock::Time,
    store::task::Task,
    telemetry::metrics::sentinel::SentinelMetrics,
    transport::{
        endpoint::{Master, Whereabouts, host_and_port},
        tls::TlsClient,
    },
};

mod belief;
mod reply;
mod watcher;

/// How often the time is looked at: pauses end by it, and silence shows.
const TICK: Duration = Duration::from_millis(50);

/// A sentinel that was named by another one, and that could not be reached for this long, is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// How long something must last that is usual for a moment, before the log has a line about it, in milliseconds.
const TOLD_AFTER_MS: u64 = 5_000;

/// How lockgate finds and asks the sentinels of a service.
#[derive(Debug, Clone)]
pub struct SentinelSettings {
    /// The name of the service.
    pub service: String,
    /// The hosts and ports of some of its sentinels.
    pub sentinels: Vec<(String, u16)>,
    /// The account of lockgate at the sentinels.
    pub own: Option<Credentials>,
    /// TLS towards the sentinels.
    pub tls: Option<Arc<TlsClient>>,
    /// How often each sentinel is asked, beside the subscription.
    pub poll: Duration,
    /// Whether an instance that hears fewer than half of the sentinels stops to grant locks.
    pub stops_isolated: bool,
    /// Whether the locks stand still while a failover promotes a replica.
    pub pauses: bool,
    /// The bound on connecting, and on each reply.
    pub timeout: Duration,
}

/// The sentinels of a service.
#[derive(Debug)]
pub struct Sentinels {
    settings: Arc<SentinelSettings>,
    state: Mutex<State>,
    /// The master for clients' connections.
    at: watch::Sender<Whereabouts>,
    /// The master for lockgate's own connections.
    for_locks: watch::Sender<Whereabouts>,
    doubts: Arc<watch::Sender<()>>,
    metrics: Arc<SentinelMetrics>,
    supervisor: OnceLock<Task>,
    is_isolated: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    belief: Belief,
    watchers: HashMap<(String, u16), Watcher>,
    /// Why no master is known.
    trouble: Option<String>,
    /// Since when sentinels name nothing but another master than the one believed in.
    outdated_since: Option<Time>,
    told_outdated: bool,
    told_silent: bool,
    /// When lockgate began to ask.
    begun: Time,
}

/// The watcher of one sentinel.
#[derive(Debug)]
struct Watcher {
    #[expect(dead_code, reason = "it is held: dropping it ends the task")]
    task: Task,
    /// The id that the sentinel gave itself.
    id: Option<String>,
    /// The id counts: the sentinel may come back elsewhere, or another one here.
    is_connected: bool,
    /// How many sentinels there are, as it last said.
    sentinels: usize,
    /// When it last replied; at first, when the watcher began.
    heard_at: Time,
    has_replied: bool,
    /// Another sentinel named it; the configuration does not.
    is_learned: bool,
}

impl Sentinels {
    /// Creates the sentinels of a service. Nothing is asked before [`begin`](Self::begin).
    pub fn new(settings: SentinelSettings) -> Self {
        let unknown = || Err(settings.no_master_yet());
        Self {
            at: watch::Sender::new(unknown()),
            for_locks: watch::Sender::new(unknown()),
            settings: Arc::new(settings),
            state: Mutex::default(),
            doubts: Arc::new(watch::Sender::new(())),
            metrics: Arc::default(),
            supervisor: OnceLock::new(),
            is_isolated: AtomicBool::new(false),
        }
    }

    /// Returns the master for clients' connections.
    pub fn master(&self) -> Master {
        self.endpoint(&self.at)
    }

    /// Returns the master for lockgate's own connections, which stand still where the locks must.
    pub fn master_for_locks(&self) -> Master {
        self.endpoint(&self.for_locks)
    }

    fn endpoint(&self, at: &watch::Sender<Whereabouts>) -> Master {
        Master {
            at: at.subscribe(),
            doubts: Arc::clone(&self.doubts),
        }
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> &Arc<SentinelMetrics> {
        &self.metrics
    }

    /// Begins to ask the sentinels. Must be called within a runtime.
    pub fn begin(self: &Arc<Self>) {
        self.supervisor.get_or_init(|| {
            self.state().begun = clock::now();
            for address in &self.settings.sentinels {
                self.watch(address, false);
            }
            let this = Arc::downgrade(self);
            Task::spawn(async move {
                let mut ticks = interval(TICK);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    let Some(this) = this.upgrade() else { return };
                    this.tick();
                }
            })
        });
    }

    fn watch(self: &Arc<Self>, address: &(String, u16), is_learned: bool) {
        let mut state = self.state();
        if state.watchers.len() >= SENTINELS || state.watchers.contains_key(address) {
            return;
        }
        let watcher = Watcher {
            task: Task::spawn(watcher::watch(
                Arc::downgrade(self),
                Arc::clone(&self.settings),
                self.doubts.subscribe(),
                address.clone(),
            )),
            id: None,
            is_connected: false,
            sentinels: 0,
            heard_at: clock::now(),
            has_replied: false,
            is_learned,
        };
        state.watchers.insert(address.clone(), watcher);
    }

    /// Ends pauses, finds silence, and forgets sentinels that are gone.
    fn tick(&self) {
        let now = clock::now();
        let mut state = self.state();
        let bound = u64::try_from(FORGOTTEN_AFTER.as_millis()).unwrap_or(u64::MAX);
        state
            .watchers
            .retain(|_, it| !it.is_learned || now.millis_since(it.heard_at) < bound);
        self.publish(&mut state, now);
    }

    /// Tells every endpoint where the master is.
    fn publish(&self, state: &mut State, now: Time) {
        let heard = state.heard(now);
        let known = state.known();
        self.metrics.sentinels(known, heard);
        let at = match state.belief.master() {
            Some(address) => Ok(address.clone()),
            None => Err(state
                .trouble
                .clone()
                .unwrap_or_else(|| self.settings.no_master_yet())),
        };
        let is_isolated = state.belief.is_isolated(heard, known);
        if now.millis_since(state.begun) >= TOLD_AFTER_MS {
            self.say_isolated(is_isolated, heard, known);
        }
        let is_paused = state.belief.is_paused(since_start(now)) && self.settings.pauses;
        let for_locks = match &at {
            Ok(_) if is_paused => Err("a failover has begun".to_owned()),
            Ok(_) if is_isolated && self.settings.stops_isolated => Err(format!(
                "{heard} of {known} sentinels are heard, and sentinel.isolated is \"stop\""
            )),
            at => at.clone(),
        };
        tell(&self.at, at);
        tell(&self.for_locks, for_locks);
    }

    fn say_isolated(&self, is_isolated: bool, heard: usize, known: usize) {
        if self.is_isolated.swap(is_isolated, Ordering::Relaxed) == is_isolated {
            return;
        }
        let stops = self.settings.stops_isolated;
        match is_isolated {
            true => tracing::warn!(
                heard,
                known,
                stops,
                "fewer than half of the sentinels are heard"
            ),
            false => tracing::info!(
                heard,
                known,
                "at least half of the sentinels are heard again"
            ),
        }
    }

    /// Records what a sentinel replied, and watches the other sentinels that it names.
    fn replied(self: &Arc<Self>, from: &(String, u16), claim: &Claim, others: &[Other]) {
        let now = clock::now();
        let mut state = self.state();
        state.replied(from, claim, now);
        state.trouble = None;
        let learned = state.belief.claimed(claim);
        if learned == Learned::Outdated {
            let since = *state.outdated_since.get_or_insert(now);
            let is_long = now.millis_since(since) >= TOLD_AFTER_MS;
            if is_long && !std::mem::replace(&mut state.told_outdated, true) {
                let (sentinel, names) = (host_and_port(from), host_and_port(&claim.address));
                let (epoch, known) = (claim.epoch, state.belief.epoch());
                tracing::warn!(
                    sentinel,
                    names,
                    epoch,
                    known,
                    "the sentinels name another master, with no higher epoch than before; lockgate keeps to the one \
                     with the higher epoch until it is restarted"
                );
            }
        } else {
            (state.outdated_since, state.told_outdated) = (None, false);
        }
        let others: Vec<_> = others.iter().filter(|it| !state.watches(it)).collect();
        drop(state);
        for other in others {
            self.watch(&other.address, true);
        }
        self.learned(&mut self.state(), &learned, now);
    }

    /// Records the id of a sentinel. Returns whether it is watched already, under another address.
    fn is_known(&self, at: &(String, u16), id: &str) -> bool {
        let mut state = self.state();
        let same = |(other, it): (&(String, u16), &Watcher)| {
            other != at && it.is_connected && it.id.as_deref() == Some(id)
        };
        let is_known = state.watchers.iter().any(same);
        if let Some(watcher) = state.watchers.get_mut(at) {
            watcher.id = Some(id.to_owned());
            watcher.is_connected = true;
            return is_known && watcher.is_learned;
        }
        is_known
    }

    /// Forgets a sentinel. This ends the task of its watcher.
    fn forget(&self, at: &(String, u16)) {
        self.state().watchers.remove(at);
    }

    /// Records a message.
    fn heard(&self, event: &Event) {
        let now = clock::now();
        let mut state = self.state();
        let learned = state.belief.heard(event, since_start(now));
        self.learned(&mut state, &learned, now);
        drop(state);
        // The others may know more.
        self.doubts.send_replace(());
    }

    /// Records why a sentinel names no master.
    fn failed(&self, from: &(String, u16), why: &str) {
        let mut state = self.state();
        let text = format!("sentinel {}: {why}", host_and_port(from));
        if state.belief.master().is_none() && !std::mem::replace(&mut state.told_silent, true) {
            tracing::warn!(reason = text, "no sentinel names the master yet; trying on");
        }
        state.trouble = Some(text);
        if let Some(watcher) = state.watchers.get_mut(from) {
            watcher.is_connected = false;
        }
    }

    fn learned(&self, state: &mut State, learned: &Learned, now: Time) {
        let master = state.belief.master().map(host_and_port);
        let (service, epoch) = (&self.settings.service, state.belief.epoch());
        match learned {
            Learned::Nothing | Learned::Outdated => {}
            Learned::Found => {
                tracing::info!(service, master, epoch, "the sentinels name the master");
            }
            Learned::Changed => {
                tracing::warn!(service, master, epoch, "the sentinels name another master");
                self.metrics.failed_over();
            }
            Learned::Paused if !self.settings.pauses => {}
            Learned::Paused => {
                tracing::info!(
                    service,
                    "a failover has begun; locks stand still until it is over"
                );
                self.metrics.paused();
            }
        }
        self.publish(state, now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SentinelSettings {
    fn no_master_yet(&self) -> String {
        format!("no sentinel has named the master of {}", self.service)
    }
}

impl State {
    /// Returns how many sentinels replied lately.
    fn heard(&self, now: Time) -> usize {
        let bound = u64::try_from(self.belief.down_after().as_millis()).unwrap_or(u64::MAX);
        let is_heard = |it: &&Watcher| it.has_replied && now.millis_since(it.heard_at) < bound;
        let heard = self.watchers.values().filter(is_heard);
        // One may be watched by its name and by its address.
        let ids: HashSet<_> = heard.clone().filter_map(|it| it.id.as_ref()).collect();
        heard.filter(|it| it.id.is_none()).count() + ids.len()
    }

    /// Returns how many sentinels there are: as many as any of them said last, since one that was cut off, or reset, may
    /// know of fewer.
    fn known(&self) -> usize {
        let said = self.watchers.values().map(|it| it.sentinels);
        said.max().unwrap_or_default()
    }

    fn replied(&mut self, from: &(String, u16), claim: &Claim, now: Time) {
        if let Some(watcher) = self.watchers.get_mut(from) {
            watcher.heard_at = now;
            watcher.has_replied = true;
            watcher.sentinels = claim.sentinels;
        }
    }

    /// Returns whether a sentinel has a watcher. One whose id is not known yet may be any of them.
    fn watches(&self, other: &Other) -> bool {
        let mut watchers = self.watchers.iter();
        watchers.any(|(at, it)| {
            *at == other.address || (it.is_connected && it.id.as_deref() == Some(&other.id))
        })
    }
}

/// Tells endpoints of a change.
fn tell(channel: &watch::Sender<Whereabouts>, at: Whereabouts) {
    channel.send_if_modified(|known| {
        // Why there is none changes from attempt to attempt.
        let changes = known.as_ref().ok() != at.as_ref().ok();
        *known = at;
        changes
    });
}

fn since_start(now: Time) -> Duration {
    Duration::from_micros(now.micros())
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::TcpListener, time::timeout};

    use super::*;

    fn watcher(id: &str, heard_at_ms: u64, sentinels: usize) -> Watcher {
        Watcher {
            task: Task::spawn(std::future::pending()),
            id: (!id.is_empty()).then(|| id.to_owned()),
            is_connected: true,
            sentinels,
            heard_at: Time::from_millis(heard_at_ms),
            has_replied: true,
            is_learned: false,
        }
    }

    #[tokio::test]
    async fn a_sentinel_counts_once_and_the_most_that_any_of_them_knows_count() {
        let mut state = State::default();
        state.belief.claimed(&Claim {
            address: ("10.0.0.1".to_owned(), 1),
            epoch: 1,
            sentinels: 3,
            down_after: Duration::from_millis(500),
        });
        for (port, watcher) in [
            (1, watcher("a", 10_000, 3)),
            (2, watcher("a", 10_000, 1)),
            (3, watcher("b", 9_000, 3)),
        ] {
            state.watchers.insert(("s".to_owned(), port), watcher);
        }
        assert_eq!(state.heard(Time::from_millis(10_100)), 1);
        assert_eq!(state.heard(Time::from_millis(9_100)), 2);
        assert_eq!(state.known(), 3);
    }

    #[tokio::test]
    async fn a_sentinel_that_came_back_elsewhere_is_watched_there() {
        let mut state = State::default();
        let here = ("s".to_owned(), 1);
        let elsewhere = Other {
            address: ("s".to_owned(), 2),
            id: "a".to_owned(),
        };
        state.watchers.insert(here.clone(), watcher("a", 10_000, 3));
        assert!(state.watches(&elsewhere));
        state.watchers.get_mut(&here).unwrap().is_connected = false;
        assert!(!state.watches(&elsewhere));
    }

    #[tokio::test]
    async fn its_connections_end_with_the_service() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let sentinels = Arc::new(Sentinels::new(SentinelSettings {
            service: "m".to_owned(),
            sentinels: vec![(at.ip().to_string(), at.port())],
            own: None,
            tls: None,
            poll: Duration::from_secs(1),
            stops_isolated: false,
            pauses: true,
            timeout: Duration::from_secs(60),
        }));
        sentinels.begin();
        let (mut connection, _) = listener.accept().await.unwrap();
        drop(sentinels);
        let mut words = Vec::new();
        let end = connection.read_to_end(&mut words);
        timeout(Duration::from_secs(10), end)
            .await
            .unwrap()
            .unwrap();
    }
}
