//! `INFO`: the fields that libraries look for (version, loading, role, cluster), and the state of this
//! instance. It invents nothing: fields of Redis that have no meaning here are left out.

use std::fmt::Write as _;

use bytes::Bytes;

use super::{LOCKGATE_VERSION, REDIS_VERSION};
use crate::{
    lock::Time,
    resp::Writer,
    telemetry::{counters::Counters, metrics::Measured},
    transport::endpoint::Endpoint,
};

/// The state of this instance when a command arrives.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The current time.
    pub now: Time,
    /// The time at which this instance started.
    pub started: Time,
    /// Forty hexadecimal digits, new with each start.
    pub run_id: &'a str,
    /// The port that clients connect to; 0 without a TCP listener.
    pub port: u16,
    /// The number of connected clients.
    pub clients: usize,
    /// The maximum number of clients.
    pub max_clients: usize,
    /// The number of requests that wait for a lock.
    pub waiters: usize,
    /// The number of locks held or waited for at this instance.
    pub locks: usize,
    /// Replies kept for clients that have not read them, in bytes.
    pub kept_reply_bytes: usize,
    /// The event counters.
    pub counters: &'a Counters,
    /// The metrics.
    pub measured: Measured<'a>,
    /// The upstream Redis; `None` where this process keeps the locks.
    pub upstream: Option<&'a Endpoint>,
}

type Section = (
    &'static str,
    fn(&mut String, &Facts<'_>) -> std::fmt::Result,
);

/// The sections by name, in their order in the reply.
const SECTIONS: [Section; 6] = [
    ("Server", server),
    ("Clients", clients),
    ("Persistence", persistence),
    ("Replication", replication),
    ("Cluster", cluster),
    ("Lockgate", lockgate),
];

/// Writes the reply to `INFO`, with these sections, or with all of them if none is named.
pub(super) fn write(sections: &[Bytes], facts: &Facts<'_>, out: &mut Writer<'_>) {
    let wanted: Vec<String> = SECTIONS
        .iter()
        .filter(|(name, _)| is_wanted(name, sections))
        .map(section(facts))
        .collect();
    out.verbatim(&wanted.join("\r\n"));
}

/// Returns whether the reply to `INFO` with these arguments includes the section `lockgate`.
pub fn wants_lockgate_section(sections: &[Bytes]) -> bool {
    is_wanted("Lockgate", sections)
}

/// Returns the section `lockgate` with its heading, for the reply of the upstream Redis too. Its lines end in
/// `\r\n`.
pub fn lockgate_section(facts: &Facts<'_>) -> String {
    section(facts)(&("Lockgate", lockgate))
}

fn is_wanted(name: &str, sections: &[Bytes]) -> bool {
    sections.is_empty()
        || sections.iter().any(|section| {
            [name, "default", "all", "everything"]
                .iter()
                .any(|word| section.eq_ignore_ascii_case(word.as_bytes()))
        })
}

fn section<'a>(facts: &'a Facts<'_>) -> impl Fn(&Section) -> String + 'a {
    move |(name, fields)| {
        let mut text = format!("# {name}\r\n");
        // Writing into a string cannot fail.
        let _ = fields(&mut text, facts);
        text
    }
}

fn server(text: &mut String, facts: &Facts<'_>) -> std::fmt::Result {
    let uptime_s = facts.now.millis_since(facts.started) / 1_000;
    write!(text, "redis_version:{REDIS_VERSION}\r\n")?;
    write!(text, "redis_mode:standalone\r\n")?;
    write!(
        text,
        "os:{} {}\r\n",
        std::env::consts::OS,
        std::env::consts::ARCH
    )?;
    write!(text, "arch_bits:{}\r\n", usize::BITS)?;
    write!(text, "process_id:{}\r\n", std::process::id())?;
    write!(text, "run_id:{}\r\n", facts.run_id)?;
    write!(text, "tcp_port:{}\r\n", facts.port)?;
    write!(text, "uptime_in_seconds:{uptime_s}\r\n")?;
    write!(text, "uptime_in_days:{}\r\n", uptime_s / 86_400)
}

fn clients(text: &mut String, facts: &Facts<'_>) -> std::fmt::Result {
    write!(text, "connected_clients:{}\r\n", facts.clients)?;
    write!(text, "maxclients:{}\r\n", facts.max_clients)?;
    write!(text, "blocked_clients:{}\r\n", facts.waiters)
}

fn persistence(text: &mut String, _facts: &Facts<'_>) -> std::fmt::Result {
    write!(text, "loading:0\r\n")
}

fn replication(text: &mut String, _facts: &Facts<'_>) -> std::fmt::Result {
    write!(text, "role:master\r\nconnected_slaves:0\r\n")
}

fn cluster(text: &mut String, _facts: &Facts<'_>) -> std::fmt::Result {
    write!(text, "cluster_enabled:0\r\n")
}

fn lockgate(text: &mut String, facts: &Facts<'_>) -> std::fmt::Result {
    let uptime_s = facts.now.millis_since(facts.started) / 1_000;
    write!(text, "lockgate_version:{LOCKGATE_VERSION}\r\n")?;
    write!(text, "lockgate_process_id:{}\r\n", std::process::id())?;
    write!(text, "lockgate_run_id:{}\r\n", facts.run_id)?;
    write!(text, "lockgate_tcp_port:{}\r\n", facts.port)?;
    write!(text, "lockgate_uptime_in_seconds:{uptime_s}\r\n")?;
    match facts.upstream {
        Some(upstream) => write!(text, "lockgate_upstream:{upstream}\r\n")?,
        None => write!(text, "lockgate_upstream:embedded\r\n")?,
    }
    write!(text, "lockgate_clients:{}\r\n", facts.clients)?;
    write!(text, "lockgate_maxclients:{}\r\n", facts.max_clients)?;
    write!(text, "lockgate_locks:{}\r\n", facts.locks)?;
    write!(text, "lockgate_waiters:{}\r\n", facts.waiters)?;
    write!(
        text,
        "lockgate_kept_reply_bytes:{}\r\n",
        facts.kept_reply_bytes
    )?;
    for (name, _, value) in facts.counters.each() {
        write!(text, "lockgate_{name}:{value}\r\n")?;
    }
    for (name, value) in facts.measured.fields() {
        write!(text, "{name}:{value}\r\n")?;
    }
    Ok(())
}
