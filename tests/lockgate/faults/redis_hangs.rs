//! Redis stands still, its connections open.

use std::{
    io::Write,
    net::TcpStream,
    thread::sleep,
    time::{Duration, Instant},
};

use super::{
    AT_ONCE, PATIENT, gate_before, holder, is_error, is_told_lost, pttl, timed, waiter,
    was_told_nothing,
};
use crate::support::{Http, Machine, RedisServer, eventually};

#[test]
fn for_less_than_the_timeout_nothing_breaks() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &PATIENT);
    let (mut owner, mut bound, mut other) = (gate.client(), gate.client(), gate.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    assert_eq!(bound.say("LOCK bound TOKEN t PX 1500 SESSION"), "t");
    let mut next = waiter(&gate, "k", "next", 1);
    redis.stop();
    owner.send(&["UNLOCK", "k", "t"]);
    other.send(&["TRYLOCK", "other", "TOKEN", "o"]);
    owner.hears_nothing_for(Duration::from_millis(700));
    redis.go_on();
    assert_eq!(owner.read_reply(), 1);
    assert_eq!(other.read_reply(), "o");
    assert_eq!(next.read_reply(), "next");
    sleep(Duration::from_millis(1_600));
    assert_eq!(holder(&redis, "bound"), "t");
    was_told_nothing(&mut bound);
    assert!(!gate.log().contains("no connection"), "{}", gate.log());
}

/// The holder is the one that Redis names when it goes on, by its own clock.
#[test]
fn for_longer_than_a_lease_there_is_one_owner_still() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "400ms")]);
    let (mut short, mut long) = (gate.client(), gate.client());
    assert_eq!(short.say("LOCK short TOKEN t PX 700"), "t");
    assert_eq!(long.say("LOCK long TOKEN t PX 6000"), "t");
    let mut next = [
        waiter(&gate, "short", "next", 1),
        waiter(&gate, "long", "next", 1),
    ];
    redis.stop();
    next[0].hears_nothing_for(Duration::from_millis(1_500));
    is_error(&short.say("UNLOCK short t"), "UPSTREAM");
    redis.go_on();
    let (reply, took) = timed(|| next[0].read_reply());
    assert_eq!(reply, "next");
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(short.say("UNLOCK short t"), 0);
    assert_eq!(holder(&redis, "short"), "next");
    next[1].hears_nothing_for(Duration::from_millis(100));
    assert_eq!(holder(&redis, "long"), "t");
    assert_eq!(long.say("UNLOCK long t"), 1);
    assert_eq!(next[1].read_reply(), "next");
}

/// An owner that trusts its connection cannot read a clock that stands still: it is told by ours, when
/// the lease that Redis is known to have given it is over.
#[test]
fn owners_whose_leases_cannot_be_renewed_are_told_in_time() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(
        &redis.url(),
        &[
            ("LOCKGATE_UPSTREAM_TIMEOUT", "20s"),
            ("LOCKGATE_UPSTREAM_PING", "20s"),
            ("LOCKGATE_WRITE_BACK_GRACE", "29s"),
        ],
    );
    let (mut three, mut two, mut patient) = (super::resp3(&gate), gate.client(), gate.client());
    assert_eq!(three.say("LOCK three TOKEN t PX 900 SESSION"), "t");
    assert_eq!(two.say("LOCK two TOKEN t PX 900 SESSION"), "t");
    assert_eq!(patient.say("LOCK patient TOKEN t PX 9000 SESSION"), "t");
    sleep(Duration::from_millis(400));
    let mut direct = redis.client();
    let left = Duration::from_millis(pttl(&mut direct, "three").unsigned_abs());
    let over = Instant::now() + left;
    redis.stop();
    is_told_lost(&mut three, "three", "t");
    let late = Instant::now().saturating_duration_since(over);
    assert!(late < Duration::from_millis(60), "{late:?}");
    two.is_closed_by_the_server();
    let late = Instant::now().saturating_duration_since(over);
    assert!(late < Duration::from_millis(400), "{late:?}");
    redis.go_on();
    was_told_nothing(&mut patient);
    // A renewal that was under way may have come through: nobody has it then, and it is given back.
    let mut next = gate.client();
    let (reply, took) = timed(|| next.say("LOCK three TOKEN next"));
    assert_eq!(reply, "next");
    assert!(took < AT_ONCE, "{took:?}");
    eventually("it is given back", || holder(&redis, "two").is_nil());
}

/// With a Redis that does not come back, everybody knows within the time that is set.
#[test]
fn it_counts_as_broken_after_the_timeout() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis.url(), &[("LOCKGATE_UPSTREAM_TIMEOUT", "400ms")]);
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    redis.stop();
    for command in [
        "UNLOCK k t",
        "TRYLOCK other",
        "RELOCK k t",
        "LOCK other WAIT 600",
    ] {
        let (reply, took) = timed(|| owner.say(command));
        is_error(&reply, "UPSTREAM");
        assert!(took < AT_ONCE, "{command}: {took:?}");
    }
    assert!(gate.log().contains("does not answer"), "{}", gate.log());
    redis.go_on();
    eventually("what was given back is free", || {
        holder(&redis, "k").is_nil()
    });
    assert_eq!(owner.say("LOCK k TOKEN again"), "again");
}

/// Redis takes none of its bytes, so lockgate does not read its socket up to the end.
#[test]
fn a_client_that_closes_behind_commands_that_redis_does_not_take_is_gone() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let admin = [("LOCKGATE_ADMIN_LISTEN", "127.0.0.1:0")];
    let gate = gate_before(&redis.url(), &admin);
    let clients = || {
        let text = Http::connect(gate.admin_address()).get("/metrics").body;
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("lockgate_clients "));
        count.map(str::to_owned).expect("the number of clients")
    };
    let mut client = TcpStream::connect(gate.address()).unwrap();
    client
        .write_all(b"PING\r\nLOCK k TOKEN t SESSION\r\n")
        .unwrap();
    eventually("it has the lock", || holder(&redis, "k") == "t");
    redis.stop();
    let timeout = Some(Duration::from_millis(500));
    client.set_write_timeout(timeout).unwrap();
    let value = "x".repeat(64 * 1024);
    let command = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$65536\r\n{value}\r\n");
    while client.write_all(command.as_bytes()).is_ok() {}
    assert_eq!(clients(), "1");
    // Replies are unread, so the system resets the connection: an end would come behind the last bytes.
    drop(client);
    let start = Instant::now();
    while clients() != "0" {
        assert!(start.elapsed() < Duration::from_secs(20), "it stays");
        sleep(Duration::from_millis(50));
    }
    redis.go_on();
}
