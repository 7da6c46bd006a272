//! The torture run: two lockgates before one Redis, clients that behave as badly as clients do, and
//! something that breaks every second. At the end it is checked that no lock had two owners.
//!
//!     TORTURE_SECONDS=3600 TORTURE_SEED=7 cargo test --release --test torture -- --nocapture
//!
//! `TORTURE_HISTORY=file` writes down everything that the verdict is made of.
//!
//! Each gate reaches Redis through a proxy of its own that can break. Faults and clients follow from
//! the seed, but for the moments, which are the machine's. Everybody writes down what happened
//! (`history`), and what must hold is found out at the end (`checks`).
//!
//! # Why the check is sound
//!
//! All processes run on this machine, so what Redis calls the time is what everybody calls the time.
//! Of each tenure an *inner* interval is taken: a time in which its owner owned the lock for certain,
//! if Redis kept its data. Two of one lock that overlap are then a violation, whatever the order.
//!
//! - It **begins** when the grant was read, or, where there is a fence, at the fence. A fence is at
//!   least Redis's `TIME` in the script that granted the lock. It runs ahead of it only where more
//!   than one grant is made in a microsecond, which no Redis can do for long; that no fence is ahead of
//!   the moment in which it was read is checked.
//! - It **ends** at the latest with the moment before the owner let go in any way: before it sent
//!   `UNLOCK`, before it closed, before it sent the `RELOCK` that said that the lock is lost.
//! - A **lease** ends it too. It runs from the grant, and the fence tells when that was, less what a
//!   script may take between setting the expiry and reading the clock (where Redis was stopped just
//!   then: from the stop). Where there is no fence, or after a `RELOCK`, it runs from the moment
//!   before the request was sent. A `RELOCK` that succeeded begins another interval, when its reply was
//!   read; one that nobody knows the outcome of counts where it makes the lease end earlier. Asking
//!   again with the same token can only make a lease longer.
//! - A **session** lock has no lease that its owner could know: it is owned until the owner hears that
//!   it is lost, less the time that hearing may take (and from when its gate was stopped nothing is
//!   certain, since nobody can tell the owner anything).
//!
//! It is not blind: a lock handed to two owners gives two fences within a hold, and a hold lasts tens of
//! milliseconds. `verify` holds it to that with histories that are wrong.
//!
//! An overlap is **excused** only if Redis lost its data (`FLUSHALL`, a restart without data) after the
//! earlier owner last knew that it owned the lock and before the later was granted it, and only for one
//! lease from then. Where Redis was restarted without its data, and both gates and what lies
//! between them and Redis were well for longer than a lease, the gates were to write back the lease: such an
//! overlap is not excused either, unless a plain client, which knows no grace time, took the lock first.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test that cannot go on says so by panicking"
)]

#[path = "../lock/simulator/random.rs"]
mod random;
#[path = "../support/mod.rs"]
mod support;

mod aftermath;
mod checks;
mod connection;
mod contender;
mod faults;
mod figures;
mod history;
mod plain;
mod verify;
mod world;

use std::{env, fs, thread, time::Duration};

use contender::Contender;
use faults::{Faults, Machinery};
use history::Through;
use plain::Plain;
use random::Random;
use support::{Lockgate, Proxy, RedisServer, free_address, report};
use world::World;

const LOCKS: usize = 5;
const CONTENDERS: usize = 40;
const PLAIN_CLIENTS: usize = 3;
/// At each gate, which absorbs their commands.
const SPINNING_CLIENTS: usize = 6;

/// Of what is wrong so many are shown.
const MOST_SHOWN: usize = 10;

#[test]
fn no_lock_has_two_owners_whatever_breaks() {
    let number = |name| {
        env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().expect(name))
    };
    let seconds = number("TORTURE_SECONDS").unwrap_or(120);
    let seed = number("TORTURE_SEED").unwrap_or(7);
    report(&format!("torture: {seconds} s, seed {seed}"));
    let mut machinery = machinery();
    let world = World::new(
        machinery.gates.each_ref().map(Lockgate::address),
        machinery.redis.address(),
        LOCKS,
    );
    live_and_break(&world, &mut machinery, Duration::from_secs(seconds), seed);
    let history = world.chronicle.read();
    if let Ok(file) = env::var("TORTURE_HISTORY") {
        fs::write(file, history.lines()).expect("the history is written");
    }
    let verdict = checks::judge(&history);
    report(&figures::figures(&world.tally.counts(), &history, &verdict));
    let none = |wrong: &[String], what: &str| {
        let first = wrong.iter().take(MOST_SHOWN).cloned().collect::<Vec<_>>();
        let count = wrong.len();
        assert!(
            count == 0,
            "seed {seed}, {what}: {count}\n{}",
            first.join("\n")
        );
    };
    none(&verdict.violations, "violations");
    none(&verdict.write_back_holes, "leases not written back");
    aftermath::check(&machinery, &world);
}

fn machinery() -> Machinery {
    let redis = RedisServer::start_with_aof();
    let links = [(); 2].map(|()| Proxy::before(redis.address()));
    let gates = links.each_ref().map(|link| {
        let flags = ["--upstream", &link.url()];
        let absorbs = [("LOCKGATE_ABSORB_KEYS", "lock:*")];
        Lockgate::start_at(free_address(), &flags, &absorbs)
    });
    Machinery {
        redis,
        links,
        gates,
    }
}

/// Returns when all faults are over and all clients are done.
fn live_and_break(world: &World, machinery: &mut Machinery, time: Duration, seed: u64) {
    let mut seeds = Random::new(seed);
    thread::scope(|threads| {
        for number in 0..CONTENDERS {
            let seed = seeds.next();
            threads.spawn(move || Contender::new(world, number, seed).live());
        }
        let gates = (0..world.gates.len()).map(|gate| (Through::Gate(gate), SPINNING_CLIENTS));
        for (through, count) in gates.chain([(Through::Redis, PLAIN_CLIENTS)]) {
            for number in 0..count {
                let seed = seeds.next();
                threads.spawn(move || Plain::new(world, number, through, seed).live());
            }
        }
        threads.spawn(|| world.watch_the_machine());
        Faults::new(world, machinery, seeds.next()).happen_for(time);
        // With everything whole again.
        thread::sleep(Duration::from_secs(1));
        world.end();
    });
}
