//! What acknowledgements of a replica cost: cycles of `LOCK` and `UNLOCK` of 64 clients, each with a lock of its own,
//! with and without `REPLICAS 1`, in turns.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    faults::replicated,
    support::{Client, Lockgate, Machine, RedisServer, report},
};

const CLIENTS: usize = 64;
const TURN: Duration = Duration::from_secs(2);
const PAIRS: usize = 5;

/// The least part of the cycles without a replica.
const LEAST_CYCLES: f64 = 0.7;
/// The most of the time of a core that a cycle without a replica costs Redis.
const MOST_CPU: f64 = 1.35;

/// Cycles a second, and what one costs Redis in microseconds of a core.
struct Turn {
    rate: f64,
    cpu_micros: f64,
}

/// It needs the machine for itself: `tests/soak` runs it.
mod soak {
    use super::*;

    #[test]
    fn acknowledged_cycles_cost_little() {
        let _machine = Machine::alone();
        let (master, _replica) = replicated();
        let gate = Lockgate::in_front_of(&master);
        let mut clients = gate.clients(CLIENTS);
        turn(&mut clients, &master, "");
        let mut ratios = Vec::new();
        for _ in 0..PAIRS {
            let without = turn(&mut clients, &master, "");
            let with = turn(&mut clients, &master, " REPLICAS 1");
            let ratio = (
                with.rate / without.rate,
                with.cpu_micros / without.cpu_micros,
            );
            report(&format!(
                "{:.0} cycles/s at {:.1} µs of Redis, with REPLICAS 1 {:.0} at {:.1} µs: {:.2} and {:.2} times",
                without.rate, without.cpu_micros, with.rate, with.cpu_micros, ratio.0, ratio.1
            ));
            ratios.push(ratio);
        }
        let median = |of: fn(&(f64, f64)) -> f64| {
            let mut all: Vec<_> = ratios.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let (cycles, cpu) = (median(|it| it.0), median(|it| it.1));
        assert!(cycles >= LEAST_CYCLES, "{cycles:.2} times the cycles");
        assert!(cpu <= MOST_CPU, "{cpu:.2} times the work of Redis");
    }
}

fn turn(clients: &mut [Client], redis: &RedisServer, options: &str) -> Turn {
    let (over, cycles) = (AtomicBool::new(false), AtomicU64::new(0));
    let (begun, before) = (Instant::now(), cpu_micros(redis));
    thread::scope(|scope| {
        for (number, client) in clients.iter_mut().enumerate() {
            let (over, cycles) = (&over, &cycles);
            scope.spawn(move || {
                let lock = format!("LOCK k{number} TOKEN t{options}");
                let unlock = format!("UNLOCK k{number} t");
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(client.say(&lock), "t");
                    assert_eq!(client.say(&unlock), 1);
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(TURN);
        over.store(true, Ordering::Relaxed);
    });
    let cycles = cycles.load(Ordering::Relaxed) as f64;
    Turn {
        rate: cycles / begun.elapsed().as_secs_f64(),
        cpu_micros: (cpu_micros(redis) - before) / cycles,
    }
}

/// The time of a core that Redis took since it started, in microseconds.
fn cpu_micros(redis: &RedisServer) -> f64 {
    let info = redis.client().say("INFO cpu").text();
    let seconds = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.expect("it tells").trim().parse::<f64>().unwrap()
    };
    1e6 * (seconds("used_cpu_sys:") + seconds("used_cpu_user:"))
}
