//! What must hold where clients spin.

use lockgate::lock::{BELIEF_MS, MARK_MS, RequestId, StoreRequest, Token, UserId};

use super::{Release, Spinner, is_constant, is_spinners};
use crate::simulator::{
    MILLI, SECOND,
    checks::{Sent, show},
    day::SETTLED,
    world::World,
};

impl World {
    /// The lock is not free for long when an attempt is refused: pushes tell of it, and where they do not, the store's word
    /// counts for so long only. An attempt that waits is refused at any rate where the store has no time to answer.
    pub(super) fn is_refused_rightly(&self, sent: &Sent, waits: bool) {
        let Some(free_since) = self.spinners.free_since else {
            return;
        };
        let (day, gate) = (&self.day, &self.gates[sent.gate]);
        if sent.at < gate.port.grace_until + MILLI {
            // No free lock may be taken; the gate was told of the time left in whole milliseconds.
            return;
        }
        let in_peace = gate
            .disturbed_at
            .is_none_or(|at| at + 500 * MILLI < sent.at);
        let is_well = self.is_well(sent.gate) && in_peace && sent.at >= gate.port.grace_until;
        let pauses = (day.settings.max_delay_ms + day.settings.yield_pause_ms + 5) * MILLI;
        let to_ask = 8 * day.way + pauses;
        let is_told = is_well && day.tells && day.loss == 0;
        let believed = match is_told {
            true if day.sessions == 0 => to_ask,
            // A renewal lasts a little longer than its gate asked for.
            true => to_ask + MARK_MS * MILLI,
            false => BELIEF_MS * MILLI + BELIEF_MS * MILLI / 500 + day.way + 5 * MILLI,
        };
        let by = match waits {
            true => sent.at,
            false => self.now,
        };
        let had_time = !waits || (is_well && self.now >= sent.at + to_ask);
        assert!(
            !had_time || free_since + believed > by,
            "an attempt was refused though the lock is free since {free_since}: {:?}",
            gate.queue
        );
    }

    /// A gate ends the lease of an attempt only where its client gave it up. A release of a constant token that comes too
    /// late releases another client's lock, and so does one that is executed when its client has been told that the
    /// outcome is open.
    pub(crate) fn is_given_up(&mut self, store_request: &StoreRequest, late: bool) {
        let (token, only_if) = match store_request {
            StoreRequest::Release { token, only_if, .. } => (token, only_if),
            StoreRequest::Handover { from, only_if, .. } => (from, only_if),
            _ => return,
        };
        let now = self.now;
        let is_it = |(holder, deadline): (&Token, u64)| {
            holder == token && only_if.is_none_or(|only_if| only_if.0 == deadline)
        };
        if !is_spinners(token) || !self.store.holder(now).is_some_and(is_it) {
            return;
        }
        let settled = self
            .loss
            .as_ref()
            .map(|lost| lost.back_at.saturating_add(SETTLED));
        let is_stray = |it: &Release| {
            let upset =
                it.sabotages != self.totals.sabotages || settled.is_some_and(|at| at > it.at);
            it.token == *token && (it.is_open || it.until <= now || upset)
        };
        let excused = late || self.spinners.releases.iter().any(is_stray);
        let owner = self.checks.owner(now, token);
        assert!(
            excused || owner.is_none(),
            "{} was released, and its client had not given it up: {owner:?}",
            show(token)
        );
        // The client that loses the lock may not have heard of its grant yet.
        if late || owner.is_some() || (excused && is_constant(token)) {
            self.sabotaged();
        }
    }

    pub(crate) fn spinner_user(&self, who: usize) -> UserId {
        self.spinners.all[who].user
    }

    /// A request is granted the lock when those with earlier places are served or away.
    pub(crate) fn is_next(&self, gate: usize, request: RequestId) {
        let gate = &self.gates[gate];
        let disturbed_at = gate
            .disturbed_at
            .max(self.lacked_replicas(request).then_some(self.now));
        (self.checks).is_next(request, disturbed_at, gate.chose_at);
    }

    /// The user asked for the lock with this token.
    pub(crate) fn may_ask(&self, user: UserId, token: &Token) -> bool {
        let users = self.spinners.users.get(token);
        users.is_some_and(|users| users.contains(&user))
    }

    /// An attempt with this token waits.
    pub(crate) fn is_attempted(&self, token: &Token) -> bool {
        let mut all = self.spinners.all.iter();
        all.any(|spinner| spinner.waiting.is_some() && spinner.token == *token)
    }

    /// Looks at the key between events.
    pub(crate) fn watch_key(&mut self) {
        if !self.day.spins {
            return;
        }
        let now = self.now;
        let holder = self.store.holder(now).map(|(holder, _)| holder.clone());
        match &holder {
            Some(_) => self.spinners.free_since = None,
            None => _ = self.spinners.free_since.get_or_insert(now),
        }
        let orphan = holder.filter(|it| is_spinners(it) && !self.is_held_for_a_client(it));
        let Some(orphan) = orphan else {
            self.spinners.orphan_since = None;
            return;
        };
        let set_at = self.spinners.set_at;
        let since = *self.spinners.orphan_since.get_or_insert(now);
        let since = since.max(set_at);
        // An acquisition that was never answered leaves its token to the lease.
        let disturbed = self
            .disturbed_at
            .is_some_and(|at| at + 3 * SECOND >= set_at);
        // A lease that its client no longer counts on may be written back when the grace is over.
        let lost = self.loss.is_some() && self.store.mark.1 + SECOND >= set_at;
        let bound = 10 * self.day.way + 20 * MILLI;
        assert!(
            now <= since + bound
                || disturbed
                || lost
                || self.checks.zombies.contains(&orphan)
                || self.spinners.releases.iter().any(|it| it.is_open),
            "{} holds the lock for no attempt since {since}",
            show(&orphan)
        );
    }

    fn is_held_for_a_client(&self, token: &Token) -> bool {
        let mut owners = self.checks.owners.iter();
        let is_owned = owners.any(|owner| owner.token == *token && owner.until > self.now);
        // A strict attempt that came later is refused by its own token.
        let may_be_for = |spinner: &Spinner| {
            let sent = spinner.waiting.and_then(|it| self.checks.sent.get(&it));
            let in_time = |sent: &Sent| !spinner.strict || sent.at <= self.spinners.set_at;
            spinner.token == *token && sent.is_some_and(in_time)
        };
        is_owned || self.spinners.all.iter().any(may_be_for)
    }
}
