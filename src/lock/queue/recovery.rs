//! Recovery from a loss of data in the store, in this order:
//!
//! 1. the queue deletes a dead token that is back, on behalf of the user who held the lock with it;
//! 2. the queue writes back the lease that this instance granted. If another token holds the lock, another instance may
//!    know that it is dead: the lease waits for the push that reports its end, or for the end of the grace. Only then
//!    is it lost. Until it is written back or over, the queue requests the lock for no other owner;
//! 3. the queue checks a lock with remembered dead tokens at once, whenever it changes, and when the grace is over, so
//!    that no dead token keeps another instance from writing its lease back. An instance that does not know of a
//!    release elsewhere may write such a token back.
//!
//! The store grants no free lock meanwhile. This instance deletes a token only up to the latest deadline that it set,
//! since a client may have been granted the lock with the same token elsewhere. The limit is absent if this instance
//! set no deadline: then the client itself gave the token up, or lockgate made the token.

use super::{Context, NOT_NOW_PAUSE_MS, Queue, Watch, renewal::expires_latest};
use crate::lock::{
    event::{Dead, DeadWatch, Time, Token, UserId},
    fault::{Fault, planted},
    lease::Lease,
    queue::InFlight,
    store_request::{Outcome, StoreRequest},
};

/// The most times that the pause before another write-back is doubled after the store refused one: up to 51 s.
const MOST_DOUBLED: u32 = 9;

/// How long a lock is checked after a release that the store may have executed before it lost data, in milliseconds.
pub(super) const LOOKED_AT_MS: u64 = 5_000;

/// The delay of the last check for dead tokens after the end of the grace, as a divisor of the grace. By then every
/// instance has made its last attempt to write back what it takes for a lease.
pub const LAST_LOOK_PART: u64 = 16;

impl Queue {
    /// Begins the recovery from a loss of data.
    pub(super) fn data_lost(&mut self, dead: Option<DeadWatch>, context: &Context<'_>) {
        self.armed = None;
        self.cached_holder = None;
        self.dead_holder = None;
        self.alive_again = None;
        self.write_backs_refused = 0;
        self.watch = dead.map(|dead| {
            Box::new(Watch {
                user: dead.user,
                until: dead.until,
                look_at: Some(context.now),
            })
        });
        self.backoff.now();
        if let Some(lease) = &mut self.lease {
            // Others may be granted the lock before the write-back, with much the same deadline; or were granted it
            // before the loss, if the store has older data.
            lease.fence_at = None;
        }
        self.write_back_at = None;
        // A client that releases the lease does not want it back.
        let released = self.lease.as_ref().is_some_and(|lease| {
            let releases = |in_flight: &InFlight| in_flight.releases(lease.user, &lease.token);
            self.in_flight.as_deref().is_some_and(releases)
        });
        if !released || planted(Fault::WrittenBackThoughReleased) {
            self.write_back_from(context.now, context);
        }
        if let (None, Some(lease)) = (self.write_back_at, &mut self.lease) {
            lease.check_at = Some(context.now);
        }
        if let Some(in_flight) = &mut self.in_flight {
            // The reply may be from before the loss, or concern a lock that was lost.
            in_flight.again = true;
            in_flight.data_lost = true;
        }
    }

    fn write_back_from(&mut self, time: Time, context: &Context<'_>) {
        let back = |lease: &&Lease| lease.is_to_be_written_back(context.now, context.settings);
        self.write_back_at = self.lease.as_ref().filter(back).map(|_| time);
    }

    /// Sends the next request that the recovery needs. Returns whether there was one.
    pub(super) fn recover(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(dead_holder) = self.dead_holder.take() {
            let (token, dead) = *dead_holder;
            let store_request = StoreRequest::DeleteDead { token, dead };
            self.start(store_request, None, context);
            return true;
        }
        if self.write_back_at.is_some_and(|at| at <= context.now) {
            self.write_back_from(context.now, context);
            if let (Some(_), Some(lease)) = (self.write_back_at.take(), &self.lease) {
                let store_request = StoreRequest::WriteBack {
                    user: lease.user,
                    token: lease.token.clone(),
                    lease_ms: match planted(Fault::WrittenBackTooShort) {
                        true => 1,
                        // Rounded up, or the store would end the lease before its owner does.
                        false => lease
                            .expires_earliest
                            .micros_since(context.now)
                            .div_ceil(1_000),
                    },
                };
                self.start(store_request, None, context);
                return true;
            }
        }
        let is_over = |lease: &Lease| lease.expires_earliest <= context.now;
        if self.lease.as_ref().is_none_or(is_over) {
            self.write_back_at = None;
        }
        self.look_out(context)
    }

    /// Checks the lock for dead tokens, if it is time. Returns whether it did.
    fn look_out(&mut self, context: &mut Context<'_>) -> bool {
        let now = context.now;
        let Some(watch) = self.watch.as_mut() else {
            return false;
        };
        let last = watch.until <= now;
        // A write-back shows the holder as well.
        let due = watch.look_at.is_some_and(|at| at <= now) && self.write_back_at.is_none();
        let user = watch.user;
        if last {
            self.watch = None;
        } else if due {
            watch.look_at = None;
        }
        if last || due {
            self.start(StoreRequest::Check { user }, None, context);
        }
        last || due
    }

    /// Returns when to check the lock for dead tokens.
    pub(super) fn look_at(&self) -> Option<Time> {
        let watch = self.watch.as_ref()?;
        let look_at = watch.look_at.filter(|_| self.write_back_at.is_none());
        Some(look_at.map_or(watch.until, |at| at.min(watch.until)))
    }

    /// Returns whether the recovery has a step left that waits for nothing but the store.
    pub fn is_recovering(&self) -> bool {
        let recovers = |in_flight: &InFlight| {
            let store_request = &in_flight.store_request;
            matches!(
                store_request,
                StoreRequest::WriteBack { .. } | StoreRequest::DeleteDead { .. }
            )
        };
        let looks = self.watch.as_ref().is_some_and(|it| it.look_at.is_some());
        // A write-back that the store refused because of another token does not count.
        let cut_off = |lease: &Lease| self.write_back_at.is_some() && self.cut_off.has(lease.user);
        looks
            || self.lease.as_ref().is_some_and(cut_off)
            || self.in_flight.as_deref().is_some_and(recovers)
    }

    /// Returns whether this owner's lease is to be written back; only then is it known whether it stands.
    pub(super) fn waits_for_write_back(&self, user: UserId, token: &Token) -> bool {
        let lease = self.lease.as_ref().filter(|it| it.is_of(user, token));
        lease.is_some() && self.write_back_at.is_some()
    }

    /// Returns the lease that is not written back yet, if a client counts on it: until its end no other owner may be
    /// granted the lock, though the store takes it for free.
    pub(super) fn absent_lease(&self) -> Option<&Lease> {
        let lease = self.lease.as_ref().filter(|_| self.write_back_at.is_some());
        lease.filter(|lease| lease.receivers > 0)
    }

    /// Returns the same for the owner whose lease this request extends.
    pub(super) fn waits_for_write_back_of(&self, in_flight: &InFlight) -> bool {
        match &in_flight.store_request {
            StoreRequest::Extend { user, token, .. } => self.waits_for_write_back(*user, token),
            _ => false,
        }
    }

    /// Resumes the steps that waited for this user's connection.
    pub(super) fn recover_again(&mut self, user: UserId, now: Time) {
        if self.lease.as_ref().is_some_and(|lease| lease.user == user) {
            self.write_back_at = self.write_back_at.map(|_| now);
        }
        if let Some(watch) = self.watch.as_mut().filter(|watch| watch.user == user) {
            watch.look_at = watch.look_at.map(|_| now);
        }
    }

    /// Postpones a check for dead tokens that could not be sent.
    pub(super) fn look_later(&mut self, at: Time) {
        if let Some(watch) = &mut self.watch {
            watch.look_at = Some(at);
        }
    }

    /// Returns whether the lease is to be written back, or its write-back is in flight.
    pub(super) fn is_writing_back(&self) -> bool {
        let writes_back = |in_flight: &InFlight| {
            matches!(in_flight.store_request, StoreRequest::WriteBack { .. })
        };
        self.write_back_at.is_some() || self.in_flight.as_deref().is_some_and(writes_back)
    }

    // ── replies of the store ─────────────────────────────────────────────────────────────────────

    pub(super) fn write_back_replied(
        &mut self,
        in_flight: &InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::WriteBack { lease_ms, .. } = &in_flight.store_request else {
            return;
        };
        if let Some(watch) = &mut self.watch {
            // The reply showed the holder.
            watch.look_at = None;
        }
        match outcome {
            Outcome::Granted {
                deadline, fresh, ..
            } => {
                if let Some(lease) = &mut self.lease {
                    let ours = fresh || lease.deadline == Some(deadline);
                    lease.deadline = ours.then_some(deadline);
                    lease.expires_latest = lease
                        .expires_latest
                        .max(expires_latest(context.now, *lease_ms));
                    lease.confirm();
                }
                self.believe_lease(context);
            }
            Outcome::Held { holder, ttl_ms } => {
                let again_ms = match self.dead_holder {
                    // Once the dead token is deleted, the queue retries at once.
                    Some(_) => Some(0),
                    None => in_flight
                        .grace_ms
                        .filter(|_| !planted(Fault::ContestedIsLost)),
                };
                if let Some(ms) = again_ms {
                    self.write_back_from(context.now.plus_millis(ms), context);
                }
                self.held(holder, ttl_ms, context);
            }
            Outcome::Free => self.free(context),
            // The queue retries until the lease is over, ever less often, so that others get their turn meanwhile.
            _ => {
                let doubled = self.write_backs_refused.min(MOST_DOUBLED);
                self.write_backs_refused += 1;
                self.write_back_at = Some(context.now.plus_millis(NOT_NOW_PAUSE_MS << doubled));
            }
        }
    }

    /// Handles a holder that the driver knows as dead. It is not dead if a client came for that token again.
    pub(super) fn found_dead(&mut self, in_flight: &InFlight, token: &Token, dead: Dead) {
        let is_back = self.lease.as_ref().is_some_and(|it| it.token == *token)
            || self.waiters.of_owner(dead.user, token).is_some();
        // The store did not delete the token, so its key expires later: another grant set it.
        if matches!(in_flight.store_request, StoreRequest::DeleteDead { .. }) {
            self.alive_again = Some(Box::new(token.clone()));
        }
        let is_alive = self.alive_again.as_deref() == Some(token);
        if !is_back && !is_alive && !planted(Fault::DeadNotDeleted) {
            self.dead_holder = Some(Box::new((token.clone(), dead)));
        }
    }

    pub(super) fn delete_dead_replied(&mut self, outcome: Outcome, context: &mut Context<'_>) {
        match outcome {
            Outcome::Free => self.free(context),
            Outcome::Held { holder, ttl_ms } => self.held(holder, ttl_ms, context),
            // The user has no right to, and the rights of another user are of no use here.
            _ => {}
        }
    }

    /// Recovers the outcome of a request that was in flight when the store lost data. Its reply may be from before the
    /// loss, so the queue writes back what the reply granted, and looks for what it released.
    pub(super) fn restore_after(
        &mut self,
        user: UserId,
        grace_ms: Option<u64>,
        context: &Context<'_>,
    ) {
        if let Some(lease) = &mut self.lease {
            lease.fence_at = None;
        }
        self.write_back_from(context.now, context);
        if self.write_back_at.is_none() {
            self.look_again(user, grace_ms.unwrap_or(LOOKED_AT_MS), context);
        }
    }

    /// Watches the lock for this time: a dead token may hold it or come back.
    pub(super) fn look_again(&mut self, user: UserId, ms: u64, context: &Context<'_>) {
        let until = context
            .now
            .plus_millis(ms.saturating_add(ms / LAST_LOOK_PART));
        let new = || {
            Box::new(Watch {
                user,
                until,
                look_at: None,
            })
        };
        let watch = self.watch.get_or_insert_with(new);
        watch.until = until.max(watch.until);
        watch.look_at = Some(context.now);
    }
}
