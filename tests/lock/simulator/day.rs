//! What kind of day it is: the rules of the gates, the quality of the network, and the disasters,
//! all from one seed.

use lockgate::lock::{Settings, WriteBack};

use super::{
    MILLI,
    random::Random,
    store::{Loss, Trouble},
};

/// A gate that a loss of data concerns has noticed so soon that its connection leads nowhere, in
/// microseconds.
pub(crate) const NOTICED: u64 = 3_000 * MILLI;
/// For so long after the first gate met a store that lost data no lock is taken that is found free, in
/// microseconds.
pub(crate) const GRACE: u64 = NOTICED + LONGEST_RECONNECT + 600 * MILLI;
/// So long after the store is back, whoever could not be written back is an owner no more, in
/// microseconds.
pub(crate) const SETTLED: u64 = GRACE + 5 * MILLI;
/// A gate is connected again so soon after the store is, in microseconds.
pub(crate) const LONGEST_RECONNECT: u64 = 400 * MILLI;

/// When a store crashes at the worst moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// While a store request is on its way.
    StoreRequest,
    /// While a store request is on its way by which a gate looks again at a lock that another gate's
    /// client has by now.
    Look,
    /// When a client was just granted the lock.
    Grant,
}

/// Something goes wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Disaster {
    /// The connection of this gate breaks.
    Break(usize),
    /// The connection of this gate breaks while its next store request is on its way.
    BreakNext(usize),
    /// The connection of this gate goes silent: nothing comes through, and nobody says so.
    Mute(usize),
    /// The store does nothing for so long.
    Hang(u64),
    /// The store is gone for so long, and comes back with less.
    Restart(Loss, u64),
    /// The same, at the next such moment.
    RestartAt(Moment, Loss, u64),
    /// Another store takes its place without a word: connections lead nowhere, new ones to that one.
    Switch(Loss),
    /// The same, at the next such moment.
    SwitchAt(Moment, Loss),
    /// `FLUSHALL`.
    Flush,
    /// This gate is killed.
    Die(usize),
    /// The store refuses for so long.
    Trouble(Trouble, u64),
}

/// What kind of day it is. Times are in microseconds.
pub(crate) struct Day {
    pub(crate) settings: Settings,
    pub(crate) gates: usize,
    /// One gate, clients who do what they should, and nothing goes wrong.
    pub(crate) calm: bool,
    /// Few gates and clients, and one thing at a time goes wrong, at the worst moment.
    pub(crate) small: bool,
    /// The longest way between a gate and the store.
    pub(crate) way: u64,
    /// Pushes lost, in percent.
    pub(crate) loss: u64,
    /// The store tells of changes.
    pub(crate) tells: bool,
    /// A new connection ends the old one in the store before anything else.
    pub(crate) kills: bool,
    /// The gates' clocks run at their own pace.
    pub(crate) drifts: bool,
    /// Leases shorter than the way to the store are part of some days.
    pub(crate) short_leases: bool,
    /// Of a new connection, the queues are told first that the store forgot.
    pub(crate) forgot_first: bool,
    /// Clients that spin are among the clients.
    pub(crate) spins: bool,
    /// Clients that wait in slices are among the clients.
    pub(crate) slices: bool,
    /// Some clients want their grants acknowledged by a replica, or by two.
    pub(crate) replicates: bool,
    /// Users that the clients belong to.
    pub(crate) users: usize,
    /// Clients of a user to whom the store refuses everything, in percent.
    pub(crate) outsiders: u64,
    /// Clients with `SESSION`, in percent.
    pub(crate) sessions: u64,
    /// Clients with `FENCE`, in percent.
    pub(crate) fences: u64,
    /// Where the fence counter stands in the morning.
    pub(crate) counter: u64,
    /// Clients come within this time.
    pub(crate) span: u64,
    /// They hold the lock for at most so long.
    pub(crate) longest_hold: u64,
    pub(crate) disasters: Vec<(u64, Disaster)>,
    /// Connections break.
    pub(crate) breaks: bool,
    /// By how much the clock of a store that comes back is behind, in microseconds.
    pub(crate) behind: u64,
}

impl Day {
    pub(crate) fn new(seed: u64, random: &mut Random) -> Self {
        let calm = seed.is_multiple_of(8);
        let troubled = !calm && random.percent(75);
        let small = troubled && random.percent(50);
        let gates = match (calm, small) {
            (true, _) => 1,
            (_, true) => 1 + random.below(3),
            _ => 1 + random.below(4),
        };
        let mut day = Self {
            settings: settings(random),
            gates,
            calm,
            small,
            way: match small {
                true => random.one_of(&[2_000, 20_000]),
                false => random.one_of(&[50, 300, 2_000, 20_000]),
            },
            loss: match calm || small {
                true => 0,
                false => random.one_of(&[0, 0, 0, 20, 100]),
            },
            tells: calm || small || random.percent(90),
            kills: random.percent(70),
            drifts: !calm && random.percent(25),
            short_leases: !calm && !troubled && random.percent(40),
            forgot_first: random.percent(50),
            spins: matches!(seed % 8, 1 | 3),
            slices: seed % 8 == 5,
            replicates: seed % 16 == 6,
            users: 1 + random.below(3),
            outsiders: match calm {
                true => 0,
                false => random.one_of(&[0, 0, 30]),
            },
            sessions: random.one_of(&[0, 10, 60]),
            fences: random.one_of(&[0, 30, 100]),
            counter: 0,
            span: match (troubled, small) {
                (false, _) => random.one_of(&[5, 100, 1_000]) * MILLI,
                (_, true) => random.one_of(&[100, 500, 1_500]) * MILLI,
                _ => random.one_of(&[100, 1_000, 4_000]) * MILLI,
            },
            longest_hold: match (troubled, small) {
                (false, _) => 100 * MILLI,
                (_, true) => random.one_of(&[100, 3_000, 6_000]) * MILLI,
                _ => random.one_of(&[50, 1_000, 4_000]) * MILLI,
            },
            disasters: Vec::new(),
            breaks: false,
            behind: 0,
        };
        if troubled {
            day.disasters = disasters(random, gates, day.span, small);
            let breaks = |disaster: &Disaster| matches!(disaster, Disaster::BreakNext(_));
            let refuses = |disaster: &Disaster| matches!(disaster, Disaster::Trouble(..));
            if small && day.disasters.iter().any(|(_, disaster)| refuses(disaster)) {
                day.sessions = 60;
            }
            let lacks = |disaster: &Disaster| {
                matches!(disaster, Disaster::Trouble(Trouble::Replicas(_), _))
            };
            day.replicates |= day.disasters.iter().any(|(_, disaster)| lacks(disaster));
            if day.replicates {
                for _ in 0..random.between(1, 3) {
                    let trouble = random.one_of(&[Trouble::Replicas(0), Trouble::Replicas(1)]);
                    let long = random.between(5, 1_500) * MILLI;
                    let at = random.between(1, day.span);
                    day.disasters.push((at, Disaster::Trouble(trouble, long)));
                }
            }
            day.breaks = day.disasters.iter().any(|(_, disaster)| breaks(disaster));
        }
        let forgets = |disaster: &Disaster| {
            matches!(
                disaster,
                Disaster::Flush
                    | Disaster::Restart(..)
                    | Disaster::RestartAt(..)
                    | Disaster::Switch(..)
                    | Disaster::SwitchAt(..)
            )
        };
        let only_forgets = !day.disasters.is_empty()
            && (day.disasters.iter()).all(|(_, it)| forgets(it) && !matches!(it, Disaster::Flush));
        // Without the grace nothing is promised.
        let keeps_grace = day.settings.write_back != WriteBack::Off;
        if only_forgets && keeps_grace && random.percent(40) {
            day.behind = random.between(1, 60_000) * MILLI;
        }
        if !day.disasters.iter().any(|(_, disaster)| forgets(disaster)) && random.percent(30) {
            // The clock was set back once: only the counter makes fences rise.
            day.counter = 1 << 50;
        }
        day
    }
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        max_handovers: u32::try_from(random.one_of(&[2, 5, 16, 64])).unwrap(),
        max_handover_time_ms: random.one_of(&[50, 500, 5_000]),
        yield_pause_ms: random.one_of(&[0, 5, 20]),
        reconnect_grace_ms: random.one_of(&[0, 100, 2_000]),
        max_delay_ms: random.one_of(&[0, 15]),
        ask_at_least_every_ms: 60_000,
        poll_every_ms: 100,
        answer_within_ms: 2_000,
        write_back: random.one_of(&[
            WriteBack::All,
            WriteBack::All,
            WriteBack::All,
            WriteBack::All,
            WriteBack::All,
            WriteBack::Session,
            WriteBack::Off,
        ]),
        max_waiters: 1_000,
        max_kept_by_connection: 1,
        min_session_ms: 1,
    }
}

/// One or a few kinds a day, so that what one of them does is not hidden by the others.
fn disasters(random: &mut Random, gates: usize, span: u64, small: bool) -> Vec<(u64, Disaster)> {
    let kind = random.between(1, 10);
    let (breaks, hangs, losses, deaths, others) = match kind {
        1..=3 => (random.between(1, if small { 3 } else { 8 }), 0, 0, 0, 0),
        4..=7 => (0, 0, random.between(1, 2), 0, 0),
        8 if small => (0, 0, 0, 0, random.between(1, 2)),
        8 => (0, 1, 0, 0, random.between(0, 1)),
        9 if small => (0, 0, 1, 0, 0),
        10 if small => (random.between(1, 3), 0, 0, 0, 0),
        9 => (random.between(0, 2), 0, 0, random.between(1, 2), 1),
        _ => (
            random.between(0, 4),
            random.between(0, 1),
            random.between(0, 2),
            random.between(0, 1),
            random.between(0, 2),
        ),
    };
    let mut disasters = Vec::new();
    let mut add = |random: &mut Random, disaster| {
        let at = random.between(1, span + span / 5 + 100 * MILLI);
        disasters.push((at, disaster));
    };
    for _ in 0..breaks {
        let gate = random.below(gates);
        let disaster = match random.between(1, 10) {
            1..=2 => Disaster::Break(gate),
            3..=8 => Disaster::BreakNext(gate),
            _ => Disaster::Mute(gate),
        };
        add(random, disaster);
    }
    for _ in 0..hangs {
        let long = random.one_of(&[100, 1_000, 3_000, 8_000]);
        let disaster = Disaster::Hang(random.between(long / 2, long) * MILLI);
        add(random, disaster);
    }
    for _ in 0..losses {
        let back = random.one_of(&[100, 200, 500, 2_000]);
        let back = random.between(1, back) * MILLI;
        let loss = match random.between(1, 10) {
            1..=4 => Loss::All,
            5..=9 => Loss::Latest(back),
            _ => Loss::Nothing,
        };
        let longest = random.one_of(&[50, 50, 300, 1_200]);
        let span = random.between(5, longest) * MILLI;
        let moment = random.one_of(&[
            Moment::StoreRequest,
            Moment::Look,
            Moment::Grant,
            Moment::Grant,
        ]);
        if random.percent(30) {
            let disaster = match random.percent(40) {
                true => Disaster::Switch(loss),
                false => Disaster::SwitchAt(moment, loss),
            };
            add(random, disaster);
            continue;
        }
        let disaster = match random.percent(if small { 20 } else { 50 }) {
            true => Disaster::Restart(loss, span),
            // Then a replica may still have the lock with the one before.
            false if moment == Moment::Grant => {
                Disaster::RestartAt(moment, Loss::Latest(back), span)
            }
            false => Disaster::RestartAt(moment, loss, span),
        };
        add(random, disaster);
    }
    for _ in 0..deaths {
        let disaster = Disaster::Die(random.below(gates));
        add(random, disaster);
    }
    for _ in 0..others {
        let trouble = random.one_of(&[
            Trouble::Loading,
            Trouble::ReadOnly,
            Trouble::NoPermission,
            Trouble::OutOfMemory,
            Trouble::Replicas(0),
            Trouble::Replicas(1),
        ]);
        let long = random.between(5, 1_500) * MILLI;
        let disaster = match random.percent(25) {
            true => Disaster::Flush,
            false => Disaster::Trouble(trouble, long),
        };
        add(random, disaster);
    }
    disasters
}
