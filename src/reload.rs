//! What is read again when the operator says so (SIGHUP): the files of TLS. Who is connected stays
//! connected; who comes after that meets the new ones. Where anything is wrong with what was read, the old
//! stays, and the log says what is wrong.

use std::{convert::Infallible, sync::Arc};

use tokio::{sync::Notify, task::spawn_blocking};
use tracing::{info, warn};

use crate::transport::tls::{TlsClient, TlsError, TlsServer};

/// What can be read again.
#[derive(Debug, Clone, Default)]
pub struct Reload {
    /// What clients are shown and have to show.
    pub clients: Option<Arc<TlsServer>>,
    /// What Redis has to show and is shown.
    pub upstream: Option<Arc<TlsClient>>,
}

impl Reload {
    /// Reads all of it again, whenever told so; for ever.
    pub async fn whenever(self, told: &Notify) -> Infallible {
        loop {
            told.notified().await;
            let reload = self.clone();
            // It waits for a disk. Nothing in it panics.
            let _ = spawn_blocking(move || reload.all()).await;
        }
    }

    fn all(&self) {
        if let Some(tls) = &self.clients {
            tell("[tls]", tls.reload());
        }
        if let Some(tls) = &self.upstream {
            tell("[upstream]", tls.reload());
        }
        if self.clients.is_none() && self.upstream.is_none() {
            info!("there is nothing to read again");
        }
    }
}

fn tell(section: &str, reloaded: Result<(), TlsError>) {
    match reloaded {
        Ok(()) => info!("the certificates of {section} were read again, for new connections"),
        Err(error) => warn!(%error, "the certificates of {section} stay as they were"),
    }
}
