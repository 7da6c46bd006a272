//! The way between the gates and the store. Each gate has one connection at a time, and none while
//! it connects anew. Questions and answers keep their order on it; pushes do not, and may be lost.
//!
//! When a connection breaks, a store request on its way is lost, or was executed and its answer is lost,
//! or it is executed later; the queue hears that this is unknown. On most days the next connection
//! ends the old one in the store before anything else, so that nothing comes later than that.

use std::collections::VecDeque;

use lockgate::lock::{
    DeadWatch, Event, Fence, LinkId, Mark, Outcome, StoreReply, StoreRequest, StoreRequestId, Time,
    UserId, WriteBack,
    fault::{Fault, planted},
};

use super::{
    MILLI, SECOND,
    checks::show,
    clients::OUTSIDER,
    day::{Disaster, GRACE, Moment},
    world::{Ev, World},
};

/// A store request for the lock that waited so long for a connection is to be asked anew.
const ANEW_AFTER: u64 = 100 * MILLI;

/// No store request waits for a connection that has been gone for so long.
const NOT_WAITED_FOR: u64 = 100 * MILLI;

/// One connection of a gate to the store.
pub(crate) struct Link {
    pub(crate) gate: usize,
    /// Which of the gate's lives it belongs to.
    life: u64,
    pub(crate) alive: bool,
    /// Nothing comes through, and nobody knows.
    pub(crate) mute: bool,
    /// What was on its way to the store when it broke never arrives.
    loses: bool,
    /// The store knows that it is over.
    killed: bool,
    /// Which of the store's lives it belongs to.
    epoch: u64,
    sent_at: u64,
    answered_at: u64,
}

/// A store request on its way to the store.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    link: LinkId,
    id: StoreRequestId,
    store_request: StoreRequest,
    /// The largest fence that the gate had seen.
    seen: u64,
    /// It was on its way when the connection broke.
    late: bool,
    /// It is an acquisition within the grace, which takes no free lock.
    extends: bool,
}

/// A gate's end of its connection.
#[derive(Default)]
pub(crate) struct Port {
    pub(crate) link: Option<LinkId>,
    /// The one before, whose pushes are lost.
    before: Option<LinkId>,
    /// Questions that wait for the next connection, since when, and for how many milliseconds.
    outbox: VecDeque<(StoreRequestId, StoreRequest, u64, u64)>,
    /// With when it was sent, as a count of events.
    in_flight: Vec<(StoreRequestId, u64)>,
    /// Since when there is no connection.
    down_since: u64,
    /// The attempt to connect that counts.
    attempt: u64,
    /// The epoch of the store as it was known last.
    epoch: Option<u64>,
    /// It breaks while the next store request is on its way.
    pub(crate) breaks_next: bool,
    /// Until then no lock that is found free may be taken.
    pub(crate) grace_until: u64,
}

impl Port {
    /// That of a gate which is there from the beginning.
    pub(crate) fn connected(link: LinkId) -> Self {
        Self {
            link: Some(link),
            epoch: Some(0),
            ..Self::default()
        }
    }

    /// What is left of it when its gate dies.
    pub(crate) fn of_a_dead_gate(&self) -> Self {
        Self {
            attempt: self.attempt + 1,
            ..Self::default()
        }
    }
}

fn index(link: LinkId) -> usize {
    usize::try_from(link.number()).unwrap() - 1
}

impl World {
    pub(crate) fn link_of(&self, link: LinkId) -> &Link {
        &self.links[index(link)]
    }

    fn link_mut(&mut self, link: LinkId) -> &mut Link {
        &mut self.links[index(link)]
    }

    /// From now on nothing comes through it.
    pub(super) fn silence(&mut self, link: LinkId) {
        self.link_mut(link).mute = true;
    }

    pub(super) fn new_link(&mut self, gate: usize) -> LinkId {
        self.links.push(Link {
            gate,
            life: self.gates[gate].life,
            alive: true,
            mute: false,
            loses: false,
            killed: false,
            epoch: self.store.epoch,
            sent_at: 0,
            answered_at: 0,
        });
        LinkId::new(self.links.len() as u64)
    }

    // ── asking ───────────────────────────────────────────────────────────────────────────────

    /// Sends a store request, now or as soon as there is a connection. Some are answered here.
    pub(super) fn send(
        &mut self,
        gate: usize,
        id: StoreRequestId,
        store_request: StoreRequest,
        within_ms: u64,
    ) -> Option<Event> {
        let now = self.now;
        if store_request.grants_to().is_some() {
            self.gates[gate].chose_at = self.count;
        }
        let port = &mut self.gates[gate].port;
        let Some(link) = port.link else {
            if now >= port.down_since + NOT_WAITED_FOR {
                self.totals.not_sent += 1;
                return Some(answered(id, Outcome::NoLink));
            }
            let at = port.down_since + NOT_WAITED_FOR;
            port.outbox.push_back((id, store_request, now, within_ms));
            self.at(at, Ev::NotSent(gate, id));
            return None;
        };
        let waits = now < port.grace_until && !planted(Fault::GraceNotKept);
        let extension = waits.then(|| extension(&store_request)).flatten();
        let extends = extension.is_some();
        let store_request = extension.unwrap_or(store_request);
        let makes_fence = matches!(store_request, StoreRequest::Handover { fence: true, .. });
        if waits && (makes_fence || matches!(store_request, StoreRequest::Acquire { .. })) {
            let ms = (port.grace_until - now).div_ceil(MILLI);
            self.tell(|| format!("gate {gate} is told: not yet, {ms} ms"));
            self.totals.not_yet += 1;
            return Some(answered(id, Outcome::NotYet { ms }));
        }
        port.in_flight.push((id, self.count));
        self.asks(gate, &store_request);
        self.worst_moment(gate, &store_request);
        let seen = self.gates[gate].largest_fence;
        let delay = self.delay();
        let sent = &mut self.link_mut(link).sent_at;
        let at = (now + delay).max(*sent + 1);
        *sent = at;
        let patience = self.day.settings.answer_within_ms * MILLI;
        self.after(patience, Ev::Timeout(link, id));
        let message = Message {
            link,
            id,
            store_request,
            seen,
            late: false,
            extends,
        };
        self.at(at, Ev::AtStore(message));
        None
    }

    /// What goes wrong while this store request is on its way.
    fn worst_moment(&mut self, gate: usize, store_request: &StoreRequest) {
        let trip = 2 * self.day.way;
        let leaves = self.leaves_with(store_request);
        let breaks = leaves.is_some() && self.day.breaks && self.random.percent(60);
        if let Some((who, request)) = leaves {
            let at = self.random.between(0, trip);
            self.after(at, Ev::Vanish(who, request));
        }
        if std::mem::take(&mut self.gates[gate].port.breaks_next) || breaks {
            let at = self.random.between(0, trip);
            self.after(at, Ev::Disaster(Disaster::Break(gate)));
        }
        // The gate looks again at a lock that another gate's client has by now.
        let told = self.gates[gate].heard.is_some();
        let looks = told && self.granted_at[0] == Some(gate) && self.granted_at[1] != Some(gate);
        if looks {
            self.crash_at(Moment::Look, trip);
        }
        self.crash_at(Moment::StoreRequest, trip);
    }

    pub(super) fn at_store(&mut self, mut message: Message) {
        let Link {
            gate,
            alive,
            mute,
            loses,
            killed,
            epoch,
            ..
        } = *self.link_of(message.link);
        if epoch != self.store.epoch || self.is_down || killed {
            return;
        }
        if !alive {
            if loses {
                return;
            }
            if !message.late {
                message.late = true;
                let most = if self.day.kills {
                    400 * MILLI
                } else {
                    3 * SECOND
                };
                let delay = self.random.between(0, most);
                return self.after(delay, Ev::AtStore(message));
            }
        }
        if let Some(until) = self.hangs_until {
            return self.at(until, Ev::AtStore(message));
        }
        if mute && self.random.percent(50) {
            return;
        }
        let (link, id, store_request) = (message.link, message.id, &message.store_request);
        self.is_given_up(store_request, !alive);
        self.is_asked_by_its_own_user(store_request);
        if let StoreRequest::DeleteDead { token, .. } = store_request {
            self.totals.dead_deleted += u64::from(self.store.is_held_by(self.now, token));
        }
        let mut answer = self
            .store
            .answer(self.now, link, store_request, message.seen);
        if message.extends && answer.outcome == Outcome::Free {
            let grace_until = self.gates[gate].port.grace_until;
            let ms = grace_until.saturating_sub(self.now).div_ceil(MILLI);
            answer.outcome = Outcome::NotYet { ms };
        }
        let late = if alive { "" } else { ", late" };
        self.tell(|| {
            let outcome = &answer.outcome;
            let whose = tokens(store_request);
            let holder = self.store.holder(self.now).map(|(token, _)| show(token));
            format!(
                "gate {gate} at the store{late}: {whose} {store_request:?} → {outcome:?}, {holder:?}"
            )
        });
        if !alive {
            self.totals.late += 1;
            self.disturb(gate);
        }
        if alive && !mute {
            let mut delay = self.delay();
            let acquires = matches!(store_request, StoreRequest::Acquire { .. });
            match answer.outcome {
                Outcome::Granted { .. } if acquires && store_request.replicas() > 0 => {
                    self.after(delay, Ev::Taken(link, id));
                }
                Outcome::Unacknowledged { done: Some(_), .. } => {
                    if acquires {
                        self.after(delay, Ev::Taken(link, id));
                    }
                    delay += self.random.between(0, 100 * MILLI);
                }
                _ => {}
            }
            let now = self.now;
            let answered = &mut self.link_mut(link).answered_at;
            let at = (now + delay).max(*answered + 1);
            *answered = at;
            let version = self.store.version;
            self.at(at, Ev::Answered(link, id, answer, version));
        }
        self.stored();
    }

    /// Nobody is granted the lock by another user's rights.
    fn is_asked_by_its_own_user(&self, store_request: &StoreRequest) {
        if let StoreRequest::Acquire { user, token, .. }
        | StoreRequest::Handover {
            user, to: token, ..
        } = store_request
        {
            let client = self.clients.iter().find(|client| client.token == *token);
            let whose = client.map(|client| client.user);
            let may = whose == Some(*user) || self.may_ask(*user, token);
            assert!(may, "{} is another user's", show(token));
        }
    }

    /// The driver tells that an acquisition waits for replicas.
    pub(super) fn is_taken(&mut self, link: LinkId, store_request: StoreRequestId) {
        let Link {
            gate, alive, mute, ..
        } = *self.link_of(link);
        let mut in_flight = self.gates[gate].port.in_flight.iter();
        if alive && !mute && in_flight.any(|(id, _)| *id == store_request) {
            self.tell(|| format!("gate {gate} hears that the lock waits for replicas"));
            self.feed(gate, Event::Taken);
        }
    }

    pub(super) fn answer_arrives(
        &mut self,
        link: LinkId,
        store_request: StoreRequestId,
        mut answer: StoreReply,
        version: u64,
    ) {
        let Link {
            gate, alive, mute, ..
        } = *self.link_of(link);
        if !alive || mute {
            return;
        }
        self.tell(|| format!("gate {gate} hears {:?}", answer.outcome));
        let it = &mut self.gates[gate];
        let asked = it
            .port
            .in_flight
            .iter()
            .position(|(id, _)| *id == store_request);
        let sent_at = asked.map_or(0, |at| it.port.in_flight.remove(at).1);
        if self.now < it.port.grace_until {
            answer.grace_ms = Some((it.port.grace_until - self.now).div_ceil(MILLI));
        }
        // The waiter that comes next needs a request, too.
        it.causes += u64::from(matches!(answer.outcome, Outcome::Refused(_)));
        // Not to hold the lock does not tell who does.
        let tells = !matches!(answer.outcome, Outcome::Held { holder: None, .. });
        if answer.armed.is_some() && tells {
            it.reads_on = Some(link);
            it.knows = it.knows.max(version);
            // A push during the store request may be newer than the answer.
            it.heard = it.heard.filter(|heard| *heard > sent_at);
        }
        if let Outcome::Granted {
            fence: Some(fence), ..
        } = answer.outcome
        {
            it.largest_fence = it.largest_fence.max(fence);
        }
        self.spinners.answering = version;
        let time = self.time(gate);
        let dead = self.gates[gate]
            .dead_tokens
            .of_holder(time, &answer.outcome);
        let answered = Event::StoreReplied {
            store_request,
            store_reply: answer,
            dead,
        };
        self.feed(gate, answered);
    }

    pub(super) fn push_arrives(&mut self, link: LinkId, flushed: bool) {
        let Link {
            gate, alive, mute, ..
        } = *self.link_of(link);
        if mute || (!alive && self.random.percent(50)) {
            return;
        }
        if flushed {
            self.tell(|| format!("gate {gate} hears that everything may have changed"));
            let ask_at = self.some_time_soon(gate);
            return self.feed(gate, Event::TrackingLost { link, ask_at });
        }
        self.tell(|| format!("gate {gate} hears of a change"));
        // Before its first answer on a connection a gate cannot tell what a push is about.
        if self.gates[gate].reads_on == Some(link) {
            self.gates[gate].heard = Some(self.count);
        }
        if let Some(lost) = self.loss.as_mut().filter(|_| !alive) {
            lost.unsure[gate] = true;
        }
        self.feed(gate, Event::Changed { link });
    }

    /// After every change of the store: who is told, and when its end is noticed.
    pub(super) fn stored(&mut self) {
        for change in std::mem::take(&mut self.store.changes) {
            self.spinners.set_at = self.now;
            let by = change.by.map(|link| self.link_of(link).gate);
            for (number, gate) in self.gates.iter_mut().enumerate() {
                if by != Some(number) {
                    gate.changed = self.store.version;
                }
            }
            for link in change.told {
                self.push(link, false);
            }
        }
        match self.store.deadline() {
            Some(deadline) if self.random.percent(60) => {
                let late = self.random.between(1, 3_000);
                self.at((deadline + 1 + late) * MILLI, Ev::Sweep(self.store.version));
            }
            Some(_) | None => {}
        }
    }

    pub(super) fn push(&mut self, link: LinkId, flushed: bool) {
        if self.random.percent(self.day.loss) {
            self.totals.pushes_lost += 1;
        } else {
            let delay = self.delay();
            self.after(delay, Ev::Push(link, flushed));
        }
    }

    /// The store request has waited long enough for a connection.
    pub(super) fn not_sent(&mut self, gate: usize, id: StoreRequestId) {
        let outbox = &mut self.gates[gate].port.outbox;
        let Some(at) = outbox.iter().position(|(it, ..)| *it == id) else {
            return;
        };
        outbox.remove(at);
        self.totals.not_sent += 1;
        self.feed(gate, answered(id, Outcome::NoLink));
    }

    // ── breaking and connecting anew ─────────────────────────────────────────────────────────

    pub(super) fn timeout(&mut self, link: LinkId, id: StoreRequestId) {
        let Link { gate, alive, .. } = *self.link_of(link);
        if alive
            && self.gates[gate]
                .port
                .in_flight
                .iter()
                .any(|(it, _)| *it == id)
        {
            self.tell(|| format!("gate {gate} gives its connection up"));
            self.break_link(gate);
        }
    }

    pub(super) fn break_link(&mut self, gate: usize) {
        let Some(link) = self.unplug(gate) else {
            return;
        };
        self.tell(|| format!("the connection {} of gate {gate} breaks", link.number()));
        self.totals.breaks += 1;
        self.connect_later(gate);
        self.unlocks_again(gate);
        for (id, _) in std::mem::take(&mut self.gates[gate].port.in_flight) {
            self.feed(gate, answered(id, Outcome::Unknown));
        }
    }

    /// The connection is gone; nobody is told.
    pub(super) fn unplug(&mut self, gate: usize) -> Option<LinkId> {
        let link = self.gates[gate].port.link.take()?;
        let loses = self.random.percent(40);
        let it = self.link_mut(link);
        it.alive = false;
        it.loses = loses;
        self.store.disarm(link);
        self.gates[gate].port.before = Some(link);
        self.disturb(gate);
        Some(link)
    }

    /// Tries again in a while.
    pub(super) fn connect_later(&mut self, gate: usize) {
        let delay = self.random.between(10, 400) * MILLI;
        let now = self.now;
        let port = &mut self.gates[gate].port;
        port.down_since = now;
        port.attempt += 1;
        let attempt = port.attempt;
        self.after(delay, Ev::Connect(gate, attempt));
    }

    pub(super) fn connect(&mut self, gate: usize, attempt: u64) {
        let it = &self.gates[gate];
        if !it.alive || it.port.attempt != attempt || self.is_down {
            return;
        }
        if let Some(until) = self.hangs_until {
            // The greeting is answered when the store goes on.
            let delay = self.random.between(10, 100) * MILLI;
            return self.at(until + delay, Ev::Connect(gate, attempt));
        }
        self.disturb(gate);
        let link = self.new_link(gate);
        if self.day.kills {
            // A gate that died knows nothing of the connections it had.
            let life = self.gates[gate].life;
            for old in &mut self.links {
                old.killed |= old.gate == gate && old.life == life && !old.alive;
            }
        }
        self.tell(|| format!("gate {gate} has a new connection, {}", link.number()));
        let (epoch, now) = (self.store.epoch, self.now);
        let known = self.gates[gate].port.epoch.replace(epoch);
        let writes_back = self.day.settings.write_back != WriteBack::Off;
        let data_lost = writes_back && known.is_some_and(|known| known != epoch);
        let ask_at = self.some_time_soon(gate);
        let time = self.time(gate);
        if !planted(Fault::FenceNotRaised) {
            self.store.raise_fence(self.gates[gate].largest_fence);
        }
        let it = &mut self.gates[gate];
        it.port.link = Some(link);
        if writes_back {
            it.port.grace_until = self.store.grace_until(now, GRACE);
        }
        let mut news = Vec::new();
        if let Some(link) = it.port.before.take() {
            news.push(Event::TrackingLost { link, ask_at });
        }
        if data_lost {
            // Looked at for the last time when others have tried for the last time to write back.
            let grace_over = it.port.grace_until + 3 * self.day.way;
            let grace_over = Time::from_micros(it.clock.at(grace_over));
            let dead = it.dead_tokens.lost_data(time);
            let dead = dead.map(|dead| DeadWatch {
                until: dead.until.min(grace_over),
                ..dead
            });
            let first = if self.day.forgot_first { 0 } else { news.len() };
            news.insert(first, Event::DataLost { dead });
        }
        for event in news {
            self.feed(gate, event);
        }
        let waited = std::mem::take(&mut self.gates[gate].port.outbox);
        for (id, store_request, asked_at, within_ms) in waited {
            let waited = self.now - asked_at;
            let event = match store_request {
                StoreRequest::Acquire { .. } if waited >= ANEW_AFTER => {
                    self.totals.anew += 1;
                    Some(answered(id, Outcome::NotYet { ms: 0 }))
                }
                StoreRequest::Acquire { .. } => self.send(gate, id, store_request, within_ms),
                _ if waited >= within_ms * MILLI => Some(answered(id, Outcome::Unknown)),
                _ => self.send(gate, id, store_request, within_ms),
            };
            if let Some(event) = event {
                self.feed(gate, event);
            }
        }
        let users = (0..u32::try_from(self.day.users).unwrap()).map(UserId);
        self.checks.linked_at.insert(gate, self.now);
        for user in users.chain([OUTSIDER]) {
            self.feed(gate, Event::Linked { user });
        }
    }

    /// The gate and its way to the store are as they should be.
    pub(super) fn is_well(&self, gate: usize) -> bool {
        let it = &self.gates[gate];
        let connected = it.port.link.is_some_and(|link| !self.link_of(link).mute);
        let serves = !self.is_down && self.hangs_until.is_none() && self.store.trouble.is_none();
        it.alive && connected && serves
    }

    /// Something is wrong, or was until now, with this gate's way to the store.
    pub(super) fn disturb(&mut self, gate: usize) {
        self.gates[gate].disturbed_at = Some(self.now);
        self.disturbed_at = Some(self.now);
    }

    pub(super) fn disturb_all(&mut self) {
        for gate in 0..self.gates.len() {
            self.disturb(gate);
        }
    }
}

/// The tokens of a store request as text.
fn tokens(store_request: &StoreRequest) -> String {
    match store_request {
        StoreRequest::Handover { from, to, .. } => format!("{} to {}", show(from), show(to)),
        StoreRequest::Acquire { token, .. }
        | StoreRequest::Release { token, .. }
        | StoreRequest::Extend { token, .. }
        | StoreRequest::WriteBack { token, .. }
        | StoreRequest::DeleteDead { token, .. } => show(token),
        StoreRequest::Check { .. } => String::new(),
    }
}

/// An acquisition by a token that should hold the lock, as what takes no free lock.
fn extension(store_request: &StoreRequest) -> Option<StoreRequest> {
    let StoreRequest::Acquire {
        user,
        token,
        lease_ms,
        fence: Fence::No,
        expects: expects @ Some(_),
        replicas,
        ..
    } = store_request
    else {
        return None;
    };
    Some(StoreRequest::Extend {
        user: *user,
        token: token.clone(),
        lease_ms: *lease_ms,
        expects: *expects,
        mark: Mark::None,
        replicas: *replicas,
    })
}

fn answered(store_request: StoreRequestId, outcome: Outcome) -> Event {
    let answer = StoreReply {
        outcome,
        armed: None,
        grace_ms: None,
    };
    Event::StoreReplied {
        store_request,
        store_reply: answer,
        dead: None,
    }
}
