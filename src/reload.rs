//! What is taken over while the gate runs, when its operator had the configuration read again (SIGHUP):
//! the files of TLS, the password, and what [`Live`] holds. Who is connected stays connected; who comes
//! after that meets the new ones. Where anything is wrong with the files of TLS, the old ones stay, and the
//! log says what is wrong.

use std::{convert::Infallible, future::pending, sync::Arc};

use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
};
use tracing::{info, warn};

use crate::{
    config::Config,
    live::Live,
    transport::tls::{TlsClient, TlsError, TlsServer},
};

/// The keys of the configuration that are taken over. `log` is the program's own.
pub const RELOADED: [&str; 12] = [
    "log",
    "drain",
    "limits.clients",
    "auth.password",
    "auth.password_file",
    "tls.certificate",
    "tls.key",
    "tls.client_certificates",
    "tls.client_ca",
    "upstream.ca",
    "upstream.certificate",
    "upstream.key",
];

/// A configuration that was read again and found right.
#[derive(Debug)]
pub struct Order {
    /// What is to be in force from now on, as far as it can be without a new start.
    pub config: Config,
    /// Told when it is.
    pub done: oneshot::Sender<()>,
}

/// What can be changed.
#[derive(Debug, Clone)]
pub struct Reload {
    /// What clients are shown and have to show.
    pub clients: Option<Arc<TlsServer>>,
    /// What Redis has to show and is shown.
    pub upstream: Option<Arc<TlsClient>>,
    /// The rest.
    pub live: Arc<Live>,
}

impl Reload {
    /// Does what is ordered, for ever.
    pub async fn whenever(self, mut orders: mpsc::Receiver<Order>) -> Infallible {
        while let Some(Order { config, done }) = orders.recv().await {
            let reload = self.clone();
            // It waits for a disk. Nothing in it panics.
            let _ = spawn_blocking(move || reload.take_over(&config)).await;
            // Whoever does not want to know is not told.
            let _ = done.send(());
        }
        pending().await
    }

    fn take_over(&self, config: &Config) {
        self.live.change(config);
        if let (Some(tls), Some(new)) = (&self.clients, &config.tls) {
            tell("[tls]", tls.reload(&new.files));
        }
        if let (Some(tls), Some(new)) = (&self.upstream, &config.upstream_tls) {
            tell("[upstream]", tls.reload(&new.files));
        }
    }
}

fn tell(section: &str, reloaded: Result<(), TlsError>) {
    match reloaded {
        Ok(()) => info!("the certificates of {section} were read again, for new connections"),
        Err(error) => warn!(%error, "the certificates of {section} stay as they were"),
    }
}
