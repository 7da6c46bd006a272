//! Micro benchmarks: `cargo bench --bench micro`. They show what a change costs or saves in one part; whether the whole
//! got faster, `benches/compare/run` says.

// A benchmark may panic; clippy knows that of tests only.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    hint::black_box,
    sync::Arc,
    task::{Context, Waker},
};

use divan::Bencher;
use lockgate::{
    Config, clock,
    gate::{Answer, Client, Gate, Label, LockOptions},
    lock::{
        Action, ConnectionId, Deadline, Event, LinkId, LockRequest, Outcome, Queue, RequestId,
        StoreReply, Time, Token, UserId, Wait,
    },
    resp::{ReplyScanner, RequestScanner, plain_request},
    store::{LockName, embedded::EmbeddedStore},
    telemetry::{metrics::locks::LockMetrics, slow_log::SlowLog},
};

#[global_allocator]
static ALLOCATIONS: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

const LOCK: &[u8] = b"*6\r\n$4\r\nLOCK\r\n$8\r\nlock:123\r\n$5\r\nTOKEN\r\n$36\r\n\
    0c6bc1f4-6e4b-4f0e-9d52-2d3f1a7a8b9c\r\n$2\r\nPX\r\n$5\r\n30000\r\n";

/// The length of a whole command at the front of the input.
#[divan::bench]
fn plain() {
    black_box(plain_request(black_box(LOCK)));
}

/// The resumable scanner of requests, over one command.
#[divan::bench]
fn scan_request(bencher: Bencher) {
    let mut scanner = RequestScanner::default();
    bencher.bench_local(|| {
        let mut at = 0;
        while at < LOCK.len() {
            at += black_box(scanner.scan(black_box(&LOCK[at..]))).0;
        }
    });
}

/// The scanner of replies, over the reply that shows a holder.
#[divan::bench]
fn scan_reply(bencher: Bencher) {
    const HELD: &[u8] = b"*2\r\n$36\r\n0c6bc1f4-6e4b-4f0e-9d52-2d3f1a7a8b9c\r\n:29000\r\n";
    let mut scanner = ReplyScanner::new();
    bencher.bench_local(|| {
        black_box(scanner.scan(black_box(HELD)).1.is_ok());
    });
}

/// A queue with the store's replies made up.
struct Desk {
    queue: Queue,
    now: Time,
    settings: lockgate::lock::Settings,
    next: u64,
    deadline: u64,
}

impl Desk {
    fn new() -> Self {
        Self {
            queue: Queue::new(1),
            now: Time::from_millis(1_000),
            settings: Config::default().lock_settings(),
            next: 0,
            deadline: 1_000_000,
        }
    }

    fn lock(&mut self, token: &Token) {
        self.next += 1;
        let ask = LockRequest {
            request: RequestId(self.next),
            asked_at: self.now,
            user: UserId::ANONYMOUS,
            token: token.clone(),
            explicit: true,
            lease_ms: 30_000,
            wait: Wait::Forever,
            fence: false,
            session: false,
            replicas: 0,
            connection: ConnectionId(self.next),
            attempt: None,
        };
        self.feed(Event::Lock(ask));
    }

    fn unlock(&mut self, token: &Token) {
        self.next += 1;
        self.feed(Event::Unlock {
            request: RequestId(self.next),
            asked_at: self.now,
            user: UserId::ANONYMOUS,
            token: token.clone(),
            absorbed: false,
        });
    }

    fn feed(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            self.now = Time::from_micros(self.now.micros() + 10);
            self.queue
                .handle(self.now, event, &self.settings, &mut actions);
            black_box(self.queue.wake_at());
            for action in actions {
                if let Action::Send {
                    id, store_request, ..
                } = action
                {
                    self.deadline += 1;
                    let granted = Outcome::Granted {
                        deadline: Deadline(self.deadline),
                        fresh: true,
                        fence: None,
                    };
                    let outcome = match store_request.grants_to() {
                        Some(_) => granted,
                        None => Outcome::Free,
                    };
                    events.push(Event::StoreReplied {
                        store_request: id,
                        store_reply: StoreReply {
                            outcome,
                            armed: Some(LinkId::new(1)),
                            grace_ms: None,
                        },
                        dead: None,
                    });
                }
            }
        }
    }
}

fn token(number: u64) -> Token {
    Token::new(format!("{number:036}"))
}

/// The queue: a lock without waiters is acquired and released.
#[divan::bench]
fn queue_uncontended(bencher: Bencher) {
    let (mut desk, token) = (Desk::new(), token(1));
    bencher.bench_local(|| {
        desk.lock(&token);
        desk.unlock(&token);
    });
}

/// The queue: a release, the handover to the first waiter, and one more waiter.
#[divan::bench(args = [1, 1_000])]
fn queue_handover(bencher: Bencher, waiters: u64) {
    let mut desk = Desk::new();
    let tokens: Vec<_> = (0..=waiters).map(token).collect();
    tokens.iter().for_each(|token| desk.lock(token));
    let mut holder = tokens.iter().cycle();
    bencher.bench_local(|| {
        let token = holder.next().unwrap();
        desk.unlock(token);
        desk.lock(token);
    });
}

/// The gate over the memory of this process: a lock is acquired and released.
#[divan::bench]
fn gate_uncontended(bencher: Bencher) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _runtime = runtime.enter();
    let config = Config::default();
    let gate = Gate::new(
        Arc::new(EmbeddedStore::new()),
        config.lock_settings(),
        config.limits.clone(),
        LockMetrics::new(config.poll_interval_micros()),
        Arc::new(SlowLog::default()),
    );
    let client = Client {
        user: UserId::ANONYMOUS,
        label: Arc::new(Label::of("127.0.0.1:1")),
    };
    let (token, name) = (
        token(1),
        LockName {
            database: 0,
            key: b"lock:123".as_slice().into(),
        },
    );
    bencher.bench_local(|| {
        let wish = LockOptions {
            asked_at: clock::now(),
            token: Some(token.clone()),
            lease_ms: 30_000,
            wait_ms: None,
            try_only: false,
            fence: false,
            session: None,
            replicas: 0,
            connection: ConnectionId(1),
            attempt: None,
        };
        let Answer::Granted(grant) = answer(gate.lock(&client, name.clone(), &wish)) else {
            panic!("the lock is free");
        };
        drop(grant.delivered());
        answer(gate.unlock(&client, name.clone(), token.clone(), clock::now(), false));
    });
}

/// The answer that is there already.
fn answer(mut pending: lockgate::gate::Pending) -> Answer {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::Pin::new(&mut pending).poll(&mut context) {
        std::task::Poll::Ready(answer) => answer,
        std::task::Poll::Pending => panic!("the memory answers at once"),
    }
}
