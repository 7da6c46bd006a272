//! Sentinels move the master, planned and after crashes, under a hundred clients of two lockgates.
//!
//!     FAILOVERS=100 cargo test --release --test failover -- --nocapture --test-threads 1
//!
//! is the long run: so many planned failovers and so many crashes, half of which lose the master's last
//! second; it takes about half an hour. Without the variable there are [`SHORT`] of each, in about a minute.
//!
//! What must hold, by [`contention::checks`]: no lock has two owners, no valid lease is lost, no waiter waits
//! for a free lock, and fences rise. Half of the clients send ordinary commands, too, and no connection ends that is
//! owed no reply to one. The run measures the times from the first `+switch-master` of any Sentinel to a
//! handover and to the first grant of a lock that is free, and what the old master is told after a promotion.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test that cannot go on says so by panicking"
)]

#[path = "../contention/mod.rs"]
mod contention;
#[allow(dead_code, reason = "the simulator uses all of it")]
#[path = "../lock/simulator/random.rs"]
mod random;
#[path = "../support/mod.rs"]
mod support;

mod figures;
mod probes;
mod split;

use std::{
    env, thread,
    time::{Duration, Instant},
};

use contention::{
    LOCKS, contend,
    history::{Loss, World},
    is_right, look,
};
use figures::Figures;
use probes::Probes;
use random::Random;
use support::{Failover, Lockgate, Machine, Sentinels, free_address};

const GATES: usize = 2;

/// Failovers of each kind, unless `FAILOVERS` says otherwise.
const SHORT: usize = 3;

/// By when every lockgate must grant free locks again.
const SERVED: Duration = Duration::from_secs(20);

/// How long a free lock may take to get to the next, beside the grace.
const AT_ONCE: Duration = Duration::from_millis(300);

/// From the last sign of a master to the next one, at most.
const SILENCE: Duration = Duration::from_secs(3);

/// How often a master that died comes back alone, as one that takes writes.
const BARE: usize = 10;

/// So long after the last failover the next one may begin.
const CALM_MS: (u64, u64) = (500, 1_500);

/// How the lockgates are set.
struct Settings<'a> {
    name: &'static str,
    environment: &'a [(&'a str, &'a str)],
    grace: Duration,
    /// How long no lock may be handed over.
    before_handover: Duration,
}

/// A lockgate notices within `ping` + `timeout` that Redis is gone, and the grace is as short as that allows.
const USUAL: Settings<'_> = Settings {
    name: "write-back",
    environment: &support::SHORT_GRACE,
    grace: Duration::from_millis(1_300),
    before_handover: Duration::ZERO,
};

/// A replica acknowledges each grant.
const ACKNOWLEDGED: Settings<'_> = Settings {
    name: "lock.replicas = 1",
    environment: &[
        ("LOCKGATE_UPSTREAM_CONNECT_TIMEOUT", "300ms"),
        ("LOCKGATE_UPSTREAM_TIMEOUT", "500ms"),
        ("LOCKGATE_UPSTREAM_PING", "100ms"),
        ("LOCKGATE_LOCK_REPLICAS", "1"),
        ("LOCKGATE_WRITE_BACK_GRACE", "1300ms"),
    ],
    grace: Duration::from_millis(1_300),
    // Where the remaining replica is not connected to the new master yet, the lock is given back, and is free.
    before_handover: Duration::from_millis(1_300),
};

/// The Redis that Sentinels watch, and lockgates that ask the Sentinels.
struct Machinery {
    sentinels: Sentinels,
    gates: Vec<Lockgate>,
}

impl Machinery {
    fn new(settings: &Settings<'_>) -> Self {
        Self::with_user(settings, None)
    }

    /// One of the lockgates is this user to the Sentinels.
    fn with_user(settings: &Settings<'_>, user: Option<(usize, &str)>) -> Self {
        let sentinels = Sentinels::start();
        let url = sentinels.url();
        let start = |number| {
            let mut environment = settings.environment.to_vec();
            if let Some((_, user)) = user.filter(|(its, _)| *its == number) {
                sentinels.add_user(user);
                environment.push(("LOCKGATE_SENTINEL_USER", user));
                environment.push(("LOCKGATE_SENTINEL_PASSWORD", "secret"));
            }
            Lockgate::start_at(free_address(), &["--upstream", &url], &environment)
        };
        let gates: Vec<_> = (0..GATES).map(start).collect();
        for gate in &gates {
            let mut first = gate.client();
            let key = format!("first:{}", gate.address());
            assert_eq!(first.call(&["LOCK", &key, "TOKEN", "f"]), "f");
            assert_eq!(first.call(&["UNLOCK", &key, "f"]), 1);
        }
        Self { sentinels, gates }
    }

    fn world(&self) -> World {
        let mut world = World::new(self.gates.iter().map(Lockgate::address).collect(), LOCKS);
        world.ordinary = true;
        world
    }

    /// The kinds of failover by turns; `n` counts those of the same sort.
    fn moves(&mut self, crash: bool, n: usize) -> (&'static str, Failover) {
        match (crash, n % 2) {
            (false, _) => ("planned failover", self.sentinels.fails_over()),
            (true, 0) => ("crash", self.sentinels.crashes()),
            (true, _) => (
                "crash after a lost second",
                self.sentinels.crashes_with_a_lost_second(),
            ),
        }
    }
}

/// Moves the master, measures, waits until everything is settled, and looks at what Redis has then.
fn fail_over(
    machinery: &mut Machinery,
    world: &World,
    settings: &Settings<'_>,
    figures: &mut Figures,
    (crash, n): (bool, usize),
) {
    let probes = Probes::before(&machinery.gates);
    let (kind, failover) = machinery.moves(crash, n);
    probes.measure(&machinery.gates, failover.switched, SERVED, figures);
    let over = failover.switched + settings.grace;
    thread::sleep(over.saturating_duration_since(Instant::now()));
    let (from, settled) = (world.moment(failover.from), world.moment(over));
    world.write(|history| {
        history.losses.push(Loss {
            kind,
            from,
            settled,
        })
    });
    if !crash {
        figures.stale_writes.push(failover.stale_writes);
    }
    if machinery.sentinels.switches().last() == Some(&failover.switched) {
        look(world, &mut machinery.sentinels.master().client());
    }
    machinery.sentinels.heals(n % BARE == BARE - 1);
}

/// Failovers that nobody asked for, since the machine stalled for longer than a master may be silent.
fn note_unasked(machinery: &Machinery, world: &World, grace: Duration) {
    let switches = machinery.sentinels.switches().into_iter();
    for (switched, over) in switches.map(|at| (world.moment(at), world.moment(at + grace))) {
        world.write(|history| {
            let mut known = history.losses.iter();
            if !known.any(|loss| loss.from <= switched && over <= loss.settled) {
                history.losses.push(Loss {
                    kind: "failover unasked",
                    from: switched.saturating_sub(SILENCE),
                    settled: over,
                });
            }
        });
    }
}

/// `count` failovers of each kind.
fn fail_over_often(settings: &Settings<'_>, count: usize) {
    let _machine = Machine::alone();
    let mut random = Random::new(7);
    let mut machinery = Machinery::new(settings);
    let world = machinery.world();
    let mut figures = Figures::default();
    contend(&world, &mut random.clone(), || {
        for n in 0..count {
            for crash in [false, true] {
                thread::sleep(Duration::from_millis(random.between(CALM_MS.0, CALM_MS.1)));
                fail_over(&mut machinery, &world, settings, &mut figures, (crash, n));
            }
        }
    });
    note_unasked(&machinery, &world, settings.grace);
    let history = world.history();
    figures.report(settings.name, &history);
    is_right(&history, settings.name, AT_ONCE);
    figures.are_within(settings.before_handover, settings.grace);
    figures.have_pauses();
}

fn failovers() -> usize {
    let number = env::var("FAILOVERS").map(|text| text.parse().expect("a number"));
    number.unwrap_or(SHORT)
}

/// Whether this is the long run.
fn failovers_are_many() -> bool {
    failovers() > SHORT
}

#[test]
fn no_owner_is_double_or_lost_when_the_master_moves() {
    fail_over_often(&USUAL, failovers());
}

#[test]
fn no_owner_is_double_or_lost_where_a_replica_has_every_grant() {
    fail_over_often(&ACKNOWLEDGED, failovers().div_ceil(SHORT));
}
