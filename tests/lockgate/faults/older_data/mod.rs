//! Redis goes back to older data while more than one lockgate grants locks: it restarts from a
//! snapshot, or a stale replica takes over, with a word or without. Tokens of earlier owners are back
//! then, and leases are gone.
//!
//! | what | where |
//! | --- | --- |
//! | tokens that were released, handed on or lost are back | [`dead_tokens`] |
//! | a client goes on through the lockgate that is there first | [`elsewhere`] |
//! | the master vanishes without a word | [`silent_failover`] |
//! | an instance meets a Redis for the first time; a first replica attaches | [`first_meeting`] |
//! | one instance has very many leases | [`many_leases`] |
//! | fences, where the new Redis counts from less | [`fences`] |
//! | all of it, again and again, under load | [`again`]; with real Sentinels: `tests/failover` |

use crate::support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, eventually};

mod again;
mod dead_tokens;
mod elsewhere;
mod fences;
mod first_meeting;
mod many_leases;
mod silent_failover;

/// A silent failover is noticed within `ping` + `timeout`, and a connection is there again within
/// `connect_timeout`, twice, and the longest pause between two attempts (250 ms): 1,750 ms.
const SETTINGS: [(&str, &str); 4] = [
    ("LOCKGATE_UPSTREAM_PING", "300ms"),
    ("LOCKGATE_UPSTREAM_TIMEOUT", "600ms"),
    ("LOCKGATE_UPSTREAM_CONNECT_TIMEOUT", "300ms"),
    ("LOCKGATE_WRITE_BACK_GRACE", "2500ms"),
];

/// Returns when each of these grants a lock that was free before: their grace is over.
#[track_caller]
fn grant_again(gates: &[Lockgate]) {
    let mut clients: Vec<Client> = gates.iter().map(Lockgate::client).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&["LOCK", &format!("probe:{n}"), "TOKEN", "p"]);
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.read_reply(), "p");
        assert_eq!(client.call(&["UNLOCK", &format!("probe:{n}"), "p"]), 1);
    }
}

/// Two lockgates, each with a way of its own to this Redis. Returns when both grant locks.
#[track_caller]
fn gates_by_ways(redis: &RedisServer) -> ([Proxy; 2], [Lockgate; 2]) {
    let ways = [(); 2].map(|()| Proxy::before(redis.address()));
    let start = |way: &Proxy| Lockgate::start_with(&["--upstream", &way.url()], &SETTINGS);
    let gates = ways.each_ref().map(start);
    grant_again(&gates);
    (ways, gates)
}

/// From now on these ways lead to another Redis.
fn lead_to(ways: &[Proxy], redis: &RedisServer) {
    for way in ways {
        way.forward_to(redis.address());
        way.cut();
    }
}

/// A Redis that can go back to its data of a moment ago, and some lockgates before it.
struct Stage {
    redis: RedisServer,
    gates: Vec<Lockgate>,
    _machine: Machine,
}

impl Stage {
    /// With this number of lockgates, which grant locks.
    fn with_gates(count: usize) -> Self {
        let machine = Machine::shared();
        let redis = RedisServer::start(&[]);
        let start = |_| Lockgate::start_with(&["--upstream", &redis.url()], &SETTINGS);
        let gates: Vec<_> = (0..count).map(start).collect();
        grant_again(&gates);
        Self {
            redis,
            gates,
            _machine: machine,
        }
    }

    /// Redis will go back to what it has now.
    fn takes_a_snapshot(&self) {
        assert_eq!(self.redis.client().say("SAVE"), "OK");
    }

    /// Redis crashes and restarts from the snapshot.
    fn goes_back(&mut self) {
        self.redis.kill();
        self.redis.restart();
    }

    /// Returns when all lockgates have had the time to put everything right.
    fn settles(&self) {
        grant_again(&self.gates);
    }
}

/// A master, and a replica that was there for long and stays behind; each lockgate reaches the master,
/// and later the replica, by a way of its own.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
    replication: Proxy,
    _machine: Machine,
}

impl Pair {
    fn new() -> Self {
        let machine = Machine::shared();
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start(&[]);
        let replication = Proxy::before(master.address());
        follows(&replica, &replication);
        Self {
            master,
            replica,
            replication,
            _machine: machine,
        }
    }

    /// From now on the replica gets nothing.
    fn lags(&self) {
        self.replication.half_open(true);
    }

    fn is_promoted(&self) {
        assert_eq!(self.replica.client().say("REPLICAOF NO ONE"), "OK");
    }
}

/// Makes a replica of it; returns when it has the data.
#[track_caller]
fn follows(replica: &RedisServer, replication: &Proxy) {
    let port = replication.address().port().to_string();
    let mut direct = replica.client();
    // "OK Already connected to specified master" is one, too.
    let said = direct.call(&["REPLICAOF", "127.0.0.1", &port]).text();
    assert!(said.starts_with("OK"), "{said}");
    eventually("the replica is there", || {
        let said = direct.say("INFO replication").text();
        said.contains("master_link_status:up")
    });
}

/// Returns when this Redis has run for this number of seconds.
#[track_caller]
fn has_run_for(redis: &RedisServer, seconds: u64) {
    let mut direct = redis.client();
    loop {
        let said = direct.say("INFO server").text();
        let uptime = said
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        if uptime.and_then(|uptime| uptime.parse().ok()) >= Some(seconds) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Violations that are collected and shown together.
#[derive(Default)]
struct Wrongs(Vec<String>);

impl Wrongs {
    fn unless(&mut self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.0.push(what());
        }
    }

    /// Notes a reply that is not the expected one.
    fn unless_is<T: std::fmt::Debug>(&mut self, what: &str, said: &Value, expected: T)
    where
        Value: PartialEq<T>,
    {
        self.unless(*said == expected, || {
            format!("{what}: {said:?}, not {expected:?}")
        });
    }

    /// There is none.
    #[track_caller]
    fn none(self) {
        let count = self.0.len();
        assert!(count == 0, "{count} wrong:\n{}", self.0.join("\n"));
    }
}
