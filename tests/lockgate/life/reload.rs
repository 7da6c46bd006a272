//! SIGHUP: what of a changed configuration is taken over.

use std::{fs, path::PathBuf};

use crate::support::{Client, Lockgate, Machine, RedisServer, Value, eventually, text};

const RELOADED: &str = "the configuration was read again";
const REFUSED: &str = "everything stays as it was";

/// A gate that is told everything by a file.
struct Place {
    gate: Lockgate,
    file: PathBuf,
    _directory: tempfile::TempDir,
    _machine: Machine,
}

impl Place {
    fn with(contents: &str) -> Self {
        let machine = Machine::shared();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lockgate.toml");
        fs::write(&file, contents).unwrap();
        Self {
            gate: Lockgate::start(&["--config", text(&file)]),
            file,
            _directory: directory,
            _machine: machine,
        }
    }

    /// The operator changes the file and says so.
    fn becomes(&self, contents: &str) {
        fs::write(&self.file, contents).unwrap();
        self.gate.reload();
    }

    fn logged(&self, words: &str) -> usize {
        self.gate.log().matches(words).count()
    }
}

fn with_password(place: &Place, password: &str) -> Result<Client, String> {
    let mut client = place.gate.client();
    match client.call(&["AUTH", password]) {
        Value::Error(error) => Err(error),
        _ => Ok(client),
    }
}

#[test]
fn another_password_is_asked_for_and_who_is_in_stays_in() {
    let place = Place::with("auth.password = \"old secret\"");
    let mut before = with_password(&place, "old secret").unwrap();
    place.becomes("auth.password = \"new secret\"");
    assert_eq!(before.say("LOCK k TOKEN t"), "t");
    assert!(
        with_password(&place, "old secret")
            .err()
            .unwrap()
            .starts_with("WRONGPASS")
    );
    assert_eq!(
        with_password(&place, "new secret")
            .unwrap()
            .say("UNLOCK k t"),
        1
    );
    // It may as well be somewhere else from now on.
    let secret = place.file.with_file_name("secret");
    fs::write(&secret, "third secret\n").unwrap();
    place.becomes(&format!("auth.password_file = {secret:?}"));
    assert!(with_password(&place, "third secret").is_ok());
    assert!(with_password(&place, "new secret").is_err());
    assert_eq!(place.logged("need a new start"), 0, "{}", place.gate.log());
    assert_eq!(place.logged("secret"), 0, "{}", place.gate.log());
}

#[test]
fn more_clients_are_let_in_or_fewer() {
    let place = Place::with("limits.clients = 1");
    let mut first = place.gate.client();
    assert_eq!(first.say("PING"), "PONG");
    let one_too_many = |gate: &Lockgate| gate.client().read_reply().error().to_owned();
    assert_eq!(
        one_too_many(&place.gate),
        "ERR max number of clients reached"
    );
    place.becomes("limits.clients = 2");
    let mut second = place.gate.client();
    assert_eq!(second.say("PING"), "PONG");
    assert!(
        first
            .say("INFO clients")
            .text()
            .contains("maxclients:2\r\n")
    );
    place.becomes("limits.clients = 1");
    assert_eq!(
        one_too_many(&place.gate),
        "ERR max number of clients reached"
    );
    assert_eq!(second.say("PING"), "PONG");
}

#[test]
fn less_is_logged_or_more() {
    let place = Place::with("");
    fs::write(&place.file, "log = \"warn\"\nthreads = 3").unwrap();
    place.gate.hang_up();
    eventually("it warns", || place.logged("need a new start") == 1);
    fs::write(&place.file, "log = \"info\"").unwrap();
    place.gate.hang_up();
    eventually("it tells", || place.logged(RELOADED) > 0);
    assert_eq!(place.logged(RELOADED), 1, "{}", place.gate.log());
}

#[test]
fn clients_have_another_time_to_be_done() {
    let redis = RedisServer::start(&[]);
    let upstream = format!("upstream.url = \"{}\"\n", redis.url());
    let mut place = Place::with(&format!("{upstream}drain = \"1h\""));
    let mut blocked = place.gate.client();
    blocked.send(&["BLPOP", "list", "0"]);
    let mut direct = redis.client();
    eventually("it is blocked", || {
        let clients = direct.say("INFO clients");
        clients.text().contains("blocked_clients:1")
    });
    place.becomes(&format!("{upstream}drain = \"100ms\""));
    place.gate.terminate();
    assert_eq!(place.gate.exit_code(), Some(5));
}

/// The whole of it is refused, what is right in it, too.
#[test]
fn a_failed_reload_logs_one_line_and_changes_nothing() {
    let place = Place::with("auth.password = \"old secret\"");
    for (wrong, why) in [
        (
            "auth.password = \"new secret\"\nlock.leese = \"2s\"",
            "lock.leese",
        ),
        ("auth.password = \"new secret\"\ndrain = \"soon\"", "drain"),
        ("auth.password = \"new secret\"\nwhat", "line 2"),
        ("auth.password_file = \"/no/file\"", "/no/file"),
        (
            "auth.password = \"new secret\"\ntls.listen = \"127.0.0.1:0\"\n\
             tls.certificate = \"/no/certificate\"\ntls.key = \"/no/key\"",
            "/no/",
        ),
    ] {
        let before = place.gate.log().lines().count();
        place.becomes(wrong);
        let log = place.gate.log();
        let lines: Vec<_> = log.lines().skip(before).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains(REFUSED) && lines[0].contains(why),
            "{lines:?}"
        );
        assert!(with_password(&place, "old secret").is_ok(), "{wrong}");
    }
    fs::remove_file(&place.file).unwrap();
    place.gate.reload();
    assert_eq!(place.logged(REFUSED), 6, "{}", place.gate.log());
    assert_eq!(place.logged("secret"), 0, "{}", place.gate.log());
}

#[test]
fn absorbed_keys_change_without_a_restart() {
    let place = Place::with("");
    place.becomes(&format!(
        "absorb = {{ keys = \"lock:*\", try_keys = \"job:*\", park = \"1s\", release_scripts = \"{:040}\" }}",
        0
    ));
    assert_eq!(place.logged(RELOADED), 1, "{}", place.gate.log());
    place.becomes("absorb.keys = \"*\"");
    assert_eq!(place.logged(REFUSED), 1, "{}", place.gate.log());
    place.becomes("lock.key_prefix = \"p:\"\nabsorb.keys = \"p:*\"");
    assert_eq!(place.logged("[absorb] stays as it was"), 1);
    assert_eq!(place.logged("need a new start"), 1, "of lock.key_prefix");
}

/// Until it is started anew, or the change is taken back.
#[test]
fn a_setting_that_needs_a_restart_is_named_without_its_value() {
    let place = Place::with("");
    let changed = "threads = 7\nupstream.password = \"hunter2\"\nauth.password = \"hunter3\"\n\
                   limits.waiters = 424242\ndrain = \"2s\"";
    for times in 1..=2 {
        place.becomes(changed);
        let keys = "auth.password, limits.waiters, threads, upstream.password";
        assert_eq!(place.logged(keys), times, "{}", place.gate.log());
    }
    place.becomes("drain = \"2s\"");
    assert_eq!(place.logged("need a new start"), 2, "{}", place.gate.log());
    let log = place.gate.log();
    assert!(!log.contains("hunter") && !log.contains("424242"), "{log}");
    assert_eq!(
        place.gate.client().say("LOCK k TOKEN t"),
        "t",
        "no password is asked for"
    );
}
