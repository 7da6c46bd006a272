//! A client that locks, works and unlocks, through either lockgate, and behaves well: it lets go within
//! its lease, or extends it in time.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use super::history::{Said, Step, What, World, key};
use crate::{
    random::Random,
    support::{Client, Value},
};

/// The locks that pass from client to client thousands of times between two losses.
const HOT_LOCKS: usize = 3;

/// A lock that is held for longer has a long lease.
const LONG_MS: u64 = 2_000;

/// Until when a reply must have come, beside the time that it was allowed to take.
const NO_REPLY: Duration = Duration::from_secs(15);

/// How often an ordinary command follows.
const ORDINARY_PERCENT: u64 = 20;

/// How long `TRYLOCK`, `UNLOCK` and `RELOCK` may take.
const AT_ONCE: Duration = Duration::from_secs(2);

pub(crate) struct Contender<'a> {
    world: &'a World,
    number: usize,
    random: Random,
    connections: Vec<Option<Client>>,
    tokens: u64,
}

struct Wish {
    lock: usize,
    /// None is one of lockgate's making.
    token: Option<String>,
    lease: Duration,
    /// None is a `TRYLOCK`.
    wait: Option<Duration>,
    fence: bool,
    session: bool,
    hold: Duration,
}

/// One that is over long after the hold.
fn a_lease(hold: Duration, random: &mut Random) -> Duration {
    let short = hold < Duration::from_millis(LONG_MS) && random.percent(60);
    Duration::from_millis(match short {
        true => random.between(4_000, 6_000),
        false => random.between(30_000, 60_000),
    })
}

impl<'a> Contender<'a> {
    pub(crate) fn new(world: &'a World, number: usize, seed: u64) -> Self {
        Self {
            world,
            number,
            random: Random::new(seed),
            connections: world.gates.iter().map(|_| None).collect(),
            tokens: 0,
        }
    }

    pub(crate) fn live(&mut self) {
        while !self.world.is_over() {
            let gate = self.random.below(self.world.gates.len());
            let wish = self.wish();
            if let Some(token) = self.acquire(gate, &wish) {
                self.own(gate, &wish, &token);
            }
            if self.is_ordinary() && self.random.percent(ORDINARY_PERCENT) {
                // A direct connection that is owed a reply would end with Redis, too.
                let _ = self.call(gate, &["GET".to_owned(), "nothing".to_owned()], AT_ONCE);
            }
            self.sleep(0, 30);
        }
    }

    /// Whether it sends ordinary commands, too, on connecting as libraries do, and later.
    fn is_ordinary(&self) -> bool {
        self.world.ordinary && self.number.is_multiple_of(2)
    }

    fn wish(&mut self) -> Wish {
        self.tokens += 1;
        let random = &mut self.random;
        let hot = random.percent(15);
        let session = !hot && random.percent(15);
        let hold_ms = match random.between(1, 100) {
            _ if hot => random.between(1, 4),
            1..=45 => random.between(0, 20),
            46..=80 => random.between(20, 400),
            81..=90 => random.between(400, LONG_MS),
            // Through a loss and its grace.
            _ => random.between(LONG_MS, 5_000),
        };
        let hold = Duration::from_millis(hold_ms);
        let lease = a_lease(hold, random);
        Wish {
            lock: random.below(if hot { HOT_LOCKS } else { self.world.locks }),
            token: (random.percent(60) || session)
                .then(|| format!("{}-{}", self.number, self.tokens)),
            lease,
            wait: (session || random.percent(90))
                .then(|| Duration::from_millis(random.between(500, 15_000))),
            fence: random.percent(30),
            session,
            hold,
        }
    }

    /// Returns the token where it was granted.
    fn acquire(&mut self, gate: usize, wish: &Wish) -> Option<String> {
        let lease = wish.lease;
        let (name, what, due) = match wish.wait {
            None => ("TRYLOCK", What::TryLock { lease }, AT_ONCE),
            Some(wait) => {
                let session = wish.session;
                ("LOCK", What::Lock { lease, session }, wait)
            }
        };
        let mut words = vec![name.to_owned(), key(wish.lock)];
        let mut option = |name: &str, value: Option<String>| {
            words.push(name.to_owned());
            words.extend(value);
        };
        option("PX", Some(lease.as_millis().to_string()));
        if let Some(token) = &wish.token {
            option("TOKEN", Some(token.clone()));
        }
        if let Some(wait) = wish.wait {
            option("WAIT", Some(wait.as_millis().to_string()));
        }
        if wish.fence {
            option("FENCE", None);
        }
        if wish.session {
            option("SESSION", None);
        }
        let mut step = self.step(
            gate,
            wish.lock,
            wish.token.as_deref().unwrap_or_default(),
            what,
        );
        let reply = self.call(gate, &words, due);
        step.read = self.world.now();
        let items = match &reply {
            Ok(Value::Array(items)) => items.as_slice(),
            Ok(token @ Value::Bulk(_)) => std::slice::from_ref(token),
            _ => &[],
        };
        step.said = match (&reply, items) {
            (_, [token]) if !wish.fence => {
                step.token = token.text();
                Said::Granted { fence: None }
            }
            (_, [token, Value::Integer(fence)]) if wish.fence => {
                step.token = token.text();
                Said::Granted {
                    fence: Some(*fence),
                }
            }
            (Ok(Value::Nil), _) => Said::Nil,
            (reply, _) => self.unknown(&words, reply),
        };
        let granted = matches!(step.said, Said::Granted { .. }).then(|| step.token.clone());
        self.write(step);
        granted
    }

    /// Works, and lets go.
    fn own(&mut self, gate: usize, wish: &Wish, token: &str) {
        if !self.works(gate, wish, token) {
            return;
        }
        if self.random.percent(20) {
            let at = self.some_gate(gate, wish.session, 30);
            let lease = a_lease(wish.hold, &mut self.random);
            let said = self.tells(at, wish, token, What::Relock { lease });
            if said == Said::No || !self.works(gate, wish, token) {
                return;
            }
        }
        let at = self.some_gate(gate, wish.session, 20);
        if let Said::Unknown(_) = self.tells(at, wish, token, What::Unlock) {
            // Once more, as libraries do; what came of it is not known then either.
            self.tells(gate, wish, token, What::Unlock);
        }
    }

    /// Holds the lock for a while; false where it hears that it is lost.
    fn works(&mut self, gate: usize, wish: &Wish, token: &str) -> bool {
        if !wish.session {
            thread::sleep(wish.hold);
            return true;
        }
        let Some(client) = &mut self.connections[gate] else {
            return false;
        };
        let heard = client.hears_within(wish.hold);
        if matches!(heard, Ok(false)) {
            return true;
        }
        self.connections[gate] = None;
        self.heard_lost(gate, wish, token);
        false
    }

    /// The lockgate closed the connection that its SESSION lock is bound to.
    fn heard_lost(&self, gate: usize, wish: &Wish, token: &str) {
        let mut step = self.step(gate, wish.lock, token, What::HeardLost);
        step.said = Said::Unknown("the connection was closed".to_owned());
        self.write(step);
    }

    /// `RELOCK` or `UNLOCK`.
    fn tells(&mut self, gate: usize, wish: &Wish, token: &str, what: What) -> Said {
        let key = key(wish.lock);
        let words = match what {
            What::Relock { lease } => {
                let lease = lease.as_millis().to_string();
                vec![
                    "RELOCK".to_owned(),
                    key,
                    token.to_owned(),
                    "PX".to_owned(),
                    lease,
                ]
            }
            _ => vec!["UNLOCK".to_owned(), key, token.to_owned()],
        };
        let mut step = self.step(gate, wish.lock, token, what);
        let reply = self.call(gate, &words, AT_ONCE);
        step.read = self.world.now();
        step.said = match &reply {
            Ok(Value::Integer(1)) => Said::Yes,
            Ok(Value::Integer(0)) => Said::No,
            reply => self.unknown(&words, reply),
        };
        let said = step.said.clone();
        self.write(step);
        if wish.session && self.connections[gate].is_none() {
            self.heard_lost(gate, wish, token);
            return Said::No;
        }
        said
    }

    fn some_gate(&mut self, own: usize, stays: bool, other_percent: u64) -> usize {
        if stays || !self.random.percent(other_percent) {
            return own;
        }
        self.random.below(self.world.gates.len())
    }

    fn call(&mut self, gate: usize, words: &[String], due: Duration) -> io::Result<Value> {
        let greets = self.is_ordinary();
        let connection = &mut self.connections[gate];
        if connection.is_none() {
            let mut client = Client::try_connect(self.world.gates[gate])?;
            if greets {
                client.try_write(b"CLIENT SETNAME contender\r\n")?;
                // A client whose first words Redis does not answer has to connect again, as to Redis itself.
                if !matches!(client.try_read(), Ok(Value::Simple(_))) {
                    return Ok(Value::Error("the first words were not answered".to_owned()));
                }
            }
            *connection = Some(client);
        }
        let client = connection.as_mut().expect("it is there");
        let deadline = Instant::now() + due + NO_REPLY;
        let mut said = client.try_write(&crate::support::frame(words));
        if said.is_ok() {
            said = match client.hears_within(deadline.saturating_duration_since(Instant::now())) {
                Ok(true) => return client.try_read(),
                Ok(false) => Err(io::ErrorKind::TimedOut.into()),
                Err(broken) => Err(broken),
            };
        }
        *connection = None;
        said.map(|()| Value::Nil)
    }

    fn unknown(&self, words: &[String], reply: &io::Result<Value>) -> Said {
        let why = match reply {
            Ok(Value::Error(error)) => format!("-{error}"),
            Ok(other) => {
                let wrong = format!("{words:?} was answered {other:?}");
                self.world
                    .write(|history| history.wrong.push(wrong.clone()));
                wrong
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let wrong = format!("{words:?} was not answered");
                self.world
                    .write(|history| history.wrong.push(wrong.clone()));
                wrong
            }
            Err(error) => {
                if self.world.ordinary {
                    let wrong = format!("{words:?} at {:?}: {error}", self.world.now());
                    self.world.write(|history| history.wrong.push(wrong));
                }
                error.to_string()
            }
        };
        Said::Unknown(why)
    }

    fn step(&self, gate: usize, lock: usize, token: &str, what: What) -> Step {
        let now = self.world.now();
        Step {
            sent: now,
            read: now,
            client: self.number,
            gate,
            lock,
            token: token.to_owned(),
            what,
            said: Said::Nil,
        }
    }

    fn write(&self, step: Step) {
        self.world.write(|history| history.steps.push(step));
    }

    fn sleep(&mut self, least_ms: u64, most_ms: u64) {
        thread::sleep(Duration::from_millis(
            self.random.between(least_ms, most_ms),
        ));
    }
}
