//! The log, and the output on a terminal.

use std::{
    fs::File,
    io::Read,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{
    Lockgate, Machine, Place, RedisServer, SHORT_GRACE, eventually, run_to_its_end,
};

/// Commands of each kind; 10,000 altogether.
const EACH: usize = 2_000;

/// Every kind of outcome that clients bring about by themselves.
#[test]
fn ten_thousand_commands_and_locks_make_no_line() {
    let _machine = Machine::shared();
    let place = Place::with_redis(Machine::shared());
    let (mut owner, mut other) = (place.client(), place.client());
    let before = place.gate.log();
    assert_eq!(owner.say("LOCK held TOKEN owner"), "owner");
    for n in 0..EACH {
        let key = format!("key{}", n % 10);
        assert_eq!(other.call(&["SET", &key, "value"]), "OK");
        assert_eq!(other.call(&["LOCK", "free", "TOKEN", "t"]), "t");
        assert_eq!(other.call(&["UNLOCK", "free", "t"]), 1);
        assert!(other.call(&["TRYLOCK", "held"]).is_nil());
        let wrong = other.call(&["LOCK", "held", "WAIT", "nonsense"]);
        assert!(wrong.error().starts_with("ERR"), "{wrong:?}");
    }
    // Some wait in vain, or vanish.
    for _ in 0..10 {
        assert!(other.call(&["LOCK", "held", "WAIT", "1"]).is_nil());
        let mut gone = place.client();
        gone.send(&["LOCK", "held"]);
        place.gate.awaits_waiters("held", 1);
        drop(gone);
        place.gate.awaits_waiters("held", 0);
    }
    assert_eq!(place.gate.log(), before);
}

#[test]
fn machines_get_one_json_object_a_line_with_the_time_in_utc() {
    let _machine = Machine::shared();
    let mut gate = Lockgate::start(&[]);
    gate.terminate();
    assert_eq!(gate.exit_code(), Some(0));
    eventually("it says so", || gate.log().contains("SIGTERM"));
    for line in gate.log().lines() {
        let fields: serde_json::Value = serde_json::from_str(line).expect(line);
        for field in ["timestamp", "level", "message", "target"] {
            assert!(fields[field].is_string(), "{field}: {line}");
        }
        let time = fields["timestamp"].as_str().unwrap();
        let form = "2026-01-31T23:59:59.123Z";
        let alike = |(a, b): (u8, u8)| a == b || (a.is_ascii_digit() && b.is_ascii_digit());
        let same = time.len() == form.len() && time.bytes().zip(form.bytes()).all(alike);
        assert!(same, "{time}");
    }
}

#[test]
fn people_get_text_and_the_journal_gets_priorities_where_that_is_asked_for() {
    let _machine = Machine::shared();
    let ended = |log_format| {
        let wrong = [("LOCKGATE_LOG_FORMAT", log_format)];
        let mut gate = Lockgate::start_with(&[], &wrong);
        gate.terminate();
        assert_eq!(gate.exit_code(), Some(0));
        eventually("it says so", || gate.log().contains("SIGTERM"));
        gate.log()
    };
    let text = ended("text");
    for line in text.lines() {
        assert!(
            line.starts_with("20") && !line.contains(['{', '\x1b']),
            "{line}"
        );
        assert!(
            [" INFO ", " WARN "].iter().any(|it| line.contains(it)),
            "{line}"
        );
    }
    let journal = ended("journald");
    for line in journal.lines() {
        let (priority, text) = line.split_at(3);
        // The system may allow few files, which is a warning.
        assert!(["<6>", "<4>"].contains(&priority), "{line}");
        assert!(!text.starts_with(' ') && !text.contains("INFO"), "{line}");
    }
    for line in ["<6>listening on 127.0.0.1:", "<6>SIGTERM: shutting down"] {
        assert!(journal.lines().any(|it| it.starts_with(line)), "{journal}");
    }
    let json = ended("json");
    assert!(json.lines().all(|line| line.starts_with('{')), "{json}");
    let wrong = run_to_its_end(&[], &[("LOCKGATE_LOG_FORMAT", "xml")]);
    assert_eq!(wrong.code, Some(2));
    assert!(
        wrong.stderr.contains("auto, text, json or journald"),
        "{}",
        wrong.stderr
    );
}

/// systemd names the stream that it reads by its device and inode.
#[test]
fn the_journal_gets_priorities_by_itself_and_only_the_journal() {
    use std::os::unix::fs::MetadataExt;
    let _machine = Machine::shared();
    for is_journal in [true, false] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let stat = file.as_file().metadata().unwrap();
        let inode = stat.ino() + u64::from(!is_journal);
        let mut process = Command::new(env!("CARGO_BIN_EXE_lockgate"))
            .args(["--listen", "127.0.0.1:0"])
            .env("JOURNAL_STREAM", format!("{}:{inode}", stat.dev()))
            .stdin(Stdio::null())
            .stderr(file.reopen().unwrap())
            .spawn()
            .unwrap();
        let log = || std::fs::read_to_string(file.path()).unwrap();
        eventually("it listens", || log().contains("listening on "));
        process.kill().unwrap();
        process.wait().unwrap();
        let form = if is_journal {
            "<6>listening"
        } else {
            "{\"timestamp\""
        };
        assert!(
            log().lines().any(|line| line.starts_with(form)),
            "{}",
            log()
        );
    }
}

/// The program on a terminal, and what is to be seen there.
struct Terminal {
    process: Child,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_lockgate"))
            .args(["--listen", "127.0.0.1:0"])
            .args(flags)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(theirs)
            .spawn()
            .expect("the program starts");
        let seen = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&seen);
        let mut ours = File::from(ours);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = ours.read(&mut bytes) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { process, seen }
    }

    /// What is to be seen once this is.
    #[track_caller]
    fn shows(&self, words: &str) -> String {
        let seen = || {
            self.seen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
        };
        eventually(words, || seen().contains(words));
        seen()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn people_see_where_it_listens_and_how_to_try_it_and_the_hint_works() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let upstream = format!("redis://:hunter2@{}", redis.address());
    let terminal = Terminal::start(&["--upstream", &upstream], &SHORT_GRACE);
    let seen = terminal.shows("Ctrl-C");
    for words in [
        format!("lockgate {}", env!("CARGO_PKG_VERSION")),
        "listens on  127.0.0.1:".to_owned(),
        format!("upstream    redis://{}", redis.address()),
    ] {
        assert!(seen.contains(&words), "{words}: {seen}");
    }
    assert!(!seen.contains("hunter2"), "{seen}");
    assert!(!seen.contains("{\""), "no JSON: {seen}");
    assert!(seen.contains("\x1b["), "coloured: {seen}");

    let plain = Terminal::start(&[], &[("NO_COLOR", "1")]);
    let seen = plain.shows("Ctrl-C");
    assert!(!seen.contains('\x1b'), "{seen}");
    let hint = seen
        .lines()
        .find_map(|line| line.split_once("try it"))
        .unwrap()
        .1;
    let words: Vec<_> = hint.split_whitespace().collect();
    assert_eq!(words[0], "redis-cli");
    let said = Command::new("redis-cli")
        .args(&words[1..])
        .output()
        .unwrap();
    let token = String::from_utf8_lossy(&said.stdout);
    assert_eq!(token.trim().len(), 36, "a token: {said:?}");
}

#[test]
fn machines_see_no_banner() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    assert_eq!(gate.client().say("PING"), "PONG");
    assert!(!gate.log().contains("try it"), "{}", gate.log());
}
