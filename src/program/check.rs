//! `--check-config`: everything that starting would read is read, and what is wrong with it is told, one
//! line each. It neither connects nor listens, so it can be run beside the lockgate that serves.

use std::ffi::OsString;

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
            for error in &found {
                eprintln!("lockgate: {error}");
            }
            return found.first().map_or(Exit::Wrong, Exit::of_configuration);
        }
    };
    let wrong = lockgate::check(&config);
    for error in &wrong {
        eprintln!("lockgate: {error}");
    }
    if let Some(error) = wrong.first() {
        return Exit::of_gate(error);
    }
    println!("the configuration is right");
    for place in config.places() {
        println!("would listen on {place}");
    }
    println!("upstream: {}", config.upstream);
    Exit::Done
}
