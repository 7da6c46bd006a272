//! The timers of the queues: one task sleeps until the earliest.
//!
//! The timers use the process clock, which runs while the machine is suspended; the runtime's does not. So the
//! task sleeps for at most [`LONGEST_SLEEP`] and checks again.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::Notify;

use super::Gate;
use crate::{
    clock,
    lock::{Event, Time},
    store::LockName,
};

/// Most delay of a timer after the machine resumes.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// The wake-up times of the queues.
#[derive(Default)]
pub(super) struct Timers {
    set: Mutex<BTreeSet<(Time, LockName)>>,
    sooner: Notify,
}

impl Timers {
    /// Moves the wake-up time of this lock's queue.
    pub(super) fn change(&self, name: &LockName, before: Option<Time>, after: Option<Time>) {
        let mut set = self.set();
        if let Some(time) = before {
            set.remove(&(time, name.clone()));
        }
        if let Some(time) = after {
            let sooner = set.first().is_none_or(|(first, _)| time < *first);
            set.insert((time, name.clone()));
            drop(set);
            if sooner {
                self.sooner.notify_one();
            }
        }
    }

    fn take_due(&self, now: Time) -> Vec<LockName> {
        let mut set = self.set();
        let mut due = Vec::new();
        while set.first().is_some_and(|(time, _)| *time <= now) {
            due.extend(set.pop_first().map(|(_, name)| name));
        }
        due
    }

    fn next(&self) -> Option<Time> {
        self.set().first().map(|(time, _)| *time)
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<(Time, LockName)>> {
        // No code panics while it holds this.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the queues of a gate in time, while the gate exists.
pub(super) async fn keep(gate: Weak<Gate>, timers: Arc<Timers>) {
    loop {
        let due = timers.take_due(clock::now());
        {
            let Some(gate) = gate.upgrade() else { return };
            for name in due {
                gate.dispatch(&name, Event::Timer, None);
            }
        }
        let sleep = match timers.next() {
            Some(time) => Duration::from_micros(time.micros_since(clock::now())).min(LONGEST_SLEEP),
            None => LONGEST_SLEEP,
        };
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = timers.sooner.notified() => {}
        }
    }
}
