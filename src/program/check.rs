//! `--check-config`: everything that starting would read is read, and what is wrong with it is told, one
//! line each. It neither connects nor listens, so it can be run beside the lockgate that serves.

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
};

use lockgate::config::{Config, Flags};

use super::exit::Exit;

/// Checks, tells the standard streams, and returns how starting would have ended.
pub(crate) fn check(
    flags: Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Exit {
    let config = match Config::findings(flags, environment) {
        Ok(config) => config,
        Err(found) => {
            found.iter().for_each(tell);
            return found.first().map_or(Exit::Wrong, Exit::of_configuration);
        }
    };
    let wrong = lockgate::check(&config);
    wrong.iter().for_each(tell);
    if let Some(error) = wrong.first() {
        return Exit::of_gate(error);
    }
    // Whoever reads only the beginning of it wants no more: what counts is how it ends.
    let _ = say_where(&config);
    Exit::Done
}

fn say_where(config: &Config) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "the configuration is right")?;
    for place in config.places() {
        writeln!(out, "would listen on {place}")?;
    }
    writeln!(out, "upstream: {}", config.upstream)
}

/// Tells the standard error stream what is wrong, where somebody reads it.
pub(crate) fn tell(error: &impl Display) {
    let _ = writeln!(io::stderr(), "lockgate: {error}");
}
