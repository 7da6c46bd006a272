//! Whole sessions: two clients talk to a gate that runs in this process, over real sockets, and say
//! whatever they like. Each is answered in the protocol, command by command; nobody waits for ever for
//! the end; a third client is served as ever; and when all have left the gate ends in time.
//!
//! The input is what happens, one act after the other with a byte 254 between them: `a` or `b` and what
//! that client sends, `A` or `B` where it sends no more, `x` or `y` where it is gone without a word,
//! anything else for a pause. The limits are small, so that they are reached.

use std::{
    cell::RefCell,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use lockgate::{
    absorb::KeyPatterns,
    config::{Config, live::LiveConfig},
    limits,
    transport::listener::Listener,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::{Builder, Runtime},
    sync::oneshot,
    time::timeout,
};

use super::reference::{self, Ending};

/// Longest that anything which must happen may take; only a finding takes it all. It is shorter than a session
/// lingers for a client that closed, and than the gate waits for its sessions at the end: one that is saved by
/// either was not woken, and that is a finding.
const SOON: Duration = Duration::from_secs(8);

/// Lets the gate work without waiting for anything certain.
const PAUSE: Duration = Duration::from_millis(1);

/// Commands that are not always answered, or end the connection; and behind a `LOCK` that waits,
/// commands are dropped when the client closes.
const UNCERTAIN: [&[u8]; 3] = [b"CLIENT", b"LOCK", b"QUIT"];

/// Commands of HTTP. lockgate closes on their name, without waiting for the rest.
const HTTP: [&[u8]; 2] = [b"POST", b"HOST:"];

/// How lockgate ends a connection on a name that it will not have, without waiting for the rest of the command.
const REFUSED_BY_NAME: &[u8] = b"-ERR Protocol error: NUL in the name of a command\r\n";

const WITNESS_HAS_ITS_LOCK: &[u8] = b"$1\r\nw\r\n";

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

pub(crate) fn body(data: &[u8]) {
    RUNTIME.with_borrow_mut(|runtime| {
        let build = || Builder::new_current_thread().enable_all().build();
        let runtime = runtime.get_or_insert_with(|| build().expect("a runtime"));
        runtime.block_on(converse(data));
    });
}

async fn converse(data: &[u8]) {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = Listener::tcp(anywhere, None).await.expect("a free port");
    let address = (Ipv4Addr::LOCALHOST, listener.port().expect("a port"));
    let (stop, stopped) = oneshot::channel::<()>();
    let gate = tokio::spawn(async {
        let stopped = async {
            let _ = stopped.await;
        };
        let config = config();
        let live = Arc::new(LiveConfig::new(&config));
        let shared = Arc::new(lockgate::shared(&config, live, None, 0));
        lockgate::server::serve(vec![listener], shared, stopped).await;
    });
    let connect =
        async || Client::new(TcpStream::connect(address).await.expect("the gate accepts"));
    let (mut witness, mut clients) = (connect().await, [connect().await, connect().await]);
    witness.send(b"LOCK of-the-witness TOKEN w\r\n").await;
    witness.hears(WITNESS_HAS_ITS_LOCK.len()).await;
    for act in data.split(|&byte| byte == 254) {
        match act.split_first() {
            Some((b'a', bytes)) => clients[0].send(bytes).await,
            Some((b'b', bytes)) => clients[1].send(bytes).await,
            Some((b'A', _)) => clients[0].finish().await,
            Some((b'B', _)) => clients[1].finish().await,
            Some((b'x', _)) => clients[0].vanish(),
            Some((b'y', _)) => clients[1].vanish(),
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
    witness.send(b"PING\r\nUNLOCK of-the-witness w\r\n").await;
    for mut client in clients {
        client.finish().await;
        client.hears_the_end().await;
        client.was_answered();
    }
    witness.finish().await;
    witness.hears_the_end().await;
    let served = [WITNESS_HAS_ITS_LOCK, b"+PONG\r\n:1\r\n"].concat();
    assert_eq!(witness.heard, served, "{}", witness.heard.escape_ascii());
    let _ = stop.send(());
    let ended = timeout(SOON, gate).await;
    ended
        .expect("the gate ends in time")
        .expect("it did not panic");
}

fn config() -> Config {
    let mut config = Config::default();
    config.drain = 2 * SOON;
    config.absorb.keys = KeyPatterns::parse("s*").expect("a pattern");
    config.absorb.park_ms = 3;
    config.limits.locks = 8;
    config.limits.waiters = 2;
    config.limits.key_bytes = 64;
    config.limits.pipelined_commands = 8;
    config.limits.pipelined_bytes = limits::LEAST_BUFFER_BYTES;
    config.limits.relay_bytes = limits::LEAST_BUFFER_BYTES;
    config
}

struct Client {
    /// None: it is gone without a word.
    stream: Option<TcpStream>,
    client_info: Vec<u8>,
    heard: Vec<u8>,
    /// The gate closed first, and what it said may be lost.
    broken: bool,
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream: Some(stream),
            client_info: Vec::new(),
            heard: Vec::new(),
            broken: false,
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        if !self.broken {
            self.client_info.extend_from_slice(bytes);
            self.broken = stream.write_all(bytes).await.is_err();
        }
    }

    async fn finish(&mut self) {
        if let Some(stream) = &mut self.stream {
            // A write after this fails.
            self.broken |= stream.shutdown().await.is_err();
        }
    }

    fn vanish(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.set_zero_linger();
        }
    }

    /// Hears so many bytes.
    async fn hears(&mut self, count: usize) {
        if let Some(stream) = &mut self.stream {
            self.heard.resize(count, 0);
            let read = timeout(SOON, stream.read_exact(&mut self.heard)).await;
            read.expect("an answer in time").expect("an answer");
        }
    }

    async fn hears_the_end(&mut self) {
        if let Some(stream) = &mut self.stream {
            let read = timeout(SOON, stream.read_to_end(&mut self.heard)).await;
            self.broken |= read.expect("the gate ends the connection in time").is_err();
        }
    }

    fn was_answered(&self) {
        if self.broken || self.stream.is_none() {
            return;
        }
        let heard = self.heard.escape_ascii();
        let (replies, goes_on) = reference::replies(&self.heard);
        let whole = replies.last().map_or(0, |last| last.end) == self.heard.len();
        assert!(goes_on && whole, "not whole replies: {heard}");
        let answers = replies.iter().filter(|reply| reply.kind != b'>').count();

        let (requests, ending) = reference::requests(&self.client_info);
        let names = || {
            requests
                .iter()
                .filter_map(|request| request.arguments.first())
        };
        let is_ended_by_name = names().any(|name| name.contains(&0));
        let begun = &self.client_info[requests.last().map_or(0, |last| last.end)..];
        let has_begun = |name: &[u8]| {
            let mut words = begun.windows(name.len());
            words.any(|word| word.eq_ignore_ascii_case(name))
        };
        let is_uncertain = |name: &Vec<u8>| {
            let name = name.to_ascii_uppercase();
            UNCERTAIN.contains(&&*name) || HTTP.contains(&&*name)
        };
        let uncertain =
            is_ended_by_name || names().any(is_uncertain) || HTTP.into_iter().any(has_begun);
        let is_refused = match ending {
            Ending::Unclear => return,
            Ending::Error(_) => true,
            Ending::More => {
                let by_name = begun.contains(&0) && self.heard.ends_with(REFUSED_BY_NAME);
                by_name && !is_ended_by_name
            }
        };
        let commands = names().count() + usize::from(is_refused);
        assert!(
            answers <= commands,
            "{answers} replies to {commands} commands: {heard}"
        );
        if !uncertain {
            assert_eq!(answers, commands, "replies and commands: {heard}");
        }
    }
}
