//! The examination of a Redis: tries what lockgate needs of it, and finds what locks lose where Redis denies something.
//!
//! - **It connects as lockgate does**, with the account and the scripts of lockgate's own requests.
//! - **It disturbs no instance and leaves nothing behind.** Its lock has a random name and a short lease, and is deleted.
//!   It reads `lockgate:fence` and `lockgate:grace`, and tries the right to write them by an empty `SETRANGE`, which
//!   changes nothing. It sets `lockgate:ack` only where the key exists.
//! - **Each step is bounded**: a connection by `upstream.connect_timeout`, a reply by `upstream.timeout`. The first
//!   missing reply ends the examination.

use self::examination::Examination;
use super::{handshake::NoLink, settings::RedisSettings};
use crate::telemetry::escape::escape;

mod examination;

/// The needs, in the order of the report.
const NEEDS: [&str; 13] = [
    CONNECTION, WRITES, ONE_NODE, SCRIPTS, DEADLINES, PUSHES, IDENTITY, MARK, FENCES, LATE, RESET,
    REPLICAS, MEMORY,
];
const CONNECTION: &str = "connection";
const WRITES: &str = "writes";
const ONE_NODE: &str = "one node";
const SCRIPTS: &str = "EVAL, EVALSHA";
const DEADLINES: &str = "PEXPIRETIME";
const PUSHES: &str = "tracking";
const IDENTITY: &str = "INFO";
const MARK: &str = "lockgate:grace";
const FENCES: &str = "lockgate:fence";
const LATE: &str = "CLIENT KILL";
const RESET: &str = "RESET";
const REPLICAS: &str = "WAIT";
const MEMORY: &str = "eviction";

/// The result for one need.
#[derive(Debug)]
pub struct Finding {
    /// The need.
    pub need: &'static str,
    /// Whether Redis meets it.
    pub state: State,
    /// What that means for locks, with Redis's own error. Printable, without passwords.
    pub means: String,
    /// What to change; empty if nothing.
    pub change: &'static str,
}

/// Whether Redis meets a need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It does.
    Works,
    /// It does not. Locks work, with less comfort or less safety.
    Degraded,
    /// It does not, and a lock cannot be taken, or not safely.
    Fails,
    /// Redis does not tell.
    Unknown,
    /// Not tried, for lack of another need.
    Untried,
}

/// Examines the Redis of these settings, where this number of replicas has to acknowledge each grant that names none.
pub async fn examine(settings: &RedisSettings, replicas: u32) -> Vec<Finding> {
    let mut findings = match Examination::begin(settings, replicas).await {
        Ok(mut examination) => {
            if let Err(no_link) = examination.run().await {
                examination.findings[0] = unreachable(no_link, settings);
            }
            examination.end().await
        }
        Err(no_link) => vec![unreachable(no_link, settings)],
    };
    for need in NEEDS {
        if findings.iter().all(|finding| finding.need != need) {
            findings.push(Finding {
                need,
                state: State::Untried,
                means: String::new(),
                change: "",
            });
        }
    }
    findings.sort_by_key(|finding| NEEDS.iter().position(|need| *need == finding.need));
    findings
}

fn unreachable(no_link: NoLink, settings: &RedisSettings) -> Finding {
    let change = match (&no_link, &settings.own) {
        (NoLink::Failed(_), _) => "correct upstream.url, or what is between lockgate and Redis",
        (_, None) => {
            "name a user that takes locks, to examine Redis as that user: --upstream redis://user:password@host"
        }
        (_, Some(_)) => "correct upstream.user and its password, or that user's rights",
    };
    let reason = escape(no_link.reason().as_bytes());
    Finding {
        need: CONNECTION,
        state: State::Fails,
        means: format!("no lock can be taken: {}: {reason}", settings.endpoint),
        change,
    }
}

/// Returns what to change where Redis refuses this need with this error.
fn cure(need: &'static str, error: &str) -> &'static str {
    match error.split(' ').next().unwrap_or_default() {
        "READONLY" => "lead upstream.url to the one master that takes all writes",
        "LOADING" | "BUSY" | "MASTERDOWN" => "wait, and examine Redis again",
        "NOREPLICAS" => "connect the replicas that min-replicas-to-write asks for",
        "MISCONF" => "mend Redis's disk; its log has the reason",
        "OOM" => "give Redis more memory (maxmemory)",
        "CLUSTERDOWN" | "CROSSSLOT" | "MOVED" => "turn cluster mode off: lockgate serves one node",
        "NOAUTH" | "NOPERM" => {
            "give the user what docs/access.md lists, and the key pattern of this examination, or examine Redis as \
             another user: --upstream redis://user:password@host"
        }
        _ if error.contains("unknown command") => match need {
            SCRIPTS => {
                "leave these commands their names; a service without them cannot serve locks"
            }
            _ => "leave the command its name (rename-command), or use a version that has it",
        },
        _ if need == PUSHES => "use Redis 6.2.9 or 7.0.5, or newer",
        _ if need == LATE => "allow CLIENT INFO and CLIENT KILL, or use Redis 6.2 or newer",
        _ if need == FENCES => "delete lockgate:fence",
        _ => "see docs/deploying.md",
    }
}
