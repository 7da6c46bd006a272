//! What the log tells of each lock: its life at `debug`, long waits and holds, and lost sessions.

use std::{io::Write, thread, time::Duration};

use serde_json::Value as Json;

use crate::support::{Client, Lockgate, Machine, Place, RedisServer, SHORT_GRACE, eventually};

/// The target of the lines about locks.
const TARGET: &str = "lockgate::locks";

fn gate(flags: &[&str], environment: &[(&str, &str)]) -> Lockgate {
    Lockgate::start_with(flags, environment)
}

fn named(gate: &Lockgate, name: &str) -> Client {
    let mut client = gate.client();
    assert_eq!(client.call(&["CLIENT", "SETNAME", name]), "OK");
    client
}

/// What is logged of this lock: client and message of each line.
fn story(gate: &Lockgate, lock: &str) -> Vec<String> {
    let log = gate.log();
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap());
    lines
        .filter(|line| line["target"] == TARGET && line["lock"] == lock)
        .map(|line| {
            let text = |field: &str| line[field].as_str().unwrap_or("?").to_owned();
            format!("{} {}", text("client_name"), text("message"))
        })
        .collect()
}

/// Returns when the last line of a lock is this one, and the story until then.
#[track_caller]
fn ends_with(gate: &Lockgate, lock: &str, last: &str) -> Vec<String> {
    eventually(last, || {
        story(gate, lock).last().is_some_and(|it| it == last)
    });
    story(gate, lock)
}

#[test]
fn at_debug_it_tells_the_life_of_each_lock() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let filter = ["--log", "warn,lockgate::locks=debug,lockgate::run=info"];
    let gate = gate(&[&["--upstream", &redis.url()], &filter[..]].concat(), &[]);
    let (mut one, mut two) = (named(&gate, "one"), named(&gate, "two"));
    assert_eq!(one.say("LOCK k TOKEN secret1 PX 60000"), "secret1");
    assert_eq!(one.say("RELOCK k secret1 PX 50000"), 1);
    assert!(two.say("LOCK k TOKEN secret2 WAIT 1").is_nil());
    assert!(two.say("TRYLOCK k TOKEN secret3").is_nil());
    assert_eq!(two.say("UNLOCK k secret4"), 0);
    two.send(&["LOCK", "k", "TOKEN", "secret5", "PX", "60000"]);
    gate.awaits_waiters("k", 1);
    assert_eq!(one.say("UNLOCK k secret1"), 1);
    assert_eq!(two.read_reply(), "secret5");
    assert_eq!(two.say("UNLOCK k secret5"), 1);
    let story = ends_with(&gate, "k", "two released");
    assert_eq!(
        story,
        [
            "one asked",
            "one granted",
            "one asked",
            "one extended",
            "two asked",
            "two timed out",
            "two asked",
            "two held or awaited",
            "two asked",
            "two not held by this token",
            "two asked",
            "one asked",
            "one handed over",
            "two granted",
            "two asked",
            "two released",
        ]
    );

    assert_eq!(one.say("LOCK brief TOKEN secret6 PX 20"), "secret6");
    assert_eq!(
        ends_with(&gate, "brief", "one expired"),
        ["one asked", "one granted", "one expired"]
    );
    assert_eq!(one.say("LOCK gone TOKEN secret7"), "secret7");
    two.send(&["LOCK", "gone"]);
    gate.awaits_waiters("gone", 1);
    drop(two);
    ends_with(&gate, "gone", "two left");
    assert_eq!(redis.client().say("DEL gone"), 1);
    ends_with(&gate, "gone", "one lost");
    let granted = gate.logged("granted").remove(0);
    assert_eq!(granted["how"], "free", "{granted}");
    assert!(granted["lease_ms"].as_u64().unwrap() > 50_000, "{granted}");
    assert!(!gate.log().contains("secret"), "{}", gate.log());
}

#[test]
fn a_name_in_the_log_is_escaped() {
    let _machine = Machine::shared();
    let gate = gate(&["--log", "debug"], &[]);
    let name = b"a\n\x1b[2J\xff";
    let token = gate.client().call(&[&b"LOCK"[..], name]);
    assert_eq!(token.text().len(), 36);
    let escaped = "a\\x0a\\x1b[2J\\xff";
    eventually("it is logged", || {
        let lines = gate.logged("granted");
        lines.iter().any(|line| line["lock"] == escaped)
    });
}

/// "Who held order:42 at 03:12?", as docs/operating.md answers it.
#[test]
fn where_each_hold_is_logged_the_log_tells_who_held_a_lock_at_a_time() {
    let _machine = Machine::shared();
    let gate = gate(&[], &[("LOCKGATE_LOG_SLOW_HOLD", "0s")]);
    let mut times = Vec::new();
    for name in ["worker-1", "worker-2"] {
        let mut client = named(&gate, name);
        assert_eq!(client.say("LOCK order:42 TOKEN t"), "t");
        // The log has milliseconds.
        thread::sleep(Duration::from_millis(5));
        let now = humantime::format_rfc3339_millis(std::time::SystemTime::now());
        times.push((now.to_string(), name));
        thread::sleep(Duration::from_millis(5));
        assert_eq!(client.say("UNLOCK order:42 t"), 1);
    }
    eventually("both are logged", || gate.logged("slow hold").len() == 2);
    for (time, name) in times {
        let text = |line: &Json, field: &str| line[field].as_str().unwrap().to_owned();
        let holds = gate.logged("slow hold").into_iter();
        let then: Vec<_> = holds
            .filter(|hold| {
                hold["lock"] == "order:42"
                    && text(hold, "since") <= time
                    && time <= text(hold, "timestamp")
            })
            .collect();
        assert_eq!(then.len(), 1, "{time}: {}", gate.log());
        assert_eq!(then[0]["client_name"], name);
        assert!(text(&then[0], "client").starts_with("127.0.0.1:"));
        assert_eq!(then[0]["ended"], "released");
    }
}

#[test]
fn only_long_waits_and_holds_are_logged_and_how_they_ended() {
    let _machine = Machine::alone();
    let slow = [
        ("LOCKGATE_LOG_SLOW_WAIT", "500ms"),
        ("LOCKGATE_LOG_SLOW_HOLD", "800ms"),
    ];
    let gate = gate(&[], &slow);
    let (mut owner, mut waiter) = (named(&gate, "owner"), named(&gate, "waiter"));
    assert_eq!(owner.say("LOCK quick TOKEN t"), "t");
    assert!(waiter.say("LOCK quick WAIT 1").is_nil());
    assert_eq!(owner.say("UNLOCK quick t"), 1);
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    assert!(waiter.say("LOCK k WAIT 500").is_nil());
    waiter.send(&["LOCK", "k", "TOKEN", "next"]);
    waiter.hears_nothing_for(Duration::from_millis(550));
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(waiter.read_reply(), "next");
    let ended = |message: &str| -> Vec<(String, String)> {
        let lines = gate.logged(message).into_iter();
        let text = |it: &Json| it.as_str().unwrap_or("?").to_owned();
        lines
            .inspect(|line| assert_eq!(line["lock"], "k", "{line}"))
            .map(|line| (text(&line["client_name"]), text(&line["ended"])))
            .collect()
    };
    let pair = |client: &str, ended: &str| (client.to_owned(), ended.to_owned());
    eventually("the waits are logged", || ended("slow wait").len() == 2);
    assert_eq!(
        ended("slow wait"),
        [pair("waiter", "timed out"), pair("waiter", "granted")]
    );
    let waited = gate.logged("slow wait")[0]["waited_ms"].as_u64().unwrap();
    assert!((500..10_000).contains(&waited), "{waited}");
    assert_eq!(ended("slow hold"), [pair("owner", "handed over")]);
}

#[test]
fn a_reload_changes_what_counts_as_slow() {
    let _machine = Machine::shared();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let gate = gate(&["--config", file.path().to_str().unwrap()], &[]);
    hold(&gate);
    file.write_all(b"log_slow_hold = \"0s\"\n").unwrap();
    gate.reload();
    let before = gate.log();
    assert!(!before.contains("need a new start"), "{before}");
    hold(&gate);
    eventually("it is logged", || !gate.logged("slow hold").is_empty());
    assert_eq!(gate.logged("slow hold").len(), 1, "{}", gate.log());
}

/// Takes and releases a lock.
fn hold(gate: &Lockgate) {
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("UNLOCK k t"), 1);
}

/// Returns what is logged of the lost session of this lock.
#[track_caller]
fn lost(gate: &Lockgate, lock: &str) -> Json {
    let line = || {
        let mut lines = gate.logged("session lost").into_iter();
        lines.find(|line| line["lock"] == lock)
    };
    eventually("the loss is logged", || line().is_some());
    let line = line().unwrap();
    assert_eq!(line["level"], "WARN", "{line}");
    assert_eq!(line["client_name"], "owner", "{line}");
    line
}

#[test]
fn each_lost_session_is_logged_with_its_cause() {
    let place = Place::with_redis(Machine::shared());
    let mut owner = named(&place.gate, "owner");
    assert_eq!(owner.say("HELLO 3").field("proto").integer(), 3);
    assert_eq!(owner.say("LOCK gone TOKEN t SESSION"), "t");
    assert_eq!(place.redis().client().say("DEL gone"), 1);
    assert_eq!(owner.read_reply().items()[0], "lock-lost");
    assert_eq!(lost(&place.gate, "gone")["cause"], "deleted or overwritten");

    // Redis closes the client's connection, and so lockgate does.
    assert_eq!(owner.say("LOCK kept TOKEN t SESSION"), "t");
    let id = owner.say("CLIENT ID").integer().to_string();
    let kill = ["CLIENT", "KILL", "ID", &id];
    assert_eq!(place.redis().client().call(&kill), 1);
    let cause = lost(&place.gate, "kept")["cause"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(cause.contains("lockgate closed"), "{cause}");

    // What its client brought about is no loss.
    let mut quiet = named(&place.gate, "quiet");
    assert_eq!(quiet.say("LOCK released TOKEN t SESSION"), "t");
    assert_eq!(quiet.say("UNLOCK released t"), 1);
    assert_eq!(quiet.say("LOCK closed TOKEN t SESSION"), "t");
    drop(quiet);
    assert_eq!(place.client().say("LOCK closed TOKEN u"), "u");
    let lines = place.gate.logged("session lost");
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn a_session_that_cannot_be_renewed_is_logged_as_lost() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = gate(&["--upstream", &redis.url()], &SHORT_GRACE);
    let mut owner = named(&gate, "owner");
    assert_eq!(owner.say("LOCK k TOKEN t SESSION PX 800"), "t");
    redis.stop();
    let cause = lost(&gate, "k")["cause"].as_str().unwrap().to_owned();
    redis.go_on();
    let causes = [
        "not renewed in time",
        "the lease expired before it could be renewed",
    ];
    assert!(causes.contains(&&*cause), "{cause}");
}
