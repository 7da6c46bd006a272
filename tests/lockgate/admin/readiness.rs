//! Whether the gate can do what it is there for, as probes ask.

use std::{
    io::Read,
    time::{Duration, Instant},
};

use super::{gate, gate_before, gate_that_drains, get};
use crate::support::{Client, Http, Machine, RedisServer, eventually};

#[test]
fn without_a_redis_it_is_always_ready() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    assert_eq!(
        get(gate.admin_address(), "/readyz"),
        (200, "ready\n".into())
    );
}

#[test]
fn it_follows_a_redis_that_ends_hangs_and_comes_back() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let gate = gate_before(&redis, &[("LOCKGATE_UPSTREAM_TIMEOUT", "500ms")]);
    let mut http = Http::connect(gate.admin_address());
    let mut becomes = |status: u16, words: &str| {
        let mut told = String::new();
        eventually(&format!("{status} {words}"), || {
            let answer = http.get("/readyz");
            // The process is well all the while.
            assert_eq!(http.get("/healthz").status, 200);
            told = answer.body;
            answer.status == status
        });
        assert!(told.contains(words), "{told}");
    };
    becomes(200, "ready");
    redis.kill();
    becomes(503, &redis.address().to_string());
    redis.restart();
    becomes(200, "ready");
    redis.stop();
    becomes(503, "does not answer");
    redis.go_on();
    becomes(200, "ready");
}

/// It is not for those who probe to know a password.
#[test]
fn a_redis_that_asks_for_a_password_is_ready_and_one_that_refuses_ours_is_not() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "right"]);
    let ready = |environment: &[(&str, &str)]| {
        let gate = gate_before(&redis, environment);
        get(gate.admin_address(), "/readyz")
    };
    assert_eq!(ready(&[]).0, 200);
    assert_eq!(ready(&[("LOCKGATE_UPSTREAM_PASSWORD", "right")]).0, 200);
    let (status, body) = ready(&[("LOCKGATE_UPSTREAM_PASSWORD", "wrong")]);
    assert_eq!(status, 503);
    assert!(body.contains("WRONGPASS"), "{body}");
    assert!(!body.contains("wrong\n"), "{body}");
}

/// Connected clients go on; a new client could not be served.
#[test]
fn a_redis_that_is_full_is_not_ready() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--maxclients", "10"]);
    let gate = gate_before(&redis, &[]);
    assert_eq!(get(gate.admin_address(), "/readyz").0, 200);
    let (mut fill, mut told): (Vec<Client>, _) = (Vec::new(), (0, String::new()));
    eventually("it is not ready", || {
        // One may have come before another was forgotten.
        fill.push(redis.client());
        told = get(gate.admin_address(), "/readyz");
        told.0 == 503
    });
    assert!(told.1.contains("max number of clients"), "{}", told.1);
    drop(fill);
}

/// How many Redis has ever had; the asking takes one more.
fn connections(redis: &RedisServer) -> u64 {
    let info = redis.client().say("INFO stats").text();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().parse().unwrap()
}

/// However many ask, Redis is asked once a second.
#[test]
fn redis_is_not_asked_for_each_who_wants_to_know() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis, &[]);
    let mut http = Http::connect(gate.admin_address());
    let start = Instant::now();
    let before = connections(&redis);
    for _ in 0..500 {
        assert_eq!(http.get("/readyz").status, 200);
    }
    let asked = connections(&redis) - before - 1;
    // A machine that stutters may take seconds for it. The gate's own connection may be among them.
    let most = start.elapsed().as_secs() + 3;
    assert!((1..=most).contains(&asked), "{asked} of {most}");
}

/// The answer to an impatient probe, which has gone by then, counts for the next probe.
#[test]
fn a_redis_that_hangs_is_not_asked_anew_for_each_who_is_gone_before_the_answer() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&redis, &[]);
    let admin = gate.admin_address();
    let before = connections(&redis);
    redis.stop();
    let start = Instant::now();
    for _ in 0..30 {
        let mut impatient = Http::connect(admin);
        impatient.send("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        // It is heard, and Redis asked, before it is gone.
        let patience = Some(Duration::from_millis(50));
        impatient.socket().set_read_timeout(patience).unwrap();
        let _ = impatient.socket().read(&mut [0]);
        if start.elapsed() > Duration::from_millis(1_500) {
            break;
        }
    }
    redis.go_on();
    let asked = connections(&redis) - before - 1;
    let most = start.elapsed().as_secs() + 3;
    assert!((1..=most).contains(&asked), "{asked} of {most}");
}

#[test]
fn while_it_drains_it_is_not_ready_and_says_so_to_its_end() {
    let _machine = Machine::shared();
    let (mut gate, mut owner) = gate_that_drains();
    let admin = gate.admin_address();
    let mut http = Http::connect(admin);
    assert_eq!(http.get("/readyz").status, 200);
    gate.terminate();
    assert_eq!(owner.read_reply().items()[0].text(), "lock-lost");
    for probe in [&mut http, &mut Http::connect(admin)] {
        let answer = probe.get("/readyz");
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (503, "shutting down\n")
        );
        assert_eq!(probe.get("/healthz").status, 200);
    }
    drop(owner);
    assert_eq!(gate.exit_code(), Some(0));
    assert_eq!(http.rest(), "", "its connections end with it");
}
