//! What clients did and what they were told, in the order of one clock that all share. It knows nothing
//! of lockgate but its commands.

use std::{
    fmt::{self, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

const NAP: Duration = Duration::from_millis(5);

/// A thread that wakes this much late shows that the machine was busy elsewhere.
const STUTTER: Duration = Duration::from_millis(40);

/// Since the beginning of the run.
pub(crate) type Moment = Duration;

/// A command and its reply.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) sent: Moment,
    /// When the reply was read, or the client gave up.
    pub(crate) read: Moment,
    pub(crate) client: usize,
    pub(crate) gate: usize,
    pub(crate) lock: usize,
    /// A new one for each acquisition; empty where lockgate was to make one and the reply was lost.
    pub(crate) token: String,
    pub(crate) what: What,
    pub(crate) said: Said,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// With this lease, as are those below.
    Lock {
        lease: Duration,
        session: bool,
    },
    TryLock {
        lease: Duration,
    },
    Relock {
        lease: Duration,
    },
    Unlock,
    /// It did nothing, and heard that its SESSION lock is lost.
    HeardLost,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    Granted {
        fence: Option<i64>,
    },
    Nil,
    Yes,
    No,
    /// The outcome is unknown.
    Unknown(String),
}

/// Redis went back to older data, or lost the latest.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) kind: &'static str,
    /// Before anything was done.
    pub(crate) from: Moment,
    /// Every lockgate grants free locks again.
    pub(crate) settled: Moment,
}

/// The holder of each lock, by Redis itself.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    pub(crate) holders: Vec<Option<String>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) steps: Vec<Step>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) looks: Vec<Look>,
    /// When the machine did not run a thread that had nothing to wait for.
    pub(crate) stutters: Vec<(Moment, Moment)>,
    /// Violations that need no check, such as a reply that makes no sense.
    pub(crate) wrong: Vec<String>,
}

/// The history while it is being made, and what all clients share beside.
pub(crate) struct World {
    pub(crate) gates: Vec<std::net::SocketAddr>,
    pub(crate) locks: usize,
    /// Whether half of the clients also send ordinary commands, and no connection may end.
    pub(crate) ordinary: bool,
    start: Instant,
    over: AtomicBool,
    history: Mutex<History>,
}

impl World {
    pub(crate) fn new(gates: Vec<std::net::SocketAddr>, locks: usize) -> Self {
        Self {
            gates,
            locks,
            ordinary: false,
            start: Instant::now(),
            over: AtomicBool::new(false),
            history: Mutex::default(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.start.elapsed()
    }

    pub(crate) fn moment(&self, at: Instant) -> Moment {
        at.saturating_duration_since(self.start)
    }

    /// Writes down the machine's stutters, until the end.
    pub(crate) fn watches_the_machine(&self) {
        let mut before = self.now();
        while !self.is_over() {
            thread::sleep(NAP);
            let after = self.now();
            if after - before > NAP + STUTTER {
                self.write(|history| history.stutters.push((before, after)));
            }
            before = after;
        }
    }

    /// Lets all clients finish what they are at, and begin nothing new.
    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(crate) fn write(&self, entry: impl FnOnce(&mut History)) {
        entry(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn history(self) -> History {
        self.history
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn key(lock: usize) -> String {
    format!("lock:{lock}")
}

impl History {
    /// Everything, an entry on each line.
    pub(crate) fn lines(&self) -> String {
        let mut lines = String::new();
        for loss in &self.losses {
            let _ = writeln!(lines, "{loss}");
        }
        for step in &self.steps {
            let _ = writeln!(lines, "{step}");
        }
        for look in &self.looks {
            let _ = writeln!(lines, "{look:?}");
        }
        lines
    }

    /// What happened to this lock around this time, as far as it is about these tokens, or close to it.
    pub(crate) fn around(&self, lock: usize, moment: Moment, tokens: &[&str]) -> String {
        const BEFORE: Duration = Duration::from_secs(12);
        const CLOSE: Duration = Duration::from_millis(700);
        const MOST_LINES: usize = 40;
        let near = |from: Moment, to: Moment, within: Duration| {
            from <= moment + CLOSE && to + within >= moment
        };
        let mut lines: Vec<(Moment, String)> = Vec::new();
        for loss in &self.losses {
            if near(loss.from, loss.settled, BEFORE) {
                lines.push((loss.from, loss.to_string()));
            }
        }
        for step in self.steps.iter().filter(|step| step.lock == lock) {
            let concerned = tokens.contains(&step.token.as_str());
            if concerned || near(step.sent, step.read, CLOSE) {
                lines.push((step.sent, step.to_string()));
            }
        }
        for look in &self.looks {
            if near(look.from, look.to, BEFORE) {
                let holder = &look.holders[lock];
                let seconds = look.from.as_secs_f64();
                lines.push((look.from, format!("{seconds:9.4}  Redis: {holder:?}")));
            }
        }
        lines.sort();
        let hidden = lines.len().saturating_sub(MOST_LINES);
        let shown = lines.into_iter().skip(hidden);
        let shown: Vec<_> = shown.map(|(_, line)| format!("    {line}")).collect();
        shown.join("\n")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sent, read) = (self.sent.as_secs_f64(), self.read.as_secs_f64());
        let token = if self.token.is_empty() {
            "?"
        } else {
            &self.token
        };
        let (gate, lock, client) = (self.gate, self.lock, self.client);
        write!(
            f,
            "{sent:9.4}  to {read:9.4}  client {client} gate {gate} lock {lock} "
        )?;
        match self.what {
            What::Lock { lease, session } => {
                let session = if session { " SESSION" } else { "" };
                write!(f, "LOCK {token} for {lease:?}{session}")
            }
            What::TryLock { lease } => write!(f, "TRYLOCK {token} for {lease:?}"),
            What::Relock { lease } => write!(f, "RELOCK {token} for {lease:?}"),
            What::Unlock => write!(f, "UNLOCK {token}"),
            What::HeardLost => write!(f, "hears that {token} lost it"),
        }?;
        match &self.said {
            Said::Granted { fence: None } => write!(f, ": granted"),
            Said::Granted { fence: Some(fence) } => write!(f, ": granted, fence {fence}"),
            Said::Nil => write!(f, ": nil"),
            Said::Yes => write!(f, ": 1"),
            Said::No => write!(f, ": 0"),
            Said::Unknown(why) => write!(f, ": {why}"),
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, settled) = (self.from.as_secs_f64(), self.settled.as_secs_f64());
        write!(f, "{from:9.4}  to {settled:9.4}  === {}", self.kind)
    }
}
