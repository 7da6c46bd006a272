//! A network between two programs that breaks on demand: a TCP proxy whose faults can be switched at
//! any time.
//!
//! Each connection is one task: in each direction a reader, a bounded queue, and a writer that
//! writes nothing before its time. A cut drops both sockets with a linger of zero, so that both ends
//! see a reset, and returns when that has happened: nothing is sent after it.

use std::{
    io,
    mem::{replace, take},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// Bytes read at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// Chunks on their way in each direction; then nothing more is read.
const CHUNKS_UNDER_WAY: usize = 64;

pub(crate) struct Proxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    connections: Arc<Mutex<Connections>>,
    /// Last, since everything above is used by its tasks.
    runtime: Runtime,
}

/// What is wrong now.
#[derive(Clone, Copy)]
struct Faults {
    to: SocketAddr,
    refuse: bool,
    half_open: bool,
    drop_replies: bool,
    delay: Duration,
    at_once: usize,
}

/// Every connection of one time watches this from its beginning to its end.
struct Connections {
    fate: watch::Sender<Fate>,
    /// Those before whose server vanished: cut with the others.
    vanished: Vec<watch::Sender<Fate>>,
}

/// What becomes of a connection.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Carried,
    /// It stays open, and carries nothing any more.
    Vanished,
    Cut,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            fate: watch::channel(Fate::Carried).0,
            vanished: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    /// One that listens on a free port and forwards to this address, with no fault.
    pub(crate) fn before(to: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let (faults, _) = watch::channel(Faults {
            to,
            refuse: false,
            half_open: false,
            drop_replies: false,
            delay: Duration::ZERO,
            at_once: CHUNK_BYTES,
        });
        let connections = Arc::new(Mutex::new(Connections::default()));
        runtime.spawn(accept(
            listener,
            faults.subscribe(),
            Arc::clone(&connections),
        ));
        Self {
            address,
            faults,
            connections,
            runtime,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What lockgate's `--upstream` takes.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Resets every connection. Those that come later are served.
    pub(crate) fn cut(&self) {
        let before = {
            let mut connections = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            take(&mut *connections)
        };
        for fate in before.vanished.iter().chain([&before.fate]) {
            fate.send_replace(Fate::Cut);
            self.runtime.block_on(fate.closed());
        }
    }

    /// From now on no connection that there is carries anything, and none of them ends: as if the
    /// server's machine were gone. Those that come later are served.
    pub(crate) fn vanish(&self) {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let next = watch::channel(Fate::Carried).0;
        let before = replace(&mut connections.fate, next);
        before.send_replace(Fate::Vanished);
        connections.vanished.push(before);
    }

    /// Whether new connections are reset at once.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.faults.send_modify(|faults| faults.refuse = refuse);
    }

    /// How long bytes take, in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.faults.send_modify(|faults| faults.delay = delay);
    }

    /// How many bytes, at most, pass at once.
    pub(crate) fn crumble(&self, at_once: usize) {
        self.faults.send_modify(|faults| faults.at_once = at_once);
    }

    /// Whether what the server says is swallowed: commands arrive, and nobody learns what came of
    /// them. A connection of which a part was swallowed is of no use afterwards: cut it.
    pub(crate) fn drop_replies(&self, drop_replies: bool) {
        self.faults
            .send_modify(|faults| faults.drop_replies = drop_replies);
    }

    /// Whether nothing passes, though every connection seems open, and a new one is accepted. What
    /// is held back passes when this ends, late, even from an end that is gone; or [`Proxy::cut`]
    /// before.
    pub(crate) fn half_open(&self, half_open: bool) {
        self.faults
            .send_modify(|faults| faults.half_open = half_open);
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        let connections = self.connections.lock();
        let connections = connections.unwrap_or_else(PoisonError::into_inner);
        connections.fate.receiver_count()
    }

    /// Where new connections lead.
    pub(crate) fn forward_to(&self, to: SocketAddr) {
        self.faults.send_modify(|faults| faults.to = to);
    }
}

async fn accept(
    listener: TcpListener,
    faults: watch::Receiver<Faults>,
    connections: Arc<Mutex<Connections>>,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of files, for a moment.
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        if faults.borrow().refuse {
            reset(&client);
            continue;
        }
        let fate = connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fate
            .subscribe();
        tokio::spawn(serve(client, faults.clone(), fate));
    }
}

/// Carries a connection to its end. `fate` is dropped after the sockets: [`Proxy::cut`] waits for it.
async fn serve(
    mut client: TcpStream,
    mut faults: watch::Receiver<Faults>,
    mut fate: watch::Receiver<Fate>,
) {
    let server = tokio::select! {
        _ = is_cut(&mut fate) => None,
        server = connect(&mut faults) => server.ok(),
    };
    let Some(mut server) = server else {
        reset(&client);
        drop(client);
        return;
    };
    let whole = tokio::select! {
        _ = fate.wait_for(|fate| *fate != Fate::Carried) => false,
        carried = carry_both(&mut client, &mut server, &faults) => carried.is_ok(),
    };
    let vanished = *fate.borrow() == Fate::Vanished;
    if vanished {
        is_cut(&mut fate).await;
    }
    if !whole {
        reset(&client);
        reset(&server);
    }
    drop((client, server));
}

async fn is_cut(fate: &mut watch::Receiver<Fate>) {
    let _ = fate.wait_for(|fate| *fate == Fate::Cut).await;
}

/// The server, once the network lets anybody reach it.
async fn connect(faults: &mut watch::Receiver<Faults>) -> io::Result<TcpStream> {
    let to = opened(faults).await?.to;
    TcpStream::connect(to).await
}

async fn carry_both(
    client: &mut TcpStream,
    server: &mut TcpStream,
    faults: &watch::Receiver<Faults>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        carry(from_client, to_server, faults.clone(), Direction::ToServer),
        carry(from_server, to_client, faults.clone(), Direction::ToClient),
    )?;
    Ok(())
}

/// Carries one direction until its end, which it passes on; the other direction may go on.
async fn carry(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    faults: watch::Receiver<Faults>,
    direction: Direction,
) -> io::Result<()> {
    let (chunks, due) = mpsc::channel(CHUNKS_UNDER_WAY);
    tokio::try_join!(
        read(from, chunks, faults.clone(), direction),
        write(to, due, faults),
    )?;
    Ok(())
}

/// Bytes, or how the connection broke, and when they are due.
type Chunk = (Instant, io::Result<Vec<u8>>);

async fn read(
    mut from: ReadHalf<'_>,
    chunks: mpsc::Sender<Chunk>,
    mut faults: watch::Receiver<Faults>,
    direction: Direction,
) -> io::Result<()> {
    loop {
        opened(&mut faults).await?;
        let mut buffer = vec![0; CHUNK_BYTES];
        let chunk = match from.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(count) => {
                buffer.truncate(count);
                Ok(buffer)
            }
            Err(broken) => Err(broken),
        };
        let (now, broken) = (*faults.borrow(), chunk.is_err());
        let swallowed = now.drop_replies && direction == Direction::ToClient && !broken;
        if swallowed {
            continue;
        }
        let sent = chunks.send((Instant::now() + now.delay, chunk)).await;
        if broken || sent.is_err() {
            return Ok(());
        }
    }
}

async fn write(
    mut to: WriteHalf<'_>,
    mut chunks: mpsc::Receiver<Chunk>,
    mut faults: watch::Receiver<Faults>,
) -> io::Result<()> {
    while let Some((due, chunk)) = chunks.recv().await {
        sleep_until(due).await;
        let at_once = opened(&mut faults).await?.at_once;
        for crumb in chunk?.chunks(at_once) {
            to.write_all(crumb).await?;
        }
    }
    opened(&mut faults).await?;
    to.shutdown().await
}

/// Waits until bytes may pass; returns what is wrong then. An error where the proxy is gone.
async fn opened(faults: &mut watch::Receiver<Faults>) -> io::Result<Faults> {
    let passing = faults.wait_for(|faults| !faults.half_open).await;
    passing.map(|faults| *faults).map_err(io::Error::other)
}

/// Makes the close of this socket a reset.
fn reset(socket: &TcpStream) {
    let _ = socket.set_zero_linger();
}
