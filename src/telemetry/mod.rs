//! What lockgate reports of itself.
//!
//! - [`metrics`]: the metrics, for Prometheus.
//! - [`counters`]: counters of events that clients cause.
//! - [`log_limit`]: rate limits of log lines that clients can trigger.
//! - [`escape`]: names as operators see them.

pub mod counters;
pub mod escape;
pub mod log_limit;
pub mod metrics;
