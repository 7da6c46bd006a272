//! What happened, in microseconds of the one clock that everybody here shares.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A moment: microseconds since 1970 by `CLOCK_REALTIME`, which is what Redis's `TIME` tells, since
/// Redis runs on this machine too.
pub(crate) type Micros = u64;

pub(crate) fn now() -> Micros {
    micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap())
}

pub(crate) fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap()
}

/// One acquisition, as its owner knows of it, or what came of it after a `RELOCK`: between the two the
/// lock may have been lost with the data of Redis, taken by somebody else, let go, and written back.
#[derive(Clone, Debug)]
pub(crate) struct Tenure {
    pub(crate) lock: usize,
    pub(crate) token: String,
    /// Not granted, but extended.
    pub(crate) extended: bool,
    pub(crate) through: Through,
    /// When the token was first sent with a request for this lock.
    pub(crate) first_sent: Micros,
    /// When the grant, or the success of the `RELOCK`, was read.
    pub(crate) read: Micros,
    pub(crate) fence: Option<u64>,
    /// Since when the lease runs, at the latest moment for which that is certain.
    pub(crate) lease_from: LeaseFrom,
    pub(crate) lease: Micros,
    pub(crate) session: bool,
    /// Until when the owner thinks that it owns: the moment before it let go, if it did, or had
    /// to think that it lost the lock. Its lease may end earlier.
    pub(crate) until: Micros,
    /// When a release, or a new lease, was answered with "this token does not hold the lock", though
    /// nobody had asked for its end before.
    pub(crate) denied: Option<Micros>,
    /// When the gate said, by a push or by the end of the connection, that a session lock is lost.
    pub(crate) told_lost: Option<Micros>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Through {
    /// Redis itself, as a client that knows nothing of lockgate.
    Redis,
    Gate(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LeaseFrom {
    /// A request was sent then whose success was read.
    Sent(Micros),
    /// The fence says so, and no request of this token was sent since.
    Fence(Micros),
}

impl LeaseFrom {
    pub(crate) fn moment(self) -> Micros {
        match self {
            Self::Sent(moment) | Self::Fence(moment) => moment,
        }
    }
}

/// Something that broke, or was broken on purpose.
#[derive(Clone, Debug)]
pub(crate) struct Incident {
    pub(crate) what: What,
    /// Before it began.
    pub(crate) from: Micros,
    /// After it was over.
    pub(crate) to: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum What {
    /// Redis was killed and came back without its data.
    Forgot,
    /// `FLUSHALL`.
    Flushed,
    /// Redis was killed and came back with its data.
    Restarted,
    RedisStopped,
    /// What a well Redis and well gates have to live with: clients killed, scripts gone, no memory.
    Disturbed,
    LinkBroken(usize),
    GateKilled(usize),
    GateStopped(usize),
    /// A thread of the tests' own that wanted to run could not: nobody can be held to a moment.
    MachineStuttered,
}

impl What {
    /// The data of Redis was lost, and that was the purpose.
    pub(crate) fn is_loss(self) -> bool {
        matches!(self, Self::Forgot | Self::Flushed)
    }
}

impl Incident {
    pub(crate) fn overlaps(&self, from: Micros, to: Micros) -> bool {
        self.from <= to && from <= self.to
    }
}

/// A request whose reply came later than promised, if nothing hindered.
#[derive(Clone, Debug)]
pub(crate) struct Late {
    pub(crate) what: &'static str,
    pub(crate) gate: usize,
    pub(crate) sent: Micros,
    /// When the reply should have been there.
    pub(crate) due: Micros,
    pub(crate) read: Micros,
}

#[derive(Clone, Default)]
pub(crate) struct History {
    pub(crate) tenures: Vec<Tenure>,
    pub(crate) incidents: Vec<Incident>,
    pub(crate) late: Vec<Late>,
    /// What is wrong by itself, whatever else happened.
    pub(crate) wrong: Vec<String>,
}

impl History {
    /// Each entry on a line of its own.
    pub(crate) fn lines(&self) -> String {
        let tenures = self.tenures.iter().map(|tenure| format!("{tenure:?}\n"));
        let incidents = self.incidents.iter().map(|i| format!("{i:?}\n"));
        let late = self.late.iter().map(|late| format!("{late:?}\n"));
        let wrong = self.wrong.iter().map(|wrong| format!("{wrong}\n"));
        tenures.chain(incidents).chain(late).chain(wrong).collect()
    }
}

/// The history while it is being made.
#[derive(Default)]
pub(crate) struct Chronicle(Mutex<History>);

impl Chronicle {
    pub(crate) fn write(&self, entry: impl FnOnce(&mut History)) {
        entry(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn read(&self) -> History {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
