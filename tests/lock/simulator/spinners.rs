//! Clients that spin: each makes attempt after attempt by commands of Redis's own until it is granted the lock. Some go
//! through a gate, which parks their attempts, and some straight to the store. They make a token for each acquisition or
//! for each attempt, or all use the same one; they sleep, change their connection or their gate, vanish while an attempt
//! is parked, release after each refusal, and give the lock up by a compare-and-delete or by `DEL`.
//!
//! An attempt that was granted holds the lock until its client gives it up, its lease ends by the store's clock, or
//! another client deletes the key. So the owners are told apart by attempt, not by token.

use std::collections::{BTreeMap, BTreeSet};

use lockgate::lock::{
    Attempt, ConnectionId, Event, LockRequest, Reply, RequestId, Token, UserId, Wait,
};

use super::{
    MILLI,
    checks::{Owner, Purpose, Sent, show},
    clients::{LONGEST_LEASE_MS, OUTSIDER, Place},
    day::Moment,
    world::{Ev, World},
};

mod checks;
mod releases;

/// The token that many clients use.
const CONSTANT: &[u8] = b"1";

/// The grants by the store itself are numbered from here.
const FIRST_DIRECT: u64 = 1 << 41;

/// How a client makes its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tokens {
    /// One for all attempts of an acquisition.
    Own,
    /// One for each attempt.
    New,
    /// The same as other clients.
    Constant,
}

/// A client that spins.
#[derive(Debug, Clone)]
pub(crate) struct Spinner {
    user: UserId,
    /// None: it goes straight to the store.
    gate: Option<usize>,
    tokens: Tokens,
    strict: bool,
    /// It makes a second attempt after a refusal.
    returns: bool,
    /// How long its attempts wait at a gate. Zero: not at all.
    park_ms: u64,
    longest_pause: u64,
    lease_ms: u64,
    hold: u64,
    /// It releases its token after each refusal.
    cleans_up: bool,
    /// It gives the lock up by `DEL`.
    deletes: bool,
    /// It never gives the lock up.
    dies: bool,
    /// How often it changes its connection or its gate, in percent.
    wanders: u64,
    /// How often it vanishes while an attempt is parked, in percent.
    vanishes: u64,
    /// Acquisitions to come.
    rounds: u32,
    /// Attempts to come.
    attempts: u32,
    token: Token,
    connection: ConnectionId,
    /// It made no attempt of this acquisition yet.
    is_new: bool,
    place: Option<Place>,
    /// The attempt that waits.
    waiting: Option<RequestId>,
    /// The attempt that was granted the lock.
    granted: Option<RequestId>,
}

impl Spinner {
    fn is_constant(&self) -> bool {
        self.tokens == Tokens::Constant
    }
}

/// A release that a client sent to a gate.
struct Release {
    request: RequestId,
    token: Token,
    at: u64,
    /// The end of the lease that the client counted on.
    until: u64,
    /// The deletions until then.
    sabotages: u64,
    /// The client has no answer, and will get none.
    is_open: bool,
}

/// All of them, and what is known about the key that the store holds.
#[derive(Default)]
pub(crate) struct Spinners {
    all: Vec<Spinner>,
    next: u64,
    /// The users that asked for the lock with each token.
    users: BTreeMap<Token, BTreeSet<UserId>>,
    /// Releases without a definite answer.
    releases: Vec<Release>,
    /// The store's version when a client last deleted the key.
    pub(crate) deleted_at: u64,
    /// The store's version of the answer that a gate is hearing.
    pub(crate) answering: u64,
    /// Since when the key is absent.
    free_since: Option<u64>,
    /// When the store's key last changed.
    pub(crate) set_at: u64,
    /// Since when the key is held for no client.
    orphan_since: Option<u64>,
}

/// Returns whether the token belongs to a client that spins.
fn is_spinners(token: &Token) -> bool {
    matches!(token.as_bytes().first(), Some(b's' | b'1'))
}

/// Returns whether other clients use the token, too.
fn is_constant(token: &Token) -> bool {
    token.as_bytes() == CONSTANT
}

impl World {
    pub(super) fn spinners(&mut self) {
        if !self.day.spins {
            return;
        }
        let most = if self.day.small { 4 } else { 8 };
        for who in 0..self.random.between(2, most) {
            let spinner = self.spinner();
            self.spinners.all.push(spinner);
            let at = self.random.between(0, self.day.span);
            self.at(at, Ev::Attempt(usize::try_from(who).unwrap()));
        }
    }

    fn spinner(&mut self) -> Spinner {
        let day = &self.day;
        let random = &mut self.random;
        let tokens = random.one_of(&[
            Tokens::Own,
            Tokens::Own,
            Tokens::Own,
            Tokens::New,
            Tokens::New,
            Tokens::Constant,
            Tokens::Constant,
        ]);
        let is_constant = tokens == Tokens::Constant;
        let dies = random.percent(8);
        let lease_ms = match (day.short_leases, dies) {
            (true, _) => random.between(10, 60),
            (_, true) => random.between(50, 1_000),
            _ => random.one_of(&[1_500, 5_000, LONGEST_LEASE_MS]),
        };
        let longest = match day.short_leases {
            true => 30 * MILLI,
            false => day.longest_hold.min(500 * MILLI),
        };
        let user = match random.percent(day.outsiders / 2) {
            true => OUTSIDER,
            false => UserId(u32::try_from(random.below(day.users)).unwrap()),
        };
        let returns = random.percent(92);
        Spinner {
            user,
            gate: (!random.percent(10)).then(|| random.below(day.gates)),
            tokens,
            strict: is_constant || random.percent(65),
            returns,
            park_ms: random.one_of(&[0, 10, 50, 50, 200]),
            longest_pause: random.one_of(&[15, 100, 250]) * MILLI,
            lease_ms,
            hold: random.between(0, longest),
            cleans_up: !is_constant && random.percent(35),
            deletes: random.percent(if is_constant { 60 } else { 20 }),
            dies,
            wanders: random.one_of(&[0, 0, 10, 40]),
            vanishes: random.one_of(&[0, 0, 15]),
            rounds: u32::try_from(random.between(1, 3)).unwrap(),
            attempts: match returns {
                true => u32::try_from(random.between(5, 60)).unwrap(),
                false => 1,
            },
            token: Token::new(CONSTANT),
            connection: ConnectionId(0),
            is_new: true,
            place: None,
            waiting: None,
            granted: None,
        }
    }

    // ── attempts ─────────────────────────────────────────────────────────────────────────────

    pub(super) fn attempt(&mut self, who: usize) {
        let wanders = self.random.percent(self.spinners.all[who].wanders);
        let elsewhere = wanders && self.random.percent(50);
        let gates = self.gates.len();
        let other = self.random.below(gates);
        self.spinners.next += 1;
        let number = self.spinners.next;
        let spinner = &mut self.spinners.all[who];
        let Some(left) = spinner.attempts.checked_sub(1) else {
            return;
        };
        spinner.attempts = left;
        if spinner.is_new || wanders {
            spinner.connection = ConnectionId(number);
            if spinner.tokens == Tokens::New {
                spinner.place = None;
            }
        }
        match spinner.tokens {
            Tokens::Own if spinner.is_new => {
                spinner.token = Token::new(format!("s{number}"));
            }
            Tokens::New => spinner.token = Token::new(format!("s{number}")),
            Tokens::Own | Tokens::Constant => {}
        }
        if let Some(gate) = spinner.gate.as_mut().filter(|_| elsewhere) {
            *gate = other;
        }
        self.totals.attempts += 1;
        match self.spinners.all[who].gate {
            Some(gate) => self.attempt_at(who, gate),
            None => self.attempt_directly(who),
        }
    }

    fn attempt_at(&mut self, who: usize, gate: usize) {
        let Some(gate) = self.living_gate(gate) else {
            return self.spins_on(who);
        };
        let place = self.place_at(who, gate);
        let spinner = &mut self.spinners.all[who];
        spinner.gate = Some(gate);
        spinner.is_new = false;
        let spinner = spinner.clone();
        let (asked_at, latest) = self.asked_at(gate);
        let until = self.time(gate).plus_millis(spinner.park_ms);
        let (wait, due) = match spinner.park_ms {
            0 => (Wait::No, latest),
            // A grant that is on its way at the end of the park is waited for.
            _ => {
                let within = self.day.settings.answer_within_ms;
                let latest = until.plus_millis(within);
                (Wait::Until(until), self.moment(gate, latest))
            }
        };
        let request = self.request(Purpose::Attempt(who), gate, Some(due), false);
        let order = self.count;
        // The holder itself may ask again before all others.
        let is_holder = self.store.is_held_by(self.now, &spinner.token);
        if let Some(sent) = self.checks.sent.get_mut(&request).filter(|_| !is_holder) {
            sent.place = place.map(|earlier| earlier.unwrap_or(order));
        }
        let it = &mut self.spinners.all[who];
        it.waiting = Some(request);
        it.place = place.map(|earlier| Place {
            gate,
            order: earlier.unwrap_or(order),
            kept_until: 0,
        });
        if !spinner.is_constant() {
            self.checks.asked_at.insert(spinner.token.clone(), self.now);
        }
        let users = self.spinners.users.entry(spinner.token.clone());
        users.or_default().insert(spinner.user);
        self.tell(|| {
            let (token, connection) = (show(&spinner.token), spinner.connection);
            let kind = if spinner.strict { "strict" } else { "again" };
            format!(
                "spinner {who} ({token}, {kind}, {connection:?}) at gate {gate}: {request:?}, {wait:?}"
            )
        });
        if self.random.percent(spinner.vanishes) {
            let at = self.random.between(0, spinner.park_ms * MILLI);
            self.after(at, Ev::Abandon(who, request));
        } else if spinner.park_ms > 0 && self.random.percent(10) {
            let at = self.random.between(0, spinner.park_ms * MILLI);
            self.after(at, Ev::NoPark(who, request));
        }
        let ask = LockRequest {
            request,
            asked_at,
            user: spinner.user,
            token: spinner.token,
            explicit: true,
            lease_ms: spinner.lease_ms,
            wait,
            fence: false,
            session: false,
            replicas: 0,
            connection: spinner.connection,
            attempt: Some(Attempt {
                strict: spinner.strict,
                returns: spinner.returns,
            }),
        };
        self.feed(gate, Event::Lock(ask));
    }

    /// Returns the order of the place that the next attempt takes: that of an earlier attempt, or none for a new place.
    /// None: it is not known.
    fn place_at(&self, who: usize, gate: usize) -> Option<Option<u64>> {
        let spinner = &self.spinners.all[who];
        // Clients with equal tokens take each other's places, and those that make new ones keep theirs once the gate knows
        // that tokens change.
        if spinner.is_constant() || spinner.tokens == Tokens::New {
            return None;
        }
        if spinner.is_new {
            return Some(None);
        }
        let place = spinner.place?;
        place
            .is_kept_at(gate, self.now)
            .then_some(Some(place.order))
    }

    /// The client is not there, and its place is kept for a while.
    fn leaves_place(&mut self, who: usize) {
        let kept_until = self.place_kept_until();
        let spinner = &mut self.spinners.all[who];
        if let Some(place) = &mut spinner.place {
            place.kept_until = kept_until;
        }
    }

    /// The client goes on with another connection.
    fn loses_connection(&mut self, who: usize) {
        self.totals.vanished += 1;
        self.leaves_place(who);
        self.spinners.next += 1;
        let number = self.spinners.next;
        let spinner = &mut self.spinners.all[who];
        spinner.connection = ConnectionId(number);
        if spinner.tokens == Tokens::New {
            spinner.place = None;
        }
    }

    fn attempt_directly(&mut self, who: usize) {
        let spinner = self.spinners.all[who].clone();
        self.spinners.all[who].is_new = false;
        if !self.serves()
            || !self
                .store
                .set_nx(self.now, &spinner.token, spinner.lease_ms)
        {
            return self.spins_on(who);
        }
        self.tell(|| format!("spinner {who} has it from the store"));
        self.takes_what_was_lost();
        let request = RequestId(FIRST_DIRECT + self.spinners.next);
        let until = (self.now / MILLI + spinner.lease_ms) * MILLI;
        self.holds(who, request, None, until);
        self.stored();
    }

    /// Makes the next attempt after a pause.
    fn spins_on(&mut self, who: usize) {
        let longest = self.spinners.all[who].longest_pause;
        // In less than that two gates could set the very same deadline for one token.
        let pause = self.random.between(10 * MILLI, longest);
        self.after(pause, Ev::Attempt(who));
    }

    /// Begins the next acquisition.
    fn next_round(&mut self, who: usize) {
        let spinner = &mut self.spinners.all[who];
        spinner.rounds = spinner.rounds.saturating_sub(1);
        (spinner.is_new, spinner.place) = (true, None);
        if spinner.rounds > 0 {
            self.spins_on(who);
        }
    }

    fn is_parked(&self, request: RequestId) -> bool {
        self.checks.sent.get(&request).is_some_and(Sent::waits)
    }

    /// The connection closes while the attempt is parked.
    pub(super) fn abandon(&mut self, who: usize, request: RequestId) {
        if !self.is_parked(request) {
            return;
        }
        let sent = self.checks.sent.get_mut(&request).expect("it was sent");
        sent.gone = true;
        let gate = sent.gate;
        self.tell(|| format!("spinner {who} vanishes from gate {gate}"));
        self.spinners.all[who].waiting = None;
        self.loses_connection(who);
        self.feed(gate, Event::Gone { request });
        self.spins_on(who);
    }

    /// Something stands behind the attempt on its connection.
    pub(super) fn not_parked(&mut self, who: usize, request: RequestId) {
        if self.is_parked(request) {
            self.tell(|| format!("spinner {who} is not to be parked any longer"));
            let gate = self.checks.sent[&request].gate;
            self.feed(gate, Event::StopWaiting { request });
        }
    }

    /// The gate of these clients died.
    pub(super) fn spinners_lose_connections(&mut self, gate: usize) {
        let mut alone = Vec::new();
        for (request, sent) in &self.checks.sent {
            if sent.gate == gate
                && !sent.answered
                && !sent.gone
                && let Purpose::Attempt(who) | Purpose::GiveUp(who, ..) = sent.purpose
            {
                alone.push((who, *request));
            }
        }
        for (who, request) in alone {
            for release in &mut self.spinners.releases {
                release.is_open |= release.request == request;
            }
            self.spinners.all[who].waiting = None;
            self.spins_on(who);
        }
        for spinner in &mut self.spinners.all {
            spinner.place.take_if(|place| place.gate == gate);
        }
    }

    // ── answers ──────────────────────────────────────────────────────────────────────────────

    pub(super) fn attempt_answered(
        &mut self,
        who: usize,
        sent: &Sent,
        request: RequestId,
        reply: &Reply,
    ) -> Option<Event> {
        let spinner = &mut self.spinners.all[who];
        assert_eq!(spinner.waiting.take(), Some(request), "an earlier attempt");
        let spinner = spinner.clone();
        let Reply::Granted {
            token,
            until,
            since,
            fence: None,
            session: false,
            ..
        } = reply
        else {
            self.attempt_refused(who, sent, reply);
            return None;
        };
        assert_eq!(*token, spinner.token, "the grant of another attempt");
        assert_ne!(
            spinner.user, OUTSIDER,
            "spinner {who} may not have the lock"
        );
        let gate = sent.gate;
        if self.random.percent(spinner.vanishes / 3) {
            self.loses_connection(who);
            self.spins_on(who);
            return Some(Event::Undelivered {
                request,
                user: spinner.user,
                token: token.clone(),
                since: *since,
            });
        }
        assert!(*until > self.time(gate), "a lease that is over was granted");
        self.is_next(gate, request);
        self.handed_on(gate);
        self.granted_at = [self.granted_at[1], Some(gate)];
        if !spinner.is_constant() {
            self.victims_are_known(gate, token);
            let granted_by = self.checks.granted_by.entry(token.clone()).or_default();
            granted_by.insert(gate);
        }
        let lease = spinner.lease_ms * MILLI;
        let clock = self.gates[gate].clock;
        let asked_at = clock.moment(until.micros().saturating_sub(lease));
        self.holds(who, request, Some(gate), asked_at + lease);
        self.crash_at(Moment::Grant, 10 * MILLI);
        None
    }

    /// The attempt holds the lock.
    fn holds(&mut self, who: usize, request: RequestId, gate: Option<usize>, until: u64) {
        self.totals.absorbed += 1;
        // Another client deleted the key before this one heard of its grant.
        let robbed = gate.is_some() && self.spinners.answering <= self.spinners.deleted_at;
        let spinner = &mut self.spinners.all[who];
        spinner.granted = Some(request);
        let spinner = spinner.clone();
        if !robbed {
            let owner = Owner {
                token: spinner.token,
                strict: spinner.strict,
                gate,
                request: Some(request),
                since: self.now,
                until,
                lease: spinner.lease_ms * MILLI,
                session: false,
                orphan: false,
                robbed: false,
                absent_since: None,
            };
            self.checks.granted(owner, self.day.drifts);
        }
        match spinner.dies {
            true => self.next_round(who),
            false => self.after(spinner.hold, Ev::GiveUp(who)),
        }
    }

    fn attempt_refused(&mut self, who: usize, sent: &Sent, reply: &Reply) {
        self.totals.refused += 1;
        let spinner = self.spinners.all[who].clone();
        match reply {
            Reply::Nil if spinner.user == OUTSIDER => {
                let late = sent.due.is_some_and(|due| self.now + MILLI >= due);
                let stopped = spinner.park_ms > 0;
                assert!(
                    late || stopped,
                    "spinner {who} may not know that the lock is held"
                );
            }
            Reply::Nil => self.is_refused_rightly(sent, spinner.park_ms > 0),
            Reply::Refused(_) => {}
            _ => panic!("an attempt is answered by {reply:?}"),
        }
        self.leaves_place(who);
        if !matches!(reply, Reply::Nil) {
            self.spinners.all[who].place = None;
        }
        match spinner.cleans_up {
            true => {
                let pause = self.random.between(0, 2 * MILLI);
                self.after(pause, Ev::CleanUp(who));
            }
            false => self.spins_on(who),
        }
    }
}
