//! The two ways: a Redis, and a lockgate in front of another one that is just the same.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::{
    absorbed,
    case::{Case, Step},
    locks::find,
    nature,
    random::Random,
    shrink::shrink,
    support::{Client, Lockgate, RedisServer, frame, words},
    words as said,
};

/// Longest that a conversation may stand still. Only a failure takes it all.
const STALL: Duration = Duration::from_secs(5);

/// Ends every conversation. Redis forgets to close after a `QUIT` that it may not answer, so replies are
/// to be on: the blank line spends a `CLIENT REPLY SKIP`, and `RESET` undoes an `OFF`.
const GOODBYE: &[u8] = b"\r\nRESET\r\nQUIT\r\n";

/// How long lockgate parks an attempt, at most. It is longer than `ask.max_delay`: by then lockgate knows who holds the lock.
const PARK: &str = "20ms";

const WEAK: &str = "ACL SETUSER weak reset on >weak ~[^#]* &* +@all -psubscribe -multi";

/// The data of both servers before each conversation.
const BEFORE: [&str; 11] = [
    "FLUSHALL",
    "SCRIPT FLUSH",
    "FUNCTION FLUSH",
    // Lock commands need SELECT where the database is not 0.
    // The user of a client shows by its keys: one has none that begins with `#`, the other none with `@`.
    WEAK,
    "ACL SETUSER default resetkeys ~[^@]*",
    "SET s value",
    "SET n 7",
    "RPUSH l first x y",
    "HSET h f v g w",
    "ZADD z 1 one 2 two",
    "SADD t 1 2 3",
];

/// One of the two ways.
struct Way {
    address: SocketAddr,
    /// Another client of the Redis at its end.
    admin: Client,
    /// Clients of lockgate, one for each user and database in which conversations take locks.
    witnesses: Vec<Client>,
}

pub(crate) struct Pair {
    direct: Way,
    through: Way,
    _redis: [RedisServer; 2],
    _gate: Lockgate,
}

/// The bytes that came back.
struct Heard {
    bytes: Vec<u8>,
    /// The server closed at the end; otherwise it said nothing more for a long time.
    closed: bool,
}

impl Pair {
    pub(crate) fn start() -> Self {
        let redis = [(); 2].map(|()| RedisServer::start(&["--enable-debug-command", "yes"]));
        let environment = [
            ("LOCKGATE_ABSORB_KEYS", absorbed::KEYS),
            ("LOCKGATE_ABSORB_TRY_KEYS", absorbed::TRY_KEYS),
            ("LOCKGATE_ABSORB_PARK", PARK),
        ];
        let gate = Lockgate::start_with(&["--upstream", &redis[1].url()], &environment);
        let mut client = gate.client();
        // What a script that it does not know frees, lockgate only hears of.
        for load in absorbed::scripts() {
            client.write_raw(&load);
            client.read_reply();
        }
        // Its connections for locks are open before anybody monitors.
        for database in said::DATABASES {
            client.say(&format!("SELECT {database}"));
            assert_eq!(client.say("LOCK lk:first TOKEN t"), "t");
            assert_eq!(client.say("UNLOCK lk:first t"), 1);
        }
        let mut admin = redis[1].client();
        admin.say(WEAK);
        let users = absorbed::USERS.iter();
        let both = users.flat_map(|user| absorbed::DATABASES.map(|database| (user, database)));
        let witnesses = both.map(|(user, database)| {
            let mut witness = gate.client();
            if !user.is_empty() {
                assert_eq!(witness.say(user), "OK");
            }
            assert_eq!(witness.say(&format!("SELECT {database}")), "OK");
            witness
        });
        Self {
            direct: Way {
                address: redis[0].address(),
                admin: redis[0].client(),
                witnesses: Vec::new(),
            },
            through: Way {
                address: gate.address(),
                admin,
                witnesses: witnesses.collect(),
            },
            _redis: redis,
            _gate: gate,
        }
    }

    /// Where it differs, tells a smallest conversation that does.
    pub(crate) fn check(&mut self, case: &Case) -> Result<(), String> {
        let Some(first) = self.difference(case) else {
            return Ok(());
        };
        let small = shrink(case.clone(), |case| self.difference(case).is_some());
        let difference = self
            .difference(&small)
            .unwrap_or_else(|| format!("seen once only, {first}"));
        Err(format!("{small}\n{difference}"))
    }

    fn difference(&mut self, case: &Case) -> Option<String> {
        self.direct.prepare();
        self.through.prepare();
        let direct = self.direct.play(case, 0);
        let through = self.through.play(case, case.cuts);
        let mut expected = nature::without(&direct.bytes);
        let heard = nature::without(&through.bytes);
        for step in &case.steps {
            if let Step::Lock(lock) = step {
                expected = lock.expected(expected, &heard);
            }
        }
        assert!(
            direct.closed,
            "Redis itself never answers QUIT here: {case}\n{}",
            direct.bytes.escape_ascii()
        );
        if through.closed && expected == heard {
            return None;
        }
        let same = expected.iter().zip(&heard).take_while(|(a, b)| a == b);
        let from = same.count().saturating_sub(200);
        let part = |bytes: &[u8]| {
            let end = bytes.len().min(from + 1000);
            bytes[from..end].escape_ascii().to_string()
        };
        let (expected, heard) = (part(&expected), part(&heard));
        let open = if through.closed {
            ""
        } else {
            ", and then nothing"
        };
        Some(format!(
            "from byte {from} on\n  expected: {expected}\n  lockgate: {heard}{open}"
        ))
    }
}

impl Way {
    /// Makes both the same again.
    fn prepare(&mut self) {
        let before = BEFORE.iter().map(|command| frame(&words(command)));
        let before: Vec<_> = before.chain(absorbed::scripts()).collect();
        self.admin.write_raw(&before.concat());
        for _ in before {
            self.admin.read_reply();
        }
        self.hear();
        // The connection of the one before may end a moment after its client's.
        let deadline = Instant::now() + STALL;
        while self.any_subscription() {
            assert!(Instant::now() < deadline, "subscriptions stay");
        }
    }

    /// Returns when lockgate knows what changed before. The witnesses' first replies come behind Redis's pushes, and their
    /// second ones behind the replies to what lockgate then asked, each on the same connections.
    fn hear(&mut self) {
        for _ in 0..2 {
            for (number, witness) in self.witnesses.iter_mut().enumerate() {
                let commands = [
                    format!("LOCK lk:witness-{number} TOKEN w"),
                    format!("UNLOCK lk:witness-{number} w"),
                ];
                let commands = commands.iter().map(|command| frame(&words(command)));
                witness.write_raw(&commands.collect::<Vec<_>>().concat());
            }
            for witness in &mut self.witnesses {
                assert_eq!(witness.read_reply(), "w");
                assert_eq!(witness.read_reply(), 1);
            }
        }
    }

    fn any_subscription(&mut self) -> bool {
        let asked = ["PUBSUB CHANNELS", "PUBSUB SHARDCHANNELS", "PUBSUB NUMPAT"];
        let all: Vec<u8> = asked.iter().flat_map(|c| frame(&words(c))).collect();
        self.admin.write_raw(&all);
        let [channels, shard_channels, patterns] = asked.map(|_| self.admin.read_reply());
        !channels.items().is_empty() || !shard_channels.items().is_empty() || patterns != 0
    }

    fn play(&mut self, case: &Case, cuts: u64) -> Heard {
        let mut line = Line::connect(self.address, cuts);
        for (number, step) in case.steps.iter().enumerate() {
            match step {
                Step::Send(bytes) | Step::Last(bytes) => {
                    line.sometimes_now();
                    line.later(bytes);
                }
                Step::Big(bytes) => {
                    line.later(&frame(&["SET", "b", &"v".repeat(*bytes)]));
                    line.later(&frame(&["GET", "b"]));
                }
                Step::Lock(lock) => {
                    line.sometimes_now();
                    line.later(&lock.bytes());
                }
                Step::Debug => {
                    // Redis refuses it where replies are still to be written.
                    if !line.settle(&format!("BEFORE-{number}-")) {
                        break;
                    }
                    line.later(&frame(&["SCRIPT", "DEBUG", "yes"]));
                    if !line.settle(&format!("BEHIND-{number}-")) {
                        break;
                    }
                    for said in [
                        "AUTH weak wrong",
                        "ACL WHOAMI",
                        "LOCK lk:1",
                        "AUTH weak weak",
                    ] {
                        line.later(&frame(&words(said)));
                    }
                }
                Step::Apart(bytes) => {
                    if !line.settle(&format!("BEFORE-{number}-")) {
                        break;
                    }
                    line.later(bytes);
                }
                Step::Foreign(bytes, ms) => {
                    line.later(bytes);
                    if !line.settle(&format!("BEHIND-{number}-")) {
                        break;
                    }
                    thread::sleep(Duration::from_millis(*ms));
                    self.hear();
                }
                Step::Other(command) => {
                    let settled = line.settle(&format!("BEFORE-{number}-"));
                    self.admin.say(command);
                    self.hear();
                    if !settled || !line.settle(&format!("BEHIND-{number}-")) {
                        break;
                    }
                }
            }
        }
        if !matches!(case.steps.last(), Some(Step::Last(_))) {
            line.later(GOODBYE);
        }
        line.write();
        let closed = line.read_until(|_| false);
        Heard {
            bytes: line.heard,
            closed,
        }
    }
}

/// The client's connection.
struct Line {
    stream: TcpStream,
    cuts: Option<Random>,
    unsent: Vec<u8>,
    heard: Vec<u8>,
    closed: bool,
}

impl Line {
    fn connect(address: SocketAddr, cuts: u64) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts connections");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(STALL)).unwrap();
        Self {
            stream,
            cuts: (cuts != 0).then(|| Random::new(cuts)),
            unsent: Vec::new(),
            heard: Vec::new(),
            closed: false,
        }
    }

    fn later(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
    }

    /// Now and then what is to be sent ends with a command, and the next one comes a while later.
    fn sometimes_now(&mut self) {
        if self.cuts.as_mut().is_some_and(|cuts| cuts.below(8) == 0) {
            self.write();
            thread::sleep(Duration::from_micros(300));
        }
    }

    /// Waits until everything sent so far was answered. False: the connection ended.
    fn settle(&mut self, mark: &str) -> bool {
        self.later(&frame(&[mark]));
        self.write();
        let from = self.heard.len().saturating_sub(mark.len());
        self.read_until(|heard| find(&heard[from..], mark.as_bytes()).is_some()) && !self.closed
    }

    /// Writes what is to be sent, in pieces, and reads meanwhile.
    fn write(&mut self) {
        let unsent = std::mem::take(&mut self.unsent);
        let mut rest = &unsent[..];
        let mut moved = Instant::now();
        self.stream.set_nonblocking(true).unwrap();
        while !rest.is_empty() && !self.closed && moved.elapsed() < STALL {
            let piece = self.piece(rest.len());
            match self.stream.write(&rest[..piece]) {
                Ok(written) => {
                    rest = &rest[written..];
                    moved = Instant::now();
                    self.pause();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let before = self.heard.len();
                    self.read();
                    if self.heard.len() > before {
                        moved = Instant::now();
                    }
                    thread::sleep(Duration::from_micros(20));
                }
                // It closed; what it said before is still to be read.
                Err(_) => break,
            }
        }
        self.stream.set_nonblocking(false).unwrap();
    }

    /// How much to write at once: many short pieces, and some that pass more than one buffer.
    fn piece(&mut self, rest: usize) -> usize {
        let Some(cuts) = &mut self.cuts else {
            return rest;
        };
        let most = 1 << cuts.between(0, 17);
        cuts.between(1, most).min(rest as u64) as usize
    }

    /// Sometimes long enough for everything before to be answered.
    fn pause(&mut self) {
        let Some(cuts) = &mut self.cuts else {
            return;
        };
        match cuts.below(30) {
            0 => thread::sleep(Duration::from_micros(cuts.between(20, 1_500))),
            1..8 => thread::yield_now(),
            _ => {}
        }
    }

    /// Reads until this holds or the connection ends. False: neither happens.
    fn read_until(&mut self, holds: impl Fn(&[u8]) -> bool) -> bool {
        while !holds(&self.heard) && !self.closed {
            if !self.read() {
                return false;
            }
        }
        true
    }

    /// Reads once. False: there was nothing.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 16 * 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.closed = true,
            Ok(count) => self.heard.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The server had not read this when it closed.
            Err(_) => self.closed = true,
        }
        true
    }
}
