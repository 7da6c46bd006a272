//! `lockgate doctor` on real servers: each of its tables.

use crate::support::{
    ACTIVE_REPLICA, ADDRESSES, Ended, Impostor, Lockgate, Machine, NO_PUSHES, NO_RUN_ID,
    RedisServer, SHORT_GRACE, Value, eventually, free_address, run_to_its_end,
};

const DEPLOYING: &str = include_str!("../../docs/deploying.md");

/// What follows from the role, from the rights to locks, and from `INFO`.
const BEHIND_WRITES: [(&str, &str); 7] = [
    ("writes", "FAILS"),
    ("EVAL, EVALSHA", "not tried"),
    ("PEXPIRETIME", "not tried"),
    ("tracking", "not tried"),
    ("lockgate:grace", "not tried"),
    ("lockgate:fence", "not tried"),
    ("WAIT", "not tried"),
];
const BEHIND_SCRIPTS: [(&str, &str); 3] = [
    ("EVAL, EVALSHA", "FAILS"),
    ("PEXPIRETIME", "not tried"),
    ("tracking", "not tried"),
];
const BEHIND_INFO: [(&str, &str); 5] = [
    ("one node", "not tried"),
    ("INFO", "degraded"),
    ("lockgate:grace", "not tried"),
    ("WAIT", "degraded"),
    ("eviction", "not tried"),
];

struct Report {
    ended: Ended,
    /// The need, its state, and the rest of its lines.
    rows: Vec<(String, String, String)>,
}

impl Report {
    /// The rows of all needs but those that work, and the exit code that follows.
    #[track_caller]
    fn lacks(&self, expected: &[(&str, &str)]) -> &Self {
        let mut found: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, state, _)| state != "works")
            .map(|(need, state, _)| (need.as_str(), state.as_str()))
            .collect();
        let mut expected = expected.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{}", self.ended.stdout);
        assert_eq!(self.rows.len(), 13, "{}", self.ended.stdout);
        let any = |state| expected.iter().any(|(_, it)| *it == state);
        let code = match (any("FAILS"), any("degraded")) {
            (true, _) => 1,
            (false, true) => 8,
            (false, false) => 0,
        };
        assert_eq!(self.ended.code, Some(code), "{}", self.ended.stderr);
        self
    }

    /// The row of a need says this.
    #[track_caller]
    fn says(&self, need: &str, words: &str) -> &Self {
        let row = self.rows.iter().find(|row| row.0 == need);
        let row = row.unwrap_or_else(|| panic!("{need}: {}", self.ended.stdout));
        assert!(row.2.contains(words), "{words}: {}", self.ended.stdout);
        self
    }
}

fn doctor(upstream: &str, environment: &[(&str, &str)]) -> Report {
    let ended = run_to_its_end(&["doctor", "--upstream", upstream], environment);
    let mut rows = Vec::<(String, String, String)>::new();
    // Behind the address and an empty line.
    for line in ended.stdout.lines().skip(2) {
        if let Some(more) = line.strip_prefix(' ') {
            rows.last_mut().unwrap().2.push_str(more);
            continue;
        }
        let (need, rest) = line.split_at(15.min(line.len()));
        let (state, means) = rest.split_at(12.min(rest.len()));
        let owned = |text: &str| text.trim().to_owned();
        rows.push((owned(need), owned(state), owned(means)));
    }
    Report { ended, rows }
}

/// What the server under test lacks by its version.
fn by_version(redis: &RedisServer) -> Vec<(&'static str, &'static str)> {
    let mut lacks = Vec::new();
    let mut direct = redis.client();
    if matches!(direct.say("PEXPIRETIME k"), Value::Error(_)) {
        lacks.push(("PEXPIRETIME", "degraded"));
    }
    if pushes_own_changes(redis) {
        lacks.push(("tracking", "degraded"));
    }
    lacks
}

fn pushes_own_changes(redis: &RedisServer) -> bool {
    let info = redis.client().say("INFO server").text();
    info.contains("redis_version:6.2.7\r\n")
}

#[test]
fn a_redis_that_has_everything_works_and_keeps_nothing_of_the_examination() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = Lockgate::in_front_of(&redis);
    let (mut owner, mut waiter, mut direct) = (gate.client(), gate.client(), redis.client());
    owner.say("LOCK k TOKEN t FENCE");
    waiter.send(&["LOCK", "k", "TOKEN", "w"]);
    gate.awaits_waiters("k", 1);
    let mut state = || {
        let own = ["lockgate:fence", "lockgate:grace", "k"];
        let values = own.map(|key| direct.call(&["GET", key]).text());
        (direct.say("DBSIZE").integer(), values)
    };
    let connections = || redis.client().say("CLIENT LIST").text().lines().count();
    let (before, open) = (state(), connections());
    doctor(&redis.url(), &[])
        .lacks(&by_version(&redis))
        .says("connection", "without logging in")
        .says("WAIT", "connected replicas: 0");
    assert_eq!(state(), before);
    eventually("its connections are closed", || connections() == open);
    assert_eq!(owner.say("UNLOCK k t"), 1);
    assert_eq!(waiter.read_reply(), "w");
    let says = gate.log().contains("lockgate doctor");
    assert_eq!(says, pushes_own_changes(&redis), "{}", gate.log());
}

#[test]
fn what_a_command_with_another_name_costs_is_in_its_rows() {
    let _machine = Machine::shared();
    let of_client = [("tracking", "degraded"), ("CLIENT KILL", "degraded")];
    let of_eval = [
        &BEHIND_SCRIPTS[..],
        &[
            ("lockgate:grace", "degraded"),
            ("lockgate:fence", "degraded"),
        ],
    ];
    let cases: [(&str, &[(&str, &str)]); 8] = [
        ("CLIENT", &of_client),
        ("INFO", &BEHIND_INFO),
        ("EVAL", &of_eval.concat()),
        ("EVALSHA", &BEHIND_SCRIPTS),
        ("HELLO", &[("tracking", "degraded")]),
        ("RESET", &[("RESET", "degraded")]),
        ("WAIT", &[("WAIT", "degraded")]),
        (
            "SETRANGE",
            &[
                ("writes", "degraded"),
                ("lockgate:grace", "degraded"),
                ("lockgate:fence", "degraded"),
            ],
        ),
    ];
    let plain = RedisServer::start(&[]);
    for (command, lacks) in cases {
        let redis = RedisServer::start(&["--rename-command", command, ""]);
        let mut expected = by_version(&plain);
        expected.retain(|(need, _)| lacks.iter().all(|(it, _)| it != need));
        let report = doctor(&redis.url(), &[]);
        let expected = [lacks, &expected].concat();
        report.lacks(&expected);
        if command == "EVAL" {
            report.says("EVAL, EVALSHA", "unknown command");
            report.says("EVAL, EVALSHA", "cannot serve locks");
        }
    }
}

/// These tests speak the ACL language of Redis 7.
mod denied {
    use super::*;

    fn redis_with(rights: &str) -> (RedisServer, String) {
        let redis = RedisServer::start(&[]);
        let rules = format!("ACL SETUSER app on >hunter2 ~* +@all {rights}");
        assert_eq!(redis.client().say(&rules), "OK");
        let url = redis.url().replace("redis://", "redis://app:hunter2@");
        (redis, url)
    }

    #[test]
    fn what_a_missing_right_costs_is_in_its_rows() {
        let _machine = Machine::shared();
        let without_set = [&BEHIND_SCRIPTS[..], &[("WAIT", "degraded")]].concat();
        let cases: [(&str, &[(&str, &str)]); 9] = [
            ("", &[]),
            ("-client|tracking", &[("tracking", "degraded")]),
            ("-client|kill", &[("CLIENT KILL", "degraded")]),
            ("-client|info", &[("CLIENT KILL", "degraded")]),
            ("-info", &BEHIND_INFO),
            ("-set", &without_set),
            ("-pexpiretime", &[("PEXPIRETIME", "degraded")]),
            ("-wait", &[("WAIT", "degraded")]),
            ("resetkeys ~lockgate:[dfg]*", &[("WAIT", "degraded")]),
        ];
        for (rights, lacks) in cases {
            let (_redis, url) = redis_with(rights);
            let report = doctor(&url, &[]);
            report.lacks(lacks).says("connection", "as the user app");
            assert!(!report.ended.stdout.contains("hunter2"));
            if rights == "-set" {
                report.says("EVAL, EVALSHA", "'set'");
            }
            if rights.contains("resetkeys") {
                report.says("WAIT", "SET lockgate:ack: NOPERM");
                report.says("WAIT", "docs/access.md");
            }
        }
    }

    #[test]
    fn no_lock_can_be_taken_where_all_have_to_be_acknowledged_and_none_can_be() {
        let _machine = Machine::shared();
        let (redis, url) = redis_with("-wait");
        let all = [("LOCKGATE_LOCK_REPLICAS", "1")];
        doctor(&url, &all)
            .lacks(&[("WAIT", "FAILS")])
            .says("WAIT", "lock.replicas is 1: WAIT: NOPERM");
        let rules = "ACL SETUSER app +wait";
        assert_eq!(redis.client().say(rules), "OK");
        doctor(&url, &all)
            .lacks(&[("WAIT", "FAILS")])
            .says("WAIT", "lock.replicas is 1, connected replicas: 0");
        for rights in ["-info", "resetkeys ~lockgate:[dfg]*"] {
            let (_redis, url) = redis_with(rights);
            let report = doctor(&url, &all);
            let row = report.rows.iter().find(|row| row.0 == "WAIT");
            assert_eq!(row.unwrap().1, "FAILS", "{rights}");
        }
    }

    /// The examination has its key below the prefix of all locks.
    #[test]
    fn a_user_of_some_keys_is_examined_below_the_prefix_of_its_locks() {
        let _machine = Machine::shared();
        let (_redis, url) = redis_with("resetkeys ~order:*");
        let own = [
            ("lockgate:grace", "degraded"),
            ("lockgate:fence", "degraded"),
            ("WAIT", "degraded"),
        ];
        let all = [&BEHIND_SCRIPTS[..], &[("writes", "degraded")], &own].concat();
        doctor(&url, &[])
            .lacks(&all)
            .says("EVAL, EVALSHA", "docs/access.md");
        doctor(&url, &[("LOCKGATE_LOCK_KEY_PREFIX", "order:")]).lacks(&own);
    }

    #[test]
    fn without_the_right_password_nothing_is_tried_and_none_is_shown() {
        let _machine = Machine::shared();
        let redis = RedisServer::start(&["--requirepass", "hunter2"]);
        let wrong = redis.url().replace("redis://", "redis://:hunter3@");
        for (url, words) in [(redis.url(), "NOAUTH"), (wrong, "WRONGPASS")] {
            let report = doctor(&url, &[]);
            report.says("connection", words);
            only_the_connection_fails(&report);
            assert!(!report.ended.stdout.contains("hunter"));
        }
        let renamed = RedisServer::start(&["--rename-command", "AUTH", ""]);
        let url = renamed.url().replace("redis://", "redis://app:hunter2@");
        let report = doctor(&url, &[]);
        report.says("connection", "unknown command");
        assert!(!report.ended.stdout.contains("hunter"));
        let right = redis.url().replace("redis://", "redis://:hunter2@");
        doctor(&right, &[]).lacks(&[]);
    }
}

#[track_caller]
fn only_the_connection_fails(report: &Report) {
    assert_eq!(report.ended.code, Some(1), "{}", report.ended.stdout);
    let (connection, others) = report.rows.split_first().unwrap();
    assert_eq!(
        (connection.0.as_str(), connection.1.as_str()),
        ("connection", "FAILS")
    );
    assert_eq!(others.len(), 12, "{}", report.ended.stdout);
    assert!(
        others.iter().all(|row| row.1 == "not tried"),
        "{}",
        report.ended.stdout
    );
}

#[test]
fn a_redis_out_of_reach_fails_and_one_that_hangs_does_so_in_time() {
    let _machine = Machine::shared();
    let nowhere = format!("redis://{}", free_address());
    only_the_connection_fails(&doctor(&nowhere, &[]));
    let redis = RedisServer::start(&[]);
    redis.stop();
    let report = doctor(&redis.url(), &SHORT_GRACE);
    redis.go_on();
    report.says("connection", "does not answer");
    only_the_connection_fails(&report);
}

#[test]
fn a_replica_takes_no_locks() {
    let _machine = Machine::shared();
    let (master, replica) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let port = master.address().port().to_string();
    let mut direct = replica.client();
    assert_eq!(direct.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    eventually("it follows its master", || {
        direct
            .say("INFO replication")
            .text()
            .contains("master_link_status:up")
    });
    for read_only in ["yes", "no"] {
        assert_eq!(
            direct.call(&["CONFIG", "SET", "replica-read-only", read_only]),
            "OK"
        );
        doctor(&replica.url(), &[])
            .lacks(&BEHIND_WRITES)
            .says("writes", "READONLY")
            .says("writes", "the one master");
    }
    doctor(&master.url(), &[])
        .lacks(&by_version(&master))
        .says("WAIT", "connected replicas: 1");
}

#[test]
fn one_of_several_masters_takes_no_locks() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let impostor = Impostor::before(redis.address(), ACTIVE_REPLICA);
    doctor(&impostor.url(), &[])
        .lacks(&BEHIND_WRITES)
        .says("writes", "active replica");
}

#[test]
fn a_node_of_a_cluster_serves_the_locks_of_its_slots() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--cluster-enabled", "yes"]);
    let without = [&BEHIND_WRITES[..], &[("one node", "FAILS")]].concat();
    doctor(&redis.url(), &[])
        .lacks(&without)
        .says("writes", "CLUSTERDOWN")
        .says("one node", "0 of 16384 slots");
    let all: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let mut direct = redis.client();
    assert_eq!(
        direct.call(&[&["CLUSTER", "ADDSLOTS"], &all[..]].concat()),
        "OK"
    );
    eventually("the cluster is up", || direct.say("SET k x") == "OK");
    let mut lacks = by_version(&redis);
    lacks.extend([("one node", "degraded"), ("lockgate:fence", "degraded")]);
    doctor(&redis.url(), &[])
        .lacks(&lacks)
        .says("lockgate:fence", "CROSSSLOT")
        .says("one node", "turn cluster mode off");
}

#[test]
fn a_redis_that_evicts_is_degraded_where_its_memory_is_limited() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut lacks = by_version(&redis);
    doctor(&redis.url(), &[]).lacks(&lacks);
    assert_eq!(redis.client().say("CONFIG SET maxmemory 100mb"), "OK");
    lacks.push(("eviction", "degraded"));
    doctor(&redis.url(), &[])
        .lacks(&lacks)
        .says("eviction", "allkeys-lru");
}

#[test]
fn a_redis_that_does_not_tell_whether_it_evicts_is_not_said_to_work() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--maxmemory", "100mb"]);
    let without_policy = ("\r\nmaxmemory_policy:", "\r\nminmemory_policy:");
    let impostor = Impostor::before(redis.address(), without_policy);
    let mut lacks = by_version(&redis);
    // By the policy alone, this one evicts nothing.
    let without_limit = ("\r\nmaxmemory:", "\r\nminmemory:");
    let other = Impostor::before(redis.address(), without_limit);
    doctor(&other.url(), &[]).lacks(&lacks);
    lacks.push(("eviction", "unknown"));
    doctor(&impostor.url(), &[]).lacks(&lacks);
}

#[test]
fn a_replication_id_suffices_as_identity() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let impostor = Impostor::before(redis.address(), NO_RUN_ID);
    doctor(&impostor.url(), &[]).lacks(&by_version(&redis));
}

/// A server or a proxy may accept what it does not do.
#[test]
fn what_is_accepted_and_not_done_is_found() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let others = |need| {
        let mut lacks = by_version(&redis);
        lacks.retain(|(it, _)| *it != need);
        lacks.push((need, "degraded"));
        lacks
    };
    let silent = Impostor::before(redis.address(), NO_PUSHES);
    doctor(&silent.url(), &SHORT_GRACE).lacks(&others("tracking"));
    let elsewhere = Impostor::before(redis.address(), ADDRESSES);
    doctor(&elsewhere.url(), &[])
        .lacks(&others("CLIENT KILL"))
        .says("CLIENT KILL", "still open");
}

/// `tests/servers` runs this in front of Redis 6.2.7.
#[test]
fn a_server_that_pushes_own_changes_under_another_version_fails() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    if pushes_own_changes(&redis) {
        let version = ("redis_version:6.2.7", "redis_version:6.2.9");
        let impostor = Impostor::before(redis.address(), version);
        let lacks = [("PEXPIRETIME", "degraded"), ("tracking", "FAILS")];
        doctor(&impostor.url(), &[]).lacks(&lacks);
    }
}

#[test]
fn a_counter_of_fences_that_is_none_is_found() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let mut lacks = by_version(&redis);
    lacks.push(("lockgate:fence", "degraded"));
    for value in [
        "SET lockgate:fence x",
        "SET lockgate:fence 9007199254740991",
    ] {
        assert_eq!(redis.client().say(value), "OK");
        doctor(&redis.url(), &[])
            .lacks(&lacks)
            .says("lockgate:fence", "delete lockgate:fence");
    }
}

#[test]
fn without_a_redis_there_is_nothing_to_examine() {
    for (flags, code) in [(&["doctor"][..], 2), (&["doctor", "--upstream", "x://"], 2)] {
        let ended = run_to_its_end(flags, &[]);
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert_eq!(ended.stdout, "");
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn the_document_has_every_need() {
    let nowhere = format!("redis://{}", free_address());
    for (need, ..) in doctor(&nowhere, &[]).rows {
        assert!(DEPLOYING.contains(&format!("\n| `{need}` |")), "{need}");
    }
}

/// The log says the same in one line, and does not repeat it for a new connection.
#[test]
fn the_log_names_at_the_start_what_is_lacking_in_one_line() {
    let _machine = Machine::shared();
    let arguments = ["--rename-command", "CLIENT", "", "--maxmemory", "100mb"];
    let policy = ["--maxmemory-policy", "allkeys-lru"];
    let redis = RedisServer::start(&[&arguments[..], &policy].concat());
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &[]);
    let lines = || {
        let log = gate.log();
        let lines = log.lines().filter(|line| line.contains("lockgate doctor"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the log names it", || !lines().is_empty());
    assert_eq!(gate.client().say("LOCK k TOKEN t"), "t");
    let lines = lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for words in ["locks are polled", "execute late", "allkeys-lru"] {
        assert!(lines[0].contains(words), "{words}: {lines:?}");
    }
}
