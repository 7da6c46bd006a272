//! The clients: what each is going to do, until it is granted the lock.

use lockgate::lock::{
    ConnectionId, Event, LockRequest, Reply, RequestId, StoreRequest, Time, Token, UserId, Wait,
};

use super::{
    MILLI,
    checks::{Purpose, Sent},
    day::SETTLED,
    world::{Ev, World},
};

/// A user to whom the store refuses everything.
pub(crate) const OUTSIDER: UserId = UserId(9);

/// No client asks for a longer lease.
pub(crate) const LONGEST_LEASE_MS: u64 = 30_000;

/// So long after it unlocked a client closes the connection of its session, in microseconds.
pub(crate) const SESSION_ENDS_WITHIN: u64 = 2_500 * MILLI;

/// The connections of clients are numbered from here.
const FIRST_CONNECTION: u64 = 1 << 40;

/// A client that waits in slices gives up after so many.
const MOST_SLICES: u32 = 60;

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
    /// Waits for a short time, again and again, with its token.
    Slices,
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

/// The place in a gate's queue of a client that asks again and again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) gate: usize,
    /// When the first request took it, as a count of events.
    pub(crate) order: u64,
    /// Until when it is kept for a client that is not there.
    pub(crate) kept_until: u64,
}

impl Place {
    /// A client that asks again at this gate is sure to find it.
    pub(crate) fn is_kept_at(&self, gate: usize, now: u64) -> bool {
        self.gate == gate && now < self.kept_until
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) user: UserId,
    pub(crate) gate: usize,
    pub(crate) fate: Fate,
    pub(crate) token: Token,
    pub(crate) explicit: bool,
    pub(crate) session: bool,
    pub(crate) fence: bool,
    pub(crate) lease_ms: u64,
    pub(crate) wait_ms: Option<u64>,
    pub(crate) try_only: bool,
    pub(crate) hold: u64,
    pub(crate) patience: u64,
    pub(crate) attempts: u32,
    /// That of a client that waits in slices.
    pub(crate) place: Option<Place>,
    /// What it waits for.
    pub(crate) request: Option<RequestId>,
    /// It asked again after closing.
    pub(crate) came_back: bool,
    /// It was granted the lock, and gave it up.
    pub(crate) done: bool,
    /// The request whose connection its lease is bound to.
    pub(crate) session_of: Option<RequestId>,
    /// When it was notified that its session lost the lock.
    pub(crate) told_lost_at: Option<u64>,
}

impl World {
    pub(super) fn clients(&mut self) {
        let most = if self.day.small { 7 } else { 24 };
        let count = self.random.between(2, most);
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
            _ if day.calm || (day.small && random.percent(35)) => Fate::Good,
            (1..=26, _) if day.slices => Fate::Slices,
            (1..=14, _) if day.replicates => Fate::Relocks,
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
            _ => random.one_of(&[1_500, 5_000, LONGEST_LEASE_MS]),
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
            Fate::Retries
                | Fate::RetriesAtGrant
                | Fate::Joins
                | Fate::Slices
                | Fate::ClosesAndRetries
        );
        let waits = waits && fate != Fate::Slices;
        let slice = if fate == Fate::Slices { 80 } else { 400 };
        let user = match random.percent(day.outsiders) {
            true => OUTSIDER,
            false => UserId(u32::try_from(random.below(day.users)).unwrap()),
        };
        Client {
            user,
            gate: random.below(day.gates),
            fate,
            token: Token::new(format!("t{i}")),
            explicit: returns || (!day.calm && random.percent(30)),
            session: session && fate != Fate::Plain,
            fence: random.percent(day.fences),
            lease_ms,
            wait_ms: (!waits).then(|| random.between(1, slice)),
            try_only: !day.calm && !returns && random.percent(12),
            hold,
            patience: match random.percent(40) {
                // While its store request is on its way.
                true => random.between(0, 3 * day.way),
                false => random.between(0, 150) * MILLI,
            },
            attempts: 0,
            place: None,
            request: None,
            came_back: false,
            done: false,
            session_of: None,
            told_lost_at: None,
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
    pub(super) fn serves(&self) -> bool {
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
    pub(super) fn takes_what_was_lost(&mut self) {
        let now = self.now;
        let Some(lost) = self
            .loss
            .as_mut()
            .filter(|lost| now < lost.back_at + SETTLED)
        else {
            return;
        };
        lost.was_taken = true;
        let back_at = lost.back_at;
        self.checks.rob(|owner| owner.since < back_at);
    }

    pub(super) fn plain_release(&mut self, who: usize) {
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
    pub(super) fn living_gate(&mut self, gate: usize) -> Option<usize> {
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
        let (asked_at, latest) = self.asked_at(gate);
        let wait = match (client.try_only, client.wait_ms) {
            (true, _) => Wait::No,
            (false, None) => Wait::Forever,
            (false, Some(millis)) => Wait::Until(asked_at.plus_millis(millis)),
        };
        let due = match wait {
            Wait::Until(due) => Some(self.moment(gate, due)),
            Wait::No => Some(latest),
            Wait::Forever => None,
        };
        let request = self.request(Purpose::Lock(who), gate, due, !client.explicit);
        self.clients[who].request = Some(request);
        if client.fate == Fate::Slices {
            self.takes_place(who, gate, request);
        }
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
            asked_at,
            user: client.user,
            token: client.token,
            explicit: client.explicit,
            lease_ms: client.lease_ms,
            wait,
            fence: client.fence,
            session: client.session,
            replicas: self.replicas_of(who),
            connection: ConnectionId(FIRST_CONNECTION + who as u64),
            attempt: None,
        };
        self.feed(gate, Event::Lock(ask));
    }

    /// The number of replicas that are to acknowledge what this client is granted.
    pub(super) fn replicas_of(&self, who: usize) -> u32 {
        match self.day.replicates {
            true => u32::try_from(who % 3).unwrap(),
            false => 0,
        }
    }

    /// The request has the place that the client left, or a new one.
    fn takes_place(&mut self, who: usize, gate: usize, request: RequestId) {
        let client = &self.clients[who];
        let order = match client.place {
            None if client.attempts == 0 => Some(self.count),
            // A place that may have lapsed is not known.
            place => place
                .filter(|place| place.is_kept_at(gate, self.now))
                .map(|place| place.order),
        };
        // The holder itself may ask again before all others.
        let is_holder = self.store.is_held_by(self.now, &client.token);
        let order = order.filter(|_| !is_holder);
        let sent = self.checks.sent.get_mut(&request).expect("it was sent");
        sent.place = order;
        self.clients[who].place = order.map(|order| Place {
            gate,
            order,
            kept_until: 0,
        });
    }

    /// A client that waits in slices was not granted the lock in this one.
    pub(super) fn slice_is_over(&mut self, who: usize, reply: &Reply) {
        let kept_until = self.place_kept_until();
        let client = &mut self.clients[who];
        if client.fate != Fate::Slices {
            return;
        }
        let kept = client.place.filter(|_| *reply == Reply::Nil);
        client.place = kept.map(|place| Place {
            kept_until,
            ..place
        });
        client.attempts += 1;
        client.came_back = true;
        if client.attempts < MOST_SLICES {
            self.totals.slices += 1;
            // In less than that two gates could set the very same deadline for one token.
            let pause = self.random.between(2, 40) * MILLI;
            return self.after(pause, Ev::ComeBack(who));
        }
        let client = self.clients[who].clone();
        match self.random.percent(50) {
            true => self.after(0, Ev::Release(who)),
            false => self.soon_not_held(&client, self.now, false),
        }
    }

    /// Until when the place of a client that leaves now is sure to be kept.
    pub(super) fn place_kept_until(&self) -> u64 {
        let grace = self.day.settings.reconnect_grace_ms * MILLI;
        // A gate's clock may be a little too fast.
        self.now + (grace - grace / 500).saturating_sub(MILLI)
    }

    /// A second request, unless the first was answered already.
    pub(super) fn join(&mut self, who: usize) {
        let of_it = |sent: &&Sent| matches!(sent.purpose, Purpose::Lock(it) if it == who);
        if self.checks.sent.values().filter(of_it).any(Sent::waits) {
            self.totals.retries += 1;
            self.lock(who);
        }
    }

    /// A client waits with this token.
    pub(super) fn is_waited_for(&self, token: &Token) -> bool {
        let waits = self.checks.sent.values().any(|sent| match sent.purpose {
            Purpose::Lock(who) => sent.waits() && self.clients[who].token == *token,
            _ => false,
        });
        waits || self.is_attempted(token)
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
        self.feed(client.gate, Event::Gone { request });
        if client.fate == Fate::Retries {
            self.tries_again(who);
        } else {
            self.soon_not_held(&client, self.now, false);
        }
    }

    /// A client that will leave does so while this store request is on its way, or not.
    pub(super) fn leaves_with(
        &mut self,
        store_request: &StoreRequest,
    ) -> Option<(usize, RequestId)> {
        let StoreRequest::Acquire { token, .. } = store_request else {
            return None;
        };
        let who = self
            .clients
            .iter()
            .position(|client| client.token == *token)?;
        let leaves = self.clients[who].fate == Fate::Vanishes && self.random.percent(60);
        Some((who, self.clients[who].request.filter(|_| leaves)?))
    }

    /// Comes back with the same token, here or elsewhere.
    pub(super) fn tries_again(&mut self, who: usize) {
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
        self.tell(|| format!("client {who} is not to wait any longer"));
        self.feed(self.clients[who].gate, Event::StopWaiting { request });
    }

    /// The gate died: its clients are alone.
    pub(super) fn lose_connections(&mut self, gate: usize) {
        self.spinners_lose_connections(gate);
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
        for client in &mut self.clients {
            client.place.take_if(|place| place.gate == gate);
        }
        for who in left {
            self.totals.vanished += 1;
            if self.clients[who].explicit && self.random.percent(60) {
                self.tries_again(who);
            }
        }
    }

    // ── asking ───────────────────────────────────────────────────────────────────────────────

    /// When the client of what comes to this gate now asked, by the gate's clock: some waited for admission
    /// for a while. And by when it is to have its answer, where it does not wait.
    pub(super) fn asked_at(&mut self, gate: usize) -> (Time, u64) {
        let (now, within) = (self.time(gate), self.day.settings.answer_within_ms);
        let at_the_door = match self.random.percent(10) {
            true => self.random.between(0, within * MILLI),
            false => 0,
        };
        let asked_at = Time::from_micros(now.micros().saturating_sub(at_the_door));
        (asked_at, self.moment(gate, asked_at.plus_millis(within)))
    }

    /// When it is so late at this gate, but not before now.
    pub(super) fn moment(&self, gate: usize, time: Time) -> u64 {
        self.gates[gate].clock.moment(time.micros()).max(self.now)
    }

    pub(super) fn request(
        &mut self,
        purpose: Purpose,
        gate: usize,
        due: Option<u64>,
        plain: bool,
    ) -> RequestId {
        let request = RequestId(self.checks.sent.len() as u64 + 1);
        let user = match purpose {
            Purpose::Lock(who) | Purpose::Unlock(who, ..) | Purpose::Relock(who, ..) => {
                self.clients[who].user
            }
            Purpose::Attempt(who) | Purpose::GiveUp(who, ..) => self.spinner_user(who),
        };
        let sent = Sent {
            purpose,
            gate,
            life: self.gates[gate].life,
            at: self.now,
            user,
            order: self.count,
            plain,
            place: plain.then_some(self.count),
            due,
            answered: false,
            gone: false,
        };
        self.checks.sent.insert(request, sent);
        request
    }
}
