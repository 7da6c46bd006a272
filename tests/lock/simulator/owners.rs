//! The clients that were granted the lock: what they do with it, how they give it up, and what they
//! are told.

use std::collections::BTreeSet;

use bytes::Bytes;
use lockgate::lock::{Event, MARK_MS, Refusal, Reply, RequestId, Token, WriteBack};

use super::{
    MILLI,
    checks::{Owner, Purpose, Sent},
    clients::{Client, Fate, OUTSIDER, SESSION_ENDS_WITHIN},
    day::{GRACE, LONGEST_RECONNECT, Moment, SETTLED},
    world::{Ev, World},
};

impl World {
    // ── holding ──────────────────────────────────────────────────────────────────────────────

    pub(super) fn owner(&self, who: usize, request: Option<RequestId>, until: u64) -> Owner {
        let client = &self.clients[who];
        Owner {
            token: client.token.clone(),
            strict: false,
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
        if self.is_nags(request, reply) {
            return None;
        }
        let granted = matches!(reply, Reply::Granted { .. });
        let lacks = self.lacked_replicas(request);
        self.checks.replied(self.now, request, granted, lacks);
        let sent = self.checks.sent[&request].clone();
        match sent.purpose {
            Purpose::Lock(who) => return self.lock_answered(who, gate, request, reply),
            Purpose::Unlock(who, until, sabotages) => {
                self.unlock_answered(who, &sent, until, sabotages, reply);
            }
            Purpose::Relock(who, sabotages, before) => {
                self.relock_answered(who, &sent, (sabotages, before), reply);
            }
            Purpose::Attempt(who) => return self.attempt_answered(who, &sent, request, reply),
            Purpose::GiveUp(who, until, sabotages) => {
                self.give_up_answered(who, request, (until, sabotages), reply);
            }
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
            since,
            fence,
            session,
            ..
        } = reply
        else {
            self.totals.expired += u64::from(*reply == Reply::Refused(Refusal::Expired));
            self.outsiders_are_told_nothing(who, request, reply);
            self.slice_is_over(who, reply);
            return None;
        };
        let client = self.clients[who].clone();
        assert_eq!(*token, client.token);
        assert_ne!(client.user, OUTSIDER, "client {who} may not have the lock");
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
            user: client.user,
            token: token.clone(),
            since: *since,
        };
        match client.fate {
            Fate::VanishesAtGrant => {
                self.totals.vanished += 1;
                self.soon_not_held(&client, self.now, false);
                let expires_latest = self.now + client.lease_ms * MILLI;
                self.undelivered = Some((token.clone(), gate, self.now, expires_latest));
                return Some(undelivered);
            }
            Fate::RetriesAtGrant if !client.came_back => {
                self.tries_again(who);
                return Some(undelivered);
            }
            _ => {}
        }
        assert!(*until > self.time(gate), "a lease that is over was granted");
        let acknowledged = self.store.acknowledged.get(token).copied();
        assert!(
            acknowledged >= Some(self.replicas_of(who)) || client.fate == Fate::Joins,
            "client {who} was granted what no replica acknowledged"
        );
        self.totals.grants += 1;
        if client.fate != Fate::Joins && (!client.explicit || client.fate == Fate::Slices) {
            self.is_next(gate, request);
        }
        self.handed_on(gate);
        self.granted_at = [self.granted_at[1], Some(gate)];
        self.victims_are_known(gate, token);
        let granted_by = self.checks.granted_by.entry(token.clone()).or_default();
        granted_by.insert(gate);
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
        self.crash_at(Moment::Grant, 10 * MILLI);
        None
    }

    /// Not that the lock is held, nor that it is free: only that its own time is over.
    fn outsiders_are_told_nothing(&mut self, who: usize, request: RequestId, reply: &Reply) {
        let client = &self.clients[who];
        if client.user != OUTSIDER {
            return;
        }
        self.totals.outsiders += 1;
        let due = self.checks.sent[&request].due;
        let late = !client.try_only && due.is_some_and(|due| self.now + MILLI >= due);
        // To whom its own gate stops listening no reply is told.
        let tracking_lost = client.fate == Fate::Stops;
        assert!(
            matches!(reply, Reply::Refused(_)) || late || tracking_lost,
            "client {who} may not know of the lock, and was told {reply:?}"
        );
    }

    /// A grant that reached nobody was given to the next one at the same gate, unless it ended
    /// otherwise.
    pub(super) fn handed_on(&mut self, gate: usize) {
        if let Some((token, by, at, expires_latest)) = self.undelivered.take()
            && by == gate
            && self.now < expires_latest
            && self.disturbed_at.is_none_or(|disturbed| disturbed < at)
            && !self.checks.victims.contains(&token)
        {
            self.released(token, gate);
        }
    }

    /// An instance that grants the lock to this token knows that the earlier owners that it granted have lost it where
    /// another client deleted their keys.
    pub(super) fn victims_are_known(&mut self, gate: usize, token: &Token) {
        let alone = BTreeSet::from([gate]);
        let lost = self.checks.victims.iter().filter(|victim| {
            let of_victim = |client: &&Client| client.token == **victim;
            let client = self.clients.iter().find(of_victim);
            let comes_once = client.is_some_and(|it| !it.came_back && it.fate != Fate::Plain);
            let granted_by = self.checks.granted_by.get(victim);
            *victim != token && comes_once && granted_by == Some(&alone)
        });
        for victim in lost.cloned().collect::<Vec<_>>() {
            if !self.checks.released_by.contains_key(&victim) {
                self.released(victim, gate);
            }
        }
    }

    /// The gate released the lock of this token for a client, or for want of one.
    pub(super) fn released(&mut self, token: Token, gate: usize) {
        let life = self.gates[gate].life;
        self.checks.released_at.insert(token.clone(), self.now);
        self.checks.released_by.insert(token, (gate, life));
    }

    /// What it does with its lock.
    fn goes_on_to(&mut self, who: usize, request: RequestId, session: bool) {
        let client = self.clients[who].clone();
        if session {
            self.clients[who].session_of = Some(request);
            self.totals.sessions += 1;
            self.renewals += 5 * client.hold / (client.lease_ms * MILLI) + 2;
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
        if let (true, Purpose::Lock(who)) = (lost, &sent.purpose) {
            self.clients[*who].told_lost_at = Some(self.now);
        }
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
        assert!(
            !self.met_what_was_released(&owner),
            "{request:?} lost its lock to a token that a gate had released"
        );
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
        let elsewhere = usize::from(!client.session && self.random.percent(30));
        let Some(gate) = self.living_gate((client.gate + elsewhere) % self.gates.len()) else {
            return;
        };
        let mut lease_ms = client.lease_ms;
        let mut before = None;
        if !client.session && self.random.percent(40) {
            lease_ms = match self.day.replicates {
                true => self.random.between(10, lease_ms.max(20) / 2),
                false => lease_ms.div_ceil(2),
            };
            self.clients[who].lease_ms = lease_ms;
            // It may be shorter from now on, until it is answered that it is not.
            let most = self.now + lease_ms * MILLI;
            let mut owners = self.checks.owners.iter_mut();
            if let Some(owner) = owners.find(|owner| owner.token == client.token) {
                before = Some((owner.until, client.lease_ms));
                owner.until = owner.until.min(most);
            }
        }
        if gate != client.gate {
            let (checks, token) = (&mut self.checks, &client.token);
            checks.extended_elsewhere.insert(token.clone());
            // It has a lease, too.
            let granted_by = checks.granted_by.entry(token.clone()).or_default();
            granted_by.insert(gate);
        }
        let purpose = Purpose::Relock(who, self.totals.sabotages, before);
        let (asked_at, due) = self.asked_at(gate);
        let request = self.request(purpose, gate, Some(due), false);
        let token = client.token;
        let relock = Event::Relock {
            request,
            asked_at,
            user: client.user,
            token,
            lease_ms,
            // Perhaps more than acknowledged the grant.
            replicas: self.replicas_of(who + 1),
            absorbed: false,
        };
        self.feed(gate, relock);
    }

    fn relock_answered(
        &mut self,
        who: usize,
        sent: &Sent,
        (sabotages, before): (u64, Option<(u64, u64)>),
        reply: &Reply,
    ) {
        let stays = |error: &Bytes| error.starts_with(b"NOREPLICAS");
        let stays = matches!(reply, Reply::Refused(Refusal::Store(error)) if stays(error));
        let before = before.filter(|_| stays);
        if let Some((_, lease_ms)) = before {
            self.clients[who].lease_ms = lease_ms;
        }
        let client = &self.clients[who];
        let token = client.token.clone();
        let until = sent.at + client.lease_ms * MILLI;
        let excused = self.may_fail(sent, sabotages, reply);
        assert!(!stays || self.lacks_replicas(), "replicas are there");
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
            Reply::Done => owner.until = until,
            Reply::Refused(_) if stays => {
                self.totals.unextended += 1;
                owner.until = before.map_or(owner.until, |(until, _)| until);
            }
            _ => assert!(
                owner.until <= now || owner.robbed || excused,
                "RELOCK of an owner: {reply:?}"
            ),
        }
    }

    // ── giving up ────────────────────────────────────────────────────────────────────────────

    /// A client that is not sure whether it gave the lock up does so again, while the gate has no
    /// connection.
    pub(super) fn unlocks_again(&mut self, gate: usize) {
        let done = |client: &Client| {
            client.done && client.gate == gate && !matches!(client.fate, Fate::Plain | Fate::Joins)
        };
        let who = self.clients.iter().position(done);
        if let Some(who) = who.filter(|_| self.day.small || self.random.percent(50)) {
            let at = self.random.between(0, 10 * MILLI);
            self.after(at, Ev::Release(who));
        }
    }

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
        let (asked_at, due) = self.asked_at(gate);
        let request = self.request(purpose, gate, Some(due), false);
        let unlock = Event::Unlock {
            request,
            asked_at,
            user: client.user,
            token: client.token,
            absorbed: false,
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
            return self.released(client.token, sent.gate);
        }
        if matches!(reply, Reply::Refused(_)) && self.random.percent(50) {
            let at = self.random.between(0, 10 * MILLI);
            self.after(at, Ev::Release(who));
        }
        // A second UNLOCK may run first, if this one waited for admission for longer.
        let is_its = |it: &&Sent| {
            it.at >= sent.at && matches!(it.purpose, Purpose::Unlock(of, ..) if of == who)
        };
        let twice = self.checks.sent.values().filter(is_its).count() > 1;
        let kept = until.is_some_and(|until| until > self.now);
        // Its own instance gave the lock up while the UNLOCK was on its way to another one.
        let told = client.told_lost_at.is_some_and(|at| at >= sent.at);
        assert!(
            !kept || twice || told || self.may_fail(sent, sabotages, reply),
            "an owner had lost its lock: {reply:?}"
        );
    }

    /// Something happened that an owner's request may fail by.
    pub(super) fn may_fail(&self, sent: &Sent, sabotages: u64, reply: &Reply) -> bool {
        let disturbed = self.gates[sent.gate]
            .disturbed_at
            .is_some_and(|at| at >= sent.at);
        match reply {
            Reply::Refused(_) => {
                let in_grace = sent.at < self.store.mark.1;
                disturbed || in_grace || !self.is_well(sent.gate) || self.was_hurried(sent)
            }
            _ => sabotages != self.totals.sabotages || self.nothing_is_promised(sent),
        }
    }

    /// The store lost data, and something besides keeps a gate from writing its leases back.
    fn nothing_is_promised(&self, sent: &Sent) -> bool {
        let all_come_back = self.day.settings.write_back == WriteBack::All;
        self.loss.as_ref().is_some_and(|lost| {
            let lately = sent.at < lost.back_at.saturating_add(SETTLED);
            let session = match sent.purpose {
                // Where it was told of its loss meanwhile, nothing is written back.
                Purpose::Unlock(who, ..) | Purpose::Relock(who, ..) => self.clients[who].session,
                Purpose::Lock(_) | Purpose::Attempt(_) | Purpose::GiveUp(..) => false,
            };
            lately
                && (session
                    || !all_come_back
                    || lost.is_in_doubt()
                    || !self.all_were_well_since(lost))
        })
    }

    /// It had waited for admission for more than half of the time that it could take.
    fn was_hurried(&self, sent: &Sent) -> bool {
        let half = self.day.settings.answer_within_ms * MILLI / 2;
        sent.due.is_some_and(|due| due < sent.at + half)
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
        // By the gate's own count, which began before the store's, and does not count the mark of a renewal.
        let earlier = self.day.way + client.lease_ms * MILLI / 500 + (2 + MARK_MS) * MILLI;
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
            user: client.user,
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
}
