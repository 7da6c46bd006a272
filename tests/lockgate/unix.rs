//! Unix sockets on both sides: clients come in by a file, and Redis is reached by one.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    pipelines::{is_answered, values_around_all},
    support::{Client, Lockgate, Machine, RedisServer, SHORT_GRACE, eventually, run_to_its_end},
};

/// A directory for sockets, whose paths may not be long.
fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().tempdir_in("/tmp").unwrap()
}

fn socket(directory: &tempfile::TempDir, name: &str) -> PathBuf {
    directory.path().join(name)
}

fn redis_at(path: &Path, arguments: &[&str]) -> RedisServer {
    RedisServer::start(&[&["--unixsocket", path.to_str().unwrap()], arguments].concat())
}

fn client(path: &Path) -> Client {
    Client::try_connect_unix(path).expect("the gate listens on its socket")
}

/// A gate that listens at `listen` and at this path.
fn gate_at(listen: &str, path: &Path, environment: &[(&str, &str)]) -> Lockgate {
    let environment = [
        environment,
        &[("LOCKGATE_UNIXSOCKET", path.to_str().unwrap())],
    ];
    Lockgate::start_at(listen, &[], &environment.concat())
}

/// Written whole before anything is read, with lock commands in its middle.
#[test]
fn a_pipeline_of_forty_thousand_commands_is_answered() {
    let _machine = Machine::shared();
    let directory = directory();
    let (front, behind) = (socket(&directory, "gate"), socket(&directory, "redis"));
    let _redis = redis_at(&behind, &[]);
    let url = format!("unix://{}", behind.display());
    let upstream = [&SHORT_GRACE[..], &[("LOCKGATE_UPSTREAM", url.as_str())]].concat();
    let _gate = gate_at("127.0.0.1:0", &front, &upstream);
    is_answered(&mut client(&front), &values_around_all());
}

#[test]
fn clients_and_redis_are_reached_by_files() {
    let _machine = Machine::shared();
    let directory = directory();
    let (front, behind) = (socket(&directory, "gate"), socket(&directory, "redis"));
    let redis = redis_at(&behind, &[]);
    let url = format!("unix://{}", behind.display());
    let upstream = [&SHORT_GRACE[..], &[("LOCKGATE_UPSTREAM", url.as_str())]].concat();
    let gate = gate_at("127.0.0.1:0", &front, &upstream);
    let mut local = client(&front);
    let value = "x".repeat(3_000_000);
    assert_eq!(local.call(&["SET", "long", &value]), "OK");
    assert_eq!(local.say("GET long"), value);
    assert!(
        local
            .say("INFO lockgate")
            .text()
            .contains(&format!("lockgate_upstream:{}\r\n", behind.display()))
    );
    // A lock goes from a file to an address and back.
    let mut remote = gate.client();
    assert_eq!(local.say("LOCK k TOKEN local"), "local");
    remote.send(&["LOCK", "k", "TOKEN", "remote"]);
    gate.awaits_waiters("k", 1);
    let info = local.say("LOCKINFO k");
    assert_eq!(*info.field("client"), format!("{}:0", front.display()));
    assert_eq!(local.say("UNLOCK k local"), 1);
    assert_eq!(remote.read_reply(), "remote");
    local.send(&["LOCK", "k", "TOKEN", "again"]);
    gate.awaits_waiters("k", 1);
    assert_eq!(redis.client().say("DEL k"), 1);
    assert_eq!(local.read_reply(), "again");
    // lockgate notices there, too, that a waiter vanishes.
    let mut vanishing = client(&front);
    vanishing.send(&["LOCK", "k"]);
    gate.awaits_waiters("k", 1);
    drop(vanishing);
    gate.awaits_waiters("k", 0);
    assert_eq!(local.say("UNLOCK k again"), 1);
}

#[test]
fn a_file_is_enough() {
    let _machine = Machine::shared();
    let directory = directory();
    let front = socket(&directory, "gate");
    let _gate = gate_at("off", &front, &[]);
    let mut local = client(&front);
    assert_eq!(local.say("LOCK k TOKEN t"), "t");
    let info = local.say("INFO server").text();
    assert!(info.contains("tcp_port:0\r\n"), "{info}");
    let here = format!(" addr={0}:0 laddr={0}:0 ", front.display());
    let client_info = local.say("CLIENT INFO").text();
    assert!(client_info.contains(&here), "{client_info}");
}

#[test]
fn the_file_has_the_mode_that_is_asked_for() {
    let _machine = Machine::shared();
    let directory = directory();
    for (mode, perm) in [
        (0o700, &[][..]),
        (0o666, &[("LOCKGATE_UNIXSOCKETPERM", "666")]),
    ] {
        let front = socket(&directory, &format!("gate-{mode:o}"));
        let _gate = gate_at("off", &front, perm);
        let found = fs::metadata(&front).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode);
    }
}

#[test]
fn a_socket_file_left_by_a_dead_process_is_replaced_and_nothing_else() {
    let _machine = Machine::shared();
    let directory = directory();
    let front = socket(&directory, "gate");
    let mut dead = gate_at("off", &front, &[]);
    dead.kill();
    assert!(front.exists(), "a dead one cleans nothing up");
    let mut heir = gate_at("off", &front, &[]);
    assert_eq!(client(&front).say("PING"), "PONG");
    heir.terminate();
    assert_eq!(heir.exit_code(), Some(0));
    assert!(!front.exists(), "one that ends takes its socket away");

    fs::write(&front, "precious").unwrap();
    let environment = [("LOCKGATE_UNIXSOCKET", front.to_str().unwrap())];
    let ended = run_to_its_end(&["--listen", "off"], &environment);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    for word in ["unixsocket", front.to_str().unwrap(), "no socket"] {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.stderr);
    }
    assert_eq!(fs::read_to_string(&front).unwrap(), "precious");
}

/// As when a new version is started before the old one has ended.
#[test]
fn one_that_ends_leaves_its_successor_the_file() {
    let _machine = Machine::shared();
    let directory = directory();
    let front = socket(&directory, "gate");
    let mut old = gate_at("off", &front, &[]);
    let _new = gate_at("off", &front, &[]);
    old.terminate();
    assert_eq!(old.exit_code(), Some(0));
    assert_eq!(client(&front).say("PING"), "PONG");
}

/// A Unix socket has no queue in the network: what was written is with Redis at once, and a queue of
/// connections that is full is an error at once.
#[test]
fn while_redis_hangs_who_asks_or_connects_waits() {
    let _machine = Machine::shared();
    let directory = directory();
    let behind = socket(&directory, "redis");
    let redis = redis_at(&behind, &["--tcp-backlog", "1"]);
    let url = format!("unix://{}", behind.display());
    let environment = [
        ("LOCKGATE_UPSTREAM_TIMEOUT", "300ms"),
        ("LOCKGATE_UPSTREAM_CONNECT_TIMEOUT", "5s"),
        ("LOCKGATE_WRITE_BACK_LEASES", "off"),
    ];
    let gate = Lockgate::start_with(&["--upstream", &url], &environment);
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK first TOKEN t"), "t");
    redis.stop();
    owner.send(&["LOCK", "k", "TOKEN", "t"]);
    let mut clients = gate.clients(8);
    for client in &mut clients {
        client.send(&["PING"]);
    }
    eventually("the connection is given up", || {
        gate.log().contains("Redis does not answer")
    });
    redis.go_on();
    for client in &mut clients {
        assert_eq!(client.read_reply(), "PONG");
    }
    assert_eq!(owner.read_reply(), "t");
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(owner.say("UNLOCK first t"), 1);
    assert_eq!(redis.client().say("DBSIZE"), 1, "the mark of the grace");
}
