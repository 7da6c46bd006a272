//! A Redis server of one test: on a free port, in a directory of its own, gone with its value. It can
//! be killed, stopped, and started again where it was.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader},
    iter,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use rustix::process::Signal;

use super::{Client, Value, eventually, signal, stop};

/// How often another port is tried where somebody else took the free one first.
const TRIES: usize = 5;

/// Ports that the system gives to nobody: those from 32768 on it lends to whoever connects
/// somewhere, and a server that is down for a moment would find its own taken, even by somebody
/// who tried to reach it.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

pub(crate) struct RedisServer {
    /// What it was started with, beside what keeps it apart from every other.
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: Child,
    address: SocketAddr,
    /// Removed when dropped, after the process has ended.
    directory: tempfile::TempDir,
}

impl RedisServer {
    /// Starts one with these arguments beside those that keep it apart from every other, and
    /// returns when it says that it is ready. A lockgate has used it before.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// The same, but no lockgate has used it: the first one grants nothing for its grace.
    pub(crate) fn start_unused(arguments: &[&str]) -> Self {
        let redis = Self::start(arguments);
        redis.client().say("DEL lockgate:grace");
        redis
    }

    /// As lockgate leaves a Redis that it has used: the grace was kept there once.
    fn was_used(&self) {
        let mut client = self.client();
        // Where it wants a password, the first lockgate keeps the grace.
        if let Value::Bulk(info) = client.say("INFO") {
            let info = String::from_utf8_lossy(&info).into_owned();
            let field = |name: &str| {
                let lines = info.lines();
                lines
                    .filter_map(|line| line.strip_prefix(name))
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            };
            let mark = [field("run_id:"), field("master_replid:"), "0".to_owned()].join(" ");
            client.call(&["SET", "lockgate:grace", &mark]);
            client.say("CONFIG RESETSTAT");
        }
    }

    /// The same with variables of the environment.
    pub(crate) fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|&a| a.to_owned()).collect();
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let environment: Vec<_> = environment.iter().map(owned).collect();
        let redis = (0..TRIES)
            .find_map(|_| {
                let (directory, address) = (tempfile::tempdir().unwrap(), free_address());
                let process = launch(address, directory.path(), &arguments, &environment)?;
                Some(Self {
                    arguments: arguments.clone(),
                    environment: environment.clone(),
                    process,
                    address,
                    directory,
                })
            })
            .expect("redis-server (or valkey-server) starts; tests/run installs it");
        redis.was_used();
        redis
    }

    /// Starts one that writes everything to its disk before it answers, so that it remembers
    /// everything after [`RedisServer::kill`] and [`RedisServer::restart`].
    pub(crate) fn start_with_aof() -> Self {
        Self::start(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What lockgate's `--upstream` takes.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// A client of this Redis, past any lockgate.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// What all its connections wait to be sent, in bytes.
    pub(crate) fn output_bytes(&self) -> u64 {
        let clients = self.client().say("CLIENT LIST").text();
        let fields = clients.split_ascii_whitespace();
        fields
            .filter_map(|field| field.strip_prefix("omem=")?.parse::<u64>().ok())
            .sum()
    }

    /// Ends it without a word, as a crash would. What is not on its disk is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again, after [`RedisServer::kill`], where it was and with what its disk holds;
    /// returns when it says that it is ready.
    pub(crate) fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// The same with these arguments more, this time.
    pub(crate) fn restart_with(&mut self, more: &[&str]) {
        self.kill();
        let more = more.iter().map(|&argument| argument.to_owned());
        let arguments: Vec<_> = self.arguments.iter().cloned().chain(more).collect();
        eventually("the server starts again", || {
            let directory = self.directory.path();
            match launch(self.address, directory, &arguments, &self.environment) {
                Some(process) => self.process = process,
                None => return false,
            }
            true
        });
    }

    /// Loses its disk, after [`RedisServer::kill`].
    pub(crate) fn forget(&mut self) {
        for entry in fs::read_dir(self.directory.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// Stops it where it is: connections stay open and nothing is answered, until
    /// [`RedisServer::go_on`].
    pub(crate) fn stop(&self) {
        stop(&self.process);
    }

    pub(crate) fn go_on(&self) {
        signal(&self.process, Signal::CONT);
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts one, and returns when it says that it is ready; nothing where it ends instead.
fn launch(
    address: SocketAddr,
    directory: &Path,
    arguments: &[String],
    environment: &[(String, String)],
) -> Option<Child> {
    let mut process = ["redis-server", "valkey-server"]
        .into_iter()
        .find_map(|program| {
            Command::new(program)
                .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
                .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                .arg("--dir")
                .arg(directory)
                .args(arguments)
                .envs(environment.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .ok()
        })?;
    let mut lines = BufReader::new(process.stdout.take()?)
        .lines()
        .map_while(Result::ok);
    if lines.any(|line| line.to_lowercase().contains("ready to accept connections")) {
        // Redis would stop at a full pipe.
        thread::spawn(move || lines.for_each(drop));
        return Some(process);
    }
    let _ = process.wait();
    None
}

/// An address that nobody listened on a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    let anything = || RandomState::new().hash_one(());
    iter::repeat_with(|| PORTS.start + (anything() % PORTS.len() as u64) as u16)
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .find(|&address| TcpListener::bind(address).is_ok())
        .unwrap()
}
