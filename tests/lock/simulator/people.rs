//! The clients: what each is going to do, and what it is told.

use lockgate::lock::{Event, LockRequest, Refusal, Reply, RequestId, Token, UserId, Wait};

use super::{
    MILLI,
    checks::{Owner, Purpose, Sent},
    day::{GRACE, LONGEST_RECONNECT},
    world::{Ev, World},
};

const USER: UserId = UserId(0);

/// So long after it unlocked a client closes the connection of its session, in microseconds.
pub(crate) const SESSION_ENDS_WITHIN: u64 = 2_500 * MILLI;

/// What a client is going to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Locks, holds, unlocks.
    Good,
    /// Unlocks through another gate.
    UnlocksElsewhere,
    /// Extends its lease on the way.
    Relocks,
    /// Its connection closes while it waits.
    Vanishes,
    /// Its connection closes in the moment of the grant.
    VanishesAtGrant,
    /// Closes while it waits, and asks again with its token: at this gate or at another.
    Retries,
    /// Closes in the moment of the grant, and asks again with its token.
    RetriesAtGrant,
    /// Asks twice with its token, on two connections.
    Joins,
    /// Is not to wait any longer: its gate is shutting down.
    Stops,
    /// Never unlocks.
    Dies,
    /// Unlocks when its lease is over.
    Overstays,
    /// `SESSION`: closes its connection instead of unlocking.
    Closes,
    /// `SESSION`: closes its connection, and asks again with its token.
    ClosesAndRetries,
    /// `SESSION`: its gate closes the connection.
    IsClosed,
    /// Knows no gate: `SET NX PX`, and compare and delete.
    Plain,
    /// Deletes the key, whoever's it is.
    Deletes,
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    gate: usize,
    fate: Fate,
    pub(crate) token: Token,
    pub(crate) explicit: bool,
    session: bool,
    fence: bool,
    pub(crate) lease_ms: u64,
    wait_ms: Option<u64>,
    try_only: bool,
    hold: u64,
    patience: u64,
    attempts: u32,
    /// It asked again after closing.
    pub(crate) came_back: bool,
    /// It was granted the lock, and gave it up.
    done: bool,
    /// The request whose connection its lease is bound to.
    session_of: Option<RequestId>,
}

impl World {
    pub(super) fn people(&mut self) {
        let count = self.random.between(2, 24);
        for i in 0..count {
            let client = self.person(i);
            let at = self.random.between(0, self.day.span);
            self.clients.push(client);
            self.at(at, Ev::Arrive(usize::try_from(i).unwrap()));
        }
    }

    fn person(&mut self, i: u64) -> Client {
        let day = &self.day;
        let random = &mut self.random;
        let session = random.percent(day.sessions);
        let fate = match (random.between(1, 100), session) {
            _ if day.calm => Fate::Good,
            (1..=26, _) => Fate::Good,
            (27..=35, _) => Fate::UnlocksElsewhere,
            (36..=40, _) => Fate::Relocks,
            (41..=47, _) => Fate::Vanishes,
            (48..=53, _) => Fate::VanishesAtGrant,
            (54..=62, _) => Fate::Retries,
            (63..=66, _) => Fate::RetriesAtGrant,
            (67..=71, _) => Fate::Joins,
            (72..=74, _) => Fate::Stops,
            (75..=82, true) => Fate::Closes,
            (83..=87, true) => Fate::ClosesAndRetries,
            (88..=93, true) => Fate::IsClosed,
            (75..=80, false) => Fate::Dies,
            (81..=87, false) => Fate::Overstays,
            (88..=93, false) => Fate::Good,
            (94..=97, _) => Fate::Plain,
            _ => Fate::Deletes,
        };
        let lease_ms = match (day.short_leases, session, fate) {
            (true, false, _) => random.between(10, 60),
            (_, true, _) => random.one_of(&[300, 1_500, 3_000]) * random.between(1, 3),
            (_, _, Fate::Dies | Fate::Overstays) => random.between(50, 1_000),
            _ => random.one_of(&[1_500, 5_000, 30_000]),
        };
        let longest = if day.short_leases {
            30 * MILLI
        } else {
            day.longest_hold
        };
        let hold = match (fate, session) {
            (Fate::Overstays, _) => (lease_ms + random.between(1, 200)) * MILLI,
            // Longer than its lease.
            (_, true) if random.percent(40) => random.between(1, 4 * lease_ms) * MILLI,
            _ => random.between(0, longest),
        };
        let waits = day.calm || random.percent(70);
        let returns = matches!(
            fate,
            Fate::Retries | Fate::RetriesAtGrant | Fate::Joins | Fate::ClosesAndRetries
        );
        Client {
            gate: random.below(day.gates),
            fate,
            token: Token::new(format!("t{i}").into_bytes()),
            explicit: returns || (!day.calm && random.percent(30)),
            session: session && fate != Fate::Plain,
            fence: random.percent(day.fences),
            lease_ms,
            wait_ms: (!waits).then(|| random.between(1, 400)),
            try_only: !day.calm && !returns && random.percent(12),
            hold,
            patience: random.between(0, 150) * MILLI,
            attempts: 0,
            came_back: false,
            done: false,
            session_of: None,
        }
    }

    // ── those who know no gate ───────────────────────────────────────────────────────────────

    pub(super) fn arrive(&mut self, who: usize) {
        match self.clients[who].fate {
            Fate::Deletes if !self.serves() => {}
            Fate::Deletes => {
                self.tell(|| format!("client {who} deletes the key"));
                self.sabotaged();
                self.store.delete(self.now, None);
                self.stored();
            }
            Fate::Plain => self.plain(who),
            _ => self.lock(who),
        }
    }

    /// The store executes what comes.
    fn serves(&self) -> bool {
        !self.is_down && self.hangs_until.is_none() && self.store.trouble.is_none()
    }

    fn plain(&mut self, who: usize) {
        let client = self.clients[who].clone();
        if self.serves() && self.store.set_nx(self.now, &client.token, client.lease_ms) {
            self.tell(|| format!("plain client {who} has it"));
            self.takes_what_was_lost();
            let mut owner = self.owner(who, None, (self.now / MILLI + client.lease_ms) * MILLI);
            (owner.gate, owner.session) = (None, false);
            self.checks.granted(owner, self.day.drifts);
            self.after(client.hold, Ev::Release(who));
            self.stored();
        } else if client.attempts < 40 {
            self.clients[who].attempts += 1;
            let pause = self.random.between(1, 50) * MILLI;
            self.after(pause, Ev::Arrive(who));
        }
    }

    /// A client that knows no gate knows nothing of what the store forgot.
    fn takes_what_was_lost(&mut self) {
        let now = self.now;
        let Some(lost) = self
            .loss
            .as_mut()
            .filter(|lost| now < lost.back_at + GRACE + 5 * MILLI)
        else {
            return;
        };
        lost.was_taken = true;
        let back_at = lost.back_at;
        self.checks.rob(|owner| owner.since < back_at);
    }

    fn plain_release(&mut self, who: usize) {
        let token = self.clients[who].token.clone();
        let owned = self.checks.owner(self.now, &token).is_some();
        self.checks.gives_up(&token);
        if !self.serves() {
            return;
        }
        let deleted = self.store.delete(self.now, Some(&token));
        assert!(deleted || !owned, "client {who} lost its lock");
        self.stored();
    }

    // ── waiting ──────────────────────────────────────────────────────────────────────────────

    /// A gate that lives: this one, or another.
    fn living_gate(&mut self, gate: usize) -> Option<usize> {
        if self.gates[gate].alive {
            return Some(gate);
        }
        self.gates.iter().position(|gate| gate.alive)
    }

    pub(super) fn lock(&mut self, who: usize) {
        let Some(gate) = self.living_gate(self.clients[who].gate) else {
            return self.after(50 * MILLI, Ev::ComeBack(who));
        };
        self.clients[who].gate = gate;
        let client = self.clients[who].clone();
        let (time, clock) = (self.time(gate), self.gates[gate].clock);
        let wait = match (client.try_only, client.wait_ms) {
            (true, _) => Wait::No,
            (false, None) => Wait::Forever,
            (false, Some(millis)) => Wait::Until(time.plus_millis(millis)),
        };
        let due = match wait {
            Wait::Until(due) => Some(due),
            Wait::No => Some(time.plus_millis(self.day.settings.answer_within_ms)),
            Wait::Forever => None,
        };
        let due = due.map(|due| clock.moment(due.micros()));
        let request = self.request(Purpose::Lock(who), gate, due, !client.explicit);
        self.checks.asked_at.insert(client.token.clone(), self.now);
        self.tell(|| {
            let (fate, session) = (client.fate, if client.session { ", session" } else { "" });
            format!("client {who} ({fate:?}{session}) at gate {gate}: {request:?}, {wait:?}")
        });
        match client.fate {
            Fate::Vanishes => self.after(client.patience, Ev::Vanish(who, request)),
            Fate::Retries if !client.came_back => {
                self.after(client.patience, Ev::Vanish(who, request));
            }
            Fate::Stops => self.after(client.patience, Ev::Stop(who, request)),
            Fate::Joins if !client.came_back => {
                self.clients[who].came_back = true;
                self.after(client.patience / 3, Ev::Join(who));
            }
            _ => {}
        }
        let ask = LockRequest {
            request,
            user: USER,
            token: client.token,
            explicit: client.explicit,
            lease_ms: client.lease_ms,
            wait,
            fence: client.fence,
            session: client.session,
        };
        self.feed(gate, Event::Lock(ask));
    }

    /// A second request, unless the first was answered already.
    pub(super) fn join(&mut self, who: usize) {
        let of_it = |sent: &&Sent| matches!(sent.purpose, Purpose::Lock(it) if it == who);
        if self.checks.sent.values().filter(of_it).any(Sent::waits) {
            self.totals.retries += 1;
            self.lock(who);
        }
    }

    fn waits(&self, request: RequestId) -> bool {
        self.checks.sent.get(&request).is_some_and(Sent::waits)
    }

    pub(super) fn vanish(&mut self, who: usize, request: RequestId) {
        if !self.waits(request) {
            return;
        }
        self.checks
            .sent
            .get_mut(&request)
            .expect("it was sent")
            .gone = true;
        let client = self.clients[who].clone();
        self.tell(|| format!("client {who} vanishes from gate {}", client.gate));
        self.totals.vanished += 1;
        let gone = Event::Gone {
            request,
            user: USER,
            token: client.token.clone(),
        };
        self.feed(client.gate, gone);
        if client.fate == Fate::Retries {
            self.tries_again(who);
        } else {
            self.soon_not_held(&client, self.now, false);
        }
    }

    /// Comes back with the same token, here or elsewhere.
    fn tries_again(&mut self, who: usize) {
        self.totals.retries += 1;
        self.clients[who].came_back = true;
        if self.random.percent(60) {
            self.clients[who].gate = self.random.below(self.gates.len());
        }
        // In less than that two gates could set the very same deadline for one token.
        let pause = self.random.between(2, 40) * MILLI;
        self.after(pause, Ev::ComeBack(who));
    }

    pub(super) fn stop_waiting(&mut self, who: usize, request: RequestId) {
        if !self.waits(request) {
            return;
        }
        let (gate, token) = (self.clients[who].gate, self.clients[who].token.clone());
        self.tell(|| format!("client {who} is not to wait any longer"));
        let stop = Event::StopWaiting {
            request,
            user: USER,
            token,
        };
        self.feed(gate, stop);
    }

    /// The gate died: its clients are alone.
    pub(super) fn lose_connections(&mut self, gate: usize) {
        let mut left = Vec::new();
        for sent in self
            .checks
            .sent
            .values_mut()
            .filter(|sent| sent.gate == gate)
        {
            if sent.waits()
                && let Purpose::Lock(who) = sent.purpose
            {
                left.push(who);
            }
            sent.gone |= !sent.answered;
        }
        left.dedup();
        for who in left {
            self.totals.vanished += 1;
            if self.clients[who].explicit && self.random.percent(60) {
                self.tries_again(who);
            }
        }
    }

    // ── holding ──────────────────────────────────────────────────────────────────────────────

    fn owner(&self, who: usize, request: Option<RequestId>, until: u64) -> Owner {
        let client = &self.clients[who];
        Owner {
            token: client.token.clone(),
            gate: Some(client.gate),
            request,
            since: self.now,
            until: if client.session { u64::MAX } else { until },
            lease: client.lease_ms * MILLI,
            session: client.session,
            orphan: false,
            robbed: false,
            absent_since: None,
        }
    }

    /// A reply reaches its client, or not: then the queue is told.
    pub(super) fn reply(
        &mut self,
        gate: usize,
        request: RequestId,
        reply: &Reply,
    ) -> Option<Event> {
        self.tell(|| format!("{request:?} at gate {gate} is answered: {reply:?}"));
        let granted = matches!(reply, Reply::Granted { .. });
        self.checks.replied(self.now, request, granted);
        let sent = self.checks.sent[&request].clone();
        match sent.purpose {
            Purpose::Lock(who) => return self.lock_answered(who, gate, request, reply),
            Purpose::Unlock(who, until, sabotages) => {
                self.unlock_answered(who, &sent, until, sabotages, reply);
            }
            Purpose::Relock(who, sabotages) => self.relock_answered(who, &sent, sabotages, reply),
        }
        None
    }

    fn lock_answered(
        &mut self,
        who: usize,
        gate: usize,
        request: RequestId,
        reply: &Reply,
    ) -> Option<Event> {
        let Reply::Granted {
            token,
            until,
            fence,
            session,
        } = reply
        else {
            self.totals.expired += u64::from(*reply == Reply::Refused(Refusal::Expired));
            return None;
        };
        let client = self.clients[who].clone();
        assert_eq!(*token, client.token);
        assert_eq!(
            fence.is_some(),
            client.fence,
            "a fence if one was asked for"
        );
        if client.fate != Fate::Joins {
            assert_eq!(*session, client.session, "a session if one was asked for");
        }
        let undelivered = Event::Undelivered {
            request,
            user: USER,
            token: token.clone(),
        };
        match client.fate {
            Fate::VanishesAtGrant => {
                self.totals.vanished += 1;
                self.soon_not_held(&client, self.now, false);
                return Some(undelivered);
            }
            Fate::RetriesAtGrant if !client.came_back => {
                self.tries_again(who);
                return Some(undelivered);
            }
            _ => {}
        }
        assert!(*until > self.time(gate), "a lease that is over was granted");
        self.totals.grants += 1;
        // It counts from when the gate asked, and at the pace of the store's clock.
        let lease = client.lease_ms * MILLI;
        let asked_at = self.gates[gate]
            .clock
            .moment(until.micros().saturating_sub(lease));
        let mut owner = self.owner(who, Some(request), asked_at + lease);
        owner.session = *session;
        owner.until = if *session { u64::MAX } else { asked_at + lease };
        owner.robbed =
            self.checks.victims.contains(token) && !self.store.is_held_by(self.now, token);
        if let (Some(fence), false) = (fence, owner.robbed) {
            self.totals.fences += 1;
            self.checks.fenced(token, *fence);
        }
        if owner.robbed {
            self.checks.granted_in_vain(owner);
        } else {
            self.checks.granted(owner, self.day.drifts);
        }
        self.goes_on_to(who, request, *session);
        None
    }

    /// What it does with its lock.
    fn goes_on_to(&mut self, who: usize, request: RequestId, session: bool) {
        let client = self.clients[who].clone();
        if session {
            self.clients[who].session_of = Some(request);
            self.totals.sessions += 1;
            self.renewals += 3 * client.hold / (client.lease_ms * MILLI) + 2;
        }
        match client.fate {
            _ if client.done => self.after(0, Ev::Release(who)),
            Fate::Dies => {}
            Fate::Closes | Fate::ClosesAndRetries if session && !(client.came_back) => {
                self.after(client.hold, Ev::Close(who, request, true));
            }
            Fate::IsClosed if session => self.after(client.hold, Ev::Close(who, request, false)),
            Fate::Relocks => {
                self.after(client.hold / 2, Ev::Relock(who));
                self.after(client.hold, Ev::Release(who));
            }
            _ => self.after(client.hold, Ev::Release(who)),
        }
    }

    pub(super) fn session_over(&mut self, request: RequestId, lost: bool) {
        self.tell(|| format!("the session of {request:?} is over, lost: {lost}"));
        let sent = self
            .checks
            .sent
            .get(&request)
            .expect("a session of somebody");
        assert!(sent.answered, "{request:?} had no session yet");
        let gate = sent.gate;
        let owners = &mut self.checks.owners;
        let Some(at) = owners
            .iter()
            .position(|owner| owner.request == Some(request))
        else {
            return;
        };
        assert!(
            lost,
            "{request:?} owns the lock by its session, which nobody ended"
        );
        let owner = owners.remove(at);
        self.totals.told_lost += 1;
        let lately = |at: u64| at + 400 * MILLI + 10 * self.day.way > self.now;
        let disturbed = self.gates[gate].disturbed_at.is_some_and(lately);
        let forgotten = self.loss.as_ref().map(|lost| lost.back_at);
        let forgotten = forgotten.is_some_and(|at| lately(at + LONGEST_RECONNECT + GRACE));
        assert!(
            owner.robbed || disturbed || forgotten || !self.is_well(gate),
            "{request:?} was told that it lost the lock, by nobody's doing"
        );
    }

    pub(super) fn relock(&mut self, who: usize) {
        let client = self.clients[who].clone();
        let owned = self.checks.owner(self.now, &client.token);
        if owned.is_none_or(|owner| owner.orphan) {
            return;
        }
        let gate = client.gate;
        let purpose = Purpose::Relock(who, self.totals.sabotages);
        let due = self.answer_due(gate);
        let request = self.request(purpose, gate, Some(due), false);
        let (token, lease_ms) = (client.token, client.lease_ms);
        let relock = Event::Relock {
            request,
            user: USER,
            token,
            lease_ms,
        };
        self.feed(gate, relock);
    }

    fn relock_answered(&mut self, who: usize, sent: &Sent, sabotages: u64, reply: &Reply) {
        let client = &self.clients[who];
        let token = client.token.clone();
        let until = sent.at + client.lease_ms * MILLI;
        let excused = self.may_fail(sent, sabotages, reply);
        let now = self.now;
        let Some(owner) = self
            .checks
            .owners
            .iter_mut()
            .find(|owner| owner.token == token)
        else {
            return;
        };
        match reply {
            Reply::Done if owner.session => {}
            Reply::Done => owner.until = until.max(owner.until),
            _ => assert!(
                owner.until <= now || owner.robbed || excused,
                "RELOCK of an owner: {reply:?}"
            ),
        }
    }

    // ── giving up ────────────────────────────────────────────────────────────────────────────

    pub(super) fn release(&mut self, who: usize) {
        if self.clients[who].fate == Fate::Plain {
            return self.plain_release(who);
        }
        let client = self.clients[who].clone();
        let gate = match client.fate {
            Fate::UnlocksElsewhere => (client.gate + 1) % self.gates.len(),
            _ => client.gate,
        };
        self.clients[who].done = true;
        // The client of a session does not know when its lease ends; the store does.
        let holder = self
            .store
            .holder(self.now)
            .filter(|(token, _)| **token == client.token);
        let deadline = holder.map_or(0, |(_, deadline)| deadline * MILLI);
        let owner = self.checks.owner(self.now, &client.token);
        let until = owner.map(|owner| {
            owner
                .until
                .min(if owner.session { deadline } else { u64::MAX })
        });
        self.checks.gives_up(&client.token);
        if let Some(request) = self.clients[who].session_of.take() {
            // Whatever it will be told, its connection ends some time.
            self.after(SESSION_ENDS_WITHIN, Ev::Close(who, request, true));
        }
        let Some(gate) = self.living_gate(gate) else {
            return;
        };
        self.tell(|| format!("client {who} unlocks at gate {gate}"));
        self.gaps += u64::from(self.checks.waiting() == 0);
        let purpose = Purpose::Unlock(who, until, self.totals.sabotages);
        let due = self.answer_due(gate);
        let request = self.request(purpose, gate, Some(due), false);
        let unlock = Event::Unlock {
            request,
            user: USER,
            token: client.token,
        };
        self.feed(gate, unlock);
    }

    fn unlock_answered(
        &mut self,
        who: usize,
        sent: &Sent,
        until: Option<u64>,
        sabotages: u64,
        reply: &Reply,
    ) {
        let client = self.clients[who].clone();
        let here = client.gate == sent.gate;
        if !matches!(reply, Reply::Refused(_)) && (here || *reply == Reply::Done) {
            self.soon_not_held(&client, sent.at, here);
        }
        if *reply == Reply::Done {
            if until.is_some() && here {
                self.checks.released_by.insert(client.token, sent.gate);
            }
            return;
        }
        let kept = until.is_some_and(|until| until > self.now);
        assert!(
            !kept || self.may_fail(sent, sabotages, reply),
            "an owner had lost its lock: {reply:?}"
        );
    }

    /// Something happened that an owner's request may fail by.
    fn may_fail(&self, sent: &Sent, sabotages: u64, reply: &Reply) -> bool {
        let disturbed = self.gates[sent.gate]
            .disturbed_at
            .is_some_and(|at| at >= sent.at);
        match reply {
            Reply::Refused(_) => disturbed || !self.is_well(sent.gate),
            _ => {
                sabotages != self.totals.sabotages
                    || self
                        .loss
                        .as_ref()
                        .is_some_and(|lost| sent.at < lost.back_at + GRACE)
            }
        }
    }

    pub(super) fn close(&mut self, who: usize, request: RequestId, by_client: bool) {
        let client = self.clients[who].clone();
        let sent = &self.checks.sent[&request];
        let gate = sent.gate;
        if self.gates[gate].life != sent.life {
            return;
        }
        let held = self
            .store
            .holder(self.now)
            .filter(|(token, _)| **token == client.token);
        // By the gate's own count, which began before the store's.
        let earlier = self.day.way + client.lease_ms * MILLI / 500 + 2 * MILLI;
        let until = held.map(|(_, until)| (until * MILLI).saturating_sub(earlier));
        let is_well = self.is_well(gate);
        let owned = self.checks.owner(self.now, &client.token).is_some();
        self.clients[who].done = true;
        self.tell(|| format!("the connection of client {who} ends, by the client: {by_client}"));
        let mut owners = self.checks.owners.iter_mut();
        if let Some(owner) = owners.find(|owner| owner.request == Some(request)) {
            match until {
                // It may go on working: the lock is left to its lease.
                Some(until) if !by_client && is_well && !owner.robbed => {
                    (owner.session, owner.request, owner.until) = (false, None, until);
                    self.at(
                        until.saturating_sub(1),
                        Ev::StillHeld(client.token.clone(), self.now),
                    );
                }
                _ => self.checks.gives_up(&client.token),
            }
        }
        let closed = Event::SessionClosed {
            request,
            user: USER,
            token: client.token.clone(),
            by_client,
        };
        self.gaps += u64::from(self.checks.waiting() == 0);
        self.feed(gate, closed);
        if client.fate == Fate::ClosesAndRetries && !client.came_back {
            self.clients[who].done = false;
            self.tries_again(who);
        } else if by_client && owned {
            self.soon_not_held(&client, self.now, false);
        }
    }

    /// Nobody but its lease ends it.
    pub(super) fn is_still_held(&mut self, token: &Token, since: u64) {
        let is_well = self.disturbed_at.is_none_or(|at| at < since);
        let owns = self.checks.owner(self.now, token).is_some();
        assert!(
            !owns || !is_well || self.store.is_held_by(self.now, token),
            "a lock was released because the gate closed its session"
        );
    }

    // ── asking ───────────────────────────────────────────────────────────────────────────────

    fn answer_due(&self, gate: usize) -> u64 {
        let within = self.day.settings.answer_within_ms;
        let due = self.time(gate).plus_millis(within);
        self.gates[gate].clock.moment(due.micros())
    }

    fn request(
        &mut self,
        purpose: Purpose,
        gate: usize,
        due: Option<u64>,
        plain: bool,
    ) -> RequestId {
        let request = RequestId(self.checks.sent.len() as u64 + 1);
        let sent = Sent {
            purpose,
            gate,
            life: self.gates[gate].life,
            at: self.now,
            order: self.count,
            plain,
            due,
            answered: false,
            gone: false,
        };
        self.checks.sent.insert(request, sent);
        request
    }
}
