//! TLS to Redis: the connections of clients, and those that all locks share.

use std::{fs, net::TcpListener, time::Instant};

use super::{Authority, SecureRedis};
use crate::support::{Lockgate, Machine, Pair, SOON, eventually, run_to_its_end, text};

/// A gate in front of it that has this certificate, and believes this authority.
fn gate_with(redis: &SecureRedis, authority: &Authority, pair: Option<&Pair>) -> Lockgate {
    let ca = authority.file();
    let mut environment = vec![("LOCKGATE_UPSTREAM_CA", text(&ca))];
    if let Some(pair) = pair {
        environment.push(("LOCKGATE_UPSTREAM_CERTIFICATE", text(&pair.certificate)));
        environment.push(("LOCKGATE_UPSTREAM_KEY", text(&pair.key)));
    }
    redis.gate(&environment)
}

/// Neither ordinary commands nor locks reach Redis; the client and the log are told why.
#[track_caller]
fn does_not_reach_redis(gate: &Lockgate, why: &str) {
    for command in ["PING", "TRYLOCK k"] {
        let reply = gate.client().say(command);
        let error = reply.error();
        assert!(error.starts_with("UPSTREAM "), "{command}: {error}");
        assert!(error.contains(why), "{command}: {why}: {error}");
    }
    let log = gate.log();
    let line = log
        .lines()
        .find(|line| line.contains("no connection to Redis"));
    assert!(line.is_some_and(|line| line.contains(why)), "{why}: {log}");
}

#[test]
fn commands_locks_and_pushes_pass_in_both_protocols() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("redis", "127.0.0.1");
    let redis = SecureRedis::start(&authority, &pair, &[]);
    let gate = gate_with(&redis, &authority, None);
    for protocol in ["2", "3"] {
        let (mut client, mut other) = (gate.client(), gate.client());
        client.call(&["HELLO", protocol]);
        assert_eq!(client.say("SET a 1"), "OK");
        assert_eq!(client.say("INCR a"), 2);
        assert_eq!(client.say("SUBSCRIBE news").items().len(), 3);
        assert_eq!(other.say("PUBLISH news hello"), 1);
        assert_eq!(client.read_reply().items()[2], "hello");
        let mut client = gate.client();
        client.call(&["HELLO", protocol]);
        assert_eq!(client.say("LOCK k TOKEN t SESSION"), "t");
        other.send(&["LOCK", "k", "TOKEN", "other"]);
        gate.awaits_waiters("k", 1);
        // Redis tells of it on the connection that locks share.
        assert_eq!(redis.redis.client().say("DEL k"), 1);
        assert_eq!(other.read_reply(), "other");
        assert_eq!(other.say("UNLOCK k other"), 1);
    }
    let info = gate.client().say("INFO lockgate").text();
    let place = redis.url.strip_prefix("rediss://").unwrap();
    assert!(
        info.contains(&format!("lockgate_upstream:{place}")),
        "{info}"
    );
}

/// As lockgate itself: the address by a flag, the authority by the environment.
#[test]
fn the_demo_can_be_shown_with_it() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("redis", "127.0.0.1");
    let redis = SecureRedis::start(&authority, &pair, &[]);
    let ca = authority.file();
    let small = ["--clients", "5", "--hold", "1ms", "--poll", "5ms"];
    let arguments = [&["demo", "--upstream", &redis.url], &small[..]].concat();
    let ended = run_to_its_end(&arguments, &[("LOCKGATE_UPSTREAM_CA", text(&ca))]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.contains(&redis.url), "{}", ended.stdout);
    let refused = run_to_its_end(&arguments, &[]);
    // Not believed; or there is nobody to be believed on this machine.
    assert!(matches!(refused.code, Some(4 | 7)), "{}", refused.stderr);
}

#[test]
fn a_redis_that_wants_a_certificate_gets_one() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("redis", "127.0.0.1");
    let redis = SecureRedis::start(&authority, &pair, &["--tls-auth-clients", "yes"]);
    let own = authority.issue("gate", "gate");
    let gate = gate_with(&redis, &authority, Some(&own));
    assert_eq!(gate.client().say("SET a 1"), "OK");
    assert_eq!(gate.client().say("LOCK k TOKEN t"), "t");

    let without = Lockgate::start_with(
        &["--upstream", &redis.url],
        &[("LOCKGATE_UPSTREAM_CA", text(&authority.file()))],
    );
    eventually("the log says why", || {
        without.log().to_lowercase().contains("certificaterequired")
    });
    does_not_reach_redis(&without, "CertificateRequired");
}

#[test]
fn a_redis_that_is_not_to_be_believed_is_not_spoken_to() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let (right, expired) = (
        authority.issue("right", "127.0.0.1"),
        authority.issue_expired("expired", "127.0.0.1"),
    );
    let elsewhere = authority.issue("elsewhere", "redis.example");
    let start = |pair: &Pair| SecureRedis::start(&authority, pair, &[]);

    let redis = start(&right);
    let gate = Lockgate::start_with(
        &["--upstream", &redis.url],
        &[("LOCKGATE_UPSTREAM_CA", text(&Authority::new().file()))],
    );
    does_not_reach_redis(&gate, "invalid peer certificate");
    // No authority of this system knows it either.
    let gate = Lockgate::start(&["--upstream", &redis.url]);
    does_not_reach_redis(&gate, "UnknownIssuer");

    let ca = authority.file();
    let believing = [("LOCKGATE_UPSTREAM_CA", text(&ca))];
    let redis = start(&expired);
    let gate = Lockgate::start_with(&["--upstream", &redis.url], &believing);
    does_not_reach_redis(&gate, "expired");

    let redis = start(&elsewhere);
    let gate = Lockgate::start_with(&["--upstream", &redis.url], &believing);
    does_not_reach_redis(&gate, "not valid for name");
    let gate = redis.gate(&[
        believing[0],
        ("LOCKGATE_UPSTREAM_SERVER_NAME", "redis.example"),
    ]);
    assert_eq!(gate.client().say("PING"), "PONG");
    assert_eq!(gate.client().say("TRYLOCK k TOKEN t"), "t");
}

#[test]
fn on_sighup_another_redis_is_believed() {
    let _machine = Machine::shared();
    let (authority, wrong) = (Authority::new(), Authority::new());
    let pair = authority.issue("redis", "127.0.0.1");
    let redis = SecureRedis::start(&authority, &pair, &[]);
    let ca = wrong.file();
    let gate = Lockgate::start_with(
        &["--upstream", &redis.url],
        &[
            ("LOCKGATE_UPSTREAM_CA", text(&ca)),
            ("LOCKGATE_WRITE_BACK_LEASES", "off"),
        ],
    );
    does_not_reach_redis(&gate, "invalid peer certificate");
    fs::copy(authority.file(), &ca).unwrap();
    gate.reload();
    let mut client = gate.client();
    assert_eq!(client.say("PING"), "PONG");
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
}

#[test]
fn a_connection_that_breaks_is_opened_again() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("redis", "127.0.0.1");
    let redis = SecureRedis::start(&authority, &pair, &[]);
    let gate = gate_with(&redis, &authority, None);
    let (mut holder, mut waiter) = (gate.client(), gate.client());
    assert_eq!(holder.say("LOCK k TOKEN t"), "t");
    waiter.send(&["LOCK", "k", "TOKEN", "next"]);
    gate.awaits_waiters("k", 1);
    let killed = redis
        .redis
        .client()
        .say("CLIENT KILL TYPE normal SKIPME yes");
    assert!(killed.integer() >= 1);
    assert_eq!(holder.say("UNLOCK k t"), 1);
    assert_eq!(waiter.read_reply(), "next");
    assert_eq!(waiter.say("UNLOCK k next"), 1);
    // And that of a client ends with Redis's side of it.
    let mut client = gate.client();
    assert_eq!(client.say("PING"), "PONG");
    redis
        .redis
        .client()
        .say("CLIENT KILL TYPE normal SKIPME yes");
    client.is_closed_by_the_server();
}

/// The connection is given up, and what was under way on it is asked again on the next one.
#[test]
fn a_command_sent_while_redis_hangs_is_answered_once() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("redis", "127.0.0.1");
    let redis = SecureRedis::start(&authority, &pair, &[]);
    let ca = authority.file();
    let gate = redis.gate(&[
        ("LOCKGATE_UPSTREAM_CA", text(&ca)),
        ("LOCKGATE_UPSTREAM_TIMEOUT", "300ms"),
    ]);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK first TOKEN t"), "t");
    redis.redis.stop();
    client.send(&["LOCK", "k", "TOKEN", "t"]);
    eventually("the connection is given up", || {
        gate.log().contains("Redis does not answer")
    });
    redis.redis.go_on();
    assert_eq!(client.read_reply(), "t");
    assert_eq!(client.say("UNLOCK k t"), 1);
    assert_eq!(client.say("UNLOCK first t"), 1);
    assert_eq!(
        redis.redis.client().say("DBSIZE"),
        1,
        "the mark of the grace"
    );
}

/// A Redis that takes the connection and says nothing.
#[test]
fn a_redis_that_never_ends_its_handshake_is_given_up() {
    let _machine = Machine::shared();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}", silent.local_addr().unwrap());
    let authority = Authority::new();
    let gate = Lockgate::start_with(
        &["--upstream", &url],
        &[
            ("LOCKGATE_UPSTREAM_CA", text(&authority.file())),
            ("LOCKGATE_UPSTREAM_CONNECT_TIMEOUT", "200ms"),
            ("LOCKGATE_UPSTREAM_TIMEOUT", "200ms"),
        ],
    );
    let start = Instant::now();
    does_not_reach_redis(&gate, "time");
    assert!(start.elapsed() < SOON / 2, "{:?}", start.elapsed());
}
