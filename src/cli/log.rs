//! The program's log, on standard error: for people where that is a terminal, for machines (one JSON object a line)
//! anywhere else. Times are UTC, in milliseconds.

use std::{env, fmt, io, io::IsTerminal, time::SystemTime};

use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{format::Writer, time::FormatTime},
    layer::SubscriberExt,
    reload::{self, Handle},
    util::SubscriberInitExt,
};

/// The log, with the handle that changes its filter.
pub(crate) struct Log(Handle<EnvFilter, Registry>);

impl Log {
    /// Starts to log what `directive` selects.
    pub(crate) fn start(directive: &str) -> Self {
        let (filter, handle) = reload::Layer::new(EnvFilter::new(directive));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_timer(Utc);
        let lines = match io::stderr().is_terminal() {
            true => lines.with_ansi(wants_colours()).with_target(false).boxed(),
            false => lines.json().flatten_event(true).boxed(),
        };
        tracing_subscriber::registry()
            .with(filter)
            .with(lines)
            .init();
        Self(handle)
    }

    /// Logs what this directive selects from now on.
    pub(crate) fn change(&self, directive: &str) {
        // Fails only where the log is gone already.
        let _ = self.0.reload(EnvFilter::new(directive));
    }
}

/// Returns whether the terminal gets colours: see <https://no-color.org>; a dumb terminal gets none.
pub(crate) fn wants_colours() -> bool {
    let says_no = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !says_no && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// Timestamps such as `2026-01-31T23:59:59.123Z`.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        write!(writer, "{now}")
    }
}
