//! Warnings to operators about conditions that the queues detect: many instances at one lock, and a Redis that
//! drops keys from its tracking table.

use tracing::warn;

use crate::{
    lock::LockMetric,
    store::LockName,
    telemetry::{
        escape::escape,
        log_limit::{LogLimit, Often},
    },
};

/// The warnings, each at most once a minute.
#[derive(Debug)]
pub(super) struct Warnings {
    crowded: LogLimit,
    told_of_nothing: Often,
}

impl Default for Warnings {
    fn default() -> Self {
        Self {
            crowded: LogLimit::new(1),
            // A few may be late pushes.
            told_of_nothing: Often::new(20),
        }
    }
}

impl Warnings {
    /// Logs a warning if the happening calls for one.
    pub(super) fn happened(&self, name: &LockName, what: LockMetric) {
        match what {
            LockMetric::Crowded { rivals } => {
                if let Some(left_out) = self.crowded.is_due() {
                    warn!(
                        lock = %escape(&name.key),
                        database = name.database,
                        instances = rivals + 1,
                        left_out,
                        "many instances wait for this lock (the number is an estimate), and each asks Redis after every \
                         change of it; fewer instances cost less (docs/deploying.md)"
                    );
                }
            }
            LockMetric::ToldOfNothing if self.told_of_nothing.is_due() => warn!(
                "Redis tells of changes of locks that did not change: where no database is flushed, its tracking \
                 table is full (tracking-table-max-keys), and waiters may hear of a release only when the lease ends"
            ),
            _ => {}
        }
    }
}
