//! A client that locks as everybody did before: `SET NX PX`, and a script that deletes its own value. It polls, in Redis
//! directly or through a gate that absorbs its commands.
//!
//! It keeps its token for as long as it knows the outcome of everything that it did with it: what is still under way
//! could otherwise release a later lock with the same token, in Redis as in lockgate.

use std::{thread, time::Duration};

use crate::{
    contender::LEASE_MS,
    history::{LeaseFrom, Tenure, Through, now},
    random::Random,
    support::{Client, Value, frame},
    world::World,
};

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// How many of the locks such clients want, the first ones. They know no grace time, so of a lock that
/// they want nobody can say what a gate should have written back.
const LOCKS: u64 = 2;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The habits of a client that polls.
#[derive(Clone, Copy)]
struct Habits {
    /// Every acquisition has a token of its own.
    new_tokens: bool,
    /// A release follows each refused attempt.
    cleans_up: bool,
}

pub(crate) struct Plain<'a> {
    world: &'a World,
    number: usize,
    through: Through,
    habits: Habits,
    random: Random,
    client: Option<Client>,
    tokens: u64,
    /// The outcome of a command with this token is unknown.
    in_doubt: bool,
}

impl<'a> Plain<'a> {
    pub(crate) fn new(world: &'a World, number: usize, through: Through, seed: u64) -> Self {
        Self {
            world,
            number,
            through,
            habits: Habits {
                new_tokens: number.is_multiple_of(2),
                cleans_up: number.is_multiple_of(3),
            },
            random: Random::new(seed),
            client: None,
            tokens: 0,
            in_doubt: true,
        }
    }

    pub(crate) fn live(&mut self) {
        while !self.world.is_over() {
            if self.habits.new_tokens || std::mem::take(&mut self.in_doubt) {
                self.tokens += 1;
            }
            let token = format!("{:?}-{}-{}", self.through, self.number, self.tokens);
            self.compete(token);
            self.pause(10, 60);
        }
    }

    fn compete(&mut self, token: String) {
        let lock = self.random.between(0, LOCKS - 1) as usize;
        let key = self.world.locks[lock].clone();
        let lease_ms = self.random.between(LEASE_MS.0, LEASE_MS.1);
        let take = ["SET", &key, &token, "NX", "PX", &lease_ms.to_string()].map(str::to_owned);
        let first_sent = now();
        for _ in 0..self.random.between(1, 20) {
            let sent = now();
            match self.call(&take) {
                Some(Value::Simple(_)) => {
                    self.world.tally.acquisition(match self.through {
                        Through::Redis => "SET NX by a plain client",
                        Through::Gate(_) => "SET NX through a gate",
                    });
                    self.own(Tenure {
                        lock,
                        token,
                        extended: false,
                        // A gate without a connection for locks lets Redis decide, which knows no grace time.
                        through: Through::Redis,
                        first_sent,
                        read: now(),
                        fence: None,
                        lease_from: LeaseFrom::Sent(sent),
                        lease: lease_ms * 1_000,
                        session: false,
                        until: 0,
                        denied: None,
                        told_lost: None,
                    });
                    return;
                }
                Some(Value::Nil) => {
                    if self.habits.cleans_up {
                        self.release(&key, &token);
                    }
                    if self.in_doubt {
                        return;
                    }
                    self.pause(5, 50);
                }
                _ => return,
            }
        }
    }

    fn own(&mut self, mut tenure: Tenure) {
        self.pause(0, 60);
        tenure.until = now();
        if self.random.percent(95) {
            let key = self.world.locks[tenure.lock].clone();
            if self.release(&key, &tenure.token) == Some(Value::Integer(0)) {
                tenure.denied = Some(now());
            }
        } else {
            // Its lease runs out.
            self.in_doubt = true;
        }
        self.world
            .chronicle
            .write(|history| history.tenures.push(tenure));
    }

    fn release(&mut self, key: &str, token: &str) -> Option<Value> {
        self.call(&["EVAL", RELEASE, "1", key, token].map(str::to_owned))
    }

    /// The reply; nothing where there was none.
    fn call(&mut self, words: &[String]) -> Option<Value> {
        let reply = self.try_call(words);
        self.in_doubt |= matches!(reply, None | Some(Value::Error(_)));
        reply
    }

    fn try_call(&mut self, words: &[String]) -> Option<Value> {
        if self.client.is_none() {
            let address = match self.through {
                Through::Redis => self.world.redis,
                Through::Gate(gate) => self.world.gates[gate],
            };
            self.client = Client::try_connect(address).ok();
        }
        let client = self.client.as_mut()?;
        let reply = client
            .try_write(&frame(words))
            .and_then(|()| client.hears_within(PATIENCE))
            .and_then(|heard| heard.then(|| client.try_read()).transpose());
        match reply {
            Ok(Some(value)) => Some(value),
            Ok(None) | Err(_) => {
                self.client = None;
                None
            }
        }
    }

    fn pause(&mut self, least_ms: u64, most_ms: u64) {
        thread::sleep(Duration::from_millis(
            self.random.between(least_ms, most_ms),
        ));
    }
}
