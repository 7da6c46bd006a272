use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use proptest::prelude::*;

use super::*;
use crate::{
    absorb::{AbsorbSettings, KeyPatterns, ReleaseScripts, Rules},
    lock::Token,
    relay::connector::Connector,
    telemetry::{
        counters::Counters,
        metrics::{Measured, absorb::AbsorbMetrics, locks::LockMetrics, relays::RelayMetrics},
    },
    testing::{Connection, Redis, Value},
};

/// Tests of `COMMAND`.
mod catalog;
/// Tests with redis-cli as the client.
mod cli;

static COUNTERS: Counters = Counters::new();
static LOCKS: LockMetrics = LockMetrics::new(50_000);
static RELAYS: RelayMetrics = RelayMetrics::new();
static ABSORBED: AbsorbMetrics = AbsorbMetrics::new();

static FACTS: Facts<'static> = Facts {
    now: Time::from_millis(90_061_000),
    started: Time::from_millis(0),
    run_id: "0123456789abcdef0123456789abcdef01234567",
    port: 6380,
    clients: 3,
    max_clients: 10_000,
    waiters: 5,
    locks: 2,
    kept_reply_bytes: 0,
    counters: &COUNTERS,
    measured: Measured {
        locks: &LOCKS,
        upstream: None,
        relays: &RELAYS,
        absorbed: &ABSORBED,
    },
    upstream: None,
};

static ALL_RULES: LazyLock<Arc<Rules>> = LazyLock::new(|| {
    let none = || KeyPatterns::parse("").expect("no pattern is a list of patterns");
    let settings = AbsorbSettings {
        keys: none(),
        try_keys: none(),
        park_ms: 50,
        release_scripts: ReleaseScripts::default(),
    };
    Arc::new(Rules::every_key(settings, Bytes::new()))
});

/// An instance without an upstream, where `mine` holds the lock `held` in database 3.
struct Alone;

impl Instance for Alone {
    fn connector(&self) -> Option<&Arc<Connector>> {
        None
    }

    fn relay_metrics(&self) -> &Arc<RelayMetrics> {
        unreachable!("no client has a relay")
    }

    fn facts(&self) -> Facts<'_> {
        FACTS
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&ALL_RULES)
    }

    fn token_of(&self, database: u32, key: &[u8]) -> Option<Token> {
        (database == 3 && key == b"held").then(|| Token::new("mine"))
    }
}

const BOTH: [Protocol; 2] = [Protocol::Resp2, Protocol::Resp3];

/// A client of an instance without an upstream.
struct Client {
    local: Local,
    then: Then,
}

impl Client {
    fn new() -> Self {
        let opened = Time::from_millis(90_000_000);
        let local = Local::new(42, "192.0.2.1:5000", "192.0.2.2:6380", opened);
        Self {
            local,
            then: Then::Go,
        }
    }

    /// Sends a command. Returns `None` without a reply.
    fn ask(&mut self, arguments: &[&[u8]]) -> Option<Value> {
        let arguments: Vec<Bytes> = arguments
            .iter()
            .map(|argument| Bytes::copy_from_slice(argument))
            .collect();
        let mut out = BytesMut::from("before");
        self.then = self.local.answer(&arguments, &Alone, &mut out);
        let reply = out
            .strip_prefix(b"before")
            .expect("earlier replies to stay");
        if reply.is_empty() {
            return None;
        }
        Some(Value::whole(self.local.protocol(), reply))
    }

    fn say(&mut self, words: &str) -> Value {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.ask(&words).expect("a reply")
    }

    fn hello(&mut self, protocol: Protocol) {
        if protocol == Protocol::Resp3 {
            self.say("HELLO 3");
        }
    }
}

fn ok() -> Value {
    Value::Simple("OK".into())
}

/// Returns all replies of Redis to these commands, sent one after the other on a new connection.
fn replies_of_redis(redis: &Redis, protocol: Protocol, commands: &[&[&[u8]]]) -> Vec<Value> {
    let mut client = redis.connect();
    client.hello(protocol);
    for command in commands {
        client.send(command);
    }
    // So that the last command gets a reply, whatever came before.
    client.send(&[b"CLIENT", b"REPLY", b"ON"]);
    client.send(&[b"ECHO", b"the end"]);
    let mut replies = vec![];
    loop {
        match client.receive() {
            Value::Bulk(bytes) if bytes == b"the end" => return replies,
            reply => replies.push(reply),
        }
    }
}

/// Returns all replies of an instance without an upstream to these commands.
fn replies_of_gate(protocol: Protocol, commands: &[&[&[u8]]]) -> Vec<Value> {
    let mut client = Client::new();
    client.hello(protocol);
    let last: &[&[u8]] = &[b"CLIENT", b"REPLY", b"ON"];
    commands
        .iter()
        .chain([&last])
        .filter_map(|command| client.ask(command))
        .collect()
}

#[test]
fn replies_are_those_of_redis() {
    let long = vec![b'x'; 300];
    let conversations: Vec<&str> = vec![
        "PING",
        "ping",
        "PING a",
        "PING a b",
        "ECHO",
        "ECHO x",
        "echo a b",
        "HELLO 4",
        "HELLO 1",
        "HELLO x",
        "HELLO 02",
        "HELLO 99999999999999999999",
        "HELLO 3 AUTH a",
        "HELLO 3 AUTH u x",
        "HELLO 3 SETNAME",
        "HELLO 3 FOO",
        "HELLO 3 SETNAME a AUTH no x",
        "AUTH",
        "AUTH x",
        "AUTH default x",
        "AUTH default ",
        "AUTH u x",
        "AUTH u x y",
        "SELECT",
        "SELECT 0",
        "SELECT 15",
        "SELECT 16",
        "SELECT -1",
        "SELECT x",
        "SELECT 01",
        "SELECT 1 2",
        "SELECT 99999999999999999999",
        "SELECT 4294967296",
        "SELECT -4294967296",
        "CLIENT",
        "CLIENT FOO",
        "CLIENT FOO BAR",
        "CLIENT ID x",
        "CLIENT GETNAME",
        "CLIENT SETNAME",
        "CLIENT SETNAME ok;CLIENT GETNAME;CLIENT SETNAME ;CLIENT GETNAME",
        "client setname ok;client getname;RESET;CLIENT GETNAME",
        "CLIENT LIST ID",
        "CLIENT LIST ID x",
        "CLIENT LIST ID 1 x",
        "CLIENT LIST FOO",
        "CLIENT LIST TYPE",
        "CLIENT LIST TYPE zz",
        "CLIENT LIST TYPE pubsub",
        "CLIENT LIST TYPE MASTER",
        "CLIENT LIST TYPE normal x",
        "CLIENT LIST ID 999999 -1",
        "CLIENT NO-EVICT ON",
        "CLIENT NO-EVICT x",
        "CLIENT NO-EVICT",
        "CLIENT HELP x",
        "CLIENT REPLY",
        "CLIENT REPLY x",
        "CLIENT REPLY ON",
        "CLIENT GETREDIR",
        "CLIENT TRACKINGINFO",
        "COMMAND FOO",
        "COMMAND FOO BAR",
        "COMMAND COUNT x",
        "COMMAND HELP x",
        "COMMAND DOCS nope",
        "COMMAND DOCS ping|x",
        "COMMAND INFO nope client|x",
        "COMMAND LIST x",
        "COMMAND LIST FILTERBY",
        "COMMAND LIST FILTERBY FOO a",
        "COMMAND LIST FILTERBY ACLCAT x",
        "COMMAND LIST FILTERBY MODULE ping",
        "COMMAND LIST FILTERBY PATTERN PIN?",
        "INFO nope",
        "RESET",
        "RESET x",
        "GET",
        "GET k",
        "GET a b",
        "SET",
        "SET k",
        "DEL",
        "UNLINK",
        "EVAL",
        "EVAL x",
        "EVALSHA x",
        "EVALSHA x 0",
        "EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 k t",
        "SCRIPT",
        "SCRIPT FOO",
        "SCRIPT LOAD",
        "SCRIPT LOAD a b",
        "SCRIPT EXISTS",
        "SCRIPT EXISTS x ffffffffffffffffffffffffffffffffffffffff",
        "SCRIPT FLUSH",
        "script flush Async",
        "SCRIPT FLUSH SYNC",
        "SCRIPT FLUSH x",
        "SCRIPT FLUSH SYNC x",
        "SCRIPT HELP x",
        // Commands without a reply, and those with one in spite of `SKIP` or `OFF`.
        "CLIENT REPLY SKIP;PING;ECHO 1",
        "CLIENT REPLY SKIP;CLIENT REPLY ON;ECHO 1",
        "CLIENT REPLY SKIP;CLIENT REPLY SKIP;ECHO 1;ECHO 2",
        "CLIENT REPLY SKIP;CLIENT REPLY x;ECHO 1",
        "CLIENT REPLY SKIP;FOO;ECHO 1",
        "CLIENT REPLY SKIP;RESET;ECHO 1",
        "CLIENT REPLY SKIP;SELECT 3;SELECT x",
        "CLIENT REPLY OFF;ECHO 1;CLIENT REPLY SKIP;CLIENT REPLY ON;ECHO 2",
        "CLIENT REPLY OFF;CLIENT REPLY x;FOO;ECHO 1;CLIENT REPLY ON;ECHO 2",
        "CLIENT REPLY OFF;RESET;ECHO 1",
    ];
    let mut commands: Vec<Vec<Vec<&[u8]>>> = conversations
        .iter()
        .map(|conversation| {
            conversation
                .split(';')
                .map(|words| words.split(' ').map(str::as_bytes).collect())
                .collect()
        })
        .collect();
    // Arguments that are not plain words.
    for command in [
        vec![&b"CLIENT"[..], b"SETNAME", b"a b"],
        vec![b"CLIENT", b"SETNAME", b"a\nb"],
        vec![b"CLIENT", b"SETNAME", b"\x7f"],
        vec![b"CLIENT", b"SETNAME", "ö".as_bytes()],
        vec![b"CLIENT", b"FOO\r\n+OK"],
        vec![b"CLIENT", &long],
        vec![b"COMMAND", &long],
        vec![b"HELLO", b"3", b"SETNAME", b"a b"],
        vec![b"HELLO", b"3", b"FO\r\nO"],
        vec![b"ECHO", b"\0\r\n\xff"],
        vec![b"PING", b""],
        vec![b"SCRIPT", b"LOAD", b"return redis.call('get', KEYS[1])"],
        vec![b"SCRIPT", b"LOAD", RELEASE],
    ] {
        commands.push(vec![command]);
    }
    let redis = Redis::start();
    for protocol in BOTH {
        for conversation in &commands {
            let conversation: Vec<&[&[u8]]> = conversation.iter().map(Vec::as_slice).collect();
            let theirs = replies_of_redis(&redis, protocol, &conversation);
            let ours = replies_of_gate(protocol, &conversation);
            // Another test covers the error of an unknown command.
            let without_unknown = |replies: Vec<Value>| -> Vec<Value> {
                let is_unknown = |reply: &Value| matches!(reply, Value::Error(text) if text.starts_with("ERR unknown command"));
                replies
                    .into_iter()
                    .filter(|reply| !is_unknown(reply))
                    .collect()
            };
            assert_eq!(
                without_unknown(ours),
                without_unknown(theirs),
                "{:?}",
                conversation
                    .concat()
                    .iter()
                    .map(|word| word.escape_ascii().to_string())
                    .collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn hello_says_what_redis_says() {
    let redis = Redis::start();
    for protocol in BOTH {
        let theirs = redis.connect().hello(protocol).into_pairs();
        let mut client = Client::new();
        let ours = match protocol {
            Protocol::Resp2 => client.say("HELLO 2 SETNAME me AUTH default x"),
            Protocol::Resp3 => client.say("HELLO 3 SETNAME me AUTH default x"),
        };
        assert_eq!(matches!(ours, Value::Map(_)), protocol == Protocol::Resp3);
        for (field, value) in theirs {
            match field.as_str() {
                "id" => assert_eq!(ours.at("id"), Value::Integer(42)),
                "version" => assert_eq!(ours.at("version"), Value::Bulk(b"7.2.0".to_vec())),
                field => assert_eq!(ours.at(field), value, "{field}"),
            }
        }
        assert_eq!(
            ours.into_pairs().len(),
            8,
            "only the field lockgate is more"
        );
        assert_eq!(client.say("CLIENT GETNAME"), Value::Bulk(b"me".to_vec()));
        assert_eq!(client.local.protocol(), protocol);
        let number = if protocol == Protocol::Resp3 { 3 } else { 2 };
        assert_eq!(
            client.say("HELLO").at("proto"),
            Value::Integer(number),
            "it stays"
        );
    }
}

#[test]
fn a_hello_with_a_wrong_part_changes_nothing() {
    for words in [
        "HELLO 3 SETNAME you AUTH u x",
        "HELLO 3 AUTH u x SETNAME you",
        "HELLO 3 SETNAME you FOO",
        "HELLO 3 AUTH default x SETNAME you SETNAME",
        "HELLO 4 SETNAME you",
    ] {
        let mut client = Client::new();
        client.say("CLIENT SETNAME me");
        assert!(matches!(client.say(words), Value::Error(_)), "{words}");
        assert_eq!(client.local.name(), "me", "{words}");
        assert_eq!(client.local.protocol(), Protocol::Resp2, "{words}");
    }
}

#[test]
fn every_library_gets_through_its_greeting() {
    for (library, conversation) in [
        (
            "redis-cli",
            "AUTH default x|SELECT 2|COMMAND DOCS|COMMAND|PING|INFO server",
        ),
        (
            "redis-py",
            "HELLO 3|CLIENT SETNAME app|CLIENT SETINFO LIB-NAME redis-py(x)|\
             CLIENT SETINFO LIB-VER 8.1.0|SELECT 3|PING",
        ),
        (
            "ioredis",
            "CLIENT SETNAME app|SELECT 3|INFO|CLIENT SETINFO LIB-VER 5.8.0|\
             CLIENT SETINFO LIB-NAME ioredis",
        ),
        (
            "node-redis",
            "HELLO 3 AUTH default x SETNAME app|CLIENT SETINFO LIB-VER 5.0.0|\
             CLIENT SETINFO LIB-NAME node-redis|SELECT 1|PING",
        ),
        (
            "Jedis",
            "HELLO 3|CLIENT SETNAME app|CLIENT SETINFO LIB-NAME jedis(7.0;x)|\
             CLIENT SETINFO LIB-VER 7.0.0|SELECT 1|QUIT",
        ),
        (
            "Lettuce",
            "HELLO 3 SETNAME app|CLIENT SETINFO lib-name Lettuce|CLIENT SETINFO lib-ver 6.8.0/x|PING",
        ),
        (
            "go-redis",
            "HELLO 3 AUTH default x|CLIENT SETNAME app|SELECT 1|\
             CLIENT SETINFO LIB-NAME go-redis(,go1.24)|CLIENT SETINFO LIB-VER 9.12.0",
        ),
        (
            "StackExchange.Redis",
            "CLIENT SETNAME app|CLIENT SETINFO lib-name SE.Redis|CLIENT ID|INFO replication|\
             INFO server|ECHO x",
        ),
    ] {
        let mut client = Client::new();
        for words in conversation.split('|') {
            let reply = client.say(words);
            assert!(
                !matches!(reply, Value::Error(_)),
                "{library}: {words}: {reply:?}"
            );
        }
    }
}

#[test]
fn a_connection_reports_what_it_was_given() {
    let mut client = Client::new();
    for words in [
        "HELLO 3",
        "CLIENT SETNAME me",
        "CLIENT SETINFO LIB-NAME lib",
        "client setinfo lib-ver 1.2",
        "CLIENT NO-EVICT ON",
        "CLIENT NO-TOUCH ON",
        "SELECT 7",
    ] {
        assert!(!matches!(client.say(words), Value::Error(_)), "{words}");
    }
    assert_eq!(client.local.database(), 7);
    let line = client.say("CLIENT INFO").into_text();
    assert_eq!(
        line,
        "id=42 addr=192.0.2.1:5000 laddr=192.0.2.2:6380 name=me age=61 idle=0 flags=eT db=7 sub=0 \
         psub=0 ssub=0 multi=-1 cmd=client|info user=default redir=-1 resp=3 lib-name=lib \
         lib-ver=1.2\n"
    );
    for filter in ["", " TYPE NORMAL", " ID 7 42"] {
        let list = client.say(&format!("CLIENT LIST{filter}")).into_text();
        assert_eq!(list, line.replace("client|info", "client|list"));
    }
    // After a `RESET` the connection is as new, except for the library.
    client.say("RESET");
    let line = client.say("CLIENT INFO").into_text();
    for field in [
        " name= ",
        " flags=N ",
        " db=0 ",
        " resp=2 ",
        " lib-name=lib ",
    ] {
        assert!(line.contains(field), "{field} in {line}");
    }
    assert_eq!(client.local.database(), 0);
    // Its fields are fields of Redis.
    let theirs = Redis::start().connect().say("CLIENT INFO").into_text();
    let names = |line: &str| -> BTreeSet<String> {
        let fields = line.split_whitespace();
        fields
            .map(|field| field.split('=').next().unwrap().to_owned())
            .collect()
    };
    let more: BTreeSet<String> = names(&line).difference(&names(&theirs)).cloned().collect();
    assert_eq!(more, BTreeSet::from(["lib-name".into(), "lib-ver".into()]));
}

#[test]
fn wrong_words_about_a_library_are_refused() {
    let mut client = Client::new();
    let error = |text: &str| Some(Value::Error(text.into()));
    assert_eq!(
        client.ask(&[b"CLIENT", b"SETINFO", b"Lib-Name", b"a b"]),
        error("ERR Lib-Name cannot contain spaces, newlines or special characters.")
    );
    assert_eq!(
        client.ask(&[b"CLIENT", b"SETINFO", b"LIB-X\r\n", b"a"]),
        error("ERR Unrecognized option 'LIB-X  '")
    );
    assert_eq!(
        client.ask(&[b"CLIENT", b"SETINFO", b"LIB-VER"]),
        error("ERR wrong number of arguments for 'client|setinfo' command")
    );
    let longest = vec![b'x'; NAME_BYTES];
    assert_eq!(client.ask(&[b"CLIENT", b"SETNAME", &longest]), Some(ok()));
    let longer = vec![b'x'; NAME_BYTES + 1];
    assert_eq!(
        client.ask(&[b"CLIENT", b"SETNAME", &longer]),
        error("ERR Client names cannot be longer than 256 bytes.")
    );
    assert_eq!(client.local.name().len(), NAME_BYTES);
}

#[test]
fn any_other_command_is_told_how_to_give_this_gate_a_redis() {
    let mut client = Client::new();
    let Value::Error(text) = client.say("LPUSH k v") else {
        panic!("LPUSH was served")
    };
    assert!(text.starts_with("ERR unknown command 'LPUSH'"), "{text}");
    assert!(text.contains("--upstream redis://host:port"), "{text}");

    let long = b"\0\r\n\xffx".repeat(1_000);
    let Some(Value::Error(text)) = client.ask(&[&long]) else {
        panic!("garbage was served")
    };
    assert!(text.len() < 400, "{text}");
    assert!(
        text.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
        "{text}"
    );
    assert_eq!(client.ask(&[]), None, "nothing was asked");
}

const RELEASE: &[u8] =
    b"if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('del', KEYS[1]) return 1";

#[test]
fn a_script_of_a_lock_library_exists_and_any_other_one_does_not() {
    let mut client = Client::new();
    let exist = |client: &mut Client, sha1: &Value| {
        let sha1 = sha1.clone().into_text();
        client.say(&format!("SCRIPT EXISTS {sha1}"))
    };
    let known = client.ask(&[b"SCRIPT", b"LOAD", RELEASE]).unwrap();
    assert_eq!(
        exist(&mut client, &known),
        Value::Array(vec![Value::Integer(1)])
    );
    client.say("SCRIPT FLUSH");
    assert_eq!(
        exist(&mut client, &known),
        Value::Array(vec![Value::Integer(1)])
    );
    let unknown = client.ask(&[b"SCRIPT", b"LOAD", b"return 1"]).unwrap();
    assert_eq!(
        exist(&mut client, &unknown),
        Value::Array(vec![Value::Integer(0)])
    );
}

#[test]
fn get_returns_the_token_of_a_lock_in_the_database_of_the_connection() {
    let mut client = Client::new();
    assert_eq!(client.say("GET held"), Value::Null);
    client.say("SELECT 3");
    assert_eq!(client.say("GET held"), Value::Bulk(b"mine".to_vec()));
    assert_eq!(client.say("GET other"), Value::Null);
}

#[test]
fn a_command_that_is_no_request_about_a_lock_is_told_what_is_served() {
    let mut client = Client::new();
    for (words, served) in [
        ("SET k v", "SET key token NX PX|EX time"),
        ("SET k v XX PX 100", "SET key token NX PX|EX time"),
        ("DEL a b", "DEL key"),
        ("UNLINK a b", "UNLINK key"),
        ("EVAL return_1 0", "scripts of lock libraries"),
        // Known, but with other arguments.
        (
            "EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 2 a b",
            "scripts of lock libraries",
        ),
    ] {
        let Value::Error(text) = client.say(words) else {
            panic!("{words} was served")
        };
        assert!(text.contains(served), "{text}");
        assert!(text.contains("--upstream redis://host:port"), "{text}");
    }
}

#[test]
fn quit_is_answered_and_then_the_connection_ends() {
    let mut client = Client::new();
    client.say("PING");
    assert_eq!(client.then, Then::Go);
    assert_eq!(client.say("QUIT now"), ok());
    assert_eq!(client.then, Then::Close);
    client.ask(&[b"CLIENT", b"REPLY", b"OFF"]);
    assert_eq!(client.ask(&[b"QUIT"]), None);
    assert_eq!(client.then, Then::Close);
}

#[test]
fn a_lock_command_takes_the_place_of_a_skipped_reply() {
    let mut client = Client::new();
    assert!(!client.local.takes_silence());
    client.ask(&[b"CLIENT", b"REPLY", b"SKIP"]);
    assert!(client.local.takes_silence());
    assert!(!client.local.takes_silence());
    assert_eq!(client.say("PING"), Value::Simple("PONG".into()));
    client.ask(&[b"CLIENT", b"REPLY", b"OFF"]);
    assert!(client.local.takes_silence());
    assert!(client.local.takes_silence());
    client.say("CLIENT REPLY ON");
    assert!(!client.local.takes_silence());
}

#[test]
fn info_has_the_fields_of_redis_and_those_of_the_gate() {
    let theirs = Redis::start().connect().say("INFO").into_text();
    let known: BTreeSet<&str> = theirs
        .lines()
        .filter_map(|line| line.split(':').next())
        .collect();
    let mut client = Client::new();
    let ours = client.say("INFO").into_text();
    let mut section = "";
    for line in ours.lines().filter(|line| !line.is_empty()) {
        if let Some(heading) = line.strip_prefix("# ") {
            section = heading;
            continue;
        }
        let (field, value) = line.split_once(':').unwrap();
        assert!(!value.is_empty(), "{line}");
        assert!(
            known.contains(field) || (section == "Lockgate" && field.starts_with("lockgate_")),
            "{section}: {line}"
        );
    }
    for line in [
        "redis_version:7.2.0",
        "run_id:0123456789abcdef0123456789abcdef01234567",
        "tcp_port:6380",
        "uptime_in_seconds:90061",
        "uptime_in_days:1",
        "connected_clients:3",
        "loading:0",
        "role:master",
        "cluster_enabled:0",
        "lockgate_upstream:embedded",
        "lockgate_locks:2",
        "lockgate_waiters:5",
    ] {
        assert!(ours.contains(&format!("{line}\r\n")), "{line} in {ours}");
    }
    for all in [
        "INFO default",
        "INFO ALL",
        "INFO everything",
        "INFO nope all",
    ] {
        assert_eq!(client.say(all).into_text(), ours, "{all}");
    }
    assert_eq!(
        client.say("INFO lockgate").into_text(),
        information::lockgate_section(&FACTS)
    );
    assert_eq!(
        client.say("info CLUSTER persistence cluster").into_text(),
        "# Persistence\r\nloading:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n"
    );
    assert!(matches!(client.say("INFO nope"), Value::Bulk(text) if text.is_empty()));
}

/// Generates one argument, mostly a meaningful one.
fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::sample::select(vec![
            "PING", "ECHO", "HELLO", "AUTH", "SELECT", "CLIENT", "COMMAND", "INFO", "RESET", "QUIT",
            "SETNAME", "SETINFO", "LIST", "ID", "REPLY", "ON", "OFF", "SKIP", "LIB-NAME", "DOCS",
            "FILTERBY", "PATTERN", "TYPE", "NORMAL", "default", "lock", "client|id", "2", "3", "x",
            "GET", "SET", "DEL", "EVAL", "EVALSHA", "SCRIPT", "LOAD", "EXISTS", "FLUSH", "held",
        ]).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_gets_one_whole_reply_or_none(
        commands in prop::collection::vec(prop::collection::vec(word(), 1..6), 1..8)
    ) {
        let mut client = Client::new();
        for command in &commands {
            let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            let hides_reply = client.local.replies != Replies::On;
            let reply = client.ask(&words);
            let asks_for_silence = words.len() == 3 && words[1].eq_ignore_ascii_case(b"REPLY");
            prop_assert!(reply.is_some() || hides_reply || asks_for_silence, "{:?}", words);
            prop_assert!(client.local.database() < DATABASES);
        }
    }
}

/// The Redis that the tests compare with executes ordinary commands.
#[test]
fn the_yardstick_is_a_real_redis() {
    let redis = Redis::start();
    let mut client: Connection = redis.connect();
    assert_eq!(client.say("SET k v"), ok());
    assert_eq!(client.say("GET k"), Value::Bulk(b"v".to_vec()));
}
