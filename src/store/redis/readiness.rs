//! The readiness check: whether Redis would serve a new client, and take a lock from it. It opens a connection of its
//! own, because a shared one does not show that Redis has reached its client limit, or that new connections fail.

use tokio::time::timeout;

use super::{
    can_lock::class,
    credentials::{Line, Login, ask, log_in, role},
    data_loss::{ACTIVE_REPLICA, role_without_writes},
    handshake::{NoLink, dial, is_full, lossy},
    scripts::FENCE_KEY,
    settings::RedisSettings,
};
use crate::transport::stream::Stream;

/// What Redis would say to a lock request.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Redis takes writes.
    Takes,
    /// Redis refuses every write: its own error.
    Refuses(String),
    /// Redis replies, and lockgate's own account lacks the rights to find out more.
    Unknown,
    /// Redis does not serve new clients: the reason.
    Unreachable(String),
}

/// Asks Redis, with lockgate's own account if it has one. Takes at most the time to connect and the time for a reply.
/// (Before authentication, Redis does not report that it is still loading.)
pub(super) async fn probe(settings: &RedisSettings) -> Verdict {
    let asked = match dial(settings, settings.connect_deadline()).await {
        Ok(mut stream) => timeout(settings.timeout, ask_on(&mut stream, settings))
            .await
            .unwrap_or_else(|_| Err(NoLink::Failed("it does not answer".to_owned()))),
        Err(no_link) => Err(no_link),
    };
    asked.unwrap_or_else(|no_link| unserved(no_link.reason()))
}

async fn ask_on(stream: &mut Stream, settings: &RedisSettings) -> Result<Verdict, NoLink> {
    if let Some(own) = &settings.own
        && let Login::Refused(text) = log_in(stream, own).await?
    {
        return Err(NoLink::WrongPassword(text));
    }
    let failed = |error: std::io::Error| NoLink::Failed(error.to_string());
    // Redis checks everything that it checks before a write, and an empty `SETRANGE` writes nothing.
    let write = ask(stream, &[b"SETRANGE", FENCE_KEY, b"0", b""]).await;
    let takes_writes = match write.map_err(failed)? {
        Line::Good => true,
        Line::Error(text) if class(&text).is_some() => {
            return Ok(Verdict::Refuses(lossy(&text)));
        }
        Line::Error(text) if is_full(&text) || text.starts_with(b"DENIED") => {
            return Err(NoLink::Refused(text));
        }
        Line::Error(_) => false,
    };
    let role = role(stream).await.map_err(failed)?;
    // Without write-back, a replica may take writes (and forget them), and the role may be unknown.
    let cares = settings.grace.is_some();
    let refuses = role.as_deref().and_then(role_without_writes);
    let refuses = refuses.filter(|error| cares || *error == ACTIVE_REPLICA);
    let knows_role = role.is_some() || !cares;
    Ok(match refuses {
        Some(error) => Verdict::Refuses(error.to_owned()),
        None if takes_writes && knows_role => Verdict::Takes,
        None => Verdict::Unknown,
    })
}

/// Returns the verdict for a connection that failed for this reason: a Redis that is loading replies to nothing else.
fn unserved(reason: String) -> Verdict {
    match class(reason.as_bytes()) {
        Some(_) => Verdict::Refuses(reason),
        None => Verdict::Unreachable(reason),
    }
}
