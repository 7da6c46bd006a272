//! A Redis server of one test: on a free port, in a directory of its own, gone with its value.

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    thread,
};

use super::Client;

/// How often another port is tried where somebody else took the free one first.
const TRIES: usize = 5;

pub(crate) struct RedisServer {
    process: Child,
    address: SocketAddr,
    /// Removed when dropped, after the process has ended.
    _directory: tempfile::TempDir,
}

impl RedisServer {
    /// Starts one with these arguments beside those that keep it apart from every other, and
    /// returns when it says that it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        (0..TRIES)
            .find_map(|_| Self::try_start(arguments))
            .expect("redis-server (or valkey-server) starts; tests/run installs it")
    }

    fn try_start(arguments: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let address = free_address();
        let mut process = ["redis-server", "valkey-server"]
            .into_iter()
            .find_map(|program| {
                Command::new(program)
                    .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
                    .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                    .arg("--dir")
                    .arg(directory.path())
                    .args(arguments)
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
            return Some(Self {
                process,
                address,
                _directory: directory,
            });
        }
        let _ = process.wait();
        None
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

    /// Ends it without a word, as a crash would; its data is gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address that nobody listened on a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}
