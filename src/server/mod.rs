//! Accepts clients, up to a limit, and drains them at shutdown.
//!
//! A client counts from the moment its connection is accepted: one that never finishes its TLS handshake occupies a
//! slot only until the handshake times out. Protected mode may refuse clients on other machines (`protected_mode`).

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
    error::MAX_CLIENTS,
    session::{self, Session, Shared},
    transport::{
        listener::{Accepted, Listener},
        stream::Stream,
    },
};

pub mod embedder;
pub mod files;
pub mod metrics;
mod protected_mode;
pub mod reload;

use protected_mode::ProtectedMode;

/// Interval at which the shutdown checks whether the last store requests were answered.
const LOOK_FOR_ANSWERS: Duration = Duration::from_millis(1);

/// Bound on sending a refused client its error.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// Pause after the system failed to supply a socket for a client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Clients that were not done within `drain` and were disconnected.
    pub cut: usize,
}

/// Serves clients until `shutdown` completes, then lets in-flight commands finish, for at most the `drain` in force
/// by then.
pub async fn serve(
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
    shutdown: impl Future<Output = ()>,
) -> Ended {
    let (draining, watch) = watch::channel(false);
    let mut sessions = JoinSet::new();
    tokio::select! {
        () = accept(&listeners, &shared, &mut sessions, &watch) => {}
        () = shutdown => {}
    }
    drop(listeners);
    info!(
        clients = sessions.len(),
        "no new clients; those that are there may finish"
    );
    // Fails only where no client is left to receive it.
    let _ = draining.send(true);
    let all_done = async {
        while sessions.join_next().await.is_some() {}
        // The releases that the clients left behind are in flight.
        while shared.gate.asking() > 0 {
            tokio::time::sleep(LOOK_FOR_ANSWERS).await;
        }
    };
    if tokio::time::timeout(shared.live.drain(), all_done)
        .await
        .is_err()
    {
        warn!(
            clients = sessions.len(),
            "not done in time; their connections are cut"
        );
    }
    Ended {
        cut: sessions.len(),
    }
}

/// Accepts clients forever.
async fn accept(
    listeners: &[Listener],
    shared: &Arc<Shared>,
    sessions: &mut JoinSet<()>,
    draining: &watch::Receiver<bool>,
) {
    let mut next_id = 0;
    let mut first = 0;
    let entrance = Arc::new(Entrance {
        protected_mode: ProtectedMode::default(),
    });
    loop {
        let accepted = tokio::select! {
            accepted = poll_fn(|cx| poll_accept(listeners, first, cx)) => accepted,
            // Reaps a finished session at once, not only when the next client arrives.
            Some(_) = sessions.join_next() => continue,
        };
        // The clients of one listener do not keep out those of another.
        first = (first + 1) % listeners.len();
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.counters().failed_accepts.count();
                if let Some(left_out) = shared.warnings.accepts.is_due() {
                    warn!(left_out, %error, "cannot accept a client; is the limit of open files too low?");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while sessions.try_join_next().is_some() {}
        let limit = shared.live.most_clients();
        if sessions.len() >= limit {
            shared.counters().refused_clients.count();
            if let Some(left_out) = shared.warnings.full.is_due() {
                warn!(limit, left_out, "max number of clients reached");
            }
            refuse(&accepted);
            continue;
        }
        next_id += 1;
        let (shared, draining) = (Arc::clone(shared), draining.clone());
        let entrance = Arc::clone(&entrance);
        shared.clients.fetch_add(1, Ordering::Relaxed);
        // On the heap: the client's task would keep room for all of it.
        let entering = Box::pin({
            let (shared, draining) = (Arc::clone(&shared), draining.clone());
            async move {
                let peer = accepted.peer.to_string();
                let stream = entrance.admit(&shared, accepted, draining).await?;
                // A socket that refuses options is closed already.
                Session::new(shared, stream, &peer, next_id).ok()
            }
        });
        sessions.spawn(async move {
            session::serve(entering.await, draining).await;
            shared.clients.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// The checks before a client is served.
struct Entrance {
    protected_mode: ProtectedMode,
}

impl Entrance {
    /// Returns the connection of a client that may be served.
    async fn admit(
        &self,
        shared: &Shared,
        accepted: Accepted,
        mut draining: watch::Receiver<bool>,
    ) -> Option<Stream> {
        if accepted.tls.is_none() && accepted.peer.is_local() {
            return Some(accepted.stream);
        }
        tokio::select! {
            examined = self.examine(shared, accepted) => examined,
            _ = draining.wait_for(|draining| *draining) => None,
        }
    }

    /// Performs the handshake and applies protected mode.
    async fn examine(&self, shared: &Shared, accepted: Accepted) -> Option<Stream> {
        let peer = accepted.peer.clone();
        let tls = accepted.tls.as_ref();
        let has_shown = tls.is_some_and(|tls| tls.demands_certificates());
        let stream = match accepted.secure().await {
            Ok(stream) => stream,
            Err(error) => {
                shared.counters().failed_handshakes.count();
                if let Some(left_out) = shared.warnings.handshakes.is_due() {
                    warn!(client = %peer, left_out, "a client was refused: TLS: {error}");
                }
                return None;
            }
        };
        if !peer.is_local()
            && let Some(error) = self.protected_mode.refuses(shared, has_shown).await
        {
            shared.counters().refused_from_elsewhere.count();
            last_words(stream, &error).await;
            return None;
        }
        Some(stream)
    }
}

/// Polls every listener for the next client, beginning with the `first`.
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

/// Sends a client above the limit its error. Before a TLS handshake no error can be sent.
fn refuse(accepted: &Accepted) {
    if accepted.tls.is_none() {
        let text = format!("-{MAX_CLIENTS}\r\n");
        accepted.stream.say_at_once(text.as_bytes());
    }
}

/// Sends an error, if the client takes it in time, and closes the connection.
async fn last_words(mut stream: Stream, error: &[u8]) {
    let text = [b"-", error, b"\r\n"].concat();
    let tell = async {
        stream.write_all(&text).await?;
        stream.shutdown().await
    };
    // The client may not read it.
    let _ = tokio::time::timeout(LAST_WORDS_WITHIN, tell).await;
}
