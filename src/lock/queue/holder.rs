//! The cached holder: replies of the store set it, and a push or a broken connection ends it.

use super::{Context, Dirty, InFlight, Queue};
use crate::lock::{
    event::{LockMetric, Time, Token, UserId},
    fault::{Fault, planted},
    store_request::{LinkId, Outcome},
};

/// The inverse of the largest difference in pace between the clocks of the store and of this instance.
const CLOCKS_DIFFER_BY: u64 = 256;

/// The difference from which two readings of a key's expiry mean that its deadline was moved, in milliseconds.
const SAME_DEADLINE_MS: u64 = 20;

/// A holder that the store reported, believed until `until`.
#[derive(Debug)]
pub(super) struct CachedHolder {
    pub(super) holder: Token,
    /// The user of the token, if this instance granted the lock.
    pub(super) user: Option<UserId>,
    /// When the store last reported this holder.
    pub(super) since: Time,
    /// When the holder's lease ends, as far as this instance knows.
    pub(super) expires_latest: Option<Time>,
    pub(super) until: Time,
}

impl Queue {
    /// Records the holder that the store reported. Without one the lock counts as free.
    pub(super) fn held(
        &mut self,
        holder: Option<Token>,
        ttl_ms: Option<u64>,
        context: &mut Context<'_>,
    ) {
        let Some(holder) = holder else {
            return self.free(context);
        };
        match &mut self.lease {
            Some(lease) if lease.token == holder => lease.confirm(),
            _ => self.lose_lease(context),
        }
        let user = self.lease.as_ref().map(|lease| lease.user);
        let before = self.told_of.take().filter(|before| before.holder == holder);
        // At exactly its time to live a key still exists.
        let expires_latest = ttl_ms.map(|ttl| {
            context
                .now
                .plus_millis(ttl.saturating_add(u64::from(!planted(Fault::TimerAtTtl))))
        });
        let is_same = |(before, now): (Time, Time)| {
            before.millis_since(now).max(now.millis_since(before)) < SAME_DEADLINE_MS
        };
        let before = before.and_then(|before| before.expires_latest);
        if before.zip(expires_latest).is_some_and(is_same) {
            context.happened(LockMetric::ToldOfNothing);
        }
        self.believe(holder, user, expires_latest, context);
    }

    /// Records that the lock is free.
    pub(super) fn free(&mut self, context: &mut Context<'_>) {
        self.cached_holder = None;
        self.told_of = None;
        self.backoff.now();
        self.lose_lease(context);
    }

    /// Drops the lease, which does not hold the lock, unless it is to be written back.
    pub(super) fn lose_lease(&mut self, context: &mut Context<'_>) {
        match &mut self.lease {
            Some(lease) if self.write_back_at.is_some() => lease.check_at = None,
            _ => self.put_lease(None, true, context),
        }
    }

    pub(super) fn believe_lease(&mut self, context: &mut Context<'_>) {
        if let Some(lease) = &self.lease {
            let (holder, user, expires_latest) =
                (lease.token.clone(), lease.user, lease.expires_latest);
            self.believe(holder, Some(user), Some(expires_latest), context);
        }
    }

    fn believe(
        &mut self,
        holder: Token,
        user: Option<UserId>,
        expires_latest: Option<Time>,
        context: &mut Context<'_>,
    ) {
        let settings = context.settings;
        let ask_again_at = match self.armed {
            Some(_) => context.now.plus_millis(settings.ask_at_least_every_ms),
            None => {
                let micros = self.backoff.jittered(settings.poll_every_ms);
                Time::from_micros(context.now.micros().saturating_add(micros))
            }
        };
        let until = expires_latest.map_or(ask_again_at, |expires_latest| {
            expires_latest.min(ask_again_at)
        });
        self.told_of = None;
        self.cached_holder = Some(CachedHolder {
            holder,
            user,
            since: context.now,
            expires_latest,
            until,
        });
        self.refuse_deadlocked(context);
    }

    /// Notices that the client extended its lease at another instance: the key expires later than this instance set it.
    pub(super) fn notice_extension(&mut self, in_flight: &InFlight, outcome: &Outcome) {
        let Outcome::Held {
            holder: Some(holder),
            ttl_ms: Some(ttl_ms),
        } = outcome
        else {
            return;
        };
        let lease = self.lease.as_mut().filter(|it| it.token == *holder);
        // The clocks of the store and of this instance may run at different paces.
        let at_least = ttl_ms.saturating_sub(ttl_ms / CLOCKS_DIFFER_BY);
        let expires = in_flight.sent_at.plus_millis(at_least);
        if let Some(lease) = lease.filter(|lease| expires > lease.expires_latest) {
            lease.may_be_longer = true;
            lease.expires_latest = expires;
        }
    }

    /// Records that the lock changed, or (with `ask_at`) that it may have: pushes are lost.
    pub(super) fn changed(&mut self, link: LinkId, ask_at: Option<Time>, context: &Context<'_>) {
        if let (Some(_), Some(lease)) = (ask_at, &mut self.lease) {
            // The next connection may lead to a store that lacks data.
            lease.fence_at = None;
        }
        if self.armed == Some(link) {
            if let Some(watch) = &mut self.watch {
                watch.look_at = Some(ask_at.unwrap_or(context.now));
            }
            self.ops.wake(|_| true);
            if self.is_writing_back() {
                // The change concerns the token that keeps the lease from being written back.
                self.write_back_at = self.write_back_at.map(|_| ask_at.unwrap_or(context.now));
            } else if let (None, Some(lease)) = (ask_at, &mut self.lease) {
                lease.changed = true;
            }
        }
        if let Some(in_flight) = &mut self.in_flight {
            // On the wire the push may precede the reply or follow it.
            match in_flight.dirty.iter_mut().find(|dirty| dirty.link == link) {
                _ if planted(Fault::NoDirtyMark) => {}
                // A reported change stays reported when the connection breaks.
                Some(dirty) => dirty.ask_at = dirty.ask_at.and(ask_at),
                None => in_flight.dirty.push(Dirty { link, ask_at }),
            }
        } else if self.armed == Some(link) {
            self.armed = None;
            let before = self.cached_holder.take();
            self.told_of = before.filter(|_| ask_at.is_none()).map(Box::new);
            match ask_at {
                None => self
                    .backoff
                    .push(context.now, context.settings.max_delay_ms),
                Some(time) => self.backoff.at(time),
            }
            if let Some(lease) = &mut self.lease {
                lease.check_at = Some(self.backoff.ask_at());
            }
        }
    }

    /// Applies what connections reported while a store request was in flight that got its reply or was dropped. The
    /// lock changed after that reply or just before; only the store knows.
    pub(super) fn heed(&mut self, dirty: &[Dirty], context: &Context<'_>) {
        if let Some(&Dirty { link, ask_at }) = dirty.iter().find(|d| self.armed == Some(d.link))
            && self.cached_holder.is_some()
        {
            self.changed(link, ask_at, context);
            // A push from the time of the request may be older than the reply.
            self.told_of = None;
        }
    }
}
