//! `--check-config`: reads everything that a start would read, looks up the names of its addresses, and prints each
//! error as one line. It neither connects to Redis nor listens, so it can run beside a lockgate that serves.

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
};

use lockgate::{Config, config::Flags};

use super::exit::Exit;

/// Checks the configuration, prints the result, and returns the exit that a start would have had.
pub(crate) fn check(
    flags: Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Exit {
    let (config, said) = match Config::findings(flags, environment) {
        Ok(read) => read,
        Err(found) => {
            found.iter().for_each(tell);
            return found.first().map_or(Exit::Wrong, Exit::of_configuration);
        }
    };
    let wrong = lockgate::check(&config);
    wrong
        .iter()
        .map(|error| said.explain(error))
        .for_each(|error| tell(&error));
    if let Some(error) = wrong.first() {
        return Exit::of_gate(error);
    }
    // A reader such as `head` may close the pipe early; the exit code is what counts.
    let _ = say_where(&config);
    Exit::Done
}

fn say_where(config: &Config) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "the configuration is right")?;
    for place in config.places() {
        writeln!(out, "would listen on {place}")?;
    }
    writeln!(out, "upstream: {}", config.upstream.url)?;
    for remark in config.remarks() {
        writeln!(out, "{remark}")?;
    }
    Ok(())
}

/// Prints an error to standard error, where that is open.
pub(crate) fn tell(error: &impl Display) {
    let _ = writeln!(io::stderr(), "lockgate: {error}");
}
