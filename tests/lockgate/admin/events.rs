//! The page and what it is told, byte by byte; how it looks, a browser tries (tests/page/run).

use std::{net::SocketAddr, thread, time::Duration};

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use super::{gate, gate_before, gate_that_drains, get};
use crate::support::{Http, Lockgate, Machine, RedisServer, eventually, free_address};

/// As `STREAMS` in `src/admin/readers.rs`.
const STREAMS: usize = 16;

const EVENTS: &str = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// As `TEXT_BYTES` in `src/admin/readers.rs`.
const TEXT_BYTES: usize = 256;

/// A stream of events that was begun.
pub(crate) fn events(admin: SocketAddr) -> Http {
    events_with(admin, "")
}

/// The same, of locks with this in their names, as the query of a URL has it.
fn events_with(admin: SocketAddr, find: &str) -> Http {
    let mut http = Http::connect(admin);
    http.send(&EVENTS.replace("/events", &format!("/events?find={find}")));
    let head = http.head();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), "text/event-stream");
    http
}

/// The next event: its name and what it tells.
#[track_caller]
fn next(http: &mut Http) -> (String, String) {
    let mut name = String::new();
    loop {
        let line = http.line();
        if let Some(its) = line.strip_prefix("event: ") {
            name = its.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            return (name, data.to_owned());
        }
    }
}

/// What is told next that holds these words.
#[track_caller]
pub(crate) fn next_with(http: &mut Http, words: &str) -> String {
    let mut told = String::new();
    for _ in 0..10 {
        let (name, data) = next(http);
        if name == "state" && data.contains(words) {
            return data;
        }
        told = data;
    }
    panic!("{words} is not told: {told}");
}

#[test]
fn a_reader_hears_of_the_last_minutes_and_then_every_second_of_now() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let mut http = events(gate.admin_address());
    let (name, history) = next(&mut http);
    assert_eq!(name, "history");
    assert!(history.starts_with('['), "{history}");
    let idle = next_with(&mut http, r#""locks":[]"#);
    assert!(
        idle.contains(r#""upstream":{"for_ms":null,"name":null"#),
        "{idle}"
    );
    let mut owner = gate.client();
    owner.say("CLIENT SETNAME owner-1");
    assert_eq!(owner.say("LOCK k TOKEN secret-1 PX 60000"), "secret-1");
    let mut waiter = gate.client();
    waiter.say("CLIENT SETNAME waiter-1");
    waiter.send(&["LOCK", "k", "TOKEN", "secret-2"]);
    let busy = next_with(&mut http, r#""waiters":1"#);
    let address = owner.writer().local_addr().unwrap().to_string();
    for words in [
        "owner-1",
        "waiter-1",
        &address,
        r#""held":"here""#,
        r#""name":"k""#,
    ] {
        assert!(busy.contains(words), "{words}: {busy}");
    }
    assert!(!busy.contains("secret"), "no token is shown: {busy}");
    // A second reader hears of the seconds before it came.
    let (_, history) = next(&mut events(gate.admin_address()));
    assert!(history.starts_with("[[1"), "{history}");
}

#[test]
fn of_a_lock_with_waiters_and_no_holder_it_is_told_when_redis_was_asked_and_what_it_answers() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let patient = [
        ("LOCKGATE_UPSTREAM_TIMEOUT", "20s"),
        ("LOCKGATE_WRITE_BACK_LEASES", "off"),
    ];
    let gate = gate_before(&redis, &patient);
    let mut http = events(gate.admin_address());
    let mut waiter = gate.client();
    assert_eq!(waiter.say("LOCK k TOKEN t"), "t");
    assert_eq!(waiter.say("UNLOCK k t"), 1);
    let mut next_of = |words: &str| {
        let told = next_with(&mut http, words);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["locks"][0].clone()
    };
    redis.stop();
    waiter.send(&["LOCK", "k", "TOKEN", "t"]);
    let lock = next_of(r#""held":"nobody""#);
    assert_eq!(lock["waiters"], 1);
    assert!(
        lock["asked_ms"].is_u64() && lock["error"].is_null(),
        "{lock}"
    );
    redis.go_on();
    assert_eq!(waiter.read_reply(), "t");
    assert_eq!(waiter.say("UNLOCK k t"), 1);
    let nowhere = free_address().port().to_string();
    let mut direct = redis.client();
    assert_eq!(direct.call(&["REPLICAOF", "127.0.0.1", &nowhere]), "OK");
    waiter.send(&["LOCK", "k", "TOKEN", "u"]);
    let lock = next_of(r#""error":"READONLY"#);
    assert_eq!(lock["held"], "nobody", "{lock}");
    assert_eq!(direct.say("REPLICAOF NO ONE"), "OK");
    assert_eq!(waiter.read_reply(), "u");
}

#[test]
fn clients_that_spin_are_marked() {
    let _machine = Machine::shared();
    let environment = [
        ("LOCKGATE_ABSORB_KEYS", "lock:*"),
        ("LOCKGATE_ABSORB_PARK", "10s"),
    ];
    let gate = gate(&[], &environment);
    let mut http = events(gate.admin_address());
    let mut owner = gate.client();
    assert_eq!(owner.say("SET lock:a t1 NX PX 400000"), "OK");
    let mut waits = gate.client();
    waits.send(&["LOCK", "lock:a"]);
    gate.awaits_waiters("lock:a", 1);
    let mut spins = gate.client();
    spins.send(&["SET", "lock:a", "t2", "NX", "PX", "400000"]);
    let told = next_with(&mut http, r#""waiters":2"#);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let lock = &told["locks"][0];
    let spins = |client: &serde_json::Value| client["spins"].as_bool().unwrap();
    let waiters = lock["first"].as_array().unwrap();
    assert!(spins(lock), "the holder: {lock}");
    assert_eq!(waiters.iter().map(spins).collect::<Vec<_>>(), [false, true]);
    let mut other = gate.client();
    other.say("LOCK other");
    let told = next_with(&mut http, r#""name":"other""#);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(!spins(&told["locks"][1]), "{told}");
}

#[test]
fn a_reader_is_told_of_the_locks_with_the_text_that_it_searches_for_among_many() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let admin = gate.admin_address();
    let mut client = gate.client();
    for number in 0..1_000 {
        client.say(&format!("LOCK job:{number}"));
    }
    client.call(&[&b"LOCK"[..], b"orders \xff&42"]).text();
    let names = |find: &str| {
        let told = next_with(&mut events_with(admin, find), r#""held":1001"#);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let locks = told["locks"].as_array().unwrap().iter();
        let names = locks.map(|lock| lock["name"].as_str().unwrap().to_owned());
        (told["found"].as_u64().unwrap(), names.collect::<Vec<_>>())
    };
    assert_eq!(names("job:777"), (1, vec!["job:777".to_owned()]));
    let (found, first) = names("job:77");
    assert_eq!(
        (found, first.len()),
        (11, 11),
        "job:77 and job:770 to job:779"
    );
    assert!(
        first.iter().all(|name| name.contains("job:77")),
        "{first:?}"
    );
    let (found, first) = names("job");
    assert_eq!((found, first.len()), (1_000, 20), "no more than are shown");
    for find in ["orders", "s%20%ff%2642", "%FF&other=job"] {
        assert_eq!(
            names(find),
            (1, vec!["orders \\xff&42".to_owned()]),
            "{find}"
        );
    }
    assert_eq!(names("order%2A").0, 0, "the text, and no pattern");
    assert_eq!(names("").0, 1_001);
}

#[test]
fn a_text_that_is_too_long_is_refused() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let status = |bytes: usize| {
        let find = "%61".repeat(bytes);
        let mut http = Http::connect(gate.admin_address());
        http.send(&EVENTS.replace("/events", &format!("/events?find={find}")));
        http.head().status
    };
    assert_eq!(status(TEXT_BYTES), 200);
    assert_eq!(status(TEXT_BYTES + 1), 414);
}

#[test]
fn names_are_escaped_and_cut_and_break_no_event() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let mut http = events(gate.admin_address());
    let mut client = gate.client();
    let long = [b'x'; 1024];
    let names: [&[u8]; 3] = [
        b"a\r\n\r\nevent: state\ndata: {}\n\n\"",
        b"\xff\"</script>",
        &long,
    ];
    for name in names {
        client.call(&[b"LOCK", name]).text();
    }
    let told = next_with(&mut http, r#""held":3"#);
    for words in [
        r#""name":"a\\x0d\\x0a\\x0d\\x0aevent: state\\x0adata: {}\\x0a\\x0a\"""#,
        r#""name":"\\xff\"</script>""#,
        r#""is_cut":true"#,
        &format!(r#""name":"{}""#, "x".repeat(256)),
        r#""bytes":1024"#,
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn one_reader_too_many_is_refused_and_probes_still_find_a_place() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let admin = gate.admin_address();
    let mut readers: Vec<_> = (0..STREAMS).map(|_| events(admin)).collect();
    assert_eq!(get(admin, "/events").0, 503);
    assert_eq!(get(admin, "/healthz").0, 200);
    readers.pop();
    eventually("there is a place again", || {
        let mut http = Http::connect(admin);
        http.send(EVENTS);
        http.head().status == 200
    });
    for reader in &mut readers {
        next_with(reader, "locks");
    }
}

/// Neither its place nor memory is kept for it.
#[test]
fn a_reader_that_does_not_read_is_let_go() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let admin = gate.admin_address();
    let mut client = gate.client();
    for number in 0..20_u8 {
        // As long to show as can be.
        client
            .call(&[&b"LOCK"[..], &[&[number][..], &[0xff; 1_000]].concat()])
            .text();
    }
    let lazy: Vec<_> = (0..STREAMS)
        .map(|_| {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
            connect(&socket, &admin).unwrap();
            let mut sent = EVENTS.as_bytes();
            while !sent.is_empty() {
                let count = rustix::io::write(&socket, sent).unwrap();
                sent = &sent[count..];
            }
            socket
        })
        .collect();
    eventually("every place is taken", || get(admin, "/events").0 == 503);
    let before = gate.rss_bytes();
    // What the system keeps for each fills up first, then those who do not take it have some seconds.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        let mut http = Http::connect(admin);
        http.send(EVENTS);
        if http.head().status == 200 {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "they keep their places"
        );
        thread::sleep(Duration::from_millis(100));
    }
    let grown = gate.rss_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes for what nobody reads");
    drop(lazy);
}

#[test]
fn while_it_drains_readers_are_let_go_and_nobody_new_is_told() {
    let _machine = Machine::shared();
    let (mut gate, mut owner) = gate_that_drains();
    let admin = gate.admin_address();
    let mut reader = events(admin);
    next_with(&mut reader, "locks");
    gate.terminate();
    owner.read_reply();
    eventually("it ends", || reader.line() == "0");
    assert_eq!(reader.line(), "", "a whole answer, and no break");
    assert_eq!(reader.get("/healthz").status, 200);
    assert_eq!(get(admin, "/events").0, 503);
    assert_eq!(get(admin, "/").0, 200);
    drop(owner);
    assert_eq!(gate.exit_code(), Some(0));
}

/// A stranger's name that leads to this address (DNS rebinding).
#[test]
fn a_browser_that_came_by_a_strange_name_is_shown_nothing() {
    let _machine = Machine::shared();
    let plain = gate(&[], &[]);
    let named = gate(
        &[],
        &[("LOCKGATE_ADMIN_HOSTS", "gate.example, other.example")],
    );
    let status = |gate: &Lockgate, host: &str, path: &str| {
        let mut http = Http::connect(gate.admin_address());
        http.send(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        http.head().status
    };
    for path in ["/", "/events", "/page.js"] {
        assert_eq!(status(&plain, "gate.example", path), 421, "{path}");
        assert_eq!(status(&named, "evil.example:9380", path), 421, "{path}");
        for host in ["127.0.0.1:9380", "localhost:9380", "[::1]"] {
            assert_eq!(status(&plain, host, path), 200, "{host}{path}");
        }
        assert_eq!(status(&named, "Gate.Example:9380", path), 200, "{path}");
    }
    // Probes come by whatever name there is, and these show nobody's.
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(
            status(&plain, "lockgate.default.svc:9380", path),
            200,
            "{path}"
        );
    }
}
