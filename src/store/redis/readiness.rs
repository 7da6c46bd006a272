//! The readiness check: whether Redis would serve a new client. It opens a connection of its own, because a
//! shared one does not show that Redis has reached its client limit, or that new connections fail.

use tokio::time::timeout;

use super::{
    credentials::{Line, Login, ask, log_in},
    handshake::{NoLink, dial, lossy},
    settings::RedisSettings,
};

/// Checks whether Redis replies, with lockgate's own account if it has one. Takes at most the time to connect
/// and the time for a reply.
///
/// # Errors
/// The reason, in one line. (Before authentication, Redis does not report that it is still loading.)
pub(super) async fn is_ready(settings: &RedisSettings) -> Result<(), String> {
    let answered = match dial(settings, settings.connect_deadline()).await {
        Ok(mut stream) => timeout(settings.timeout, async {
            if let Some(own) = &settings.own
                && let Login::Refused(text) = log_in(&mut stream, own).await?
            {
                return Err(NoLink::WrongPassword(text));
            }
            let answer = ask(&mut stream, &[b"PING"]).await;
            match answer.map_err(|error| NoLink::Failed(error.to_string()))? {
                Line::Error(text) if !asks_who_it_is(&text) => Err(NoLink::Refused(text)),
                Line::Good | Line::Error(_) => Ok(()),
            }
        })
        .await
        .unwrap_or_else(|_| Err(NoLink::Failed("it does not answer".to_owned()))),
        Err(no_link) => Err(no_link),
    };
    answered.map_err(|no_link| {
        settings.unreachable(&match no_link {
            NoLink::Failed(reason) => reason,
            NoLink::Refused(text) | NoLink::WrongPassword(text) => lossy(&text),
        })
    })
}

/// Returns whether the error only means that this connection lacks credentials or rights: Redis serves clients
/// that have them.
fn asks_who_it_is(error: &[u8]) -> bool {
    error.starts_with(b"NOAUTH") || error.starts_with(b"NOPERM")
}
