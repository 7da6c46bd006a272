//! A network that lies: a TCP proxy that loses, doubles and forges replies of Redis, one whole reply at a
//! time, on those connections whose client asks for it ([`Forger::ask`]); all others pass unchanged.
//!
//! So a client of lockgate decides which relay connection is lied to, and lockgate's own connections are
//! not.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::frame;

/// The argument of `ECHO` that begins with this, and a seed behind it, asks for lies.
const ASKS: &[u8] = b"lie to me ";

/// What is forged in the place of a reply, or before it.
const FORGED: &[&str] = &[
    "+OK\r\n",
    "+OK\r\n",
    "+OK\r\n",
    "+QUEUED\r\n",
    "+RESET\r\n",
    "+PONG\r\n",
    "-ERR forged\r\n",
    "-WRONGPASS forged\r\n",
    "$-1\r\n",
    "*-1\r\n",
    "*0\r\n",
    "*1\r\n",
    "*3\r\n",
    ":1\r\n",
    "_\r\n",
    "*3\r\n$12\r\nsunsubscribe\r\n$5\r\nmal:a\r\n:0\r\n",
    ">3\r\n$12\r\nsunsubscribe\r\n$5\r\nmal:a\r\n:0\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n",
    "*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:2\r\n",
    "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n",
];

/// Listens on a free port, and has each connection carried on to this address. It ends with the process.
pub(super) fn listen_before(
    to: SocketAddr,
    carry: impl Fn(TcpStream, TcpStream) + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if let Ok(server) = TcpStream::connect(to) {
                carry(client, server);
            }
        }
    });
    address
}

pub(crate) struct Forger {
    address: SocketAddr,
}

impl Forger {
    /// One on a free port, before this address. On a connection that asks for it, this percentage of
    /// the replies is lost, doubled, replaced or preceded by another.
    pub(crate) fn before(to: SocketAddr, percent: u64) -> Self {
        let address = listen_before(to, move |client, server| carry(client, server, percent));
        Self { address }
    }

    /// What lockgate's `--upstream` takes.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The command that has the connection it comes on lied to from now on.
    pub(crate) fn ask(seed: u64) -> Vec<u8> {
        // Never 0, which is the truth.
        let asks = format!("{}{:020}", String::from_utf8_lossy(ASKS), seed | 1);
        frame(&["ECHO", &asks])
    }
}

/// Both directions, by a thread each.
fn carry(client: TcpStream, server: TcpStream, percent: u64) {
    let lies = Arc::new(AtomicU64::new(0));
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let (mut from, mut to, asked) = (
        client.try_clone().unwrap(),
        server.try_clone().unwrap(),
        Arc::clone(&lies),
    );
    thread::spawn(move || {
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if let Some(seed) = seed_in(&bytes[..count]) {
                asked.store(seed, Ordering::Relaxed);
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let (mut from, mut to) = (server, client);
        let (mut kept, mut bytes) = (Vec::new(), [0; 16 * 1024]);
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            kept.extend_from_slice(&bytes[..count]);
            let mut out = Vec::new();
            while let Some(length) = reply_bytes(&kept) {
                let rest = kept.split_off(length);
                out.extend(passed_on(
                    std::mem::replace(&mut kept, rest),
                    &lies,
                    percent,
                ));
            }
            if to.write_all(&out).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

fn seed_in(bytes: &[u8]) -> Option<u64> {
    let at = bytes.windows(ASKS.len()).position(|some| some == ASKS)?;
    let digits = bytes.get(at + ASKS.len()..)?.get(..20)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// One reply, or what comes in its place.
fn passed_on(reply: Vec<u8>, lies: &AtomicU64, percent: u64) -> Vec<u8> {
    let mut random = lies.load(Ordering::Relaxed);
    if random == 0 || reply.windows(ASKS.len()).any(|some| some == ASKS) {
        return reply;
    }
    let mut next = |count: u64| {
        // Knuth's generator; its high bits are the random ones.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % count
    };
    let lie = (next(100) < percent).then(|| (next(4), next(FORGED.len() as u64)));
    lies.store(random | 1, Ordering::Relaxed);
    let Some((kind, which)) = lie else {
        return reply;
    };
    let forged = FORGED[which as usize].as_bytes().to_vec();
    match kind {
        0 => Vec::new(),
        1 => [&reply[..], &reply].concat(),
        2 => forged,
        _ => [forged, reply].concat(),
    }
}

/// The bytes of the reply at the front, where it is there whole. What is no reply ends with its line.
fn reply_bytes(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut elements) = (0, 1);
    while elements > 0 {
        let line = bytes[at..].windows(2).position(|end| end == b"\r\n")?;
        let number = std::str::from_utf8(&bytes[(at + 1).min(at + line)..at + line]);
        let number: i64 = number.ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        let number = usize::try_from(number);
        elements -= 1;
        let kind = bytes[at];
        at += line + 2;
        match (kind, number) {
            (b'$' | b'=' | b'!', Ok(length)) => at += length + 2,
            (b'*' | b'>' | b'~', Ok(count)) => elements += count,
            (b'%', Ok(count)) => elements += 2 * count,
            (b'|', Ok(count)) => elements += 2 * count + 1,
            _ => {}
        }
        if at > bytes.len() {
            return None;
        }
    }
    Some(at)
}
