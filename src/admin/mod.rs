//! The admin address: an operator, or a program on an operator's behalf, looks in over HTTP. Off unless
//! the configuration names an address (`admin.listen`).
//!
//! | route | answers |
//! | --- | --- |
//! | `GET /healthz` | 200 as long as the process serves |
//! | `GET /readyz` | 200 when Redis can be reached and answers, and the gate takes clients; else 503 and why |
//! | `GET /` | the page: what is held and awaited now, and the last minutes |
//! | `GET /events` | what the page shows, once a second, as server-sent events |
//! | `GET /metrics` | what is [measured](crate::metrics), for Prometheus |
//!
//! It is read-only, asks nobody for a password, and never shows a token.
//!
//! Nothing that happens here may matter to clients, so it has a thread and a runtime of its own: a flood
//! of requests costs what the system gives to one thread more, and a panic ends one connection. Every
//! connection, request and write has a bound: the constants of [`connection`].
//!
//! - [`connection`]: one connection, and the bounds of all of them.
//! - [`routes`]: what is answered to which request.
//! - [`readers`]: those who look at the page, and what they are told; [`history`]: the last minutes.
//! - [`readiness`]: whether Redis answers, asked once for all who want to know.

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

use crate::{
    gate::Gate, limits::ADMIN_CONNECTIONS, lock::Time, metrics::exposition::Family, seldom::Seldom,
};

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

/// How long to wait after the system had no socket for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is looked at.
pub struct Subject {
    /// Where clients wait for locks.
    pub gate: Arc<Gate>,
    /// Everything that is measured.
    pub families: Box<dyn Fn() -> Vec<Family> + Send + Sync>,
    /// How many clients are connected now.
    pub clients: Box<dyn Fn() -> usize + Send + Sync>,
    /// How many may be.
    pub max_clients: Box<dyn Fn() -> usize + Send + Sync>,
    /// Where Redis is; none where locks live in this process.
    pub upstream: Option<String>,
    /// When the gate started.
    pub started: Time,
    /// Names of this address beside its IP addresses and `localhost`, in lower case.
    pub hosts: Vec<String>,
}

/// How far the gate is with its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    /// No new clients; those who are there are let finish.
    Draining,
    Over,
}

/// The admin address, while it is served. Dropped, it ends.
#[derive(Debug)]
pub struct Admin {
    stage: watch::Sender<Stage>,
    /// Nothing is ever sent: it closes when the thread is done.
    done: oneshot::Receiver<()>,
}

impl Admin {
    /// Serves this address from now on. Where the system has no thread for it, the log says so, and
    /// clients are served without.
    pub fn start(listener: StdListener, subject: Subject) -> Self {
        let (stage, watch) = watch::channel(Stage::Serving);
        let (running, done) = oneshot::channel();
        let thread = thread::Builder::new().name("admin".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = run(listener, subject, watch) {
                error!(%error, "the admin address is not served");
            }
            drop(running);
        });
        if let Err(error) = started {
            error!(%error, "the admin address is not served: no thread for it");
        }
        Self { stage, done }
    }

    /// The gate shuts down: it is not ready any more.
    pub fn drain(&self) {
        self.stage.send_replace(Stage::Draining);
    }

    /// Ends it; returns when nothing listens any more.
    pub async fn end(self) {
        self.stage.send_replace(Stage::Over);
        // Closed without a message: that is the end.
        let _ = self.done.await;
    }
}

/// Whether only this machine can reach the address.
pub fn is_private(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

fn run(listener: StdListener, subject: Subject, stage: watch::Receiver<Stage>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let (mut over, mut draining) = (stage.clone(), stage.clone());
        let readiness = Arc::new(Readiness::new(Arc::clone(&subject.gate)));
        let (gate, hosts) = (Arc::clone(&subject.gate), Hosts::new(subject.hosts.clone()));
        let watch = Arc::new(Watch::new(subject, Arc::clone(&readiness)));
        let routes = Arc::new(Routes {
            readiness,
            hosts,
            watch: Arc::clone(&watch),
            stage,
        });
        tokio::spawn(Arc::clone(&watch).go_on());
        tokio::spawn(async move {
            // Where the sender is gone, so is everything.
            let _ = draining.wait_for(|stage| *stage >= Stage::Draining).await;
            watch.end();
        });
        tokio::select! {
            () = accept(&listener, &routes, &gate) => {}
            // The sender is gone where the gate is.
            _ = over.wait_for(|stage| *stage == Stage::Over) => {}
        }
        Ok(())
    });
    // Connections that are still open end; a name that is being looked up is not waited for.
    runtime.shutdown_background();
    served
}

/// Accepts connections for ever. One too many is closed.
async fn accept(listener: &TcpListener, routes: &Arc<Routes>, gate: &Gate) {
    let places = Arc::new(Semaphore::new(ADMIN_CONNECTIONS));
    let untold = Seldom::new(1);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    gate.counters().refused_operators.count();
                    continue;
                };
                let routes = Arc::clone(routes);
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
