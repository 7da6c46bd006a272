//! Fences rise also where the new Redis counts from less than the one before: the counter is gone, and
//! its clock is behind.

use std::{path::PathBuf, process::Command};

use super::{SETTINGS, grant_again};
use crate::{
    faults::{gate_before, is_error},
    support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, report},
};

/// Ahead of every clock, and far from where fences end.
const AHEAD: i64 = 4_000_000_000_000_000;

/// Much longer than any grace.
const BEHIND_S: &str = "60";

#[track_caller]
fn fence(client: &mut Client, key: &str) -> i64 {
    let granted = client.call(&["LOCK", key, "FENCE", "WAIT", "9000"]);
    let Value::Array(items) = &granted else {
        panic!("token and fence were expected, not {granted:?}")
    };
    assert_eq!(client.call(&["UNLOCK", key, &items[0].text()]), 1);
    items[1].integer()
}

/// Two lockgates before one Redis, and another Redis in its place. Through the first lockgate fences
/// were taken; through the other one, and a fresh one, the next ones are.
fn rise_at_every_lockgate(before: &RedisServer, after: &RedisServer) {
    let way = Proxy::before(before.address());
    let start = || Lockgate::start_with(&["--upstream", &way.url()], &SETTINGS);
    let gates = [start(), start()];
    grant_again(&gates);
    let (mut one, mut other) = (gates[0].client(), gates[1].client());
    let last = fence(&mut one, "k");
    // It was never used.
    after.client().say("DEL lockgate:grace");
    way.forward_to(after.address());
    way.cut();
    let fresh = start();
    let next = fence(&mut other, "k");
    assert!(
        next > last,
        "{next} after {last}: lower by {} s",
        (last - next) / 1_000_000
    );
    let again = fence(&mut fresh.client(), "k");
    assert!(again > next, "{again} after {next}");
    let then = fence(&mut one, "k");
    assert!(then > again, "{then} after {again}");
}

#[test]
fn fences_rise_where_the_counter_is_lost() {
    let _machine = Machine::shared();
    let (before, after) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let counter = AHEAD.to_string();
    assert_eq!(
        before.client().call(&["SET", "lockgate:fence", &counter]),
        "OK"
    );
    rise_at_every_lockgate(&before, &after);
}

#[test]
fn fences_rise_where_the_clock_of_the_next_redis_is_behind() {
    let _machine = Machine::shared();
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = clock_behind(directory.path().join("clock_behind.so")) else {
        report("left out: there is no C compiler (cc) for a Redis whose clock is behind");
        return;
    };
    let library = library.to_str().expect("text").to_owned();
    let environment = [
        ("LD_PRELOAD", library.as_str()),
        ("CLOCK_BEHIND_S", BEHIND_S),
    ];
    let (before, after) = (
        RedisServer::start(&[]),
        RedisServer::start_with(&[], &environment),
    );
    let behind = time_of(&before) - time_of(&after);
    assert!(behind > 50, "the clock is behind by {behind} s");
    rise_at_every_lockgate(&before, &after);
}

/// What has a clock of its own.
fn clock_behind(library: PathBuf) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/clock_behind.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .status();
    compiled
        .is_ok_and(|status| status.success())
        .then_some(library)
}

fn time_of(redis: &RedisServer) -> i64 {
    redis.client().say("TIME").items()[0]
        .text()
        .parse()
        .expect("seconds")
}

/// An operator who sets the counter right again needs no restart.
#[test]
fn a_counter_near_its_end_is_cured_by_its_deletion() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gates = [(); 2].map(|()| gate_before(&redis.url(), &SETTINGS));
    let mut direct = redis.client();
    for near in ["9007199254740989", "9007199254740990"] {
        assert_eq!(direct.call(&["SET", "lockgate:fence", near]), "OK");
        for gate in &gates {
            let mut client = gate.client();
            // Until there are no more.
            while let Value::Array(_) = client.say("LOCK k TOKEN t FENCE") {
                assert_eq!(client.say("UNLOCK k t"), 1);
            }
            is_error(&client.say("LOCK k TOKEN t FENCE"), "ERR");
        }
        assert_eq!(direct.say("DEL lockgate:fence"), 1);
        for gate in gates.iter().chain(&gates) {
            let mut client = gate.client();
            for _ in 0..3 {
                fence(&mut client, "k");
            }
        }
    }
}
