//! The metrics of an instance, as `GET /metrics` on the admin address returns them.

use std::sync::atomic::Ordering;

use crate::{
    session::Shared,
    telemetry::metrics::{
        exposition::{self, Family, Sample},
        process,
    },
};

/// Returns all metrics as text.
pub fn text(shared: &Shared) -> String {
    exposition::text(&families(shared))
}

/// Returns all metrics before they are written as text.
fn families(shared: &Shared) -> Vec<Family> {
    let mut families = about(shared);
    families.extend(shared.measured().families());
    families.extend(process::families(shared.started_at));
    families
}

fn about(shared: &Shared) -> Vec<Family> {
    let gate = &shared.gate;
    let reasons = shared.counters().each();
    let refusals = reasons.map(|(reason, _, count)| Sample::of("reason", reason, count));
    vec![
        Family::info(
            "lockgate_build_info",
            "Always 1; the labels say what is running, the commit only in a release build that knows it.",
            vec![
                ("version", env!("CARGO_PKG_VERSION")),
                ("commit", env!("BUILT_FROM_COMMIT")),
            ],
        ),
        Family::gauge(
            "lockgate_clients",
            "Clients connected now.",
            shared.clients.load(Ordering::Relaxed),
        ),
        Family::gauge(
            "lockgate_clients_limit",
            "Clients that may be connected (limits.clients).",
            shared.live.most_clients(),
        ),
        Family::gauge(
            "lockgate_locks",
            "Locks that this instance knows of: held, waited for, or being asked about.",
            gate.known(),
        ),
        Family::gauge(
            "lockgate_waiters",
            "Requests that wait for a lock now.",
            gate.waiters(),
        ),
        Family::gauge_seconds(
            "lockgate_oldest_waiter_seconds",
            "How long the first request of a queue has waited, of the queue where that is longest; 0 where none waits.",
            gate.oldest_wait_micros(),
        ),
        Family::gauge(
            "lockgate_kept_reply_bytes",
            "Replies kept beyond limits.relay_bytes for clients that have not read them, of limits.kept_reply_bytes.",
            shared.budget.taken(),
        ),
        Family::counters(
            "lockgate_refusals_total",
            "What was refused, closed, held back or forgotten, by reason: the counters of INFO lockgate.",
            refusals.collect(),
        ),
    ]
}

#[cfg(test)]
mod tests;
