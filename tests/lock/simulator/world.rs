//! One day: the clock, what happens next, and what must hold at any time and at the end.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use lockgate::lock::{LinkId, RequestId, StoreReply, StoreRequest, StoreRequestId, Token};

use super::{
    MILLI, SECOND,
    checks::Checks,
    clients::{Client, LONGEST_LEASE_MS, SESSION_ENDS_WITHIN},
    day::{Day, Disaster, Moment, SETTLED},
    disasters::Lost,
    gates::Gate,
    nags::Nags,
    network::{Link, Message},
    random::Random,
    spinners::Spinners,
    store::{Loss, Store},
};

/// More than this many events in a day are a livelock.
const MOST_EVENTS: usize = 200_000;

/// What happened, over all days.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub(crate) grants: u64,
    pub(crate) sessions: u64,
    pub(crate) fences: u64,
    pub(crate) commands: u64,
    pub(crate) vanished: u64,
    pub(crate) retries: u64,
    /// Waits that were not the last ones of their clients.
    pub(crate) slices: u64,
    pub(crate) pushes_lost: u64,
    pub(crate) sabotages: u64,
    pub(crate) expired: u64,
    pub(crate) breaks: u64,
    pub(crate) late: u64,
    pub(crate) losses: u64,
    pub(crate) deaths: u64,
    pub(crate) not_yet: u64,
    pub(crate) not_sent: u64,
    pub(crate) anew: u64,
    pub(crate) written_back: u64,
    pub(crate) told_lost: u64,
    /// Dead tokens that came back and were deleted.
    pub(crate) dead_deleted: u64,
    /// Stores that took the place of another one without a word.
    pub(crate) switches: u64,
    /// Owners of whom nothing can be promised after a loss of data.
    pub(crate) excused: u64,
    /// Answers to clients who may not know of the lock.
    pub(crate) outsiders: u64,
    /// Attempts of clients that spin, those that were refused by gates, and those that were granted the lock.
    pub(crate) attempts: u64,
    pub(crate) refused: u64,
    pub(crate) absorbed: u64,
    /// Leases that were not extended for want of replicas.
    pub(crate) unextended: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, day: &Self) {
        self.grants += day.grants;
        self.sessions += day.sessions;
        self.fences += day.fences;
        self.commands += day.commands;
        self.vanished += day.vanished;
        self.retries += day.retries;
        self.slices += day.slices;
        self.pushes_lost += day.pushes_lost;
        self.sabotages += day.sabotages;
        self.expired += day.expired;
        self.breaks += day.breaks;
        self.late += day.late;
        self.losses += day.losses;
        self.deaths += day.deaths;
        self.not_yet += day.not_yet;
        self.not_sent += day.not_sent;
        self.anew += day.anew;
        self.written_back += day.written_back;
        self.told_lost += day.told_lost;
        self.dead_deleted += day.dead_deleted;
        self.switches += day.switches;
        self.excused += day.excused;
        self.outsiders += day.outsiders;
        self.attempts += day.attempts;
        self.refused += day.refused;
        self.absorbed += day.absorbed;
        self.unextended += day.unextended;
    }
}

/// A token that nobody counts on any more.
#[derive(Debug, Clone)]
pub(crate) struct Over {
    token: Token,
    /// What went wrong from here on may leave it to its lease.
    since: u64,
    expires_latest: u64,
    lease: u64,
    /// It may be in use elsewhere: the client named it.
    explicit: bool,
    /// Its own client gave it up, at the gate that granted it.
    given_up: bool,
}

/// What happens.
#[derive(Debug, Clone)]
pub(crate) enum Ev {
    Arrive(usize),
    Join(usize),
    Vanish(usize, RequestId),
    Stop(usize, RequestId),
    ComeBack(usize),
    Relock(usize),
    Release(usize),
    /// The connection of a `SESSION` ends, by the client or by the gate.
    Close(usize, RequestId, bool),
    AtStore(Message),
    Taken(LinkId, StoreRequestId),
    Answered(LinkId, StoreRequestId, StoreReply, u64),
    /// With whether everything was flushed.
    Push(LinkId, bool),
    Timeout(LinkId, StoreRequestId),
    /// A client sends pending operations that are in vain.
    Nag(usize),
    /// A client that spins makes its next attempt.
    Attempt(usize),
    /// It vanishes while this attempt is parked.
    Abandon(usize, RequestId),
    /// This attempt is not to be parked any longer.
    NoPark(usize, RequestId),
    /// It releases the token of a refused attempt.
    CleanUp(usize),
    /// It gives the lock up.
    GiveUp(usize),
    /// Its `DEL` arrives at the store, with the end of the lease that it counted on, and the sabotages until then.
    PassDelete(usize, u64, u64),
    /// A store request of this gate has waited long for a connection.
    NotSent(usize, StoreRequestId),
    Connect(usize, u64),
    /// A silent connection does not answer the gate's `PING`.
    Silent(LinkId),
    Wake(usize),
    /// The store comes across a key whose time is over.
    Sweep(u64),
    Disaster(Disaster),
    GoesOn,
    Back(Loss, u64),
    TroubleOver(u64),
    Return(usize),
    /// Nobody must hold this token any more.
    NotHeld(Over),
    /// The gate closed this session then, and its lock is left to its lease.
    StillHeld(Token, u64),
    WrittenBack(u64),
    GraceOver(u64),
    NoDead(u64),
}

pub(crate) struct World {
    pub(super) random: Random,
    tells: bool,
    pub(super) now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Ev>,
    pub(super) count: u64,
    pub(super) day: Day,
    pub(super) gates: Vec<Gate>,
    pub(super) links: Vec<Link>,
    pub(super) store: Store,
    /// The store executes nothing until then.
    pub(super) hangs_until: Option<u64>,
    pub(super) is_down: bool,
    /// The store crashes at such a moment, like this; or with any store request, from the time given on.
    pub(super) crashes_at: Option<(Moment, Disaster, u64)>,
    /// The latest loss of data.
    pub(super) loss: Option<Lost>,
    pub(super) troubles: u64,
    /// When the store began to refuse last, or ceased to.
    pub(super) trouble_at: Option<u64>,
    /// When something was wrong last.
    pub(super) disturbed_at: Option<u64>,
    /// The gates of the last two grants, the latest last.
    pub(super) granted_at: [Option<usize>; 2],
    /// The last grant that reached nobody: its gate, when that was, and when its lease ends.
    pub(super) undelivered: Option<(Token, usize, u64, u64)>,
    pub(super) clients: Vec<Client>,
    pub(super) spinners: Spinners,
    pub(super) nags: Nags,
    pub(super) checks: Checks,
    /// Releases while nobody waited: they and the next grant are two commands.
    pub(super) gaps: u64,
    /// Renewals that the sessions of a calm day need.
    pub(super) renewals: u64,
    pub(crate) totals: Totals,
}

impl World {
    pub(crate) fn new(seed: u64, tells: bool) -> Self {
        let mut random = Random::new(seed);
        let day = Day::new(seed, &mut random);
        let mut world = Self {
            random,
            tells,
            now: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            count: 0,
            gates: Vec::new(),
            links: Vec::new(),
            store: Store::new(day.tells, day.counter),
            hangs_until: None,
            is_down: false,
            crashes_at: None,
            loss: None,
            troubles: 0,
            trouble_at: None,
            disturbed_at: None,
            granted_at: [None; 2],
            undelivered: None,
            clients: Vec::new(),
            spinners: Spinners::default(),
            nags: Nags::default(),
            checks: Checks::default(),
            gaps: 0,
            renewals: 0,
            totals: Totals::default(),
            day,
        };
        world.open_gates();
        world.clients();
        world.spinners();
        world.nags(seed);
        for (at, disaster) in std::mem::take(&mut world.day.disasters) {
            world.at(at, Ev::Disaster(disaster));
        }
        world
    }

    pub(super) fn at(&mut self, time: u64, event: Ev) {
        self.count += 1;
        self.events.push(Reverse((time.max(self.now), self.count)));
        self.what.insert(self.count, event);
    }

    pub(super) fn after(&mut self, micros: u64, event: Ev) {
        self.at(self.now + micros, event);
    }

    pub(super) fn tell(&self, text: impl FnOnce() -> String) {
        if self.tells {
            println!("{:>10.3} ms  {}", self.now as f64 / 1e3, text());
        }
    }

    pub(super) fn delay(&mut self) -> u64 {
        self.random.between(20, self.day.way)
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
            self.watch_key();
            self.is_not_idle();
            let holder = self.store.holder(time).map(|(holder, _)| holder);
            self.checks.sessions_are_told(time, holder);
            self.happen(event);
            events += 1;
            assert!(events < MOST_EVENTS, "it never ends");
        }
        self.nothing_is_left();
    }

    fn happen(&mut self, event: Ev) {
        match event {
            Ev::Arrive(who) => self.arrive(who),
            Ev::Join(who) => self.join(who),
            Ev::Vanish(who, request) => self.vanish(who, request),
            Ev::Stop(who, request) => self.stop_waiting(who, request),
            Ev::ComeBack(who) => self.lock(who),
            Ev::Relock(who) => self.relock(who),
            Ev::Release(who) => self.release(who),
            Ev::Close(who, request, by_client) => self.close(who, request, by_client),
            Ev::AtStore(message) => self.at_store(message),
            Ev::Answered(link, id, answer, version) => {
                self.answer_arrives(link, id, answer, version);
            }
            Ev::Taken(link, id) => self.is_taken(link, id),
            Ev::Push(link, flushed) => self.push_arrives(link, flushed),
            Ev::Timeout(link, id) => self.timeout(link, id),
            Ev::Nag(number) => self.nag(number),
            Ev::Attempt(who) => self.attempt(who),
            Ev::Abandon(who, request) => self.abandon(who, request),
            Ev::NoPark(who, request) => self.not_parked(who, request),
            Ev::CleanUp(who) => self.clean_up(who),
            Ev::GiveUp(who) => self.give_up(who),
            Ev::PassDelete(who, until, sabotages) => self.pass_delete(who, until, sabotages),
            Ev::NotSent(gate, id) => self.not_sent(gate, id),
            Ev::Connect(gate, attempt) => self.connect(gate, attempt),
            Ev::Silent(link) => self.is_silent(link),
            Ev::Wake(gate) => self.wake(gate),
            Ev::Sweep(version) => {
                if self.store.version == version && !self.is_down {
                    self.store.expire(self.now);
                    self.stored();
                }
            }
            Ev::Disaster(disaster) => self.disaster(disaster),
            Ev::GoesOn => self.goes_on(),
            Ev::Back(loss, crashed_at) => self.back(loss, crashed_at),
            Ev::TroubleOver(number) => self.trouble_over(number),
            Ev::Return(gate) => self.returns(gate),
            Ev::NotHeld(over) => self.is_not_held(over),
            Ev::StillHeld(token, since) => self.is_still_held(&token, since),
            Ev::WrittenBack(number) => self.is_written_back(number),
            Ev::GraceOver(number) => self.grace_over(number),
            Ev::NoDead(number) => self.no_dead_token_holds(number),
        }
    }

    // ── at any time, and at the end ──────────────────────────────────────────────────────────

    /// Soon nobody holds this token any more. Long enough for what is on its way, its taking back,
    /// and what the gate does before that.
    pub(super) fn soon_not_held(&mut self, client: &Client, since: u64, given_up: bool) {
        let (token, lease_ms) = (client.token.clone(), client.lease_ms);
        // The client of a session was told its token, and may go on with it elsewhere when its connection ends.
        let known = client.explicit || client.session;
        let explicit = known && (client.came_back || !given_up);
        // What was granted while the way was disturbed may be another gate's grant, too, where the
        // client named its token.
        let asked_at = self.checks.asked_at.get(&token).copied();
        let since = asked_at.filter(|_| explicit).unwrap_or(since);
        let over = Over {
            token,
            since,
            expires_latest: self.now,
            lease: lease_ms * MILLI,
            explicit,
            given_up,
        };
        self.after(8 * self.day.way + 20 * MILLI, Ev::NotHeld(over));
    }

    /// Where something went wrong meanwhile, it may last until the lease is over.
    fn is_not_held(&mut self, over: Over) {
        let asked_at = self.checks.asked_at.get(&over.token);
        let came_back = asked_at.is_some_and(|at| *at > over.since);
        let is_held = self.store.is_held_by(self.now, &over.token);
        if came_back || self.checks.zombies.contains(&over.token) || !is_held {
            return;
        }
        // A store that said "not now" is asked again after a pause.
        let disturbed = self
            .disturbed_at
            .filter(|at| at + 150 * MILLI >= over.since);
        let rest = match self.is_left_to_its_lease(&over) {
            // A session goes on until its connection ends.
            true => over.lease + SESSION_ENDS_WITHIN + 100 * MILLI + 8 * self.day.way,
            false => 250 * MILLI + 12 * self.day.way,
        };
        let excused_until = disturbed.map_or(0, |at| at.max(over.expires_latest) + rest);
        let is_wrong = (0..self.gates.len()).any(|gate| !self.is_well(gate));
        if is_wrong || excused_until > self.now {
            let later = excused_until.max(self.now + SECOND);
            return self.at(later, Ev::NotHeld(over));
        }
        panic!(
            "{} holds the lock for nobody",
            super::checks::show(&over.token)
        );
    }

    /// A token that a client named may be in use elsewhere; a gate that died, a store that refused,
    /// forgot, or executed something late, leave locks behind.
    fn is_left_to_its_lease(&self, over: &Over) -> bool {
        let since = |at: Option<u64>| at.is_some_and(|at| at >= over.since);
        let written_back = self.loss.as_ref().map(|lost| lost.back_at + SETTLED);
        let is_extended = self.checks.extended_elsewhere.contains(&over.token);
        over.explicit
            || !self.day.kills
            || since(self.trouble_at)
            || (since(written_back) && (!over.given_up || is_extended))
            || self.gates.iter().any(|gate| since(gate.died_at))
    }

    /// The lock does not lie free while somebody waits: at most until the gate hears of it, or,
    /// where it never does, until it asks all the same.
    fn is_not_idle(&mut self) {
        let free = self.store.holder(self.now).is_none();
        let settings = &self.day.settings;
        let pauses = settings.max_delay_ms + settings.yield_pause_ms + 130;
        let bound = match self.day.loss {
            0 => 12 * self.day.way + 2 * pauses * MILLI,
            _ => (settings.ask_at_least_every_ms + 1_000) * MILLI,
        };
        for gate in 0..self.gates.len() {
            let well = self.is_well(gate) && self.now >= self.gates[gate].port.grace_until;
            if !free || !well || !self.checks.waits_at(gate) {
                self.gates[gate].idle_since = None;
                continue;
            }
            let since = *self.gates[gate].idle_since.get_or_insert(self.now);
            assert!(
                self.now - since <= bound,
                "free since {since} though somebody waits at gate {gate}: {:?}",
                self.gates[gate].queue
            );
        }
    }

    /// A gate asks when something happened, and then not for a long while.
    pub(super) fn asks(&mut self, gate: usize, store_request: &StoreRequest) {
        let is_held = self.store.holder(self.now).is_some();
        let it = &mut self.gates[gate];
        let state = (self.store.version, is_held, it.causes, it.disturbed_at);
        if it.quiet.2 != state {
            it.quiet = (self.now, 0, state);
        }
        if !matches!(
            store_request,
            StoreRequest::Acquire { .. } | StoreRequest::Check { .. }
        ) {
            return;
        }
        it.quiet.1 += 1;
        let (since, asked, _) = it.quiet;
        let rare = self.day.settings.ask_at_least_every_ms * MILLI;
        let most = 5 + (self.now - since) / rare;
        // Then each user asks anew, and dead tokens are looked for.
        let in_grace = self.now < self.store.mark.1 + SECOND;
        assert!(
            asked <= most || in_grace || !self.day.tells || !self.is_well(gate),
            "gate {gate} asked {asked} times since {since}, though nothing happened"
        );
    }

    fn nothing_is_left(&mut self) {
        for (request, sent) in &self.checks.sent {
            assert!(
                sent.answered || sent.gone,
                "{request:?}, {:?}, was never answered",
                sent.purpose
            );
        }
        for (number, gate) in self.gates.iter().enumerate() {
            assert!(
                gate.queue.is_none(),
                "gate {number} still knows of the lock: {:?}",
                gate.queue
            );
        }
        let later = self.now + (LONGEST_LEASE_MS + 10) * MILLI;
        assert!(self.store.holder(later).is_none(), "a key is left");
        self.totals.commands = self.store.commands;
        // From user to user the lock goes in two steps.
        if self.day.calm && self.day.users == 1 {
            let settings = &self.day.settings;
            let grants = self.totals.grants;
            let rows = grants / u64::from(settings.max_handovers)
                + self.now / MILLI / settings.max_handover_time_ms;
            let commands = self.store.commands;
            let most = grants + rows + self.gaps + self.renewals + 2;
            assert!(
                commands <= most,
                "{commands} commands for {grants} grants, {rows} rows"
            );
        }
    }
}
