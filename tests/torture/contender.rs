//! A client of the two gates: takes locks, lets them go, and does everything that clients do wrong
//! in between. It survives every error, and writes down what it owned and when.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    connection::{Connection, Reply},
    history::{Late, LeaseFrom, Micros, Tenure, Through, micros, now},
    random::Random,
    support::Value,
    world::World,
};

/// The bounds of every lease, in milliseconds.
pub(crate) const LEASE_MS: (u64, u64) = (1_000, 3_000);

/// Until when a reply must have come, after its time, whatever happened: longer than a gate is
/// stopped and than it waits for Redis together.
const NO_REPLY: Duration = Duration::from_secs(10);

/// How long `UNLOCK`, `RELOCK` and `TRYLOCK` may take: `upstream.timeout`.
const AT_ONCE: Duration = Duration::from_secs(2);

/// How long an impatient client waits for a reply, beside the time that it asked the gate to wait;
/// of that, it waits through no more than `LONGEST_WAIT`.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_millis(1_500);

/// A reply that comes this long after its time is looked at.
const LATE: Duration = Duration::from_millis(100);

/// How long it may take until the owner of a session lock knows that it was lost, from the moment
/// in which its gate said so.
const NOTICE_MARGIN: Micros = 100_000;

pub(crate) struct Contender<'a> {
    world: &'a World,
    number: usize,
    resp3: bool,
    /// Waits for every reply as long as it can possibly take. Who does not closes the connection
    /// and tries the other gate.
    patient: bool,
    random: Random,
    connections: [Connection<'a>; 2],
    tokens: u64,
}

/// What somebody wants, and how.
struct Wish {
    lock: usize,
    token: String,
    lease_ms: u64,
    /// None is a `TRYLOCK`.
    wait_ms: Option<u64>,
    fence: bool,
    session: bool,
}

/// How a request for a lock ended.
enum Answer {
    Granted(Option<u64>),
    NotGranted,
    /// An error, or a broken connection: nobody knows.
    Unknown,
    /// The client gave up before there was an answer, and closed its connection.
    GaveUp,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(world: &'a World, number: usize, seed: u64) -> Self {
        let resp3 = number % 2 == 1;
        Self {
            world,
            number,
            resp3,
            patient: number % 8 < 2,
            random: Random::new(seed),
            connections: world.gates.map(|gate| Connection::new(world, gate, resp3)),
            tokens: 0,
        }
    }

    pub(crate) fn live(&mut self) {
        while !self.world.is_over() {
            let wish = self.wish();
            if let Some((tenure, gate)) = self.acquire(&wish) {
                self.own(tenure, gate);
            }
            let pause = self.random.between(0, 60);
            thread::sleep(Duration::from_millis(pause.saturating_sub(20)));
        }
    }

    fn wish(&mut self) -> Wish {
        self.tokens += 1;
        let random = &mut self.random;
        let locks = self.world.locks.len() as u64;
        Wish {
            lock: random.between(0, locks - 1) as usize,
            token: format!("{}-{}", self.number, self.tokens),
            lease_ms: random.between(LEASE_MS.0, LEASE_MS.1),
            wait_ms: random.percent(90).then(|| random.between(100, 4_000)),
            fence: random.percent(85),
            session: random.percent(25),
        }
    }

    /// Asks until there is an answer, or the client does not care any more.
    fn acquire(&mut self, wish: &Wish) -> Option<(Tenure, usize)> {
        let mut gate = self.random.one_of(&[0, 1]);
        let mut first_sent = None;
        for attempt in 0..4 {
            if !self.connections[gate].is_open_or_opens() {
                gate = 1 - gate;
                continue;
            }
            let sent = now();
            let first_sent = *first_sent.get_or_insert(sent);
            match self.ask(wish, gate) {
                Answer::Granted(fence) => {
                    let tenure = granted(wish, gate, first_sent, sent, fence);
                    self.count(wish, &tenure, attempt);
                    return Some((tenure, gate));
                }
                Answer::NotGranted => {
                    self.world.tally.acquisition("(in vain)");
                    return None;
                }
                // A library that retries does so at once, with the same bytes.
                Answer::GaveUp if self.random.percent(50) => gate = 1 - gate,
                Answer::Unknown if self.random.percent(50) => {
                    gate = self.random.one_of(&[0, 1]);
                }
                Answer::GaveUp | Answer::Unknown => return None,
            }
        }
        None
    }

    fn ask(&mut self, wish: &Wish, gate: usize) -> Answer {
        let words = wish.command(&self.world.locks[wish.lock]);
        let waits = wish.wait_ms.map_or(AT_ONCE, Duration::from_millis);
        let within = match self.random.percent(12) {
            true => Duration::from_millis(self.random.between(0, 600)),
            false => self.patience(waits),
        };
        match self.call(gate, &words, waits, within) {
            Reply::Silence => Answer::GaveUp,
            Reply::Broken => Answer::Unknown,
            Reply::Value(Value::Error(_)) => Answer::Unknown,
            Reply::Value(Value::Nil) => Answer::NotGranted,
            Reply::Value(value) => match wish.fence_in(&value) {
                Some(fence) => Answer::Granted(fence),
                None => {
                    self.wrong(format!("{words:?} was answered {value:?}"));
                    Answer::Unknown
                }
            },
        }
    }

    fn own(&mut self, mut tenure: Tenure, gate: usize) {
        let mut releases = true;
        if self.random.percent(2) {
            // Dies without a word.
            tenure.until = now() - self.notice_margin(&tenure);
            self.connections[gate].close();
            releases = false;
        } else {
            releases &= self.hold(&mut tenure, gate);
            if releases && self.random.percent(15) {
                releases = self.lease_anew(&mut tenure, gate) && self.hold(&mut tenure, gate);
            }
        }
        if releases {
            self.release(&mut tenure, gate);
        }
        self.world
            .chronicle
            .write(|history| history.tenures.push(tenure));
    }

    /// Holds the lock for a while; false where it turned out to be lost.
    fn hold(&mut self, tenure: &mut Tenure, gate: usize) -> bool {
        let overstays = if tenure.session { 12 } else { 2 };
        let hold = match self.random.between(1, 100) {
            chance if chance <= overstays => tenure.lease / 1_000 + self.random.between(0, 1_000),
            95.. => self.random.between(100, 1_000),
            _ => self.random.between(0, 100),
        };
        let hold = Duration::from_millis(hold);
        if !tenure.session {
            thread::sleep(hold);
            return true;
        }
        let kept = self.connections[gate].listens_for(hold, &tenure.token);
        if !kept {
            let told = now();
            tenure.told_lost = Some(told);
            tenure.until = told - NOTICE_MARGIN;
            self.world.tally.error("(told that a session lock is lost)");
        }
        kept
    }

    /// `RELOCK`; false where the lock turned out to be lost.
    fn lease_anew(&mut self, tenure: &mut Tenure, gate: usize) -> bool {
        // A session lock is renewed by its own gate, which must know of a shorter lease.
        let gate = if tenure.session {
            gate
        } else {
            self.some_gate(gate)
        };
        let lease_ms = self.random.between(LEASE_MS.0, LEASE_MS.1);
        let key = self.world.locks[tenure.lock].clone();
        let words = ["RELOCK", &key, &tenure.token, "PX", &lease_ms.to_string()].map(str::to_owned);
        let (sent, lease) = (now(), lease_ms * 1_000);
        let reply = self.call(gate, &words, AT_ONCE, self.patience(AT_ONCE));
        match reply {
            Reply::Value(Value::Integer(0)) => {
                tenure.denied = Some(now());
                tenure.until = sent - self.notice_margin(tenure);
                return false;
            }
            Reply::Value(Value::Integer(1)) => {
                let before = Tenure {
                    until: sent,
                    ..tenure.clone()
                };
                self.world
                    .chronicle
                    .write(|history| history.tenures.push(before));
                tenure.extended = true;
                tenure.fence = None;
                tenure.read = now();
                tenure.lease_from = LeaseFrom::Sent(sent);
                tenure.lease = lease;
                return true;
            }
            Reply::Value(Value::Error(_)) | Reply::Broken | Reply::Silence => {}
            Reply::Value(value) => self.wrong(format!("{words:?} was answered {value:?}")),
        }
        // Nobody knows. It says nothing of who owned the lock then.
        if tenure.session {
            tenure.until = sent - NOTICE_MARGIN;
            self.connections[gate].close();
            return false;
        }
        let from = tenure.lease_from.moment();
        tenure.lease = tenure.lease.min(sent + lease - from);
        true
    }

    /// `UNLOCK`, until it is answered or the client gives up.
    fn release(&mut self, tenure: &mut Tenure, granted_by: usize) {
        let key = self.world.locks[tenure.lock].clone();
        let words = ["UNLOCK", &key, &tenure.token].map(str::to_owned);
        tenure.until = now();
        let mut gate = self.some_gate(granted_by);
        let mut unknown = false;
        for _ in 0..3 {
            if !self.connections[gate].is_open_or_opens() {
                gate = 1 - gate;
                continue;
            }
            match self.call(gate, &words, AT_ONCE, self.patience(AT_ONCE)) {
                Reply::Value(Value::Integer(1)) => {
                    if tenure.session && gate != granted_by && !self.resp3 {
                        // Closed by its gate, too, as soon as that finds the lock gone: not for the
                        // next one.
                        self.connections[granted_by].close();
                    }
                    return;
                }
                Reply::Value(Value::Integer(0)) => {
                    tenure.denied = (!unknown).then(now);
                    break;
                }
                Reply::Value(Value::Error(_)) | Reply::Broken | Reply::Silence => {}
                Reply::Value(value) => self.wrong(format!("{words:?} was answered {value:?}")),
            }
            unknown = true;
            gate = self.some_gate(gate);
        }
        tenure.until -= self.notice_margin(tenure);
        if tenure.session {
            // Or it would be kept for as long as this connection lives.
            self.connections[granted_by].close();
        }
    }

    /// Sends a command and reads its reply, and writes down where it comes late.
    fn call(&mut self, gate: usize, words: &[String], due: Duration, within: Duration) -> Reply {
        let (sent, start) = (now(), Instant::now());
        let reply = self.connections[gate].call(words, within);
        if let Reply::Value(Value::Error(error)) = &reply {
            self.world
                .tally
                .error(&format!("{}: {}", words[0], gist(error)));
        }
        if matches!(reply, Reply::Broken) {
            self.world
                .tally
                .error(&format!("{}: (connection closed)", words[0]));
        }
        if matches!(reply, Reply::Silence) {
            self.connections[gate].close();
            self.world
                .tally
                .error(&format!("{}: (socket timeout)", words[0]));
            if within >= due + NO_REPLY {
                self.wrong(format!("no reply from gate {gate} to {words:?}"));
            }
        }
        if matches!(reply, Reply::Value(_)) && start.elapsed() > due + LATE {
            let what = match words[0].as_str() {
                "LOCK" => "LOCK",
                "TRYLOCK" => "TRYLOCK",
                "UNLOCK" => "UNLOCK",
                _ => "RELOCK",
            };
            let (due, read) = (sent + micros(due), now());
            self.world.chronicle.write(|history| {
                history.late.push(Late {
                    what,
                    gate,
                    sent,
                    due,
                    read,
                });
            });
        }
        reply
    }

    /// How long this client waits for the reply to a command that takes so long.
    fn patience(&self, takes: Duration) -> Duration {
        match self.patient {
            true => takes + NO_REPLY,
            false => takes.min(LONGEST_WAIT) + SOCKET_TIMEOUT,
        }
    }

    /// This gate, or sometimes the other.
    fn some_gate(&mut self, gate: usize) -> usize {
        if self.random.percent(70) {
            gate
        } else {
            1 - gate
        }
    }

    /// What a session lock may already have been lost without its owner's knowing.
    fn notice_margin(&self, tenure: &Tenure) -> Micros {
        if tenure.session { NOTICE_MARGIN } else { 0 }
    }

    fn count(&self, wish: &Wish, tenure: &Tenure, attempt: usize) {
        let waited = tenure.read - tenure.first_sent;
        self.world.tally.wait(waited);
        let kind = [
            if wish.wait_ms.is_some() {
                "LOCK"
            } else {
                "TRYLOCK"
            },
            if wish.fence { " FENCE" } else { "" },
            if wish.session { " SESSION" } else { "" },
            if attempt > 0 { ", retried" } else { "" },
        ];
        self.world.tally.acquisition(&kind.concat());
    }

    fn wrong(&self, what: String) {
        let moment = now();
        self.world
            .chronicle
            .write(|history| history.wrong.push(format!("{moment}: {what}")));
    }
}

impl Wish {
    fn command(&self, key: &str) -> Vec<String> {
        let mut words = vec![
            if self.wait_ms.is_some() {
                "LOCK"
            } else {
                "TRYLOCK"
            }
            .to_owned(),
        ];
        let (token, lease) = (self.token.clone(), self.lease_ms.to_string());
        words.extend([
            key.to_owned(),
            "TOKEN".to_owned(),
            token,
            "PX".to_owned(),
            lease,
        ]);
        if let Some(wait_ms) = self.wait_ms {
            words.extend(["WAIT".to_owned(), wait_ms.to_string()]);
        }
        words.extend(self.fence.then(|| "FENCE".to_owned()));
        words.extend(self.session.then(|| "SESSION".to_owned()));
        words
    }

    /// The fence in the reply to a grant, where one was asked for; nothing where it is no such
    /// reply.
    fn fence_in(&self, reply: &Value) -> Option<Option<u64>> {
        match reply {
            Value::Array(items) if self.fence => match items.as_slice() {
                [token, Value::Integer(fence)] if *token == self.token => {
                    Some(Some(u64::try_from(*fence).ok()?))
                }
                _ => None,
            },
            token => (!self.fence && *token == self.token).then_some(None),
        }
    }
}

fn granted(
    wish: &Wish,
    gate: usize,
    first_sent: Micros,
    sent: Micros,
    fence: Option<u64>,
) -> Tenure {
    let read = now();
    Tenure {
        lock: wish.lock,
        token: wish.token.clone(),
        extended: false,
        through: Through::Gate(gate),
        first_sent,
        read,
        fence,
        lease_from: fence.map_or(LeaseFrom::Sent(sent), LeaseFrom::Fence),
        lease: wish.lease_ms * 1_000,
        session: wish.session,
        until: read,
        denied: None,
        told_lost: None,
    }
}

/// An error without what differs each time.
fn gist(error: &str) -> String {
    error
        .chars()
        .filter(|c| !c.is_ascii_digit())
        .take(90)
        .collect()
}
