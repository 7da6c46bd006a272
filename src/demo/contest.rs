//! One contest: many clients want the same lock, once each, all from the same moment on, and hold it for a while.
//! The ways differ only in the lock commands of the clients, and in the server that they send these to.
//!
//! All clients live on one thread, so that their order of arrival is known: each notes the time just before its
//! first command leaves, and the next client's leaves after that. A contest that is to end early ends in order. A
//! spinning client waits for the reply to its attempt, a client that waits in `LOCK` leaves the queue, and a holder
//! releases the lock. Only then the connection is closed, so that none of its commands reaches Redis later.

use std::{
    io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate::telemetry::metrics::upstream::UpstreamMetrics;
use redis::Script;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Failure, Stop,
    client::{Client, Reply, Target, Trouble},
    observer::{Observer, Used},
    unless,
};

/// Bound on one contest; then it is stopped.
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// How long clients may take to finish once the contest ends.
const END_WITHIN: Duration = Duration::from_secs(2);

/// The lease, in milliseconds: common among libraries, and far longer than any client holds the lock here.
const LEASE_MS: &str = "30000";

/// Connections that are opened at a time: Redis's backlog of connections that it has not accepted holds 511.
const CONNECTING: usize = 64;

/// The usual script for releasing such a lock.
const RELEASE: &str = include_str!("release.lua");

/// The hash by which Redis knows the script.
static RELEASE_HASH: LazyLock<String> =
    LazyLock::new(|| Script::new(RELEASE).get_hash().to_owned());

/// The rules for the clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) clients: usize,
    /// How long each client holds the lock.
    pub(super) hold: Duration,
    /// How long a spinning client sleeps before it tries again.
    pub(super) poll: Duration,
}

/// How the clients wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The common way: `SET NX PX`, and again after a while.
    Spinning,
    /// The same commands, to a lockgate that absorbs them.
    Absorbed,
    /// `LOCK`.
    Lock,
}

impl Way {
    /// All ways, in the order in which they are measured.
    pub(super) const ALL: [Self; 3] = [Self::Spinning, Self::Absorbed, Self::Lock];
}

/// The times of one client, since the beginning.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Just before its first command left.
    pub(super) arrived: Duration,
    /// When it got the lock.
    pub(super) granted: Duration,
    /// Just before its release left.
    pub(super) gave_back: Duration,
    /// When it knew that the lock was released.
    pub(super) done: Duration,
}

/// The result of a contest.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The clients that had the lock, in no order.
    pub(super) turns: Vec<Turn>,
    /// Whether it was stopped after [`LONGEST`].
    pub(super) stopped: bool,
    /// Redis's work meanwhile.
    pub(super) used: Used,
    /// Commands that the clients themselves sent.
    pub(super) sent: u64,
}

/// A contest that is to run.
pub(super) struct Contest<'a> {
    pub(super) rules: Rules,
    pub(super) way: Way,
    pub(super) target: &'a Target,
    /// What the lockgate counts that these clients speak to; None where they speak to Redis.
    pub(super) lockgate: Option<&'a UpstreamMetrics>,
    pub(super) key: &'a str,
}

/// The state that the clients of a contest share.
struct Common {
    rules: Rules,
    way: Way,
    key: String,
    /// Number of clients that are done.
    done: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Ready,
    /// Since this moment.
    Running(Instant),
    Ending,
}

/// A client's result: its turn, if it had one, with its connection, since closing that costs Redis work that is not
/// to be measured; and the number of commands that it sent.
type Told = Result<(Option<(Turn, Client)>, u64), Trouble>;

impl Contest<'_> {
    /// Runs the contest; `done` counts clients that had the lock.
    pub(super) async fn run(
        &self,
        observer: &mut Observer,
        done: Arc<AtomicUsize>,
        stop: &Stop,
    ) -> Result<Outcome, Failure> {
        let ready = tokio::select! {
            ready = self.connect() => ready.map_err(|trouble| self.failure(trouble))?,
            () = stop.told() => return Err(Failure::interrupted()),
        };
        let common = Arc::new(Common {
            rules: self.rules,
            way: self.way,
            key: self.key.to_owned(),
            done,
        });
        let (phase, seen) = watch::channel(Phase::Ready);
        let mut clients = JoinSet::new();
        for (number, client) in ready.into_iter().enumerate() {
            clients.spawn(Arc::clone(&common).compete(client, number, seen.clone()));
        }
        let look = async |observer: &mut Observer| observer.look().await.map_err(Failure::redis);
        let sent = || self.lockgate.map(UpstreamMetrics::commands);
        let before = unless(stop, look(observer)).await?;
        let sent_before = sent();
        phase.send_replace(Phase::Running(Instant::now()));
        let (mut outcome, kept) = self.play(&mut clients, &phase, stop).await?;
        let after = unless(stop, look(observer)).await?;
        drop(kept);
        outcome.used = before.until(&after);
        if let (Some(before), Some(after)) = (sent_before, sent()) {
            outcome.used.commands = after - before;
        }
        Ok(outcome)
    }

    /// Runs until the clients are done or are to end. Also returns the connections of those that had the lock.
    async fn play(
        &self,
        clients: &mut JoinSet<Told>,
        phase: &watch::Sender<Phase>,
        stop: &Stop,
    ) -> Result<(Outcome, Vec<Client>), Failure> {
        let mut outcome = Outcome {
            turns: Vec::with_capacity(self.rules.clients),
            stopped: false,
            used: Used::default(),
            sent: 0,
        };
        let mut kept = Vec::with_capacity(self.rules.clients);
        let ended = tokio::select! {
            gathered = gather(clients, &mut outcome, &mut kept) => {
                gathered.map_err(|trouble| self.failure(trouble))
            }
            () = sleep(LONGEST) => Ok(()),
            () = stop.told() => Err(Failure::interrupted()),
        };
        outcome.stopped = ended.is_ok() && !clients.is_empty();
        phase.send_replace(Phase::Ending);
        let all = async {
            while !clients.is_empty() {
                // A further error at the end is not reported.
                let _ = gather(clients, &mut outcome, &mut kept).await;
            }
        };
        // A client without a reply is disconnected.
        let _ = timeout(END_WITHIN, all).await;
        ended.map(|()| (outcome, kept))
    }

    /// Connects all clients, before anything is measured.
    async fn connect(&self) -> Result<Vec<Client>, Trouble> {
        let mut connecting = JoinSet::new();
        let mut clients = Vec::with_capacity(self.rules.clients);
        for _ in 0..self.rules.clients {
            if connecting.len() >= CONNECTING
                && let Some(client) = connecting.join_next().await
            {
                clients.push(client.map_err(io::Error::from)??);
            }
            let target = self.target.clone();
            connecting.spawn(async move { Client::connect(&target).await });
        }
        while let Some(client) = connecting.join_next().await {
            clients.push(client.map_err(io::Error::from)??);
        }
        Ok(clients)
    }

    fn failure(&self, trouble: Trouble) -> Failure {
        match self.way {
            Way::Spinning => Failure::redis(trouble),
            Way::Absorbed | Way::Lock => Failure::Lockgate(trouble),
        }
    }
}

/// Collects the clients' results, up to the first failure.
async fn gather(
    clients: &mut JoinSet<Told>,
    outcome: &mut Outcome,
    kept: &mut Vec<Client>,
) -> Result<(), Trouble> {
    while let Some(told) = clients.join_next().await {
        let (turn, sent) = told.map_err(io::Error::from)??;
        if let Some((turn, client)) = turn {
            outcome.turns.push(turn);
            kept.push(client);
        }
        outcome.sent += sent;
    }
    Ok(())
}

impl Common {
    /// Waits for the lock, holds it, and releases it.
    async fn compete(
        self: Arc<Self>,
        mut client: Client,
        number: usize,
        mut phase: watch::Receiver<Phase>,
    ) -> Told {
        let begun = phase.wait_for(|phase| *phase != Phase::Ready).await;
        let Ok(Phase::Running(begin)) = begun.map(|phase| *phase) else {
            return Ok((None, 0));
        };
        let token = format!("{}-{number}", uuid::Uuid::new_v4().simple());
        let mut sent = 0;
        let arrived = begin.elapsed();
        if !self
            .take(&mut client, &token, &mut phase, &mut sent)
            .await?
        {
            return Ok((None, sent));
        }
        let granted = begin.elapsed();
        let held = tokio::select! {
            () = sleep(self.rules.hold) => true,
            () = ending(&mut phase) => false,
        };
        let gave_back = begin.elapsed();
        self.give_back(&mut client, &token, &mut sent).await?;
        let turn = Turn {
            arrived,
            granted,
            gave_back,
            done: begin.elapsed(),
        };
        self.done.fetch_add(usize::from(held), Ordering::Relaxed);
        Ok((held.then_some((turn, client)), sent))
    }

    /// Takes the lock in the way of this contest. Returns false where the contest ends first.
    async fn take(
        &self,
        client: &mut Client,
        token: &str,
        phase: &mut watch::Receiver<Phase>,
        sent: &mut u64,
    ) -> Result<bool, Trouble> {
        let key = self.key.as_str();
        if self.way == Way::Lock {
            *sent += 1;
            let lock = ["LOCK", key, "TOKEN", token, "PX", LEASE_MS];
            return tokio::select! {
                reply = client.call(&lock) => match reply? {
                    Reply::Text(_) => Ok(true),
                    _ => Err(Trouble::Strange),
                },
                () = ending(phase) => Ok(false),
            };
        }
        loop {
            *sent += 1;
            let set = ["SET", key, token, "NX", "PX", LEASE_MS];
            match client.call(&set).await? {
                Reply::Done => return Ok(true),
                Reply::Nil => {}
                _ => return Err(Trouble::Strange),
            }
            tokio::select! {
                () = sleep(self.rules.poll) => {}
                () = ending(phase) => return Ok(false),
            }
        }
    }

    async fn give_back(
        &self,
        client: &mut Client,
        token: &str,
        sent: &mut u64,
    ) -> Result<(), Trouble> {
        *sent += 1;
        let released = match self.way {
            Way::Lock => client.call(&["UNLOCK", &self.key, token]).await,
            Way::Spinning | Way::Absorbed => {
                let by_hash = ["EVALSHA", RELEASE_HASH.as_str(), "1", &self.key, token];
                match client.call(&by_hash).await {
                    Err(Trouble::Said(text)) if text.starts_with("NOSCRIPT") => {
                        *sent += 1;
                        client.call(&["EVAL", RELEASE, "1", &self.key, token]).await
                    }
                    released => released,
                }
            }
        };
        match released? {
            Reply::Integer(1) => Ok(()),
            Reply::Integer(0) => Err(Trouble::Lost),
            _ => Err(Trouble::Strange),
        }
    }
}

async fn ending(phase: &mut watch::Receiver<Phase>) {
    // A closed channel means the end, too.
    let _ = phase.wait_for(|phase| *phase == Phase::Ending).await;
}

/// Takes the lock once as a spinning client does, and releases it: a refusal shows here, and Redis, or lockgate, knows
/// the script afterwards.
pub(super) async fn try_once(observer: &mut Observer, key: &str) -> Result<(), Trouble> {
    let set = ["SET", key, "probe", "NX", "PX", LEASE_MS];
    if observer.call(&set).await? != Reply::Done {
        return Err(Trouble::Strange);
    }
    let release = ["EVAL", RELEASE, "1", key, "probe"];
    match observer.call(&release).await? {
        Reply::Integer(1) => Ok(()),
        _ => Err(Trouble::Lost),
    }
}

impl Outcome {
    /// Returns the time from the first attempt to the last release.
    pub(super) fn whole(&self) -> Duration {
        let first = self.turns.iter().map(|turn| turn.arrived).min();
        let last = self.turns.iter().map(|turn| turn.done).max();
        last.unwrap_or_default() - first.unwrap_or_default()
    }

    /// Returns the sum of all holds, each from the grant's arrival to the release's departure.
    pub(super) fn held(&self) -> Duration {
        let held = |turn: &Turn| turn.gave_back - turn.granted;
        self.turns.iter().map(held).sum()
    }

    /// Returns the waits, the shortest first.
    pub(super) fn waits(&self) -> Vec<Duration> {
        let wait = |turn: &Turn| turn.granted - turn.arrived;
        let mut waits: Vec<_> = self.turns.iter().map(wait).collect();
        waits.sort_unstable();
        waits
    }

    /// Returns the number of clients that got the lock after a client that arrived later.
    pub(super) fn overtaken(&self) -> usize {
        let mut turns = self.turns.clone();
        turns.sort_unstable_by_key(|turn| turn.arrived);
        let mut first_of_later = Duration::MAX;
        let mut overtaken = 0;
        for turn in turns.iter().rev() {
            overtaken += usize::from(turn.granted > first_of_later);
            first_of_later = first_of_later.min(turn.granted);
        }
        overtaken
    }
}

/// Returns the longest wait of this percentage of clients, those with the shortest waits; `waits` are sorted.
pub(super) fn percentile(waits: &[Duration], percent: usize) -> Duration {
    let rank = (waits.len() * percent).div_ceil(100).max(1);
    waits.get(rank - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn outcome(turns: &[(u32, u32)]) -> Outcome {
        let turn = |&(arrived, granted): &(u32, u32)| Turn {
            arrived: arrived * MS,
            granted: granted * MS,
            gave_back: (granted + 10) * MS,
            done: (granted + 11) * MS,
        };
        Outcome {
            turns: turns.iter().map(turn).collect(),
            stopped: false,
            used: Used::default(),
            sent: 0,
        }
    }

    #[test]
    fn an_overtaken_client_is_found() {
        let overtaken = |turns: &[(u32, u32)]| outcome(turns).overtaken();
        assert_eq!(overtaken(&[(1, 10), (2, 20), (3, 30)]), 0);
        assert_eq!(overtaken(&[(3, 30), (1, 10), (2, 20)]), 0);
        assert_eq!(overtaken(&[(1, 20), (2, 10), (3, 30)]), 1);
        assert_eq!(overtaken(&[(1, 30), (2, 20), (3, 10)]), 2);
        assert_eq!(overtaken(&[]), 0);
    }

    #[test]
    fn a_contest_lasts_from_the_first_attempt_to_the_last_release() {
        let outcome = outcome(&[(5, 40), (2, 3), (4, 20)]);
        assert_eq!(outcome.whole(), 49 * MS);
        assert_eq!(outcome.held(), 30 * MS);
        assert_eq!(outcome.waits(), [MS, 16 * MS, 35 * MS]);
    }

    #[test]
    fn a_percentile_is_a_time_that_somebody_waited() {
        let waits: Vec<_> = (1..=100).map(|ms| ms * MS).collect();
        assert_eq!(percentile(&waits, 50), 50 * MS);
        assert_eq!(percentile(&waits, 99), 99 * MS);
        assert_eq!(percentile(&waits, 100), 100 * MS);
        assert_eq!(percentile(&waits[..3], 50), 2 * MS);
        assert_eq!(percentile(&waits[..1], 99), MS);
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
