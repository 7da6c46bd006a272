//! A client that locks in Redis directly, as everybody did before: `SET NX PX`, and a script that
//! deletes its own value. It polls.

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

/// How long Redis may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Plain<'a> {
    world: &'a World,
    number: usize,
    random: Random,
    client: Option<Client>,
}

impl<'a> Plain<'a> {
    pub(crate) fn new(world: &'a World, number: usize, seed: u64) -> Self {
        Self {
            world,
            number,
            random: Random::new(seed),
            client: None,
        }
    }

    pub(crate) fn live(&mut self) {
        let mut tokens = 0;
        while !self.world.is_over() {
            tokens += 1;
            let token = format!("plain-{}-{tokens}", self.number);
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
                    self.world.tally.acquisition("SET NX by a plain client");
                    self.own(Tenure {
                        lock,
                        token,
                        extended: false,
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
                Some(Value::Nil) => self.pause(5, 50),
                _ => return,
            }
        }
    }

    fn own(&mut self, mut tenure: Tenure) {
        self.pause(0, 60);
        tenure.until = now();
        if self.random.percent(95) {
            let key = self.world.locks[tenure.lock].clone();
            let release = ["EVAL", RELEASE, "1", &key, &tenure.token].map(str::to_owned);
            if self.call(&release) == Some(Value::Integer(0)) {
                tenure.denied = Some(now());
            }
        }
        self.world
            .chronicle
            .write(|history| history.tenures.push(tenure));
    }

    /// The reply of Redis; nothing where there was none.
    fn call(&mut self, words: &[String]) -> Option<Value> {
        if self.client.is_none() {
            self.client = Client::try_connect(self.world.redis).ok();
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
