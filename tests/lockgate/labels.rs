//! The names that clients give themselves, as operators see them: in `LOCKINFO`, once Redis has accepted them.

use crate::support::{Client, Machine, Place, eventually};

/// The name and the library of the holder, as `LOCKINFO` tells them.
fn label(observer: &mut Client, key: &str) -> (String, String) {
    let info = observer.call(&["LOCKINFO", key]);
    (
        info.field("client-name").text(),
        info.field("client-library").text(),
    )
}

/// Takes a lock, and tells how its holder is shown.
#[track_caller]
fn shown(place: &Place, client: &mut Client) -> (String, String) {
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    let shown = label(&mut place.client(), "k");
    assert_eq!(client.say("UNLOCK k t"), 1);
    shown
}

fn name(place: &Place, client: &mut Client) -> String {
    shown(place, client).0
}

#[test]
fn a_name_is_shown_beside_the_address_from_the_next_lock_on() {
    Place::each(|place| {
        let mut client = place.client();
        let mut observer = place.client();
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
        let info = observer.call(&["LOCKINFO", "k"]);
        assert_eq!(info.field("client-name").text(), "");
        let address = client.writer().local_addr().unwrap().to_string();
        assert_eq!(info.field("client").text(), address);
        assert_eq!(client.say("CLIENT SETNAME worker-1"), "OK");
        assert_eq!(label(&mut observer, "k").0, "", "as it was then");
        assert_eq!(client.say("UNLOCK k t"), 1);
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
        let info = observer.call(&["LOCKINFO", "k"]);
        assert_eq!(info.field("client-name").text(), "worker-1");
        assert_eq!(info.field("client").text(), address);
    });
}

#[test]
fn by_hello_too_and_reset_takes_it_away() {
    Place::each(|place| {
        let mut client = place.client();
        client.say("HELLO 2 SETNAME worker-2");
        assert_eq!(name(place, &mut client), "worker-2");
        assert_eq!(client.say("RESET"), "RESET");
        assert_eq!(name(place, &mut client), "");
        client.send(&["CLIENT", "SETNAME", "a"]);
        client.send(&["CLIENT", "SETNAME", "worker-3"]);
        client.read_reply();
        client.read_reply();
        assert_eq!(name(place, &mut client), "worker-3");
        assert_eq!(client.call(&["CLIENT", "SETNAME", ""]).text(), "OK");
        assert_eq!(name(place, &mut client), "");
        client.say("client setname worker-4");
        client.say("HELLO 3");
        assert_eq!(name(place, &mut client), "worker-4");
    });
}

#[test]
fn refused_client_info_is_not_shown() {
    Place::each(|place| {
        let mut client = place.client();
        client.say("CLIENT SETNAME good");
        for refused in [
            &["CLIENT", "SETNAME", "two words"][..],
            &["CLIENT", "SETNAME", "line\nbreak"],
            &["CLIENT", "SETNAME"],
            &["CLIENT", "SETNAME", "a", "b"],
            &["HELLO", "9", "SETNAME", "bad"],
            &["HELLO", "2", "SETNAME", "bad", "NONSENSE"],
            &["HELLO", "2", "SETNAME", "two words"],
        ] {
            client.call(refused).error();
            assert_eq!(name(place, &mut client), "good", "{refused:?}");
        }
        // Of a long one the beginning.
        let long = "n".repeat(200);
        assert_eq!(client.call(&["CLIENT", "SETNAME", &long]).text(), "OK");
        assert_eq!(name(place, &mut client), "n".repeat(64));
    });
}

#[test]
fn in_a_transaction_it_counts_once_it_ran() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    client.say("CLIENT SETNAME before");
    client.say("MULTI");
    assert_eq!(client.say("CLIENT SETNAME dropped"), "QUEUED");
    assert_eq!(client.say("DISCARD"), "OK");
    assert_eq!(name(&place, &mut client), "before");
    client.say("MULTI");
    assert_eq!(client.say("GET a"), "QUEUED");
    assert_eq!(client.say("CLIENT SETNAME after"), "QUEUED");
    assert_eq!(client.say("GET a"), "QUEUED");
    assert_eq!(client.say("EXEC").items().len(), 3);
    assert_eq!(name(&place, &mut client), "after");
}

/// Redis knows this command from 7.2 on, as the memory of this process does.
#[test]
fn the_library_is_shown_as_far_as_it_was_accepted() {
    Place::each(|place| {
        let mut client = place.client();
        let accepted = client.say("CLIENT SETINFO LIB-NAME redis-py") == "OK";
        client.say("CLIENT SETINFO LIB-VER 8.1.0");
        client.say("CLIENT SETINFO LIB-COLOUR green").error();
        let library = if accepted { "redis-py 8.1.0" } else { "" };
        assert_eq!(
            shown(place, &mut client),
            (String::new(), library.to_owned())
        );
        client.say("CLIENT SETNAME n");
        client.say("RESET");
        assert_eq!(
            shown(place, &mut client).1,
            library,
            "as in Redis, that stays"
        );
    });
    let place = Place::embedded(Machine::shared());
    let mut client = place.client();
    assert_eq!(client.say("CLIENT SETINFO LIB-NAME lettuce"), "OK");
    assert_eq!(shown(&place, &mut client).1, "lettuce");
}

#[test]
fn a_relock_of_a_foreign_lock_makes_the_client_its_holder() {
    let place = Place::with_redis(Machine::shared());
    let (mut first, mut waits, mut second) = (place.client(), place.client(), place.client());
    let mut observer = place.client();
    for (client, name) in [(&mut first, "first"), (&mut second, "second")] {
        assert_eq!(client.call(&["CLIENT", "SETNAME", name]).text(), "OK");
    }
    assert_eq!(first.say("LOCK k TOKEN first PX 60000"), "first");
    waits.send(&["LOCK", "k", "TOKEN", "waits"]);
    eventually("it waits", || {
        *observer.say("LOCKINFO k").field("waiters") == 1
    });
    // Another client of this Redis takes it by force, or so it looks here.
    let mut redis = place.redis().client();
    assert_eq!(redis.say("SET k second PX 60000"), "OK");
    eventually("it is lost", || {
        *observer.say("LOCKINFO k").field("granted-here") == 0
    });
    assert_eq!(label(&mut observer, "k").0, "");
    assert_eq!(second.say("RELOCK k second PX 60000"), 1);
    let info = observer.call(&["LOCKINFO", "k"]);
    assert_eq!(*info.field("granted-here"), 1);
    assert_eq!(info.field("client-name").text(), "second");
    // Somebody may extend it for its owner.
    assert_eq!(observer.say("RELOCK k second PX 60000"), 1);
    assert_eq!(label(&mut observer, "k").0, "second");
    assert_eq!(second.say("UNLOCK k second"), 1);
    assert_eq!(waits.read_reply(), "waits");
}
