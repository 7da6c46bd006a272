//! Reloading at run time: on SIGHUP the program reads the configuration again, and the TLS files, the password and
//! the values of [`LiveConfig`] change. Connected clients stay connected; later connections use the new values. Where a
//! TLS file cannot be used, the old ones stay, and the log names the error.

use std::{convert::Infallible, future::pending, sync::Arc};

use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
};
use tracing::{info, warn};

use crate::{
    config::{Config, live::LiveConfig},
    transport::tls::{TlsClient, TlsError, TlsServer},
};

/// The configuration keys that a reload changes. The program itself handles `log`.
pub const RELOADED: [&str; 18] = [
    "log",
    "log_slow_wait",
    "log_slow_hold",
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
    "absorb.keys",
    "absorb.try_keys",
    "absorb.park",
    "absorb.release_scripts",
];

/// A configuration that was reloaded and checked.
#[derive(Debug)]
pub struct ReloadRequest {
    /// The configuration to put in force, as far as that needs no restart.
    pub config: Config,
    /// Notified once it is in force.
    pub done: oneshot::Sender<()>,
}

/// The values that a reload changes.
#[derive(Debug, Clone)]
pub struct Reload {
    /// TLS towards clients: the certificate that they are shown, and the one that they have to show.
    pub clients: Option<Arc<TlsServer>>,
    /// TLS towards Redis: the certificate that Redis has to show, and the one that it is shown.
    pub upstream: Option<Arc<TlsClient>>,
    /// All other values.
    pub live: Arc<LiveConfig>,
}

impl Reload {
    /// Executes each request, forever.
    pub async fn execute(self, reloads: Option<mpsc::Receiver<ReloadRequest>>) -> Infallible {
        if let Some(mut reloads) = reloads {
            while let Some(ReloadRequest { config, done }) = reloads.recv().await {
                let reload = self.clone();
                // Reading the files blocks. Nothing in it panics.
                let _ = spawn_blocking(move || reload.take_over(&config)).await;
                // The receiver may be gone.
                let _ = done.send(());
            }
        }
        pending().await
    }

    fn take_over(&self, config: &Config) {
        self.live.change(config);
        if let (Some(tls), Some(new)) = (&self.clients, &config.tls) {
            tell("[tls]", tls.reload(&new.files));
        }
        if let (Some(tls), Some(new)) = (&self.upstream, &config.upstream.tls) {
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
