//! Fifty lockgates before one Redis, each with a few clients that all want the same lock, and want it
//! again at once: every lockgate gets its turn.
//!
//!     cargo test --release --test lockgate many_instances -- --ignored --nocapture
//!
//! prints what each instance got, and what a grant cost Redis. `INSTANCES`, `CLIENTS` (of each instance),
//! `SECONDS` and `HOLD_MS` change the contest.

use std::{
    env,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{Lockgate, Machine, RedisServer, report};

fn total(grants: &[AtomicU64]) -> u64 {
    grants.iter().map(|count| count.load(Relaxed)).sum()
}

/// What Redis has done so far.
struct Spent {
    /// Scripts, each of which is a question about a lock.
    commands: u64,
    cpu: Duration,
}

impl Spent {
    fn by(redis: &RedisServer) -> Self {
        let mut direct = redis.client();
        let stats = direct.say("INFO commandstats").text();
        let calls = |command: &str| {
            let line = stats.lines().find_map(|line| {
                let line = line.strip_prefix("cmdstat_")?.strip_prefix(command)?;
                line.strip_prefix(":calls=")?.split(',').next()
            });
            line.map_or(0, |calls| calls.parse::<u64>().expect("a number"))
        };
        let cpu = direct.say("INFO cpu").text();
        let seconds = |name: &str| {
            let line = cpu
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|text| text.trim().parse::<f64>().ok())
                .expect("a number")
        };
        Self {
            commands: calls("evalsha") + calls("eval"),
            cpu: Duration::from_secs_f64(seconds("used_cpu_sys") + seconds("used_cpu_user")),
        }
    }
}

/// They need the machine for themselves, and take long. `tests/soak` names the commands.
mod soak {
    use super::*;

    #[test]
    #[ignore = "takes half a minute and fifty processes: run it by its name"]
    fn each_of_many_instances_gets_a_lock_that_all_want() {
        let number = |name, otherwise| {
            env::var(name).map_or(otherwise, |text| text.parse::<u64>().expect("a number"))
        };
        let (instances, clients) = (number("INSTANCES", 50), number("CLIENTS", 2));
        let time = Duration::from_secs(number("SECONDS", 20));
        let hold = Duration::from_millis(number("HOLD_MS", 10));
        let _machine = Machine::alone();
        let redis = RedisServer::start(&[]);
        let one_thread = [("LOCKGATE_THREADS", "1")];
        let start = |_| Lockgate::start_with(&["--upstream", &redis.url()], &one_thread);
        let gates: Vec<_> = (0..instances).map(start).collect();
        let grants: Vec<_> = gates.iter().map(|_| AtomicU64::new(0)).collect();
        let ready = Barrier::new(gates.len() * clients as usize + 1);
        let over = AtomicBool::new(false);
        let fewest = thread::scope(|threads| {
            for (gate, grants) in gates.iter().zip(&grants) {
                for _ in 0..clients {
                    threads.spawn(|| {
                        let mut client = gate.client();
                        client.is_patient();
                        // Every connection is there, and the grace is over.
                        let warm = format!("warm:{:?}", thread::current().id());
                        let token = client.call(&["LOCK", &warm]).text();
                        assert_eq!(client.call(&["UNLOCK", &warm, &token]), 1);
                        ready.wait();
                        while !over.load(Relaxed) {
                            let token = client.call(&["LOCK", "shared", "WAIT", "60000"]);
                            if token.is_nil() {
                                continue;
                            }
                            grants.fetch_add(1, Relaxed);
                            thread::sleep(hold);
                            assert_eq!(client.call(&["UNLOCK", "shared", &token.text()]), 1);
                        }
                    });
                }
            }
            ready.wait();
            let before = (Spent::by(&redis), total(&grants), Instant::now());
            thread::sleep(time);
            let after = (Spent::by(&redis), total(&grants), Instant::now());
            let mut counts: Vec<_> = grants.iter().map(|count| count.load(Relaxed)).collect();
            over.store(true, Relaxed);
            counts.sort_unstable();
            let got = after.1 - before.1;
            report(&format!(
                "{instances} × {clients} clients, {hold:?} each, {:.0} s: {got} grants, of an instance {} to {} \
                 (median {}), {} without any; of a grant {:.2} commands for locks, {:.0} µs of Redis's CPU, \
                 {:.2} times its hold",
                (after.2 - before.2).as_secs_f64(),
                counts[0],
                counts[counts.len() - 1],
                counts[counts.len() / 2],
                counts.iter().filter(|count| **count == 0).count(),
                (after.0.commands - before.0.commands) as f64 / got as f64,
                (after.0.cpu - before.0.cpu).as_secs_f64() * 1e6 / got as f64,
                (after.2 - before.2).as_secs_f64() / got as f64 / hold.as_secs_f64(),
            ));
            counts[0]
        });
        assert!(fewest > 0, "an instance got nothing");
    }
}
