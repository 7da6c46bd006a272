//! The admin address: an HTTP interface for operators and their tools. Off unless the configuration names an
//! address (`admin.listen`).
//!
//! | route | response |
//! | --- | --- |
//! | `GET /healthz` | 200 while the process serves |
//! | `GET /readyz` | 200 when Redis takes locks and the instance accepts clients; else 503 and the reason |
//! | `GET /` | the page: the locks that are held and awaited now, and the last minutes |
//! | `GET /events` | the data of the page, once a second, as server-sent events; with `?find=TEXT` only the locks whose names contain the text |
//! | `GET /metrics` | the [metrics](crate::telemetry::metrics), for Prometheus |
//!
//! It is read-only, requires no password, and never shows a token.
//!
//! Nothing here may affect clients, so the admin address has a thread and a runtime of its own: a flood of requests
//! costs what the system gives to one more thread, and a panic ends one connection. Every connection, request and
//! write has a bound: the constants of [`connection`].
//!
//! - [`connection`]: one connection, and the bounds of all of them.
//! - [`routes`]: the response to each request.
//! - [`readers`]: the readers of the page, and their events; [`history`]: the last minutes.
//! - [`readiness`]: whether Redis takes locks, probed once for all requests.

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{
    net::TcpListener,
    runtime::Builder,
    sync::{Semaphore, oneshot, watch},
    time::sleep,
};
use tracing::{error, warn};

use crate::{limits::ADMIN_CONNECTIONS, session::Shared, telemetry::log_limit::LogLimit};

mod connection;
mod history;
mod host;
mod readers;
mod readiness;
mod routes;

use host::Hosts;
use readers::Watch;
use readiness::Readiness;
use routes::Routes;

/// Pause after the system failed to supply a socket for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The stage of the instance's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// New clients are refused; connected ones may finish.
    Draining,
    Over,
}

/// The admin address while it is served. Dropping it ends that.
#[derive(Debug)]
pub struct Admin {
    stage: watch::Sender<Stage>,
    /// Receives nothing: it closes when the thread is done.
    done: oneshot::Receiver<()>,
}

impl Admin {
    /// Starts to serve these listeners. `hosts` are their names beside IP addresses and `localhost`, in lower
    /// case. Where the system has no thread for it, the log says so, and clients are served without it.
    pub fn start(listeners: Vec<StdListener>, hosts: Vec<String>, shared: Arc<Shared>) -> Self {
        let (stage, watch) = watch::channel(Stage::Serving);
        let (running, done) = oneshot::channel();
        let thread = thread::Builder::new().name("admin".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = run(listeners, hosts, shared, watch) {
                error!(%error, "the admin address is not served");
            }
            drop(running);
        });
        if let Err(error) = started {
            error!(%error, "the admin address is not served: no thread for it");
        }
        Self { stage, done }
    }

    /// Marks the instance as shutting down, and so as not ready.
    pub fn drain(&self) {
        self.stage.send_replace(Stage::Draining);
    }

    /// Ends the admin address; returns once it is closed.
    pub async fn end(self) {
        self.stage.send_replace(Stage::Over);
        // Closes without a message when the thread is done.
        let _ = self.done.await;
    }
}

/// Returns whether only this machine can reach the address.
pub fn is_private(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn run(
    listeners: Vec<StdListener>,
    hosts: Vec<String>,
    shared: Arc<Shared>,
    stage: watch::Receiver<Stage>,
) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let listeners: io::Result<Vec<_>> =
            listeners.into_iter().map(TcpListener::from_std).collect();
        let listeners = listeners?;
        let (mut over, mut draining) = (stage.clone(), stage.clone());
        let readiness = Arc::new(Readiness::new(Arc::clone(&shared.gate)));
        let watch = Arc::new(Watch::new(Arc::clone(&shared), Arc::clone(&readiness)));
        let routes = Arc::new(Routes {
            readiness,
            hosts: Hosts::new(hosts),
            shared: Arc::clone(&shared),
            watch: Arc::clone(&watch),
            stage,
        });
        tokio::spawn(Arc::clone(&watch).go_on());
        tokio::spawn(async move {
            // Fails only where the sender is gone, which ends the readers, too.
            let _ = draining.wait_for(|stage| *stage >= Stage::Draining).await;
            watch.end();
        });
        let places = Arc::new(Semaphore::new(ADMIN_CONNECTIONS));
        for listener in listeners {
            let (places, routes) = (Arc::clone(&places), Arc::clone(&routes));
            tokio::spawn(accept(listener, places, routes, Arc::clone(&shared)));
        }
        // Fails only where the sender is gone, with the instance.
        let _ = over.wait_for(|stage| *stage == Stage::Over).await;
        Ok(())
    });
    // Closes the listeners and open connections, and does not wait for a name lookup that is still running.
    runtime.shutdown_background();
    served
}

/// Accepts connections forever. Closes a connection for which there is no place.
async fn accept(
    listener: TcpListener,
    places: Arc<Semaphore>,
    routes: Arc<Routes>,
    shared: Arc<Shared>,
) {
    let untold = LogLimit::new(1);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    shared.counters().refused_operators.count();
                    continue;
                };
                let routes = Arc::clone(&routes);
                tokio::spawn(async move {
                    connection::serve(stream, routes).await;
                    drop(place);
                });
            }
            Err(error) => {
                if let Some(left_out) = untold.is_due() {
                    warn!(left_out, %error, "cannot accept a connection at the admin address");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
