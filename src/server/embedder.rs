//! The interface to the embedding program, which may be lockgate's own: sockets that are handed over, the
//! notification that clients can connect, and reloaded configurations.

use std::{
    fmt,
    net::{self, SocketAddr},
};

use tokio::sync::{mpsc, oneshot};

use crate::{config::Config, server::reload::ReloadRequest, transport::listener::Listener};

pub use crate::transport::listener::Sockets;

/// Where an instance listens.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Listening<'a> {
    /// The listeners for clients.
    #[doc(hidden)]
    pub clients: &'a [Listener],
    /// The admin address, where there is one.
    pub admin: Option<net::SocketAddr>,
}

impl Listening<'_> {
    /// Returns the addresses for clients: those with TLS first, and none for Unix sockets.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.clients.iter().filter_map(Listener::address)
    }
}

/// What the embedding program provides. [`Embedder::default`] is nothing.
#[derive(Default)]
#[must_use]
pub struct Embedder {
    pub(crate) sockets: Sockets,
    pub(crate) on_listening: Option<OnListening>,
    pub(crate) reloads: Option<mpsc::Receiver<ReloadRequest>>,
}

type OnListening = Box<dyn FnOnce(Listening<'_>) + Send>;

impl Embedder {
    /// Hands over sockets for clients. Each kind replaces the configured listener of that kind.
    pub fn sockets(mut self, sockets: Sockets) -> Self {
        self.sockets = sockets;
        self
    }

    /// Sets the callback that runs once clients can connect.
    pub fn on_listening(mut self, callback: impl FnOnce(Listening<'_>) + Send + 'static) -> Self {
        self.on_listening = Some(Box::new(callback));
        self
    }

    /// Returns the handle that changes the configuration while the instance runs; it replaces an earlier one.
    pub fn reloads(mut self) -> (Self, Reloads) {
        let (reloads, inbox) = mpsc::channel(1);
        self.reloads = Some(inbox);
        (self, Reloads(reloads))
    }
}

/// Changes the configuration of a running instance.
#[derive(Debug, Clone)]
pub struct Reloads(mpsc::Sender<ReloadRequest>);

impl Reloads {
    /// Puts a configuration in force, as far as that needs no restart: the keys that `config/lockgate.toml` marks
    /// with \[SIGHUP\]. Returns once it is in force. False: the instance has ended.
    pub async fn apply(&self, config: Config) -> bool {
        let (done, is_done) = oneshot::channel();
        let sent = self.0.send(ReloadRequest { config, done }).await;
        sent.is_ok() && is_done.await.is_ok()
    }
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder").finish_non_exhaustive()
    }
}
