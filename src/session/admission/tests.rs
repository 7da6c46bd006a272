use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot, watch,
    },
    task::{JoinHandle, yield_now},
    time::timeout,
};

use super::*;
use crate::{
    config::{Config, live::LiveConfig},
    gate::Gate,
    lock::{StoreRequest, StoreRequestId, UserId},
    relay::connector::Connector,
    session::Shared,
    store::{
        Listener, LockName, LockStatus, Receipt, Store,
        embedded::EmbeddedStore,
        redis::{RedisSettings, ServerProbe},
    },
    telemetry::metrics::locks::LockMetrics,
    transport::{
        endpoint::{self, Endpoint},
        stream::Stream,
    },
};

/// A generous limit for what happens at once.
const SOON: Duration = Duration::from_secs(5);

/// A store in this process whose admissions the test decides.
struct ProbedStore {
    locks: EmbeddedStore,
    /// Requests about locks get no reply.
    is_mute: bool,
    knocks: UnboundedSender<oneshot::Sender<Admission>>,
}

impl Store for ProbedStore {
    fn listen(&self, listener: Arc<dyn Listener>) {
        self.locks.listen(listener);
    }

    fn ask(
        &self,
        name: &LockName,
        id: StoreRequestId,
        store_request: StoreRequest,
        within: Duration,
    ) -> Receipt {
        match self.is_mute {
            true => Receipt::Underway,
            false => self.locks.ask(name, id, store_request, within),
        }
    }

    fn status(&self, name: &LockName, user: UserId) -> Later<Result<LockStatus, Bytes>> {
        self.locks.status(name, user)
    }

    fn admits(&self, _: Option<Credentials>, _: Option<Duration>) -> Later<Admission> {
        let (asker, told) = oneshot::channel();
        self.knocks.send(asker).unwrap();
        Box::pin(async { told.await.unwrap() })
    }
}

/// An instance whose store has to admit clients, with the store's pending admissions.
struct Place {
    shared: Arc<Shared>,
    asked: UnboundedReceiver<oneshot::Sender<Admission>>,
    draining: watch::Sender<bool>,
}

impl Place {
    /// Creates an instance whose ordinary commands go to a socket in a directory of its own.
    fn before_redis() -> (TempDir, PathBuf, UnixListener, Self) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redis");
        let redis = UnixListener::bind(&path).unwrap();
        let place = Self::before(&path);
        (directory, path, redis, place)
    }

    /// Creates an instance whose ordinary commands go to this socket.
    fn before(upstream: &Path) -> Self {
        Self::which(upstream, false)
    }

    fn which(upstream: &Path, is_mute: bool) -> Self {
        let (knocks, asked) = unbounded_channel();
        let config = Config::default();
        let store = Arc::new(ProbedStore {
            locks: EmbeddedStore::new(),
            is_mute,
            knocks,
        });
        let limits = config.limits.clone();
        let metrics = LockMetrics::new(config.poll_interval_micros());
        let upstream = Endpoint::new(endpoint::Place::Unix(upstream.to_owned()), None);
        let upstream = Arc::new(upstream);
        let probe = ServerProbe::new(Arc::new(RedisSettings {
            endpoint: Arc::clone(&upstream),
            own: None,
            connect_timeout: SOON,
            timeout: SOON,
            ping: SOON,
            grace: None,
            key_prefix: Bytes::new(),
            replicas_timeout: Duration::from_millis(100),
            connections: 1,
            idle: SOON,
        }));
        let shared = Shared {
            gate: Gate::new(
                store,
                config.lock_settings(),
                limits,
                metrics,
                Arc::default(),
            ),
            upstream: Some(Arc::new(Connector::new(upstream, SOON, probe))),
            ..crate::run::shared(&config, Arc::new(LiveConfig::new(&config)), None, 0)
        };
        Self {
            shared: Arc::new(shared),
            asked,
            draining: watch::channel(false).0,
        }
    }

    fn connect(&self) -> (UnixStream, JoinHandle<()>) {
        let (client, served) = UnixStream::pair().unwrap();
        let (shared, drain) = (Arc::clone(&self.shared), self.draining.subscribe());
        let served = Stream::Unix(served);
        let session = Session::new(shared, served, "somewhere", 1).ok();
        let session = crate::session::serve(session, drain);
        (client, tokio::spawn(session))
    }

    fn welcome(&self) -> Admission {
        Admission::Welcome(self.shared.users.anonymous())
    }

    /// Sends a `LOCK k` of this client. Returns the sender of the store's reply.
    async fn lock(&mut self, client: &mut UnixStream, token: usize) -> oneshot::Sender<Admission> {
        self.asks(client, &format!("LOCK k TOKEN {token}")).await
    }

    async fn asks(&mut self, client: &mut UnixStream, command: &str) -> oneshot::Sender<Admission> {
        writes(client, &format!("{command}\r\n")).await;
        timeout(SOON, self.asked.recv()).await.unwrap().unwrap()
    }

    /// Lets this client in as `ann`, and lets it lock `a` with the token `t` for a minute. Returns its connection to
    /// Redis, and the user.
    async fn locks_as_ann(
        &mut self,
        client: &mut UnixStream,
        redis: &UnixListener,
    ) -> (UnixStream, Arc<User>) {
        writes(client, "AUTH ann pw\r\n").await;
        let (mut relay, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
        reads(&mut relay, "AUTH ann pw\r\n").await;
        writes(&mut relay, "+OK\r\n").await;
        reads(client, "+OK\r\n").await;
        let told = self.asks(client, "LOCK a TOKEN t PX 60000").await;
        let ann = Credentials::new(b"ann", b"pw").unwrap();
        let ann = self.shared.users.verified(&ann, clock::now());
        assert!(told.send(Admission::Welcome(Arc::clone(&ann))).is_ok());
        reads(client, "$1\r\nt\r\n").await;
        (relay, ann)
    }
}

async fn writes(stream: &mut UnixStream, bytes: &str) {
    stream.write_all(bytes.as_bytes()).await.unwrap();
}

/// Lets all tasks run until they wait.
async fn let_run() {
    for _ in 0..20 {
        yield_now().await;
    }
}

async fn reads(client: &mut UnixStream, expected: &str) {
    let mut reply = vec![0; expected.len()];
    let read = timeout(SOON, client.read_exact(&mut reply)).await;
    read.unwrap_or_else(|_| panic!("it never reads {expected:?}"))
        .unwrap();
    assert_eq!(String::from_utf8(reply).unwrap(), expected);
}

#[tokio::test]
async fn those_who_are_asked_about_go_in_in_the_order_in_which_they_came() {
    const CLIENTS: usize = 5;
    const ENDS: usize = 2;
    let mut place = Place::before("/nowhere".as_ref());
    let (mut clients, mut told, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..CLIENTS {
        let (mut client, session) = place.connect();
        told.push(place.lock(&mut client, number).await);
        clients.push(client);
        sessions.push(session);
    }
    // A session that ends keeps no other client out.
    sessions[ENDS].abort();
    assert!((&mut sessions[ENDS]).await.unwrap_err().is_cancelled());
    // The order in which the tasks wake must not matter: here the last client's task runs first.
    for (number, asker) in told.into_iter().enumerate().rev() {
        assert_eq!(asker.send(place.welcome()).is_err(), number == ENDS);
        let_run().await;
    }
    for (number, client) in clients.iter_mut().enumerate() {
        if number != ENDS {
            reads(client, &format!("$1\r\n{number}\r\n")).await;
            writes(client, &format!("UNLOCK k {number}\r\n")).await;
            reads(client, ":1\r\n").await;
        }
    }
}

#[tokio::test]
async fn a_command_that_does_not_wait_is_not_delayed_by_admission() {
    const AT_THE_DOOR: Duration = Duration::from_millis(1_800);
    let mut place = Place::which("/nowhere".as_ref(), true);
    let within = place.shared.timeout;
    assert!(AT_THE_DOOR < within);
    let start = Instant::now();
    let (mut clients, mut told) = (Vec::new(), Vec::new());
    for command in ["TRYLOCK a", "UNLOCK b 1", "RELOCK c 1"] {
        let (mut client, session) = place.connect();
        told.push(place.asks(&mut client, command).await);
        clients.push((client, session));
    }
    sleep(AT_THE_DOOR).await;
    for asker in told {
        assert!(asker.send(place.welcome()).is_ok());
    }
    for (client, _) in &mut clients {
        reads(client, "-UPSTREAM ").await;
    }
    let took = start.elapsed();
    assert!(took > AT_THE_DOOR, "{took:?}");
    assert!(took < within + AT_THE_DOOR / 2, "{took:?}");
}

#[tokio::test]
async fn a_grant_waits_until_the_next_server_accepts_the_password() {
    for is_accepted in [true, false] {
        let (_directory, path, redis, mut place) = Place::before_redis();
        let (mut owner, _session) = place.connect();
        let told = place.asks(&mut owner, "LOCK k TOKEN owner").await;
        assert!(told.send(place.welcome()).is_ok());
        reads(&mut owner, "$5\r\nowner\r\n").await;

        let (mut waiting, _session) = place.connect();
        writes(&mut waiting, "AUTH ann pw\r\n").await;
        let (mut relay, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
        reads(&mut relay, "AUTH ann pw\r\n").await;
        writes(&mut relay, "+OK\r\n").await;
        reads(&mut waiting, "+OK\r\n").await;
        let told = place.asks(&mut waiting, "LOCK k TOKEN ann").await;
        let ann = Credentials::new(b"ann", b"pw").unwrap();
        let ann = place.shared.users.verified(&ann, clock::now());
        assert!(told.send(Admission::Welcome(Arc::clone(&ann))).is_ok());
        while place.shared.gate.waiters() == 0 {
            yield_now().await;
        }

        drop((redis, relay));
        std::fs::remove_file(&path).unwrap();
        let told = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
        writes(&mut owner, "UNLOCK k owner\r\n").await;
        reads(&mut owner, ":1\r\n").await;
        let mut byte = [0];
        let early = timeout(Duration::from_millis(50), waiting.read(&mut byte)).await;
        assert!(early.is_err(), "{early:?}");
        if is_accepted {
            assert!(told.send(Admission::Welcome(ann)).is_ok());
            reads(&mut waiting, "$3\r\nann\r\n").await;
        } else {
            let text = Bytes::from_static(b"WRONGPASS no");
            assert!(told.send(Admission::Refused(text)).is_ok());
            let end = timeout(SOON, waiting.read(&mut byte)).await.unwrap();
            assert_eq!(end.unwrap(), 0, "it is closed");
            // The grant that it did not get is taken back.
            writes(&mut owner, "LOCK k TOKEN next\r\n").await;
            reads(&mut owner, "$4\r\nnext\r\n").await;
        }
    }
}

/// It holds the lock for no owner meanwhile.
#[tokio::test]
async fn a_grant_that_waits_too_long_for_the_next_server_is_taken_back() {
    let (_directory, path, redis, mut place) = Place::before_redis();
    let (mut owner, _session) = place.connect();
    let told = place.asks(&mut owner, "LOCK k TOKEN owner").await;
    assert!(told.send(place.welcome()).is_ok());
    reads(&mut owner, "$5\r\nowner\r\n").await;
    let (mut waiting, _session) = place.connect();
    let (relay, _ann) = place.locks_as_ann(&mut waiting, &redis).await;
    writes(&mut waiting, "LOCK k TOKEN ann PX 600000 SESSION\r\n").await;
    while place.shared.gate.waiters() == 0 {
        yield_now().await;
    }

    drop((redis, relay));
    std::fs::remove_file(&path).unwrap();
    let _unanswered = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
    writes(&mut owner, "UNLOCK k owner\r\n").await;
    reads(&mut owner, ":1\r\n").await;
    reads(&mut waiting, "-UPSTREAM ").await;
    writes(&mut owner, "LOCK k TOKEN next\r\n").await;
    reads(&mut owner, "$4\r\nnext\r\n").await;
}

async fn reads_up_to(client: &mut UnixStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let byte = timeout(SOON, client.read_u8()).await;
        text.push(byte.unwrap_or_else(|_| panic!("no {end:?}")).unwrap());
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn an_extension_waits_for_the_check_by_the_next_server_but_a_release_does_not() {
    let (_directory, path, redis, mut place) = Place::before_redis();
    let (mut owner, _session) = place.connect();
    let told = place.asks(&mut owner, "LOCK other TOKEN owner").await;
    assert!(told.send(place.welcome()).is_ok());
    reads(&mut owner, "$5\r\nowner\r\n").await;

    let (mut client, _session) = place.connect();
    let (relay, ann) = place.locks_as_ann(&mut client, &redis).await;
    writes(&mut client, "LOCK b TOKEN t\r\n").await;
    reads(&mut client, "$1\r\nt\r\n").await;
    writes(&mut client, "LOCK other TOKEN t\r\n").await;
    while place.shared.gate.waiters() == 0 {
        yield_now().await;
    }

    drop((redis, relay));
    std::fs::remove_file(&path).unwrap();
    let told = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
    let holder = |key: &'static str| {
        let key = key.as_bytes().into();
        place.shared.gate.holder(&LockName { database: 0, key })
    };
    // Both would overtake the LOCK that waits, one after the other.
    let behind = "RELOCK a t PX 600000\r\nUNLOCK b t\r\n";
    writes(&mut client, behind).await;
    let released = async {
        while holder("b").is_some() {
            yield_now().await;
        }
    };
    timeout(SOON, released).await.expect("it is released");
    let left_ms = || holder("a").unwrap().1;
    assert!(left_ms() <= 60_000, "{}", left_ms());
    assert!(told.send(Admission::Welcome(ann)).is_ok());
    writes(&mut owner, "UNLOCK other owner\r\n").await;
    reads(&mut client, "$1\r\nt\r\n:1\r\n:1\r\n").await;
    assert!(left_ms() > 60_000, "{}", left_ms());
}

#[tokio::test]
async fn entries_of_commands_have_the_width_of_the_server_at_hand() {
    let (_directory, path, redis, mut place) = Place::before_redis();
    let (mut client, _session) = place.connect();
    let (mut relay, _ann) = place.locks_as_ann(&mut client, &redis).await;
    writes(&mut client, "COMMAND INFO GET LOCK\r\nPING\r\n").await;
    reads_up_to(&mut relay, "PING\r\n").await;
    let six = ":1\r\n".repeat(6);
    let reply = format!("*2\r\n*7\r\n$3\r\nget\r\n{six}*-1\r\n+PONG\r\n");
    writes(&mut relay, &reply).await;
    let told = reads_up_to(&mut client, "+PONG\r\n").await;
    assert_eq!(told.matches("*7\r\n").count(), 2, "{told}");

    drop((redis, relay));
    std::fs::remove_file(&path).unwrap();
    let _told = timeout(SOON, place.asked.recv()).await.unwrap().unwrap();
    writes(&mut client, "PING\r\n").await;
    assert!(
        reads_up_to(&mut client, "\r\n")
            .await
            .starts_with("-UPSTREAM ")
    );
    let redis = UnixListener::bind(&path).unwrap();
    writes(&mut client, "COMMAND INFO LOCK\r\n").await;
    let (mut relay, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
    reads_up_to(&mut relay, "ann\r\n$2\r\npw\r\n").await;
    writes(&mut relay, "+OK\r\n").await;
    reads_up_to(&mut relay, "LOCK\r\n").await;
    writes(&mut relay, "*1\r\n*-1\r\n").await;
    reads(&mut client, "*1\r\n*10\r\n").await;
}

#[tokio::test]
async fn a_client_that_is_being_refused_blocks_no_other() {
    let (_directory, _, redis, mut place) = Place::before_redis();
    let (mut first, _session) = place.connect();
    writes(&mut first, "HELLO 3\r\n").await;
    let (mut redis, _) = timeout(SOON, redis.accept()).await.unwrap().unwrap();
    reads(&mut redis, "HELLO 3\r\n").await;
    let hello = "%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n";
    writes(&mut redis, hello).await;
    reads(&mut first, hello).await;
    let first_told = place.lock(&mut first, 1).await;
    let (mut second, _session) = place.connect();
    let second_told = place.lock(&mut second, 2).await;
    // Redis sends a part of a message only.
    let half = ">2\r\n$10\r\ninvalidate\r\n";
    writes(&mut redis, half).await;
    reads(&mut first, half).await;
    assert!(first_told.send(place.welcome()).is_ok());
    let_run().await;
    assert!(second_told.send(place.welcome()).is_ok());
    reads(&mut second, "$1\r\n2\r\n").await;
    writes(&mut second, "UNLOCK k 2\r\n").await;
    writes(&mut redis, "_\r\n").await;
    reads(&mut first, "_\r\n$1\r\n1\r\n").await;
}
