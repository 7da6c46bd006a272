use std::{sync::mpsc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::*;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Records what is passed on.
struct Recorder(Mutex<mpsc::Sender<String>>);

impl Receiver for Recorder {
    fn changed(&self, keys: Value) {
        self.0
            .lock()
            .unwrap()
            .send(format!("changed {keys:?}"))
            .unwrap();
    }

    fn replied(&self, sent: SentRequest, reply: Value) {
        let key = String::from_utf8_lossy(sent.request().0.key()).into_owned();
        self.0
            .lock()
            .unwrap()
            .send(format!("{key} {reply:?}"))
            .unwrap();
    }
}

/// A wire, and the server at its other end.
struct Bench {
    wire: Arc<Wire>,
    task: Task,
    server: UnixStream,
    told: mpsc::Receiver<String>,
    metrics: Arc<UpstreamMetrics>,
}

impl Bench {
    fn new() -> Self {
        let (ours, server) = UnixStream::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let metrics = Arc::<UpstreamMetrics>::default();
        let receiver = Arc::new(Recorder(Mutex::new(tell)));
        let (wire, task) = Wire::new(Stream::Unix(ours), receiver, Arc::clone(&metrics));
        Self {
            wire,
            task,
            server,
            told,
            metrics,
        }
    }

    /// Sends a queue's request, and reads it at the other end.
    async fn ask(&mut self, key: &'static str) {
        assert!(self.wire.send_now(SentRequest::check(key)).is_none());
        let mut read = Vec::new();
        let end = format!("{key}\r\n");
        while !read.ends_with(end.as_bytes()) {
            self.server.read_buf(&mut read).await.unwrap();
        }
    }

    /// Has the server reply to a last command: what it sent before has then been passed on.
    async fn told(&mut self, replies: &[u8]) -> Vec<String> {
        let ping = redis::cmd("PING");
        let (pong, ()) = tokio::join!(self.wire.send(Purpose::Ping, &ping), async {
            for byte in replies {
                self.server.write_all(&[*byte]).await.unwrap();
            }
            self.server.write_all(b"+PONG\r\n").await.unwrap();
        });
        assert_eq!(pong.unwrap(), Value::SimpleString("PONG".to_owned()));
        self.told.try_iter().collect()
    }

    async fn ended(self) -> (Arc<Wire>, mpsc::Receiver<String>) {
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
        (self.wire, self.told)
    }
}

#[tokio::test]
async fn pushes_and_replies_are_passed_on_in_the_order_of_the_wire() {
    let mut bench = Bench::new();
    for key in ["a", "b", "c"] {
        bench.ask(key).await;
    }
    let told = bench
        .told(
            b":1\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n*2\r\n$1\r\nt\r\n:5\r\n\
              >2\r\n$10\r\ninvalidate\r\n_\r\n-NOSCRIPT no\r\n",
        )
        .await;
    assert_eq!(told.len(), 5, "{told:?}");
    assert_eq!(told[0], "a int(1)");
    assert!(told[1].starts_with("changed array"), "{told:?}");
    assert!(told[2].starts_with("b array"), "{told:?}");
    assert_eq!(told[3], "changed nil");
    assert!(told[4].starts_with("c "), "{told:?}");
    assert_eq!(bench.wire.in_flight(), 0);
}

#[tokio::test]
async fn at_the_end_futures_learn_it_and_the_requests_of_queues_stay() {
    let mut bench = Bench::new();
    bench.ask("a").await;
    let (wire, ping) = (Arc::clone(&bench.wire), redis::cmd("PING"));
    let (reply, ()) = tokio::join!(wire.send(Purpose::Ping, &ping), async {
        let mut read = Vec::new();
        while !read.ends_with(b"PING\r\n") {
            bench.server.read_buf(&mut read).await.unwrap();
        }
        bench.server.shutdown().await.unwrap();
    });
    assert_eq!(
        reply.unwrap_err().to_string(),
        "Redis closed the connection"
    );
    let metrics = Arc::clone(&bench.metrics);
    let (wire, _) = bench.ended().await;
    assert!(wire.send(Purpose::Ping, &ping).await.is_err());
    assert!(wire.send_now(SentRequest::check("b")).is_some());
    let unanswered = wire.take_unanswered();
    assert_eq!(unanswered.len(), 1);
    assert_eq!(unanswered[0].request().0.key(), b"a");
    assert_eq!(in_flight(&metrics), 0);
}

fn in_flight(metrics: &UpstreamMetrics) -> usize {
    metrics.in_flight.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_reply_without_a_command_ends_the_connection() {
    let mut bench = Bench::new();
    bench.server.write_all(b":1\r\n").await.unwrap();
    let (wire, told) = bench.ended().await;
    let ended = wire.outbox().ended.clone().unwrap();
    assert_eq!(ended.to_string(), "Redis replied to no command");
    assert!(told.try_recv().is_err());
}

#[tokio::test]
async fn a_reply_that_is_too_long_ends_the_connection() {
    let mut bench = Bench::new();
    bench.ask("a").await;
    let head = format!("${}\r\n", 2 * REPLY_BYTES);
    bench.server.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b'x'; 64 * 1024];
    // Fails once the other end is closed.
    while bench.server.write_all(&piece).await.is_ok() {}
    let (wire, _) = bench.ended().await;
    let ended = wire.outbox().ended.clone().unwrap();
    assert_eq!(ended.to_string(), "a reply of Redis is too long");
}

#[tokio::test]
async fn commands_beyond_the_bound_wait_for_room_in_their_order() {
    let mut bench = Bench::new();
    for _ in 0..REQUESTS_IN_FLIGHT {
        assert!(bench.wire.send_now(SentRequest::check("a")).is_none());
    }
    assert!(bench.wire.send_now(SentRequest::check("b")).is_some());
    let (wire, ping) = (Arc::clone(&bench.wire), redis::cmd("PING"));
    let waits = tokio::spawn(async move { wire.send(Purpose::Ping, &ping).await.map(drop) });
    let mut read = Vec::new();
    let mut is_free = false;
    let replies = b":1\r\n".repeat(REQUESTS_IN_FLIGHT);
    // Room for one: it belongs to the one that waits.
    bench.server.write_all(&replies[..4]).await.unwrap();
    while !read.ends_with(b"PING\r\n") {
        bench.server.read_buf(&mut read).await.unwrap();
        is_free |= bench.wire.send_now(SentRequest::check("b")).is_none();
    }
    assert!(!is_free, "a later request took the place");
    bench.server.write_all(&replies).await.unwrap();
    timeout(PATIENCE, waits).await.unwrap().unwrap().unwrap();
    assert_eq!(bench.wire.in_flight(), 0);
    assert!(bench.wire.send_now(SentRequest::check("b")).is_none());
}

#[tokio::test]
async fn commands_of_one_round_are_written_together() {
    let mut bench = Bench::new();
    tokio::task::yield_now().await;
    for _ in 0..100 {
        assert!(bench.wire.send_now(SentRequest::check("a")).is_none());
    }
    let mut space = vec![0; 64 * 1024];
    let bytes = bench.server.read(&mut space).await.unwrap();
    let commands = space[..bytes].windows(7).filter(|it| it == b"EVALSHA");
    assert_eq!(commands.count(), 100);
}
