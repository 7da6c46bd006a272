//! Which user a connection is: the one that Redis took it for, whatever was asked for.

use super::{House, NO_KEY, in_each_protocol, is_error};
use crate::support::{Client, Value};

/// Sends lines at once, and reads as many replies.
fn at_once(client: &mut Client, lines: &[&str]) -> Vec<Value> {
    client.write_raw((lines.join("\r\n") + "\r\n").as_bytes());
    lines.iter().map(|_| client.read_reply()).collect()
}

/// The connection has ben's rights: not ann's, and not everybody's.
#[track_caller]
fn is_ben(client: &mut Client) {
    assert_eq!(client.say("LOCK b:1 TOKEN t"), "t");
    assert_eq!(client.say("UNLOCK b:1 t"), 1);
    is_error(&client.say("TRYLOCK a:1"), NO_KEY);
    assert_eq!(client.say("ACL WHOAMI"), "ben");
}

#[test]
fn every_way_to_say_who_one_is_counts() {
    for lines in [
        &["AUTH ben pw"][..],
        &["HELLO 3 AUTH ben pw"],
        &["HELLO 2 AUTH ben pw SETNAME x"],
        &["hello 3 setname x auth ben pw"],
        &["HELLO 3 AUTH ann pw AUTH ben pw"],
        &["AUTH ann pw", "AUTH ben pw"],
        &["AUTH ben pw", "AUTH ann wrong"],
        &["AUTH ben pw", "AUTH ann"],
        &["AUTH ben pw", "HELLO 3"],
        &["AUTH ben pw", "HELLO 3 AUTH ann wrong"],
        &["AUTH ben pw", "HELLO 9 AUTH ann pw"],
        &["AUTH ann pw", "RESET", "AUTH ben pw"],
        &["MULTI", "AUTH ben pw", "EXEC"],
        &["AUTH ben pw", "MULTI", "AUTH ann pw", "DISCARD"],
        &["AUTH ben pw", "MULTI", "AUTH ann wrong", "EXEC"],
        &["AUTH ben pw", "MULTI", "AUTH ann pw", "NOSUCH", "EXEC"],
        &["MULTI", "AUTH ann pw", "AUTH ben pw", "EXEC"],
        &["AUTH \"ben\" \"p\\x77\""],
    ] {
        let house = House::new();
        let mut client = house.gate.client();
        at_once(&mut client, lines);
        is_ben(&mut client);
    }
}

/// Lock commands between logins in one packet run as whoever the connection is by then.
#[test]
fn each_lock_command_of_a_packet_runs_as_who_it_was_sent_by() {
    let house = House::new();
    let mut client = house.gate.client();
    let replies = at_once(
        &mut client,
        &[
            "AUTH ann pw",
            "LOCK a:1 TOKEN t",
            "LOCK b:1 TOKEN t",
            "AUTH ben wrong",
            "LOCK a:2 TOKEN t",
            "AUTH ben pw",
            "LOCK a:3 TOKEN t",
            "LOCK b:1 TOKEN t",
            "UNLOCK a:1 t",
        ],
    );
    for (at, token) in [(1, "t"), (4, "t"), (7, "t")] {
        assert_eq!(replies[at], token, "{replies:?}");
    }
    for at in [2, 6, 8] {
        is_error(&replies[at], NO_KEY);
    }
    assert!(replies[3].error().starts_with("WRONGPASS"));
    assert_eq!(client.say("AUTH ann pw"), "OK");
    for key in ["a:1", "a:2"] {
        assert_eq!(client.call(&["UNLOCK", key, "t"]), 1, "{key}");
    }
}

#[test]
fn logins_count_where_nobody_hears_of_them() {
    for silence in ["OFF", "SKIP"] {
        let house = House::new();
        let mut client = house.gate.client();
        client.write_raw(format!("CLIENT REPLY {silence}\r\nAUTH ben pw\r\n").as_bytes());
        client.write_raw(b"CLIENT REPLY ON\r\n");
        assert_eq!(client.read_reply(), "OK");
        is_ben(&mut client);
    }
}

#[test]
fn after_a_reset_the_connection_is_nobodys() {
    in_each_protocol(|house, protocol| {
        assert_eq!(
            house.admin().say("ACL SETUSER default resetkeys ~d:*"),
            "OK"
        );
        let mut client = house.client("ann", protocol);
        assert_eq!(client.say("LOCK a:1 TOKEN t"), "t");
        assert_eq!(client.say("RESET"), "RESET");
        for command in [
            "UNLOCK a:1 t",
            "RELOCK a:1 t",
            "TRYLOCK a:1",
            "LOCK a:2",
            "LOCKINFO a:1",
        ] {
            is_error(&client.say(command), NO_KEY);
        }
        assert_eq!(client.say("LOCK d:1 TOKEN t"), "t");
        // In one packet with what is sent as ann, too.
        let lines = [
            "AUTH ann pw",
            "LOCK a:2 TOKEN t",
            "RESET",
            "LOCK a:3",
            "UNLOCK d:1 t",
        ];
        let replies = at_once(&mut client, &lines);
        assert_eq!(replies[1], "t");
        is_error(&replies[3], NO_KEY);
        assert_eq!(replies[4], 1);
    });
}

/// Redis up to 7.0 takes each of several names of one HELLO as it comes, so that a refusal does not say
/// who the connection is.
#[test]
fn a_client_of_unknown_identity_takes_no_locks() {
    let house = House::new();
    for hello in [
        "HELLO 3 AUTH ann pw AUTH ben wrong",
        "HELLO 3 AUTH ann pw NOSUCH",
    ] {
        let mut client = house.gate.client();
        assert!(matches!(client.say(hello), Value::Error(_)));
        for command in super::lock_commands("a:1", "t") {
            assert!(
                client.say(&command).error().contains("is not known"),
                "{command}"
            );
        }
        assert_eq!(client.say("AUTH ben pw"), "OK");
        is_ben(&mut client);
    }
}

#[test]
fn a_user_with_too_long_a_name_takes_no_locks() {
    let house = House::new();
    let long = "x".repeat(20_000);
    let mut admin = house.admin();
    let rule = format!(">{long}");
    assert_eq!(admin.call(&["ACL", "SETUSER", "ben", &rule]), "OK");
    let mut client = house.gate.client();
    assert_eq!(client.call(&["AUTH", "ben", &long]), "OK");
    let reply = client.say("LOCK b:1");
    assert!(reply.error().contains("too long"), "{reply:?}");
    assert_eq!(client.say("AUTH ben pw"), "OK");
    is_ben(&mut client);
    // Of very many at once the last one counts.
    let many = vec!["AUTH ann pw"; 100];
    at_once(&mut client, &[&many[..], &["AUTH ben pw"]].concat());
    is_ben(&mut client);
}

/// A client that has not authenticated is Redis's `default` user, with the rights of that.
#[test]
fn an_unauthenticated_client_is_the_default_user() {
    let house = House::new();
    let rule = "ACL SETUSER default resetkeys ~d:*";
    assert_eq!(house.admin().say(rule), "OK");
    for greeting in ["PING", "HELLO 3", "HELLO 2"] {
        let mut client = house.gate.client();
        is_error(&client.say("LOCK a:1"), NO_KEY);
        client.say(greeting);
        is_error(&client.say("TRYLOCK a:1"), NO_KEY);
        assert_eq!(client.say("LOCK d:1 TOKEN t"), "t");
        assert_eq!(client.say("UNLOCK d:1 t"), 1);
    }
}
