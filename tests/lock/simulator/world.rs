//! One day: gates, a store, a network and clients, all from one seed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use lockgate::lock::{
    Action, Answer, Event, LinkId, LockRequest, Question, QuestionId, Queue, Reply, RequestId,
    Settings, Time, Token, UserId, Wait, WriteBack,
};

use super::{
    checks::{Checks, Sent, show},
    random::Random,
    store::Store,
};

const USER: UserId = UserId(0);
const MILLI: u64 = 1_000;
/// More than this many events in a day are a livelock.
const MOST_EVENTS: usize = 200_000;

/// What happened, over all days.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) grants: u64,
    pub(crate) commands: u64,
    pub(crate) vanished: u64,
    pub(crate) retries: u64,
    pub(crate) pushes_lost: u64,
    pub(crate) sabotages: u64,
    pub(crate) expired: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, day: &Self) {
        self.grants += day.grants;
        self.commands += day.commands;
        self.vanished += day.vanished;
        self.retries += day.retries;
        self.pushes_lost += day.pushes_lost;
        self.sabotages += day.sabotages;
        self.expired += day.expired;
    }
}

/// What a client is going to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
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
    /// Never unlocks.
    Dies,
    /// Unlocks when its lease is over.
    Overstays,
    /// Knows no gate: `SET NX PX`, and compare and delete.
    Plain,
    /// Deletes the key, whoever's it is.
    Deletes,
}

#[derive(Debug, Clone)]
struct Client {
    gate: usize,
    fate: Fate,
    token: Token,
    explicit: bool,
    lease_ms: u64,
    wait_ms: Option<u64>,
    try_only: bool,
    hold: u64,
    patience: u64,
    /// The `LOCK` it waits for.
    request: Option<RequestId>,
    attempts: u32,
    /// It asked again after closing.
    came_back: bool,
}

/// What a reply is for.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Lock(usize),
    /// With whether it must succeed, and the sabotages until then.
    Unlock(Option<u64>, u64),
    Relock(usize, u64),
}

#[derive(Debug, Clone)]
enum Ev {
    Arrive(usize),
    Vanish(usize, RequestId),
    ComeBack(usize),
    Relock(usize),
    Release(usize),
    AtStore(usize, QuestionId, Question),
    Answered(usize, QuestionId, Answer),
    Push(usize),
    Wake(usize),
    /// The store comes across a key whose time is over.
    Sweep(u64),
    /// Nobody must hold this token any more.
    NotHeld(Token),
}

#[derive(Default)]
struct Gate {
    queue: Option<Queue>,
    wake_at: Option<u64>,
    sent_at: u64,
    answered_at: u64,
}

pub(crate) struct World {
    random: Random,
    tells: bool,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Ev>,
    count: u64,
    gates: Vec<Gate>,
    store: Store,
    clients: Vec<Client>,
    purposes: BTreeMap<RequestId, (Purpose, u64)>,
    settings: Settings,
    checks: Checks,
    /// Longest way, in microseconds.
    way: u64,
    loss: u64,
    /// One gate, and clients who do what they should.
    calm: bool,
    /// Releases while nobody waited: they and the next grant are two commands.
    gaps: u64,
    pub(crate) totals: Totals,
}

impl World {
    pub(crate) fn new(seed: u64, tells: bool) -> Self {
        let mut random = Random::new(seed);
        let calm = seed.is_multiple_of(8);
        let gates = if calm { 1 } else { random.between(1, 4) };
        let settings = Settings {
            max_handoffs: u32::try_from(random.one_of(&[2, 5, 16, 64])).unwrap(),
            max_handoff_time_ms: random.one_of(&[50, 500, 5_000]),
            yield_pause_ms: random.one_of(&[0, 5, 20]),
            return_ms: random.one_of(&[0, 100, 2_000]),
            max_delay_ms: random.one_of(&[0, 15]),
            ask_at_least_every_ms: 60_000,
            poll_every_ms: 100,
            answer_within_ms: 2_000,
            write_back: WriteBack::All,
            max_waiters: 1_000,
        };
        let (way, loss) = (
            random.one_of(&[300, 2_000, 20_000]),
            random.one_of(&[0, 0, 20, 100]),
        );
        let mut world = Self {
            tells,
            now: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            count: 0,
            gates: (0..gates).map(|_| Gate::default()).collect(),
            store: Store::default(),
            clients: Vec::new(),
            purposes: BTreeMap::new(),
            settings,
            checks: Checks::default(),
            way,
            loss: if calm { 0 } else { loss },
            calm,
            gaps: 0,
            totals: Totals::default(),
            random,
        };
        world.people();
        world
    }

    fn people(&mut self) {
        let count = self.random.between(2, 24);
        // Leases shorter than the way to the store are part of some days.
        let short_leases = !self.calm && self.random.percent(25);
        let span = self.random.one_of(&[5, 100, 1_000]) * MILLI;
        for i in 0..count {
            let client = self.person(i, short_leases);
            let at = self.random.between(0, span);
            self.clients.push(client);
            self.at(at, Ev::Arrive(usize::try_from(i).unwrap()));
        }
    }

    fn person(&mut self, i: u64, short_leases: bool) -> Client {
        let random = &mut self.random;
        let fate = match random.between(1, 100) {
            _ if self.calm => Fate::Good,
            1..=40 => Fate::Good,
            41..=45 => Fate::UnlocksElsewhere,
            46..=50 => Fate::Relocks,
            51..=60 => Fate::Vanishes,
            61..=67 => Fate::VanishesAtGrant,
            68..=82 => Fate::Retries,
            83..=87 => Fate::Dies,
            88..=92 => Fate::Overstays,
            93..=97 => Fate::Plain,
            _ => Fate::Deletes,
        };
        let lease_ms = match (short_leases, fate) {
            (true, _) => random.between(10, 60),
            (_, Fate::Dies | Fate::Overstays) => random.between(50, 1_000),
            _ => random.one_of(&[1_500, 5_000, 30_000]),
        };
        let hold = match fate {
            Fate::Overstays => (lease_ms + random.between(1, 200)) * MILLI,
            _ => random.between(0, if short_leases { 30 } else { 100 }) * MILLI,
        };
        let waits = self.calm || random.percent(70);
        Client {
            gate: usize::try_from(random.next() % self.gates.len() as u64).unwrap(),
            fate,
            token: Token::new(format!("t{i}").into_bytes()),
            explicit: fate == Fate::Retries || (!self.calm && random.percent(30)),
            lease_ms,
            wait_ms: (!waits).then(|| random.between(1, 400)),
            try_only: !self.calm && fate != Fate::Retries && random.percent(12),
            hold,
            patience: random.between(0, 150) * MILLI,
            request: None,
            attempts: 0,
            came_back: false,
        }
    }

    fn at(&mut self, time: u64, event: Ev) {
        self.count += 1;
        self.events.push(Reverse((time.max(self.now), self.count)));
        self.what.insert(self.count, event);
    }

    fn after(&mut self, micros: u64, event: Ev) {
        self.at(self.now + micros, event);
    }

    fn tell(&self, text: impl FnOnce() -> String) {
        if self.tells {
            println!("{:>10.3} ms  {}", self.now as f64 / 1e3, text());
        }
    }

    fn delay(&mut self) -> u64 {
        self.random.between(20, self.way)
    }

    /// Until nothing happens any more.
    pub(crate) fn run(&mut self) {
        let mut events = 0;
        while let Some(Reverse((time, id))) = self.events.pop() {
            let event = self.what.remove(&id).expect("every event is kept");
            if let Ev::Wake(gate) = &event
                && self.gates[*gate].wake_at != Some(time)
            {
                continue;
            }
            self.now = time;
            self.is_not_idle();
            self.happen(event);
            events += 1;
            assert!(events < MOST_EVENTS, "it never ends");
        }
        self.nothing_is_left();
    }

    // ── what happens ─────────────────────────────────────────────────────────────────────────

    fn happen(&mut self, event: Ev) {
        match event {
            Ev::Arrive(who) => self.arrive(who),
            Ev::Vanish(who, request) => self.vanish(who, request),
            Ev::ComeBack(who) => self.lock(who),
            Ev::Relock(who) => self.relock(who),
            Ev::Release(who) => self.release(who),
            Ev::AtStore(gate, id, question) => self.at_store(gate, id, &question),
            Ev::Answered(gate, question, answer) => {
                self.tell(|| format!("gate {gate} hears {:?}", answer.outcome));
                self.feed(gate, Event::Answered { question, answer });
            }
            Ev::Push(gate) => {
                self.tell(|| format!("gate {gate} hears of a change"));
                self.feed(gate, Event::Changed { link: link(gate) });
            }
            Ev::Wake(gate) => {
                self.gates[gate].wake_at = None;
                self.feed(gate, Event::Timer);
            }
            Ev::Sweep(version) => {
                if self.store.version == version {
                    self.store.expire(self.now);
                    self.stored();
                }
            }
            Ev::NotHeld(token) => {
                let holder = self.store.holder(self.now).map(|(holder, _)| holder);
                assert!(
                    holder != Some(&token),
                    "{} holds the lock for nobody",
                    show(&token)
                );
            }
        }
    }

    fn arrive(&mut self, who: usize) {
        let client = self.clients[who].clone();
        match client.fate {
            Fate::Deletes => {
                self.tell(|| format!("client {who} deletes the key"));
                self.totals.sabotages += 1;
                let victim = self
                    .store
                    .holder(self.now)
                    .map(|(holder, _)| holder.clone());
                self.checks.victims.extend(victim);
                self.store.delete(self.now, None);
                self.checks.no_owner(None);
                self.stored();
            }
            Fate::Plain => self.plain(who),
            _ => self.lock(who),
        }
    }

    fn plain(&mut self, who: usize) {
        let client = self.clients[who].clone();
        if self.store.set_nx(self.now, &client.token, client.lease_ms) {
            self.tell(|| format!("plain client {who} has it"));
            let until = (self.now / MILLI + client.lease_ms) * MILLI;
            self.checks.granted(self.now, &client.token, until);
            self.after(client.hold, Ev::Release(who));
            self.stored();
        } else if client.attempts < 40 {
            self.clients[who].attempts += 1;
            let pause = self.random.between(1, 50) * MILLI;
            self.after(pause, Ev::Arrive(who));
        }
    }

    fn lock(&mut self, who: usize) {
        let client = self.clients[who].clone();
        let request = self.request(Purpose::Lock(who));
        self.clients[who].request = Some(request);
        let wait = match (client.try_only, client.wait_ms) {
            (true, _) => Wait::No,
            (false, None) => Wait::Forever,
            (false, Some(millis)) => Wait::Until(time(self.now).plus_millis(millis)),
        };
        let due = match wait {
            Wait::Until(due) => Some(due.micros()),
            Wait::No => Some(self.now + self.settings.answer_within_ms * MILLI),
            Wait::Forever => None,
        };
        let sent = Sent {
            gate: client.gate,
            order: self.count,
            plain: !client.explicit,
            due,
            answered: false,
            gone: false,
        };
        self.checks.sent.insert(request, sent);
        self.tell(|| {
            format!(
                "client {who} ({:?}) at gate {}: {wait:?}",
                client.fate, client.gate
            )
        });
        match client.fate {
            Fate::Vanishes => self.after(client.patience, Ev::Vanish(who, request)),
            Fate::Retries if !client.came_back => {
                self.after(client.patience, Ev::Vanish(who, request))
            }
            _ => {}
        }
        let (token, explicit) = (client.token, client.explicit);
        let ask = LockRequest {
            request,
            user: USER,
            token,
            explicit,
            lease_ms: client.lease_ms,
            wait,
            fence: false,
            session: false,
        };
        self.feed(client.gate, Event::Lock(ask));
    }

    fn vanish(&mut self, who: usize, request: RequestId) {
        let client = self.clients[who].clone();
        let sent = self.checks.sent.get_mut(&request).expect("it was sent");
        if sent.answered {
            return;
        }
        sent.gone = true;
        self.tell(|| format!("client {who} vanishes from gate {}", client.gate));
        self.totals.vanished += 1;
        let (user, token) = (USER, client.token.clone());
        self.feed(
            client.gate,
            Event::Gone {
                request,
                user,
                token,
            },
        );
        if client.fate == Fate::Retries {
            self.totals.retries += 1;
            self.clients[who].came_back = true;
            if self.random.percent(60) {
                self.clients[who].gate =
                    usize::try_from(self.random.next()).unwrap() % self.gates.len();
            }
            let pause = self.random.between(0, 40) * MILLI;
            self.after(pause, Ev::ComeBack(who));
        } else {
            self.soon_not_held(client.token);
        }
    }

    /// Long enough for what is on its way, its taking back, and what the gate does before that.
    fn soon_not_held(&mut self, token: Token) {
        self.after(8 * self.way + 20 * MILLI, Ev::NotHeld(token));
    }

    fn relock(&mut self, who: usize) {
        let client = self.clients[who].clone();
        if !self.checks.owns(self.now, &client.token) {
            return;
        }
        let request = self.request(Purpose::Relock(who, self.now));
        let (token, lease_ms) = (client.token, client.lease_ms);
        self.feed(
            client.gate,
            Event::Relock {
                request,
                user: USER,
                token,
                lease_ms,
            },
        );
    }

    fn release(&mut self, who: usize) {
        let client = self.clients[who].clone();
        let owned = self
            .checks
            .owners
            .iter()
            .find(|o| o.token == client.token && o.until > self.now);
        let until = owned.map(|owner| owner.until);
        self.checks.no_owner(Some(&client.token));
        self.tell(|| format!("client {who} unlocks"));
        if client.fate == Fate::Plain {
            let deleted = self.store.delete(self.now, Some(&client.token));
            assert!(deleted || until.is_none(), "client {who} lost its lock");
            self.stored();
            return;
        }
        let gate = match client.fate {
            Fate::UnlocksElsewhere => (client.gate + 1) % self.gates.len(),
            _ => client.gate,
        };
        self.gaps += u64::from(self.checks.waiting() == 0);
        let request = self.request(Purpose::Unlock(until, self.totals.sabotages));
        self.feed(
            gate,
            Event::Unlock {
                request,
                user: USER,
                token: client.token,
            },
        );
    }

    fn request(&mut self, purpose: Purpose) -> RequestId {
        let request = RequestId(self.purposes.len() as u64 + 1);
        self.purposes.insert(request, (purpose, 0));
        request
    }

    fn at_store(&mut self, gate: usize, id: QuestionId, question: &Question) {
        let answer = self.store.answer(self.now, link(gate), question);
        self.tell(|| {
            format!(
                "gate {gate} at the store: {question:?} → {:?}",
                answer.outcome
            )
        });
        let delay = self.delay();
        let at = (self.now + delay).max(self.gates[gate].answered_at + 1);
        self.gates[gate].answered_at = at;
        self.at(at, Ev::Answered(gate, id, answer));
        self.stored();
    }

    /// After every change of the store: who is told, and when its end is noticed.
    fn stored(&mut self) {
        for link in std::mem::take(&mut self.store.pushes) {
            if self.random.percent(self.loss) {
                self.totals.pushes_lost += 1;
            } else {
                let delay = self.delay();
                self.after(delay, Ev::Push(usize::try_from(link.0).unwrap() - 1));
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

    // ── the driver ───────────────────────────────────────────────────────────────────────────

    fn feed(&mut self, gate: usize, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            if self.gates[gate].queue.is_none() {
                if event.request().is_none() {
                    continue;
                }
                self.gates[gate].queue = Some(Queue::new(self.random.next()));
            }
            let mut todo = Vec::new();
            if let Some(queue) = &mut self.gates[gate].queue {
                queue.handle(time(self.now), event, &self.settings, &mut todo);
            }
            for action in todo {
                match action {
                    Action::Ask { id, question } => self.send(gate, id, question),
                    Action::Reply { request, reply } => events.extend(self.reply(request, &reply)),
                    Action::SessionOver { .. } | Action::Released { .. } => {}
                }
            }
        }
        self.keep_time(gate);
    }

    fn keep_time(&mut self, gate: usize) {
        let Some(queue) = &self.gates[gate].queue else {
            return;
        };
        let wake_at = queue.wake_at().map(|time| time.micros().max(self.now));
        if queue.is_idle() {
            assert_eq!(wake_at, None, "an idle queue has no timer");
            self.gates[gate].queue = None;
        }
        if self.gates[gate].wake_at != wake_at {
            self.gates[gate].wake_at = wake_at;
            if let Some(time) = wake_at {
                self.at(time, Ev::Wake(gate));
            }
        }
    }

    fn send(&mut self, gate: usize, id: QuestionId, question: Question) {
        let delay = self.delay();
        let at = (self.now + delay).max(self.gates[gate].sent_at + 1);
        self.gates[gate].sent_at = at;
        self.at(at, Ev::AtStore(gate, id, question));
    }

    /// A reply reaches its client, or not: then the queue is told.
    fn reply(&mut self, request: RequestId, reply: &Reply) -> Option<Event> {
        let (purpose, replies) = self
            .purposes
            .get_mut(&request)
            .expect("a reply to somebody");
        *replies += 1;
        assert_eq!(*replies, 1, "{request:?} was answered twice");
        match (*purpose, reply) {
            (Purpose::Lock(who), reply) => self.lock_answered(who, request, reply),
            (Purpose::Unlock(until, sabotages), reply) => {
                let kept = until.is_some_and(|until| until > self.now);
                let excused = sabotages != self.totals.sabotages;
                assert!(
                    !kept || excused || *reply == Reply::Done,
                    "an owner had lost its lock: {reply:?}"
                );
                None
            }
            (Purpose::Relock(who, sent_at), reply) => {
                let client = &self.clients[who];
                let token = client.token.clone();
                let until = sent_at + client.lease_ms * MILLI;
                match reply {
                    // It may have unlocked meanwhile.
                    Reply::Done if self.checks.owns(self.now, &token) => {
                        self.checks.granted(self.now, &token, until);
                    }
                    Reply::Done => {}
                    _ => assert!(
                        !self.checks.owns(self.now, &token),
                        "RELOCK of an owner: {reply:?}"
                    ),
                }
                None
            }
        }
    }

    fn lock_answered(&mut self, who: usize, request: RequestId, reply: &Reply) -> Option<Event> {
        let granted = matches!(reply, Reply::Granted { .. });
        self.tell(|| format!("client {who} is answered: {reply:?}"));
        self.checks.replied(self.now, request, granted);
        let Reply::Granted { token, until, .. } = reply else {
            self.totals.expired += u64::from(matches!(reply, Reply::Refused(_)));
            return None;
        };
        let client = self.clients[who].clone();
        assert_eq!(*token, client.token);
        let undelivered = Event::Undelivered {
            request,
            user: USER,
            token: token.clone(),
        };
        if client.fate == Fate::VanishesAtGrant {
            self.totals.vanished += 1;
            self.soon_not_held(token.clone());
            return Some(undelivered);
        }
        assert!(
            until.micros() > self.now,
            "a lease that is over was granted"
        );
        self.totals.grants += 1;
        let holds = self
            .store
            .holder(self.now)
            .is_some_and(|(holder, _)| holder == token);
        if holds || !self.checks.victims.contains(token) {
            self.checks.granted(self.now, token, until.micros());
        }
        match client.fate {
            Fate::Dies => {}
            Fate::Relocks => {
                self.after(client.hold / 2, Ev::Relock(who));
                self.after(client.hold, Ev::Release(who));
            }
            _ => self.after(client.hold, Ev::Release(who)),
        }
        None
    }

    // ── at any time, and at the end ──────────────────────────────────────────────────────────

    /// The lock does not lie free while somebody waits: at most until the gate hears of it, or,
    /// where it never does, until it asks all the same.
    fn is_not_idle(&mut self) {
        if self.checks.waiting() == 0 || self.store.holder(self.now).is_some() {
            self.checks.idle_since = None;
            return;
        }
        let since = *self.checks.idle_since.get_or_insert(self.now);
        let pauses = self.settings.max_delay_ms + self.settings.yield_pause_ms + 100;
        let bound = match self.loss {
            0 => 12 * self.way + 2 * pauses * MILLI,
            _ => (self.settings.ask_at_least_every_ms + 1_000) * MILLI,
        };
        assert!(
            self.now - since <= bound,
            "free since {since} though {} wait",
            self.checks.waiting()
        );
    }

    fn nothing_is_left(&mut self) {
        for (request, sent) in &self.checks.sent {
            assert!(sent.answered || sent.gone, "{request:?} was never answered");
        }
        for (request, (purpose, replies)) in &self.purposes {
            let gone = self.checks.sent.get(request).is_some_and(|sent| sent.gone);
            assert!(
                *replies == 1 || gone,
                "{request:?}, {purpose:?}, was never answered"
            );
        }
        for (number, gate) in self.gates.iter().enumerate() {
            assert!(
                gate.queue.is_none(),
                "gate {number} still knows of the lock: {:?}",
                gate.queue
            );
        }
        let longest = self
            .clients
            .iter()
            .map(|client| client.lease_ms)
            .max()
            .unwrap_or(0);
        let later = self.now + (longest + 10) * MILLI;
        assert!(self.store.holder(later).is_none(), "a key is left");
        self.totals.commands = self.store.commands;
        if self.calm {
            let grants = self.totals.grants;
            let rows = grants / u64::from(self.settings.max_handoffs)
                + self.now / MILLI / self.settings.max_handoff_time_ms;
            let commands = self.store.commands;
            let most = grants + rows + self.gaps + 2;
            assert!(
                commands <= most,
                "{commands} commands for {grants} grants, {rows} rows"
            );
        }
    }
}

fn link(gate: usize) -> LinkId {
    LinkId(gate as u64 + 1)
}

fn time(micros: u64) -> Time {
    Time::from_micros(micros)
}
