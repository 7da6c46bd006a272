//! What `INFO` says of a server: its identity, its role, its version, and whether it may drop locks.

use super::{
    data_loss::{ACTIVE_REPLICA, DataLossDetector, Identity, field, takes_no_writes},
    grace,
    handshake::{NoLink, info, lossy, say},
    scripts::{FENCE_KEY, error_text, is_passing},
    wire::Wire,
};
use crate::telemetry::metrics::upstream::Purpose;

/// The facts that `INFO` reports.
pub(super) struct ServerInfo {
    /// The server's identity, or why it cannot be read.
    pub(super) identity: Result<Identity, String>,
    /// Why the server takes no writes, in Redis's own words; none if it does, as far as is known.
    pub(super) takes_no_writes: Option<String>,
    /// The eviction policy by which Redis may drop a lock before its lease ends.
    pub(super) evicts: Option<String>,
    /// Why pushes of this server are of no use.
    pub(super) echoes: Option<String>,
}

impl ServerInfo {
    /// The sections of `INFO` that this is read from.
    pub(super) const SECTIONS: [&str; 4] = ["replication", "server", "persistence", "memory"];

    pub(super) fn read(info: &str) -> Self {
        let field = |name| field(info, name);
        let evicts = field("maxmemory_policy")
            .filter(|policy| *policy != "noeviction")
            .filter(|_| field("maxmemory").is_some_and(|bytes| bytes != "0"));
        Self {
            identity: Identity::read(info).ok_or_else(|| "INFO does not say".to_owned()),
            takes_no_writes: takes_no_writes(info).map(str::to_owned),
            evicts: evicts.map(str::to_owned),
            echoes: field("redis_version").and_then(echoes),
        }
    }

    fn unknown(reason: String) -> Self {
        let identity = Err(reason);
        Self {
            identity,
            ..Self::read("")
        }
    }
}

/// Reads the server's role; and if write-back is on, also its identity, its version, and the policy by which it evicts
/// keys when memory is short.
pub(super) async fn identify(
    wire: &Wire,
    data_loss: &DataLossDetector,
) -> Result<ServerInfo, NoLink> {
    let count = match data_loss.matters() {
        true => ServerInfo::SECTIONS.len(),
        false => 1,
    };
    let info = match info(wire, &ServerInfo::SECTIONS[..count]).await? {
        Ok(info) => info,
        Err(refusal) => return Ok(ServerInfo::unknown(refusal)),
    };
    let mut server = ServerInfo::read(&info);
    if !data_loss.matters() {
        server.identity = Err("it was not asked".to_owned());
        // A replica refuses by itself, in its replies to requests.
        server.takes_no_writes.take_if(|why| why != ACTIVE_REPLICA);
        return Ok(server);
    }
    if let Some(why) = &mut server.takes_no_writes {
        // Redis's own error says more. An empty `SETRANGE` writes nothing.
        let mut write = redis::cmd("SETRANGE");
        let refusal = say(wire, write.arg(FENCE_KEY).arg(0).arg("")).await?;
        if let Some(error) = refusal.err().filter(is_passing) {
            *why = lossy(&error_text(&error));
        }
    } else if let Ok(identity) = &mut server.identity
        && let Some(operation) = data_loss.mark_operation(identity)
    {
        let begin = grace::command(identity, operation);
        let reply = wire.send(Purpose::Setup, &begin).await?;
        identity.grace_left = grace::left(reply);
    }
    Ok(server)
}

/// Returns why pushes of this version of Redis are of no use, if they are: it pushes the changes of a connection's own
/// scripts back to the connection, in spite of `NOLOOP`, so lockgate would take them for changes by others. Redis mended
/// that in 7.0.5 (redis/redis#11052) and in 6.2: 6.2.7 does it, 6.2.9 does not.
fn echoes(version: &str) -> Option<String> {
    let mut numbers = version.trim().split('.').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let read: (u32, u32, u32) = (next()?, next()?, next()?);
    let is_mended = read >= (7, 0, 5) || ((6, 2, 9)..(7, 0, 0)).contains(&read);
    (!is_mended).then(|| {
        let version = version.trim();
        format!("Redis {version} pushes a connection's own changes by scripts, too (mended in 6.2.9 and 7.0.5)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_push_own_changes_are_known() {
        for version in ["5.0.14", "6.0.16", "6.2.7", "6.2.8", "7.0.0", "7.0.4\r"] {
            assert!(echoes(version).is_some(), "{version}");
        }
        for version in [
            "6.2.9",
            "6.2.14",
            "6.3.4",
            "7.0.5",
            "7.0.15",
            "7.2.4",
            "8.2.3",
            "255.255.255",
            "",
            "7",
            "x.y.z",
        ] {
            assert!(echoes(version).is_none(), "{version}");
        }
    }
}
