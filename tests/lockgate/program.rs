//! The program as an operator starts and ends it.

use std::{io::Write, net::TcpStream};

use crate::support::{
    Client, Http, Lockgate, Machine, RedisServer, free_address, run_to_its_end, text,
};

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

/// A line that says so, or a ready service, would be followed by the end.
#[test]
fn it_says_that_it_listens_only_once_everything_does() {
    let _machine = Machine::shared();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (flags, environment, key) in [
        (&["--admin", &taken][..], &[][..], "admin.listen"),
        (
            &[],
            &[("LOCKGATE_UNIXSOCKET", "/nowhere/socket")],
            "unixsocket",
        ),
    ] {
        let flags = [&["--listen", "127.0.0.1:0"], flags].concat();
        let ended = run_to_its_end(&flags, environment);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains(key), "{}", ended.stderr);
        assert!(!ended.stderr.contains("listening"), "{}", ended.stderr);
    }
}

#[test]
fn a_name_or_a_port_alone_is_listened_on_with_every_family() {
    let _machine = Machine::shared();
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    for host in ["localhost", ""] {
        let port = free_address().port();
        let gate = Lockgate::start_at(format!("{host}:{port}"), &["--admin", "localhost:0"], &[]);
        let mut addresses = vec![format!("127.0.0.1:{port}")];
        if has_ipv6 {
            addresses.push(format!("[::1]:{port}"));
        }
        for address in addresses {
            let mut client = Client::connect(address.parse().unwrap());
            assert_eq!(client.say("PING"), "PONG", "{address}");
        }
        let answer = Http::connect(gate.admin_address()).get("/healthz");
        assert_eq!(answer.status, 200);
        assert!(!gate.log().contains("WARN"), "{}", gate.log());
    }
}

#[test]
fn the_database_0_may_be_named_and_a_password_in_the_url_is_remarked_on() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let remark = "clients authenticate to Redis themselves";
    let url = format!("redis://:hunter2@{}/0", redis.address());
    let gate = Lockgate::start(&["--upstream", &url]);
    let mut client = gate.client();
    assert_eq!(client.say("AUTH hunter2"), "OK");
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert!(gate.log().contains(remark), "{}", gate.log());
    let checked = run_to_its_end(&["--check-config", "--upstream", &url], &[]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains(remark), "{}", checked.stdout);
    // Where clients have the rights of this account, there is nothing to remark on.
    let own = [("LOCKGATE_AUTH_PASSWORD", "hunter3")];
    let gate = Lockgate::start_with(&["--upstream", &url], &own);
    assert!(!gate.log().contains(remark), "{}", gate.log());
}

#[test]
fn the_password_for_redis_may_be_in_a_file() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"hunter2\n").unwrap();
    let environment = [
        ("LOCKGATE_UPSTREAM_PASSWORD_FILE", text(file.path())),
        // With it clients have the rights of lockgate's own account.
        ("LOCKGATE_AUTH_PASSWORD", "hunter3"),
    ];
    let upstream = redis.address().to_string();
    let gate = Lockgate::start_with(&["--upstream", &upstream], &environment);
    let mut client = gate.client();
    assert_eq!(client.say("AUTH hunter3"), "OK");
    assert_eq!(client.say("SET a 1"), "OK");
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
}

#[test]
fn an_address_or_a_file_that_cannot_be_used_names_its_origin() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    let taken = gate.address().to_string();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let line = format!("listen = \"{taken}\"\n");
    file.write_all(line.as_bytes()).unwrap();
    let path = text(file.path());
    type Wrong<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let cannot_listen: [Wrong; 4] = [
        (&["--listen", &taken], &[], "listen is from --listen"),
        (
            &[],
            &[("LOCKGATE_LISTEN", &taken)],
            "listen is from LOCKGATE_LISTEN",
        ),
        (&["--config", path], &[], &format!("listen is from {path}")),
        (
            &["--listen", "127.0.0.1:0"],
            &[("LOCKGATE_ADMIN", &taken)],
            "admin.listen is from LOCKGATE_ADMIN",
        ),
    ];
    for (flags, environment, origin) in cannot_listen {
        let ended = run_to_its_end(flags, environment);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains(origin), "{origin}: {}", ended.stderr);
    }
    let found_by_a_check: [Wrong; 2] = [
        (
            &[],
            &[("LOCKGATE_LISTEN", "gate.invalid:1")],
            "listen is from LOCKGATE_LISTEN",
        ),
        (
            &["--upstream", "rediss://r"],
            &[("LOCKGATE_UPSTREAM_CA", "/no/file")],
            "upstream.ca is from LOCKGATE_UPSTREAM_CA",
        ),
    ];
    for (flags, environment, origin) in found_by_a_check {
        for check in [&["--check-config"][..], &[]] {
            let ended = run_to_its_end(&[check, flags].concat(), environment);
            assert!(matches!(ended.code, Some(3 | 4)), "{}", ended.stderr);
            assert!(ended.stderr.contains(origin), "{origin}: {}", ended.stderr);
        }
    }
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
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
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

/// A client above the limit gets the error, instead of no answer.
#[test]
fn a_low_limit_of_open_files_lowers_the_limit_of_clients() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
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
