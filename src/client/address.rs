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
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use crate::{
    limits::CONNECTING,
    transport::{endpoint::Endpoint, stream::Stream},
};

/// How often a connection is tried within the time it has.
const TRIES: u32 = 4;

/// Where Redis is.
#[derive(Debug)]
pub struct Address {
    /// Its place.
    pub endpoint: Arc<Endpoint>,
    /// How long connecting may take.
    connect_timeout: Duration,
    turns: Semaphore,
    /// Connections opened so far.
    opened: AtomicU64,
}

impl Address {
    /// A Redis there; connecting to it may take so long.
    pub fn new(endpoint: Arc<Endpoint>, connect_timeout: Duration) -> Self {
        Self {
            endpoint,
            connect_timeout,
            turns: Semaphore::new(CONNECTING),
            opened: AtomicU64::new(0),
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(self: Arc<Self>) -> io::Result<Stream> {
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
