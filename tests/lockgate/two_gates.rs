//! Two lockgates before one Redis: their clients compete for the same locks, safely.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{Lockgate, Machine, Monitor, RedisServer};

const CLIENTS_PER_GATE: usize = 20;
const TIMES_PER_CLIENT: usize = 10;
const ACQUISITIONS: usize = 2 * CLIENTS_PER_GATE * TIMES_PER_CLIENT;
const HOLD: Duration = Duration::from_millis(2);

/// When a client of which gate had the lock.
struct Interval {
    gate: usize,
    from: Instant,
    to: Instant,
}

fn assert_exclusive(intervals: &[Interval]) {
    assert_eq!(intervals.len(), ACQUISITIONS);
    for pair in intervals.windows(2) {
        assert!(pair[0].to <= pair[1].from, "two held the lock at a time");
    }
}

/// Lets the clients of both gates take the lock; returns who had it when, in order.
fn compete(gates: &[Lockgate; 2]) -> Vec<Interval> {
    // Read and written in two steps: a lost update shows that two held the lock.
    let counter = &AtomicU64::new(0);
    let ready = Barrier::new(2 * CLIENTS_PER_GATE);
    let mut intervals: Vec<Interval> = thread::scope(|threads| {
        let clients: Vec<_> = (0..2 * CLIENTS_PER_GATE)
            .map(|i| {
                let (gate, ready) = (i % 2, &ready);
                threads.spawn(move || {
                    let mut client = gates[gate].client();
                    ready.wait();
                    let mut intervals = Vec::new();
                    for _ in 0..TIMES_PER_CLIENT {
                        let token = client.say("LOCK shared").text();
                        let from = Instant::now();
                        let count = counter.load(Relaxed);
                        thread::sleep(HOLD);
                        counter.store(count + 1, Relaxed);
                        intervals.push(Interval {
                            gate,
                            from,
                            to: Instant::now(),
                        });
                        assert_eq!(client.call(&["UNLOCK", "shared", &token]), 1);
                    }
                    intervals
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    assert_eq!(counter.load(Relaxed), ACQUISITIONS as u64);
    intervals.sort_by_key(|interval| interval.from);
    intervals
}

#[test]
fn a_lock_held_through_one_gate_is_released_through_the_other() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let (one, other) = (Lockgate::in_front_of(&redis), Lockgate::in_front_of(&redis));
    let (mut holder, mut waiter) = (one.client(), one.client());
    assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
    waiter.send(&["LOCK", "k", "TOKEN", "waiter"]);
    one.awaits_waiters("k", 1);
    assert_eq!(other.client().say("UNLOCK k waiter"), 0);
    assert_eq!(other.client().say("UNLOCK k holder"), 1);
    assert_eq!(waiter.read_reply(), "waiter");
}

#[test]
fn when_a_gate_dies_the_other_serves_on() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let (one, other) = (Lockgate::in_front_of(&redis), Lockgate::in_front_of(&redis));
    assert_eq!(one.client().say("LOCK k TOKEN lost PX 1000"), "lost");
    let mut waiter = other.client();
    waiter.send(&["LOCK", "k", "TOKEN", "waiter"]);
    other.awaits_waiters("k", 1);
    drop(one);
    assert_eq!(waiter.read_reply(), "waiter");
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    #[test]
    fn the_clients_of_two_gates_exclude_each_other_and_both_are_served() {
        let _machine = Machine::alone();
        let redis = RedisServer::start(&[]);
        let gates = [Lockgate::in_front_of(&redis), Lockgate::in_front_of(&redis)];
        let mut monitor = Monitor::start(&redis);
        let intervals = compete(&gates);
        assert_exclusive(&intervals);
        let commands = monitor.commands_on("shared").len();
        assert!(
            commands <= ACQUISITIONS * 2 + 20,
            "{commands} for {ACQUISITIONS} acquisitions"
        );
    }

    #[test]
    fn the_gates_take_turns() {
        let _machine = Machine::alone();
        let redis = RedisServer::start(&[]);
        // Turns are given up sooner than by default, so that many fall into this test.
        let environment = [
            ("LOCKGATE_LOCK_MAX_HANDOVERS", "16"),
            ("LOCKGATE_LOCK_YIELD_PAUSE", "2ms"),
            ("LOCKGATE_ASK_MAX_DELAY", "1ms"),
        ];
        let start = || Lockgate::start_with(&["--upstream", &redis.url()], &environment);
        let intervals = compete(&[start(), start()]);
        assert_exclusive(&intervals);
        let pairs = intervals.windows(2);
        let turns = pairs.filter(|pair| pair[0].gate != pair[1].gate).count();
        assert!(
            turns >= 4,
            "only {turns} times the lock went from one gate to the other"
        );
    }
}
