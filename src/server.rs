//! Accepts clients, up to a limit, and drains them at the end.

use std::{
    future::Future,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tracing::{info, warn};

use crate::{
    client::{self, Shared},
    error::MAX_CLIENTS,
};

/// How often to look whether the last questions were answered, at the end.
const LOOK_FOR_ANSWERS: Duration = Duration::from_millis(1);

/// How long to wait after the system had no socket for a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves clients until `shutdown` completes, then lets what runs finish, for as long as `drain`.
pub async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    drain: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let (draining, watch) = watch::channel(false);
    let mut sessions = JoinSet::new();
    tokio::select! {
        () = accept(&listener, &shared, &mut sessions, &watch) => {}
        () = shutdown => {}
    }
    drop(listener);
    info!(clients = sessions.len(), "shutting down");
    // Without clients nobody listens.
    let _ = draining.send(true);
    let all_done = async {
        while sessions.join_next().await.is_some() {}
        // What they left to be released is on its way.
        while shared.gate.asking() > 0 {
            tokio::time::sleep(LOOK_FOR_ANSWERS).await;
        }
    };
    if tokio::time::timeout(drain, all_done).await.is_err() {
        warn!(
            clients = sessions.len(),
            "not done in time; their connections are cut"
        );
    }
}

/// Accepts clients for ever.
async fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    sessions: &mut JoinSet<()>,
    draining: &watch::Receiver<bool>,
) {
    let mut next_id = 0;
    let mut full = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // A session that ended is forgotten at once, not when somebody else comes.
            Some(_) = sessions.join_next() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log_refusal(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while sessions.try_join_next().is_some() {}
        if sessions.len() >= shared.limits.clients {
            if !full {
                warn!(
                    limit = shared.limits.clients,
                    "max number of clients reached"
                );
            }
            full = true;
            tokio::spawn(refuse(stream));
            continue;
        }
        full = false;
        next_id += 1;
        let (shared, draining) = (Arc::clone(shared), draining.clone());
        sessions.spawn(async move {
            shared.clients.fetch_add(1, Ordering::Relaxed);
            let counted = Arc::clone(&shared);
            client::serve(shared, stream, peer.to_string(), next_id, draining).await;
            counted.clients.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn log_refusal(error: &io::Error) {
    warn!(%error, "cannot accept a client; is the limit of open files too low?");
}

/// One client too many is told so, if it takes it at once.
async fn refuse(mut stream: TcpStream) {
    let text = format!("-{MAX_CLIENTS}\r\n");
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(text.as_bytes())).await;
}
