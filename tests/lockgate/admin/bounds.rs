//! Those who mean it ill: no place is kept for ever, and clients of the gate never notice.

use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{gate, get};
use crate::support::{Http, Machine, counted, eventually};

/// As `lockgate::limits::ADMIN_CONNECTIONS`.
const CONNECTIONS: usize = 64;

/// As `REQUEST_WITHIN` in `src/admin/connection.rs`, and twice as long on a machine that is busy.
const REQUEST_WITHIN: Duration = Duration::from_secs(20);

/// Takes every place there is, each with a request that is not whole.
fn take_all_places(admin: SocketAddr) -> Vec<Http> {
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut http = Http::connect(admin);
        assert_eq!(http.get("/healthz").status, 200);
        http.send("GET /healthz HTTP/1.1\r\n");
        held.push(http);
    }
    held
}

#[test]
fn one_connection_too_many_is_closed_and_a_place_is_free_again_with_its_end() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let admin = gate.admin_address();
    let mut held = take_all_places(admin);
    for _ in 0..3 {
        assert_eq!(Http::connect(admin).rest(), "");
    }
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t", "clients do not notice");
    assert_eq!(counted(&mut client, "refused_operators"), 3);
    held.pop();
    eventually("there is a place again", || {
        let mut http = Http::connect(admin);
        http.send("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n");
        http.rest().starts_with("HTTP/1.1 200 ")
    });
    for http in &mut held {
        http.send("\r\n");
        assert_eq!(http.answer(true).body, "ok\n", "who was there is served");
    }
}

/// Slow loris: a byte now and then.
#[test]
fn a_request_that_does_not_end_and_a_connection_without_any_lose_their_place() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let admin = gate.admin_address();
    let patience = REQUEST_WITHIN * 2;
    let slow = thread::spawn(move || {
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nX: ").unwrap();
        let start = Instant::now();
        // A write fails some time after the other side has closed.
        while stream.write_all(b"a").is_ok() {
            assert!(start.elapsed() < patience, "it is not cut off");
            thread::sleep(Duration::from_millis(100));
        }
        start.elapsed()
    });
    let closes = |mut http: Http| {
        let waits = http.socket().set_read_timeout(Some(patience));
        waits.unwrap();
        let start = Instant::now();
        thread::spawn(move || {
            assert_eq!(http.rest(), "");
            start.elapsed()
        })
    };
    let silent = closes(Http::connect(admin));
    let mut kept = Http::connect(admin);
    assert_eq!(kept.get("/healthz").status, 200);
    let kept = closes(kept);
    for waited in [slow, silent, kept].map(|thread| thread.join().unwrap()) {
        // Not by mistake, either.
        assert!(waited > REQUEST_WITHIN / 2, "{waited:?}");
    }
}

#[test]
fn a_head_without_end_is_refused() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let long = format!("X: {}\r\n\r\n", "a".repeat(64 * 1024));
    let many = format!("{}\r\n", "X: a\r\n".repeat(1_000));
    for headers in [long, many] {
        let mut http = Http::connect(gate.admin_address());
        let request = format!("GET /healthz HTTP/1.1\r\n{headers}");
        // It may be refused before it has all been taken.
        let _ = http.socket().write_all(request.as_bytes());
        let said = http.rest();
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 431 "),
            "{said}"
        );
    }
    assert_eq!(get(gate.admin_address(), "/healthz").0, 200);
}

#[test]
fn clients_are_served_while_the_admin_address_is_flooded() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let admin = gate.admin_address();
    let over = AtomicBool::new(false);
    let answered = thread::scope(|scope| {
        let floods: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut http = Http::connect(admin);
                    let mut answered = 0;
                    while !over.load(Ordering::Relaxed) {
                        http.send(&"GET /readyz HTTP/1.1\r\n\r\n".repeat(50));
                        for _ in 0..50 {
                            assert_eq!(http.answer(true).status, 200);
                        }
                        answered += 50;
                    }
                    answered
                })
            })
            .collect();
        let mut client = gate.client();
        for _ in 0..2_000 {
            assert_eq!(client.say("LOCK k TOKEN t"), "t");
            assert_eq!(client.say("UNLOCK k t"), 1);
        }
        over.store(true, Ordering::Relaxed);
        let answers = floods.into_iter().map(|flood| flood.join().unwrap());
        answers.sum::<u64>()
    });
    assert!(answered > 1_000, "it was a flood: {answered}");
}
