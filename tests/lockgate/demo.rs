//! `lockgate demo` as somebody sees it who tries it: the program itself, against a real Redis, on a terminal
//! and into a pipe. What it shows is held against what Redis says that it did.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Machine, Monitor, RedisServer, eventually, free_address, program, run_to_its_end,
};

/// Few, and fast.
const SMALL: [&str; 6] = ["--clients", "20", "--hold", "2ms", "--poll", "10ms"];

/// Long enough to be ended before it is done.
const LONG: [&str; 4] = ["--clients", "100", "--hold", "500ms"];

/// What a server leaves that is gone: nothing listens there.
#[track_caller]
fn no_listener_at(address: SocketAddr) {
    eventually("the server is gone", || {
        TcpStream::connect(address).is_err()
    });
}

/// The demo, started.
struct Demo {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
    seen: String,
}

impl Demo {
    fn start(arguments: &[&str], directory: &Path) -> Self {
        let mut process = program()
            .arg("demo")
            .args(arguments)
            .env("TMPDIR", directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            lines,
            seen: String::new(),
        }
    }

    /// Reads until it says this; returns that line.
    #[track_caller]
    fn says(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "it never said {words:?}, but:\n{}", self.seen);
            self.seen.push_str(&line);
            if line.contains(words) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Its exit code, and what it said on the standard error stream.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut status = None;
        eventually("the demo ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        let mut said = String::new();
        let mut errors = self.process.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        (status.unwrap().code(), said)
    }
}

/// Runs it to its end, however long that takes.
fn run(arguments: &[&str]) -> Output {
    let mut demo = program();
    demo.arg("demo").args(arguments).stdout(Stdio::piped());
    demo.output().unwrap()
}

/// Runs it, and returns what it says when it succeeds.
#[track_caller]
fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

/// The figure of one of the two below this heading.
#[track_caller]
fn figure(report: &str, heading: &str, name: &str) -> String {
    let mut below = report.lines().skip_while(|line| !line.starts_with(heading));
    let line = below.find(|line| line.trim_start().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {heading} of {name} in:\n{report}"));
    let words = line.trim_start().trim_start_matches(name);
    let words = words.trim_start_matches(|c: char| c == ' ' || ('▁'..='▏').contains(&c));
    words.split("  ").next().unwrap().trim().to_owned()
}

#[track_caller]
fn commands(report: &str, name: &str) -> usize {
    let figure = figure(report, "Commands", name).replace(',', "");
    figure.split(' ').next().unwrap().parse().unwrap()
}

/// The address of the server that it started.
#[track_caller]
fn own_server(line: &str) -> SocketAddr {
    let (_, address) = line.trim_end().rsplit_once("redis://").unwrap();
    address.parse().unwrap()
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn its_commands_are_those_that_redis_executed_and_it_leaves_no_key() {
    let _machine = Machine::shared();
    let redis = RedisServer::start_unused(&[]);
    let mut client = redis.client();
    assert_eq!(client.say("SET mine 1"), "OK");
    let mut monitor = Monitor::start(&redis);
    let report = succeeds(&[&["--upstream", &redis.url()], &SMALL[..]].concat());
    // Neither its trials nor the removal of its keys are in the figures.
    let mut executed = |key: &str| {
        let mut commands = monitor.commands_where(|argument| argument.ends_with(key));
        commands.retain(|command| command[0] != "DEL" && !command.contains(&"probe".to_owned()));
        commands.len()
    };
    let spinning = executed(":spinning");
    assert!(
        spinning > 40,
        "they spin, and release: {spinning}\n{report}"
    );
    assert_eq!(commands(&report, "spinning"), spinning, "{report}");
    // A grant each and the last release at best, a grant and a release each at worst; and the script that hands over
    // is sent once as a whole: its trial has shown Redis the other two.
    for key in [":absorbed", ":LOCK"] {
        let executed = executed(key);
        assert!(
            (20 + 1..=2 * 20 + 1).contains(&executed),
            "{key}: {executed} for 20 locks\n{report}"
        );
    }
    // The figures of lockgate include its other requests, such as the probe of an anonymous client.
    let all = monitor.everything();
    let looks = all
        .iter()
        .enumerate()
        .filter(|(_, it)| it.join(" ") == "INFO all");
    let looks: Vec<_> = looks.map(|(at, _)| at).collect();
    let [.., a, b, c, d] = looks[..] else {
        panic!("it looks before and after: {all:?}");
    };
    for (way, before, after) in [("absorbed", a, b), ("LOCK", c, d)] {
        let meanwhile = &all[before + 1..after];
        assert_eq!(
            commands(&report, way),
            meanwhile.len(),
            "{way}: {meanwhile:#?}\n{report}"
        );
    }
    assert!(!report.contains("Note:"), "{report}");
    assert!(!report.contains('\u{1b}'), "no colours in a pipe: {report}");
    let overtaken = report.lines().find(|line| line.contains("overtaken"));
    let words: Vec<_> = overtaken.unwrap().split_whitespace().collect();
    // On a machine that is busy the system may well deliver what was sent later first.
    let overtaken: usize = words[4].parse().unwrap();
    assert!(overtaken < 5, "LOCK is served in order:\n{report}");
    let keys = client.say("KEYS *");
    assert_eq!(keys.items().len(), 1, "{keys:?}");
    assert_eq!(keys.items()[0], "mine");
}

#[test]
fn without_an_upstream_it_starts_a_redis_and_ends_it() {
    let _machine = Machine::shared();
    let directory = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(&SMALL, directory.path());
    let server = own_server(&demo.says("started for this"));
    demo.says("lockgate --upstream redis://");
    assert_eq!(demo.ended(), (Some(0), String::new()));
    no_listener_at(server);
    assert!(is_empty(directory.path()), "its directory is gone");
}

#[test]
fn told_to_end_it_leaves_no_key() {
    let _machine = Machine::shared();
    let redis = RedisServer::start_unused(&[]);
    let mut client = redis.client();
    let directory = tempfile::tempdir().unwrap();
    let upstream = redis.url();
    // While they spin, while their attempts are parked, and while they wait in LOCK.
    let first = [&["--upstream", &upstream], &LONG[..]].concat();
    let short = ["--clients", "20", "--hold", "100ms", "--poll", "10ms"];
    let second = [&["--upstream", &upstream], &short[..]].concat();
    for (arguments, key, signal) in [
        (&first, "lockgate:demo:*:spinning", Signal::INT),
        (&second, "lockgate:demo:*:absorbed", Signal::INT),
        (&second, "lockgate:demo:*:LOCK", Signal::TERM),
    ] {
        let demo = Demo::start(arguments, directory.path());
        eventually("somebody holds the lock", || {
            !client.call(&["KEYS", key]).items().is_empty()
        });
        demo.signal(signal);
        let (code, said) = demo.ended();
        assert_eq!(code, Some(130), "{said}");
        assert!(said.contains("nothing is left"), "{said}");
        assert_eq!(client.say("DBSIZE"), 0);
        eventually("all its connections are closed", || {
            client.say("CLIENT LIST").text().lines().count() == 1
        });
    }
}

#[test]
fn a_redis_that_hangs_does_not_keep_it_and_it_says_what_it_could_not_remove() {
    let _machine = Machine::shared();
    let redis = RedisServer::start_unused(&[]);
    let directory = tempfile::tempdir().unwrap();
    let upstream = redis.url();
    let arguments = [&["--upstream", &upstream], &LONG[..]].concat();
    let demo = Demo::start(&arguments, directory.path());
    let mut client = redis.client();
    eventually("somebody holds the lock", || {
        !client.say("KEYS lockgate:demo:*").items().is_empty()
    });
    redis.stop();
    demo.signal(Signal::INT);
    let (code, said) = demo.ended();
    redis.go_on();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("cannot remove lockgate:demo:"), "{said}");
    assert!(!said.contains("nothing is left"), "{said}");
}

#[test]
fn its_server_ends_with_it_even_when_it_is_killed() {
    let _machine = Machine::shared();
    for (signal, code) in [
        (Signal::INT, Some(130)),
        (Signal::HUP, Some(130)),
        (Signal::KILL, None),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut demo = Demo::start(&LONG, directory.path());
        let server = own_server(&demo.says("started for this"));
        assert!(TcpStream::connect(server).is_ok());
        demo.signal(signal);
        assert_eq!(demo.ended().0, code);
        no_listener_at(server);
        eventually("its directory is gone", || is_empty(directory.path()));
    }
}

#[test]
fn without_a_redis_it_says_what_to_install() {
    let _machine = Machine::shared();
    let ended = run_to_its_end(&["demo"], &[("PATH", "")]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    for words in [
        "apt-get install redis-server",
        "dnf",
        "apk add",
        "brew install",
        "--upstream",
    ] {
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
}

#[test]
fn a_redis_that_is_not_there_or_refuses_is_one_clear_line() {
    let _machine = Machine::shared();
    let nowhere = format!("redis://{}", free_address());
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let mut admin = redis.client();
    assert_eq!(admin.say("AUTH hunter2"), "OK");
    assert_eq!(admin.say("ACL SETUSER ann on >secret ~app:* +@all"), "OK");
    let address = redis.address();
    let ann = format!("redis://ann:secret@{address}");
    let wrong = format!("redis://:hunter3@{address}");
    for (url, words) in [
        (&nowhere, "Connection refused"),
        (&redis.url(), "NOAUTH"),
        (&wrong, "WRONGPASS"),
        (&ann, "NOPERM"),
    ] {
        let ended = run_to_its_end(&["demo", "--upstream", url], &[]);
        assert_eq!(ended.code, Some(7), "{words}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
        assert!(!ended.stderr.contains("hunter"), "{}", ended.stderr);
    }
    // And one that lets it in, by the URL or by the environment.
    succeeds(
        &[
            &["--upstream", &format!("redis://:hunter2@{address}")],
            &SMALL[..],
        ]
        .concat(),
    );
    let by_environment = [("LOCKGATE_UPSTREAM_PASSWORD", "hunter2")];
    let upstream = redis.url();
    let flags = [&["demo", "--upstream", &upstream], &SMALL[..]].concat();
    let ended = run_to_its_end(&flags, &by_environment);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(admin.say("DBSIZE"), 0);
}

#[test]
fn arguments_have_bounds() {
    let _machine = Machine::shared();
    let wrong: [(&[&str], &str); 7] = [
        (&["--clients", "0"], "from 1 to 10000"),
        (&["--clients", "10001"], "from 1 to 10000"),
        (&["--hold", "0ms"], "from 1ms to 10s"),
        (&["--hold", "11s"], "from 1ms to 10s"),
        (&["--poll", "50"], "from 1ms to 10s"),
        (
            &["--clients", "10000", "--hold", "10ms"],
            "stopped after 1m",
        ),
        (&["--upstream", "embedded"], "no Redis to compare with"),
    ];
    for (flags, words) in wrong {
        let ended = run_to_its_end(&[&["demo"], flags].concat(), &[]);
        assert_eq!(ended.code, Some(2), "{flags:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{flags:?}: {}", ended.stderr);
    }
}

#[test]
fn it_says_when_others_are_at_work() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let upstream = redis.url();
    let done = AtomicBool::new(false);
    let report = thread::scope(|threads| {
        threads.spawn(|| {
            let mut other = redis.client();
            while !done.load(Ordering::Relaxed) {
                other.say("INCR visits");
                thread::sleep(Duration::from_millis(1));
            }
        });
        let output = run(&[&["--upstream", &upstream], &SMALL[..]].concat());
        done.store(true, Ordering::Relaxed);
        String::from_utf8(output.stdout).unwrap()
    });
    assert!(report.contains("Note: others are at work"), "{report}");
}

/// A terminal of its own, made by `script`. Returns what was seen on it.
fn on_a_terminal(command: &str, environment: &[(&str, &str)], typed: &[u8]) -> String {
    let shell = format!("trap : INT; stty cols 80; stty -g; {command}; echo code $?; stty -g");
    let mut terminal = Command::new("script");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LOCKGATE_") {
            terminal.env_remove(name);
        }
    }
    let mut terminal = terminal
        .args(["-qec", &shell, "/dev/null"])
        .env("TERM", "xterm-256color")
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script, of util-linux or bsdutils, is installed");
    let mut keyboard = terminal.stdin.take().unwrap();
    let mut screen = BufReader::new(terminal.stdout.take().unwrap());
    let mut seen = Vec::new();
    if !typed.is_empty() {
        // When the first bar moves.
        while !String::from_utf8_lossy(&seen).contains(" of 100") {
            assert!(screen.read_until(b'0', &mut seen).unwrap() > 0);
        }
        keyboard.write_all(typed).unwrap();
    }
    screen.read_to_end(&mut seen).unwrap();
    drop(keyboard);
    assert!(terminal.wait().unwrap().success());
    String::from_utf8(seen).unwrap()
}

/// The terminal is as it was, and its cursor can be seen.
#[track_caller]
fn is_restored(seen: &str) {
    let settings: Vec<_> = seen
        .lines()
        .filter(|line| line.matches(':').count() > 20)
        .collect();
    assert_eq!(settings.len(), 2, "{seen}");
    assert_eq!(settings[0].trim(), settings[1].trim());
    let (hidden, shown) = (seen.rfind("\u{1b}[?25l"), seen.rfind("\u{1b}[?25h"));
    assert!(hidden <= shown, "{seen}");
}

#[test]
fn ctrl_c_on_a_terminal_ends_it_and_its_server() {
    let _machine = Machine::shared();
    let directory = tempfile::tempdir().unwrap();
    let demo = format!("{} demo {}", env!("CARGO_BIN_EXE_lockgate"), LONG.join(" "));
    let place = directory.path().to_str().unwrap();
    let seen = on_a_terminal(&demo, &[("TMPDIR", place), ("NO_COLOR", "1")], b"\x03");
    assert!(seen.contains("code 130"), "{seen}");
    is_restored(&seen);
    for color in ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[1m", "\u{1b}[2m"] {
        assert!(!seen.contains(color), "NO_COLOR is respected: {seen}");
    }
    let line = seen.lines().find(|line| line.contains("started for this"));
    no_listener_at(own_server(line.unwrap()));
    assert!(is_empty(directory.path()));
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    /// As anybody tries it first: without arguments.
    #[test]
    fn on_a_terminal_it_draws_bars_and_is_done_in_less_than_half_a_minute() {
        let _machine = Machine::alone();
        let demo = format!("{} demo", env!("CARGO_BIN_EXE_lockgate"));
        let start = Instant::now();
        let seen = on_a_terminal(&demo, &[], b"");
        let took = start.elapsed();
        assert!(took < Duration::from_secs(30), "{took:?}");
        assert!(seen.contains("code 0"), "{seen}");
        is_restored(&seen);
        let moves = seen.matches(" of 100 ").count();
        assert!(moves > 20, "the bars moved {moves} times: {seen}");
        assert!(
            seen.contains("\u{1b}[31m█") && seen.contains("\u{1b}[32m█"),
            "{seen}"
        );
        assert!(
            seen.contains("Commands") && seen.contains("first come, first served"),
            "{seen}"
        );
    }
}
