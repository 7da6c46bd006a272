//! The configuration in the words of an operator.

use std::{collections::BTreeMap, io::Write};

use super::*;
use crate::{
    absorb::{KeyPatterns, ReleaseScripts},
    auth::identity::Credentials,
};

mod absorb;
mod security;
mod sentinel;

/// The file that documents every key.
const DOCUMENTED: &str = include_str!("../../config/lockgate.toml");

/// What an operator typed.
#[derive(Default)]
struct Operator {
    flags: Flags,
    environment: Vec<(OsString, OsString)>,
    file: Option<tempfile::NamedTempFile>,
}

impl Operator {
    fn file(mut self, text: &str) -> Self {
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        self.flags.config = Some(file.path().to_owned());
        self.file = Some(file);
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    fn upstream(mut self, url: &str) -> Self {
        self.flags.upstream = Some(url.to_owned());
        self
    }

    /// Returns what was typed; its file lives as long as the operator.
    fn builder(&self) -> ConfigBuilder {
        ConfigBuilder::from(self.flags.clone()).environment(self.environment.clone())
    }

    fn starts(self) -> Config {
        self.builder().build().unwrap()
    }

    /// Returns the one line that refuses the configuration.
    fn refused(self) -> String {
        let line = self.builder().build().unwrap_err().to_string();
        assert!(!line.contains('\n'), "one line: {line}");
        line
    }
}

fn nothing_typed() -> Operator {
    Operator::default()
}

#[track_caller]
fn assert_names(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{line:?} should say {word:?}");
    }
}

#[test]
fn the_defaults_are_allowed_and_are_the_documented_ones() {
    let config = nothing_typed().starts();
    assert_eq!(config, Config::default());
    assert_eq!(config, nothing_typed().file(DOCUMENTED).starts());
    assert_eq!(config.listen, Address::parse("127.0.0.1:6380"));
    assert_eq!(config.upstream.url, Upstream::Embedded);
    assert_eq!(
        config.lock.leases,
        Leases {
            default_ms: 30_000,
            min_ms: 10,
            min_session_ms: 1_000,
            max_ms: 86_400_000
        }
    );
    assert_eq!(config.limits, Limits::default());
}

#[test]
fn the_documented_file_and_the_code_have_the_same_keys_and_defaults() {
    let mut typed = Typed::default();
    Config::check(&mut typed).unwrap();
    let in_code: BTreeMap<String, String> = typed
        .asked
        .into_iter()
        .map(|(key, default)| (key.to_owned(), default))
        .collect();

    let mut in_file = BTreeMap::new();
    for (name, value) in DOCUMENTED.parse::<toml::Table>().unwrap() {
        match value {
            toml::Value::Table(section) => {
                for (key, value) in section {
                    in_file.insert(format!("{name}.{key}"), text(&value));
                }
            }
            value => drop(in_file.insert(name, text(&value))),
        }
    }
    assert_eq!(in_file, in_code);
}

fn text(value: &toml::Value) -> String {
    let number = || value.as_integer().map(|number| number.to_string());
    let answer = || value.as_bool().map(|answer| answer.to_string());
    let text = value.as_str().map(str::to_owned);
    text.or_else(number).or_else(answer).unwrap()
}

#[test]
fn what_counts_as_slow_is_a_duration_or_off() {
    let slow = |text: &str| nothing_typed().variable("LOCKGATE_LOG_SLOW_HOLD", text);
    assert_eq!(slow("off").starts().log_slow_hold, None);
    assert_eq!(slow("0s").starts().log_slow_hold, Some(Duration::ZERO));
    let waits = nothing_typed().file("log_slow_wait = \"2s\"\nlog_format = \"journald\"");
    let config = waits.starts();
    assert_eq!(config.log_slow_wait, Some(Duration::from_secs(2)));
    assert_eq!(config.log_format, LogFormat::Journald);
    for wrong in ["-1s", "2days", "never"] {
        assert_names(&slow(wrong).refused(), &["log_slow_hold", wrong, "or off"]);
    }
}

#[test]
fn every_key_of_the_file_is_a_variable_too() {
    let mut typed = Typed::default();
    Config::check(&mut typed).unwrap();
    for (key, default) in typed.asked {
        let name = format!("LOCKGATE_{}", key.replace('.', "_").to_uppercase());
        assert_eq!(
            nothing_typed().variable(&name, &default).starts(),
            Config::default()
        );
        // A key with a non-empty default refuses an empty value, so this shows that the variable was read.
        if !default.is_empty() {
            assert_names(
                &nothing_typed().variable(&name, "").refused(),
                &[key, &name],
            );
        }
    }
    let config = nothing_typed()
        .variable("LOCKGATE_LOCK_KEY_PREFIX", "lock:")
        .starts();
    assert_eq!(&config.lock.key_prefix[..], b"lock:");
}

#[test]
fn each_key_of_the_file_does_what_it_says() {
    let config = nothing_typed()
        .file(
            r#"
            listen = "[::1]:7000"
            log = "warn,lockgate=debug"
            drain = "18ms"
            tcp_keepalive = "19s"
            idle_timeout = "20s"
            unixsocket = "/run/gate.sock"
            unixsocketperm = 660
            protected_mode = false
            auth.password = "open sesame"
            upstream = { url = "redis://redis", connect_timeout = "1ms", timeout = "3ms", ping = "4ms", idle_timeout = "5ms" }
            lock.key_prefix = "p:"
            lock.replicas = 2
            lock.replicas_timeout = "2ms"
            lock.lease = "6ms"
            lock.min_lease = "5ms"
            lock.max_lease = "7ms"
            lock.max_handovers = 8
            lock.max_handover_time = "9ms"
            lock.yield_pause = "10ms"
            queue.reconnect_grace = "11ms"
            ask.max_delay = "12ms"
            ask.at_least_every = "13ms"
            ask.poll_every = "14ms"
            absorb = { keys = "p:l*", try_keys = "p:t*", park = "23ms", release_scripts = "0000000000000000000000000000000000000000" }
            write_back = { leases = "session", grace = "9s" }
            [limits]
            clients = 15
            locks = 16
            shared_connections = 21
            waiters = 17
            session_locks = 22
            released_tokens = 20
            key_bytes = 18
            token_bytes = 40
            lock_command_bytes = 5000
            pipelined_commands = 19
            pipelined_bytes = 100_000
            relay_bytes = 200_000
            kept_reply_bytes = 300_000
            "#,
        )
        .starts();
    assert_eq!(config.listen, Address::parse("[::1]:7000"));
    let socket = UnixSocket {
        path: "/run/gate.sock".into(),
        mode: 0o660,
    };
    assert_eq!(config.unix_socket, Some(socket));
    assert!(!config.protected_mode);
    assert!(
        config
            .password
            .as_ref()
            .is_some_and(|it| it.is(b"open sesame"))
    );
    assert_eq!(config.log, "warn,lockgate=debug");
    let Upstream::Redis(redis) = &config.upstream.url else {
        panic!("a Redis was named")
    };
    assert_eq!(redis.place.to_string(), "redis:6379");
    assert_eq!(config.upstream.connect_timeout, Duration::from_millis(1));
    assert_eq!(config.upstream.timeout, Duration::from_millis(3));
    assert_eq!(config.upstream.ping, Duration::from_millis(4));
    assert_eq!(config.upstream.idle_timeout, Duration::from_millis(5));
    assert_eq!(config.write_back.leases, WriteBack::Session);
    assert_eq!(config.write_back.grace, Duration::from_secs(9));
    assert_eq!(config.drain, Duration::from_millis(18));
    assert_eq!(config.tcp_keepalive, Duration::from_secs(19));
    assert_eq!(config.idle_timeout, Duration::from_secs(20));
    assert_eq!(&config.lock.key_prefix[..], b"p:");
    assert_eq!(config.lock.replicas, 2);
    assert_eq!(config.lock.replicas_timeout, Duration::from_millis(2));
    assert_eq!(
        config.lock.leases,
        Leases {
            default_ms: 6,
            min_ms: 5,
            min_session_ms: 7,
            max_ms: 7
        }
    );
    let patterns = |list| KeyPatterns::parse(list).unwrap();
    assert_eq!(
        config.absorb,
        AbsorbSettings {
            keys: patterns("p:l*"),
            try_keys: patterns("p:t*"),
            park_ms: 23,
            release_scripts: ReleaseScripts::parse(&"0".repeat(40)).unwrap(),
        }
    );
    assert_eq!(
        config.lock_settings(),
        Settings {
            max_handovers: 8,
            max_handover_time_ms: 9,
            yield_pause_ms: 10,
            reconnect_grace_ms: 11,
            max_delay_ms: 12,
            ask_at_least_every_ms: 13,
            poll_every_ms: 14,
            answer_within_ms: 3,
            write_back: WriteBack::Session,
            max_waiters: 17,
            max_kept_by_connection: 4,
            min_session_ms: 7,
        }
    );
    let limits = Limits {
        clients: 15,
        locks: 16,
        shared_connections: 21,
        waiters: 17,
        session_locks: 22,
        released_tokens: 20,
        key_bytes: 18,
        token_bytes: 40,
        lock_command_bytes: 5_000,
        pipelined_commands: 19,
        pipelined_bytes: 100_000,
        relay_bytes: 200_000,
        kept_reply_bytes: 300_000,
    };
    assert_eq!(config.limits, limits);
}

#[test]
fn a_flag_goes_before_the_environment_and_the_environment_before_the_file() {
    let file = "log = \"error\"\n[upstream]\nurl = \"redis://of-the-file\"";
    let host = |operator: Operator| match operator.starts().upstream.url {
        Upstream::Redis(address) => address.place.to_string(),
        Upstream::Embedded => "embedded".to_owned(),
    };
    assert_eq!(host(nothing_typed().file(file)), "of-the-file:6379");
    let environment = |name| {
        nothing_typed()
            .file(file)
            .variable(name, "redis://of-environment")
    };
    assert_eq!(
        host(environment("LOCKGATE_UPSTREAM")),
        "of-environment:6379"
    );
    assert_eq!(
        host(environment("LOCKGATE_UPSTREAM_URL")),
        "of-environment:6379"
    );
    let flag = environment("LOCKGATE_UPSTREAM").upstream("redis://of-the-flag");
    assert_eq!(host(flag), "of-the-flag:6379");
    let twice = environment("LOCKGATE_UPSTREAM").variable("LOCKGATE_UPSTREAM_URL", "embedded");
    assert_names(
        &twice.refused(),
        &["LOCKGATE_UPSTREAM ", "LOCKGATE_UPSTREAM_URL"],
    );
}

#[test]
fn the_name_in_the_admin_address_is_a_name_of_the_page() {
    let hosts = |listen: &str| {
        let operator = nothing_typed().variable("LOCKGATE_ADMIN", listen);
        let config = operator.variable("LOCKGATE_ADMIN_HOSTS", "other").starts();
        config.admin.unwrap().hosts
    };
    assert_eq!(hosts("Gate.example:9380"), ["other", "gate.example"]);
    assert_eq!(hosts(":9380"), ["other"]);
    assert_eq!(hosts("10.0.0.1:9380"), ["other"]);
}

#[test]
fn an_embedding_program_sets_any_key_and_takes_precedence() {
    let typed = nothing_typed()
        .variable("LOCKGATE_LOCK_LEASE", "6s")
        .variable("LOCKGATE_DRAIN", "7s");
    let config = typed
        .builder()
        .set("lock.lease", "5s")
        .set("limits.clients", 9);
    let config = config.build().unwrap();
    assert_eq!(config.lock.leases.default_ms, 5_000);
    assert_eq!(config.drain, Duration::from_secs(7));
    assert_eq!(config.limits.clients, 9);
    let refused = |key: &str, value: &str| {
        let builder = Config::builder().set(key, value);
        assert!(!format!("{builder:?}").contains(value));
        builder.build().unwrap_err().to_string()
    };
    let words = ["lock.lease", "\"soon\"", "(the program)"];
    assert_names(&refused("lock.lease", "soon"), &words);
    assert_names(
        &refused("lock.leese", "2s"),
        &["lock.leese: no such key (from the program)"],
    );
}

#[test]
fn the_file_can_be_named_by_the_environment() {
    let mut operator = nothing_typed().file("listen = \"127.0.0.1:1\"");
    let path = operator.flags.config.take().unwrap();
    let operator = operator.variable("LOCKGATE_CONFIG", path.to_str().unwrap());
    assert_eq!(operator.starts().listen, Address::parse("127.0.0.1:1"));
}

#[test]
fn unknown_keys_are_refused_by_name() {
    let in_file = |text| nothing_typed().file(text).refused();
    assert_names(
        &in_file("lisen = \"127.0.0.1:1\""),
        &["lisen", "no such key", ".toml"],
    );
    assert_names(
        &in_file("[lock]\nleese = \"2s\""),
        &["lock.leese", "no such key"],
    );
    assert_names(
        &in_file("[lokc]\nlease = \"2s\""),
        &["lokc.lease", "no such key"],
    );
    assert_names(&in_file("[lock.lease]\nof = 1"), &["lock.lease", "table"]);
    let variable = |name| nothing_typed().variable(name, "2s").refused();
    assert_names(
        &variable("LOCKGATE_LOCK_LEESE"),
        &["LOCKGATE_LOCK_LEESE", "no such key"],
    );
    assert_names(&variable("LOCKGATE_"), &["LOCKGATE_: no such key"]);
}

#[test]
fn service_variables_of_kubernetes_are_ignored() {
    for service in ["LOCKGATE", "LOCKGATE_ADMIN"] {
        let config = nothing_typed()
            .variable(&format!("{service}_SERVICE_HOST"), "10.0.0.1")
            .variable(&format!("{service}_SERVICE_PORT"), "6380")
            .variable(&format!("{service}_SERVICE_PORT_REDIS"), "6380")
            .variable(&format!("{service}_PORT"), "tcp://10.0.0.1:6380")
            .variable(&format!("{service}_PORT_6380_TCP"), "tcp://10.0.0.1:6380")
            .variable(&format!("{service}_PORT_6380_TCP_ADDR"), "10.0.0.1")
            .variable("PATH", "/bin")
            .starts();
        assert_eq!(config, Config::default());
    }
    // A variable that an operator may take for a key is not one of these.
    let typed = nothing_typed().variable("LOCKGATE_LISTEN_PORT", "7000");
    assert_names(&typed.refused(), &["LOCKGATE_LISTEN_PORT", "no such key"]);
}

/// A number in another base means what TOML says it means, or is refused: never another number.
#[test]
fn a_number_in_the_file_keeps_its_base() {
    let socket = |mode| format!("unixsocket = \"/run/gate.sock\"\nunixsocketperm = {mode}");
    for mode in ["660", "0o660", "\"660\"", "\"0660\""] {
        let config = nothing_typed().file(&socket(mode)).starts();
        assert_eq!(config.unix_socket.unwrap().mode, 0o660, "{mode}");
    }
    for mode in ["0x1b0", "0b110110000", "0o1777", "0o"] {
        nothing_typed().file(&socket(mode)).refused();
    }
    nothing_typed().file("limits.clients = 0x10").refused();
    let config = nothing_typed().file("limits.clients = 1_000").starts();
    assert_eq!(config.limits.clients, 1_000);
}

#[test]
fn a_wrong_value_is_refused_with_its_key_and_what_is_allowed() {
    for (key, value, allowed) in [
        ("listen", "6380", "\":6380\" for every interface"),
        ("listen", "localhost", "a host and a port"),
        ("listen", "off", "or a unixsocket beside it"),
        ("listen", "localhost:65536", "a host and a port"),
        ("protected_mode", "perhaps", "true or false"),
        ("tls.listen", "6379", "a host and a port"),
        ("unixsocketperm", "800", "from 0 to 777"),
        ("unixsocketperm", "+70", "from 0 to 777"),
        ("unixsocketperm", "rw", "from 0 to 777"),
        ("log", "verbose", "off, error, warn, info, debug, trace"),
        (
            "log",
            "lockgate=loud",
            "off, error, warn, info, debug, trace",
        ),
        ("upstream.timeout", "0s", "from 1ms to 1h"),
        ("admin.listen", "127.0.0.1", "a host and a port"),
        ("upstream.ping", "2", "\"2s\" or \"2ms\""),
        ("upstream.ping", "2 miles", "such as \"2s\""),
        ("lock.lease", "30", "\"30s\" or \"30ms\""),
        ("lock.lease", "5", "with its unit: \"5s\""),
        ("absorb.park", "50", "with its unit: \"50ms\""),
        ("lock.lease", "999999999", "such as \"2s\""),
        ("limits.relay_bytes", "64kb", ": 65536"),
        ("limits.relay_bytes", "64K", ": 64000"),
        ("limits.relay_bytes", "64 KB", ": 65536"),
        ("limits.clients", "10k", ": 10000"),
        ("limits.relay_bytes", "1kb", "to 1073741824"),
        ("limits.relay_bytes", "99999999999gb", "to 1073741824"),
        ("upstream.connect_timeout", "1500us", "whole milliseconds"),
        ("lock.lease", "9ms", "from 10ms to 1day"),
        ("lock.lease", "25h", "from 10ms to 1day"),
        ("lock.max_lease", "9ms", "from 10ms to 1year"),
        ("lock.max_handovers", "0", "from 1 to"),
        ("lock.max_handovers", "-1", "from 1 to"),
        ("ask.at_least_every", "0", "from 1ms"),
        ("limits.waiters", "0", "from 1 to"),
        ("limits.waiters", "many", "a whole number"),
        ("limits.key_bytes", "20000", "from 1 to 15104"),
        ("limits.pipelined_bytes", "32767", "from 32768"),
        ("limits.relay_bytes", "32767", "from 32768"),
    ] {
        let line = nothing_typed()
            .file(&format!("{key} = \"{value}\""))
            .refused();
        assert_names(&line, &[key, &format!("\"{value}\""), allowed]);
    }
}

#[test]
fn the_default_lease_has_to_be_within_the_bounds_too() {
    let file = |text| nothing_typed().file(text).refused();
    let default = "lock.lease: \"30s\" (the default)";
    assert_names(&file("lock.min_lease = \"31s\""), &[default, "from 31s"]);
    assert_names(&file("lock.max_lease = \"29s\""), &[default, "to 29s"]);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let mut operator = nothing_typed();
    operator.flags.config = Some("/nowhere/lockgate.toml".into());
    assert_names(
        &operator.refused(),
        &["/nowhere/lockgate.toml", "No such file"],
    );
    let line = nothing_typed().file("log = \"info\"\nlisten = ").refused();
    assert_names(&line, &[".toml", "line 2"]);
    assert_names(
        &nothing_typed().file("log = 1.5").refused(),
        &["log", "float"],
    );
}

#[test]
fn a_redis_url_may_name_a_user_a_password_and_a_port() {
    let parsed = |url: &str| match nothing_typed().upstream(url).starts().upstream.url {
        Upstream::Redis(a) => (a.place.to_string(), a.user, a.password),
        Upstream::Embedded => panic!("{url} names a Redis"),
    };
    let some = |text: &str| Some(text.to_owned());
    let at = |place: &str, username, password| (place.to_owned(), username, password);
    assert_eq!(parsed("redis://r"), at("r:6379", None, None));
    assert_eq!(parsed("redis://r:7/"), at("r:7", None, None));
    assert_eq!(parsed("redis://r:7/0"), at("r:7", None, None));
    assert_eq!(parsed("localhost:7"), at("localhost:7", None, None));
    assert_eq!(parsed("10.0.0.1:7"), at("10.0.0.1:7", None, None));
    assert_eq!(parsed("[::1]:7"), at("[::1]:7", None, None));
    assert_eq!(parsed("redis://[::1]:7"), at("[::1]:7", None, None));
    assert_eq!(parsed("redis://:pw@r"), at("r:6379", None, some("pw")));
    assert_eq!(parsed("redis://u@r"), at("r:6379", some("u"), None));
    let full = parsed("redis://u%3a:p%40:@x@10.0.0.1:7");
    assert_eq!(full, at("10.0.0.1:7", some("u:"), some("p@:@x")));
    let socket = "/run/redis.sock";
    assert_eq!(parsed("unix:///run/redis.sock"), at(socket, None, None));
    let full = parsed("unix:///run/redis.sock?pass=p%26w&user=u&db=0");
    assert_eq!(full, at(socket, some("u"), some("p&w")));
}

#[test]
fn a_database_other_than_0_is_refused_with_what_to_do() {
    for url in [
        "redis://u:hunter2@r/1",
        "rediss://u:hunter2@r:7/15",
        "unix:///run/redis.sock?pass=hunter2&db=1",
    ] {
        let line = nothing_typed().variable("LOCKGATE_UPSTREAM", url).refused();
        let words = ["(LOCKGATE_UPSTREAM)", "database", "SELECT", "clients' URLs"];
        assert_names(&line, &words);
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn an_error_names_the_variable_or_the_flag_that_was_set() {
    let upstream = |name| nothing_typed().variable(name, "http://r").refused();
    assert_names(&upstream("LOCKGATE_UPSTREAM"), &["(LOCKGATE_UPSTREAM)"]);
    assert_names(
        &upstream("LOCKGATE_UPSTREAM_URL"),
        &["(LOCKGATE_UPSTREAM_URL)"],
    );
    let admin = nothing_typed().variable("LOCKGATE_ADMIN", "nowhere");
    assert_names(&admin.refused(), &["admin.listen", "(LOCKGATE_ADMIN)"]);
    let flag = nothing_typed().upstream("http://r");
    assert_names(&flag.refused(), &["upstream.url", "(--upstream)"]);
}

#[test]
fn a_url_that_is_none_is_refused_without_showing_its_password() {
    for url in [
        "redis://u:hunter2@",
        "redis://u:hunter2@r:0",
        "redis://u:hunter2@r:65536",
        "redis://u:hunter2@r/data",
        "redis://u:hunter2@r?protocol=resp3",
        ":6379",
        "r:0",
        "redis://u:hunter2@[::1",
        "redis://u:hunter2@::1",
        "u:hunter2@r",
        "unix://run/redis.sock?pass=hunter2",
        "unix:///run/redis.sock?pass=hunter2&db=",
        "unix:///run/redis.sock?pass=hunter2&db=0&db=0",
        "unix:///run/redis.sock?pass=hunter2&pass=hunter3",
        "unix:///run/redis.sock?pass=hunter2#",
        "unix:///run/redis.sock?hunter2",
        "Embedded",
        "",
    ] {
        let line = nothing_typed().upstream(url).refused();
        assert_names(
            &line,
            &["upstream.url", "--upstream", "redis://", "embedded"],
        );
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn printing_a_configuration_shows_no_password() {
    let config = nothing_typed().upstream("redis://u:hunter2@r").starts();
    assert!(!format!("{config:?} {config:#?}").contains("hunter2"));
    let keys = "upstream.url = \"redis://r\"\nupstream.password = \"hunter2\"";
    let config = nothing_typed().file(keys).starts();
    assert!(!format!("{config:?} {config:#?}").contains("hunter2"));
}

#[test]
fn lockgates_own_account_is_named_by_the_url_or_by_the_keys_beside_it() {
    let own = |file: &str| match nothing_typed().file(file).starts().upstream.url {
        Upstream::Redis(redis) => redis.own(),
        Upstream::Embedded => panic!("{file} names a Redis"),
    };
    let account =
        |name: &str, password: &str| Credentials::new(name.as_bytes(), password.as_bytes());
    for (file, expected) in [
        ("url = \"redis://r\"", None),
        ("url = \"redis://u:p@r\"", account("u", "p")),
        (
            "url = \"redis://r\"\nuser = \"u\"\npassword = \"p\"",
            account("u", "p"),
        ),
        ("url = \"redis://u@r\"\npassword = \"p\"", account("u", "p")),
        (
            "url = \"redis://r\"\npassword = \"p\"",
            account("default", "p"),
        ),
        ("url = \"redis://u@r\"", account("u", "")),
    ] {
        assert_eq!(own(&format!("[upstream]\n{file}")), expected, "{file}");
    }
    let twice = "[upstream]\nurl = \"redis://:hunter2@r\"\npassword = \"hunter3\"";
    let line = nothing_typed().file(twice).refused();
    assert_names(&line, &["upstream.password", "upstream.url"]);
    assert!(!line.contains("hunter"), "{line}");
    let long = format!(
        "[upstream]\nurl = \"redis://r\"\npassword = \"{}\"",
        "x".repeat(9_000)
    );
    let line = nothing_typed().file(&long).refused();
    assert!(line.contains("8192") && !line.contains("xxx"), "{line}");
}

#[test]
fn the_grace_is_longer_than_an_instance_takes_to_notice_that_redis_is_gone() {
    let grace = |more: &str| nothing_typed().file(more).starts().write_back.grace;
    assert_eq!(grace(""), Duration::from_secs(5));
    assert_eq!(
        grace("upstream.connect_timeout = \"5s\""),
        Duration::from_secs(9)
    );
    assert_eq!(
        grace("upstream = { timeout = \"500ms\", ping = \"100ms\" }"),
        Duration::from_millis(2_388)
    );
    let error = nothing_typed()
        .file("write_back.grace = \"4500ms\"")
        .refused();
    assert!(error.contains("from 4s 501ms"), "{error}");
}

/// A master that restarts without its data has replicas without it.
#[test]
fn the_grace_is_as_long_where_replicas_acknowledge_every_lease() {
    let file = "write_back.grace = \"0\"\nupstream.url = \"redis://r\"\nlock.replicas = 1";
    let error = nothing_typed().file(file).refused();
    assert!(error.contains("write_back.grace"), "{error}");
}

/// A Redis that does not answer while replicas acknowledge is to count as one that hangs.
#[test]
fn replicas_have_less_time_than_redis() {
    let check =
        |settings: &str| nothing_typed().file(&format!("{settings}\nupstream.url = \"redis://r\""));
    let error = check("lock.replicas_timeout = \"2s\"").refused();
    assert!(error.contains("lock.replicas_timeout"), "{error}");
    assert!(
        error.contains("from 1ms to 1s 999ms, below upstream.timeout"),
        "{error}"
    );
    let of = |settings: &str| check(settings).starts().lock.replicas_timeout;
    assert_eq!(
        of("lock.replicas_timeout = \"1999ms\""),
        Duration::from_millis(1_999)
    );
    assert_eq!(of(""), Duration::from_millis(100));
    assert_eq!(of("upstream.timeout = \"50ms\""), Duration::from_millis(49));
}

#[test]
fn without_a_redis_no_replicas_acknowledge() {
    let error = nothing_typed().file("lock.replicas = 1").refused();
    assert!(error.contains("lock.replicas"), "{error}");
}

#[test]
fn leases_are_written_back_where_there_is_a_redis_to_forget_them() {
    let settings = |upstream: &str| {
        let file = format!("upstream.url = {upstream:?}\nwrite_back.leases = \"all\"");
        nothing_typed().file(&file).starts().lock_settings()
    };
    assert_eq!(settings("redis://redis").write_back, WriteBack::All);
    assert_eq!(settings("embedded").write_back, WriteBack::Off);
}

/// The file marks exactly the keys that a reload changes.
#[test]
fn settings_that_sighup_reloads_are_marked_in_the_configuration_file() {
    let mut marked = Vec::new();
    let (mut section, mut is_marked) = (String::new(), false);
    for line in DOCUMENTED.lines() {
        if let Some(comment) = line.strip_prefix('#') {
            is_marked |= comment.contains("[SIGHUP]");
        } else if let Some(name) = line.strip_prefix('[') {
            section = format!("{}.", name.trim_end_matches(']'));
        } else if let (Some((key, _)), true) = (line.split_once(" = "), is_marked) {
            marked.push(format!("{section}{key}"));
        } else if line.is_empty() {
            is_marked = false;
        }
    }
    marked.sort();
    let mut reloaded = crate::server::reload::RELOADED.to_vec();
    reloaded.sort_unstable();
    assert_eq!(marked, reloaded);
}
