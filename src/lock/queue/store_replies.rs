//! The handling of the store's replies: which token holds the lock now, under which lease of this instance, how long
//! that is believed, and which clients get a reply.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    CachedHolder, Context, Dirty, InFlight, Maker, NO_ANSWER, NOT_NOW_PAUSE_MS, PendingOp, Queue,
    pending_ops::News,
};
use crate::lock::{
    event::{
        Action, Dead, DeadToken, Deadline, EndReason, Fence, GrantKind, LockMetric, Mark, Outcome,
        Refusal, Reply, StoreReply, StoreRequest, Time, Token, UserId,
    },
    fault::{Fault, planted},
    lease::Lease,
};

/// How long a token that was released here and granted elsewhere is remembered, in milliseconds.
const FOREIGN_LEASE_MS: u64 = 60_000;

/// The number of rivals at one lock that an operator should know of.
const CROWD: u32 = 8;

/// The inverse of the largest difference in pace between the clocks of the store and of this instance.
const CLOCKS_DIFFER_BY: u64 = 256;

/// The difference from which two readings of a key's expiry mean that its deadline was moved, in milliseconds.
const SAME_DEADLINE_MS: u64 = 20;

impl Queue {
    pub(super) fn store_replied(
        &mut self,
        mut in_flight: InFlight,
        store_reply: StoreReply,
        dead: Option<Dead>,
        context: &mut Context<'_>,
    ) {
        let StoreReply {
            mut outcome,
            armed,
            grace_ms,
        } = store_reply;
        in_flight.grace_ms = grace_ms;
        if in_flight.own && matches!(in_flight.store_request, StoreRequest::Extend { .. }) {
            let renewed = matches!(outcome, Outcome::Granted { .. });
            context.happened(match renewed {
                true => LockMetric::Renewed,
                false => LockMetric::NotRenewed,
            });
        }
        if !matches!(outcome, Outcome::NoLink) {
            self.cut_off.is_back(in_flight.store_request.user());
        }
        if let Outcome::WrongType(error) = outcome {
            // Another client put something else in the place of the lock.
            self.cached_holder = None;
            self.lose_lease(context);
            outcome = Outcome::Refused(error);
        }
        self.notice_extension(&in_flight, &outcome);
        match outcome {
            Outcome::NoLink => {
                let dirty = in_flight.dirty.clone();
                self.not_sent(in_flight, context);
                return self.heed(&dirty, context);
            }
            Outcome::Unknown => {
                let dirty = in_flight.dirty.clone();
                self.ask_again(in_flight, context);
                return self.heed(&dirty, context);
            }
            Outcome::NotYet { ms } => {
                let dirty = in_flight.dirty.clone();
                self.ask_after_grace(in_flight, ms, context);
                return self.heed(&dirty, context);
            }
            Outcome::NotNow(error) => return self.ask_later(in_flight, error, context),
            Outcome::Free if matches!(in_flight.store_request, StoreRequest::Acquire { .. }) => {
                // This reply does not fit the request: the store does not work as it should.
                return self.ask_later(in_flight, Bytes::from_static(NO_ANSWER), context);
            }
            Outcome::Granted { .. }
            | Outcome::Held { .. }
            | Outcome::Free
            | Outcome::WrongType(_)
            | Outcome::Refused(_) => {
                self.trouble = None;
            }
        }
        if let (Some(dead), Outcome::Held { holder, .. }) = (dead, &outcome)
            && let Some(token) = holder
        {
            self.found_dead(&in_flight, token, dead);
        }
        let (user, refused) = (
            in_flight.store_request.user(),
            matches!(outcome, Outcome::Refused(_)),
        );
        // The cached holder was read on another connection, whose pushes may be lost.
        let stale = !planted(Fault::StaleBelief)
            && armed.is_some()
            && armed != self.armed
            && matches!(outcome, Outcome::Held { holder: None, .. });
        if armed.is_some() {
            self.armed = armed;
        }
        let dirty = std::mem::take(&mut in_flight.dirty);
        let news = News::of(&in_flight, &outcome);
        let data_lost = in_flight.data_lost;
        match &in_flight.store_request {
            StoreRequest::Acquire { .. } => self.acquire_replied(&in_flight, outcome, context),
            StoreRequest::Handover { .. } => self.handover_replied(in_flight, outcome, context),
            StoreRequest::Release { .. } => self.release_replied(&in_flight, outcome, context),
            StoreRequest::Extend { .. } => self.extend_replied(in_flight, outcome, context),
            StoreRequest::Check { .. } => self.check_replied(&in_flight, outcome, context),
            StoreRequest::WriteBack { .. } => self.write_back_replied(&in_flight, outcome, context),
            StoreRequest::DeleteDead { .. } => self.delete_dead_replied(outcome, context),
        }
        if !refused {
            self.authorize(user, armed, context);
        }
        self.settle_ops(&news, context);
        if data_lost {
            self.restore_after(user, grace_ms, context);
        }
        if stale {
            self.cached_holder = None;
            self.backoff.now();
            if let Some(lease) = &mut self.lease {
                lease.check_at = Some(context.now);
            }
        }
        self.heed(&dirty, context);
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

    /// Sends a request again after the connection broke: the store may have executed it or not. Each request may be
    /// sent twice, as long as the client or lease that it serves is still there.
    fn ask_again(&mut self, mut in_flight: InFlight, context: &mut Context<'_>) {
        in_flight.again = true;
        // The next connection may lead to a store that lacks data.
        if let StoreRequest::Acquire { fence, .. } = &mut in_flight.store_request
            && let Fence::NewUnless(_) = fence
        {
            *fence = Fence::New;
        }
        if let (
            StoreRequest::Extend {
                mark: Mark::Kept | Mark::Found,
                ..
            },
            Some(lease),
        ) = (&in_flight.store_request, &mut self.lease)
        {
            lease.renewal_unknown = true;
        }
        if let (StoreRequest::WriteBack { .. }, Some(lease)) =
            (&in_flight.store_request, &mut self.lease)
        {
            lease.may_be_longer = true;
        }
        if in_flight.reply_to.is_none() || !planted(Fault::UnlockNotAskedAgain) {
            self.ask_again_unless_gone(in_flight, context);
        }
    }

    /// Records that the token of a request may hold the lock: the request is not sent again, but the store may have
    /// executed an earlier sending.
    pub(super) fn doubt(&mut self, in_flight: &InFlight) {
        if let StoreRequest::Acquire { user, token, .. }
        | StoreRequest::Handover {
            user, to: token, ..
        } = &in_flight.store_request
            && in_flight.again
        {
            let maker = match in_flight.explicit {
                true => Maker::Client,
                false => Maker::Lockgate,
            };
            self.unsure.insert((*user, token.clone()), maker);
        }
    }

    /// Takes back the locks that may be held for no client. A token that a client named may be in use at another
    /// instance by now, and is left to its lease.
    pub(super) fn take_back_unsure(&mut self, context: &Context<'_>) {
        let unsure = std::mem::take(&mut self.unsure);
        let is_there =
            |(user, token): &(UserId, Token)| self.waiters.of_owner(*user, token).is_some();
        let (there, gone) = unsure.into_iter().partition(|(owner, _)| is_there(owner));
        self.unsure = there;
        let gone: BTreeMap<_, _> = gone;
        for ((user, token), maker) in gone {
            if maker == Maker::Client || planted(Fault::UnknownIsNotDone) {
                continue;
            }
            // The store may yet execute a request that was given up, so the queue releases the token once more by then.
            let again_at = context.now.plus_millis(context.settings.answer_within_ms);
            self.late.push_back((again_at, user, token.clone()));
            self.ops.put(PendingOp::GiveAway {
                user,
                token,
                only_if: None,
            });
        }
    }

    /// Puts off a request until the grace of a store that lost data is over, when other instances have written back
    /// what they granted; or sends it anew if it waited for a connection. A handover becomes a release.
    fn ask_after_grace(&mut self, in_flight: InFlight, ms: u64, context: &mut Context<'_>) {
        if matches!(in_flight.store_request, StoreRequest::Handover { .. }) {
            return self.release_instead(in_flight, context);
        }
        let ask_at = context.now.plus_millis(ms);
        if matches!(in_flight.store_request, StoreRequest::Acquire { .. }) {
            self.cached_holder = None;
            self.backoff.at(ask_at);
            self.doubt(&in_flight);
            self.left();
        } else {
            // Only acquisitions take a free lock, but a more careful store has its way.
            self.in_flight = Some(InFlight {
                retry_at: Some(ask_at),
                ..in_flight
            });
        }
    }

    /// Puts off a request that the store did not execute, and retries it for a client that is still there then.
    fn ask_later(&mut self, in_flight: InFlight, error: Bytes, context: &Context<'_>) {
        self.trouble = Some(error);
        let retry_at = Some(context.now.plus_millis(NOT_NOW_PAUSE_MS));
        self.in_flight = Some(InFlight {
            retry_at,
            ..in_flight
        });
    }

    fn acquire_replied(
        &mut self,
        in_flight: &InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Acquire {
            user,
            token,
            lease_ms,
            fence: asked_fence,
            bare,
            ..
        } = &in_flight.store_request
        else {
            return;
        };
        match outcome {
            Outcome::Granted {
                deadline,
                fresh,
                fence,
            } => {
                let again = self.lease_of(*user, token).is_some();
                // No new fence comes if the token keeps the fence it has.
                let is_sure = fence.is_some() || matches!(asked_fence, Fence::NewUnless(_));
                let fence_at = is_sure.then_some(deadline);
                if !again {
                    // The owner's own place is still among them.
                    let others = self.waiters.len().saturating_sub(1);
                    let rivals = self.backoff.turn_begins();
                    if rivals >= CROWD {
                        context.happened(LockMetric::Crowded { rivals });
                    }
                    self.streak.begin(context.now, others);
                }
                // Another instance may have granted the lock to a token that held it already, but not to a token that
                // lockgate made and gave no client.
                let ours = fresh || (in_flight.again && !again && !in_flight.explicit && !bare);
                let deadline = ours.then_some(deadline);
                let mut lease = self.new_lease(
                    in_flight,
                    (*user, token),
                    *lease_ms,
                    deadline,
                    fence,
                    context.now,
                );
                lease.fence_at = fence_at;
                if !again && (fresh || *bare || in_flight.again) {
                    lease.how = Some(GrantKind::Free);
                }
                self.granted(in_flight, lease, context);
            }
            Outcome::Held { holder, ttl_ms } => {
                let is_ours = |lease: &Lease| Some(&lease.token) == holder.as_ref();
                if !self.lease.as_ref().is_some_and(is_ours) {
                    context.happened(LockMetric::InVain {
                        on_push: in_flight.on_push,
                    });
                    self.streak.found_held();
                }
                self.backoff.in_vain(in_flight.on_push);
                self.held(holder, ttl_ms, context);
            }
            Outcome::Refused(error) => {
                for waiting in self
                    .waiters
                    .take(*user, token)
                    .map_or(Vec::new(), |(_, p)| p.requests)
                {
                    context.reply(
                        waiting.request,
                        Reply::Refused(Refusal::Store(error.clone())),
                    );
                }
                self.doubt(in_flight);
                // The store may refuse the fence but not the lock.
                if *asked_fence == Fence::No {
                    self.refuse_earlier(*user, in_flight.sent_at, &error, context);
                }
                self.left();
            }
            _ => debug_assert!(false, "no reply to this store request"),
        }
    }

    fn handover_replied(
        &mut self,
        in_flight: InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Handover {
            user, to, lease_ms, ..
        } = &in_flight.store_request
        else {
            return;
        };
        match outcome {
            Outcome::Granted {
                deadline,
                fresh,
                fence,
            } => {
                self.tell(&in_flight, Reply::Done, context);
                self.streak.hand_over();
                self.released(&in_flight, EndReason::HandedOver, context);
                let fence_at = fence.map(|_| deadline);
                let ours = fresh || (in_flight.again && !in_flight.explicit);
                let deadline = ours.then_some(deadline);
                let mut lease = self.new_lease(
                    &in_flight,
                    (*user, to),
                    *lease_ms,
                    deadline,
                    fence,
                    context.now,
                );
                lease.fence_at = fence_at;
                lease.how = Some(GrantKind::Handover);
                self.granted(&in_flight, lease, context);
            }
            Outcome::Held { holder, ttl_ms } => {
                self.not_released(&in_flight, context);
                self.held(holder, ttl_ms, context);
            }
            Outcome::Free => {
                self.not_released(&in_flight, context);
                self.free(context);
            }
            // The user may not grant the lock to the next waiter, or the store accepts no more writes.
            Outcome::Refused(_) => self.release_instead(in_flight, context),
            _ => debug_assert!(false, "asked again"),
        }
    }

    /// Releases a lock that cannot be handed over; the next waiter then requests it.
    fn release_instead(&mut self, in_flight: InFlight, context: &mut Context<'_>) {
        let released = in_flight.released();
        let Some((user, token, only_if)) = released.map(|(user, it, at)| (user, it.clone(), at))
        else {
            return;
        };
        self.doubt(&in_flight);
        let store_request = StoreRequest::Release {
            user,
            token,
            only_if,
        };
        self.send(
            InFlight {
                store_request,
                ..in_flight
            },
            context,
        );
    }

    fn release_replied(
        &mut self,
        in_flight: &InFlight,
        outcome: Outcome,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Release { token, .. } = &in_flight.store_request else {
            return;
        };
        match outcome {
            Outcome::Free => {
                self.tell(in_flight, Reply::Done, context);
                self.released(in_flight, EndReason::Released, context);
                self.free(context);
                if !self.waiters.is_empty() && self.streak.is_long(context.now, context.settings) {
                    context.happened(LockMetric::Yielded);
                    let pause_ms = self.streak.pause_ms(context.now, context.settings);
                    self.backoff.pause(context.now, pause_ms);
                }
            }
            Outcome::Held { .. } | Outcome::Granted { .. } => {
                if self
                    .cached_holder
                    .as_ref()
                    .is_some_and(|cached_holder| cached_holder.holder == *token)
                {
                    self.cached_holder = None;
                    self.backoff.now();
                }
                self.not_released(in_flight, context);
            }
            Outcome::Refused(error) => {
                self.tell(in_flight, Reply::Refused(Refusal::Store(error)), context);
            }
            _ => debug_assert!(false, "asked again"),
        }
    }

    fn extend_replied(&mut self, in_flight: InFlight, outcome: Outcome, context: &mut Context<'_>) {
        match outcome {
            Outcome::Granted {
                deadline, fresh, ..
            } => self.extended(&in_flight, deadline, fresh, context),
            // The lease is written back first, and then the token holds the lock again.
            Outcome::Held { .. } | Outcome::Free if self.waits_for_write_back_of(&in_flight) => {
                self.extend_later(in_flight);
            }
            Outcome::Held { holder, ttl_ms } => {
                self.not_extended(&in_flight, context);
                self.held(holder, ttl_ms, context);
            }
            Outcome::Free => {
                self.not_extended(&in_flight, context);
                self.free(context);
            }
            Outcome::Refused(error) => {
                self.tell(&in_flight, Reply::Refused(Refusal::Store(error)), context);
                if let (None, Some(lease)) = (in_flight.reply_to, &mut self.lease) {
                    // The queue retries until the lease is over.
                    lease.renew_at = match planted(Fault::RenewalStopsAtError) {
                        true => lease.expires_latest,
                        false => context.now.plus_millis(lease.renewal_pause_ms()),
                    };
                }
            }
            _ => debug_assert!(false, "asked again"),
        }
    }

    /// Reports that the token does not hold the lock, unless another instance may yet write it back.
    fn not_extended(&mut self, in_flight: &InFlight, context: &mut Context<'_>) {
        let here = match &in_flight.store_request {
            StoreRequest::Extend { user, token, .. } => self.lease_of(*user, token).is_some(),
            _ => false,
        };
        if here || !self.may_yet_come(in_flight, context) {
            self.tell(in_flight, Reply::NotHeld, context);
        }
    }

    /// Records that the lease began anew, for a client that requested it or as a renewal.
    fn extended(
        &mut self,
        in_flight: &InFlight,
        deadline: Deadline,
        fresh: bool,
        context: &mut Context<'_>,
    ) {
        let StoreRequest::Extend {
            user,
            token,
            lease_ms,
            expects,
            ..
        } = &in_flight.store_request
        else {
            return;
        };
        let before = self.lease_of(*user, token);
        let is_bound = before.as_ref().is_some_and(|lease| lease.session.is_some());
        // If the deadline was not set here, the token may be in use at another instance, too. But a client that extends
        // the lease here claims it for this instance, unless the lease is bound to a session.
        let relocked = in_flight.reply_to.is_some() && !is_bound;
        let stood =
            before.is_some_and(|lease| lease.fence_at.is_some() && lease.fence_at == *expects);
        let fence_at = (fresh && stood).then_some(deadline);
        let deadline = (fresh || relocked).then_some(deadline);
        let mut lease = self.new_lease(
            in_flight,
            (*user, token),
            *lease_ms,
            deadline,
            None,
            context.now,
        );
        lease.fence_at = fence_at;
        if in_flight.reply_to.is_some() {
            let over = context.now >= lease.expires_earliest;
            let reply = if over {
                Reply::Refused(Refusal::Expired)
            } else {
                Reply::Done
            };
            self.tell(in_flight, reply, context);
            // A client that extends the lease counts on it.
            lease.receivers += 1;
        } else if lease.receivers == 0 {
            // Its session ended meanwhile.
            self.give_away(&lease);
        }
        self.put_lease(Some(lease), true, context);
        self.believe_lease(context);
    }

    /// Handles a release that found that the token does not hold the lock.
    fn not_released(&mut self, in_flight: &InFlight, context: &mut Context<'_>) {
        let Some((user, token, _)) = in_flight.released() else {
            return;
        };
        let (user, token) = (user, token.clone());
        let lease = self.lease_of(user, &token);
        if lease.is_none() && self.may_yet_come(in_flight, context) {
            return;
        }
        // The token is gone by an earlier sending of this request, or by the loss of data after which the lease was to
        // be written back.
        let by_us = in_flight.again || (self.write_back_at.is_some() && lease.is_some());
        let reply = match &lease {
            _ if !by_us => Reply::NotHeld,
            Some(lease) if context.now < lease.expires_earliest => Reply::Done,
            _ => Reply::Refused(Refusal::Upstream),
        };
        self.tell(in_flight, reply, context);
        if let Some(lease) = lease {
            let how = match by_us {
                true => EndReason::Released,
                false => lease.ending(context.now),
            };
            // The lease was lost before, and its client gives it up now.
            self.released(in_flight, how, context);
        }
    }

    pub(super) fn tell(&self, in_flight: &InFlight, reply: Reply, context: &mut Context<'_>) {
        if let Some((request, _)) = in_flight.reply_to {
            context.reply(request, reply);
        }
    }

    // ── consequences for this instance's state ───────────────────────────────────────────────────

    /// Records that the token holds the lock, and replies to all requests at its place.
    fn granted(&mut self, in_flight: &InFlight, mut lease: Lease, context: &mut Context<'_>) {
        let (user, token) = (lease.user, lease.token.clone());
        self.unsure.remove(&(user, token.clone()));
        lease.explicit = in_flight.explicit;
        let over = context.now >= lease.expires_earliest && !planted(Fault::ExpiredDelivered);
        let waiter = self.waiters.of_owner(user, &token);
        let wants_more = |waiter: &super::Waiter| {
            waiter.lease_ms != lease.lease_ms
                || (waiter.wants_fence() && lease.sure_fence().is_none())
        };
        if waiter.is_some_and(wants_more) {
            // A request joined meanwhile and wants another lease or a fence: the queue requests the lock once more, as
            // the holder.
        } else if let Some((no, waiter)) = self.waiters.take(user, &token) {
            lease.explicit = waiter.explicit;
            lease.waiter = Some(no);
            let latest = waiter.requests.last().filter(|last| last.session && !over);
            lease.session = latest.map(|last| last.request);
            let joined = waiter
                .requests
                .len()
                .min(match planted(Fault::JoinedNotAnswered) {
                    true => 1,
                    false => usize::MAX,
                });
            for waiting in &waiter.requests[..joined] {
                let reply = if over {
                    Reply::Refused(Refusal::Expired)
                } else {
                    lease.receivers += 1;
                    Reply::Granted {
                        token: token.clone(),
                        until: lease.expires_earliest,
                        since: lease.since,
                        fence: lease.sure_fence().filter(|_| waiting.fence),
                        session: lease.session == Some(waiting.request),
                        how: match lease.how.take() {
                            Some(GrantKind::Free) if self.held_at >= waiting.since => {
                                GrantKind::Waited
                            }
                            how => how.unwrap_or(GrantKind::Again),
                        },
                    }
                };
                context.reply(waiting.request, reply);
            }
        }
        self.backoff.granted();
        let orphaned = lease.receivers == 0 && self.waiters.of_owner(user, &token).is_none();
        if orphaned && !planted(Fault::GoneGrantKept) {
            self.give_away(&lease);
        }
        let lost = self.lease_of(user, &token).is_none();
        self.put_lease(Some(lease), lost, context);
        self.believe_lease(context);
    }

    pub(super) fn believe_lease(&mut self, context: &mut Context<'_>) {
        if let Some(lease) = &self.lease {
            let (holder, user, expires_latest) =
                (lease.token.clone(), lease.user, lease.expires_latest);
            self.believe(holder, Some(user), Some(expires_latest), context);
        }
    }

    /// Notices that the client extended its lease at another instance: the key expires later than this instance set it.
    fn notice_extension(&mut self, in_flight: &InFlight, outcome: &Outcome) {
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
            expires_latest,
            until,
        });
        self.refuse_deadlocked(context);
    }

    /// Records that the lock is free.
    pub(super) fn free(&mut self, context: &mut Context<'_>) {
        self.cached_holder = None;
        self.told_of = None;
        self.backoff.now();
        self.lose_lease(context);
    }

    /// Drops the lease, which does not hold the lock, unless it is to be written back.
    fn lose_lease(&mut self, context: &mut Context<'_>) {
        match &mut self.lease {
            Some(lease) if self.write_back_at.is_some() => lease.check_at = None,
            _ => self.put_lease(None, true, context),
        }
    }

    /// Records that the token that the request was to release does not hold the lock any more.
    fn released(&mut self, in_flight: &InFlight, how: EndReason, context: &mut Context<'_>) {
        let Some((user, token, not_after)) = in_flight.released() else {
            return;
        };
        let token = token.clone();
        let lease = self.lease_of(user, &token);
        if !planted(Fault::ReleasedForgotten) {
            // A client may use its own token again elsewhere, though it should not. A token that lockgate made is
            // dead at any deadline.
            let named = lease.as_ref().filter(|lease| lease.explicit);
            let set_here = named.filter(|lease| !lease.may_be_longer);
            let not_after = not_after
                .or(set_here.and_then(|lease| lease.deadline))
                .filter(|_| !planted(Fault::DeadWhateverDeadline));
            let longest = lease.as_ref().and_then(Lease::longest);
            let shortened = lease.as_ref().and_then(|lease| lease.shortened_from);
            let or_at = shortened.map(|(deadline, _)| deadline);
            let foreign = context.now.plus_millis(FOREIGN_LEASE_MS);
            context.actions.push(Action::Dead {
                dead_token: DeadToken {
                    token: token.clone(),
                    dead: Dead {
                        user,
                        not_after,
                        or_at,
                    },
                    expires_latest: longest
                        .map(|(_, expires_latest)| expires_latest)
                        .or(lease.map(|lease| lease.expires_latest))
                        .unwrap_or(foreign),
                },
                before_loss: in_flight.data_lost || in_flight.grace_ms.is_some(),
            });
        }
        self.end_lease_of(user, &token, how, context);
        if let Some(ms) = in_flight.grace_ms {
            // Another instance that granted the token may not know of its end, and write it back.
            self.look_again(user, ms, context);
        }
    }

    /// Ends a lease that its client gave up or does not count on.
    fn end_lease_of(
        &mut self,
        user: UserId,
        token: &Token,
        how: EndReason,
        context: &mut Context<'_>,
    ) {
        let kept = self.write_back_at.is_some() && planted(Fault::WrittenBackThoughReleased);
        if let Some(lease) = self.lease_of(user, token).filter(|_| !kept) {
            context.lease_over(&lease, how);
            self.put_lease(None, false, context);
        }
    }
}
