//! The load generator of `benches/compare/run`: compares builds of lockgate in front of one Redis, in turns.
//!
//! Each argument is one way to Redis: `NAME=PROGRAM [VARIABLE=VALUE ...]`. A way's program listens where the generator
//! tells it to, and runs until the end. The ways take turns of [`SLICE`]; a round is one turn of each, and the next round goes in
//! the opposite order. For each load the generator prints the medians over the rounds: cycles (one `LOCK` and one
//! `UNLOCK`) a second, the CPU time of lockgate and of Redis a cycle, the time from a `LOCK` to its grant, and the
//! median of the ratio to the first way within each round.
//!
//! The generator is one thread that polls nonblocking sockets, so that it takes as little of the machine as it can.

// A benchmark may panic; clippy knows that of tests only.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    collections::VecDeque,
    env, fs,
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use lockgate::resp::reply::plain_reply;
use rustix::event::{PollFd, PollFlags, poll};

/// Clients, or tasks of one client.
const CLIENTS: usize = 64;

/// The length of a turn, unless `SLICE_MS` says otherwise.
const SLICE: Duration = Duration::from_millis(700);

/// The first rounds are not counted.
const WARM_UP: usize = 1;

/// Longest wait for a server to start, or for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// A load: its name, its connections, the tasks on each, and whether all of them want one lock.
const LOADS: [(&str, usize, usize, bool); 3] = [
    ("own", CLIENTS, 1, false),
    ("one", CLIENTS, 1, true),
    ("shared", 1, CLIENTS, false),
];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|it| it != "--bench").collect();
    if arguments.is_empty() {
        return println!("NAME=PROGRAM [VARIABLE=VALUE ...] for each way: see benches/compare/run");
    }
    let rounds = number("ROUNDS").unwrap_or(9);
    let slice = number("SLICE_MS").map_or(SLICE, |ms| Duration::from_millis(ms as u64));
    let loads = env::var("LOADS").unwrap_or_default();
    let redis = Server::redis();
    let ways: Vec<Way> = arguments.iter().map(|it| Way::start(it, &redis)).collect();
    println!(
        "| load | way | cycles/s | lockgate µs | Redis µs | p50 ms | p99 ms | cycles ÷ | lockgate ÷ | MiB |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for load in LOADS {
        if loads.is_empty() || loads.split(' ').any(|it| it == load.0) {
            compare(load, &ways, &redis, WARM_UP + rounds, slice);
        }
    }
}

fn number(variable: &str) -> Option<usize> {
    env::var(variable).ok()?.parse().ok()
}

/// A program under test.
struct Way {
    name: String,
    server: Server,
}

impl Way {
    fn start(argument: &str, redis: &Server) -> Self {
        let (name, command) = argument.split_once('=').expect("NAME=PROGRAM");
        let mut words = command.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        let port = free_port();
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--upstream", &format!("redis://127.0.0.1:{}", redis.port)]);
        command.env("LOCKGATE_LOG", "error");
        command.envs(words.filter_map(|word| word.split_once('=')));
        Self {
            name: name.to_owned(),
            server: Server::start(&mut command, port),
        }
    }
}

/// A process that listens.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn redis() -> Self {
        let port = free_port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--daemonize", "no"]);
        Self::start(command.stdout(Stdio::null()), port)
    }

    fn start(command: &mut Command, port: u16) -> Self {
        let child = command.spawn().expect("it starts");
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "{command:?} does not listen");
            sleep(Duration::from_millis(10));
        }
        Self { child, port }
    }

    /// Returns the CPU time of all its threads, in nanoseconds.
    fn cpu(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it runs");
        let of = |path: std::path::PathBuf| {
            let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            let first = text.split(' ').next().and_then(|it| it.parse::<u64>().ok());
            first.unwrap_or(0)
        };
        tasks.flatten().map(|task| of(task.path())).sum()
    }

    /// Returns the resident memory, in MiB.
    fn resident(&self) -> f64 {
        let status = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(status).unwrap_or_default();
        let line = text.lines().find_map(|it| it.strip_prefix("VmRSS:"));
        let kib = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(0.0) / 1024.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has one").port()
}

/// The measurements of one turn, or the medians of several.
#[derive(Clone, Copy)]
struct Turn {
    per_second: f64,
    lockgate: f64,
    redis: f64,
    p50: f64,
    p99: f64,
}

fn compare(
    (name, connections, tasks, one_lock): (&str, usize, usize, bool),
    ways: &[Way],
    redis: &Server,
    rounds: usize,
    slice: Duration,
) {
    let connect = |way: &Way| {
        let key = |at: usize| match one_lock {
            true => format!("bench:{}", way.name),
            false => format!("bench:{}:{at}", way.name),
        };
        let connect = |at: usize| {
            let keys = (0..tasks).map(|task| key(at * tasks + task)).collect();
            Connection::new(way.server.port, at, keys)
        };
        (0..connections).map(connect).collect::<Vec<_>>()
    };
    let mut clients: Vec<Vec<Connection>> = ways.iter().map(connect).collect();
    let mut turns = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..ways.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for way in order {
            let turn = turn(&mut clients[way], &ways[way].server, redis, slice);
            if round >= WARM_UP {
                turns[way].push(turn);
            }
        }
    }
    for (at, way) in ways.iter().enumerate() {
        let of = |read: fn(&Turn) -> f64| median(turns[at].iter().map(read).collect());
        let ratio = |read: fn(&Turn) -> f64| {
            let pairs = turns[at].iter().zip(&turns[0]);
            median(pairs.map(|(its, first)| read(its) / read(first)).collect())
        };
        println!(
            "| {name} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {:.3} | {:.3} | {:.1} |",
            way.name,
            of(|it| it.per_second),
            of(|it| it.lockgate),
            of(|it| it.redis),
            of(|it| it.p50),
            of(|it| it.p99),
            ratio(|it| it.per_second),
            ratio(|it| it.lockgate),
            way.server.resident(),
        );
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the load for one turn, until every lock is released again.
fn turn(clients: &mut [Connection], gate: &Server, redis: &Server, slice: Duration) -> Turn {
    let (gate_before, redis_before) = (gate.cpu(), redis.cpu());
    let began = Instant::now();
    let until = began + slice;
    for client in &mut *clients {
        client.begin();
    }
    let mut running = true;
    loop {
        let mut polled: Vec<_> = clients
            .iter()
            .map(|client| PollFd::new(&client.stream, PollFlags::IN))
            .collect();
        poll(&mut polled, None).expect("poll works");
        let ready: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        running = running && Instant::now() < until;
        let mut waiting = 0;
        for (client, is_ready) in clients.iter_mut().zip(ready) {
            if is_ready {
                client.read(running);
            }
            waiting += client.asked.len();
        }
        if waiting == 0 {
            break;
        }
    }
    let took = began.elapsed().as_secs_f64();
    let cycles: u64 = clients
        .iter_mut()
        .map(|it| std::mem::take(&mut it.cycles))
        .sum();
    let mut waits: Vec<f64> = clients
        .iter_mut()
        .flat_map(|it| it.waits.drain(..))
        .collect();
    waits.sort_by(f64::total_cmp);
    let part = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize];
    let micros = |after: u64, before: u64| (after - before) as f64 / 1_000.0 / cycles as f64;
    Turn {
        per_second: cycles as f64 / took,
        lockgate: micros(gate.cpu(), gate_before),
        redis: micros(redis.cpu(), redis_before),
        p50: part(0.5),
        p99: part(0.99),
    }
}

/// One connection, with the tasks that share it.
struct Connection {
    stream: TcpStream,
    /// The `LOCK` and the `UNLOCK` of each task.
    commands: Vec<[Vec<u8>; 2]>,
    /// The commands without a reply: the task, whether it is a `LOCK`, and when it was sent.
    asked: VecDeque<(usize, bool, Instant)>,
    input: Vec<u8>,
    output: Vec<u8>,
    cycles: u64,
    /// The time from each `LOCK` to its grant, in milliseconds.
    waits: Vec<f64>,
}

impl Connection {
    fn new(port: u16, number: usize, keys: Vec<String>) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_nodelay(true).expect("it is open");
        stream.set_nonblocking(true).expect("it is open");
        let commands = keys.into_iter().enumerate().map(|(task, key)| {
            let token = format!("token-{number:08}-{task:08}-of-36-bytes-");
            [
                pack(&["LOCK", &key, "TOKEN", &token, "PX", "30000"]),
                pack(&["UNLOCK", &key, &token]),
            ]
        });
        Self {
            stream,
            commands: commands.collect(),
            asked: VecDeque::new(),
            input: Vec::new(),
            output: Vec::new(),
            cycles: 0,
            waits: Vec::new(),
        }
    }

    fn begin(&mut self) {
        for task in 0..self.commands.len() {
            self.ask(task, true);
        }
        self.write();
    }

    fn ask(&mut self, task: usize, locks: bool) {
        self.output
            .extend_from_slice(&self.commands[task][usize::from(!locks)]);
        self.asked.push_back((task, locks, Instant::now()));
    }

    fn write(&mut self) {
        let mut left = &self.output[..];
        while !left.is_empty() {
            match self.stream.write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        self.output.clear();
    }

    /// Reads replies, and sends what follows from them: after a `LOCK` its `UNLOCK`, and while `running` another `LOCK`.
    fn read(&mut self, running: bool) {
        let mut space = [0; 16 * 1024];
        match self.stream.read(&mut space) {
            Ok(0) => panic!("the connection was closed"),
            Ok(bytes) => self.input.extend_from_slice(&space[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
        let mut at = 0;
        while let Some(length) = plain_reply(&self.input[at..]) {
            let reply = &self.input[at..at + length];
            at += length;
            let (task, locks, since) = self.asked.pop_front().expect("a reply to a command");
            match locks {
                true => {
                    assert_eq!(reply[0], b'$', "{}", String::from_utf8_lossy(reply));
                    self.waits.push(since.elapsed().as_secs_f64() * 1_000.0);
                    self.ask(task, false);
                }
                false => {
                    assert_eq!(reply, b":1\r\n", "{}", String::from_utf8_lossy(reply));
                    self.cycles += 1;
                    if running {
                        self.ask(task, true);
                    }
                }
            }
        }
        assert_ne!(
            self.input.get(at),
            Some(&b'-'),
            "{}",
            String::from_utf8_lossy(&self.input[at..])
        );
        self.input.drain(..at);
        self.write();
    }
}

fn pack(words: &[&str]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    command.into_bytes()
}
