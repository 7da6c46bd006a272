//! The grace, which all instances keep together: for a while after Redis lost data, no free lock is granted, so
//! that every instance can notice the loss and write its leases back.
//!
//! **The mark** is a key in Redis itself, [`GRACE_KEY`] in database 0. It names the Redis for which the grace
//! began (its run id and replication id), and when the grace ends by the clock of Redis. The first instance
//! that meets a Redis without its mark begins the grace; all others read how much of it is left. So an instance
//! that starts later need not wait. A Redis that came back with other data, or another Redis at the same
//! address, has no mark of its own, or one of an earlier time: the mark also says when the grace began. An instance
//! that finds a loss begins a grace anew, unless one began since the instance last heard the previous Redis.
//!
//! **An instance that still writes back extends the grace** shortly before it ends, while it makes progress.
//! The other instances read the mark once more before they end the grace.
//!
//! If the user may not write the mark, each instance keeps the whole grace by itself, from its own start on.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};

use super::{
    data_loss::{Identity, left_ms},
    handshake::Subject,
    link::Link,
    scripts::{GRACE_KEY, error_text},
};
use crate::{clock, telemetry::metrics::upstream::Purpose};

/// How long before its end the grace is extended, at most a quarter of the time left. The other instances
/// read the mark half-way through that time.
const EXTENDED_BEFORE_END: Duration = Duration::from_millis(500);

/// The length of one extension.
const EXTENSION: Duration = Duration::from_secs(1);

/// No extension begins later than this after the connection opened.
const MOST_EXTENDED: Duration = Duration::from_secs(60);

/// Reads, begins or extends the mark.
const MARK: &str = include_str!("lua/mark.lua");

/// An operation on the mark.
#[derive(Debug, Clone, Copy)]
pub(super) enum MarkOperation {
    /// Begins the grace if this Redis has no mark.
    Begin(Duration),
    /// Begins the grace, unless it began within the time since the previous Redis was heard.
    BeginAnew { grace: Duration, unheard: Duration },
    /// Extends the grace to at least this long from now.
    Extend(Duration),
    /// Only reads what is left.
    Look,
}

/// Returns the command for this operation on the mark of this Redis.
pub(super) fn command(identity: &Identity, operation: MarkOperation) -> Cmd {
    let (word, length, unheard) = match operation {
        MarkOperation::Begin(length) => ("begin", length, Duration::ZERO),
        MarkOperation::BeginAnew { grace, unheard } => ("anew", grace, unheard),
        MarkOperation::Extend(length) => ("extend", length, Duration::ZERO),
        MarkOperation::Look => ("look", Duration::ZERO, Duration::ZERO),
    };
    let mut command = redis::cmd("EVAL");
    command.arg(MARK).arg(1).arg(GRACE_KEY);
    command.arg(&identity.run_id).arg(&identity.replication_id);
    command.arg(u8::from(!identity.was_replica));
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    command.arg(millis(length)).arg(word);
    command.arg(millis(length.max(MOST_EXTENDED)));
    command.arg(millis(unheard));
    command
}

/// Returns how much of the grace is left.
///
/// # Errors
/// Redis's error, or a note that the reply is unexpected.
pub(super) fn left(reply: Value) -> Result<Duration, String> {
    match reply {
        Value::Int(ms) => Ok(Duration::from_millis(u64::try_from(ms).unwrap_or_default())),
        Value::ServerError(error) => Err(String::from_utf8_lossy(&error_text(&error)).into_owned()),
        _ => Err("an answer that the script does not give".to_owned()),
    }
}

/// Sees each grace to its end on this connection: extends it while this instance still writes back, and
/// hears of it where another one does. Returns where the mark cannot be read or written: without an answer the next
/// connection sees to it, and without the right to, the grace ends by itself.
pub(super) async fn see_to_it(subject: Arc<Subject>, link: Arc<Link>, identity: Identity) {
    let mut graces = subject.data_loss.graces();
    loop {
        // Its sender lives as long as the subject.
        let begun = graces.wait_for(|until| left_ms(*until).is_some());
        if begun.await.map(drop).is_err() {
            return;
        }
        if see_to_its_end(&subject, &link, &identity).await.is_none() {
            return;
        }
    }
}

async fn see_to_its_end(subject: &Subject, link: &Link, identity: &Identity) -> Option<()> {
    let (data_loss, listener) = (&subject.data_loss, &subject.listener);
    let begun = clock::now();
    let mut recovering = usize::MAX;
    while let Some(left) = data_loss.grace_left() {
        let early = EXTENDED_BEFORE_END.min(left / 4);
        tokio::time::sleep(left - early).await;
        let rest = listener.recovering();
        let lasted = Duration::from_micros(clock::now().micros_since(begun));
        let extends = rest > 0 && rest < recovering && lasted < MOST_EXTENDED;
        let operation = if extends {
            if recovering == usize::MAX {
                tracing::warn!(
                    "writing leases back takes longer than write_back.grace; it goes on until this is done"
                );
            }
            recovering = rest;
            MarkOperation::Extend(EXTENSION)
        } else {
            if rest > 0 {
                tracing::warn!(
                    "leases are not written back in time: other instances may grant their locks"
                );
            }
            tokio::time::sleep(early / 2).await;
            MarkOperation::Look
        };
        let reply = link
            .send(Purpose::Setup, &command(identity, operation))
            .await;
        let now_left = self::left(reply?).ok()?;
        data_loss.begin_grace(now_left);
        if !extends && now_left <= early {
            // Nothing extends it any more.
            tokio::time::sleep(data_loss.grace_left().unwrap_or_default()).await;
        }
    }
    Some(())
}
