//! HTTP requests to the port, which a browser may be made to send: dropped, as Redis does it.

use super::{counted, said_until_closed};
use crate::support::{Machine, Place, eventually};

/// Each with how many replies come before the end, where a command is there before.
const REQUESTS: [(&str, usize, &str); 6] = [
    (
        "",
        0,
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\nUNLOCK k t\r\n",
    ),
    (
        "GET / HTTP/1.1\r\n",
        1,
        "Host: localhost\r\n\r\nUNLOCK k t\r\n",
    ),
    (
        "PING\r\n",
        1,
        "*1\r\n$4\r\npost\r\n*3\r\n$6\r\nUNLOCK\r\n$1\r\nk\r\n$1\r\nt\r\n",
    ),
    ("", 0, "hoST: x\r\nUNLOCK k t\r\n"),
    ("MULTI\r\nSET a b\r\n", 2, "host:\r\nEXEC\r\nUNLOCK k t\r\n"),
    ("CLIENT REPLY OFF\r\nPING\r\n", 0, "POST\r\nUNLOCK k t\r\n"),
];

#[test]
fn they_are_dropped_as_redis_drops_them() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    for (before, replies, request) in REQUESTS {
        for mut other in [place.client(), place.redis().client()] {
            other.write_raw(before.as_bytes());
            (0..replies).for_each(|_| drop(other.read_reply()));
            assert_eq!(
                said_until_closed(other, request.as_bytes()),
                b"",
                "{request}"
            );
        }
    }
    let dropped = counted(&mut client, "cross_protocol_requests");
    assert_eq!(dropped, REQUESTS.len() as u64);
    // The commands behind it were not run, though Redis never saw where the request began.
    assert_eq!(client.say("UNLOCK k t"), 1);
    let logged = || place.gate.log().matches("SECURITY ATTACK").count();
    eventually("it is logged", || logged() > 0);
    assert_eq!(logged(), 1);
}

#[test]
fn they_are_dropped_where_there_is_no_redis() {
    let place = Place::embedded(Machine::shared());
    let mut client = place.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    for (before, replies, request) in REQUESTS {
        let mut other = place.client();
        other.write_raw(before.as_bytes());
        (0..replies).for_each(|_| drop(other.read_reply()));
        assert_eq!(
            said_until_closed(other, request.as_bytes()),
            b"",
            "{request}"
        );
    }
    let dropped = counted(&mut client, "cross_protocol_requests");
    assert_eq!(dropped, REQUESTS.len() as u64);
    assert_eq!(client.say("UNLOCK k t"), 1);
}

#[test]
fn earlier_commands_are_answered() {
    Place::each(|place| {
        let request = b"PING\r\nLOCK k TOKEN t\r\nPOST / HTTP/1.1\r\n\r\nUNLOCK k t\r\n";
        let said = said_until_closed(place.client(), request);
        assert_eq!(said, b"+PONG\r\n$1\r\nt\r\n");
        assert_eq!(place.client().say("UNLOCK k t"), 1);
        let request = b"PING\r\nECHO a\r\nPOST / HTTP/1.1\r\n\r\n";
        let said = said_until_closed(place.client(), request);
        assert_eq!(said, b"+PONG\r\n$1\r\na\r\n");
    });
}

/// Behind a `LOCK` that waits it is nothing yet, as behind `BLPOP`.
#[test]
fn behind_a_waiting_lock_they_wait_too() {
    Place::each(|place| {
        let (mut holder, mut client) = (place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        client.write_raw(b"LOCK k TOKEN t\r\nPOST / HTTP/1.1\r\n\r\n");
        place.gate.awaits_waiters("k", 1);
        assert_eq!(holder.say("UNLOCK k h"), 1);
        assert_eq!(client.read_reply(), "t");
        client.is_closed_by_the_server();
    });
}
