//! The program's log, on standard error: for people where that is a terminal, with priorities where systemd's journal
//! reads it, and for machines (one JSON object a line) anywhere else. Times are UTC, in milliseconds; the journal has
//! its own.

use std::{
    env, fmt,
    fs::File,
    io::{self, IsTerminal},
    os::{fd::AsFd, unix::fs::MetadataExt},
    time::SystemTime,
};

use lockgate::config::LogFormat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Full, Writer, format},
        time::FormatTime,
    },
    layer::SubscriberExt,
    registry::LookupSpan,
    reload::{self, Handle},
    util::SubscriberInitExt,
};

/// The log, with the handle that changes its filter.
pub(crate) struct Log(Handle<EnvFilter, Registry>);

impl Log {
    /// Starts to log what `directive` selects.
    pub(crate) fn start(directive: &str, log_format: LogFormat) -> Self {
        let (filter, handle) = reload::Layer::new(EnvFilter::new(directive));
        let is_terminal = io::stderr().is_terminal();
        let log_format = match log_format {
            LogFormat::Auto if is_terminal => LogFormat::Text,
            LogFormat::Auto if is_journal().unwrap_or(false) => LogFormat::Journald,
            LogFormat::Auto => LogFormat::Json,
            log_format => log_format,
        };
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(is_terminal && wants_colours())
            .with_timer(Utc);
        let lines = match log_format {
            LogFormat::Auto | LogFormat::Json => lines.json().flatten_event(true).boxed(),
            LogFormat::Text => lines.with_target(false).boxed(),
            LogFormat::Journald => {
                let lines = lines.with_ansi(false);
                lines.event_format(Journald::default()).boxed()
            }
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

/// Returns whether systemd's journal reads standard error: `JOURNAL_STREAM` names the device and the inode of its
/// stream. A program that inherits the variable may have another standard error.
fn is_journal() -> Option<bool> {
    let stream = env::var("JOURNAL_STREAM").ok()?;
    let ours = io::stderr().as_fd().try_clone_to_owned().ok()?;
    let ours = File::from(ours).metadata().ok()?;
    Some(stream == format!("{}:{}", ours.dev(), ours.ino()))
}

/// Lines for systemd's journal: the priority as syslog has it, the message and the fields.
struct Journald(Format<Full, ()>);

impl Default for Journald {
    fn default() -> Self {
        let text = format().without_time().with_level(false);
        Self(text.with_target(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for Journald
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let mut line = String::new();
        self.0
            .format_event(context, Writer::new(&mut line), event)?;
        // The priority counts for one line.
        let line = line.trim_end().replace('\n', "\\n");
        writeln!(writer, "<{priority}>{line}")
    }
}

/// Timestamps such as `2026-01-31T23:59:59.123Z`.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        write!(writer, "{now}")
    }
}
