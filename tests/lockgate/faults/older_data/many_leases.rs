//! One lockgate has very many leases when Redis loses all of them: another one grants none of them
//! meanwhile, however long it takes to write them back.
//!
//!     LEASES=100000 cargo test --release --test lockgate many_leases -- --nocapture
//!
//! The ordinary run has 10,000 leases; 100,000 and 200,000 pass, too.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use super::{SETTINGS, Wrongs, grant_again};
use crate::support::{Client, Lockgate, Machine, RedisServer, Value, report};

/// Unless `LEASES` says otherwise.
const LEASES: usize = 10_000;

/// Clients that take them.
const CLIENTS: usize = 8;

/// Commands of one client that are under way at a time.
const PIPELINE: usize = 500;

/// The number of leases that the other lockgate is asked for.
const SAMPLE: usize = 2_000;

/// Clients that ask for them.
const THIEVES: usize = 100;

/// The longest that writing back all of them may take.
const LATEST: Duration = Duration::from_secs(60);

/// Takes this number of locks.
fn take(gate: &Lockgate, leases: usize) {
    thread::scope(|threads| {
        for first in 0..CLIENTS {
            threads.spawn(move || {
                let mut client = gate.client();
                let mine: Vec<_> = (first..leases).step_by(CLIENTS).collect();
                for some in mine.chunks(PIPELINE) {
                    for n in some {
                        let key = format!("k:{n}");
                        client.send(&["LOCK", &key, "TOKEN", "owner", "PX", "600000"]);
                    }
                    for _ in some {
                        assert_eq!(client.read_reply(), "owner");
                    }
                }
            });
        }
    });
}

/// Asks for each of these locks until the answer is that it is held. Returns the locks that were granted.
fn steals(gate: &Lockgate, locks: &[usize], back: Instant) -> Vec<(usize, Duration)> {
    let mut client: Client = gate.client();
    client.is_patient();
    let mut stolen = Vec::new();
    for n in locks {
        let wish = ["LOCK", &format!("k:{n}"), "TOKEN", "thief", "WAIT", "400"];
        // An error, or nil, before the grace is over.
        loop {
            let said = client.call(&wish);
            if said == "thief" {
                stolen.push((*n, back.elapsed()));
                break;
            }
            let over = back.elapsed() > Duration::from_millis(4_500);
            if over && said == Value::Nil {
                break;
            }
            assert!(back.elapsed() < LATEST, "{said:?}");
        }
    }
    stolen
}

/// Waits until Redis has this number of keys. Returns how long that took, or the number that came.
fn are_written_back(redis: &RedisServer, leases: usize, back: Instant) -> Result<Duration, i64> {
    let mut direct = redis.client();
    loop {
        let there = direct.say("DBSIZE").integer();
        if there >= leases as i64 {
            return Ok(back.elapsed());
        }
        if back.elapsed() > LATEST {
            return Err(there);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// They need the machine for themselves, and take long: `tests/soak` runs them.
mod soak {
    use super::*;

    #[test]
    fn of_very_many_leases_none_is_granted_elsewhere() {
        let leases = env::var("LEASES").map_or(LEASES, |text| text.parse().expect("a number"));
        let _machine = Machine::alone();
        let mut redis = RedisServer::start(&[]);
        let start = || Lockgate::start_with(&["--upstream", &redis.url()], &SETTINGS);
        let gates = [start(), start()];
        grant_again(&gates);
        take(&gates[0], leases);

        redis.kill();
        redis.restart();
        let back = Instant::now();
        let step = leases / SAMPLE;
        let sample: Vec<_> = (0..leases).step_by(step).collect();
        let (stolen, written_back) = thread::scope(|threads| {
            let (gate, redis) = (&gates[1], &redis);
            let watching = threads.spawn(move || are_written_back(redis, leases, back));
            let thieves: Vec<_> = (0..THIEVES)
                .map(|n| {
                    let mine: Vec<_> = sample.iter().copied().skip(n).step_by(THIEVES).collect();
                    threads.spawn(move || steals(gate, &mine, back))
                })
                .collect();
            let stolen: Vec<_> = thieves
                .into_iter()
                .flat_map(|thief| thief.join().unwrap())
                .collect();
            (stolen, watching.join().unwrap())
        });
        let after = |took: Duration| format!("{:.2} s", took.as_secs_f64());
        report(&format!(
            "{leases} leases: {} of {} were granted again elsewhere; written back: {}",
            stolen.len(),
            sample.len(),
            match written_back {
                Ok(took) => format!(
                    "all after {}, {:.0} a second",
                    after(took),
                    leases as f64 / took.as_secs_f64()
                ),
                Err(there) => format!("{there} after {}", after(LATEST)),
            }
        ));
        let mut wrongs = Wrongs::default();
        wrongs.0.extend(
            stolen
                .iter()
                .take(20)
                .map(|(n, took)| format!("k:{n} after {took:?}")),
        );
        wrongs.unless(stolen.is_empty(), || {
            format!("{} were granted again", stolen.len())
        });
        let mut owner = gates[0].client();
        for n in sample {
            let key = format!("k:{n}");
            wrongs.unless_is(&key, &owner.call(&["UNLOCK", &key, "owner"]), 1);
        }
        wrongs.none();
    }
}
