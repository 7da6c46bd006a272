//! Tasks that share one connection: their lock commands travel to Redis together, and take effect in their order.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Client, Lockgate, Machine, Monitor, Place, Proxy, RedisServer, Value, eventually, frame, words,
};

/// Sends the commands in one write.
fn pipeline(client: &mut Client, commands: &[&str]) {
    let bytes: Vec<u8> = commands
        .iter()
        .flat_map(|command| frame(&words(command)))
        .collect();
    client.write_raw(&bytes);
}

fn is_held(redis: &RedisServer, key: &str) -> bool {
    redis.client().call(&["EXISTS", key]) == 1
}

#[test]
fn lock_commands_about_different_locks_reach_redis_before_the_first_reply() {
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let gate = Lockgate::start(&["--upstream", &proxy.url()]);
    let mut client = gate.client();
    // Redis has each script from now on.
    assert_eq!(client.say("LOCK u TOKEN u"), "u");
    assert_eq!(client.say("UNLOCK u u"), 1);
    assert_eq!(client.say("LOCK u TOKEN u"), "u");
    proxy.drop_replies(true);
    pipeline(
        &mut client,
        &[
            "LOCK a TOKEN a",
            "TRYLOCK b TOKEN b",
            "UNLOCK u u",
            "LOCK c TOKEN c",
        ],
    );
    eventually("Redis has executed each of them", || {
        ["a", "b", "c"].iter().all(|key| is_held(&redis, key)) && !is_held(&redis, "u")
    });
    proxy.drop_replies(false);
    proxy.cut();
    for reply in ["a", "b"] {
        assert_eq!(client.read_reply(), reply);
    }
    assert_eq!(client.read_reply(), 1);
    assert_eq!(client.read_reply(), "c");
}

#[test]
fn commands_about_one_lock_take_effect_in_their_order() {
    Place::each(|place| {
        let mut client = place.client();
        for _ in 0..20 {
            pipeline(
                &mut client,
                &[
                    "LOCK k TOKEN a",
                    "RELOCK k a",
                    "TRYLOCK k TOKEN b",
                    "UNLOCK k a",
                    "LOCKINFO k",
                    "TRYLOCK k TOKEN b",
                    "UNLOCK k a",
                    "UNLOCK k b",
                    "LOCKS",
                    "LOCK l TOKEN l",
                    "UNLOCK l l",
                ],
            );
            assert_eq!(client.read_reply(), "a");
            assert_eq!(client.read_reply(), 1);
            assert_eq!(client.read_reply(), Value::Nil);
            assert_eq!(client.read_reply(), 1);
            assert_eq!(*client.read_reply().field("held"), 0);
            assert_eq!(client.read_reply(), "b");
            assert_eq!(client.read_reply(), 0);
            assert_eq!(client.read_reply(), 1);
            assert_eq!(client.read_reply(), Value::Array(vec![]));
            assert_eq!(client.read_reply(), "l");
            assert_eq!(client.read_reply(), 1);
        }
    });
}

/// The first lock is held by a client of this instance, so lockgate knows at once that its `LOCK` waits.
#[test]
fn locks_behind_a_waiting_one_are_not_acquired() {
    Place::each(|place| {
        let (mut holder, mut other, mut shared) = (place.client(), place.client(), place.client());
        assert_eq!(holder.say("LOCK a TOKEN holder"), "holder");
        let mut monitor = place.redis.as_ref().map(Monitor::start);
        pipeline(
            &mut shared,
            &[
                "LOCK a TOKEN a",
                "LOCK b TOKEN first-b",
                "TRYLOCK c TOKEN first-c",
                "UNLOCK d d",
            ],
        );
        place.gate.awaits_waiters("a", 1);
        assert_eq!(other.say("TRYLOCK b TOKEN other"), "other");
        assert_eq!(other.say("TRYLOCK c TOKEN other"), "other");
        if let Some(monitor) = &mut monitor {
            let early = monitor.commands_where(|word| word == "first-b" || word == "first-c");
            assert!(early.is_empty(), "{early:?}");
        }
        assert_eq!(holder.say("UNLOCK a holder"), 1);
        assert_eq!(shared.read_reply(), "a");
        place.gate.awaits_waiters("b", 1);
        assert_eq!(other.say("UNLOCK b other"), 1);
        assert_eq!(shared.read_reply(), "first-b");
        assert_eq!(shared.read_reply(), Value::Nil, "c is held");
        assert_eq!(shared.read_reply(), 0);
    });
}

/// A client of Redis holds the first lock. lockgate learns it when the locks behind are granted.
#[test]
fn locks_that_were_granted_behind_a_waiting_one_are_given_back() {
    let place = Place::with_redis(Machine::shared());
    let (mut direct, mut other, mut shared) =
        (place.redis().client(), place.client(), place.client());
    assert_eq!(direct.say("SET a direct NX PX 60000"), "OK");
    // Its connection to Redis is there.
    assert_eq!(shared.say("TRYLOCK z TOKEN z"), "z");
    let mut monitor = Monitor::start(place.redis());
    pipeline(
        &mut shared,
        &[
            "LOCK a TOKEN a",
            "LOCK b TOKEN b",
            "LOCK b TOKEN b2",
            "TRYLOCK c TOKEN c",
        ],
    );
    place.gate.awaits_waiters("a", 1);
    for key in ["b", "c"] {
        eventually("it is free for others", || {
            other.say(&format!("TRYLOCK {key} TOKEN other")) == "other"
        });
        assert_eq!(
            other.say(&format!("RELOCK {key} {key}")),
            0,
            "the token that was withdrawn holds nothing"
        );
    }
    assert!(
        monitor.commands_on("b2").is_empty(),
        "the second LOCK of one key waits for its turn"
    );
    assert_eq!(direct.say("DEL a"), 1);
    assert_eq!(shared.read_reply(), "a");
    place.gate.awaits_waiters("b", 1);
    assert_eq!(other.say("UNLOCK b other"), 1);
    assert_eq!(shared.read_reply(), "b");
    shared.send(&["UNLOCK", "b", "b"]);
    assert_eq!(shared.read_reply(), "b2");
    assert_eq!(shared.read_reply(), Value::Nil);
    assert_eq!(shared.read_reply(), 1);
}

#[test]
fn the_wait_of_a_lock_behind_a_waiting_one_begins_in_its_turn() {
    let place = Place::with_redis(Machine::shared());
    let (mut direct, mut shared) = (place.redis().client(), place.client());
    for key in ["a", "b"] {
        assert_eq!(direct.say(&format!("SET {key} direct NX PX 60000")), "OK");
    }
    let begun = Instant::now();
    pipeline(&mut shared, &["LOCK a WAIT 400", "LOCK b WAIT 200"]);
    assert_eq!(shared.read_reply(), Value::Nil);
    assert_eq!(shared.read_reply(), Value::Nil);
    assert!(begun.elapsed() >= Duration::from_millis(600), "{begun:?}");
}

#[test]
fn a_client_that_closes_leaves_none_of_the_locks_that_it_had_sent_for() {
    let place = Place::with_redis(Machine::shared());
    for round in 0..20 {
        let (mut direct, mut shared) = (place.redis().client(), place.client());
        assert_eq!(direct.say("SET a direct NX PX 60000"), "OK");
        let commands: Vec<String> = (0..30).map(|i| format!("LOCK b{i}")).collect();
        let mut pipelined = vec!["LOCK a"];
        pipelined.extend(commands.iter().map(String::as_str));
        pipeline(&mut shared, &pipelined);
        if round % 2 == 0 {
            place.gate.awaits_waiters("a", 1);
        }
        drop(shared);
        assert_eq!(direct.say("DEL a"), 1);
        eventually("no lock is left", || {
            direct.say("KEYS b*").items().is_empty()
                && place.client().say("LOCKS").items().is_empty()
        });
    }
}

#[test]
fn nothing_is_acquired_before_the_ordinary_commands_in_front_of_it() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    let mut monitor = Monitor::start(place.redis());
    for round in 0..20 {
        let (set, lock) = (format!("SET x {round}"), format!("LOCK b TOKEN b{round}"));
        pipeline(&mut client, &["LOCK a TOKEN a", &set, &lock]);
        assert_eq!(client.read_reply(), "a");
        assert_eq!(client.read_reply(), "OK");
        assert_eq!(client.read_reply(), format!("b{round}"));
        pipeline(&mut client, &["UNLOCK a a", &format!("UNLOCK b b{round}")]);
        assert_eq!(client.read_reply(), 1);
        assert_eq!(client.read_reply(), 1);
    }
    let commands = monitor.everything();
    for round in 0..20 {
        let first = |argument: String| {
            let mut commands = commands.iter();
            commands.position(|command| command[1..].contains(&argument))
        };
        assert!(
            first(round.to_string()) < first(format!("b{round}")),
            "round {round}"
        );
    }
}

/// A session lock is bound by its reply, so it takes its turn.
#[test]
fn session_locks_take_their_turns() {
    Place::each(|place| {
        let mut shared = place.client();
        pipeline(
            &mut shared,
            &["LOCK a TOKEN a", "LOCK s TOKEN s SESSION", "LOCK b TOKEN b"],
        );
        for reply in ["a", "s", "b"] {
            assert_eq!(shared.read_reply(), reply);
        }
        drop(shared);
        let mut other = place.client();
        assert_eq!(other.say("LOCK s TOKEN other WAIT 5000"), "other");
        assert_eq!(other.say("TRYLOCK b TOKEN other"), Value::Nil);
    });
}

/// The owners, by lock, of every lock that the tasks hold.
type Owners = Arc<Mutex<HashMap<String, String>>>;

/// What a task of a shared connection waits for the reply to.
enum Sent {
    /// `LOCK` or `TRYLOCK` of this key, with this token.
    Acquire(String, String),
    /// `RELOCK` of a lock that the task then releases. It does not wait for the reply: a reply comes in its turn, and
    /// the `LOCK` before it may wait for a task that does the same on another connection.
    Relock,
    Unlock,
}

/// A small generator of numbers, seeded, so that a run can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// Runs tasks over one connection until `cycles` locks were held and released.
fn share(client: &mut Client, id: u64, tasks: usize, cycles: usize, owners: &Owners) {
    let mut dice = Dice(id);
    let (mut sent, mut done, mut number) = (VecDeque::new(), 0, 0);
    let mut begin = |client: &mut Client, dice: &mut Dice| {
        number += 1;
        let (key, token) = (format!("k{}", dice.below(6)), format!("{id}-{number}"));
        let command = match dice.below(4) {
            0 => format!("TRYLOCK {key} TOKEN {token}"),
            1 => format!("LOCK {key} TOKEN {token} WAIT {}", 1 + dice.below(30)),
            _ => format!("LOCK {key} TOKEN {token}"),
        };
        client.send(&words(&command));
        Sent::Acquire(key, token)
    };
    for _ in 0..tasks {
        sent.push_back(begin(client, &mut dice));
    }
    while let Some(command) = sent.pop_front() {
        let reply = client.read_reply();
        match command {
            Sent::Acquire(key, token) if reply == token.as_str() => {
                let before = owners.lock().unwrap().insert(key.clone(), token.clone());
                assert_eq!(before, None, "{key} was held when {token} got it");
                if dice.below(4) == 0 {
                    client.send(&["RELOCK", &key, &token, "PX", "20000"]);
                    sent.push_back(Sent::Relock);
                }
                // Long enough for another task to be seen as an owner, too.
                thread::sleep(Duration::from_micros(dice.below(100)));
                owners.lock().unwrap().remove(&key);
                client.send(&["UNLOCK", &key, &token]);
                sent.push_back(Sent::Unlock);
                continue;
            }
            Sent::Acquire(..) => assert_eq!(reply, Value::Nil),
            Sent::Relock => {
                assert_eq!(reply, 1);
                continue;
            }
            Sent::Unlock => {
                assert_eq!(reply, 1);
                done += 1;
            }
        }
        if done < cycles {
            sent.push_back(begin(client, &mut dice));
        }
    }
}

#[test]
fn tasks_on_shared_connections_hold_each_lock_one_at_a_time() {
    Place::each(|place| {
        let owners = Owners::default();
        let connections: Vec<_> = (1..=4)
            .map(|id| {
                let (mut client, owners) = (place.client(), Arc::clone(&owners));
                thread::spawn(move || share(&mut client, id, 25, 400, &owners))
            })
            .collect();
        for connection in connections {
            connection.join().unwrap();
        }
        assert_eq!(place.client().say("LOCKS"), Value::Array(vec![]));
    });
}
