//! `COMMAND` and `INFO` in front of a Redis: what lockgate adds to them, and that it changes nothing
//! else. Replies are compared byte for byte with those that the same Redis gives directly.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use crate::support::{
    Lockgate, Machine, Place, Proxy, RedisServer, SHORT_GRACE, SOON, Value, frame, report,
};

mod replies;

use replies::{added, both, bytes, names, opened, place, reply, script, settle, values};

const OURS: [&str; 6] = ["lock", "trylock", "unlock", "relock", "lockinfo", "locks"];

const HELLOS: [&str; 2] = ["HELLO 2", "HELLO 3"];

#[test]
fn lists_of_all_commands_end_with_those_of_lockgate() {
    let place = place();
    for hello in HELLOS {
        for command in ["COMMAND", "COMMAND INFO", "command LIST"] {
            let (direct, relayed) = both(&place, hello, command);
            let added = added(&direct, &relayed, 6);
            assert_eq!(names(&added), OURS, "{command} after {hello}");
        }
        let (direct, relayed) = both(&place, hello, "COMMAND DOCS");
        let added = added(&direct, &relayed, if hello == "HELLO 3" { 6 } else { 12 });
        let explained: Vec<_> = added.iter().step_by(2).cloned().collect();
        assert_eq!(names(&explained), OURS, "{hello}");
        let (direct, relayed) = both(&place, hello, "COMMAND COUNT");
        assert_eq!(opened(&relayed).1, opened(&direct).1 + 6);
        assert_eq!(
            opened(&reply(place.gate.address(), hello, "COMMAND")).1,
            opened(&relayed).1,
            "the count is that of the entries"
        );
    }
}

#[test]
fn a_filtered_list_has_what_the_filter_lets_pass() {
    let place = place();
    for (filter, ours) in [
        ("PATTERN *LOCK", &OURS[..4]),
        ("pattern lockinfo", &OURS[4..5]),
        ("ACLCAT Blocking", &OURS[..1]),
        ("ACLCAT write", &OURS[..4]),
        ("ACLCAT read", &OURS[4..]),
    ] {
        let (direct, relayed) = both(
            &place,
            "HELLO 2",
            &format!("COMMAND LIST FILTERBY {filter}"),
        );
        let added = added(&direct, &relayed, ours.len() as i64);
        assert_eq!(names(&added), ours, "{filter}");
    }
    for filter in [
        "PATTERN se*",
        "ACLCAT scripting",
        "ACLCAT none",
        "MODULE lockgate",
        "PATTERN",
    ] {
        let (direct, relayed) = both(
            &place,
            "HELLO 2",
            &format!("COMMAND LIST FILTERBY {filter}"),
        );
        assert_eq!(relayed, direct, "{filter}");
    }
}

#[test]
fn requested_entries_stand_in_their_places() {
    let place = place();
    for hello in HELLOS {
        let command = "COMMAND INFO get LOCK nonsense config|set locks lock set";
        let (direct, relayed) = both(&place, hello, command);
        let (direct, relayed) = (values(&direct), values(&relayed));
        let (direct, relayed) = (direct[0].items(), relayed[0].items());
        assert_eq!(direct.len(), relayed.len());
        for (place, name) in [(1, "lock"), (4, "locks"), (5, "lock")] {
            assert!(direct[place].is_nil());
            let fields = relayed[place].items();
            assert_eq!((fields.len(), fields[0].text().as_str()), (10, name));
        }
        for place in [0, 2, 3, 6] {
            assert_eq!(relayed[place], direct[place]);
        }
        let (direct, relayed) = both(&place, hello, "COMMAND DOCS lock get nonsense UNLOCK");
        let more = if hello == "HELLO 3" { 2 } else { 4 };
        let added = added(&direct, &relayed, more);
        assert_eq!((&added[0], &added[2]), (&value("lock"), &value("unlock")));
        assert!(added[1].field("summary").text().contains("Acquires a lock"));
    }
}

fn value(text: &str) -> Value {
    Value::Bulk(text.into())
}

#[test]
fn the_keys_of_lock_commands_are_found() {
    let place = place();
    for hello in HELLOS {
        let said =
            |command| String::from_utf8(reply(place.gate.address(), hello, command)).unwrap();
        assert_eq!(said("COMMAND GETKEYS LOCK k WAIT 5"), "*1\r\n$1\r\nk\r\n");
        assert_eq!(said("COMMAND GETKEYS unlock key t"), "*1\r\n$3\r\nkey\r\n");
        let set = if hello == "HELLO 3" { '~' } else { '*' };
        assert_eq!(
            said("COMMAND GETKEYSANDFLAGS lock k"),
            format!("*1\r\n*2\r\n$1\r\nk\r\n{set}3\r\n+RW\r\n+access\r\n+update\r\n")
        );
        // In the words that Redis has for its own commands.
        for (ours, theirs) in [
            ("COMMAND GETKEYS locks x", "COMMAND GETKEYS ping x"),
            ("COMMAND GETKEYS unlock x", "COMMAND GETKEYS set x"),
        ] {
            let (unknown, relayed) = both(&place, hello, ours);
            assert_eq!(unknown, b"-ERR Invalid command specified\r\n");
            assert_eq!(relayed, reply(place.redis().address(), hello, theirs));
        }
        let (direct, relayed) = both(&place, hello, "COMMAND GETKEYS set k v");
        assert_eq!(relayed, direct);
    }
}

#[test]
fn info_has_a_section_more() {
    let place = place();
    let _waiting = place.client();
    let text = |command: &str, hello| {
        let all = values(&reply(place.gate.address(), hello, command));
        assert_eq!(all.len(), 1, "{command}");
        let text = all[0].text();
        text.strip_prefix("txt:").unwrap_or(&text).to_owned()
    };
    for hello in HELLOS {
        for command in [
            "INFO",
            "INFO ALL",
            "INFO everything",
            "INFO default",
            "INFO Server lockgate",
        ] {
            let text = text(command, hello);
            let (theirs, ours) = text.split_once("\r\n\r\n# Lockgate\r\n").expect(command);
            assert!(
                theirs.starts_with("# Server\r\nredis_version:"),
                "{command}"
            );
            assert!(ours.starts_with("lockgate_version:"), "{command}");
        }
        let section = text("INFO LOCKGATE", hello);
        let field = |name: &str| {
            let line = section
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_else(|| panic!("{name} in {section}"))
                .to_owned()
        };
        assert!(section.starts_with("# Lockgate\r\n"));
        assert_eq!(field("lockgate_version"), env!("CARGO_PKG_VERSION"));
        assert_eq!(
            field("lockgate_upstream"),
            place.redis().address().to_string()
        );
        assert_eq!(
            field("lockgate_tcp_port"),
            place.gate.address().port().to_string()
        );
        assert_eq!(field("lockgate_process_id"), place.gate.pid().to_string());
        // This one's, and that of the client above.
        assert_eq!(field("lockgate_clients"), "2");
        assert!(field("lockgate_uptime_in_seconds").parse::<u64>().is_ok());
        // The entries of Redis are there to the byte.
        let (direct, _) = both(&place, hello, "INFO cluster");
        let (_, _, body) = opened(&direct);
        let relayed = reply(place.gate.address(), hello, "INFO cluster lockgate");
        let theirs = body.strip_suffix(b"\r\n").unwrap();
        let rest = opened(&relayed).2.strip_prefix(theirs);
        let rest = String::from_utf8(rest.expect("the section cluster").to_vec()).unwrap();
        assert!(rest.starts_with("\r\n# Lockgate\r\n"), "{rest}");
        for other in ["INFO cluster", "INFO cluster modules", "INFO nonsense"] {
            let (direct, relayed) = both(&place, hello, other);
            assert_eq!(relayed, direct, "{other}");
        }
    }
    // It counts what waits here.
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK counted TOKEN t"), "t");
    let mut waiter = place.client();
    waiter.send(&["LOCK", "counted", "TOKEN", "u"]);
    place.gate.awaits_waiters("counted", 1);
    let section = owner.say("INFO lockgate").text();
    assert!(
        section.contains("lockgate_locks:1\r\nlockgate_waiters:1\r\n"),
        "{section}"
    );
}

#[test]
fn no_password_is_shown() {
    let machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let url = format!("redis://:secret@{}", redis.address());
    let gate = Lockgate::start(&["--upstream", &url]);
    let mut client = gate.client();
    assert_eq!(client.say("AUTH secret"), "OK");
    let info = client.say("INFO").text();
    assert!(info.contains(&format!("lockgate_upstream:{}\r\n", redis.address())));
    assert!(!info.contains("secret"));
    drop(machine);
}

/// Commands that must pass as they are, in one script; `COMMAND HELP` and wrong forms among them.
const UNCHANGED: &str = "
    COMMAND HELP
    COMMAND COUNT x
    COMMAND LIST x
    COMMAND LIST FILTERBY MODULE
    COMMAND NONSENSE
    COMMAND GETKEYS
    COMMAND GETKEYS lock
    COMMAND GETKEYSANDFLAGS lock
    COMMAND GETKEYS nonsense x
    COMMAND INFO get
    COMMAND INFO nonsense
    COMMAND INFO lock|x
    COMMAND DOCS get
    COMMAND DOCS nonsense
    MULTI
    COMMAND COUNT
    COMMAND INFO lock
    COMMAND DOCS lock
    INFO lockgate
    COMMAND COUNT x
    EXEC
    MULTI
    COMMAND COUNT
    COMMAND INFO lock
    INFO lockgate
    EXEC
    MULTI
    COMMAND LIST
    DISCARD
    EVAL return{redis.call('COMMAND','COUNT'),redis.call('INFO','lockgate')} 0
    CLIENT REPLY SKIP
    COMMAND COUNT
    CLIENT REPLY SKIP
    INFO lockgate
    CLIENT REPLY OFF
    COMMAND COUNT
    COMMAND DOCS lock
    CLIENT REPLY ON
    ACL SETUSER nobody on >p +@all -command -info
    AUTH nobody p
    COMMAND
    COMMAND COUNT
    COMMAND LIST
    COMMAND DOCS
    COMMAND INFO lock
    COMMAND GETKEYS lock k
    INFO
    INFO lockgate";

#[test]
fn refused_and_foreign_replies_pass_unchanged() {
    let place = place();
    let unchanged = script(UNCHANGED);
    // RESP2's subscribed mode.
    let subscribed = script("SUBSCRIBE c\nCOMMAND COUNT\nINFO lockgate\nUNSUBSCRIBE c");
    for (hello, script) in [
        ("HELLO 2", &unchanged),
        ("HELLO 3", &unchanged),
        ("HELLO 2", &subscribed),
    ] {
        let direct = bytes(place.redis().address(), hello, script);
        let relayed = bytes(place.gate.address(), hello, script);
        assert_eq!(
            String::from_utf8_lossy(&relayed),
            String::from_utf8_lossy(&direct),
            "{hello}"
        );
    }
    let machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "secret"]);
    let gate = Lockgate::start(&["--upstream", &redis.url()]);
    for command in ["COMMAND", "COMMAND COUNT", "COMMAND GETKEYS lock k", "INFO"] {
        assert!(gate.client().say(command).error().starts_with("NOAUTH"));
    }
    drop(machine);
}

/// Everything that is amended, between what is not.
const AMENDED: &str = "
    SET a 1
    COMMAND COUNT
    GET a
    COMMAND
    COMMAND
    COMMAND INFO lock get unlock
    COMMAND DOCS lock get
    INCR a
    COMMAND LIST
    COMMAND LIST FILTERBY PATTERN *lock
    COMMAND GETKEYS lock k
    COMMAND GETKEYSANDFLAGS lock k
    INFO lockgate
    INFO cluster lockgate
    COMMAND COUNT x
    GET a
    DEL a";

/// What differs each time: some numbers of ours, and so the length of what they stand in.
fn without_times(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let fields = [
        "lockgate_clients:",
        "lockgate_uptime_in_seconds:",
        "lockgate_relay",
        "lockgate_upstream_",
    ];
    let lines: Vec<_> = text.lines().collect();
    let is_length = |at: usize| {
        let next = lines.get(at + 1).is_some_and(|next| next.contains("# "));
        next && lines[at].starts_with(['$', '='])
    };
    let kept = lines.iter().enumerate().filter(|(at, line)| {
        !is_length(*at) && !fields.iter().any(|field| line.starts_with(field))
    });
    let kept: Vec<_> = kept.map(|(_, line)| *line).collect();
    kept.join("\n")
}

#[test]
fn replies_in_crumbs_are_amended_all_the_same() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    settle(&redis);
    let proxy = Proxy::before(redis.address());
    let gate = Lockgate::start(&["--upstream", &proxy.url()]);
    let script = script(AMENDED);
    for hello in HELLOS {
        proxy.crumble(16 * 1024);
        let whole = without_times(&bytes(gate.address(), hello, &script));
        // `COMMAND` twice, and both lists.
        assert_eq!(whole.matches("\ntrylock\n").count(), 4, "{whole}");
        for at_once in [1, 2, 7, 1460] {
            proxy.crumble(at_once);
            let crumbs = without_times(&bytes(gate.address(), hello, &script));
            assert_eq!(crumbs, whole, "{at_once} bytes at once");
        }
    }
}

#[test]
fn requests_in_crumbs_and_inline_are_amended_all_the_same() {
    let place = place();
    let script = script(AMENDED);
    let whole = without_times(&bytes(place.gate.address(), "HELLO 2", &script));
    let inline = format!("{AMENDED}\n").replace('\n', "\r\n");
    let inlined = bytes(place.gate.address(), "HELLO 2", &inline.into_bytes());
    assert_eq!(without_times(&inlined), whole);
    let proxy = Proxy::before(place.gate.address());
    proxy.crumble(1);
    let crumbs = without_times(&bytes(proxy.address(), "HELLO 2", &script));
    assert_eq!(crumbs, whole);
}

#[test]
fn messages_may_come_between() {
    let place = place();
    let mut client = place.client();
    assert!(!client.say("HELLO 3").items().is_empty());
    assert_eq!(client.say("SUBSCRIBE news").items()[0], "subscribe");
    let count = place.redis().client().say("COMMAND COUNT").integer();
    // The message is there before the replies are: Redis writes it first.
    let publish = [
        frame(&["PUBLISH", "news", "x"]),
        frame(&["COMMAND", "COUNT"]),
    ];
    client.write_raw(&publish.concat());
    let (mut replies, mut messages) = (vec![], vec![]);
    while replies.len() < 2 {
        match client.read_reply() {
            Value::Push(message) => messages.push(message),
            reply => replies.push(reply),
        }
    }
    assert_eq!((replies[0].integer(), replies[1].integer()), (1, count + 6));
    assert_eq!(messages.len(), 1);
}

#[test]
fn the_memory_of_a_request_is_bounded() {
    let place = place();
    let asked = |names: &[&str]| {
        let command = frame(&[&["COMMAND", "INFO"], names].concat());
        let ask = |server| {
            values(&bytes(server, "HELLO 2", &command))[0]
                .items()
                .to_vec()
        };
        (ask(place.redis().address()), ask(place.gate.address()))
    };
    let is_ours = |entry: &Value| !entry.is_nil() && entry.items()[0] == "lock";
    // A thousand names, as many of ours as are heeded.
    let mut names = vec!["get"; 1_000];
    names.splice(500..564, ["lock"; 64]);
    let (direct, relayed) = asked(&names);
    assert_eq!(relayed.len(), 1_000);
    assert!(relayed[500..564].iter().all(is_ours));
    assert!(direct[500..564].iter().all(Value::is_nil));
    assert_eq!(
        (&relayed[..500], &relayed[564..]),
        (&direct[..500], &direct[564..])
    );
    // One more.
    names[0] = "lock";
    let (direct, relayed) = asked(&names);
    assert_eq!(relayed, direct);
    assert!(relayed[0].is_nil());
    // A request that is too long, and one that is not.
    let long = "x".repeat(70_000);
    let (direct, relayed) = asked(&["lock", &long]);
    assert_eq!(relayed, direct);
    let (_, relayed) = asked(&["lock", &long[..16_000]]);
    assert!(is_ours(&relayed[0]) && relayed[1].is_nil());
}

#[test]
fn many_requests_at_once_cost_bounded_memory() {
    const REQUESTS: usize = 5_000;
    let machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [
        &SHORT_GRACE[..],
        &[("LOCKGATE_LIMITS_KEPT_REPLY_BYTES", "0")],
    ]
    .concat();
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let place = Place::of(Some(redis), gate, machine);
    let request = frame(&[&["COMMAND", "DOCS"], &OURS[..]].concat());
    let mut client = place.client();
    let mut writer = client.writer();
    let before = place.gate.rss_bytes();
    let (mut most, mut replied) = (0, 0);
    thread::scope(|threads| {
        threads.spawn(|| {
            let all = request.repeat(REQUESTS);
            // It reads slowly: lockgate stops reading its requests meanwhile.
            writer.write_all(&all).unwrap();
        });
        for at in 0..REQUESTS {
            replied += usize::from(client.read_reply().items().len() == 12);
            if at % 100 == 0 {
                most = most.max(place.gate.rss_bytes());
            }
        }
    });
    assert_eq!(replied, REQUESTS);
    let grown = most.saturating_sub(before);
    report(&format!(
        "catalog: {REQUESTS} COMMAND DOCS at once cost {grown} bytes"
    ));
    assert!(grown < 4_000_000, "{grown} bytes");
}

#[test]
fn a_command_of_the_same_name_behind_is_not_the_one_told_of() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--rename-command", "SET", "lock"]);
    let gate = Lockgate::start(&["--upstream", &redis.url()]);
    for hello in HELLOS {
        let known = values(&reply(redis.address(), hello, "COMMAND INFO lock get"));
        assert_eq!(known[0].items()[0].items()[0], "set");
        let told = values(&reply(gate.address(), hello, "COMMAND INFO lock get"));
        assert_eq!(names(told[0].items()), ["lock", "get"]);
        let known = reply(redis.address(), hello, "COMMAND GETKEYS lock a b");
        assert_eq!(known, b"*1\r\n$1\r\na\r\n");
        let told = reply(gate.address(), hello, "COMMAND GETKEYSANDFLAGS lock k");
        assert!(
            values(&told)[0].items()[0].items()[1]
                .items()
                .contains(&Value::Simple("RW".into()))
        );
    }
}

#[test]
fn behind_a_lockgate_each_tells_of_its_own() {
    let place = place();
    let upstream = format!("redis://{}", place.gate.address());
    let front = Lockgate::start(&["--upstream", &upstream]);
    for hello in HELLOS {
        let behind = reply(place.gate.address(), hello, "COMMAND");
        let told = reply(front.address(), hello, "COMMAND");
        // Once where the other had them, once more at the end, and as many as the count says.
        assert_eq!(names(&added(&behind, &told, 6)), OURS);
        let count = reply(front.address(), hello, "COMMAND COUNT");
        assert_eq!(opened(&count).1, opened(&told).1);
        let behind = reply(place.gate.address(), hello, "COMMAND DOCS lock get");
        let told = reply(front.address(), hello, "COMMAND DOCS lock get");
        added(&behind, &told, if hello == "HELLO 3" { 1 } else { 2 });
        let listed = values(&reply(
            front.address(),
            hello,
            "COMMAND LIST FILTERBY PATTERN lock",
        ));
        assert_eq!(names(listed[0].items()), ["lock", "lock"]);
        let keys = reply(front.address(), hello, "COMMAND GETKEYS lock k");
        assert_eq!(keys, b"*1\r\n$1\r\nk\r\n");
    }
    let info = front.client().say("INFO lockgate").text();
    let upstreams: Vec<_> = info
        .lines()
        .filter(|line| line.starts_with("lockgate_upstream:"))
        .collect();
    let of = |address: SocketAddr| format!("lockgate_upstream:{address}");
    assert_eq!(
        upstreams,
        [of(place.redis().address()), of(place.gate.address())]
    );
}

fn redis_cli(gate: &Lockgate, words: &str) -> String {
    let output = Command::new("redis-cli")
        .args(["-p", &gate.address().port().to_string()])
        .args(words.split(' '))
        .output()
        .expect("redis-cli starts");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redis_cli_explains_lock_commands_beside_those_of_redis() {
    let place = place();
    for protocol in ["", "-3 "] {
        let explained = redis_cli(&place.gate, &format!("{protocol}help lock"));
        assert!(
            explained
                .contains("key [TOKEN token] [PX milliseconds|EX seconds] [WAIT milliseconds]"),
            "{explained}"
        );
        let group = redis_cli(&place.gate, &format!("{protocol}help @lock"));
        for name in OURS {
            assert!(group.contains(&name.to_uppercase()), "{name} in {group}");
        }
        let theirs = redis_cli(&place.gate, &format!("{protocol}help getdel"));
        assert!(theirs.contains("GETDEL"), "{theirs}");
        let info = redis_cli(&place.gate, &format!("{protocol}info lockgate"));
        assert!(info.starts_with("# Lockgate"), "{info}");
        let keys = redis_cli(&place.gate, &format!("{protocol}command getkeys lock k"));
        assert_eq!(keys, "k\n");
    }
}

/// redis-cli on a terminal, and somebody who types.
struct Terminal {
    process: Child,
    shown: mpsc::Receiver<String>,
    /// What it showed since what was looked for last.
    rest: String,
}

impl Terminal {
    fn open(gate: &Lockgate) -> Self {
        let port = gate.address().port();
        let command = format!("stty cols 200 rows 50; exec redis-cli -p {port}");
        let mut process = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .envs([("TERM", "xterm"), ("REDISCLI_HISTFILE", "/dev/null")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script (of util-linux) gives redis-cli a terminal");
        let mut stdout = process.stdout.take().unwrap();
        let (send, shown) = mpsc::channel();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut chunk) {
                let _ = send.send(String::from_utf8_lossy(&chunk[..count]).into_owned());
            }
        });
        Self {
            process,
            shown,
            rest: String::new(),
        }
    }

    fn types(&mut self, keys: &str) {
        let stdin = self.process.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns when it shows this.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        while !self.rest.contains(text) {
            match self.shown.recv_timeout(SOON) {
                Ok(more) => self.rest.push_str(&more),
                Err(_) => panic!("{text:?} is not in {:?}", self.rest),
            }
        }
        let (_, rest) = self.rest.split_once(text).expect("just found");
        self.rest = rest.to_owned();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn redis_cli_completes_and_shows_how_a_lock_command_is_written() {
    let place = place();
    let mut terminal = Terminal::open(&place.gate);
    terminal.shows("> ");
    // Tab completes; what may follow is shown behind.
    terminal.types("trylo\t mine ");
    terminal.shows("TRYLOCK");
    terminal.shows("[TOKEN token] [PX milliseconds|EX seconds] [FENCE] [SESSION]");
    terminal.types("TOKEN t\r");
    terminal.shows("\"t\"");
    assert_eq!(place.redis().client().say("GET mine"), "t");
}
