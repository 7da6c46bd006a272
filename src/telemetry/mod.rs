//! What lockgate reports of itself.
//!
//! - [`metrics`]: the metrics, for Prometheus.
//! - [`counters`]: counters of events that clients cause.
//! - [`log_limit`]: rate limits of log lines that clients can trigger.
//! - [`slow_log`]: from when on a wait or a hold is logged.
//! - [`escape`]: names as operators see them.

pub mod counters;
pub mod escape;
pub mod log_limit;
pub mod metrics;
pub mod slow_log;
