//! The same token again is the same owner asking again; looking inside; lengthening a lease.

use std::time::Duration;

use crate::support::{Client, Place, Value, eventually};

#[test]
fn an_owner_that_retries_is_granted_again() {
    Place::each(|place| {
        assert_eq!(place.client().say("LOCK k TOKEN t PX 60000"), "t");
        assert_eq!(place.client().say("LOCK k TOKEN t PX 20000"), "t");
        assert_eq!(place.client().say("TRYLOCK k TOKEN t PX 10000"), "t");
        let left = ttl(&mut place.client(), "k");
        assert!(
            (9_000..=10_000).contains(&left),
            "the lease began anew: {left} ms"
        );
        assert_eq!(
            place.client().say("UNLOCK k t"),
            1,
            "however often it was granted"
        );
        assert_eq!(place.client().say("UNLOCK k t"), 0);
    });
}

#[test]
fn an_owner_is_granted_again_past_the_waiters() {
    Place::each(|place| {
        let (mut a, mut b) = (place.client(), place.client());
        assert_eq!(a.say("LOCK k TOKEN a"), "a");
        b.send(&["LOCK", "k", "TOKEN", "b"]);
        place.gate.awaits_waiters("k", 1);
        assert_eq!(a.say("LOCK k TOKEN a"), "a");
        assert_eq!(a.say("TRYLOCK k TOKEN a"), "a");
        assert_eq!(a.say("UNLOCK k a"), 1);
        assert_eq!(b.read_reply(), "b");
    });
}

#[test]
fn a_retry_on_a_new_connection_joins_the_place_of_the_first() {
    Place::each(|place| {
        let mut holder = place.client();
        assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
        let (mut first, mut behind, mut again) = (place.client(), place.client(), place.client());
        first.send(&["LOCK", "k", "TOKEN", "t"]);
        place.gate.awaits_waiters("k", 1);
        behind.send(&["LOCK", "k", "TOKEN", "behind"]);
        place.gate.awaits_waiters("k", 2);
        again.send(&["LOCK", "k", "TOKEN", "t", "WAIT", "10000"]);
        again.hears_nothing_for(Duration::from_millis(50));
        drop(first);
        again.hears_nothing_for(Duration::from_millis(50));
        assert_eq!(holder.say("UNLOCK k holder"), 1);
        assert_eq!(again.read_reply(), "t", "before the one behind");
        behind.hears_nothing_for(Duration::from_millis(20));
        assert_eq!(again.say("UNLOCK k t"), 1);
        assert_eq!(behind.read_reply(), "behind");
    });
}

#[test]
fn all_that_joined_a_place_are_granted() {
    Place::each(|place| {
        let (mut holder, mut a, mut b) = (place.client(), place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
        a.send(&["LOCK", "k", "TOKEN", "t"]);
        b.send(&["LOCK", "k", "TOKEN", "t"]);
        a.hears_nothing_for(Duration::from_millis(30));
        b.hears_nothing_for(Duration::from_millis(30));
        assert_eq!(holder.say("UNLOCK k holder"), 1);
        assert_eq!(a.read_reply(), "t");
        assert_eq!(b.read_reply(), "t");
        assert_eq!(a.say("UNLOCK k t"), 1);
        assert_eq!(b.say("UNLOCK k t"), 0);
    });
}

#[test]
fn the_place_of_a_named_token_outlives_its_connection_for_a_while() {
    Place::each(|place| {
        let (mut holder, mut behind) = (place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
        let mut first = place.client();
        first.send(&["LOCK", "k", "TOKEN", "t"]);
        place.gate.awaits_waiters("k", 1);
        behind.send(&["LOCK", "k", "TOKEN", "behind"]);
        place.gate.awaits_waiters("k", 2);
        drop(first);
        let mut again = place.client();
        again.send(&["LOCK", "k", "TOKEN", "t"]);
        again.hears_nothing_for(Duration::from_millis(50));
        assert_eq!(holder.say("UNLOCK k holder"), 1);
        assert_eq!(again.read_reply(), "t", "its place was kept");
        assert_eq!(again.say("UNLOCK k t"), 1);
        assert_eq!(behind.read_reply(), "behind");
    });
}

#[test]
fn a_client_that_waits_in_slices_keeps_its_place_until_it_unlocks() {
    Place::each(|place| {
        let (mut holder, mut sliced) = (place.client(), place.client());
        let (mut behind, mut last) = (place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
        assert_eq!(sliced.say("LOCK k TOKEN t WAIT 20"), Value::Nil);
        behind.send(&["LOCK", "k", "TOKEN", "behind"]);
        place.gate.awaits_waiters("k", 1);
        for _ in 0..3 {
            assert_eq!(sliced.say("LOCK k TOKEN t WAIT 20"), Value::Nil);
        }
        sliced.send(&["LOCK", "k", "TOKEN", "t", "WAIT", "20000"]);
        place.gate.awaits_waiters("k", 2);
        assert_eq!(holder.say("UNLOCK k holder"), 1);
        assert_eq!(sliced.read_reply(), "t", "its place was kept");
        last.send(&["LOCK", "k", "TOKEN", "last"]);
        place.gate.awaits_waiters("k", 2);
        assert_eq!(sliced.say("UNLOCK k t"), 1);
        assert_eq!(behind.read_reply(), "behind");

        let mut gives_up = place.client();
        assert_eq!(gives_up.say("LOCK k TOKEN u WAIT 20"), Value::Nil);
        let mut newcomer = place.client();
        newcomer.send(&["LOCK", "k", "TOKEN", "newcomer"]);
        place.gate.awaits_waiters("k", 2);
        assert_eq!(gives_up.say("UNLOCK k u"), 0);
        gives_up.send(&["LOCK", "k", "TOKEN", "u"]);
        place.gate.awaits_waiters("k", 3);
        assert_eq!(behind.say("UNLOCK k behind"), 1);
        assert_eq!(last.read_reply(), "last");
        assert_eq!(last.say("UNLOCK k last"), 1);
        assert_eq!(newcomer.read_reply(), "newcomer", "the place was given up");
    });
}

#[test]
fn relock_begins_the_lease_anew_and_never_acquires() {
    Place::each(|place| {
        let mut client = place.client();
        assert_eq!(client.say("RELOCK k t"), 0);
        assert_eq!(
            client.say("TRYLOCK k TOKEN t PX 5000"),
            "t",
            "RELOCK took nothing"
        );
        assert_eq!(client.say("RELOCK k other PX 50000"), 0);
        assert!(ttl(&mut client, "k") <= 5_000);
        assert_eq!(client.say("RELOCK k t PX 50000"), 1);
        let left = ttl(&mut client, "k");
        assert!((49_000..=50_000).contains(&left), "{left} ms");
        assert_eq!(client.say("RELOCK k t EX 10"), 1);
        let left = ttl(&mut client, "k");
        assert!((9_000..=10_000).contains(&left), "{left} ms");
        assert_eq!(client.say("RELOCK k t"), 1);
        let left = ttl(&mut client, "k");
        assert!(
            (29_000..=30_000).contains(&left),
            "the default lease: {left} ms"
        );
        assert_eq!(client.say("UNLOCK k t"), 1);
        assert_eq!(client.say("RELOCK k t"), 0);
    });
}

#[test]
fn relock_keeps_a_lock_that_others_wait_for() {
    Place::each(|place| {
        let (mut a, mut b) = (place.client(), place.client());
        assert_eq!(a.say("LOCK k TOKEN a PX 300"), "a");
        b.send(&["LOCK", "k", "TOKEN", "b"]);
        place.gate.awaits_waiters("k", 1);
        assert_eq!(a.say("RELOCK k a PX 30000"), 1);
        b.hears_nothing_for(Duration::from_millis(400));
        assert_eq!(a.say("UNLOCK k a"), 1);
        assert_eq!(b.read_reply(), "b");
    });
}

#[test]
fn lockinfo_tells_of_the_lock_and_shows_no_token() {
    Place::each(|place| {
        let (mut a, mut b) = (place.client(), place.client());
        let free = a.say("LOCKINFO k");
        assert_eq!(free.field("held"), &Value::Integer(0));
        assert_eq!(free.field("waiters"), &Value::Integer(0));
        assert_eq!(a.say("LOCK k TOKEN secret-a PX 10000"), "secret-a");
        b.send(&["LOCK", "k", "TOKEN", "secret-b"]);
        place.gate.awaits_waiters("k", 1);
        let held = a.say("LOCKINFO k");
        assert_eq!(held.field("held"), &Value::Integer(1));
        let left = held.field("ttl").integer();
        assert!((9_000..=10_000).contains(&left), "{left} ms");
        assert!(!format!("{held:?}").contains("secret"), "{held:?}");
        a.say("HELLO 3");
        assert!(
            matches!(a.say("LOCKINFO k"), Value::Map(_)),
            "a map in RESP3"
        );
    });
}

#[test]
fn locks_names_what_is_held_or_waited_for_here() {
    Place::each(|place| {
        let (mut a, mut b) = (place.client(), place.client());
        assert_eq!(names(&mut a, "LOCKS"), [""; 0]);
        assert_eq!(a.say("LOCK quiet TOKEN a"), "a");
        assert_eq!(a.say("LOCK busy TOKEN a"), "a");
        b.send(&["LOCK", "busy", "TOKEN", "b"]);
        place.gate.awaits_waiters("busy", 1);
        assert_eq!(
            names(&mut a, "LOCKS"),
            ["busy", "quiet"],
            "most waiters first"
        );
        assert_eq!(names(&mut a, "LOCKS COUNT 1"), ["busy"]);
        assert_eq!(names(&mut a, "LOCKS MATCH q*"), ["quiet"]);
        assert_eq!(a.say("SELECT 1"), "OK");
        assert_eq!(names(&mut a, "LOCKS"), [""; 0], "of this database");
        assert_eq!(a.say("SELECT 0"), "OK");
        assert_eq!(a.say("UNLOCK quiet a"), 1);
        assert_eq!(a.say("UNLOCK busy a"), 1);
        assert_eq!(b.read_reply(), "b");
        assert_eq!(b.say("UNLOCK busy b"), 1);
        eventually("nothing is left in memory", || {
            names(&mut a, "LOCKS").is_empty()
        });
    });
}

/// The names in a reply of `LOCKS`.
fn names(client: &mut Client, command: &str) -> Vec<String> {
    client
        .say(command)
        .items()
        .iter()
        .map(Value::text)
        .collect()
}

/// Milliseconds to the end of the lease.
fn ttl(client: &mut Client, key: &str) -> i64 {
    client.call(&["LOCKINFO", key]).field("ttl").integer()
}
