//! What an instance believes of a service, from all that its sentinels say. Nothing here does I/O or reads a clock.
//!
//! - **The highest configuration epoch wins, and is never gone back on.** A sentinel that was cut off names the old master,
//!   with the old epoch.
//! - **A message that the master has changed is a reason to ask**, no more: it has no epoch, and a sentinel that lags behind
//!   announces an earlier change late.
//! - **A failover pauses the locks**, from the message that a replica is being chosen until the master has changed, or for
//!   [`LONGEST_PAUSE`]: what the old master grants after the promotion, the new one does not have.
//! - **An instance that hears fewer than half of the sentinels is isolated.** The others may agree on a new master.

use std::time::Duration;

use super::reply::{Claim, Event};

/// The longest pause for one failover.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// What is believed of a service.
#[derive(Debug, Default)]
pub(super) struct Belief {
    master: Option<(String, u16)>,
    epoch: u64,
    /// The silence after which sentinels take the master for dead.
    down_after: Duration,
    /// Until when a failover pauses the locks.
    paused_until: Option<Duration>,
}

/// The effect of what a sentinel said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// Nothing new.
    Nothing,
    /// The first master.
    Found,
    /// Another master.
    Changed,
    /// A failover begins.
    Paused,
    /// The sentinel names another master than the one believed in, with no higher epoch.
    Outdated,
}

impl Belief {
    /// Weighs what a sentinel replied.
    pub(super) fn claimed(&mut self, claim: &Claim) -> Learned {
        let Some(master) = &self.master else {
            self.master = Some(claim.address.clone());
            self.epoch = claim.epoch;
            self.down_after = claim.down_after;
            return Learned::Found;
        };
        let is_same = *master == claim.address;
        if claim.epoch <= self.epoch && !is_same {
            return Learned::Outdated;
        }
        self.epoch = self.epoch.max(claim.epoch);
        self.down_after = claim.down_after;
        if is_same {
            return Learned::Nothing;
        }
        self.master = Some(claim.address.clone());
        self.paused_until = None;
        Learned::Changed
    }

    /// Weighs a message. `now` is the time since some fixed instant.
    pub(super) fn heard(&mut self, event: &Event, now: Duration) -> Learned {
        match event {
            Event::Begun(of) if self.master.as_ref() == Some(of) && self.paused_until.is_none() => {
                self.paused_until = Some(now + LONGEST_PAUSE);
                Learned::Paused
            }
            Event::Aborted(of) if self.master.as_ref() == Some(of) => {
                self.paused_until = None;
                Learned::Nothing
            }
            Event::Begun(_) | Event::Aborted(_) | Event::Other => Learned::Nothing,
        }
    }

    /// Returns the master.
    pub(super) fn master(&self) -> Option<&(String, u16)> {
        self.master.as_ref()
    }

    /// Returns the epoch of the configuration that made it the master.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the silence after which sentinels take the master for dead.
    pub(super) fn down_after(&self) -> Duration {
        self.down_after
    }

    /// Returns whether a failover pauses the locks.
    pub(super) fn is_paused(&mut self, now: Duration) -> bool {
        self.paused_until = self.paused_until.filter(|until| now < *until);
        self.paused_until.is_some()
    }

    /// Returns whether so few of the known sentinels are heard that the others may agree on a new master.
    pub(super) fn is_isolated(&self, heard: usize, known: usize) -> bool {
        self.master.is_some() && heard * 2 < known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> (String, u16) {
        ("10.0.0.1".to_owned(), port)
    }

    fn claim(port: u16, epoch: u64) -> Claim {
        Claim {
            address: address(port),
            epoch,
            sentinels: 3,
            down_after: Duration::from_millis(500),
        }
    }

    const NOW: Duration = Duration::from_secs(10);

    #[test]
    fn the_highest_epoch_wins_and_is_never_gone_back_on() {
        let mut belief = Belief::default();
        assert_eq!(belief.claimed(&claim(1, 3)), Learned::Found);
        assert_eq!(belief.claimed(&claim(2, 4)), Learned::Changed);
        assert_eq!(belief.claimed(&claim(1, 3)), Learned::Outdated);
        assert_eq!(belief.claimed(&claim(1, 4)), Learned::Outdated);
        assert_eq!(belief.claimed(&claim(2, 9)), Learned::Nothing);
        assert_eq!(belief.claimed(&claim(1, 8)), Learned::Outdated);
        assert_eq!(belief.master(), Some(&address(2)));
    }

    #[test]
    fn a_failover_of_the_master_pauses_until_it_changes_or_the_failover_ends_otherwise() {
        let paused = || {
            let mut belief = Belief::default();
            belief.claimed(&claim(1, 3));
            let begun = belief.heard(&Event::Begun(address(1)), NOW);
            assert_eq!(begun, Learned::Paused);
            // What was said of an earlier master, and a claim of before.
            belief.heard(&Event::Aborted(address(2)), NOW);
            belief.claimed(&claim(1, 3));
            assert!(belief.is_paused(NOW));
            belief
        };
        let mut belief = paused();
        assert_eq!(belief.claimed(&claim(2, 4)), Learned::Changed);
        assert!(!belief.is_paused(NOW));
        let mut belief = paused();
        belief.heard(&Event::Aborted(address(1)), NOW);
        assert!(!belief.is_paused(NOW));
        let elsewhere = belief.heard(&Event::Begun(address(2)), NOW);
        assert_eq!(elsewhere, Learned::Nothing);
    }

    #[test]
    fn no_pause_outlasts_its_bound_and_no_message_extends_it() {
        let mut belief = Belief::default();
        belief.claimed(&claim(1, 3));
        belief.heard(&Event::Begun(address(1)), NOW);
        let later = NOW + LONGEST_PAUSE;
        assert_eq!(
            belief.heard(&Event::Begun(address(1)), later),
            Learned::Nothing
        );
        assert!(!belief.is_paused(later));
    }

    #[test]
    fn an_instance_is_isolated_with_fewer_than_half_of_the_sentinels() {
        let mut belief = Belief::default();
        assert!(!belief.is_isolated(0, 3));
        belief.claimed(&claim(1, 3));
        assert!(belief.is_isolated(1, 3));
        assert!(!belief.is_isolated(2, 3));
        assert!(!belief.is_isolated(2, 4));
    }
}
