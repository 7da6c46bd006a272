//! The address of Redis, and the opening of clients' connections to it.
//!
//! Thousands of clients may connect at once after a restart of this instance or of an application, and each
//! needs a connection to Redis. Redis's accept queue is short (`tcp-backlog`, 511): the system silently drops
//! what does not fit and retries a second later. So only a few connections open at a time, each tries more
//! than once within its time limit, and the others wait for as long as any connection gets through.

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
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::{
    limits::CONNECTING,
    transport::{endpoint::Endpoint, stream::Stream},
};

/// Attempts to open a connection within its time limit.
const TRIES: u32 = 4;

/// The address of Redis.
#[derive(Debug)]
pub struct Connector {
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Longest time for opening a connection.
    connect_timeout: Duration,
    turns: Semaphore,
    /// Number of connections opened so far.
    opened: AtomicU64,
}

impl Connector {
    /// Creates the address of the Redis at `endpoint`; opening a connection may take `connect_timeout`.
    pub fn new(endpoint: Arc<Endpoint>, connect_timeout: Duration) -> Self {
        Self {
            endpoint,
            connect_timeout,
            turns: Semaphore::new(CONNECTING),
            opened: AtomicU64::new(0),
        }
    }

    /// Opens a connection.
    pub(crate) async fn connect(self: Arc<Self>) -> io::Result<Stream> {
        let _turn = self.turn().await?;
        let share = self.connect_timeout / TRIES;
        for _ in 0..TRIES {
            let reached = match timeout(share, self.endpoint.reach(share)).await {
                Err(_) => continue,
                Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => continue,
                Ok(reached) => reached,
            };
            self.opened.fetch_add(1, Ordering::Relaxed);
            let secured = timeout(self.connect_timeout, self.endpoint.secure(reached?));
            return secured.await.unwrap_or_else(|_| Err(timed_out()));
        }
        Err(timed_out())
    }

    /// Waits for its turn as long as other connections get through.
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
