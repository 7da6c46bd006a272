//! A redis-server of one's own, on a free port, without persistence; gone with its value.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use lockgate::{
    store::redis::RedisSettings,
    transport::endpoint::{Endpoint, Place},
};
use redis::{FromRedisValue, RedisResult, Value, aio::MultiplexedConnection};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) struct Server {
    port: u16,
    child: Child,
    /// Its own, since a test has it save its data. Removed after the process has ended.
    _directory: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more arguments, as `&["--rename-command", "HELLO", ""]`.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        // Somebody else may take the port between the look and the start.
        (0..20)
            .find_map(|_| Self::try_start(free_port(), arguments))
            .expect("redis-server starts")
    }

    pub(crate) fn start_on(port: u16, arguments: &[&str]) -> Self {
        Self::try_start(port, arguments).expect("redis-server starts on that port")
    }

    fn try_start(port: u16, arguments: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .args(["--daemonize", "no", "--loglevel", "notice", "--dir"])
            .arg(directory.path())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let mut log = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = log
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains("Ready to accept connections"));
        if !ready {
            let _ = child.wait();
            return None;
        }
        // Or it would block once the pipe is full.
        std::thread::spawn(move || log.for_each(drop));
        Some(Self {
            port,
            child,
            _directory: directory,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// How the store under test finds it. The ping is left out by making it rare.
    pub(crate) fn settings(&self) -> RedisSettings {
        settings(self.port)
    }

    /// Another client, that knows nothing of gates.
    pub(crate) async fn client(&self) -> Client {
        self.client_in(0).await
    }

    pub(crate) async fn client_in(&self, database: u32) -> Client {
        let client =
            redis::Client::open(format!("redis://127.0.0.1:{}/{database}", self.port)).unwrap();
        let config =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(20)));
        Client(
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .unwrap(),
        )
    }

    /// Stops the process where it stands, as a machine that hangs does.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

pub(crate) fn settings(port: u16) -> RedisSettings {
    RedisSettings {
        endpoint: Arc::new(Endpoint::new(
            Place::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            },
            None,
        )),
        own: None,
        connect_timeout: Duration::from_secs(1),
        timeout: Duration::from_secs(5),
        ping: Duration::from_secs(600),
        grace: None,
        key_prefix: Bytes::new(),
        replicas_timeout: Duration::from_millis(100),
        connections: 1_024,
        idle: Duration::from_secs(60),
    }
}

pub(crate) struct Client(MultiplexedConnection);

impl Client {
    /// Sends a command given as words.
    pub(crate) async fn say<T: FromRedisValue>(&mut self, words: &str) -> T {
        let words: Vec<&str> = words.split_whitespace().collect();
        redis::cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut self.0)
            .await
            .unwrap()
    }

    /// Sends a command with arguments of any bytes.
    pub(crate) async fn say_bytes<T: FromRedisValue>(
        &mut self,
        name: &str,
        arguments: &[&[u8]],
    ) -> T {
        redis::cmd(name)
            .arg(arguments)
            .query_async(&mut self.0)
            .await
            .unwrap()
    }

    pub(crate) async fn try_say_bytes(
        &mut self,
        name: &str,
        arguments: &[&[u8]],
    ) -> RedisResult<Value> {
        redis::cmd(name)
            .arg(arguments)
            .query_async(&mut self.0)
            .await
    }

    /// Closes every connection but this one, as a network that breaks does.
    pub(crate) async fn kill_others(&mut self) {
        let () = self.say("CLIENT KILL TYPE normal SKIPME yes").await;
    }

    /// Closes the connections of one database.
    pub(crate) async fn kill_one_in(&mut self, database: u32) {
        let list: String = self.say("CLIENT LIST").await;
        let there = format!(" db={database} ");
        let client = list
            .lines()
            .find(|line| line.contains(&there))
            .expect("somebody is there");
        let id = client
            .strip_prefix("id=")
            .and_then(|rest| rest.split(' ').next())
            .unwrap();
        let () = self.say(&format!("CLIENT KILL ID {id}")).await;
    }

    /// Clients that wait for Redis, by its own count.
    pub(crate) async fn blocked_clients(&mut self) -> u64 {
        let info: String = self.say("INFO clients").await;
        let count = info
            .lines()
            .find_map(|line| line.strip_prefix("blocked_clients:"))
            .unwrap();
        count.trim().parse().unwrap()
    }
}
