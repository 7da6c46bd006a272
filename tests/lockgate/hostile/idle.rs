//! Clients that are silent (`idle_timeout`).

use std::time::{Duration, Instant};

use super::counted;
use crate::{
    scale::pour,
    support::{Lockgate, Machine, Place, RedisServer, SHORT_GRACE, eventually},
};

const TIMEOUT: Duration = Duration::from_millis(1_500);

fn places() -> [Place; 2] {
    let idle = [("LOCKGATE_IDLE_TIMEOUT", "1500ms")];
    let redis = RedisServer::start(&[]);
    let environment = [SHORT_GRACE.as_slice(), &idle].concat();
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut first = gate.client();
    assert_eq!(first.say("LOCK first TOKEN f"), "f");
    assert_eq!(first.say("UNLOCK first f"), 1);
    [
        Place::of(None, Lockgate::start_with(&[], &idle), Machine::shared()),
        Place::of(Some(redis), gate, Machine::shared()),
    ]
}

#[test]
fn a_silent_client_is_closed_and_one_that_speaks_or_waits_is_not() {
    for place in places() {
        let (mut holder, mut waiter, mut owner) = (place.client(), place.client(), place.client());
        assert_eq!(holder.say("LOCK k TOKEN h"), "h");
        waiter.send(&["LOCK", "k", "TOKEN", "w"]);
        place.gate.awaits_waiters("k", 1);
        assert_eq!(owner.say("LOCK bound TOKEN b PX 600000 SESSION"), "b");
        let start = Instant::now();
        let (mut silent, mut spoke, mut half) = (place.client(), place.client(), place.client());
        assert_eq!(spoke.say("PING"), "PONG");
        half.write_raw(b"*2\r\n$4\r\nLO");
        // The holder speaks all the time; all others are silent for longer than they may be.
        while start.elapsed() < 2 * TIMEOUT {
            assert_eq!(holder.say("PING"), "PONG");
            std::thread::sleep(TIMEOUT / 30);
        }
        for client in [&mut silent, &mut spoke, &mut half] {
            client.is_closed_by_the_server();
        }
        assert!(counted(&mut holder, "closed_idle_clients") >= 3);
        assert_eq!(holder.say("UNLOCK k h"), 1);
        assert_eq!(waiter.read_reply(), "w");
        assert_eq!(owner.say("UNLOCK bound b"), 1);
    }
}

#[test]
fn it_is_not_closed_early() {
    for place in places() {
        let start = Instant::now();
        let mut silent = place.client();
        silent.is_closed_by_the_server();
        assert!(start.elapsed() >= TIMEOUT, "{:?}", start.elapsed());
    }
}

#[test]
fn a_client_that_waits_for_redis_or_messages_is_not_closed() {
    let [_, place] = places();
    let (mut popper, mut subscriber, mut monitor) =
        (place.client(), place.client(), place.client());
    popper.send(&["BLPOP", "list", "0"]);
    assert_eq!(subscriber.say("SUBSCRIBE channel").items().len(), 3);
    assert_eq!(monitor.say("MONITOR"), "OK");
    let mut silent = place.client();
    silent.is_closed_by_the_server();
    let mut other = place.client();
    assert_eq!(other.say("PUBLISH channel message"), 1);
    assert_eq!(subscriber.read_reply().items().len(), 3);
    assert_eq!(other.say("RPUSH list x"), 1);
    assert_eq!(popper.read_reply().items().len(), 2);
    monitor.hears_something();
}

/// A client that reads none of its replies counts as silent, too.
#[test]
fn a_client_that_never_reads_is_closed() {
    for place in places() {
        let client = place.client();
        let poured = pour(client.writer(), b"COMMAND\r\n".repeat(100_000));
        eventually("it is closed", || {
            counted(&mut place.client(), "closed_idle_clients") > 0
        });
        drop(client);
        poured.join().unwrap();
    }
}
