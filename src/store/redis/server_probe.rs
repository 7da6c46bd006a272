//! A look at the server behind the upstream's address, on a connection of its own.

use std::sync::Arc;

use tokio::time::timeout;

use super::{
    credentials::{Login, Text, ask_text, log_in},
    data_loss::{Identity, takes_no_writes},
    handshake::{NoLink, dial, is_full},
    settings::RedisSettings,
};
use crate::{auth::identity::Credentials, transport::stream::Stream};

/// What a new connection shows of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// No server serves there: the connection fails, or the server does not answer, or is still loading.
    Gone,
    /// A server answers, and does not say which one it is: the account lacks the rights.
    Unknown,
    /// This server answers: its process, and whether it is a replica.
    Server(String),
}

/// The probe.
#[derive(Debug)]
pub struct ServerProbe {
    settings: Arc<RedisSettings>,
}

impl ServerProbe {
    /// Creates a probe of the server with these settings.
    pub fn new(settings: Arc<RedisSettings>) -> Self {
        Self { settings }
    }

    /// Looks at the server, with lockgate's own account if it has one, else with these credentials. Takes at most the
    /// time to connect and the time for a reply.
    pub async fn look(&self, credentials: Option<&Credentials>) -> Sighting {
        let account = self.settings.own.as_ref().or(credentials);
        let sighted = match dial(&self.settings, self.settings.connect_deadline()).await {
            Ok(mut stream) => timeout(self.settings.timeout, look_on(&mut stream, account)).await,
            Err(_) => return Sighting::Gone,
        };
        match sighted {
            Ok(Ok(sighting)) => sighting,
            Ok(Err(NoLink::Refused(text) | NoLink::WrongPassword(text))) => of_error(&text),
            Ok(Err(NoLink::Failed(reason))) if is_full(reason.as_bytes()) => Sighting::Unknown,
            Ok(Err(NoLink::Failed(_))) | Err(_) => Sighting::Gone,
        }
    }
}

async fn look_on(stream: &mut Stream, account: Option<&Credentials>) -> Result<Sighting, NoLink> {
    if let Some(account) = account
        && let Login::Refused(text) = log_in(stream, account).await?
    {
        return Ok(of_error(&text));
    }
    let mut info = String::new();
    for section in [&b"replication"[..], b"server"] {
        let failed = |error: std::io::Error| NoLink::Failed(error.to_string());
        match ask_text(stream, &[b"INFO", section])
            .await
            .map_err(failed)?
        {
            Text::Given(text) => info.push_str(&text),
            Text::Error(text) => return Ok(of_error(&text)),
        }
    }
    let identity = Identity::read(&info);
    Ok(identity.map_or(Sighting::Unknown, |identity| {
        let is_replica = takes_no_writes(&info).is_some();
        Sighting::Server(format!("{} {is_replica}", identity.run_id))
    }))
}

/// A server that loads its data is new, and one that lost its master is no longer what it was.
fn of_error(text: &[u8]) -> Sighting {
    match text.split(|byte| *byte == b' ').next() {
        Some(b"LOADING" | b"MASTERDOWN") => Sighting::Gone,
        _ => Sighting::Unknown,
    }
}
