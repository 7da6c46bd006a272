//! What follows from a loss of data in the store, in this order:
//!
//! 1. a dead token that is back is deleted, on behalf of the user who held the lock with it;
//! 2. the lease that this instance granted is written back. Where another token holds the lock, another
//!    instance may know that it is dead: the lease waits for the push that tells of its end, or for the
//!    end of the grace. Only then is it lost;
//! 3. a lock whose dead tokens are remembered is looked at, at once, whenever it changes, and when the grace
//!    is over, so that none of them keeps another instance from writing back its own. An instance that was not
//!    told of a release elsewhere may write such a token back.
//!
//! The store grants no free lock meanwhile. A token is deleted only by what this instance knew of it: if
//! the client itself gave it up, or up to the latest deadline that this instance set, since a client may
//! have been granted the lock by the same token elsewhere.

use super::{NOT_NOW_PAUSE_MS, Queue, Turn, Watch, upkeep::over_at};
use crate::lock::{
    fault::{Fault, planted},
    lease::Lease,
    queue::Asked,
    vocabulary::{Burial, Dead, Outcome, Question, Time, Token, UserId},
};

/// The pause before a lease that the store refused is written back once more is doubled so often at
/// most: to 51 s.
const MOST_DOUBLED: u32 = 9;

/// For how long a lock is looked at after a release that the store may have executed before it lost data.
pub(super) const LOOKED_AT_MS: u64 = 5_000;

/// The last look for dead tokens comes this part of the grace after its end: by then every instance has
/// tried for the last time to write back what it takes for a lease.
pub const LAST_LOOK_PART: u64 = 16;

impl Queue {
    /// The store lost data.
    pub(super) fn forgot(&mut self, dead: Option<Burial>, turn: &Turn<'_>) {
        self.armed = None;
        self.belief = None;
        self.ghost = None;
        self.revenant = None;
        self.restores_refused = 0;
        self.watch = dead.map(|dead| {
            Box::new(Watch {
                user: dead.user,
                until: dead.until,
                look_at: Some(turn.now),
            })
        });
        self.pace.now();
        if let Some(lease) = &mut self.lease {
            // Others may be granted the lock before it is written back, and then with much the same deadline; or
            // were, if what is there is from before.
            lease.fence_at = None;
        }
        self.restore_at = None;
        // Whoever releases it does not want it back.
        let released = self.lease.as_ref().is_some_and(|lease| {
            let releases = |asked: &Asked| asked.releases(lease.user, &lease.token);
            self.asked.as_ref().is_some_and(releases)
        });
        if !released || planted(Fault::WrittenBackThoughReleased) {
            self.restore_from(turn.now, turn);
        }
        if let (None, Some(lease)) = (self.restore_at, &mut self.lease) {
            lease.check_at = Some(turn.now);
        }
        if let Some(asked) = &mut self.asked {
            // What it is answered may be from before the loss, or of a lock that was lost.
            asked.again = true;
            asked.forgotten = true;
        }
    }

    fn restore_from(&mut self, time: Time, turn: &Turn<'_>) {
        let back = |lease: &&Lease| lease.is_to_be_written_back(turn.now, turn.settings);
        self.restore_at = self.lease.as_ref().filter(back).map(|_| time);
    }

    /// Asks the next thing that the loss of data makes necessary. Returns whether there was any.
    pub(super) fn recover(&mut self, turn: &mut Turn<'_>) -> bool {
        if let Some(ghost) = self.ghost.take() {
            let (token, Dead { user, not_after }) = *ghost;
            let question = Question::Bury {
                user,
                token,
                not_after,
            };
            self.ask(question, None, turn);
            return true;
        }
        if self.restore_at.is_some_and(|at| at <= turn.now) {
            self.restore_from(turn.now, turn);
            if let (Some(_), Some(lease)) = (self.restore_at.take(), &self.lease) {
                let question = Question::Restore {
                    user: lease.user,
                    token: lease.token.clone(),
                    lease_ms: match planted(Fault::WrittenBackTooShort) {
                        true => 1,
                        // Rounded up, or the store would let it end before its owner does.
                        false => lease.until.micros_since(turn.now).div_ceil(1_000),
                    },
                };
                self.ask(question, None, turn);
                return true;
            }
        }
        if self.lease.is_none() {
            self.restore_at = None;
        }
        self.look_out(turn)
    }

    /// Looks at the lock, if it is time to.
    fn look_out(&mut self, turn: &mut Turn<'_>) -> bool {
        let now = turn.now;
        let Some(watch) = self.watch.as_mut() else {
            return false;
        };
        let last = watch.until <= now;
        // To write a lease back shows who holds the lock as well.
        let due = watch.look_at.is_some_and(|at| at <= now) && self.restore_at.is_none();
        let user = watch.user;
        if last {
            self.watch = None;
        } else if due {
            watch.look_at = None;
        }
        if last || due {
            self.ask(Question::Check { user }, None, turn);
        }
        last || due
    }

    /// When the lock is to be looked at for dead tokens.
    pub(super) fn look_at(&self) -> Option<Time> {
        let watch = self.watch.as_ref()?;
        let look_at = watch.look_at.filter(|_| self.restore_at.is_none());
        Some(look_at.map_or(watch.until, |at| at.min(watch.until)))
    }

    /// What a loss of data makes necessary has not been done yet, and waits for nothing but the store.
    pub fn is_recovering(&self) -> bool {
        let recovers = |asked: &Asked| {
            let question = &asked.question;
            matches!(question, Question::Restore { .. } | Question::Bury { .. })
        };
        let looks = self.watch.as_ref().is_some_and(|it| it.look_at.is_some());
        // One that the store refused for the sake of another token is not.
        let cut_off = |lease: &Lease| self.restore_at.is_some() && self.cut_off.has(lease.user);
        looks
            || self.lease.as_ref().is_some_and(cut_off)
            || self.asked.as_ref().is_some_and(recovers)
    }

    /// Whether this owner's lease stands is seen when it has been written back.
    pub(super) fn waits_for_write_back(&self, user: UserId, token: &Token) -> bool {
        let lease = self.lease.as_ref().filter(|it| it.is_of(user, token));
        lease.is_some() && self.restore_at.is_some()
    }

    /// The same for the owner whose lease this question extends.
    pub(super) fn waits_for_write_back_of(&self, asked: &Asked) -> bool {
        match &asked.question {
            Question::Extend { user, token, .. } => self.waits_for_write_back(*user, token),
            _ => false,
        }
    }

    /// What could not be asked for want of this user's connection is asked now.
    pub(super) fn recover_again(&mut self, user: UserId, now: Time) {
        if self.lease.as_ref().is_some_and(|lease| lease.user == user) {
            self.restore_at = self.restore_at.map(|_| now);
        }
        if let Some(watch) = self.watch.as_mut().filter(|watch| watch.user == user) {
            watch.look_at = watch.look_at.map(|_| now);
        }
    }

    /// The lock could not be looked at.
    pub(super) fn look_later(&mut self, at: Time) {
        if let Some(watch) = &mut self.watch {
            watch.look_at = Some(at);
        }
    }

    /// The lease is to be written back, or is being.
    pub(super) fn is_restoring(&self) -> bool {
        let restores = |asked: &Asked| matches!(asked.question, Question::Restore { .. });
        self.restore_at.is_some() || self.asked.as_ref().is_some_and(restores)
    }

    // ── what the store answers ───────────────────────────────────────────────────────────────

    pub(super) fn restore_answered(
        &mut self,
        asked: &Asked,
        outcome: Outcome,
        turn: &mut Turn<'_>,
    ) {
        let Question::Restore { lease_ms, .. } = &asked.question else {
            return;
        };
        if let Some(watch) = &mut self.watch {
            // It has shown who holds the lock.
            watch.look_at = None;
        }
        match outcome {
            Outcome::Granted {
                deadline, fresh, ..
            } => {
                if let Some(lease) = &mut self.lease {
                    let ours = fresh || lease.deadline == Some(deadline);
                    lease.deadline = ours.then_some(deadline);
                    lease.over_at = lease.over_at.max(over_at(turn.now, *lease_ms));
                    lease.confirm();
                }
                self.believe_lease(turn);
            }
            Outcome::Held { holder, ttl_ms } => {
                let again_ms = match self.ghost {
                    // With the dead token out of the way it is tried at once.
                    Some(_) => Some(0),
                    None => asked.grace_ms.filter(|_| !planted(Fault::ContestedIsLost)),
                };
                if let Some(ms) = again_ms {
                    self.restore_from(turn.now.plus_millis(ms), turn);
                }
                self.held(holder, ttl_ms, turn);
            }
            Outcome::Free => self.free(turn),
            // Tried again until the lease is over, ever less often; meanwhile others get their turn.
            _ => {
                let doubled = self.restores_refused.min(MOST_DOUBLED);
                self.restores_refused += 1;
                self.restore_at = Some(turn.now.plus_millis(NOT_NOW_PAUSE_MS << doubled));
            }
        }
    }

    /// The store named a holder that is dead. Where a client is there for that token again, it is not.
    pub(super) fn found_dead(&mut self, asked: &Asked, token: &Token, dead: Dead) {
        let is_back = self.lease.as_ref().is_some_and(|it| it.token == *token)
            || self.places.of_owner(dead.user, token).is_some();
        // That it was not deleted says that it expires later: it is another grant's.
        if matches!(asked.question, Question::Bury { .. }) {
            self.revenant = Some(Box::new(token.clone()));
        }
        let is_alive = self.revenant.as_deref() == Some(token);
        if !is_back && !is_alive && !planted(Fault::DeadNotBuried) {
            self.ghost = Some(Box::new((token.clone(), dead)));
        }
    }

    pub(super) fn bury_answered(&mut self, outcome: Outcome, turn: &mut Turn<'_>) {
        match outcome {
            Outcome::Free => self.free(turn),
            Outcome::Held { holder, ttl_ms } => self.held(holder, ttl_ms, turn),
            // Its user may not: another one's rights are of no use here.
            _ => {}
        }
    }

    /// The store lost data while the question was on its way: what it was answered may be from
    /// before, so what it granted is written back, and what it released is looked for.
    pub(super) fn restore_after(&mut self, user: UserId, grace_ms: Option<u64>, turn: &Turn<'_>) {
        if let Some(lease) = &mut self.lease {
            lease.fence_at = None;
        }
        self.restore_from(turn.now, turn);
        if self.restore_at.is_none() {
            self.look_again(user, grace_ms.unwrap_or(LOOKED_AT_MS), turn);
        }
    }

    /// A dead token may hold the lock, or come back for so long.
    pub(super) fn look_again(&mut self, user: UserId, ms: u64, turn: &Turn<'_>) {
        let until = turn.now.plus_millis(ms.saturating_add(ms / LAST_LOOK_PART));
        let new = || {
            Box::new(Watch {
                user,
                until,
                look_at: None,
            })
        };
        let watch = self.watch.get_or_insert_with(new);
        watch.until = until.max(watch.until);
        watch.look_at = Some(turn.now);
    }
}
