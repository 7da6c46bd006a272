//! Breaks something every second. What comes in which order, and for how long, follows from the seed;
//! the moments do not quite, since a fault waits until what it is to break is whole again.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    history::{Incident, Micros, What, now},
    random::Random,
    support::{Lockgate, Proxy, RedisServer, Value},
    world::World,
};

/// From one fault to the next.
const PACE: Duration = Duration::from_secs(1);

/// How long everything is left alone around some of the faults: longer than any lease, and than a
/// gate takes to find everything as it was.
const CALM: Duration = Duration::from_secs(4);

/// What is broken.
pub(crate) struct Machinery {
    pub(crate) redis: RedisServer,
    pub(crate) links: [Proxy; 2],
    pub(crate) gates: [Lockgate; 2],
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    RedisForgets {
        down_ms: u64,
        in_calm: bool,
    },
    RedisRestarts {
        down_ms: u64,
    },
    RedisStops {
        ms: u64,
    },
    ClientsKilled,
    ScriptsFlushed,
    DataFlushed,
    NoMemory {
        ms: u64,
    },
    LinkCut(usize),
    LinkRefuses(usize, u64),
    LinkSlow(usize, u64, Duration),
    RepliesDropped(usize, u64),
    LinkHalfOpen {
        link: usize,
        ms: u64,
        delivers_late: bool,
    },
    GateKilled(usize, u64),
    GateStopped(usize, u64),
}

#[derive(Clone, Copy, PartialEq)]
enum Target {
    Redis,
    Link(usize),
    Gate(usize),
}

/// A fault that is not over yet.
struct Lasting {
    fault: Fault,
    from: Micros,
    ends: Instant,
}

pub(crate) struct Faults<'a> {
    world: &'a World,
    machinery: &'a mut Machinery,
    random: Random,
    lasting: Vec<Lasting>,
}

impl Fault {
    fn any(random: &mut Random) -> Self {
        let one = random.one_of(&[0, 1]);
        let ms = |random: &mut Random, most| random.between(most / 10, most);
        match random.between(0, 99) {
            0..10 => Self::RedisForgets {
                down_ms: random.between(0, 500),
                in_calm: random.percent(40),
            },
            10..18 => Self::RedisRestarts {
                down_ms: random.between(0, 500),
            },
            18..24 => Self::RedisStops { ms: 300 },
            24..29 => Self::RedisStops {
                ms: random.between(3_100, 4_000),
            },
            29..36 => Self::ClientsKilled,
            36..41 => Self::ScriptsFlushed,
            41..46 => Self::DataFlushed,
            46..51 => Self::NoMemory {
                ms: ms(random, 500),
            },
            51..58 => Self::LinkCut(one),
            58..63 => Self::LinkRefuses(one, ms(random, 2_000)),
            63..69 => Self::LinkSlow(
                one,
                ms(random, 3_000),
                Duration::from_millis(random.between(5, 300)),
            ),
            69..77 => Self::RepliesDropped(one, ms(random, 1_000)),
            77..86 => Self::LinkHalfOpen {
                link: one,
                ms: ms(random, 4_000),
                delivers_late: random.percent(50),
            },
            86..93 => Self::GateKilled(one, ms(random, 1_000)),
            _ => Self::GateStopped(one, ms(random, 4_000)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::RedisForgets { .. } => "Redis killed, restarted empty",
            Self::RedisRestarts { .. } => "Redis killed, restarted with its data",
            Self::RedisStops { ms: ..1_000 } => "Redis stopped for a moment",
            Self::RedisStops { .. } => "Redis stopped for longer than a lease",
            Self::ClientsKilled => "CLIENT KILL TYPE normal",
            Self::ScriptsFlushed => "SCRIPT FLUSH",
            Self::DataFlushed => "FLUSHALL",
            Self::NoMemory { .. } => "maxmemory 1 for a moment",
            Self::LinkCut(_) => "link cut",
            Self::LinkRefuses(..) => "link cut, and refused for a while",
            Self::LinkSlow(..) => "link slow for a while",
            Self::RepliesDropped(..) => "replies dropped, then link cut",
            Self::LinkHalfOpen {
                delivers_late: true,
                ..
            } => "link half-open, then delivers late",
            Self::LinkHalfOpen { .. } => "link half-open, then cut",
            Self::GateKilled(..) => "gate killed and restarted",
            Self::GateStopped(..) => "gate stopped for a while",
        }
    }

    fn target(self) -> Target {
        match self {
            Self::RedisForgets { .. }
            | Self::RedisRestarts { .. }
            | Self::RedisStops { .. }
            | Self::ClientsKilled
            | Self::ScriptsFlushed
            | Self::DataFlushed
            | Self::NoMemory { .. } => Target::Redis,
            Self::LinkCut(link)
            | Self::LinkRefuses(link, _)
            | Self::LinkSlow(link, ..)
            | Self::RepliesDropped(link, _)
            | Self::LinkHalfOpen { link, .. } => Target::Link(link),
            Self::GateKilled(gate, _) | Self::GateStopped(gate, _) => Target::Gate(gate),
        }
    }

    fn what(self) -> What {
        match self {
            Self::RedisForgets { .. } => What::Forgot,
            Self::RedisRestarts { .. } => What::Restarted,
            Self::RedisStops { .. } => What::RedisStopped,
            Self::DataFlushed => What::Flushed,
            Self::ClientsKilled | Self::ScriptsFlushed | Self::NoMemory { .. } => What::Disturbed,
            Self::LinkCut(link)
            | Self::LinkRefuses(link, _)
            | Self::LinkSlow(link, ..)
            | Self::RepliesDropped(link, _)
            | Self::LinkHalfOpen { link, .. } => What::LinkBroken(link),
            Self::GateKilled(gate, _) => What::GateKilled(gate),
            Self::GateStopped(gate, _) => What::GateStopped(gate),
        }
    }

    fn lasts(self) -> Duration {
        Duration::from_millis(match self {
            Self::RedisForgets { down_ms, .. } | Self::RedisRestarts { down_ms } => down_ms,
            Self::RedisStops { ms }
            | Self::NoMemory { ms }
            | Self::LinkRefuses(_, ms)
            | Self::LinkSlow(_, ms, _)
            | Self::RepliesDropped(_, ms)
            | Self::LinkHalfOpen { ms, .. }
            | Self::GateKilled(_, ms)
            | Self::GateStopped(_, ms) => ms,
            Self::ClientsKilled | Self::ScriptsFlushed | Self::DataFlushed | Self::LinkCut(_) => 0,
        })
    }

    fn wants_calm(self) -> bool {
        matches!(self, Self::RedisForgets { in_calm: true, .. })
    }
}

impl<'a> Faults<'a> {
    pub(crate) fn new(world: &'a World, machinery: &'a mut Machinery, seed: u64) -> Self {
        Self {
            world,
            machinery,
            random: Random::new(seed),
            lasting: Vec::new(),
        }
    }

    /// Breaks things for this long; afterwards everything is whole.
    pub(crate) fn happen_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let mut next = Instant::now() + PACE;
        while next < end {
            let fault = Fault::any(&mut self.random);
            if fault.wants_calm() {
                next += CALM;
            }
            self.wait_until(next);
            while self
                .lasting
                .iter()
                .any(|l| l.fault.target() == fault.target())
            {
                self.end_the_next();
            }
            self.begin(fault);
            next = Instant::now().max(next) + PACE;
            if fault.wants_calm() {
                next += CALM;
            }
        }
        while !self.lasting.is_empty() {
            self.end_the_next();
        }
    }

    /// Ends what ends until then.
    fn wait_until(&mut self, moment: Instant) {
        while self.lasting.iter().any(|lasting| lasting.ends < moment) {
            self.end_the_next();
        }
        thread::sleep(moment.saturating_duration_since(Instant::now()));
    }

    fn end_the_next(&mut self) {
        let next = (0..self.lasting.len()).min_by_key(|&i| self.lasting[i].ends);
        let lasting = self.lasting.swap_remove(next.expect("something lasts"));
        thread::sleep(lasting.ends.saturating_duration_since(Instant::now()));
        self.end(&lasting);
    }

    fn begin(&mut self, fault: Fault) {
        self.world.tally.fault(fault.name());
        let from = now();
        let Machinery {
            redis,
            links,
            gates,
        } = &mut *self.machinery;
        match fault {
            Fault::RedisForgets { .. } | Fault::RedisRestarts { .. } => redis.kill(),
            Fault::RedisStops { .. } => redis.stop(),
            Fault::ClientsKilled => tell(redis, "CLIENT KILL TYPE normal"),
            Fault::ScriptsFlushed => tell(redis, "SCRIPT FLUSH"),
            Fault::DataFlushed => tell(redis, "FLUSHALL"),
            Fault::NoMemory { .. } => tell(redis, "CONFIG SET maxmemory 1"),
            Fault::LinkCut(link) => links[link].cut(),
            Fault::LinkRefuses(link, _) => {
                links[link].refuse(true);
                links[link].cut();
            }
            Fault::LinkSlow(link, _, delay) => links[link].delay(delay),
            Fault::RepliesDropped(link, _) => links[link].drop_replies(true),
            Fault::LinkHalfOpen { link, .. } => links[link].half_open(true),
            Fault::GateKilled(gate, _) => gates[gate].kill(),
            Fault::GateStopped(gate, _) => gates[gate].stop(),
        }
        let ends = Instant::now() + fault.lasts();
        let lasting = Lasting { fault, from, ends };
        if fault.lasts().is_zero() {
            self.end(&lasting);
        } else {
            self.lasting.push(lasting);
        }
    }

    fn end(&mut self, lasting: &Lasting) {
        let Machinery {
            redis,
            links,
            gates,
        } = &mut *self.machinery;
        match lasting.fault {
            Fault::RedisForgets { .. } => {
                redis.forget();
                redis.restart();
            }
            Fault::RedisRestarts { .. } => redis.restart(),
            Fault::RedisStops { .. } => redis.go_on(),
            Fault::NoMemory { .. } => tell(redis, "CONFIG SET maxmemory 0"),
            Fault::LinkRefuses(link, _) => links[link].refuse(false),
            Fault::LinkSlow(link, ..) => links[link].delay(Duration::ZERO),
            Fault::RepliesDropped(link, _) => {
                links[link].cut();
                links[link].drop_replies(false);
            }
            Fault::LinkHalfOpen {
                link,
                delivers_late,
                ..
            } => {
                if !delivers_late {
                    links[link].cut();
                }
                links[link].half_open(false);
            }
            Fault::GateKilled(gate, _) => gates[gate].restart(),
            Fault::GateStopped(gate, _) => gates[gate].go_on(),
            Fault::ClientsKilled
            | Fault::ScriptsFlushed
            | Fault::DataFlushed
            | Fault::LinkCut(_) => {}
        }
        let incident = Incident {
            what: lasting.fault.what(),
            from: lasting.from,
            to: now(),
        };
        self.world
            .chronicle
            .write(|history| history.incidents.push(incident));
    }
}

fn tell(redis: &RedisServer, command: &str) {
    let reply = redis.client().say(command);
    assert!(!matches!(reply, Value::Error(_)), "{command}: {reply:?}");
}
