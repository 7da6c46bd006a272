//! Clients that speak TLS to lockgate are clients like any other.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use super::{Authority, SecureRedis, Secured, connect, redis_cli};
use crate::{
    pipelines::{is_answered, narrow, values_around_all},
    support::{
        Lockgate, Machine, RedisServer, SHORT_GRACE, Value, counted, eventually, frame, text,
    },
};

#[test]
fn a_lock_goes_from_hand_to_hand_with_tls_and_without_in_both_protocols() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let before_redis = [&SHORT_GRACE[..], &[("LOCKGATE_UPSTREAM", url.as_str())]].concat();
    for place in [
        Secured::embedded(),
        Secured::start(Authority::new(), &before_redis),
    ] {
        let mut clients = [place.client(), place.client(), place.gate.client()];
        assert_eq!(*clients[1].say("HELLO 3").field("proto"), 3);
        assert_eq!(clients[0].say("LOCK k TOKEN t0"), "t0");
        for round in 1..10 {
            let (next, token) = (round % 3, format!("t{round}"));
            clients[next].send(&["LOCK", "k", "TOKEN", &token]);
            place.gate.awaits_waiters("k", 1);
            let holder = &mut clients[(round - 1) % 3];
            let last = format!("t{}", round - 1);
            assert_eq!(holder.call(&["UNLOCK", "k", &last]), 1);
            assert_eq!(clients[next].read_reply(), token);
        }
        assert_eq!(clients[0].call(&["UNLOCK", "k", "t9"]), 1);
        // Replies stand in the order of the commands, however many come at once.
        let many: Vec<u8> = (0..1_000)
            .flat_map(|i| {
                format!("ECHO {i}\r\nLOCK k{i} TOKEN t\r\nUNLOCK k{i} t\r\n").into_bytes()
            })
            .collect();
        clients[0].write_raw(&many);
        for i in 0..1_000 {
            assert_eq!(clients[0].read_reply(), i.to_string());
            assert_eq!(clients[0].read_reply(), "t");
            assert_eq!(clients[0].read_reply(), 1);
        }
    }
}

#[test]
fn it_can_be_all_that_a_gate_listens_for() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("gate", "127.0.0.1");
    let environment = [
        ("LOCKGATE_TLS_LISTEN", "127.0.0.1:0"),
        ("LOCKGATE_TLS_CERTIFICATE", text(&pair.certificate)),
        ("LOCKGATE_TLS_KEY", text(&pair.key)),
    ];
    let gate = Lockgate::start_at("off", &[], &environment);
    let mut client = connect(&gate, &authority.client(None));
    let port = gate.tls_address().port();
    let info = client.say("INFO server").text();
    assert!(info.contains(&format!("tcp_port:{port}\r\n")), "{info}");
    let own = client.say("CLIENT INFO").text();
    assert!(own.contains(&format!(" laddr=127.0.0.1:{port} ")), "{own}");
}

#[test]
fn redis_cli_uses_it() {
    let _machine = Machine::shared();
    let place = Secured::embedded();
    let ca = place.authority.file();
    let says = |command: &[&str]| redis_cli(&place.gate, &ca, &[], command);
    assert_eq!(says(&["PING"]), "PONG");
    assert_eq!(says(&["LOCK", "k", "TOKEN", "t"]), "t");
    assert_eq!(says(&["UNLOCK", "k", "t"]), "1");
}

/// Both ways, through buffers that hold far less, with a side that reads late.
#[test]
fn long_values_pass_both_ways() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("redis", "127.0.0.1");
    let redis = SecureRedis::start(&authority, &pair, &[]);
    let ca = authority.file();
    let environment = [
        &SHORT_GRACE[..],
        &[
            ("LOCKGATE_UPSTREAM", redis.url.as_str()),
            ("LOCKGATE_UPSTREAM_CA", text(&ca)),
            ("LOCKGATE_LIMITS_RELAY_BYTES", "32768"),
        ],
    ];
    let place = Secured::start(Authority::new(), &environment.concat());
    let mut client = place.client();
    // No two places of it are alike.
    let value: Vec<u8> = (0..12_000_000_u32).map(|i| (i ^ (i >> 11)) as u8).collect();
    assert_eq!(client.call(&[&b"SET"[..], b"long", &value]), "OK");
    assert_eq!(redis.redis.client().say("STRLEN long"), 12_000_000);
    for _ in 0..3 {
        client.send(&["GET", "long"]);
    }
    thread::sleep(Duration::from_millis(300));
    for _ in 0..3 {
        assert_eq!(client.read_reply(), Value::Bulk(value.clone()));
    }
    assert_eq!(client.say("PING"), "PONG");
}

/// What lockgate has read of the socket and not asked for yet is inside of TLS, where no socket tells of
/// it.
#[test]
fn commands_behind_a_lock_run_when_it_is_granted() {
    let _machine = Machine::shared();
    let place = Secured::start(
        Authority::new(),
        &[("LOCKGATE_LIMITS_PIPELINED_COMMANDS", "3")],
    );
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
    let mut sent = b"LOCK k TOKEN waiter\r\n".to_vec();
    for i in 0..2_000 {
        sent.extend(format!("ECHO {i}\r\n").into_bytes());
    }
    waiter.write_raw(&sent);
    place.gate.awaits_waiters("k", 1);
    assert_eq!(holder.say("UNLOCK k holder"), 1);
    assert_eq!(waiter.read_reply(), "waiter");
    for i in 0..2_000 {
        assert_eq!(waiter.read_reply(), i.to_string());
    }
}

/// Written whole before anything is read, with lock commands in its middle. (Redis 7.0.15 with TLS of its own closes
/// a connection now and then whose replies pile up, with or without lockgate.)
#[test]
fn a_pipeline_of_forty_thousand_commands_is_answered() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let environment = [&SHORT_GRACE[..], &[("LOCKGATE_UPSTREAM", url.as_str())]].concat();
    let place = Secured::start(Authority::new(), &environment);
    let mut client = narrow(place.client());
    for protocol in ["HELLO 2", "HELLO 3"] {
        client.say(protocol);
        is_answered(&mut client, &values_around_all());
    }
}

/// A grant is the client's when its reply is on its way, and what TLS still holds is not.
#[test]
fn a_grant_that_was_read_stays_though_the_rest_of_the_pipeline_is_not() {
    let _machine = Machine::shared();
    let place = Secured::embedded();
    let (mut client, mut other) = (narrow(place.client()), place.client());
    let text = "x".repeat(15 * 1024);
    let echo = frame(&["ECHO", &text]).repeat(1_000);
    let lock = |key| frame(&["LOCK", key, "TOKEN", "t", "PX", "600000"]);
    let pipeline = [
        lock("k"),
        echo,
        lock("never"),
        frame(&["UNLOCK", "other", "o"]),
    ];
    assert_eq!(other.say("LOCK other TOKEN o"), "o");
    client.write_raw(&pipeline.concat());
    assert_eq!(client.read_reply(), "t");
    eventually("the pipeline runs", || {
        *other.say("LOCKINFO other").field("held") == 0
    });
    drop(client);
    assert_eq!(other.say("LOCK never TOKEN other WAIT 5000"), "other");
    assert_eq!(other.say("RELOCK k t"), 1);
}

/// Killed: its machine ends the connection, and no last word comes. It is noticed where lockgate reads, and
/// where it has stopped reading.
#[test]
fn a_client_killed_while_it_waits_leaves_the_queue() {
    let _machine = Machine::shared();
    let place = Secured::start(
        Authority::new(),
        &[("LOCKGATE_LIMITS_PIPELINED_COMMANDS", "3")],
    );
    let mut holder = place.client();
    assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
    for behind in ["", "PING\r\nPING\r\nPING\r\nPING\r\nPING\r\n"] {
        let mut killed = place.client();
        killed.write_raw(format!("LOCK k\r\n{behind}").as_bytes());
        place.gate.awaits_waiters("k", 1);
        drop(killed);
        place.gate.awaits_waiters("k", 0);
    }
    // And one that takes its leave.
    let mut polite = place.client();
    polite.write_raw(b"LOCK k\r\n");
    place.gate.awaits_waiters("k", 1);
    polite.finish_sending();
    place.gate.awaits_waiters("k", 0);
}

/// A client that has closed its sending side reads on.
#[test]
fn commands_sent_before_a_half_close_are_answered() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let place = Secured::start(Authority::new(), &[("LOCKGATE_UPSTREAM", &redis.url())]);
    let mut client = place.client();
    client.write_raw(b"SET a 1\r\nINCR a\r\nGET a\r\n");
    client.finish_sending();
    assert_eq!(client.read_reply(), "OK");
    assert_eq!(client.read_reply(), 2);
    assert_eq!(client.read_reply(), "2");
    // Its own end is a message, too: else it would be an error to read.
    let end = client.try_read().unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof, "{end}");
    assert!(!end.to_string().contains("close_notify"), "{end}");
    eventually("its connection to Redis ends", || {
        let info = redis.client().say("INFO clients").text();
        info.contains("connected_clients:1\r\n")
    });
}

/// A client that never reads is not written for without end, and takes nobody's time.
#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let place = Secured::start(Authority::new(), &[("LOCKGATE_UPSTREAM", &redis.url())]);
    let mut other = place.client();
    assert_eq!(other.call(&["SET", "long", &"x".repeat(1_000_000)]), "OK");
    place.gate.forget_peak();
    let before = place.gate.rss_bytes();
    let mut deaf = place.client();
    deaf.write_raw("GET long\r\n".repeat(200).as_bytes());
    for _ in 0..200 {
        assert_eq!(other.say("PING"), "PONG");
    }
    thread::sleep(Duration::from_millis(300));
    let grown = place.gate.peak_bytes().saturating_sub(before);
    assert!(grown < 8_000_000, "{grown} bytes");
    // It begins to read after all.
    for _ in 0..200 {
        assert_eq!(deaf.read_reply().text().len(), 1_000_000);
    }
}

#[test]
fn a_handshake_that_takes_too_long_is_cut() {
    let _machine = Machine::shared();
    let place = Secured::start(
        Authority::new(),
        &[
            ("LOCKGATE_TLS_HANDSHAKE_TIMEOUT", "400ms"),
            ("LOCKGATE_LIMITS_CLIENTS", "12"),
        ],
    );
    let mut other = place.client();
    let start = Instant::now();
    let mut slow: Vec<_> = (0..10)
        .map(|_| TcpStream::connect(place.gate.tls_address()).unwrap())
        .collect();
    // One of them says something from time to time: the beginning of a handshake, byte by byte.
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03];
    for byte in hello {
        let _ = slow[0].write_all(&[byte]);
        assert_eq!(other.say("PING"), "PONG");
        thread::sleep(Duration::from_millis(30));
    }
    for stream in &mut slow {
        stream.set_read_timeout(Some(crate::support::SOON)).unwrap();
        let mut rest = Vec::new();
        // Closed, or reset where bytes of it were not read.
        let _ = stream.read_to_end(&mut rest);
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(390), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    eventually("the log says so", || {
        place.gate.log().contains("tls.handshake_timeout")
    });
    // Their places are free again.
    for mut client in (0..11).map(|_| place.client()).collect::<Vec<_>>() {
        assert_eq!(client.say("PING"), "PONG");
    }
    assert_eq!(other.say("PING"), "PONG");
}

/// A client without TLS at a listener with TLS, and the other way round.
#[test]
fn a_client_of_another_protocol_is_refused() {
    let _machine = Machine::shared();
    let place = Secured::embedded();
    let mut plain = TcpStream::connect(place.gate.tls_address()).unwrap();
    plain.write_all(b"PING\r\n").unwrap();
    plain.set_read_timeout(Some(crate::support::SOON)).unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!String::from_utf8_lossy(&said).contains("PONG"), "{said:?}");
    eventually("the log says so", || {
        place.gate.log().contains("a client was refused: TLS")
    });
    let error = crate::support::Client::try_connect_tls(place.gate.address(), &place.config);
    assert!(error.is_err());
    let mut client = place.gate.client();
    assert_eq!(client.say("PING"), "PONG");
    assert_eq!(counted(&mut client, "failed_handshakes"), 1);
}

#[test]
fn waiters_get_an_error_on_shutdown() {
    let _machine = Machine::shared();
    let mut place = Secured::embedded();
    let (mut holder, mut waiter) = (place.client(), place.client());
    let _half_way = TcpStream::connect(place.gate.tls_address()).unwrap();
    assert_eq!(holder.say("LOCK k TOKEN t"), "t");
    waiter.send(&["LOCK", "k"]);
    place.gate.awaits_waiters("k", 1);
    let start = Instant::now();
    place.gate.terminate();
    assert!(waiter.read_reply().error().starts_with("SHUTDOWN"));
    waiter.is_closed_by_the_server();
    assert_eq!(place.gate.exit_code(), Some(0));
    // Not even for the one that never began.
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}
