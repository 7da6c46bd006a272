//! What whoever runs a gate says to it, and hears from it, while it runs: the program, or another one that has
//! a gate inside itself. Where nobody has anything to say there is [`Host::default`].

use std::{
    fmt,
    io::{Error, ErrorKind, Result},
    net, os,
};

use rustix::net::sockopt::socket_acceptconn;
use tokio::sync::mpsc;

use crate::{reload::Order, transport::listener::Listener};

/// Sockets that somebody else opened and listens on already: clients can connect before the gate is there,
/// and while it is started anew.
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
    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.tls.is_empty() && self.unix.is_empty()
    }

    /// Whether all of them can be used.
    ///
    /// # Errors
    /// One is not listened on.
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

/// Where a gate listens.
#[derive(Debug, Clone, Copy)]
pub struct Listening<'a> {
    /// For clients.
    pub clients: &'a [Listener],
    /// For operators.
    pub admin: Option<net::SocketAddr>,
}

/// What is called once clients can connect there.
pub type Ready = Box<dyn FnOnce(Listening<'_>) + Send>;

/// Whoever runs a gate.
pub struct Host {
    /// Where clients come in, beside or in place of what the configuration says.
    pub sockets: Sockets,
    /// Called once clients can connect.
    pub ready: Ready,
    /// Configurations that were read again.
    pub orders: mpsc::Receiver<Order>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            sockets: Sockets::default(),
            ready: Box::new(|_| {}),
            orders: mpsc::channel(1).1,
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}
