//! The program under test, as an operator starts it.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rustix::process::Signal;

use super::{Client, RedisServer, SOON, eventually, signal, stop};

/// What the program logs, as text or within JSON, when it is ready for clients.
const LISTENING: &str = "listening on ";
const LISTENING_TLS: &str = "listening with TLS on ";
/// The same for its admin address.
const ADMIN: &str = "operators find lockgate at http://";

/// Of what it logged a test that fails shows the latest lines, so many.
const MOST_LOG_LINES: usize = 60;

/// A short grace, and what makes it possible: an instance notices soon that Redis is gone.
pub(crate) const SHORT_GRACE: [(&str, &str); 4] = [
    ("LOCKGATE_UPSTREAM_CONNECT_TIMEOUT", "300ms"),
    ("LOCKGATE_UPSTREAM_TIMEOUT", "500ms"),
    ("LOCKGATE_UPSTREAM_PING", "100ms"),
    ("LOCKGATE_WRITE_BACK_GRACE", "1300ms"),
];

pub(crate) struct Lockgate {
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    /// How many files it may open, where that is not what this process may.
    files: Option<usize>,
    process: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Lockgate {
    /// Starts one with these flags, on a free port, and returns when it listens.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, &[])
    }

    /// The same with variables of the environment.
    pub(crate) fn start_with(flags: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_at("127.0.0.1:0", flags, environment)
    }

    /// The same where the system allows it so many open files, of which half are on demand only.
    pub(crate) fn start_with_files(
        files: usize,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_any("127.0.0.1:0", Some(files), flags, environment)
    }

    /// The same on this address, to be restarted there: one of `free_address`, since another free
    /// port may be lent to somebody meanwhile.
    pub(crate) fn start_at(
        address: impl ToString,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_any(address, None, flags, environment)
    }

    fn start_any(
        address: impl ToString,
        files: Option<usize>,
        flags: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        // Sessions of tests are short.
        let sessions = [("LOCKGATE_LOCK_MIN_SESSION_LEASE", "10ms")];
        let environment: Vec<_> = sessions.iter().chain(environment).map(owned).collect();
        let log = Arc::default();
        let (process, address) = launch(&address.to_string(), files, &flags, &environment, &log);
        Self {
            flags,
            environment,
            files,
            process,
            address,
            log,
        }
    }

    /// Starts one in front of this Redis, with the settings that everybody has. It grants locks when this
    /// returns.
    pub(crate) fn in_front_of(redis: &RedisServer) -> Self {
        let gate = Self::start_with(&["--upstream", &redis.url()], &[]);
        let mut first = gate.client();
        assert_eq!(first.say("LOCK first TOKEN f"), "f");
        assert_eq!(first.say("UNLOCK first f"), 1);
        gate
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Where it listens for TLS.
    #[track_caller]
    pub(crate) fn tls_address(&self) -> SocketAddr {
        let mut found = None;
        eventually("it says where it listens for TLS", || {
            let log = self.log();
            found = log
                .lines()
                .rev()
                .find_map(|line| after(line, LISTENING_TLS));
            found.is_some()
        });
        found.expect("it was found")
    }

    /// Where operators look in, since its latest start.
    #[track_caller]
    pub(crate) fn admin_address(&self) -> SocketAddr {
        let mut found = None;
        eventually("it says where operators look in", || {
            let log = self.log();
            found = log.lines().rev().find_map(|line| after(line, ADMIN));
            found.is_some()
        });
        found.expect("it was found")
    }

    /// Has it read its configuration and certificates again, as an operator does; returns when it has done so.
    pub(crate) fn reload(&self) {
        let done = || {
            let log = self.log();
            let ends = [
                "the configuration was read again",
                "everything stays as it was",
            ];
            ends.map(|end| log.matches(end).count())
                .iter()
                .sum::<usize>()
        };
        let before = done();
        self.hang_up();
        eventually("it reads its configuration again", || done() > before);
    }

    /// `count` clients.
    pub(crate) fn clients(&self, count: usize) -> Vec<Client> {
        (0..count).map(|_| self.client()).collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What it logged so far.
    pub(crate) fn log(&self) -> String {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The lines with this message that it logged so far, by their fields.
    pub(crate) fn logged(&self, message: &str) -> Vec<serde_json::Value> {
        let log = self.log();
        let lines = log.lines().map(serde_json::from_str::<serde_json::Value>);
        lines
            .filter_map(Result::ok)
            .filter(|line| line["message"] == message)
            .collect()
    }

    /// How much memory of the machine the process has now.
    pub(crate) fn rss_bytes(&self) -> u64 {
        rss_kib(self.pid()).expect("/proc or ps tells the memory of a process") * 1024
    }

    /// The most memory of the machine that the process had at a time, since it started or since
    /// [`Lockgate::forget_peak`].
    pub(crate) fn peak_bytes(&self) -> u64 {
        kib_of(self.pid(), "VmHWM:").expect("/proc tells the memory of a process") * 1024
    }

    /// The peak is what it has now.
    pub(crate) fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5")
            .expect("/proc forgets the peak of a process");
    }

    /// How long it has used a core so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))
            .expect("/proc tells the time of a process");
        // Behind the name, which may hold anything, in parentheses.
        let (_, fields) = stat.rsplit_once(") ").expect("a name");
        let mut ticks = fields.split(' ').skip(11).map(|ticks| ticks.parse::<u64>());
        let mut next = || ticks.next().and_then(Result::ok).expect("a number");
        let (user, system) = (next(), next());
        Duration::from_millis((user + system) * 1_000 / rustix::param::clock_ticks_per_second())
    }

    /// How many wait for this lock here now.
    pub(crate) fn waiters(&self, key: &str) -> i64 {
        self.client()
            .call(&["LOCKINFO", key])
            .field("waiters")
            .integer()
    }

    /// Returns when so many wait for this lock here.
    #[track_caller]
    pub(crate) fn awaits_waiters(&self, key: &str, count: i64) {
        let mut observer = self.client();
        eventually(&format!("{count} waiters for {key}"), || {
            observer.call(&["LOCKINFO", key]).field("waiters").integer() == count
        });
    }

    /// What it hears when it is to read its configuration again, or loses its terminal.
    pub(crate) fn hang_up(&self) {
        signal(&self.process, Signal::HUP);
    }

    /// Asks it to end, as an operator does.
    pub(crate) fn terminate(&self) {
        signal(&self.process, Signal::TERM);
    }

    /// Ends it without a word, as a crash would.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again as it was, after its end, on the same address; returns when it listens.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let address = self.address.to_string();
        (self.process, _) = launch(
            &address,
            self.files,
            &self.flags,
            &self.environment,
            &self.log,
        );
    }

    /// Stops it where it is: connections stay open and nothing is answered, until
    /// [`Lockgate::go_on`].
    pub(crate) fn stop(&self) {
        stop(&self.process);
    }

    pub(crate) fn go_on(&self) {
        signal(&self.process, Signal::CONT);
    }

    /// Waits for its end; returns the exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the program ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Lockgate {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            // The harness shows this beside the failure, which should not drown in it.
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let (hidden, shown) = lines.split_at(lines.len().saturating_sub(MOST_LOG_LINES));
            println!("lockgate at {} logged", self.address);
            println!("({} lines before)\n{}", hidden.len(), shown.join("\n"));
            return;
        }
        // A session that panics ends one connection, which a test may take for what it waited for.
        let log = self.log();
        assert!(!log.contains("panicked at"), "lockgate panicked:\n{log}");
    }
}

/// How a program that was not to go on ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Starts the program and waits for its end.
pub(crate) fn run_to_its_end(flags: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut process = program()
        .args(flags)
        .envs(environment.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut status = None;
    eventually("the program ends by itself", || {
        status = process.try_wait().unwrap();
        status.is_some()
    });
    let text = |stream: Option<&mut dyn Read>| {
        let mut text = String::new();
        let _ = stream.expect("piped").read_to_string(&mut text);
        text
    };
    Ended {
        code: status.and_then(|status| status.code()),
        stdout: text(
            process
                .stdout
                .as_mut()
                .map(|stream| stream as &mut dyn Read),
        ),
        stderr: text(
            process
                .stderr
                .as_mut()
                .map(|stream| stream as &mut dyn Read),
        ),
    }
}

/// Starts one, and returns it when it listens, with its address (which means nothing where it is told
/// `off`); it logs to `log`.
fn launch(
    address: &str,
    files: Option<usize>,
    flags: &[String],
    environment: &[(String, String)],
    log: &Arc<Mutex<String>>,
) -> (Child, SocketAddr) {
    let mut process = match files {
        None => program(),
        Some(files) => program_with_files(files),
    };
    let mut process = process
        .args(["--listen", address])
        .args(flags)
        .envs(environment.iter().cloned())
        .spawn()
        .expect("the program starts");
    let nowhere = address == "off";
    let (found, address) = mpsc::channel();
    let lines = BufReader::new(process.stderr.take().expect("piped")).lines();
    let kept = Arc::clone(log);
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let address = match nowhere {
                false => after(&line, LISTENING),
                true => line.contains("listening ").then(|| ([0; 4], 0).into()),
            };
            let mut log = kept.lock().unwrap_or_else(PoisonError::into_inner);
            log.push_str(&line);
            log.push('\n');
            drop(log);
            // Not before: a test may count the lines from then on.
            if let Some(address) = address {
                let _ = found.send(address);
            }
        }
    });
    match address.recv_timeout(SOON) {
        Ok(address) => (process, address),
        Err(_) => {
            let _ = process.kill();
            let _ = process.wait();
            let log = log.lock().unwrap_or_else(PoisonError::into_inner);
            panic!("the program did not say \"{LISTENING}ADDRESS\", but:\n{log}")
        }
    }
}

/// The program, told nothing by the environment of whoever runs the tests.
pub(crate) fn program() -> Command {
    without_our_environment(Command::new(env!("CARGO_BIN_EXE_lockgate")))
}

/// The same where the system allows it so many open files, of which half are on demand only.
fn program_with_files(files: usize) -> Command {
    let mut shell = Command::new("sh");
    let script = format!(
        "ulimit -Sn {} && ulimit -Hn {files} && exec \"$0\" \"$@\"",
        files / 2
    );
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_lockgate")]);
    without_our_environment(shell)
}

fn without_our_environment(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LOCKGATE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The address behind these words, in a line such as `… listening on 127.0.0.1:6380"}`.
fn after(line: &str, words: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(words)?;
    let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c)));
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

fn rss_kib(pid: u32) -> Option<u64> {
    if let Some(kib) = kib_of(pid, "VmRSS:") {
        return Some(kib);
    }
    let ps = Command::new("ps")
        .args(["-o", "rss=", "-p", &pid.to_string()])
        .output()
        .ok()?;
    String::from_utf8_lossy(&ps.stdout).trim().parse().ok()
}

/// A field of what Linux tells of a process.
fn kib_of(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
