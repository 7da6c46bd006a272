//! Accepts clients, up to a limit, and drains them at the end.
//!
//! A client counts from the moment when its connection is accepted: one that never ends its TLS handshake
//! takes a place until its time is up, and no more than that.

use std::{
    future::{Future, poll_fn},
    io,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{io::AsyncWriteExt, sync::watch, task::JoinSet};
use tracing::{info, warn};

use crate::{
    client::{self, Shared},
    error::MAX_CLIENTS,
    transport::{
        listener::{Accepted, Listener},
        stream::Stream,
    },
};

mod refusals;

use refusals::Refusals;

/// How often to look whether the last questions were answered, at the end.
const LOOK_FOR_ANSWERS: Duration = Duration::from_millis(1);

/// How long to wait after the system had no socket for a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves clients until `shutdown` completes, then lets what runs finish, for as long as `drain`.
pub async fn serve(
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
    drain: Duration,
    shutdown: impl Future<Output = ()>,
) {
    let (draining, watch) = watch::channel(false);
    let mut sessions = JoinSet::new();
    tokio::select! {
        () = accept(&listeners, &shared, &mut sessions, &watch) => {}
        () = shutdown => {}
    }
    drop(listeners);
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
    listeners: &[Listener],
    shared: &Arc<Shared>,
    sessions: &mut JoinSet<()>,
    draining: &watch::Receiver<bool>,
) {
    let mut next_id = 0;
    let mut full = false;
    let mut first = 0;
    let refusals = Arc::new(Refusals::default());
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(|cx| poll_accept(listeners, first, cx)) => accepted,
            // A session that ended is forgotten at once, not when somebody else comes.
            Some(_) = sessions.join_next() => continue,
        };
        // Those who come in at one place do not keep out those at another.
        first = (first + 1) % listeners.len();
        let accepted = match accepted {
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
            tokio::spawn(refuse(accepted));
            continue;
        }
        full = false;
        next_id += 1;
        let (shared, draining) = (Arc::clone(shared), draining.clone());
        let refusals = Arc::clone(&refusals);
        sessions.spawn(async move {
            shared.clients.fetch_add(1, Ordering::Relaxed);
            let (counted, peer) = (Arc::clone(&shared), accepted.peer.to_string());
            if let Some(stream) = admit(accepted, &refusals, draining.clone()).await {
                client::serve(shared, stream, peer, next_id, draining).await;
            }
            counted.clients.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// The connection of a client that may be served, once its handshake is done.
async fn admit(
    accepted: Accepted,
    refusals: &Refusals,
    mut draining: watch::Receiver<bool>,
) -> Option<Stream> {
    if accepted.tls.is_none() {
        return Some(accepted.stream);
    }
    let peer = accepted.peer.clone();
    // On the heap, or every client's task would keep the room that a handshake takes.
    let handshake = Box::pin(accepted.secure());
    let secured = tokio::select! {
        secured = handshake => secured,
        _ = draining.wait_for(|draining| *draining) => return None,
    };
    match secured {
        Ok(stream) => Some(stream),
        Err(error) => {
            refusals.tell(&peer, &format_args!("TLS: {error}"));
            None
        }
    }
}

/// The next client, of any listener, beginning with the `first`.
fn poll_accept(
    listeners: &[Listener],
    first: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Accepted>> {
    let (before, from_first) = listeners.split_at(first);
    for listener in from_first.iter().chain(before) {
        if let Poll::Ready(accepted) = listener.poll_accept(cx) {
            return Poll::Ready(accepted);
        }
    }
    Poll::Pending
}

fn log_refusal(error: &io::Error) {
    warn!(%error, "cannot accept a client; is the limit of open files too low?");
}

/// One client too many is told so, if it takes it at once. Before a handshake nothing can be told.
async fn refuse(accepted: Accepted) {
    let Accepted {
        mut stream,
        tls: None,
        ..
    } = accepted
    else {
        return;
    };
    let text = format!("-{MAX_CLIENTS}\r\n");
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(text.as_bytes())).await;
}
