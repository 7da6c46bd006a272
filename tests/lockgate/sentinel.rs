//! Sentinels name the master. Failovers under load are a run of their own (`tests/failover`).

use crate::admin::{
    events::{events, next_with},
    get,
};
use crate::support::{Lockgate, SHORT_GRACE, Sentinels, Value, eventually};

/// A user of the Sentinels, for lockgate alone: they let in nobody but lockgate by it.
const GATE: [(&str, &str); 2] = [
    ("LOCKGATE_SENTINEL_USER", "gate"),
    ("LOCKGATE_SENTINEL_PASSWORD", "secret"),
];

fn gate(upstream: &str, environment: &[(&str, &str)]) -> Lockgate {
    let flags = ["--upstream", upstream, "--admin", "127.0.0.1:0"];
    Lockgate::start_with(&flags, &[&SHORT_GRACE[..], environment].concat())
}

/// Waits until `INFO lockgate` has this line.
#[track_caller]
fn comes_to_say(gate: &Lockgate, line: &str) {
    let mut info = String::new();
    eventually(line, || {
        let said = gate.client().say("INFO lockgate");
        // An error while Redis is away: the connection is ordinary.
        info = match said {
            Value::Bulk(_) => said.text(),
            _ => String::new(),
        };
        info.lines().any(|its| its == line)
    });
}

#[test]
fn an_owner_keeps_its_lock_and_waiters_go_on_when_the_master_changes() {
    let mut sentinels = Sentinels::start();
    let gate = gate(&sentinels.url(), &[]);
    let (mut owner, mut waiter) = (gate.client(), gate.client());
    assert_eq!(owner.say("LOCK a TOKEN t1 PX 60000"), "t1");
    waiter.send(&["LOCK", "a", "TOKEN", "t2"]);
    gate.awaits_waiters("a", 1);
    let mut direct = gate.client();
    assert_eq!(direct.say("SET before 1"), "OK");
    for count in 1..=3 {
        match count {
            1 => sentinels.fails_over(),
            2 => sentinels.crashes_with_a_lost_second(),
            // The old master lives, and takes writes.
            _ => sentinels.is_cut_off(),
        };
        let master = sentinels.master().address();
        comes_to_say(&gate, &format!("lockgate_upstream:{master} (m)"));
        comes_to_say(&gate, &format!("lockgate_failovers:{count}"));
        assert_eq!(sentinels.master().client().say("GET a"), "t1");
        // On the connection that it has had all the time.
        assert_eq!(direct.say(&format!("SET after {count}")), "OK");
        let after = sentinels.master().client().say("GET after");
        assert_eq!(after, count.to_string().as_str());
        sentinels.heals(false);
    }
    let told = next_with(&mut events(gate.admin_address()), r#""heard":3,"known":3"#);
    assert!(!told.contains(r#""last_failover_ms":null"#), "{told}");
    assert_eq!(owner.say("UNLOCK a t1"), 1);
    assert_eq!(waiter.read_reply(), "t2");
    assert_eq!(sentinels.master().client().say("GET a"), "t2");
    assert_eq!(direct.say("GET before"), "1");
}

#[test]
fn all_sentinels_are_watched_though_one_is_named() {
    let sentinels = Sentinels::start();
    let one = sentinels.sentinels()[0].port();
    // Named by its host, though the others name it by its address.
    let gate = gate(&format!("redis+sentinel://localhost:{one}/m"), &[]);
    comes_to_say(&gate, "lockgate_sentinels_heard:3");
    comes_to_say(&gate, "lockgate_sentinels:3");
    let metrics = get(gate.admin_address(), "/metrics").1;
    assert!(
        metrics.contains("\nlockgate_sentinels_heard 3\n"),
        "{metrics}"
    );
}

#[test]
fn an_instance_that_hears_no_sentinel_goes_on_or_stops_as_it_is_told() {
    let sentinels = Sentinels::start();
    sentinels.add_user("gate");
    let serves = gate(&sentinels.url(), &GATE);
    let stop = [&GATE[..], &[("LOCKGATE_SENTINEL_ISOLATED", "stop")]].concat();
    let stops = gate(&sentinels.url(), &stop);
    for (number, gate) in [&serves, &stops].into_iter().enumerate() {
        comes_to_say(gate, "lockgate_sentinels_heard:3");
        assert_eq!(
            gate.client().say(&format!("LOCK first:{number} TOKEN t")),
            "t"
        );
    }
    sentinels.lets_in("gate", false);
    for gate in [&serves, &stops] {
        comes_to_say(gate, "lockgate_sentinels_heard:0");
    }
    assert_eq!(serves.client().say("TRYLOCK a TOKEN t"), "t");
    assert_eq!(get(serves.admin_address(), "/readyz").0, 200);
    let refused = stops.client().say("TRYLOCK b TOKEN t");
    let Value::Error(why) = &refused else {
        panic!("{refused:?}")
    };
    assert!(why.contains("sentinel.isolated"), "{why}");
    let refused = stops.client().say("UNLOCK first:1 t");
    assert!(refused.error().starts_with("UPSTREAM "), "{refused:?}");
    assert_eq!(get(stops.admin_address(), "/readyz").0, 503);
    // An ordinary command needs no majority.
    assert_eq!(stops.client().say("GET first:1"), "t");
    let mut waiter = stops.client();
    waiter.send(&["LOCK", "b", "TOKEN", "t"]);
    sentinels.lets_in("gate", true);
    assert_eq!(waiter.read_reply(), "t");
    assert_eq!(stops.client().say("UNLOCK first:1 t"), 1);
}

#[test]
fn what_keeps_a_sentinel_from_naming_the_master_is_said() {
    let sentinels = Sentinels::start();
    let url = sentinels.url();
    let unknown = url.replace("/m", "/orders");
    sentinels.add_user("gate");
    let wrong = [("LOCKGATE_SENTINEL_PASSWORD", "wrong"), GATE[0]];
    for (url, environment, why) in [
        (
            &unknown,
            &[][..],
            "it does not know the service orders; it knows m",
        ),
        (&url, &wrong, "WRONGPASS"),
        (&"redis+sentinel://127.0.0.1:1/m".to_owned(), &[], "refused"),
    ] {
        let gate = gate(url, environment);
        let mut told = (0, String::new());
        eventually(why, || {
            told = get(gate.admin_address(), "/readyz");
            told.0 == 503 && told.1.contains(why)
        });
        let logged = gate.logged("no sentinel names the master yet; trying on");
        assert!(
            logged[0]["reason"].as_str().unwrap().contains(why),
            "{logged:?}"
        );
        let refused = gate.client().say("TRYLOCK a");
        assert!(refused.error().starts_with("UPSTREAM "), "{refused:?}");
    }
}

#[test]
fn locks_stand_still_while_a_planned_failover_promotes_a_replica() {
    let mut sentinels = Sentinels::start();
    let pauses = gate(&sentinels.url(), &[]);
    let goes_on = gate(&sentinels.url(), &[("LOCKGATE_SENTINEL_PAUSE", "false")]);
    for gate in [&pauses, &goes_on] {
        comes_to_say(gate, "lockgate_sentinels_heard:3");
        assert_eq!(gate.client().say("LOCK a TOKEN t PX 60000"), "t");
    }
    sentinels.fails_over();
    for (gate, count) in [(&pauses, 1), (&goes_on, 0)] {
        comes_to_say(gate, "lockgate_failovers:1");
        comes_to_say(gate, &format!("lockgate_failover_pauses:{count}"));
        assert_eq!(gate.client().say("RELOCK a t PX 60000"), 1);
    }
}
