//! The program as an operator starts and ends it.

use std::{io::Write, net::TcpStream};

use crate::support::{Lockgate, Machine, free_address, run_to_its_end};

#[test]
fn a_wrong_key_or_value_ends_it_with_its_name_before_anything_listens() {
    let _machine = Machine::shared();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"[lock]\nleese = \"2s\"\n").unwrap();
    let path = file.path().to_str().unwrap();
    let address = free_address();
    let listen = address.to_string();
    type Wrong<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let wrong: [Wrong; 8] = [
        (&["--config", path], &[], "lock.leese"),
        (&["--config", "/nowhere.toml"], &[], "/nowhere.toml"),
        (&["--upstream", "http://localhost"], &[], "upstream.url"),
        (&["--log", "verbose"], &[], "log"),
        (&["--lisen", "127.0.0.1:1"], &[], "--lisen"),
        (
            &[],
            &[("LOCKGATE_LOCK_LEASE", "soon")],
            "LOCKGATE_LOCK_LEASE",
        ),
        (&[], &[("LOCKGATE_LOCK_LEESE", "2s")], "LOCKGATE_LOCK_LEESE"),
        (&[], &[("LOCKGATE_LIMITS_WAITERS", "0")], "limits.waiters"),
    ];
    for (flags, environment, name) in wrong {
        let flags = [&["--listen", listen.as_str()], flags].concat();
        let ended = run_to_its_end(&flags, environment);
        assert_eq!(ended.code, Some(2), "{name}: {}", ended.stderr);
        assert!(ended.stderr.contains(name), "{name}: {}", ended.stderr);
        assert!(!ended.stderr.contains("listening"), "{}", ended.stderr);
        assert!(TcpStream::connect(address).is_err(), "nothing listens");
    }
    let ended = run_to_its_end(&["--listen", "nowhere"], &[]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("\"nowhere\""), "{}", ended.stderr);
}

#[test]
fn it_tells_its_flags() {
    let help = run_to_its_end(&["--help"], &[]);
    assert_eq!(help.code, Some(0));
    for flag in ["--config", "--listen", "--upstream", "--log"] {
        assert!(help.stdout.contains(flag), "{flag}: {}", help.stdout);
    }
}

#[test]
fn an_address_that_is_taken_ends_it_with_an_error() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    let ended = run_to_its_end(&["--listen", &gate.address().to_string()], &[]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(
        ended.stderr.contains(&gate.address().to_string()),
        "{}",
        ended.stderr
    );
}

#[test]
fn it_ends_when_asked_to_and_tells_those_who_wait() {
    let _machine = Machine::shared();
    let mut gate = Lockgate::start(&[]);
    let (mut holder, mut waiter) = (gate.client(), gate.client());
    assert_eq!(
        holder.say("LOCK k TOKEN secret-of-holder"),
        "secret-of-holder"
    );
    waiter.send(&["LOCK", "k", "TOKEN", "secret-of-waiter"]);
    gate.awaits_waiters("k", 1);
    gate.terminate();
    let reply = waiter.read_reply();
    assert!(reply.error().starts_with("SHUTDOWN"), "{reply:?}");
    drop((holder, waiter));
    assert_eq!(gate.exit_code(), Some(0));
    assert!(
        !gate.log().contains("secret"),
        "no log shows a token: {}",
        gate.log()
    );
}

#[test]
fn its_log_shows_no_token_and_no_password() {
    let _machine = Machine::shared();
    let redis = crate::support::RedisServer::start(&["--requirepass", "hunter2"]);
    let upstream = format!("redis://:hunter2@{}", redis.address());
    let gate = Lockgate::start(&["--log", "trace", "--upstream", &upstream]);
    let mut client = gate.client();
    assert_eq!(client.say("AUTH hunter2"), "OK");
    assert_eq!(client.say("LOCK k TOKEN secret"), "secret");
    assert_eq!(client.say("RELOCK k secret"), 1);
    assert_eq!(client.say("UNLOCK k secret"), 1);
    client.say("SET a secret");
    let log = gate.log();
    assert!(log.contains("listening"), "{log}");
    assert!(!log.contains("secret") && !log.contains("hunter2"), "{log}");
}

/// The system lends few files at first, and more on demand: lockgate demands them.
#[test]
fn it_serves_more_clients_than_it_may_open_files_at_first() {
    let _machine = Machine::shared();
    let gate = Lockgate::start_with_files(400, &[], &[("LOCKGATE_LIMITS_CLIENTS", "300")]);
    for client in &mut gate.clients(300) {
        assert_eq!(client.say("PING"), "PONG");
    }
    assert!(!gate.log().contains("limits.clients"), "{}", gate.log());
}

/// Who is one too many is told so, instead of being left without an answer.
#[test]
fn a_low_limit_of_open_files_lowers_the_limit_of_clients() {
    let _machine = Machine::shared();
    let redis = crate::support::RedisServer::start(&[]);
    let gate = Lockgate::start_with_files(264, &["--upstream", &redis.url()], &[]);
    let log = gate.log();
    assert!(
        log.contains("limits.clients is lowered from 10000 to 100"),
        "{log}"
    );
    let mut clients = gate.clients(100);
    for client in &mut clients {
        assert_eq!(client.say("SET a 1"), "OK");
    }
    assert_eq!(clients[0].say("LOCK k TOKEN t"), "t");
    let reply = gate.client().read_reply();
    assert_eq!(reply.error(), "ERR max number of clients reached");
    for client in &mut clients {
        assert_eq!(client.say("GET a"), "1");
    }
}
