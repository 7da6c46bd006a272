//! Clients that contend for locks through several lockgates while something happens to Redis, what they were
//! told, and whether that was right.
//!
//! `CONTENTION_HISTORY=file` writes down everything that was said.

use std::{env, fs, thread, time::Duration};

use crate::{
    random::Random,
    support::{Client, Value, report},
};
use contender::Contender;
use history::{History, Look, World, key};

pub(crate) mod checks;
mod contender;
pub(crate) mod history;

pub(crate) const LOCKS: usize = 60;
const CONTENDERS: usize = 100;

/// Lets clients contend while this happens.
pub(crate) fn contend(world: &World, random: &mut Random, happens: impl FnOnce()) {
    thread::scope(|threads| {
        threads.spawn(|| world.watches_the_machine());
        for number in 0..CONTENDERS {
            let seed = random.next();
            threads.spawn(move || Contender::new(world, number, seed).live());
        }
        // Also where it panics, or nothing would ever end.
        let end = End(world);
        happens();
        drop(end);
    });
}

struct End<'a>(&'a World);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Judges what happened; a lock that is free gets to the next within `at_once`.
#[track_caller]
pub(crate) fn is_right(history: &History, run: &str, at_once: Duration) {
    if let Ok(file) = env::var("CONTENTION_HISTORY") {
        fs::write(file, history.lines()).expect("the history is written");
    }
    let verdict = checks::judge(history, at_once);
    report(&format!("{run}: {}", verdict.figures()));
    let count = verdict.wrongs.len();
    assert!(
        count == 0,
        "{run}, {count} wrong: {}",
        verdict.report(history)
    );
}

/// Writes down what Redis has.
pub(crate) fn look(world: &World, redis: &mut Client) {
    let mut mget = vec!["MGET".to_owned()];
    mget.extend((0..world.locks).map(key));
    let from = world.now();
    let said = redis.call(&mget);
    let to = world.now();
    let holder = |value: &Value| (!value.is_nil()).then(|| value.text());
    let holders = said.items().iter().map(holder).collect();
    world.write(|history| history.looks.push(Look { from, to, holders }));
}
