//! The timers of the queues: one task sleeps until the earliest.
//!
//! Most locks are released long before their lease ends, and a handover moves a timer. So the task is woken only for a
//! timer that is due before the task looks again by itself.
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
    schedule: Mutex<Schedule>,
    sooner: Notify,
}

#[derive(Default)]
struct Schedule {
    set: BTreeSet<(Time, LockName)>,
    /// When the task looks next. In the past while it runs: then it looks once more before it sleeps.
    looks_at: Time,
}

impl Timers {
    /// Moves the wake-up time of this lock's queue.
    pub(super) fn change(&self, name: &LockName, before: Option<Time>, after: Option<Time>) {
        let mut schedule = self.schedule();
        if let Some(time) = before {
            schedule.set.remove(&(time, name.clone()));
        }
        let Some(time) = after else { return };
        schedule.set.insert((time, name.clone()));
        if time < schedule.looks_at {
            schedule.looks_at = time;
            drop(schedule);
            self.sooner.notify_one();
        }
    }

    fn take_due(&self, now: Time) -> Vec<LockName> {
        let mut schedule = self.schedule();
        let mut due = Vec::new();
        while schedule.set.first().is_some_and(|(time, _)| *time <= now) {
            due.extend(schedule.set.pop_first().map(|(_, name)| name));
        }
        due
    }

    /// Returns how long to sleep from now on.
    fn sleep(&self, now: Time) -> Duration {
        let mut schedule = self.schedule();
        let first = schedule.set.first().map(|(time, _)| *time);
        let sleep = first.map_or(LONGEST_SLEEP, |time| {
            Duration::from_micros(time.micros_since(now)).min(LONGEST_SLEEP)
        });
        let micros = u64::try_from(sleep.as_micros()).unwrap_or(u64::MAX);
        schedule.looks_at = Time::from_micros(now.micros().saturating_add(micros));
        sleep
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        // No code panics while it holds this.
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
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
        let sleep = timers.sleep(clock::now());
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = timers.sooner.notified() => {}
        }
    }
}
