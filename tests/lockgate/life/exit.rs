//! Exit codes, which service managers and scripts go by, and how often one has to say "end".

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Client, Lockgate, Machine, RedisServer, eventually, free_address, run_to_its_end,
};

/// A gate with a client that will not be done, and its Redis.
fn with_a_blocked_client(drain: &str) -> (Lockgate, RedisServer, Client) {
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
    for code in 0..=8 {
        assert!(help.contains(&format!("\n  {code}  ")), "{code}: {help}");
    }
    let operating = include_str!("../../../docs/operating.md");
    for code in 0..=8 {
        assert!(operating.contains(&format!("\n| {code} | ")), "{code}");
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let _machine = Machine::shared();
    let (mut gate, _redis, mut blocked) = with_a_blocked_client("1h");
    gate.terminate();
    eventually("it drains", || gate.log().contains("shutting down"));
    assert!(!gate.log().contains("not waiting"), "{}", gate.log());
    // Two signals at once are one, so this sends the signal until it takes effect.
    eventually("it is heard", || {
        gate.terminate();
        gate.log().contains("not waiting")
    });
    assert_eq!(gate.exit_code(), Some(5), "{}", gate.log());
    blocked.is_closed_by_the_server();
}

/// As by `timeout`, which tells the program and then its whole group.
#[test]
fn two_signals_at_once_count_as_one() {
    let _machine = Machine::shared();
    let (mut gate, redis, mut blocked) = with_a_blocked_client("10s");
    gate.terminate();
    gate.terminate();
    eventually("it drains", || gate.log().contains("shutting down"));
    assert_eq!(redis.client().say("RPUSH list 1"), 1);
    assert_eq!(blocked.read_reply().items().len(), 2);
    drop(blocked);
    assert_eq!(gate.exit_code(), Some(0), "{}", gate.log());
}

/// A disabled log changes nothing else.
#[test]
fn without_a_log_it_serves_until_it_is_told_to_end() {
    let _machine = Machine::shared();
    let address = free_address();
    let mut gate = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["--log", "off", "--listen", &address.to_string()])
        .spawn()
        .unwrap();
    eventually("it listens", || Client::try_connect(address).is_ok());
    let mut client = Client::connect(address);
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("UNLOCK k t"), 1);
    drop(client);
    kill_process(Pid::from_child(&gate), Signal::TERM).unwrap();
    assert_eq!(gate.wait().unwrap().code(), Some(0));
}

#[test]
fn the_exit_code_says_whether_clients_were_cut() {
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
