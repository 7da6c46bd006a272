//! Nine thousand clients are connected, and a hundred of them work: those are served as fast as if they
//! were alone. And what an idle client costs.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::{Builder, Runtime},
    task::JoinSet,
};

use crate::support::{Lockgate, Machine, RedisServer, allow_many_files, median, report};

const IDLE: usize = 9_000;
const WORKING: usize = 100;

/// What a client that never sent anything may cost lockgate.
const MOST_BYTES_WHEN_SILENT: u64 = 4 * 1024;

/// What one may cost that sent a command once, and so has a connection to Redis.
const MOST_BYTES_WHEN_USED: u64 = 8 * 1024;

/// The latency among idle clients, in latencies without.
const MOST_RATIO: f64 = 1.10;

/// How long the clients work before it is the others' turn, and how many turns there are.
const TURN: Duration = Duration::from_millis(200);
const TURNS: usize = 7;

/// How often all is measured again where the machine was busy with something else.
const TRIES: usize = 10;

const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
const NIL: &[u8] = b"$-1\r\n";

/// Half of them never send anything; all others send a command once, all at a time.
fn come(gate: &Lockgate) -> Vec<TcpStream> {
    let connect = |_| TcpStream::connect(gate.address()).unwrap();
    let before = gate.rss_bytes();
    let silent: Vec<TcpStream> = (0..IDLE / 2).map(connect).collect();
    // Accepted in the order in which they came: this one is behind them all.
    ask(&mut connect(0));
    let with_silent = gate.rss_bytes();
    let mut used: Vec<TcpStream> = (0..IDLE / 2).map(connect).collect();
    used.iter_mut()
        .for_each(|client| client.write_all(GET).unwrap());
    used.iter_mut().for_each(hear_nil);
    let with_all = gate.rss_bytes();
    let each = |bytes: u64| bytes / (IDLE / 2) as u64;
    let (silent_bytes, used_bytes) = (
        each(with_silent.saturating_sub(before)),
        each(with_all.saturating_sub(with_silent)),
    );
    report(&format!(
        "an idle client costs {silent_bytes} bytes; {used_bytes} when it once sent a command to Redis"
    ));
    assert!(
        silent_bytes < MOST_BYTES_WHEN_SILENT,
        "{silent_bytes} bytes"
    );
    assert!(used_bytes < MOST_BYTES_WHEN_USED, "{used_bytes} bytes");
    silent.into_iter().chain(used).collect()
}

fn ask(client: &mut TcpStream) {
    client.write_all(GET).unwrap();
    hear_nil(client);
}

fn hear_nil(client: &mut TcpStream) {
    client.set_read_timeout(Some(crate::support::SOON)).unwrap();
    let mut reply = [0; NIL.len()];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(reply, NIL);
}

/// Clients that ask as fast as they are answered.
struct Workers(Vec<tokio::net::TcpStream>);

impl Workers {
    fn connect(runtime: &Runtime, gate: &Lockgate) -> Self {
        let connect = |_| {
            let stream = TcpStream::connect(gate.address()).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_nonblocking(true).unwrap();
            let _runtime = runtime.enter();
            tokio::net::TcpStream::from_std(stream).unwrap()
        };
        Self((0..WORKING).map(connect).collect())
    }

    /// All of them at a time, for one turn; returns the median of how long a reply took.
    fn work(&mut self, runtime: &Runtime) -> Duration {
        let end = Instant::now() + TURN;
        let mut working: JoinSet<_> = JoinSet::new();
        for mut stream in self.0.drain(..) {
            let work = async move {
                let mut times = Vec::new();
                let mut reply = [0; NIL.len()];
                while Instant::now() < end {
                    let sent = Instant::now();
                    stream.write_all(GET).await.unwrap();
                    stream.read_exact(&mut reply).await.unwrap();
                    times.push(sent.elapsed());
                }
                (stream, times)
            };
            working.spawn_on(work, runtime.handle());
        }
        let done = runtime.block_on(working.join_all());
        let (streams, times): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        self.0 = streams;
        median(times.into_iter().flatten().collect())
    }
}

/// They need the machine for themselves, and take long: `tests/soak` runs them.
mod soak {
    use super::*;

    #[test]
    fn nine_thousand_idle_clients_slow_nobody_down() {
        let _machine = Machine::alone();
        let files = allow_many_files();
        assert!(
            files > 2 * (IDLE + WORKING) as u64 + 100,
            "too few open files are allowed: {files}"
        );
        let redis = || RedisServer::start(&["--maxclients", "15000"]);
        let (lonely_redis, crowded_redis) = (redis(), redis());
        let lonely = Lockgate::in_front_of(&lonely_redis);
        let crowded = Lockgate::in_front_of(&crowded_redis);

        let _idle = come(&crowded);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (mut alone, mut among) = (
            Workers::connect(&runtime, &lonely),
            Workers::connect(&runtime, &crowded),
        );
        let mut ratio = f64::INFINITY;
        for _ in 0..TRIES {
            let (mut without, mut with) = (Vec::new(), Vec::new());
            for _ in 0..TURNS {
                without.push(alone.work(&runtime));
                with.push(among.work(&runtime));
            }
            let (without, with) = (median(without), median(with));
            ratio = with.as_secs_f64() / without.as_secs_f64();
            report(&format!(
                "{WORKING} clients work: median latency {} µs alone, {} µs among {IDLE} idle ones ({ratio:.3})",
                without.as_micros(),
                with.as_micros(),
            ));
            if ratio <= MOST_RATIO {
                break;
            }
        }
        assert!(ratio <= MOST_RATIO, "{ratio:.3} times the latency");
    }
}
