//! Clients that die, at any moment, hold nobody up.

use std::{
    io::Read,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Client, Lockgate, Machine, Monitor, Place, RedisServer, Value, counted, eventually, frame,
    words,
};

/// Far less than the lease that a wrongly granted lock would be held for.
const AT_ONCE: Duration = Duration::from_secs(2);

#[track_caller]
fn is_granted_at_once(client: &mut Client, token: &str) {
    let start = Instant::now();
    assert_eq!(client.read_reply(), token);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
}

/// A client that waits for `k` with a token that lockgate makes.
fn waiter(gate: &Lockgate, place_in_queue: i64) -> Client {
    let mut client = gate.client();
    client.send(&["LOCK", "k"]);
    gate.awaits_waiters("k", place_in_queue);
    client
}

#[test]
fn a_client_killed_while_it_waits_leaves_the_queue() {
    Place::each(|place| {
        let mut holder = place.client();
        for _ in 0..30 {
            assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
            let killed = waiter(&place.gate, 1);
            let mut next = place.client();
            next.send(&["LOCK", "k", "TOKEN", "next"]);
            place.gate.awaits_waiters("k", 2);
            drop(killed);
            place.gate.awaits_waiters("k", 1);
            assert_eq!(holder.say("UNLOCK k holder"), 1);
            is_granted_at_once(&mut next, "next");
            assert_eq!(next.say("UNLOCK k next"), 1);
        }
    });
}

/// The client dies at the very moment of the release. Where the reply was written before, it was
/// an owner that died: then its lease runs out, which is short here.
#[test]
fn a_client_killed_at_the_moment_of_its_grant_does_not_hold_up_the_next_one() {
    Place::each(|place| {
        let mut holder = place.client();
        for round in 0..100 {
            assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
            let mut killed = place.client();
            killed.send(&["LOCK", "k", "PX", "100"]);
            place.gate.awaits_waiters("k", 1);
            let mut next = place.client();
            next.send(&["LOCK", "k", "TOKEN", "next"]);
            place.gate.awaits_waiters("k", 2);
            thread::scope(|threads| {
                threads.spawn(move || {
                    spin(round * 5);
                    drop(killed);
                });
                assert_eq!(holder.say("UNLOCK k holder"), 1);
            });
            is_granted_at_once(&mut next, "next");
            assert_eq!(next.say("UNLOCK k next"), 1);
        }
    });
}

/// The grant is on its way from Redis, and no reply was written: it goes to the next one, though
/// the lease is long.
#[test]
fn a_grant_under_way_to_a_dead_client_goes_to_the_next_one() {
    let place = Place::with_redis(Machine::shared());
    let (mut holder, mut admin) = (place.client(), place.redis().client());
    for _ in 0..20 {
        assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
        let killed = waiter(&place.gate, 1);
        let mut next = place.client();
        next.send(&["LOCK", "k", "TOKEN", "next"]);
        place.gate.awaits_waiters("k", 2);
        // Redis takes commands for a while, and answers none.
        assert_eq!(admin.say("CLIENT PAUSE 60 ALL"), "OK");
        holder.send(&["UNLOCK", "k", "holder"]);
        drop(killed);
        assert_eq!(holder.read_reply(), 1);
        is_granted_at_once(&mut next, "next");
        assert_eq!(next.say("UNLOCK k next"), 1);
    }
}

/// The only one who waits dies with its grant under way: then nobody holds the lock.
#[test]
fn a_grant_under_way_to_a_dead_client_is_taken_back() {
    let place = Place::with_redis(Machine::shared());
    let (mut holder, mut admin) = (place.client(), place.redis().client());
    for _ in 0..20 {
        assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
        let killed = waiter(&place.gate, 1);
        assert_eq!(admin.say("CLIENT PAUSE 60 ALL"), "OK");
        holder.send(&["UNLOCK", "k", "holder"]);
        drop(killed);
        assert_eq!(holder.read_reply(), 1);
        let start = Instant::now();
        assert_eq!(holder.say("LOCK k TOKEN later"), "later");
        assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
        assert_eq!(holder.say("UNLOCK k later"), 1);
    }
}

#[test]
fn an_owner_that_dies_holds_the_lock_until_its_lease_is_over() {
    Place::each(|place| {
        let mut owner = place.client();
        let start = Instant::now();
        assert_eq!(owner.say("LOCK k TOKEN owner PX 300"), "owner");
        drop(owner);
        assert_eq!(place.client().say("LOCK k TOKEN next"), "next");
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(299), "{waited:?}");
        assert!(waited < AT_ONCE, "{waited:?}");
    });
}

#[test]
fn an_unlock_that_was_sent_before_closing_runs() {
    Place::each(|place| {
        for _ in 0..20 {
            let mut owner = place.client();
            assert_eq!(owner.say("LOCK k TOKEN owner"), "owner");
            owner.send(&["UNLOCK", "k", "owner"]);
            drop(owner);
            let start = Instant::now();
            assert_eq!(place.client().say("LOCK k TOKEN next"), "next");
            assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
            assert_eq!(place.client().say("UNLOCK k next"), 1);
        }
    });
}

/// As Redis has it for a blocked client; but an `UNLOCK` runs.
#[test]
fn commands_behind_a_waiting_lock_are_dropped_with_their_client() {
    let place = Place::with_redis(Machine::shared());
    let mut holder = place.client();
    assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
    let mut monitor = Monitor::start(place.redis());
    let mut killed = place.client();
    assert_eq!(killed.say("LOCK other TOKEN killed"), "killed");
    killed.send(&["LOCK", "k"]);
    killed.send(&["SET", "never", "written"]);
    killed.send(&["UNLOCK", "other", "killed"]);
    place.gate.awaits_waiters("k", 1);
    drop(killed);
    place.gate.awaits_waiters("k", 0);
    let mut next = place.client();
    assert_eq!(
        next.say("LOCK other TOKEN next"),
        "next",
        "the kept UNLOCK ran"
    );
    assert_eq!(holder.say("UNLOCK k holder"), 1);
    assert_eq!(next.say("TRYLOCK k TOKEN next"), "next");
    assert_eq!(next.say("GET never"), Value::Nil);
    assert!(monitor.commands_on("written").is_empty());
}

/// Longer than lockgate waits for a client that left.
const LINGER: Duration = Duration::from_secs(11);

/// The same bytes mean another lock in another database: where that was not changed any more, they mean nothing.
#[test]
fn an_unlock_behind_what_changes_its_meaning_is_dropped_with_its_client() {
    Place::each(|place| {
        let mut owner = place.client();
        assert_eq!(owner.say("LOCK k TOKEN t"), "t");
        assert_eq!(owner.say("LOCK job TOKEN mine"), "mine");
        for change in ["SELECT 5", "AUTH another", "HELLO 3", "RESET", "QUIT"] {
            let mut client = place.client();
            let sent = [
                frame(&["LOCK", "k"]),
                frame(&["GET", "x"]),
                frame(&words(change)),
                frame(&["UNLOCK", "job", "mine"]),
            ];
            client.write_raw(&sent.concat());
            place.gate.awaits_waiters("k", 1);
            drop(client);
            place.gate.awaits_waiters("k", 0);
            assert_eq!(owner.say("RELOCK job mine"), 1, "{change}");
        }
        assert_eq!(owner.say("UNLOCK job mine"), 1);
        assert_eq!(owner.say("UNLOCK k t"), 1);
    });
}

/// A command behind an unanswered one is run, unless the unanswered one may have changed its meaning.
#[test]
fn an_unlock_behind_what_was_not_answered_runs_if_it_is_known_what_it_means() {
    let place = Place::with_redis(Machine::shared());
    let mut killer = place.redis().client();
    for (before, runs) in [
        (&["SELECT 5"][..], false),
        (&["MULTI", "SELECT 5", "EXEC"], false),
        (&["MULTI", "SET x 1"], false),
        (&["RESET"], false),
        (&["SUBSCRIBE news"], false),
        (&["GET x", "CLIENT SETNAME me"], true),
        (&["MULTI", "SET x 1", "EXEC"], true),
        (&["MULTI", "SET x 1", "DISCARD"], true),
    ] {
        let mut owner = place.client();
        assert_eq!(owner.say("LOCK job TOKEN mine"), "mine");
        let mut client = place.client();
        assert!(client.say("TRYLOCK job").is_nil());
        let id = client.say("CLIENT ID").integer().to_string();
        let said = [&["BLPOP nothing 0"], before, &["UNLOCK job mine"]].concat();
        let said: Vec<u8> = said.iter().flat_map(|it| frame(&words(it))).collect();
        client.write_raw(&said);
        eventually("Redis waits", || {
            let clients = killer.say("INFO clients");
            clients.text().contains("blocked_clients:1")
        });
        // With the connection to Redis it ends, too.
        assert_eq!(killer.call(&["CLIENT", "KILL", "ID", &id]), 1);
        client.is_closed_by_the_server();
        assert_eq!(owner.say("UNLOCK job mine"), i64::from(!runs), "{before:?}");
    }
}

/// `QUIT` has its turn when what is before it is done, however long that takes.
#[test]
fn a_quit_behind_a_slow_command_waits_for_it() {
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut redis) = (place.client(), place.redis().client());
    assert_eq!(client.say("PING"), "PONG");
    client.write_raw(b"BLPOP list 0\r\nQUIT\r\n");
    thread::sleep(LINGER);
    assert_eq!(redis.say("RPUSH list x"), 1);
    assert_eq!(client.read_reply().items()[1], "x");
    assert_eq!(client.read_reply(), "OK");
    client.is_closed_by_the_server();
}

/// As in Redis, nothing behind a `QUIT` runs or is answered.
#[test]
fn nothing_behind_a_quit_runs() {
    for place in [Place::with_redis, Place::embedded] {
        let place = place(Machine::shared());
        let mut owner = place.client();
        let lock = "LOCK job TOKEN mine PX 60000";
        let befores = [
            "",
            "PING",
            "HELLO 3",
            "MULTI",
            "CLIENT REPLY OFF",
            "TRYLOCK job",
        ];
        for before in befores.iter().cycle().take(60) {
            assert_eq!(owner.say(lock), "mine");
            let mut client = place.client();
            // With Redis, the client has its own connection to it from here on.
            assert_eq!(client.say("ECHO open"), "open");
            let pipe = format!("{before}\r\nQUIT\r\nUNLOCK job mine\r\nECHO behind\r\n");
            client.write_raw(pipe.as_bytes());
            let mut heard = Vec::new();
            let _ = client.writer().read_to_end(&mut heard);
            let heard = heard.escape_ascii().to_string();
            let last = if *before == "CLIENT REPLY OFF" {
                ""
            } else {
                "+OK\\r\\n"
            };
            assert!(
                heard.ends_with(last) && !heard.contains("behind"),
                "{before}: {heard}"
            );
            assert_eq!(owner.say("UNLOCK job mine"), 1, "{before}");
        }
    }
}

/// Returns when no socket on the way takes any more of Redis's replies.
#[track_caller]
fn are_stuck(replies_of: &RedisServer) {
    let mut before = 0;
    eventually("the replies are stuck", || {
        let earlier = std::mem::replace(&mut before, replies_of.output_bytes());
        thread::sleep(Duration::from_millis(200));
        before > 0 && before == earlier
    });
}

/// Only a client that closes gives back what is bound to its connection. This one does not even notice that it
/// is closed, for it has lost a lock; and it is given up when it has taken nothing for long.
#[test]
fn a_connection_that_the_gate_gives_up_releases_nothing() {
    let place = Place::with_redis(Machine::shared());
    let (mut stalled, mut redis) = (place.client(), place.redis().client());
    for key in ["bound", "lost"] {
        let command = ["LOCK", key, "TOKEN", "t", "PX", "60000", "SESSION"];
        assert_eq!(stalled.call(&command), "t");
    }
    assert_eq!(redis.call(&["SET", "big", &"x".repeat(16 << 20)]), "OK");
    stalled.write_raw(&frame(&["GET", "big"]).repeat(4));
    stalled.hears_something();
    are_stuck(place.redis());
    let mut observer = place.client();
    assert_eq!(redis.say("DEL lost"), 1);
    eventually("the loss is seen", || {
        counted(&mut observer, "lost_sessions") == 1
    });
    let lost = Instant::now();
    while counted(&mut observer, "clients") > 1 {
        assert!(lost.elapsed() < 2 * LINGER, "it is never given up");
        thread::sleep(Duration::from_millis(100));
    }
    assert!(lost.elapsed() > LINGER / 2, "it was not waited for");
    observer.say("PING");
    assert_eq!(redis.say("GET bound"), "t");
    assert!(redis.say("PTTL bound").integer() > 30_000);
}

/// A delay shorter than a sleep can be.
fn spin(micros: u64) {
    let end = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
