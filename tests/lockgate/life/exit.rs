//! Exit codes, which service managers and scripts go by, and how often one has to say "end".

use crate::support::{Lockgate, Machine, RedisServer, eventually, run_to_its_end};

/// A gate with a client that will not be done, and its Redis.
fn with_a_blocked_client(drain: &str) -> (Lockgate, RedisServer, crate::support::Client) {
    let redis = RedisServer::start(&[]);
    let environment = [("LOCKGATE_DRAIN", drain)];
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut blocked = gate.client();
    blocked.send(&["BLPOP", "list", "0"]);
    let mut direct = redis.client();
    eventually("it is blocked", || {
        let clients = direct.say("INFO clients");
        clients.text().contains("blocked_clients:1")
    });
    (gate, redis, blocked)
}

#[test]
fn help_tells_every_exit_code() {
    let help = run_to_its_end(&["--help"], &[]).stdout;
    for code in 0..=5 {
        assert!(help.contains(&format!("\n  {code}  ")), "{code}: {help}");
    }
    let readme = include_str!("../../../README.md");
    for code in 0..=5 {
        assert!(readme.contains(&format!("\n| {code} | ")), "{code}");
    }
}

#[test]
fn who_says_it_twice_does_not_wait_for_clients() {
    let _machine = Machine::shared();
    let (mut gate, _redis, mut blocked) = with_a_blocked_client("1h");
    gate.terminate();
    eventually("it drains", || gate.log().contains("shutting down"));
    assert!(!gate.log().contains("not waiting"), "{}", gate.log());
    gate.terminate();
    assert_eq!(gate.exit_code(), Some(5), "{}", gate.log());
    blocked.is_closed_by_the_server();
    assert!(gate.log().contains("not waiting"), "{}", gate.log());
}

#[test]
fn nobody_cut_is_0_and_somebody_cut_is_5() {
    let _machine = Machine::shared();
    let (mut gate, redis, mut blocked) = with_a_blocked_client("10s");
    gate.terminate();
    eventually("it drains", || gate.log().contains("shutting down"));
    assert_eq!(redis.client().say("RPUSH list 1"), 1);
    assert_eq!(blocked.read_reply().items().len(), 2);
    drop(blocked);
    assert_eq!(gate.exit_code(), Some(0), "{}", gate.log());

    let (mut gate, _redis, _blocked) = with_a_blocked_client("100ms");
    gate.terminate();
    assert_eq!(gate.exit_code(), Some(5), "{}", gate.log());
}
