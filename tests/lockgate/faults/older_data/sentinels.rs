//! Redis Sentinels move the master: planned, and after crashes. Two lockgates reach the master by ways
//! that follow what the Sentinels say, each with a delay of its own, under the clients of [`again`].
//!
//!     SENTINEL_FAILOVERS=4 SENTINEL_CRASHES=10 \
//!         cargo test --release --test lockgate sentinels -- --ignored --nocapture
//!
//! takes about four minutes, and reports owners that were double or lost.

use std::{
    env, fs,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use super::{
    SETTINGS,
    again::{LOCKS, contend, history::World, is_right, settle},
};
use crate::{
    random::Random,
    support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, free_address},
};

const SENTINELS: usize = 3;
const GATES: usize = 2;

/// A crash is noticed after a second, and the next failover may begin four seconds after the last.
const SENTINEL: &str = "\
sentinel down-after-milliseconds m 1000
sentinel failover-timeout m 2000
sentinel parallel-syncs m 1
";

/// How long the Sentinels may take for anything; a master that comes back they notice after 10 s and more.
const LATEST: Duration = Duration::from_secs(60);

/// By when every lockgate must grant free locks again.
const SERVED: Duration = Duration::from_secs(20);

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Leads this way to where the Sentinel says that the master is.
fn follow(way: &Proxy, sentinel: SocketAddr, delay: Duration, over: &AtomicBool) {
    let mut sentinel = Client::connect(sentinel);
    let mut before = None;
    while !over.load(Relaxed) {
        let now = master_address(&mut sentinel);
        if before.is_some_and(|before| before != now) {
            thread::sleep(delay);
            way.forward_to(now);
            way.cut();
        }
        before = Some(now);
        thread::sleep(Duration::from_millis(20));
    }
}

fn master_address(sentinel: &mut Client) -> SocketAddr {
    let said = sentinel.say("SENTINEL GET-MASTER-ADDR-BY-NAME m");
    let [host, port] = said.items() else {
        panic!("{said:?}")
    };
    let address = format!("{}:{}", host.text(), port.text());
    address.parse().expect("an address")
}

/// A master and a replica, watched by Sentinels.
struct Cluster {
    redis: [RedisServer; 2],
    sentinels: Vec<Sentinel>,
    master: usize,
}

impl Cluster {
    fn new() -> Self {
        let start = || RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let redis = [start(), start()];
        // The Sentinels know a replica by where it is, so it must come directly.
        let port = redis[0].address().port().to_string();
        let said = redis[1].client().call(&["REPLICAOF", "127.0.0.1", &port]);
        assert_eq!(said, "OK");
        let sentinels = (0..SENTINELS)
            .map(|_| Sentinel::of(redis[0].address()))
            .collect();
        let cluster = Self {
            redis,
            sentinels,
            master: 0,
        };
        cluster.is_whole_again();
        cluster
    }

    fn master(&self) -> &RedisServer {
        &self.redis[self.master]
    }

    fn fails_over(&mut self) -> &'static str {
        let mut sentinel = self.sentinels[0].client();
        within("a failover begins", || {
            sentinel.say("SENTINEL FAILOVER m") == "OK"
        });
        self.the_other_is_master();
        "planned failover"
    }

    /// The master comes back when another one has taken its place, empty.
    fn crashes(&mut self) -> &'static str {
        let old = self.master;
        self.redis[old].kill();
        self.the_other_is_master();
        self.redis[old].restart();
        "crash of the master"
    }

    /// Returns when all Sentinels say so.
    fn the_other_is_master(&mut self) {
        self.master = 1 - self.master;
        let address = self.master().address();
        for sentinel in &self.sentinels {
            let mut sentinel = sentinel.client();
            within("another one is master", || {
                master_address(&mut sentinel) == address
            });
        }
    }

    /// Returns when the replica has what the master has, and all Sentinels know that.
    fn is_whole_again(&self) {
        let mut seen = String::new();
        let deadline = Instant::now() + LATEST;
        while !self.is_whole(&mut seen) {
            assert!(Instant::now() < deadline, "not within {LATEST:?}: {seen}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_whole(&self, seen: &mut String) -> bool {
        // The Sentinels end its connections when they make it a replica.
        let mut replica = self.redis[1 - self.master].client();
        replica.send(&["INFO", "replication"]);
        let said = replica.try_read();
        *seen = format!("the replica says {said:?}");
        let follows = said.is_ok_and(|said| {
            let said = said.text();
            said.contains("role:slave") && said.contains("master_link_status:up")
        });
        follows
            && self.sentinels.iter().all(|sentinel| {
                let mut sentinel = sentinel.client();
                let master = sentinel.say("SENTINEL MASTER m");
                let replicas = sentinel.say("SENTINEL REPLICAS m");
                *seen = format!("a Sentinel says {master:?} and {replicas:?}");
                let well = |replica: &Value| {
                    replica.field("flags") == "slave" && replica.field("master-link-status") == "ok"
                };
                master.field("flags") == "master"
                    && master.field("num-other-sentinels") == "2"
                    && replicas.items().iter().any(well)
            })
    }
}

#[track_caller]
fn within(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LATEST;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LATEST:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

struct Sentinel {
    process: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Sentinel {
    fn of(master: SocketAddr) -> Self {
        let (directory, address) = (tempfile::tempdir().unwrap(), free_address());
        let file = directory.path().join("sentinel.conf");
        let settings = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nsentinel monitor m 127.0.0.1 {} 2\n{SENTINEL}",
            address.port(),
            directory.path().display(),
            master.port()
        );
        fs::write(&file, settings).unwrap();
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.arg(&file).arg("--sentinel");
            let command = command.stdin(Stdio::null()).stdout(Stdio::null());
            command.spawn().ok()
        };
        let process = ["redis-server", "valkey-server"]
            .into_iter()
            .find_map(start);
        let process = process.expect("redis-server (or valkey-server) starts as a Sentinel");
        let sentinel = Self {
            process,
            address,
            _directory: directory,
        };
        within("the Sentinel listens", || {
            Client::try_connect(address).is_ok()
        });
        sentinel
    }

    fn client(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// They need the machine for themselves, and take long: `tests/soak` runs them.
mod soak {
    use super::*;

    #[test]
    #[ignore = "takes minutes: run it by its name"]
    fn no_owner_is_double_or_lost_when_sentinels_move_the_master() {
        let number = |name, otherwise| {
            env::var(name).map_or(otherwise, |text| text.parse::<usize>().expect("a number"))
        };
        let planned = number("SENTINEL_FAILOVERS", 4);
        let crashes = number("SENTINEL_CRASHES", 10);
        let _machine = Machine::alone();
        let mut random = Random::new(7);
        let mut cluster = Cluster::new();
        let ways = [(); GATES].map(|()| Proxy::before(cluster.master().address()));
        let start = |way: &Proxy| {
            Lockgate::start_at(free_address(), &["--upstream", &way.url()], &SETTINGS)
        };
        let gates: Vec<_> = ways.iter().map(start).collect();
        super::super::grant_again(&gates);
        let world = World::new(gates.iter().map(Lockgate::address).collect(), LOCKS);
        let over = AtomicBool::new(false);
        thread::scope(|threads| {
            for (n, way) in ways.iter().enumerate() {
                let (sentinel, over) = (cluster.sentinels[n].address, &over);
                let delay = Duration::from_millis(20 + 200 * n as u64);
                threads.spawn(move || follow(way, sentinel, delay, over));
            }
            let _end = SetAtEnd(&over);
            contend(&world, &mut random.clone(), || {
                for n in 0..planned + crashes {
                    thread::sleep(Duration::from_millis(random.between(500, 2_000)));
                    let from = world.now();
                    let kind = match n < planned {
                        true => cluster.fails_over(),
                        false => cluster.crashes(),
                    };
                    settle(&world, kind, from, SERVED, &mut cluster.master().client());
                    cluster.is_whole_again();
                }
            });
        });
        is_right(world, "Sentinels");
    }
}
