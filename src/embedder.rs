//! The interface to the embedding program, which may be lockgate's own: sockets that are handed over, the
//! notification that clients can connect, and reloaded configurations. [`Embedder::default`] has none of them.

use std::{
    fmt,
    io::{Error, ErrorKind, Result},
    net, os,
};

use rustix::net::sockopt::socket_acceptconn;
use tokio::sync::mpsc;

use crate::{reload::ReloadRequest, transport::listener::Listener};

/// Sockets that another process opened and already listens on: clients can connect before lockgate starts and while
/// it restarts.
#[derive(Debug, Default)]
pub struct Sockets {
    /// In place of `listen`.
    pub plain: Vec<net::TcpListener>,
    /// In place of `tls.listen`.
    pub tls: Vec<net::TcpListener>,
    /// In place of `unixsocket`.
    pub unix: Vec<os::unix::net::UnixListener>,
}

impl Sockets {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.tls.is_empty() && self.unix.is_empty()
    }

    /// Checks that every socket can be used.
    ///
    /// # Errors
    /// A socket is not listening.
    pub fn check(&self) -> Result<()> {
        let tcp = self.plain.iter().chain(&self.tls).map(socket_acceptconn);
        for listens in tcp.chain(self.unix.iter().map(socket_acceptconn)) {
            if !listens? {
                let why = "a socket that was handed over is not listened on";
                return Err(Error::new(ErrorKind::InvalidInput, why));
            }
        }
        Ok(())
    }
}

/// Where an instance listens.
#[derive(Debug, Clone, Copy)]
pub struct Listening<'a> {
    /// The listeners for clients.
    pub clients: &'a [Listener],
    /// The admin address, where there is one.
    pub admin: Option<net::SocketAddr>,
}

/// The callback that runs once clients can connect.
pub type Ready = Box<dyn FnOnce(Listening<'_>) + Send>;

/// What the embedding program provides.
pub struct Embedder {
    /// Sockets for clients. Each kind replaces the configured listener of that kind.
    pub sockets: Sockets,
    /// Runs once clients can connect.
    pub ready: Ready,
    /// Configurations that were reloaded.
    pub reloads: mpsc::Receiver<ReloadRequest>,
}

impl Default for Embedder {
    fn default() -> Self {
        Self {
            sockets: Sockets::default(),
            ready: Box::new(|_| {}),
            reloads: mpsc::channel(1).1,
        }
    }
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder").finish_non_exhaustive()
    }
}
