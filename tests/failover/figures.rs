//! What failovers cost, in time and in grants on a master that is none any more.

use std::time::Duration;

use crate::{
    contention::history::History,
    support::{median, report},
};

/// From the first `+switch-master` to the first handover, beside what it has to wait for.
const HANDOVER: Duration = Duration::from_millis(300);

/// The same to the first grant of a free lock, beside the grace.
const FREE: Duration = Duration::from_millis(200);

/// In one of this many planned failovers, lockgate may write to the old master after the promotion: the message that
/// announces the promotion may be late.
const ONE_IN: usize = 20;

#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) handovers: Vec<Duration>,
    pub(crate) free: Vec<Duration>,
    /// Of each planned failover.
    pub(crate) stale_writes: Vec<u64>,
}

impl Figures {
    pub(crate) fn report(&self, name: &str, history: &History) {
        let stale = self.with_stale_writes();
        report(&format!(
            "{name}: from the first +switch-master\n  {} handovers: {}\n  {} free locks: {}\n  \
             {} planned failovers, in {} of which the old master was written to after the promotion: {stale:?}\n  \
             {} stutters of the machine, {:?} in all",
            self.handovers.len(),
            median_and_worst(&self.handovers),
            self.free.len(),
            median_and_worst(&self.free),
            self.stale_writes.len(),
            stale.len(),
            history.stutters.len(),
            history
                .stutters
                .iter()
                .map(|(from, to)| *to - *from)
                .sum::<Duration>(),
        ));
    }

    /// The medians are within the bounds; a machine that stutters moves the worst.
    #[track_caller]
    pub(crate) fn are_within(&self, before_handover: Duration, grace: Duration) {
        let free = grace + FREE;
        for (what, times, bound) in [
            ("handover", &self.handovers, before_handover + HANDOVER),
            ("free lock", &self.free, free),
        ] {
            let median = median(times.clone());
            assert!(
                median <= bound,
                "{what}: {median:?}, not {bound:?}: {times:?}"
            );
        }
    }

    /// While a failover promotes a replica, lockgate leaves the old master alone.
    #[track_caller]
    pub(crate) fn have_pauses(&self) {
        let stale = self.with_stale_writes().len();
        assert!(
            stale <= self.stale_writes.len().div_ceil(ONE_IN),
            "{stale}: {:?}",
            self.stale_writes
        );
    }

    fn with_stale_writes(&self) -> Vec<u64> {
        let counts = self.stale_writes.iter().copied();
        counts.filter(|count| *count > 0).collect()
    }
}

fn median_and_worst(times: &[Duration]) -> String {
    let worst = times.iter().max().copied().unwrap_or_default();
    let median = median(times.to_vec());
    format!(
        "median {} ms, worst {} ms",
        median.as_millis(),
        worst.as_millis()
    )
}
