//! `lockgate doctor`: prints what a Redis lacks of lockgate's needs, as a table with one row for each need.

use std::{
    ffi::OsString,
    fmt::Write as _,
    io::{self, Write as _},
};

use lockgate::{
    Config,
    config::Flags,
    store::redis::doctor::{Finding, State},
};
use tokio::runtime::Builder;

use super::{check, exit::Exit};

/// Examines the Redis of this configuration, and prints the findings.
pub(crate) fn run(
    flags: Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Exit {
    let (config, said) = match Config::read(flags, environment) {
        Ok(read) => read,
        Err(error) => {
            check::tell(&error);
            return Exit::of_configuration(&error);
        }
    };
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            check::tell(&error);
            return Exit::Failed;
        }
    };
    let examined = runtime.block_on(lockgate::examine(&config));
    // Does not wait for a name lookup that is still running.
    runtime.shutdown_background();
    let findings = match examined {
        Ok(Some(findings)) => findings,
        Ok(None) => {
            check::tell(&"there is no Redis to examine: name one, such as --upstream redis://host");
            return Exit::Wrong;
        }
        Err(error) => {
            check::tell(&said.explain(&error));
            return Exit::of_gate(&error);
        }
    };
    let table = format!("{}\n\n{}", config.upstream.url, table(&findings));
    // A reader such as `head` may close the pipe early; the exit code is what counts.
    let _ = io::stdout().write_all(table.as_bytes());
    let any = |state| findings.iter().any(|finding| finding.state == state);
    match (any(State::Fails), any(State::Degraded)) {
        (true, _) => Exit::Failed,
        (false, true) => Exit::Degraded,
        (false, false) => Exit::Done,
    }
}

/// Returns a row for each need, and below it what to change.
fn table(findings: &[Finding]) -> String {
    let mut table = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Works => "works",
            State::Degraded => "degraded",
            State::Fails => "FAILS",
            State::Unknown => "unknown",
            State::Untried => "not tried",
        };
        let row = format!("{:<15} {state:<10} {}", finding.need, finding.means);
        table.push_str(row.trim_end());
        table.push('\n');
        if !finding.change.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{:27}change: {}", "", finding.change);
        }
    }
    table
}
