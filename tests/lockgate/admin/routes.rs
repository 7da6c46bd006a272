//! The routes of the admin address, and the words of their responses.

use std::net::TcpStream;

use super::{gate, get};
use crate::support::{Http, Lockgate, Machine, eventually, free_address, run_to_its_end};

#[test]
fn it_is_off_unless_it_is_asked_for() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    assert!(!gate.log().contains("operators"), "{}", gate.log());
    let address = free_address().to_string();
    for (flags, environment) in [
        (vec!["--admin", &address], vec![]),
        (vec![], vec![("LOCKGATE_ADMIN", address.as_str())]),
        (vec![], vec![("LOCKGATE_ADMIN_LISTEN", address.as_str())]),
    ] {
        let gate = Lockgate::start_with(&flags, &environment);
        assert_eq!(gate.admin_address().to_string(), address);
        assert_eq!(get(gate.admin_address(), "/healthz"), (200, "ok\n".into()));
        assert!(!gate.log().contains("WARN"), "{}", gate.log());
    }
    assert!(
        TcpStream::connect(&address).is_err(),
        "it ended with its gate"
    );
}

#[test]
fn a_failure_to_listen_names_the_key() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let taken = gate.admin_address().to_string();
    let ended = run_to_its_end(&["--listen", "127.0.0.1:0", "--admin", &taken], &[]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    for words in [taken.as_str(), "admin.listen"] {
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
    let ended = run_to_its_end(&["--admin", "9380"], &[]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    for words in ["--admin", "admin.listen", "a host and a port"] {
        assert!(ended.stderr.contains(words), "{}", ended.stderr);
    }
}

#[test]
fn beyond_this_machine_it_is_allowed_with_a_warning() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&["--admin", "0.0.0.0:0"]);
    assert_eq!(get(gate.admin_address(), "/healthz").0, 200);
    let log = gate.log();
    assert!(log.contains("can be reached from other machines"), "{log}");
}

#[test]
fn it_can_only_be_read() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    // All on one connection, which stays.
    let mut http = Http::connect(gate.admin_address());
    for path in ["/healthz", "/readyz", "/metrics"] {
        let whole = http.get(path);
        assert_eq!(whole.status, 200);
        assert_eq!(http.get(&format!("{path}?verbose")).status, 200);
        let head = http.ask("HEAD", path);
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), whole.header("content-type"));
        assert_ne!(head.header("content-length"), "0");
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let refused = http.ask(method, path);
            assert_eq!(refused.status, 405, "{method} {path}");
            assert_eq!(refused.header("allow"), "GET, HEAD");
        }
    }
    for path in [
        "/healthz/",
        "/ready",
        "/index.html",
        "//",
        "/../healthz",
        "*",
    ] {
        for method in ["GET", "HEAD", "POST"] {
            assert_eq!(http.ask(method, path).status, 404, "{method} {path}");
        }
    }
    // A body that nobody asked for is not read.
    http.send("POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    assert_eq!(http.answer(true).status, 405);
    assert_eq!(http.rest(), "");
}

#[test]
fn each_measure_is_exposed_to_prometheus() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let _clients = gate.clients(3);
    let mut http = Http::connect(gate.admin_address());
    eventually("the clients are counted", || {
        let answer = http.get("/metrics");
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        assert_eq!(answer.header("content-type"), kind);
        answer.body.lines().any(|line| line == "lockgate_clients 3")
    });
}

#[test]
fn browsers_are_told_to_keep_to_themselves_what_they_are_shown() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    let mut http = Http::connect(gate.admin_address());
    for path in ["/healthz", "/readyz", "/nowhere"] {
        let answer = http.get(path);
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(answer.header("access-control-allow-origin"), "");
    }
}

/// Not the protocol of this address: an answer of HTTP, or the end.
#[test]
fn malformed_http_is_refused_and_the_next_request_served() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[]);
    for nonsense in [
        "LOCK a\r\n",
        "*1\r\n$4\r\nPING\r\n",
        "GET\r\n\r\n",
        "\u{16}\u{3}\u{1}",
    ] {
        let mut http = Http::connect(gate.admin_address());
        http.send(nonsense);
        // Half of what might still become a request waits; so that is its end.
        http.socket().shutdown(std::net::Shutdown::Write).unwrap();
        let said = http.rest();
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 400 "),
            "{said}"
        );
    }
    assert_eq!(get(gate.admin_address(), "/healthz").0, 200);
}
