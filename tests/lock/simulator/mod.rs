//! A seeded simulator: some gates, one store, a network that delays, pushes that are late, lost and
//! overtaken by answers, expiries told late or never, clients that vanish, come back elsewhere with
//! the same token, die, overstay, and others that know nothing of gates.
//!
//! It is the driver of the queues: it performs their actions and keeps their timers. The checkers
//! know nothing of the code: they see what clients see, and what the store holds.
//!
//! `LOCKGATE_SEED=7 cargo test --test lock simulator -- --nocapture` runs one day and tells it;
//! `LOCKGATE_SEEDS=100000` runs that many.

use std::{env, panic};

mod checks;
mod day;
mod disasters;
mod gates;
mod network;
mod people;
mod random;
mod store;
mod world;

use world::World;

/// Microseconds in a millisecond.
const MILLI: u64 = 1_000;
/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

/// Days in the ordinary run.
const SEEDS: u64 = 20_000;

fn number(variable: &str) -> Option<u64> {
    env::var(variable)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn many_bad_days() {
    if let Some(seed) = number("LOCKGATE_SEED") {
        let mut world = World::new(seed, true);
        world.run();
        return;
    }
    let seeds = number("LOCKGATE_SEEDS").unwrap_or(SEEDS);
    let mut total = world::Totals::default();
    for seed in 0..seeds {
        let day = panic::catch_unwind(|| {
            let mut world = World::new(seed, false);
            world.run();
            world.totals
        });
        match day {
            Ok(totals) => total.add(&totals),
            Err(panic) => {
                eprintln!("seed {seed}: see it with LOCKGATE_SEED={seed}");
                panic::resume_unwind(panic);
            }
        }
    }
    println!("{seeds} days: {total:?}");
    // Days on which nothing happens would prove nothing.
    assert!(total.grants > 5 * seeds && total.vanished > seeds && total.retries > seeds / 2);
}
