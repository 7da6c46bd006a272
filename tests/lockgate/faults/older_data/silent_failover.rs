//! The master vanishes without a word: no connection ends, nothing is answered, and new connections
//! lead to a replica that was there for long and has older data. One lockgate notices it late, and
//! meanwhile others grant nothing that it holds.

use std::time::{Duration, Instant};

use super::{Pair, SETTINGS, has_run_for};
use crate::{
    faults::holder,
    support::{Client, Lockgate, Proxy},
};

const KEYS: usize = 10;

/// The longest that writing back may take, with the default settings.
const LATEST: Duration = Duration::from_secs(30);

/// Three lockgates that serve, and a fresh one. The first holds the locks, and its clients say nothing;
/// all wait for them elsewhere.
struct Scene {
    pair: Pair,
    ways: [Proxy; 3],
    gates: Vec<Lockgate>,
    settings: &'static [(&'static str, &'static str)],
    owner: Client,
    waiting: Vec<(&'static str, Client)>,
}

impl Scene {
    /// The replica has run for this many seconds when it takes over.
    fn new(settings: &'static [(&'static str, &'static str)], uptime_s: u64) -> Self {
        let pair = Pair::new();
        let ways = [(); 3].map(|()| Proxy::before(pair.master.address()));
        let start = |way: &Proxy| Lockgate::start_with(&["--upstream", &way.url()], settings);
        let gates: Vec<_> = ways.iter().map(start).collect();
        has_run_for(&pair.replica, uptime_s);
        super::grant_again(&gates);
        let mut owner = gates[0].client();
        pair.lags();
        for n in 0..KEYS {
            let key = format!("k:{n}");
            let command = ["LOCK", &key, "TOKEN", "owner", "PX", "90000"];
            assert_eq!(owner.call(&command), "owner");
        }
        Self {
            pair,
            ways,
            gates,
            settings,
            owner,
            waiting: Vec::new(),
        }
    }

    /// Nothing is asked beside: that would be one more connection that notices.
    fn wait_at(&mut self, gate: usize, place: &'static str) {
        for n in 0..KEYS {
            let mut next = self.gates[gate].client();
            next.send(&["LOCK", &format!("k:{n}"), "TOKEN", "next"]);
            self.waiting.push((place, next));
        }
    }

    /// The connections of the first and the third lockgate hang from now on; the one of the second broke.
    fn master_vanishes(&self) {
        for way in &self.ways {
            way.forward_to(self.pair.replica.address());
        }
        self.ways[0].vanish();
        self.ways[2].vanish();
        self.pair.is_promoted();
        self.ways[1].cut();
    }

    fn a_fresh_one_comes(&mut self) {
        let url = self.pair.replica.url();
        let fresh = Lockgate::start_with(&["--upstream", &url], self.settings);
        self.gates.push(fresh);
        self.wait_at(3, "a fresh one");
    }

    /// No waiter is granted anything before the first lockgate has written back all of its leases.
    #[track_caller]
    fn held_locks_are_granted_nowhere_else(&mut self) {
        let vanished = Instant::now();
        loop {
            let held = (0..KEYS)
                .filter(|n| holder(&self.pair.replica, &format!("k:{n}")) == "owner")
                .count();
            let mut granted: Vec<_> = self
                .waiting
                .iter_mut()
                .filter_map(|(place, next)| {
                    next.hears_within(Duration::ZERO).unwrap().then_some(*place)
                })
                .collect();
            granted.dedup();
            assert!(
                granted.is_empty(),
                "two owners after {:?}: granted by {granted:?}, {held} of {KEYS} were written back",
                vanished.elapsed()
            );
            if held == KEYS {
                break;
            }
            let late = vanished.elapsed() > LATEST;
            assert!(!late, "{held} of {KEYS} are written back after {LATEST:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        for n in 0..KEYS {
            let key = format!("k:{n}");
            assert_eq!(self.owner.call(&["UNLOCK", &key, "owner"]), 1, "{key}");
        }
        // The same token at each lockgate is one owner that asks again.
        for (place, next) in &mut self.waiting {
            assert_eq!(next.read_reply(), "next", "{place}");
        }
    }
}

#[test]
fn a_lease_of_the_lockgate_that_notices_last_is_granted_nowhere_else() {
    let mut scene = Scene::new(&SETTINGS, 4);
    scene.wait_at(1, "one whose connection broke");
    scene.wait_at(2, "one that notices late, too");
    scene.master_vanishes();
    scene.held_locks_are_granted_nowhere_else();
}

/// To it the Redis is neither young nor another one than before.
#[test]
fn a_fresh_lockgate_grants_no_lock_that_another_one_has_yet_to_write_back() {
    let mut scene = Scene::new(&SETTINGS, 4);
    scene.master_vanishes();
    scene.a_fresh_one_comes();
    scene.held_locks_are_granted_nowhere_else();
}

#[test]
fn with_the_default_settings_a_held_lock_is_granted_nowhere_else() {
    let mut scene = Scene::new(&[], 12);
    scene.wait_at(1, "one whose connection broke");
    scene.wait_at(2, "one that notices late, too");
    scene.master_vanishes();
    scene.held_locks_are_granted_nowhere_else();
}

#[test]
fn with_the_default_settings_a_fresh_lockgate_grants_no_held_lock() {
    let mut scene = Scene::new(&[], 12);
    scene.master_vanishes();
    scene.a_fresh_one_comes();
    scene.held_locks_are_granted_nowhere_else();
}
