//! Concurrent histories of one lock: two clients at one gate, one at another and one at Redis itself take it, release it
//! and delete it, and its leases end. Each history must be linearizable: every command took effect at some instant between its request
//! and its reply, and the replies are those of one key in Redis. Only a refusal by a gate may lag.
//!
//! The search is that of Wing and Gong, "Testing and Verifying Concurrent Objects" (1993).
//!
//! `LINEAR_HISTORIES=20000 LINEAR_SEED=7 cargo test --release --test lockgate histories` checks more.

use std::{
    collections::{HashMap, HashSet},
    slice,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::release;
use crate::support::{Client, Lockgate, Machine, RedisServer, Value, counted, report};

const CLIENTS: usize = 4;
/// The client that talks to Redis itself.
const DIRECT: usize = 3;
const HISTORIES: usize = 240;
const OPS_PER_CLIENT: usize = 8;
/// Histories that run at a time, each of a lock of its own.
const AT_A_TIME: usize = 6;
const PARK: &str = "30ms";
const LEASES_MS: [u64; 4] = [12, 60, 2_000, 4_000];
/// Redis's clock has milliseconds, and its reply is later than its decision.
const CLOCK_MS: f64 = 2.0;
/// Longest time that a gate refuses attempts after a release elsewhere: it believes no holder longer.
const REFUSAL_LAG_MS: f64 = 1_000.0;

#[derive(Clone, Debug, PartialEq)]
enum Ask {
    Acquire { token: String, lease_ms: u64 },
    Release { token: String },
    Delete,
    Get,
}

#[derive(Clone, Debug)]
struct Op {
    client: usize,
    ask: Ask,
    reply: Value,
    /// Milliseconds since the history began.
    start: f64,
    end: f64,
}

/// A key in Redis: its token and the bounds of its deadline.
#[derive(Clone, Debug)]
struct Lock {
    token: String,
    dead_from: f64,
    dead_by: f64,
}

/// A state of the search: the number of commands of each client that took effect, when the last one did, and the key.
#[derive(Clone, Debug)]
struct State {
    done: [usize; CLIENTS],
    at: f64,
    lock: Option<Lock>,
    /// When the lock may have been held.
    held: Vec<(f64, f64)>,
}

impl Op {
    /// Returns whether the command is a refusal by a gate, which may lag.
    fn may_lag(&self) -> bool {
        self.client != DIRECT && self.reply.is_nil() && matches!(self.ask, Ask::Acquire { .. })
    }

    /// Returns the states after this command, if it is the next one.
    fn after(&self, before: &State) -> Vec<State> {
        let from = before.at.max(self.start);
        let mut after = Vec::new();
        if from > self.end {
            return after;
        }
        let step = |at: f64, lock: Option<Lock>| {
            let mut state = before.clone();
            state.done[self.client] += 1;
            state.at = at;
            if lock.is_none()
                && let Some(held) = state.held.last_mut()
            {
                held.1 = held.1.min(self.end);
            }
            state.lock = lock;
            state
        };
        if let Some(lock) = &before.lock
            && from <= lock.dead_by + CLOCK_MS
        {
            let owns = |token: &String| *token == lock.token;
            match (&self.ask, &self.reply) {
                (Ask::Acquire { .. }, Value::Nil) => after.push(step(from, Some(lock.clone()))),
                (Ask::Release { token }, Value::Integer(1)) if owns(token) => {
                    after.push(step(from, None))
                }
                (Ask::Release { token }, Value::Integer(0)) if !owns(token) => {
                    after.push(step(from, Some(lock.clone())));
                }
                (Ask::Delete, Value::Integer(1)) => after.push(step(from, None)),
                (Ask::Get, reply) if *reply == lock.token => {
                    after.push(step(from, Some(lock.clone())))
                }
                _ => {}
            }
        }
        let gone_from = before
            .lock
            .as_ref()
            .map_or(0.0, |lock| lock.dead_from - CLOCK_MS);
        if gone_from <= self.end {
            let at = from.max(gone_from);
            match (&self.ask, &self.reply) {
                (Ask::Acquire { token, lease_ms }, Value::Simple(ok)) if ok == "OK" => {
                    let lease = *lease_ms as f64;
                    let lock = Lock {
                        token: token.clone(),
                        dead_from: at + lease,
                        dead_by: self.end + lease,
                    };
                    let mut state = step(at, None);
                    state.held.push((self.start, lock.dead_by));
                    state.lock = Some(lock);
                    after.push(state);
                }
                (Ask::Release { .. } | Ask::Delete, Value::Integer(0)) | (Ask::Get, Value::Nil) => {
                    after.push(step(at, None));
                }
                _ => {}
            }
        }
        after
    }
}

/// Returns when the lock was held in one order of the commands that explains every reply. `None`: there is none.
fn linearize(ops: &[Op]) -> Option<Vec<(f64, f64)>> {
    let of = |client| {
        ops.iter()
            .filter(move |op| op.client == client && !op.may_lag())
    };
    let clients: [Vec<&Op>; CLIENTS] = std::array::from_fn(|client| of(client).collect());
    let mut seen = HashSet::new();
    let mut open = vec![State {
        done: [0; CLIENTS],
        at: 0.0,
        lock: None,
        held: Vec::new(),
    }];
    while let Some(state) = open.pop() {
        let next = |client: usize| clients[client].get(state.done[client]);
        if (0..CLIENTS).all(|client| next(client).is_none()) {
            return Some(state.held);
        }
        if !seen.insert(format!("{:?} {} {:?}", state.done, state.at, state.lock)) {
            continue;
        }
        for client in 0..CLIENTS {
            open.extend(next(client).into_iter().flat_map(|op| op.after(&state)));
        }
    }
    None
}

/// Checks one history.
fn check(ops: &[Op]) -> Result<(), String> {
    let held = linearize(ops).ok_or("no order of the commands explains the replies")?;
    for op in ops.iter().filter(|op| op.may_lag()) {
        let from = op.start - REFUSAL_LAG_MS;
        if !held.iter().any(|held| held.0 <= op.end && held.1 >= from) {
            return Err(format!(
                "{op:?}: refused {REFUSAL_LAG_MS} ms after the lock was free"
            ));
        }
    }
    Ok(())
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most
    }
}

fn run(client: &mut Client, id: usize, key: &str, begin: Instant, mut random: Random) -> Vec<Op> {
    let now = || begin.elapsed().as_secs_f64() * 1_000.0;
    let mut last = "never".to_owned();
    let mut ops = Vec::new();
    for number in 0..OPS_PER_CLIENT {
        let ask = match random.below(20) {
            0..10 => Ask::Acquire {
                token: match random.below(4) {
                    0 => "1".to_owned(),
                    1 => format!("client-{id}"),
                    _ => format!("{id}-{number}"),
                },
                lease_ms: LEASES_MS[random.below(LEASES_MS.len())],
            },
            10..16 => Ask::Release {
                token: last.clone(),
            },
            16 => Ask::Release {
                token: "1".to_owned(),
            },
            17 => Ask::Delete,
            _ => Ask::Get,
        };
        let start = now();
        let reply = match &ask {
            Ask::Acquire { token, lease_ms } => {
                client.say(&format!("SET {key} {token} NX PX {lease_ms}"))
            }
            Ask::Release { token } => release(client, key, token),
            Ask::Delete => client.call(&["DEL", key]),
            Ask::Get => client.call(&["GET", key]),
        };
        let end = now();
        if let Ask::Acquire { token, .. } = &ask {
            last.clone_from(token);
        }
        ops.push(Op {
            client: id,
            ask,
            reply,
            start,
            end,
        });
        if random.below(3) == 0 {
            thread::sleep(Duration::from_millis(random.below(16) as u64));
        }
    }
    ops
}

#[test]
fn concurrent_histories_are_linearizable() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let gate = || {
        Lockgate::start_with(
            &["--upstream", &url],
            &[
                ("LOCKGATE_ABSORB_KEYS", "lock:*"),
                ("LOCKGATE_ABSORB_PARK", PARK),
            ],
        )
    };
    let gates = [gate(), gate()];
    let number = |name: &str, default| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().unwrap())
    };
    let (histories, seed) = (
        number("LINEAR_HISTORIES", HISTORIES),
        number("LINEAR_SEED", 42),
    );
    let next = AtomicUsize::new(0);
    let all: Vec<(usize, Vec<Op>)> = thread::scope(|threads| {
        let workers: Vec<_> = (0..AT_A_TIME)
            .map(|_| {
                threads.spawn(|| {
                    let mut done = Vec::new();
                    let mut clients = [
                        gates[0].client(),
                        gates[0].client(),
                        gates[1].client(),
                        redis.client(),
                    ];
                    loop {
                        let history = next.fetch_add(1, Relaxed);
                        if history >= histories {
                            return done;
                        }
                        done.push((history, one(&mut clients, history, seed)));
                    }
                })
            })
            .collect();
        let histories = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap());
        histories.collect()
    });
    let mut answers: HashMap<String, usize> = HashMap::new();
    for (history, ops) in &all {
        if let Err(error) = check(ops) {
            let ops: Vec<_> = ops.iter().map(|op| format!("{op:?}")).collect();
            panic!(
                "history {history}, LINEAR_SEED={seed}: {error}\n{}",
                ops.join("\n")
            );
        }
        for op in ops {
            let ask = format!("{:?}", op.ask);
            let name = ask.split(' ').next().unwrap_or_default();
            *answers.entry(format!("{name} {:?}", op.reply)).or_default() += 1;
        }
    }
    let count = |answer: &str| answers.get(answer).copied().unwrap_or_default();
    let lines = [
        "Acquire +OK",
        "Acquire nil",
        "Release :1",
        "Release :0",
        "Delete :1",
    ];
    for line in lines {
        assert!(count(line) > histories / 8, "{line}: {answers:?}");
    }
    let handovers = counted(&mut gates[0].client(), "absorbed_attempts_handover");
    assert!(handovers > 0, "{answers:?}");
    report(&format!(
        "{} histories are linearizable: {} acquisitions, {} refusals, {} releases; {handovers} handovers",
        all.len(),
        count("Acquire +OK"),
        count("Acquire nil"),
        count("Release :1"),
    ));
}

fn one(clients: &mut [Client; CLIENTS], history: usize, seed: usize) -> Vec<Op> {
    let (key, begin, ready) = (
        format!("lock:{history}"),
        Instant::now(),
        Barrier::new(CLIENTS),
    );
    thread::scope(|threads| {
        let running: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(id, client)| {
                let random = Random(
                    ((history * CLIENTS + id + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        ^ seed as u64,
                );
                let (key, ready) = (&key, &ready);
                threads.spawn(move || {
                    ready.wait();
                    run(client, id, key, begin, random)
                })
            })
            .collect();
        running
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    })
}

/// The checker itself: histories that no Redis could have given.
#[test]
fn histories_of_two_owners_are_found() {
    let op = |client, ask: &Ask, reply: &Value, start, end| Op {
        client,
        ask: ask.clone(),
        reply: reply.clone(),
        start,
        end,
    };
    let acquire = |token: &str| Ask::Acquire {
        token: token.to_owned(),
        lease_ms: 1_000,
    };
    let release = |token: &str| Ask::Release {
        token: token.to_owned(),
    };
    let ok = Value::Simple("OK".into());
    let (one, zero) = (Value::Integer(1), Value::Integer(0));
    let first = op(0, &acquire("a"), &ok, 0.0, 1.0);
    let is_right = |others: &[Op]| check(&[slice::from_ref(&first), others].concat()).is_ok();
    assert!(
        is_right(&[op(1, &acquire("b"), &ok, 1_500.0, 1_501.0)]),
        "the lease ended"
    );
    assert!(
        !is_right(&[op(1, &acquire("b"), &ok, 900.0, 901.0)]),
        "two owners"
    );
    assert!(
        !is_right(&[op(1, &acquire("a"), &ok, 900.0, 901.0)]),
        "two owners with one token"
    );
    let released = op(0, &release("a"), &one, 2.0, 9.0);
    let next = op(1, &acquire("b"), &ok, 3.0, 8.0);
    assert!(is_right(&[released.clone(), next.clone()]), "handed over");
    assert!(
        !is_right(&[op(1, &acquire("b"), &ok, 1.5, 1.9), released.clone()]),
        "granted before the release"
    );
    assert!(
        !is_right(&[released.clone(), op(2, &release("a"), &one, 10.0, 11.0)]),
        "released twice"
    );
    assert!(
        !is_right(&[op(1, &release("b"), &one, 2.0, 3.0)]),
        "released by a token that does not hold"
    );
    assert!(
        !is_right(&[op(0, &release("a"), &zero, 2.0, 3.0)]),
        "its own release refused"
    );
    let refused = |start| op(1, &acquire("b"), &Value::Nil, start, start + 1.0);
    assert!(
        is_right(&[released.clone(), refused(500.0)]),
        "a refusal lags"
    );
    assert!(
        !is_right(&[released, refused(2_500.0)]),
        "a refusal of a free lock"
    );
}
