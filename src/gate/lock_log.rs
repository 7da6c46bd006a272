//! The log of locks.
//!
//! - At `debug`, the life of each lock: asked, granted, extended, and how it ended.
//! - Waits and holds that lasted long ([`SlowLog`]), and how they ended.
//! - Sessions that were lost.
//!
//! Each line names the lock, and the client by its address and its own name. No line shows a token.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tracing::{debug, info, warn};

use super::{Label, dispatch::Caller};
use crate::{
    error,
    lock::{EndReason, GrantKind, Reply, Time},
    store::LockName,
    telemetry::{escape::escape, log_limit::LogLimit, metrics::locks::Request, slow_log::SlowLog},
};

/// The target of these lines, for a filter such as `info,lockgate::locks=debug`.
const TARGET: &str = "lockgate::locks";

/// Lines a minute about long waits, and as many about long holds: a client can cause them as often as it likes. Where
/// every wait or hold is logged, there is no limit.
const SLOW_A_MINUTE: u64 = 600;

/// Lines a minute about lost sessions: a client can delete its own lock.
const LOST_A_MINUTE: u64 = 600;

/// The log of locks.
#[derive(Debug)]
pub(super) struct LockLog {
    slow: Arc<SlowLog>,
    waits: LogLimit,
    holds: LogLimit,
    lost: LogLimit,
}

/// Writes a line about a lock and a client, with further fields.
macro_rules! line {
    ($level:ident, $name:expr, $client:expr, $($rest:tt)*) => {{
        let (name, client): (&LockName, Option<&Label>) = ($name, $client);
        $level!(
            target: TARGET,
            lock = %escape(&name.key),
            database = name.database,
            client = client.map(|it| escape(it.address.as_bytes())),
            client_name = client.map(Label::name).filter(|it| !it.is_empty()),
            $($rest)*
        );
    }};
}

impl LockLog {
    pub(super) fn new(slow: Arc<SlowLog>) -> Self {
        Self {
            slow,
            waits: LogLimit::new(SLOW_A_MINUTE),
            holds: LogLimit::new(SLOW_A_MINUTE),
            lost: LogLimit::new(LOST_A_MINUTE),
        }
    }

    /// Logs a new request.
    pub(super) fn asked(&self, name: &LockName, caller: &Caller) {
        let command = match caller.asked {
            Request::Lock => "LOCK",
            Request::TryLock => "TRYLOCK",
            Request::Unlock => "UNLOCK",
            Request::Relock => "RELOCK",
            Request::Attempt => "an attempt",
            Request::Absorbed => "an absorbed command",
        };
        line!(debug, name, Some(&*caller.label), command, "asked");
    }

    /// Logs the reply to a request.
    pub(super) fn answered(&self, name: &LockName, caller: &Caller, reply: &Reply, now: Time) {
        let (client, waited_ms) = (Some(&*caller.label), now.millis_since(caller.since));
        match reply {
            Reply::Granted {
                until,
                session,
                how,
                ..
            } => {
                let (how, lease_ms) = (kind(*how), until.millis_since(now));
                line!(
                    debug, name, client, waited_ms, how, lease_ms, session, "granted"
                );
            }
            Reply::Done if caller.asked == Request::Relock => {
                line!(debug, name, client, "extended");
            }
            // The end of the lease has a line.
            Reply::Done => {}
            Reply::NotHeld | Reply::HeldByAnother => {
                line!(debug, name, client, "not held by this token");
            }
            Reply::Nil if caller.left => line!(debug, name, client, waited_ms, "left"),
            Reply::Nil if caller.asked == Request::Lock => {
                line!(debug, name, client, waited_ms, "timed out");
            }
            Reply::Nil => line!(debug, name, client, waited_ms, "held or awaited"),
            Reply::Refused(refusal) => {
                line!(
                    debug,
                    name,
                    client,
                    waited_ms,
                    error = escape(&error::refusal(refusal)),
                    "refused"
                );
            }
        }
        if caller.asked == Request::Lock {
            self.waited(
                name,
                caller,
                waited_ms,
                match reply {
                    Reply::Granted { .. } => "granted",
                    Reply::Nil if caller.left => "left",
                    Reply::Nil => "timed out",
                    _ => "refused",
                },
            );
        }
    }

    /// Logs that a client left before the reply.
    pub(super) fn left(&self, name: &LockName, caller: &Caller, now: Time) {
        let waited_ms = now.millis_since(caller.since);
        line!(debug, name, Some(&*caller.label), waited_ms, "left");
        if caller.asked == Request::Lock {
            self.waited(name, caller, waited_ms, "left");
        }
    }

    fn waited(&self, name: &LockName, caller: &Caller, waited_ms: u64, ended: &str) {
        if let Some(left_out) = is_due(&self.waits, waited_ms, self.slow.wait_ms()) {
            let client = Some(&*caller.label);
            line!(info, name, client, waited_ms, ended, left_out, "slow wait");
        }
    }

    /// Logs the end of a lease that this client got, as far as that is known.
    pub(super) fn lease_over(
        &self,
        name: &LockName,
        holder: Option<&Label>,
        since: Time,
        how: EndReason,
        now: Time,
    ) {
        let held_ms = now.millis_since(since);
        let ended = match how {
            EndReason::Released => "released",
            EndReason::HandedOver => "handed over",
            EndReason::RanOut => "expired",
            EndReason::Lost => "lost",
        };
        line!(debug, name, holder, held_ms, "{ended}");
        if let Some(left_out) = is_due(&self.holds, held_ms, self.slow.hold_ms()) {
            let since = SystemTime::now().checked_sub(Duration::from_millis(held_ms));
            let since = since.map(|since| humantime::format_rfc3339_millis(since).to_string());
            line!(
                info,
                name,
                holder,
                since,
                held_ms,
                ended,
                left_out,
                "slow hold"
            );
        }
    }

    /// Logs that a lease is no longer bound to its client's connection, and the client did not bring that about.
    pub(super) fn session_lost(&self, name: &LockName, owner: Option<&Label>, cause: &str) {
        if let Some(left_out) = self.lost.is_due() {
            line!(warn, name, owner, cause, left_out, "session lost");
        }
    }
}

/// Returns whether a line is due about what lasted this long, as the number of lines left out before.
fn is_due(limit: &LogLimit, lasted_ms: u64, from_ms: u64) -> Option<u64> {
    match from_ms {
        0 => Some(0),
        _ if lasted_ms < from_ms => None,
        _ => limit.is_due(),
    }
}

fn kind(how: GrantKind) -> &'static str {
    match how {
        GrantKind::Free => "free",
        GrantKind::Handover => "handover",
        GrantKind::Waited => "waited",
        GrantKind::Again => "again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_one_is_due_where_every_one_is_wanted_and_a_number_a_minute_otherwise() {
        let limit = LogLimit::new(2);
        let due = |lasted_ms, from_ms| is_due(&limit, lasted_ms, from_ms).is_some();
        assert_eq!(
            [1, 2, 3, 4].map(|lasted_ms| due(lasted_ms, 2)),
            [false, true, true, false]
        );
        assert_eq!([0, 1, 2].map(|lasted_ms| due(lasted_ms, 0)), [true; 3]);
    }
}
