//! The interface to the embedding program, which may be lockgate's own: sockets that are handed over, the
//! notification that clients can connect, and reloaded configurations. [`Embedder::default`] has none of them.

use std::{fmt, net};

use tokio::sync::mpsc;

use crate::{server::reload::ReloadRequest, transport::listener::Listener};

pub use crate::transport::listener::Sockets;

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
