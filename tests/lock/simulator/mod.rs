//! A seeded simulator of bad days: some gates, one store, a network that delays and breaks, pushes
//! that are late, lost and overtaken by answers, expiries told late or never; clients that vanish,
//! come back elsewhere with the same token, die, overstay, and others that know nothing of gates;
//! users with and without rights; a store that hangs, refuses, forgets, or comes back with what it held
//! a while ago; gates that are killed, and clocks that run at their own pace.
//!
//! - `day`: what kind of day it is; `world`: its clock, and what must hold at any time;
//! - `store`, `network`, `gates`: who takes part; a gate here is the driver of its queue;
//! - `clients`: the clients, and `owners`: what they do when they have the lock;
//! - `spinners`: clients that spin;
//! - `nags`: clients whose pending operations must not delay the others;
//! - `disasters`: what goes wrong, and what is promised all the same;
//! - `checks`: what clients were told, and whether that may be so.
//!
//! The checkers know nothing of the code: they see what clients see, and what the store holds.
//!
//! `LOCKGATE_SEED=7 cargo test --test lock simulator -- --nocapture` runs one day and tells it;
//! `LOCKGATE_SEEDS=100000` runs that many, and `LOCKGATE_GO_ON=1` does not stop at the first
//! violation but tells of all kinds of them. With the feature `planted-faults`,
//! `LOCKGATE_FAULT=NoDirtyMark` makes that fault on these days.

use std::{any::Any, cell::Cell, collections::BTreeMap, env, panic, sync::Once};

mod checks;
mod clients;
mod day;
mod disasters;
mod gates;
mod nags;
mod network;
mod owners;
mod random;
mod spinners;
mod store;
mod world;

use world::{Totals, World};

#[cfg(feature = "planted-faults")]
use {
    lockgate::lock::fault,
    std::{sync::Mutex, thread},
};

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

thread_local! {
    /// A violation on this thread is looked at by whoever caught it.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// One day. A violation comes back as its text, and is not printed.
fn day(seed: u64) -> Result<Totals, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                loud(panic);
            }
        }));
    });
    QUIET.set(true);
    let day = panic::catch_unwind(|| {
        let mut world = World::new(seed, false);
        world.run();
        world.totals
    });
    QUIET.set(false);
    day.map_err(|panic| text_of(panic.as_ref()))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_default()
}

#[test]
fn many_bad_days() {
    #[cfg(feature = "planted-faults")]
    fault::plant(env::var("LOCKGATE_FAULT").ok().map(|name| fault_of(&name)));
    if let Some(seed) = number("LOCKGATE_SEED") {
        return World::new(seed, true).run();
    }
    let seeds = number("LOCKGATE_SEEDS").unwrap_or(SEEDS);
    let mut total = Totals::default();
    let mut violations: BTreeMap<String, (u64, u64, String)> = BTreeMap::new();
    for seed in 0..seeds {
        match day(seed) {
            Ok(totals) => total.add(&totals),
            Err(text) if number("LOCKGATE_GO_ON").is_some() => {
                let kind = text
                    .chars()
                    .filter(|c| !c.is_ascii_digit())
                    .take(60)
                    .collect();
                violations.entry(kind).or_insert((0, seed, text)).0 += 1;
            }
            Err(text) => panic!("seed {seed}: {text}\nsee it with LOCKGATE_SEED={seed}"),
        }
    }
    for (count, seed, text) in violations.values() {
        println!(
            "{count} days like seed {seed}: {}",
            &text[..text.len().min(300)]
        );
    }
    println!("{seeds} days: {total:?}");
    assert!(violations.is_empty(), "there are violations");
    // Days on which nothing happens would prove nothing.
    assert!(total.grants > 5 * seeds && total.vanished > seeds && total.retries > seeds / 2);
    assert!(total.sessions > seeds && total.fences > seeds && total.breaks > seeds);
    assert!(total.losses > seeds / 10 && total.deaths > seeds / 30 && total.late > seeds / 100);
    assert!(total.written_back > seeds / 50 && total.told_lost > seeds / 20);
    assert!(total.outsiders > seeds / 10 && total.not_sent > seeds / 10);
    assert!(total.dead_deleted > seeds / 200 && total.switches > seeds / 50);
    assert!(total.attempts > 10 * seeds && total.refused > 5 * seeds);
    assert!(total.absorbed > seeds / 2 && total.slices > seeds);
    assert!(total.unextended > seeds / 4_000);
}

#[cfg(feature = "planted-faults")]
fn fault_of(name: &str) -> fault::Fault {
    let named = |fault: &&fault::Fault| format!("{fault:?}") == name;
    *fault::Fault::ALL.iter().find(named).expect("a fault")
}

/// Days within which a checker must see that something was left out.
#[cfg(feature = "planted-faults")]
const SEEDS_FOR_A_FAULT: u64 = 200_000;

/// Days that show faults which few days show. They are tried first. A change of the simulator moves them: the search
/// then takes a minute longer, and prints the next ones.
#[cfg(feature = "planted-faults")]
const RARE: [(fault::Fault, u64); 2] = [
    (fault::Fault::ShortenedForgotten, 147_303),
    (fault::Fault::NotHeldWithinGrace, 60_469),
];

#[cfg(feature = "planted-faults")]
#[test]
fn every_planted_fault_is_caught() {
    let seeds = number("LOCKGATE_SEEDS").unwrap_or(SEEDS_FOR_A_FAULT);
    let missed = Mutex::new(Vec::new());
    // A fault is planted in one thread only, so each thread has one of its own.
    let faults = Mutex::new(fault::Fault::ALL.iter());
    let catch = |planted: &fault::Fault| {
        let rare = RARE.iter().filter(|(it, _)| it == planted);
        let mut days = rare.map(|(_, seed)| *seed).chain(0..seeds);
        fault::plant(Some(*planted));
        let caught = days.find_map(|seed| Some((seed, day(seed).err()?)));
        fault::plant(None);
        match caught {
            Some((seed, text)) => {
                let text: String = text.lines().flat_map(str::chars).take(100).collect();
                println!("{planted:?} is caught by seed {seed}: {text}");
            }
            None => missed.lock().unwrap().push(*planted),
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(planted) = faults.lock().unwrap().next() else {
                        break;
                    };
                    catch(planted);
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
