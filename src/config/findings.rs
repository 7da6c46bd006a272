//! Everything that is wrong with what was typed, for whoever checks before starting.
//!
//! What is checked stops at the first thing that is wrong, since much of the rest depends on it. So the section
//! of the key that is wrong is forgotten as a whole, and the rest is checked once more: every section tells
//! one thing, and nothing that only follows from another is told.

use std::ffi::OsString;

use super::{Config, Error, Flags, Typed};

impl Config {
    /// As [`Config::load`], with more than one thing that is wrong.
    ///
    /// # Errors
    /// The first thing in each section that is wrong, and every key that is not known; at least one.
    pub fn findings(
        flags: Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Vec<Error>> {
        let mut typed = Typed::read(flags, environment).map_err(|error| vec![error])?;
        let mut found = Vec::new();
        loop {
            let mut rest = typed.clone();
            let checked = Self::check(&mut rest);
            let error = match checked.and_then(|it| rest.refuse_the_rest().map(|_| it)) {
                Ok(config) if found.is_empty() => return Ok(config),
                Ok(_) => return Err(found),
                Err(error) => error,
            };
            let forgotten = match &error {
                Error::Unknown { name, .. } => typed.forget(name),
                Error::Wrong { key, .. } | Error::Twice(key, _) => forget_section(&mut typed, key),
                Error::UselessFile { key, .. } => forget_section(&mut typed, key),
                Error::Unreadable { .. } | Error::NotToml { .. } => false,
            };
            found.push(error);
            if !forgotten {
                return Err(found);
            }
        }
    }
}

/// Whether anything was typed there.
fn forget_section(typed: &mut Typed, key: &str) -> bool {
    let mut known = Typed::default();
    // The defaults are allowed; all of them were asked for.
    let _ = Config::check(&mut known);
    let keys = known.asked.into_keys();
    let alike = |other: &&str| section(other) == section(key);
    keys.filter(alike)
        .filter(|key| typed.given(key).is_some())
        .count()
        > 0
}

/// Keys that depend on each other are of one section.
fn section(key: &str) -> &str {
    match key.split_once('.').map_or(key, |(section, _)| section) {
        "listen" | "unixsocket" | "unixsocketperm" => "tls",
        "write_back" => "upstream",
        section => section,
    }
}
