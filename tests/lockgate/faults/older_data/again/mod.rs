//! Redis goes back to older data again and again, under a hundred clients of two lockgates: it restarts
//! from a snapshot, a stale replica takes over, or the master vanishes without a word. No lock has two
//! owners, no valid lease is lost, no lock waits for a dead token, and fences rise
//! ([`checks`](crate::contention::checks)).
//!
//!     OLDER_DATA_ROLLBACKS=200 OLDER_DATA_SEED=7 \
//!         cargo test --release --test lockgate older_data::again -- --nocapture
//!
//! is the long run, of about 20 minutes; without the variables it is one of a minute.
//! `CONTENTION_HISTORY=file` writes down everything that was said. What happens follows from the seed, but for
//! the moments, which are the machine's.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use super::{SETTINGS, follows, has_run_for};
use crate::{
    contention::{
        LOCKS, contend,
        history::{Loss, World},
        is_right, look,
    },
    random::Random,
    support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, free_address},
};

mod verify;

const GATES: usize = 2;

/// Unless `OLDER_DATA_ROLLBACKS` says otherwise.
const ROLLBACKS: u64 = 10;

/// In each way at least once.
const INTERRUPTIONS: u64 = 6;

/// The grace of [`SETTINGS`] in whole seconds, and one more: a Redis that has run for so long is not
/// taken for a young one.
const LONGER_THAN_THE_GRACE_S: u64 = 4;

/// How long a lock that is free may take to get to the next, on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(1_500);

/// By when every lockgate must grant free locks again.
const LATEST: Duration = Duration::from_secs(15);

/// Writes down that Redis went back: waits until every lockgate grants free locks again, and looks at
/// what Redis has then.
fn settle(world: &World, kind: &'static str, from: Duration, latest: Duration, redis: &mut Client) {
    let mut probes: Vec<_> = world
        .gates
        .iter()
        .map(|&gate| Client::connect(gate))
        .collect();
    for probe in &mut probes {
        ask_for_a_free_lock(probe, from);
    }
    let deadline = Instant::now() + latest;
    for probe in &mut probes {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if !probe.hears_within(left).expect("the lockgate lives") {
                let wrong = format!("after {kind} at {from:?} nothing is granted for {latest:?}");
                world.write(|history| history.wrong.push(wrong));
                break;
            }
            if let Value::Bulk(_) = probe.read_reply() {
                break;
            }
            // An error of its connection: again.
            thread::sleep(Duration::from_millis(20));
            ask_for_a_free_lock(probe, from);
        }
    }
    let settled = world.now();
    world.write(|history| {
        history.losses.push(Loss {
            kind,
            from,
            settled,
        })
    });
    look(world, redis);
}

/// Each probe asks for a lock of its own.
fn ask_for_a_free_lock(probe: &mut Client, from: Duration) {
    let key = format!("probe:{}:{:p}", from.as_micros(), &raw const *probe);
    probe.send(&["LOCK", &key, "PX", "1000"]);
}

/// A master and its replica, which change places, two lockgates, and their ways.
struct Machinery {
    redis: [RedisServer; 2],
    master: usize,
    replication: Proxy,
    ways: [Proxy; GATES],
    gates: Vec<Lockgate>,
}

impl Machinery {
    fn new() -> Self {
        let start = || RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let redis = [start(), start()];
        let replication = Proxy::before(redis[0].address());
        follows(&redis[1], &replication);
        let ways = [(); GATES].map(|()| Proxy::before(redis[0].address()));
        let start = |way: &Proxy| {
            Lockgate::start_at(free_address(), &["--upstream", &way.url()], &SETTINGS)
        };
        let gates: Vec<_> = ways.iter().map(start).collect();
        super::grant_again(&gates);
        Self {
            redis,
            master: 0,
            replication,
            ways,
            gates,
        }
    }

    /// In one of the three ways by turns. Returns when everything is ready for the next time.
    fn rolls_back(&mut self, world: &World, random: &mut Random, n: u64) {
        let sleep = |random: &mut Random, least, most| {
            thread::sleep(Duration::from_millis(random.between(least, most)));
        };
        // Calm, of which not all passes after the older data were made.
        sleep(random, 500, 1_200);
        let old_ms = random.one_of(&[60, 400, 1_500]);
        let (kind, from) = match n % 3 {
            0 => {
                assert_eq!(self.master().client().say("SAVE"), "OK");
                sleep(random, 20, old_ms);
                let from = world.now();
                self.redis[self.master].kill();
                sleep(random, 0, 200);
                self.redis[self.master].restart();
                ("restart from a snapshot", from)
            }
            1 => {
                self.replication.half_open(true);
                sleep(random, 20, old_ms);
                let from = world.now();
                self.redis[self.master].kill();
                self.forwards_to_the_replica();
                self.ways.iter().for_each(Proxy::cut);
                // Until then it is a replica to them that takes no writes.
                sleep(random, 0, 300);
                self.promotes();
                ("stale replica", from)
            }
            _ => {
                has_run_for(&self.redis[1 - self.master], LONGER_THAN_THE_GRACE_S);
                self.replication.half_open(true);
                sleep(random, 20, old_ms);
                let from = world.now();
                self.promotes();
                self.forwards_to_the_replica();
                match self.ways_vanish(n / 3) {
                    true => ("silent switch", from),
                    false => ("switch that one lockgate notices", from),
                }
            }
        };
        let promoted = !n.is_multiple_of(3);
        if promoted {
            self.master = 1 - self.master;
        }
        settle(world, kind, from, LATEST, &mut self.master().client());
        if promoted {
            self.has_a_replica_again();
        }
        self.replica_is_there();
    }

    /// The ways break and nothing else does.
    fn interrupts(&self, world: &World, random: &mut Random, n: u64) {
        thread::sleep(Duration::from_millis(random.between(500, 1_200)));
        let from = world.now();
        match n.is_multiple_of(2) {
            true => self.ways.iter().for_each(Proxy::cut),
            false => _ = self.ways_vanish(n / 2),
        }
        settle(
            world,
            "interruption",
            from,
            LATEST,
            &mut self.master().client(),
        );
    }

    /// The connections of all lockgates vanish, except that those of one of them, by turns, or of none, are
    /// cut. Returns whether they are of none.
    fn ways_vanish(&self, turn: u64) -> bool {
        let notices = (turn % (GATES as u64 + 1)) as usize;
        for (gate, way) in self.ways.iter().enumerate() {
            match gate == notices {
                true => way.cut(),
                false => way.vanish(),
            }
        }
        notices == GATES
    }

    fn master(&self) -> &RedisServer {
        &self.redis[self.master]
    }

    fn forwards_to_the_replica(&self) {
        let replica = self.redis[1 - self.master].address();
        self.ways.iter().for_each(|way| way.forward_to(replica));
    }

    fn promotes(&self) {
        let mut replica = self.redis[1 - self.master].client();
        assert_eq!(replica.say("REPLICAOF NO ONE"), "OK");
    }

    /// The old master loses its data and follows the new one.
    fn has_a_replica_again(&mut self) {
        self.replication = Proxy::before(self.master().address());
        let old = &mut self.redis[1 - self.master];
        old.kill();
        old.forget();
        old.restart();
    }

    fn replica_is_there(&self) {
        follows(&self.redis[1 - self.master], &self.replication);
    }
}

/// They need the machine for themselves, and take long: `tests/soak` runs them.
mod soak {
    use super::*;

    #[test]
    fn no_lock_has_two_owners_and_none_is_lost_however_often_redis_goes_back() {
        let number = |name, otherwise| {
            env::var(name).map_or(otherwise, |text| text.parse::<u64>().expect("a number"))
        };
        let rollbacks = number("OLDER_DATA_ROLLBACKS", ROLLBACKS);
        let seed = number("OLDER_DATA_SEED", 7);
        let _machine = Machine::alone();
        let mut random = Random::new(seed);
        let mut machinery = Machinery::new();
        let world = World::new(
            machinery.gates.iter().map(Lockgate::address).collect(),
            LOCKS,
        );
        contend(&world, &mut random.clone(), || {
            for n in 0..rollbacks {
                machinery.rolls_back(&world, &mut random, n);
            }
        });
        is_right(&world.history(), &format!("seed {seed}"), AT_ONCE);
    }

    /// The clients and the checks are right: where Redis keeps its data they find nothing wrong.
    #[test]
    fn nothing_is_lost_where_only_connections_break() {
        let _machine = Machine::alone();
        let mut random = Random::new(7);
        let machinery = Machinery::new();
        let world = World::new(
            machinery.gates.iter().map(Lockgate::address).collect(),
            LOCKS,
        );
        contend(&world, &mut random.clone(), || {
            for n in 0..INTERRUPTIONS {
                machinery.interrupts(&world, &mut random, n);
            }
        });
        is_right(&world.history(), "interruptions", AT_ONCE);
    }
}
