//! The certificates that lockgate and its clients trust, and the errors for all others.

use std::{fs, io, sync::Arc};

use rustls::ClientConfig;

use super::{Authority, Secured, connect, redis_cli};
use crate::support::{Client, Lockgate, Machine, Pair, eventually, run_to_its_end, text};

/// The gate refuses this client, by an alert of TLS, which says this; with TLS 1.3 the client may believe
/// for a moment that it is in.
#[track_caller]
fn is_refused(gate: &Lockgate, config: &Arc<ClientConfig>, alert: &str) {
    let error = refusal(gate, config).expect_err("the gate refuses this client");
    assert!(error.to_string().contains(alert), "{alert}: {error}");
}

fn refusal(gate: &Lockgate, config: &Arc<ClientConfig>) -> io::Result<()> {
    let mut client = Client::try_connect_tls(gate.tls_address(), config)?;
    client.try_write(b"PING\r\n")?;
    client.try_read().map(drop)
}

#[track_caller]
fn logs(gate: &Lockgate, words: &str) {
    eventually(&format!("the log says {words:?}"), || {
        gate.log().contains(words)
    });
}

/// A gate that wants certificates of its clients.
fn demanding(how: &str) -> Secured {
    let authority = Authority::new();
    let ca = authority.file();
    let environment = [
        ("LOCKGATE_TLS_CLIENT_CERTIFICATES", how),
        ("LOCKGATE_TLS_CLIENT_CA", text(&ca)),
    ];
    Secured::start(authority, &environment)
}

#[test]
fn a_client_without_the_right_certificate_is_refused_where_one_is_required() {
    let _machine = Machine::shared();
    let place = demanding("required");
    let (authority, gate) = (&place.authority, &place.gate);
    let with = |pair: &Pair| authority.client(Some(pair));
    let right = authority.issue("client", "somebody");
    let mut client = connect(gate, &with(&right));
    assert_eq!(client.say("LOCK k TOKEN t"), "t");

    is_refused(gate, &place.config, "CertificateRequired");
    logs(gate, "a client was refused: TLS: peer sent no certificates");
    let expired = authority.issue_expired("expired", "somebody");
    is_refused(gate, &with(&expired), "CertificateExpired");
    logs(gate, "certificate expired");
    let other = Authority::new();
    let stranger = other.issue("stranger", "somebody");
    is_refused(gate, &with(&stranger), "UnknownCA");
    logs(gate, "UnknownIssuer");

    // As redis-cli has it.
    let ca = authority.file();
    let shown = [
        "--cert",
        text(&right.certificate),
        "--key",
        text(&right.key),
    ];
    assert_eq!(redis_cli(gate, &ca, &shown, &["PING"]), "PONG");
    let said = redis_cli(gate, &ca, &[], &["PING"]);
    assert!(said.starts_with("Error"), "{said}");
    assert_eq!(client.say("UNLOCK k t"), 1);
}

#[test]
fn a_client_may_show_no_certificate_where_it_is_optional_but_no_wrong_one() {
    let _machine = Machine::shared();
    let place = demanding("optional");
    let (authority, gate) = (&place.authority, &place.gate);
    assert_eq!(place.client().say("PING"), "PONG");
    let right = authority.issue("client", "somebody");
    let mut client = connect(gate, &authority.client(Some(&right)));
    assert_eq!(client.say("PING"), "PONG");
    let other = Authority::new();
    let stranger = other.issue("stranger", "somebody");
    is_refused(gate, &authority.client(Some(&stranger)), "UnknownCA");
}

#[test]
fn without_a_password_any_client_is_admitted() {
    let _machine = Machine::shared();
    let place = Secured::embedded();
    let other = Authority::new();
    let stranger = other.issue("stranger", "somebody");
    let config = place.authority.client(Some(&stranger));
    assert_eq!(connect(&place.gate, &config).say("PING"), "PONG");
}

#[test]
fn a_client_that_does_not_believe_the_gate_goes_and_both_say_why() {
    let _machine = Machine::shared();
    let place = Secured::embedded();
    let other = Authority::new();
    let error = Client::try_connect_tls(place.gate.tls_address(), &other.client(None))
        .err()
        .expect("the client does not believe this gate");
    assert!(
        error.to_string().contains("invalid peer certificate"),
        "{error}"
    );
    let said = redis_cli(&place.gate, &other.file(), &[], &["PING"]);
    assert!(said.contains("certificate verify failed"), "{said}");
    logs(
        &place.gate,
        "a client was refused: TLS: received fatal alert",
    );
}

#[test]
fn on_sighup_new_clients_meet_the_new_certificate_and_nobody_is_dropped() {
    let _machine = Machine::shared();
    let place = Secured::embedded();
    let mut old = place.client();
    let mut waiter = place.client();
    assert_eq!(old.say("LOCK k TOKEN old"), "old");
    waiter.send(&["LOCK", "k", "TOKEN", "waiter"]);
    place.gate.awaits_waiters("k", 1);

    let authority = Authority::new();
    place.pair.becomes(&authority.issue("gate", "127.0.0.1"));
    // Not before it is told so.
    assert_eq!(place.client().say("PING"), "PONG");
    place.gate.reload();
    let mut new = connect(&place.gate, &authority.client(None));
    new.send(&["LOCK", "k", "TOKEN", "new"]);
    place.gate.awaits_waiters("k", 2);
    let outdated = Client::try_connect_tls(place.gate.tls_address(), &place.config);
    assert!(outdated.is_err(), "the old certificate is shown no more");
    assert_eq!(old.say("UNLOCK k old"), 1);
    assert_eq!(waiter.read_reply(), "waiter");
    assert_eq!(waiter.say("UNLOCK k waiter"), 1);
    assert_eq!(new.read_reply(), "new");

    // The log has the error of a new certificate, and the old one stays.
    let key_of_another = authority.issue("another", "127.0.0.1").key;
    let right = fs::read(&place.pair.key).unwrap();
    for (wrong, why) in [
        (fs::read(key_of_another).unwrap(), "gate.pem"),
        (b"nothing of that kind".to_vec(), "gate.key"),
    ] {
        fs::write(&place.pair.key, wrong).unwrap();
        place.gate.reload();
        let log = place.gate.log();
        let line = log
            .lines()
            .rev()
            .find(|line| line.contains("everything stays as it was"));
        assert!(line.is_some_and(|line| line.contains(why)), "{log}");
        let mut client = connect(&place.gate, &authority.client(None));
        assert_eq!(client.say("PING"), "PONG");
    }
    fs::write(&place.pair.key, right).unwrap();
    place.gate.reload();
    assert_eq!(new.say("UNLOCK k new"), 1);
}

/// A reload changes the authority of client certificates as well.
#[test]
fn on_sighup_other_clients_are_believed() {
    let _machine = Machine::shared();
    let place = demanding("required");
    let other = Authority::new();
    // Both believe the gate, whose own certificate stays.
    let [before, after] = [&place.authority, &other].map(|authority| {
        let pair = authority.issue("client", "somebody");
        place.authority.client(Some(&pair))
    });
    let mut client = connect(&place.gate, &before);
    is_refused(&place.gate, &after, "UnknownCA");
    fs::copy(other.file(), place.authority.file()).unwrap();
    place.gate.reload();
    assert_eq!(client.say("PING"), "PONG");
    is_refused(&place.gate, &before, "UnknownCA");
    assert_eq!(connect(&place.gate, &after).say("PING"), "PONG");
}

#[test]
fn without_tls_sighup_ends_nothing() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    let mut client = gate.client();
    gate.hang_up();
    logs(&gate, "SIGHUP");
    assert_eq!(client.say("PING"), "PONG");
}

#[test]
fn files_that_are_of_no_use_end_it_with_their_names() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let (right, other) = (
        authority.issue("right", "gate"),
        authority.issue("other", "gate"),
    );
    let ca = authority.file();
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = text(empty.path());
    let ended = |certificate: &str, key: &str, client_ca: &str| {
        let environment = [
            ("LOCKGATE_TLS_LISTEN", "127.0.0.1:0"),
            ("LOCKGATE_TLS_CERTIFICATE", certificate),
            ("LOCKGATE_TLS_KEY", key),
            ("LOCKGATE_TLS_CLIENT_CERTIFICATES", "required"),
            ("LOCKGATE_TLS_CLIENT_CA", client_ca),
        ];
        let ended = run_to_its_end(&["--listen", "127.0.0.1:0"], &environment);
        assert_eq!(ended.code, Some(4), "{}", ended.stderr);
        assert!(!ended.stderr.contains("listening"), "{}", ended.stderr);
        ended.stderr
    };
    let (certificate, key) = (text(&right.certificate), text(&right.key));
    for (said, file) in [
        (ended("/nowhere.pem", key, text(&ca)), "/nowhere.pem"),
        (
            ended(certificate, "/nowhere.key", text(&ca)),
            "/nowhere.key",
        ),
        (ended(certificate, key, "/nowhere.ca"), "/nowhere.ca"),
        (ended(empty, key, text(&ca)), empty),
        (ended(certificate, empty, text(&ca)), empty),
        (ended(certificate, key, empty), empty),
        (ended(certificate, text(&other.key), text(&ca)), certificate),
    ] {
        assert!(said.contains(file), "{file}: {said}");
    }
}
