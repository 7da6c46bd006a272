//! `lockgate health`, as a container engine runs it: it exits with 0 while the instance answers anything, and with 1
//! otherwise.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::support::{
    Authority, Client, Lockgate, Machine, RedisServer, eventually, free_address, run_to_its_end,
    text,
};

/// How long an instance waits for Redis.
const PATIENCE: Duration = Duration::from_millis(300);

/// The environment of an instance, and so of its check, beside where it listens.
const BRIEF: [(&str, &str); 2] = [
    ("LOCKGATE_UPSTREAM_TIMEOUT", "300ms"),
    ("LOCKGATE_UPSTREAM_CONNECT_TIMEOUT", "300ms"),
];

#[track_caller]
fn answers(environment: &[(&str, &str)]) {
    let checked = run_to_its_end(&["health"], environment);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.ends_with(" answers\n"), "{}", checked.stdout);
    assert_eq!(checked.stderr, "");
}

#[track_caller]
fn fails(environment: &[(&str, &str)], why: &str) {
    let checked = run_to_its_end(&["health"], environment);
    assert_eq!(checked.code, Some(1), "{}", checked.stdout);
    assert!(checked.stderr.contains(why), "{}", checked.stderr);
    assert_eq!(checked.stderr.lines().count(), 1, "{}", checked.stderr);
}

/// Starts an instance at a free address, and returns its environment, too.
fn instance<'a>(
    address: &'a str,
    more: &[(&'a str, &'a str)],
) -> (Lockgate, Vec<(&'a str, &'a str)>) {
    let environment = [&BRIEF[..], &[("LOCKGATE_LISTEN", address)], more].concat();
    (Lockgate::start_at(address, &[], &environment), environment)
}

#[test]
fn an_instance_is_healthy_while_it_serves() {
    let _machine = Machine::shared();
    let address = free_address().to_string();
    let (mut gate, environment) = instance(&address, &[]);
    answers(&environment);
    let checked = run_to_its_end(&["health", "--listen", &address], &[]);
    assert_eq!(checked.stdout, format!("{address} answers\n"));
    // As in the image: every address of the machine.
    let anywhere = address.replace("127.0.0.1", "0.0.0.0");
    answers(&[("LOCKGATE_LISTEN", &anywhere)]);
    gate.kill();
    fails(&environment, &address);
}

/// Container engines restart what is not healthy. That would lose the leases that lockgate writes back.
#[test]
fn an_instance_is_healthy_in_front_of_a_redis_that_hangs_or_is_gone() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let (address, url) = (free_address().to_string(), redis.url());
    let (_gate, environment) = instance(&address, &[("LOCKGATE_UPSTREAM", &url)]);
    answers(&environment);
    redis.stop();
    // Redis's latest reply counts for a second.
    eventually("a check waits for Redis", || {
        let began = Instant::now();
        answers(&environment);
        began.elapsed() >= PATIENCE
    });
    redis.go_on();
    redis.kill();
    answers(&environment);
}

#[test]
fn an_instance_that_asks_for_a_password_is_healthy() {
    let _machine = Machine::shared();
    let address = free_address().to_string();
    let (_gate, environment) = instance(&address, &[("LOCKGATE_AUTH_PASSWORD", "secret")]);
    answers(&environment);
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let (address, url) = (free_address().to_string(), redis.url());
    let (_gate, environment) = instance(&address, &[("LOCKGATE_UPSTREAM", &url)]);
    answers(&environment);
}

#[test]
fn an_instance_with_as_many_clients_as_it_takes_is_healthy() {
    let _machine = Machine::shared();
    let address = free_address().to_string();
    let (gate, environment) = instance(&address, &[("LOCKGATE_LIMITS_CLIENTS", "1")]);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert!(Client::connect(gate.address()).try_read().is_ok());
    answers(&environment);
}

#[test]
fn an_instance_that_listens_only_with_tls_or_on_a_socket_is_healthy() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("gate", "gate.example");
    let (address, ca) = (free_address().to_string(), authority.file());
    let required = [
        ("LOCKGATE_TLS_CLIENT_CERTIFICATES", "required"),
        ("LOCKGATE_TLS_CLIENT_CA", text(&ca)),
    ];
    for certificates in [&[][..], &required] {
        let tls = [
            ("LOCKGATE_TLS_LISTEN", address.as_str()),
            ("LOCKGATE_TLS_CERTIFICATE", text(&pair.certificate)),
            ("LOCKGATE_TLS_KEY", text(&pair.key)),
        ];
        let tls = [&tls, certificates].concat();
        // With a plain address first, since the harness wants to know when the instance listens.
        let plain = free_address().to_string();
        let (_gate, _) = instance(&plain, &tls);
        answers(&[&BRIEF[..], &[("LOCKGATE_LISTEN", "off")], &tls].concat());
    }
    let directory = tempfile::Builder::new().tempdir_in("/tmp").unwrap();
    let socket = directory.path().join("gate");
    let socket = [("LOCKGATE_UNIXSOCKET", text(&socket))];
    let plain = free_address().to_string();
    let (_gate, _) = instance(&plain, &socket);
    answers(&[&BRIEF[..], &[("LOCKGATE_LISTEN", "off")], &socket].concat());
}

#[test]
fn a_process_that_hangs_is_not_healthy() {
    let _machine = Machine::shared();
    let address = free_address().to_string();
    let (gate, environment) = instance(&address, &[]);
    gate.stop();
    let began = Instant::now();
    fails(&environment, "no answer in time");
    assert!(began.elapsed() > PATIENCE, "{:?}", began.elapsed());
    gate.go_on();
    answers(&environment);
}

#[test]
fn something_else_at_the_address_is_not_healthy() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let closes = std::thread::spawn(move || drop(other.accept().unwrap()));
    fails(
        &[&BRIEF[..], &[("LOCKGATE_LISTEN", address.as_str())]].concat(),
        &address,
    );
    closes.join().unwrap();
    fails(&[("LOCKGATE_LISTEN", "nowhere")], "LOCKGATE_LISTEN");
    fails(&[("LOCKGATE_LISTEN", "127.0.0.1:0")], "--listen");
}
