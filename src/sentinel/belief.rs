//! What an instance believes of a service, from all that its sentinels say. Nothing here does I/O or reads a clock.
//!
//! - **The highest configuration epoch wins, and is never gone back on.** A sentinel that was cut off names the old master,
//!   with the old epoch.
//! - **A message that the master has changed counts at once** where it starts from the master that is believed in. The epoch
//!   is asked for then.
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
    /// How many sentinels there are, as far as they say.
    sentinels: usize,
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
        self.sentinels = claim.sentinels;
        self.down_after = claim.down_after;
        let Some(master) = &self.master else {
            self.master = Some(claim.address.clone());
            self.epoch = claim.epoch;
            return Learned::Found;
        };
        let is_same = *master == claim.address;
        if claim.epoch <= self.epoch {
            return match is_same {
                true => Learned::Nothing,
                false => Learned::Outdated,
            };
        }
        self.epoch = claim.epoch;
        match is_same {
            true => Learned::Nothing,
            false => self.change(claim.address.clone()),
        }
    }

    /// Weighs a message. `now` is the time since some fixed instant.
    pub(super) fn heard(&mut self, event: &Event, now: Duration) -> Learned {
        match event {
            Event::Switched { from, to } => {
                // A master that has changed already is the end of the pause as well.
                self.paused_until = None;
                match self.master.as_ref() == Some(from) && from != to {
                    true => self.change(to.clone()),
                    false => Learned::Nothing,
                }
            }
            Event::Begun if self.paused_until.is_none() => {
                self.paused_until = Some(now + LONGEST_PAUSE);
                Learned::Paused
            }
            Event::Aborted => {
                self.paused_until = None;
                Learned::Nothing
            }
            Event::Begun | Event::Other => Learned::Nothing,
        }
    }

    fn change(&mut self, to: (String, u16)) -> Learned {
        self.master = Some(to);
        self.paused_until = None;
        Learned::Changed
    }

    /// Returns the master.
    pub(super) fn master(&self) -> Option<&(String, u16)> {
        self.master.as_ref()
    }

    /// Returns the epoch of the configuration that made it the master.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns how many sentinels there are, as far as they say.
    pub(super) fn sentinels(&self) -> usize {
        self.sentinels
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

    /// Returns whether so few sentinels are heard that the others may agree on a new master.
    pub(super) fn is_isolated(&self, heard: usize) -> bool {
        self.master.is_some() && heard * 2 < self.sentinels
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

    fn switched(from: u16, to: u16) -> Event {
        Event::Switched {
            from: address(from),
            to: address(to),
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
    fn a_change_counts_at_once_where_it_starts_from_the_master() {
        let mut belief = Belief::default();
        assert_eq!(belief.heard(&switched(1, 2), NOW), Learned::Nothing);
        belief.claimed(&claim(1, 3));
        assert_eq!(belief.heard(&switched(1, 2), NOW), Learned::Changed);
        // The same message from another sentinel, and the reply of one that has not heard of it.
        assert_eq!(belief.heard(&switched(1, 2), NOW), Learned::Nothing);
        assert_eq!(belief.claimed(&claim(1, 3)), Learned::Outdated);
        assert_eq!(belief.claimed(&claim(2, 4)), Learned::Nothing);
        assert_eq!(belief.epoch(), 4);
        // A late message about an earlier failover.
        assert_eq!(belief.heard(&switched(3, 1), NOW), Learned::Nothing);
        assert_eq!(belief.master(), Some(&address(2)));
    }

    #[test]
    fn a_failover_pauses_until_the_master_changes_or_it_ends_otherwise() {
        for end in [switched(1, 2), Event::Aborted] {
            let mut belief = Belief::default();
            belief.claimed(&claim(1, 3));
            assert_eq!(belief.heard(&Event::Begun, NOW), Learned::Paused);
            assert!(belief.is_paused(NOW));
            belief.heard(&end, NOW);
            assert!(!belief.is_paused(NOW));
        }
    }

    #[test]
    fn no_pause_outlasts_its_bound_and_no_message_extends_it() {
        let mut belief = Belief::default();
        belief.claimed(&claim(1, 3));
        belief.heard(&Event::Begun, NOW);
        let later = NOW + LONGEST_PAUSE;
        assert_eq!(belief.heard(&Event::Begun, later), Learned::Nothing);
        assert!(!belief.is_paused(later));
    }

    #[test]
    fn an_instance_is_isolated_with_fewer_than_half_of_the_sentinels() {
        let mut belief = Belief::default();
        assert!(!belief.is_isolated(0));
        belief.claimed(&claim(1, 3));
        assert!(belief.is_isolated(1));
        assert!(!belief.is_isolated(2));
        belief.sentinels = 4;
        assert!(!belief.is_isolated(2));
    }
}
