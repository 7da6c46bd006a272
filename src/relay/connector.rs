//! The address of Redis, and the opening of clients' connections to it.
//!
//! Thousands of clients may connect at once after a restart of this instance or of an application, and each
//! needs a connection to Redis. Redis's accept queue is short (`tcp-backlog`, 511): the system silently drops
//! what does not fit and retries a second later. So only a few connections open at a time, each tries more
//! than once within its time limit, and the others wait for as long as any connection gets through.
//!
//! When a connection ends, [`Connector::is_same_server`] tells whether Redis is gone. One look at the server serves all
//! clients that wait for one.

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
    sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout},
};

use crate::{
    auth::identity::Credentials,
    clock,
    limits::CONNECTING,
    lock::Time,
    relay::{
        restoration::{Restoration, Unopened},
        servers::Servers,
    },
    store::redis::ServerProbe,
    transport::{
        endpoint::{Endpoint, Route},
        stream::Stream,
    },
};

/// Attempts to open a connection within its time limit.
const TRIES: u32 = 4;

/// How long a connection is open before lockgate looks at its server: short-lived ones cost no look.
const LOOK_AFTER: Duration = Duration::from_secs(1);

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
    probe: ServerProbe,
    /// Locked during a look: one takes place at a time.
    servers: Mutex<Servers>,
}

impl Connector {
    /// Creates the address of the Redis at `endpoint`, to which `probe` leads too; opening a connection may take
    /// `connect_timeout`.
    pub fn new(endpoint: Arc<Endpoint>, connect_timeout: Duration, probe: ServerProbe) -> Self {
        Self {
            endpoint,
            connect_timeout,
            turns: Semaphore::new(CONNECTING),
            opened: AtomicU64::new(0),
            probe,
            servers: Mutex::default(),
        }
    }

    /// Opens a connection, and says on it what its client had said before.
    pub(super) async fn open(
        self: Arc<Self>,
        again: Option<Restoration>,
    ) -> Result<(Stream, Route), Unopened> {
        let deadline = Instant::now() + 2 * self.connect_timeout;
        loop {
            let mut route = self.endpoint.known_route(self.connect_timeout).await?;
            let opened = self.open_once(again.as_ref());
            tokio::select! {
                opened = opened => {
                    let stream = opened?;
                    if !route.is_left() {
                        return Ok((stream, route));
                    }
                }
                () = route.left() => {}
            }
            // Another server is the master: nothing of the client has gone to this one.
            if Instant::now() > deadline {
                return Err(timed_out().into());
            }
        }
    }

    async fn open_once(&self, again: Option<&Restoration>) -> Result<Stream, Unopened> {
        let mut stream = self.connect().await?;
        if let Some(again) = again {
            let said = timeout(self.connect_timeout, again.say_on(&mut stream));
            said.await.unwrap_or_else(|_| Err(timed_out().into()))?;
        }
        Ok(stream)
    }

    /// Looks at the server of a connection that was opened at this time, for a client with this claim, unless that was
    /// done meanwhile.
    pub(super) async fn look(self: Arc<Self>, opened_at: Time, claim: Option<Credentials>) {
        sleep(LOOK_AFTER).await;
        drop(self.look_since(opened_at, claim).await);
    }

    /// Returns whether the server of a connection, which was opened at this time and has just ended, still serves: it
    /// closed the connection of this client, or the network did.
    pub(super) async fn is_same_server(
        self: Arc<Self>,
        opened_at: Time,
        claim: Option<Credentials>,
    ) -> bool {
        let servers = self.look_since(clock::now(), claim).await;
        servers.are_same_since(opened_at)
    }

    async fn look_since(&self, since: Time, claim: Option<Credentials>) -> MutexGuard<'_, Servers> {
        let mut servers = self.servers.lock().await;
        if !servers.are_known(since, claim.as_ref()) {
            let begun = clock::now();
            // In a box, so that the many that wait for this look take less memory.
            let sighting = Box::pin(self.probe.look(claim.as_ref())).await;
            servers.add(begun, claim, sighting);
        }
        servers
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        let _turn = self.turn().await?;
        // In a box, so that the many that wait for their turn take less memory.
        Box::pin(self.connect_now()).await
    }

    async fn connect_now(&self) -> io::Result<Stream> {
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
