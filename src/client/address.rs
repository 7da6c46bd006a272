//! Where Redis is, and how the connections of clients to it are opened.
//!
//! Thousands of clients may come at once (this gate was restarted, or an application behind it), and each
//! wants its connection. Redis's queue for those that it has not accepted yet is short (`tcp-backlog`, 511),
//! and what does not fit is dropped by the system without a word, to be tried again a second later. So
//! only some connect at a time, each tries more than once in the time it has, and all others wait their
//! turn for as long as anybody gets through.

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::TcpStream,
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::limits::CONNECTING;

/// How often a connection is tried within the time it has.
const TRIES: u32 = 4;

/// Where Redis is.
#[derive(Debug)]
pub struct Address {
    /// A name, resolved anew for each connection, or an address.
    pub host: Arc<str>,
    /// The port.
    pub port: u16,
    /// How long connecting may take.
    connect_timeout: Duration,
    turns: Semaphore,
    /// Connections opened so far.
    opened: AtomicU64,
}

impl Address {
    /// A Redis there; connecting to it may take so long.
    pub fn new(host: &str, port: u16, connect_timeout: Duration) -> Self {
        Self {
            host: Arc::from(host),
            port,
            connect_timeout,
            turns: Semaphore::new(CONNECTING),
            opened: AtomicU64::new(0),
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(self: Arc<Self>) -> io::Result<TcpStream> {
        let _turn = self.turn().await?;
        for _ in 0..TRIES {
            let connecting = TcpStream::connect((&*self.host, self.port));
            if let Ok(stream) = timeout(self.connect_timeout / TRIES, connecting).await {
                self.opened.fetch_add(1, Ordering::Relaxed);
                return stream;
            }
        }
        Err(timed_out())
    }

    /// Waits for its turn as long as others get through.
    async fn turn(&self) -> io::Result<SemaphorePermit<'_>> {
        let mut turn = pin!(self.turns.acquire());
        loop {
            let opened = self.opened.load(Ordering::Relaxed);
            match timeout(self.connect_timeout, turn.as_mut()).await {
                Ok(turn) => return turn.map_err(io::Error::other),
                Err(_) if self.opened.load(Ordering::Relaxed) == opened => return Err(timed_out()),
                Err(_) => {}
            }
        }
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "timed out")
}
