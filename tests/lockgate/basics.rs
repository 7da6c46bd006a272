//! Taking and giving back a lock, without and with a Redis.

use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use crate::support::{Client, Machine, Place, Value, median};

#[test]
fn a_lock_is_granted_once_and_released_once() {
    Place::each(|place| {
        let (mut a, mut b) = (place.client(), place.client());
        let token = a.say("LOCK order:42").text();
        assert!(is_uuid_v4(&token), "{token}");
        assert_eq!(b.say("TRYLOCK order:42"), Value::Nil);
        assert_eq!(a.call(&["UNLOCK", "order:42", &token]), 1);
        assert_eq!(a.call(&["UNLOCK", "order:42", &token]), 0);
        let next = b.say("TRYLOCK order:42").text();
        assert_ne!(next, token, "every grant has a token of its own");
    });
}

#[test]
fn any_connection_may_release_with_the_token() {
    Place::each(|place| {
        assert_eq!(place.client().say("LOCK k TOKEN mine"), "mine");
        assert_eq!(place.client().say("UNLOCK k mine"), 1);
        assert_eq!(place.client().say("TRYLOCK k TOKEN other"), "other");
    });
}

#[test]
fn locks_of_different_names_or_databases_do_not_meet() {
    Place::each(|place| {
        let mut client = place.client();
        assert_eq!(client.say("LOCK k TOKEN a"), "a");
        assert_eq!(client.say("LOCK other TOKEN b"), "b");
        assert_eq!(client.say("SELECT 1"), "OK");
        assert_eq!(client.say("TRYLOCK k TOKEN c"), "c");
        assert_eq!(client.say("UNLOCK k a"), 0, "that one is in database 0");
    });
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_released() {
    Place::each(|place| {
        let (mut a, mut b) = (place.client(), place.client());
        assert_eq!(a.say("LOCK k TOKEN a"), "a");
        b.send(&["LOCK", "k", "TOKEN", "b"]);
        place.gate.awaits_waiters("k", 1);
        b.hears_nothing_for(Duration::from_millis(20));
        assert_eq!(a.say("UNLOCK k a"), 1);
        assert_eq!(b.read_reply(), "b");
        assert_eq!(a.say("UNLOCK k a"), 0, "it is b's now");
        assert_eq!(b.say("UNLOCK k b"), 1);
    });
}

#[test]
fn a_lease_that_runs_out_frees_the_lock() {
    Place::each(|place| {
        let (mut a, mut b) = (place.client(), place.client());
        let start = Instant::now();
        assert_eq!(a.say("LOCK k TOKEN a PX 100"), "a");
        assert_eq!(b.say("LOCK k TOKEN b"), "b");
        assert!(
            start.elapsed() >= Duration::from_millis(99),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(a.say("UNLOCK k a"), 0);
        assert_eq!(b.say("UNLOCK k b"), 1);
    });
}

/// Many ask at the same moment; one has it, and only that one can give it back.
#[test]
fn of_nine_that_try_at_once_exactly_one_has_it() {
    Place::each(|place| {
        for round in 0..20 {
            let key = format!("seat:{round}");
            let start = Barrier::new(9);
            let mut clients = place.gate.clients(9);
            let replies: Vec<Value> = thread::scope(|threads| {
                let tries = clients.iter_mut().map(|client| {
                    threads.spawn(|| {
                        start.wait();
                        client.call(&["TRYLOCK", &key, "EX", "20"])
                    })
                });
                let tries: Vec<_> = tries.collect();
                tries
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            let granted: Vec<usize> = (0..9).filter(|i| !replies[*i].is_nil()).collect();
            let [owner] = granted[..] else {
                panic!("exactly one is to have it: {replies:?}")
            };
            let token = replies[owner].text();
            assert!(is_uuid_v4(&token), "{token}");

            let others = clients.iter_mut().enumerate().filter(|(i, _)| *i != owner);
            for (i, client) in others {
                assert_eq!(client.call(&["UNLOCK", &key, &format!("made-up-{i}")]), 0);
                assert_eq!(client.call(&["TRYLOCK", &key]), Value::Nil, "that freed it");
            }
            assert_eq!(clients[owner].call(&["UNLOCK", &key, &token]), 1);
            assert_eq!(clients[owner].call(&["UNLOCK", &key, &token]), 0);
        }
    });
}

#[test]
fn an_impossible_token_holds_no_lock() {
    Place::each(|place| {
        let mut client = place.client();
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
        assert_eq!(client.call(&["UNLOCK", "k", ""]), 0);
        assert_eq!(client.call(&["UNLOCK", "k", &"x".repeat(257)]), 0);
        let longest = "x".repeat(256);
        assert_eq!(client.call(&["LOCK", "long", "TOKEN", &longest]), longest);
        assert_eq!(client.call(&["UNLOCK", "long", &longest]), 1);
    });
}

#[test]
fn wrong_use_gets_the_words_of_redis() {
    let wrong = [
        ("LOCK", "ERR wrong number of arguments for 'lock' command"),
        (
            "TRYLOCK",
            "ERR wrong number of arguments for 'trylock' command",
        ),
        (
            "UNLOCK k",
            "ERR wrong number of arguments for 'unlock' command",
        ),
        (
            "RELOCK k",
            "ERR wrong number of arguments for 'relock' command",
        ),
        (
            "LOCKINFO",
            "ERR wrong number of arguments for 'lockinfo' command",
        ),
        ("LOCK k NONSENSE", "ERR syntax error"),
        ("LOCK k PX", "ERR syntax error"),
        ("LOCK k PX 1000 EX 1", "ERR syntax error"),
        ("LOCK k WAIT 1 WAIT 2", "ERR syntax error"),
        ("TRYLOCK k WAIT 1", "ERR syntax error"),
        (
            "LOCK k PX ten",
            "ERR value is not an integer or out of range",
        ),
        ("LOCK k WAIT -1", "ERR timeout is negative"),
        ("LOCK k PX 0", "ERR invalid expire time in 'lock' command"),
        ("LOCK k EX -5", "ERR invalid expire time in 'lock' command"),
        (
            "TRYLOCK k PX 0",
            "ERR invalid expire time in 'trylock' command",
        ),
    ];
    Place::each(|place| {
        let mut client = place.client();
        for (command, error) in wrong {
            let reply = client.say(command);
            // A bound that is configured may be told beyond Redis's own words.
            assert!(reply.error().starts_with(error), "{command}: {reply:?}");
        }
        assert_eq!(
            client.say("TRYLOCK k TOKEN t"),
            "t",
            "none of these took it"
        );
    });
}

#[test]
fn names_and_options_are_taken_in_any_case_and_order() {
    Place::each(|place| {
        let mut client = place.client();
        assert_eq!(client.say("lock a wait 5 px 5000 token t"), "t");
        assert_eq!(client.say("TryLock b Token t eX 5"), "t");
        assert_eq!(client.say("relock a t"), 1);
        assert_eq!(client.say("uNLOCK a t"), 1);
    });
}

/// Some proxy or pool in between may look at nothing but the first connection.
#[test]
fn the_same_lock_is_seen_in_both_protocols() {
    Place::each(|place| {
        let (mut two, mut three) = (place.client(), place.client());
        three.say("HELLO 3");
        assert_eq!(two.say("LOCK k TOKEN t"), "t");
        assert_eq!(three.say("TRYLOCK k"), Value::Nil);
        let nil = |client: &mut Client| {
            client.send(&["TRYLOCK", "k"]);
            client.read_raw(3)
        };
        assert_eq!(nil(&mut two), *b"$-1");
        assert_eq!(nil(&mut three), *b"_\r\n");
    });
}

fn is_uuid_v4(text: &str) -> bool {
    let shape: String = text
        .chars()
        .map(|c| {
            if matches!(c, '0'..='9' | 'a'..='f') {
                'x'
            } else {
                c
            }
        })
        .collect();
    shape == "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" && text.as_bytes()[14] == b'4'
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    #[test]
    fn waiting_ends_when_its_time_is_over() {
        let wait = Duration::from_millis(200);
        for place in [Place::embedded as fn(Machine) -> Place, Place::with_redis] {
            let place = place(Machine::alone());
            let (mut holder, mut waiter) = (place.client(), place.client());
            let token = holder.say("LOCK order:42").text();
            let measured = (0..5).map(|_| {
                let start = Instant::now();
                assert_eq!(waiter.say("LOCK order:42 WAIT 200"), Value::Nil);
                let waited = start.elapsed();
                assert!(waited >= wait, "only {waited:?}");
                waited
            });
            let waited = median(measured.collect());
            assert!(waited < Duration::from_millis(260), "{waited:?}");
            // The waiter that gave up has no place any more.
            assert_eq!(holder.call(&["UNLOCK", "order:42", &token]), 1);
            assert_eq!(holder.say("TRYLOCK order:42 TOKEN again"), "again");
        }
    }
}
