//! A gate that has a password of its own: who does not give it gets nothing, who gives it is the gate to
//! the Redis behind.

use std::io::{Read, Write};

use crate::support::{
    Client, Lockgate, Machine, RedisServer, SHORT_GRACE, Value, counted, eventually, frame,
};

const PASSWORD: (&str, &str) = ("LOCKGATE_AUTH_PASSWORD", "open sesame");

const NOAUTH: &str = "NOAUTH Authentication required.";

const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Every kind of place that can be behind such a gate: nothing, a Redis that knows nobody, one that wants a
/// password, and one where the gate is a user of its own.
fn each(test: impl Fn(&Lockgate, Option<&RedisServer>)) {
    let _machine = Machine::shared();
    test(&Lockgate::start_with(&[], &[PASSWORD]), None);
    for (arguments, login) in [
        (&[][..], ""),
        (&["--requirepass", "secret"], ":secret@"),
        (
            &[
                "--user", "gate", "on", ">secret", "~*", "&*", "+@all", "--user", "default", "off",
            ],
            "gate:secret@",
        ),
    ] {
        let redis = RedisServer::start(arguments);
        let url = format!("redis://{login}{}", redis.address());
        let environment = [&SHORT_GRACE[..], &[PASSWORD]].concat();
        let gate = Lockgate::start_with(&["--upstream", &url], &environment);
        test(&gate, Some(&redis));
        assert!(!gate.log().contains("secret"), "{}", gate.log());
        assert!(!gate.log().contains("sesame"), "{}", gate.log());
    }
}

fn let_in(gate: &Lockgate) -> Client {
    let mut client = gate.client();
    assert_eq!(client.call(&["AUTH", "open sesame"]), "OK");
    client
}

#[track_caller]
fn is_barred(client: &mut Client) {
    for command in [
        "LOCK k",
        "TRYLOCK k",
        "RELOCK k t",
        "UNLOCK k t",
        "LOCKINFO k",
        "LOCKS",
        "PING",
        "SELECT 1",
        "COMMAND",
        "INFO",
        "MULTI",
        "CLIENT REPLY ON",
        "MONITOR",
        "SUBSCRIBE a b c",
        "SET a 1",
        "NOSUCHCOMMAND",
    ] {
        assert_eq!(client.say(command).error(), NOAUTH, "{command}");
    }
}

#[test]
fn without_the_password_a_client_gets_nothing() {
    each(|gate, redis| {
        let mut client = gate.client();
        is_barred(&mut client);
        for wrong in [
            &["AUTH", "secret"][..],
            &["AUTH", "default", "secret"],
            &["AUTH", "gate", "secret"],
            &["AUTH", "gate", "open sesame"],
            &["HELLO", "3", "AUTH", "default", "secret"],
            &["HELLO", "3", "AUTH", "gate", "secret"],
        ] {
            assert_eq!(client.call(wrong).error(), WRONGPASS, "{wrong:?}");
        }
        assert_eq!(counted(&mut let_in(gate), "wrong_passwords"), 6);
        assert!(client.say("HELLO 3").error().starts_with("NOAUTH HELLO"));
        assert_eq!(client.say("RESET"), "RESET");
        is_barred(&mut client);
        // However it is written, and however long it is.
        client.write_raw(b"get a\r\nPING\r\n");
        assert_eq!(client.read_reply().error(), NOAUTH);
        assert_eq!(client.read_reply().error(), NOAUTH);
        // As long as Redis lets it be.
        let long = "x".repeat(16 * 1024);
        for command in [&["APPEND", "a", &long][..], &[&long, "a"], &["LOCK", &long]] {
            assert_eq!(client.call(command).error(), NOAUTH);
        }
        assert!(client.call(&["AUTH", &long]).error().starts_with("ERR "));
        is_barred(&mut client);
        if let Some(redis) = redis {
            let log = redis_sees(redis);
            assert!(!log.contains("cmdstat_append:"), "nothing passed: {log}");
        }
        assert_eq!(client.say("QUIT"), "OK");
        client.is_closed_by_the_server();
        // Not even a release by somebody who knows the token, nor at the end of a connection.
        let mut owner = let_in(gate);
        assert_eq!(owner.say("LOCK k TOKEN t"), "t");
        let mut stranger = gate.client();
        stranger.write_raw(b"UNLOCK k t\r\n*1\r\nnonsense\r\nUNLOCK k t\r\n");
        stranger.finish_sending();
        assert_eq!(stranger.read_reply().error(), NOAUTH);
        stranger.is_closed_by_the_server();
        assert_eq!(owner.say("UNLOCK k t"), 1);
    });
}

/// What Redis has run, by somebody whom it lets in.
fn redis_sees(redis: &RedisServer) -> String {
    let mut client = redis.client();
    for login in ["AUTH secret", "AUTH gate secret"] {
        client.say(login);
    }
    client.say("INFO commandstats").text()
}

#[test]
fn a_client_with_the_password_is_served() {
    each(|gate, redis| {
        for login in [
            &["AUTH", "open sesame"][..],
            &["AUTH", "default", "open sesame"],
            &[
                "HELLO",
                "2",
                "AUTH",
                "default",
                "open sesame",
                "SETNAME",
                "me",
            ],
            &[
                "HELLO",
                "3",
                "SETNAME",
                "me",
                "AUTH",
                "default",
                "open sesame",
            ],
        ] {
            let mut client = gate.client();
            let reply = client.call(login);
            if login[0] == "HELLO" {
                assert_eq!(*reply.field("proto"), login[1].parse::<i64>().unwrap());
                assert_eq!(client.say("CLIENT GETNAME"), "me");
            } else {
                assert_eq!(reply, "OK");
            }
            assert_eq!(client.say("PING"), "PONG");
            assert_eq!(client.say("LOCK k TOKEN t"), "t");
            let mut other = let_in(gate);
            other.send(&["LOCK", "k", "TOKEN", "next"]);
            eventually("it waits", || {
                *client.say("LOCKINFO k").field("waiters") == 1
            });
            assert_eq!(client.say("UNLOCK k t"), 1);
            assert_eq!(other.read_reply(), "next");
            assert_eq!(other.say("UNLOCK k next"), 1);
            // A wrong password changes nothing for who is in, and HELLO need not give it again.
            assert_eq!(client.say("AUTH wrong").error(), WRONGPASS);
            assert_eq!(*client.say("HELLO 3").field("proto"), 3);
            assert_eq!(client.say("PING"), "PONG");
            if redis.is_some() {
                assert_eq!(client.say("SET a 1"), "OK");
                assert_eq!(client.say("GET a"), "1");
            }
        }
    });
}

#[test]
fn after_reset_it_has_to_be_given_again() {
    each(|gate, _| {
        let mut client = let_in(gate);
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
        assert_eq!(client.say("RESET"), "RESET");
        is_barred(&mut client);
        assert_eq!(client.call(&["AUTH", "open sesame"]), "OK");
        assert_eq!(client.say("UNLOCK k t"), 1);
    });
}

/// Nothing that is sent behind an `AUTH` runs before its answer is known, and nothing runs as somebody else.
#[test]
fn a_pipeline_is_answered_in_order() {
    each(|gate, _| {
        let mut client = gate.client();
        let sent = [
            frame(&["PING"]),
            frame(&["AUTH", "wrong"]),
            frame(&["LOCK", "k", "TOKEN", "t"]),
            frame(&["AUTH", "open sesame"]),
            frame(&["LOCK", "k", "TOKEN", "t"]),
            frame(&["PING"]),
            frame(&["RESET"]),
            frame(&["UNLOCK", "k", "t"]),
            frame(&["PING"]),
            frame(&["HELLO", "3", "AUTH", "default", "open sesame"]),
            frame(&["UNLOCK", "k", "t"]),
        ]
        .concat();
        // Whole, and byte by byte.
        for size in [sent.len(), 1] {
            for piece in sent.chunks(size) {
                client.write_raw(piece);
            }
            assert_eq!(client.read_reply().error(), NOAUTH);
            assert_eq!(client.read_reply().error(), WRONGPASS);
            assert_eq!(client.read_reply().error(), NOAUTH);
            assert_eq!(client.read_reply(), "OK");
            assert_eq!(client.read_reply(), "t");
            assert_eq!(client.read_reply(), "PONG");
            assert_eq!(client.read_reply(), "RESET");
            assert_eq!(client.read_reply().error(), NOAUTH);
            assert_eq!(client.read_reply().error(), NOAUTH);
            assert_eq!(*client.read_reply().field("proto"), 3);
            assert_eq!(client.read_reply(), 1);
            assert_eq!(client.say("RESET"), "RESET");
        }
    });
}

/// A Redis with a value that lockgate's own user may not read, and a lockgate with a password before it.
fn guarded() -> (RedisServer, Lockgate) {
    let redis = RedisServer::start(&[
        "--user", "gate", "on", ">secret", "~lock:*", "&*", "+@all", "--user", "default", "on",
        "nopass", "~*", "&*", "+@all",
    ]);
    assert_eq!(redis.client().say("SET private treasure"), "OK");
    let url = format!("redis://gate:secret@{}", redis.address());
    let environment = [&SHORT_GRACE[..], &[PASSWORD]].concat();
    let gate = Lockgate::start_with(&["--upstream", &url], &environment);
    (redis, gate)
}

/// Where replies are no replies any more, what the client says is not looked at either: it says nothing more.
#[test]
fn behind_a_command_that_ends_counting_nobody_becomes_somebody_else() {
    let _machine = Machine::shared();
    let (redis, gate) = guarded();
    let mut direct = redis.client();
    assert!(
        let_in(&gate)
            .say("GET private")
            .error()
            .starts_with("NOPERM")
    );
    let long = "x".repeat(64 * 1024);
    for pipe in [
        &["REPLCONF", "listening-port", "1"][..],
        &["REPLCONF", &long],
        &["MONITOR"],
    ] {
        let become_another = [
            frame(pipe),
            frame(&["RESET"]),
            frame(&["AUTH", "default", "any"]),
            frame(&["COPY", "private", "stolen"]),
            frame(&["GET", "private"]),
        ];
        // At once, and one after the other.
        for at_once in [true, false] {
            let mut client = let_in(&gate);
            if at_once {
                client.write_raw(&become_another.concat());
            } else {
                client.write_raw(&become_another[0]);
                client.hears_something();
                // It may be closed before all is said.
                let _ = client.try_write(&become_another[1..].concat());
            }
            let mut heard = Vec::new();
            let _ = client.writer().read_to_end(&mut heard);
            let heard = heard.escape_ascii().to_string();
            assert!(!heard.contains("treasure"), "{pipe:?}: {heard}");
            assert_eq!(direct.say("EXISTS stolen"), 0, "{pipe:?}");
        }
    }
    // It may be used for what it is for.
    let mut monitor = let_in(&gate);
    assert_eq!(monitor.say("MONITOR"), "OK");
    assert_eq!(direct.say("ECHO heard"), "heard");
    assert!(monitor.read_reply().text().contains("heard"));
}

#[test]
fn in_a_transaction_nobody_logs_in() {
    each(|gate, redis| {
        if redis.is_none() {
            return;
        }
        for login in [
            &["AUTH", "open sesame"][..],
            &["AUTH", "wrong"],
            &["HELLO", "3", "AUTH", "default", "open sesame"],
        ] {
            let mut client = let_in(gate);
            assert_eq!(client.say("MULTI"), "OK");
            assert!(client.call(login).error().starts_with("ERR "));
            assert_eq!(client.say("SET a 1"), "QUEUED");
            assert!(client.say("EXEC").error().starts_with("EXECABORT"));
            assert_eq!(client.say("PING"), "PONG");
            // But it may be left for good.
            assert_eq!(client.say("MULTI"), "OK");
            assert_eq!(client.say("RESET"), "RESET");
            is_barred(&mut client);
        }
    });
}

#[test]
fn silence_is_kept_about_it() {
    each(|gate, _| {
        let mut client = let_in(gate);
        client.send(&["CLIENT", "REPLY", "OFF"]);
        client.send(&["AUTH", "wrong"]);
        client.send(&["AUTH", "open sesame"]);
        client.send(&["LOCK", "k", "TOKEN", "t"]);
        client.send(&["CLIENT", "REPLY", "ON"]);
        assert_eq!(client.read_reply(), "OK");
        assert_eq!(client.say("UNLOCK k t"), 1);
    });
}

/// Where Redis does not know the gate (any more), its answer is what the client gets.
#[test]
fn errors_of_redis_about_lockgate_are_passed_on() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    for (login, says) in [("", "NOAUTH "), (":wrong@", "WRONGPASS ")] {
        let url = format!("redis://{login}{}", redis.address());
        let gate = Lockgate::start_with(&["--upstream", &url], &[PASSWORD]);
        let mut client = gate.client();
        let reply = client.call(&["AUTH", "open sesame"]);
        assert!(reply.error().starts_with(says), "{reply:?}");
        is_barred(&mut client);
    }
}

#[test]
fn the_password_may_be_in_a_file() {
    let _machine = Machine::shared();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"open sesame\n").unwrap();
    let path = file.path().to_str().unwrap();
    let gate = Lockgate::start_with(&[], &[("LOCKGATE_AUTH_PASSWORD_FILE", path)]);
    assert_eq!(gate.client().say("PING").error(), NOAUTH);
    assert_eq!(let_in(&gate).say("PING"), "PONG");
}

/// Passed over as it comes: not a byte of it is kept.
#[test]
fn an_unauthenticated_client_costs_no_memory() {
    const CLIENTS: usize = 100;
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[PASSWORD]);
    let mut clients = gate.clients(CLIENTS);
    clients.iter_mut().for_each(is_barred);
    let argument = [&b"$16384\r\n"[..], &[b'x'; 16 * 1024], b"\r\n"].concat();
    gate.forget_peak();
    let before = gate.rss_bytes();
    // All but the last argument of each.
    let most = [&b"*10\r\n"[..], &argument.repeat(9)].concat();
    for client in &mut clients {
        client.write_raw(&most);
    }
    let mut witness = let_in(&gate);
    (0..100).for_each(|_| assert_eq!(witness.say("PING"), "PONG"));
    let grown = gate.peak_bytes().saturating_sub(before);
    let sent = most.len() * CLIENTS;
    assert!(grown < 2_000_000, "{grown} bytes for {sent}");
    for client in &mut clients {
        client.write_raw(&argument);
        assert_eq!(client.read_reply().error(), NOAUTH);
    }
    assert_eq!(clients[0].call(&["AUTH", "open sesame"]), "OK");
    assert_ne!(clients[0].say("LOCK k"), Value::Nil);
}

/// Lines of Redis's inline form may be 64 KiB long. What is in one is known before anything of it passes.
#[test]
fn a_long_line_logs_in_nowhere_but_here() {
    let _machine = Machine::shared();
    let (_redis, gate) = guarded();
    let spaces = " ".repeat(17_000);
    let long = "x".repeat(17_000);
    for (begin, rest) in [
        (format!("AUTH default x{spaces}"), "".to_owned()),
        (spaces.clone(), "AUTH default x".to_owned()),
        (format!("{spaces}{spaces}RESET"), spaces.clone()),
        (format!("HELLO{spaces}"), "3 AUTH default x".to_owned()),
        ("RESET".to_owned(), spaces.clone()),
        (
            format!("*3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$17000\r\n{long}"),
            String::new(),
        ),
        (format!("*1\r\n$17000\r\n{long}"), String::new()),
    ] {
        let mut client = let_in(&gate);
        assert!(client.say("ACL WHOAMI") == "gate");
        client.write_raw(begin.as_bytes());
        // By then Redis has the relayed commands.
        assert_eq!(let_in(&gate).say("PING"), "PONG");
        client.write_raw(rest.as_bytes());
        client.write_raw(b"\r\n");
        client.send(&["GET", "private"]);
        let mut heard = Vec::new();
        client.finish_sending();
        let _ = client.writer().read_to_end(&mut heard);
        let heard = heard.escape_ascii().to_string();
        assert!(!heard.contains("treasure"), "{}: {heard}", &begin[..20]);
        assert!(heard.contains("-NO"), "{}: {heard}", &begin[..20]);
    }
    // Others pass.
    let mut client = let_in(&gate);
    client.write_raw(format!("ECHO {long}\r\n").as_bytes());
    assert_eq!(client.read_reply(), long.as_str());
}
