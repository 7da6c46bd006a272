//! What all clients share: where to connect to, what to lock, and what is written down.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use crate::history::{Chronicle, Incident, Micros, What, micros, now};

/// A thread that wakes this much late shows that the machine was busy elsewhere.
const STUTTER: Duration = Duration::from_millis(40);

pub(crate) struct World {
    pub(crate) gates: [SocketAddr; 2],
    pub(crate) redis: SocketAddr,
    pub(crate) locks: Vec<String>,
    pub(crate) chronicle: Chronicle,
    pub(crate) tally: Tally,
    over: AtomicBool,
}

impl World {
    pub(crate) fn new(gates: [SocketAddr; 2], redis: SocketAddr, locks: usize) -> Self {
        Self {
            gates,
            redis,
            locks: (0..locks).map(|n| format!("lock:{n}")).collect(),
            chronicle: Chronicle::default(),
            tally: Tally::default(),
            over: AtomicBool::new(false),
        }
    }

    /// Lets everybody finish what they are at, and begin nothing new.
    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Writes down when the machine did not run a thread that had nothing to wait for, until the
    /// end.
    pub(crate) fn watch_the_machine(&self) {
        let nap = Duration::from_millis(5);
        let mut before = now();
        while !self.is_over() {
            thread::sleep(nap);
            let after = now();
            if after - before > micros(nap + STUTTER) {
                self.chronicle.write(|history| {
                    history.incidents.push(Incident {
                        what: What::MachineStuttered,
                        from: before,
                        to: after,
                    });
                });
            }
            before = after;
        }
    }
}

/// What was tried, and how often.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) acquisitions: BTreeMap<String, u64>,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Between the first request and the grant.
    pub(crate) waits: Vec<Micros>,
}

impl Tally {
    pub(crate) fn acquisition(&self, kind: &str) {
        self.count(|counts| &mut counts.acquisitions, kind);
    }

    pub(crate) fn fault(&self, kind: &str) {
        self.count(|counts| &mut counts.faults, kind);
    }

    pub(crate) fn error(&self, kind: &str) {
        self.count(|counts| &mut counts.errors, kind);
    }

    pub(crate) fn wait(&self, wait: Micros) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .waits
            .push(wait);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn count(&self, of: impl FnOnce(&mut Counts) -> &mut BTreeMap<String, u64>, kind: &str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *of(&mut counts).entry(kind.to_owned()).or_default() += 1;
    }
}
