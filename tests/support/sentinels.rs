//! A master, two replicas, and three Sentinels that watch them, with the ways in which a master is lost.
//!
//! What takes part has a user of its own on each node, so that a test can cut one of them off: `repl` is
//! what replicas are to their master, `sentinel` what Sentinels are. Cutting a replica's connection alone
//! loses nothing: it comes back at once, and catches up.
//!
//! Sentinels that were stopped for 2 s do nothing for 30 s more (TILT). A wait for a failover allows for
//! that, and its failure says which of the two it was: no failover, or one that lockgate did not follow.

use std::{
    fs,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{Client, RedisServer, Value, free_address};

const SENTINELS: usize = 3;
const NODES: usize = 3;

/// What they call the master.
pub(crate) const SERVICE: &str = "m";

/// After this silence a master is down.
pub(crate) const DOWN_AFTER: Duration = Duration::from_millis(500);

/// The next failover may begin four seconds after the last.
const SETTINGS: &str = "\
sentinel auth-user m sentinel
sentinel auth-pass m secret
sentinel down-after-milliseconds m 500
sentinel failover-timeout m 2000
sentinel parallel-syncs m 2
";

/// Beside what every node of the tests is started with.
const NODE: [&str; 22] = [
    "--repl-diskless-sync-delay",
    "0",
    "--masteruser",
    "repl",
    "--masterauth",
    "secret",
    "--user",
    "repl",
    "on",
    ">secret",
    "~*",
    "&*",
    "+@all",
    "--user",
    "sentinel",
    "on",
    ">secret",
    "~*",
    "&*",
    "+@all",
    "--repl-timeout",
    "10",
];

/// How long a failover may take.
const FAILOVER: Duration = Duration::from_secs(20);

/// The same where the Sentinels were in TILT, and for anything that they notice only after 10 s and more.
const LATEST: Duration = Duration::from_secs(60);

/// The leader of a failover tells of it a second after the others.
const LEADER_IS_LATE: Duration = Duration::from_secs(4);

/// What the latest writes are that no replica gets.
const LOST: Duration = Duration::from_secs(1);

/// An event that a Sentinel told.
#[derive(Clone, Debug)]
struct Event {
    at: Instant,
    sentinel: usize,
    name: String,
    told: String,
}

/// All that the Sentinels told, in order.
#[derive(Default)]
struct Events {
    told: Mutex<Vec<Event>>,
    more: Condvar,
}

/// The master moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failover {
    /// Before anything was done.
    pub(crate) from: Instant,
    /// The first Sentinel told `+switch-master`.
    pub(crate) switched: Instant,
    /// How often the master before was told to set something, or to run a script, since the promotion of
    /// another one; in a planned failover.
    pub(crate) stale_writes: u64,
}

pub(crate) struct Sentinels {
    nodes: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
    master: usize,
    /// The master before, until it is a replica again.
    old: Option<Old>,
    events: Arc<Events>,
}

/// What became of a master.
#[derive(Clone, Copy, PartialEq)]
enum Old {
    Lives(usize),
    Dead(usize),
    Stopped(usize),
    CutOff(usize),
}

impl Sentinels {
    /// Returns when everything is connected with everything.
    pub(crate) fn start() -> Self {
        let nodes: Vec<_> = (0..NODES).map(|_| RedisServer::start(&NODE)).collect();
        for node in &nodes[1..] {
            replicates(node, &nodes[0]);
        }
        let events = Arc::default();
        let sentinels = (0..SENTINELS)
            .map(|number| Sentinel::of(nodes[0].address(), number, &events))
            .collect();
        let mut all = Self {
            nodes,
            sentinels,
            master: 0,
            old: None,
            events,
        };
        all.is_whole_again();
        all
    }

    pub(crate) fn master(&self) -> &RedisServer {
        &self.nodes[self.master]
    }

    pub(crate) fn sentinels(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(|it| it.address).collect()
    }

    /// What lockgate's `--upstream` takes.
    pub(crate) fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels().iter().map(ToString::to_string).collect();
        format!("redis+sentinel://{}/{SERVICE}", addresses.join(","))
    }

    /// All Sentinels get this user, whose password is `secret`.
    pub(crate) fn add_user(&self, name: &str) {
        for sentinel in &self.sentinels {
            let words = [
                "ACL",
                "SETUSER",
                name,
                "on",
                ">secret",
                "allchannels",
                "+@all",
            ];
            assert_eq!(sentinel.client().call(&words), "OK");
        }
    }

    /// This user, whom [`Sentinels::add_user`] added, reaches no Sentinel, or reaches all of them again.
    pub(crate) fn lets_in(&self, name: &str, lets_in: bool) {
        for sentinel in &self.sentinels {
            is_let_in(&mut sentinel.client(), name, lets_in);
        }
    }

    /// An operator moves the master.
    pub(crate) fn fails_over(&mut self) -> Failover {
        let from = Instant::now();
        let mut sentinel = self.sentinels[0].client();
        within("a planned failover begins", || {
            sentinel.say("SENTINEL FAILOVER m") == "OK"
        });
        let old = self.master;
        self.old = Some(Old::Lives(old));
        // What came before was replicated, or is under way.
        self.events.wait("+failover-state-wait-promotion", from);
        let mut direct = self.nodes[old].client();
        assert_eq!(direct.say("CONFIG RESETSTAT"), "OK");
        let failover = self.follows(from);
        let stats = direct.say("INFO commandstats").text();
        let calls = |line: &str| {
            let (name, rest) = line.split_once(":calls=")?;
            let writes = ["cmdstat_set", "cmdstat_eval", "cmdstat_evalsha"].contains(&name);
            let (calls, _) = rest.split_once(',')?;
            writes.then(|| calls.parse::<u64>().expect("a number"))
        };
        Failover {
            stale_writes: stats.lines().filter_map(calls).sum(),
            ..failover
        }
    }

    /// The master dies.
    pub(crate) fn crashes(&mut self) -> Failover {
        let from = Instant::now();
        self.nodes[self.master].kill();
        self.old = Some(Old::Dead(self.master));
        self.follows(from)
    }

    /// The master dies, and its replicas have nothing of its last second.
    pub(crate) fn crashes_with_a_lost_second(&mut self) -> Failover {
        let from = Instant::now();
        is_let_in(&mut self.master().client(), "repl", false);
        thread::sleep(LOST);
        Failover {
            from,
            ..self.crashes()
        }
    }

    /// The master hangs.
    pub(crate) fn hangs(&mut self) -> Failover {
        let from = Instant::now();
        self.master().stop();
        self.old = Some(Old::Stopped(self.master));
        self.follows(from)
    }

    /// The master lives, and neither the Sentinels nor the replicas reach it.
    pub(crate) fn is_cut_off(&mut self) -> Failover {
        let from = Instant::now();
        let mut master = self.master().client();
        // Sentinels whose own user is refused go on as the default one.
        assert_eq!(master.say("ACL SETUSER default -ping"), "OK");
        for user in ["sentinel", "repl"] {
            is_let_in(&mut master, user, false);
        }
        self.old = Some(Old::CutOff(self.master));
        self.follows(from)
    }

    /// The master before becomes a replica. Sentinels do that, too, 11 s after it is back, and are waited
    /// for where it comes back `bare`: until then it is a master that takes writes.
    pub(crate) fn heals(&mut self, bare: bool) {
        let Some(old) = self.old.take() else {
            return;
        };
        let (Old::Lives(node) | Old::Dead(node) | Old::Stopped(node) | Old::CutOff(node)) = old;
        match old {
            Old::Dead(_) if bare => self.nodes[node].restart(),
            Old::Dead(_) => {
                let port = self.master().address().port().to_string();
                self.nodes[node].restart_with(&["--replicaof", "127.0.0.1", &port]);
            }
            Old::Stopped(_) => self.nodes[node].go_on(),
            Old::CutOff(_) => {
                let mut cut_off = self.nodes[node].client();
                assert_eq!(cut_off.say("ACL SETUSER default +ping"), "OK");
                for user in ["sentinel", "repl"] {
                    is_let_in(&mut cut_off, user, true);
                }
            }
            Old::Lives(_) => {}
        }
        if !bare {
            replicates(&self.nodes[node], self.master());
        }
        self.is_whole_again();
    }

    /// Waits until the first Sentinel tells that the master moved.
    fn follows(&mut self, from: Instant) -> Failover {
        let switched = self.events.wait("+switch-master", from);
        self.finds_the_master();
        Failover {
            from,
            switched: switched.at,
            stale_writes: 0,
        }
    }

    /// Where the Sentinels moved it last, perhaps unasked.
    fn finds_the_master(&mut self) {
        let Some((_, told)) = self.events.switches().pop() else {
            return;
        };
        let port = told.rsplit(' ').next().expect("a port");
        let is_it = |node: &RedisServer| node.address().port().to_string() == port;
        let master = self.nodes.iter().position(is_it);
        self.master = master.expect("it is one of them");
    }

    /// When the master moved, each time; a machine that stalls makes Sentinels move it unasked.
    pub(crate) fn switches(&self) -> Vec<Instant> {
        let switches = self.events.switches().into_iter();
        switches.map(|(at, _)| at).collect()
    }

    /// Returns when the replicas have what the master has, and the Sentinels know it and one replica at
    /// least: the next failover can be.
    fn is_whole_again(&mut self) {
        let mut seen = String::new();
        let deadline = Instant::now() + LATEST;
        while !self.is_whole(&mut seen) {
            assert!(Instant::now() < deadline, "not within {LATEST:?}: {seen}");
            thread::sleep(Duration::from_millis(50));
            self.finds_the_master();
        }
    }

    fn is_whole(&self, seen: &mut String) -> bool {
        let port = self.master().address().port().to_string();
        let replicas = self.nodes.iter().enumerate();
        let mut replicas = replicas.filter(|(n, _)| *n != self.master);
        let all_follow = replicas.all(|(n, node)| {
            // Sentinels end its connections when they make it a replica.
            let said = Client::try_connect(node.address()).and_then(|mut replica| {
                replica.try_write(b"INFO replication\r\n")?;
                replica.try_read()
            });
            *seen = format!("replica {n} says {said:?}");
            said.is_ok_and(|said| follows_port(&said, &port))
        });
        all_follow
            && self.sentinels.iter().all(|sentinel| {
                let mut sentinel = sentinel.client();
                let master = sentinel.say("SENTINEL MASTER m");
                let replicas = sentinel.say("SENTINEL REPLICAS m");
                *seen = format!("a Sentinel says {master:?} and {replicas:?}");
                let well = |replica: &Value| {
                    replica.field("flags") == "slave" && replica.field("master-link-status") == "ok"
                };
                master.field("flags") == "master"
                    && *master.field("port") == port
                    && master.field("num-other-sentinels") == "2"
                    && replicas.items().iter().any(well)
                    && sentinel
                        .say("INFO sentinel")
                        .text()
                        .contains("sentinel_tilt:0")
            })
    }
}

impl Events {
    fn tell(&self, event: Event) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.push(event);
        self.more.notify_all();
    }

    /// Each move of the master, by the first Sentinel that told it. The same move told twice by one Sentinel was two.
    fn switches(&self) -> Vec<(Instant, String)> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mut switches: Vec<(&Event, Vec<usize>)> = Vec::new();
        for event in told.iter().filter(|event| event.name == "+switch-master") {
            let repeated = switches.iter_mut().rev().find(|(first, by)| {
                first.told == event.told
                    && event.at - first.at < LEADER_IS_LATE
                    && !by.contains(&event.sentinel)
            });
            match repeated {
                Some((_, by)) => by.push(event.sentinel),
                None => switches.push((event, vec![event.sentinel])),
            }
        }
        let switches = switches.iter();
        switches
            .map(|(first, _)| (first.at, first.told.clone()))
            .collect()
    }

    /// The first event of this name from then on.
    fn wait(&self, name: &str, from: Instant) -> Event {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(event) = find(&told, name, from) {
                return event.clone();
            }
            let tilted = find(&told, "+tilt", from).is_some();
            let allowed = if tilted { LATEST } else { FAILOVER };
            let left = (from + allowed).saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "the Sentinels did not fail over within {allowed:?} (in TILT: {tilted}); they told {:#?}",
                told.iter()
                    .filter(|event| event.at >= from)
                    .collect::<Vec<_>>()
            );
            let (more, _) = self
                .more
                .wait_timeout(told, left)
                .unwrap_or_else(PoisonError::into_inner);
            told = more;
        }
    }
}

fn find<'a>(told: &'a [Event], name: &str, from: Instant) -> Option<&'a Event> {
    let mut told = told.iter();
    told.find(|event| event.at >= from && event.name == name)
}

/// Makes it a replica of the master, unless it is one.
fn replicates(node: &RedisServer, master: &RedisServer) {
    let port = master.address().port().to_string();
    // Its connections end when it becomes a replica; "OK Already connected" is one, too.
    let mut client = node.client();
    client.send(&["REPLICAOF", "127.0.0.1", &port]);
    let _ = client.try_read();
}

fn follows_port(info: &Value, port: &str) -> bool {
    let info = info.text();
    let has = |line: &str| info.lines().any(|its| its == line);
    has("role:slave") && has("master_link_status:up") && has(&format!("master_port:{port}"))
}

/// A user may do what it could, or nothing, and loses its connections.
fn is_let_in(server: &mut Client, user: &str, is_let_in: bool) {
    let state = if is_let_in { "on" } else { "off" };
    assert_eq!(server.call(&["ACL", "SETUSER", user, state]), "OK");
    if !is_let_in {
        server.call(&["CLIENT", "KILL", "USER", user]);
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
    fn of(master: SocketAddr, number: usize, events: &Arc<Events>) -> Self {
        let (directory, address) = (tempfile::tempdir().unwrap(), free_address());
        let file = directory.path().join("sentinel.conf");
        let settings = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nsentinel monitor {SERVICE} 127.0.0.1 {} 2\n{SETTINGS}",
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
        sentinel.is_heard_by(number, Arc::clone(events));
        sentinel
    }

    /// Until it ends.
    fn is_heard_by(&self, sentinel: usize, events: Arc<Events>) {
        let mut client = self.client();
        client.say("PSUBSCRIBE *");
        client.is_patient();
        thread::spawn(move || {
            while let Ok(message) = client.try_read() {
                let at = Instant::now();
                if let [_, _, name, told] = message.items() {
                    let (name, told) = (name.text(), told.text());
                    events.tell(Event {
                        at,
                        sentinel,
                        name,
                        told,
                    });
                }
            }
        });
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
