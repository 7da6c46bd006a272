//! All errors of a typed configuration, for a check before the start.
//!
//! A check stops at its first error, since much of the rest depends on it. So the whole section of the wrong key is
//! dropped, and the rest is checked again: each section reports one error, and no error that only follows from
//! another is reported.

use std::ffi::OsString;

use super::{Config, ConfigBuilder, Error, Flags, StatedSettings, Typed};

impl Config {
    /// Loads the configuration as [`Config::read`] does, and reports more than one error.
    ///
    /// # Errors
    /// The first error of each section, and every unknown key; at least one.
    #[doc(hidden)]
    pub fn findings(
        flags: Flags,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(Self, StatedSettings), Vec<Error>> {
        let mut typed = Typed::read(ConfigBuilder::from(flags).environment(environment))
            .map_err(|error| vec![error])?;
        let mut found = Vec::new();
        loop {
            let mut rest = typed.clone();
            let checked = Self::check(&mut rest);
            let error = match checked.and_then(|it| Ok((it, rest.refuse_the_rest()?))) {
                Ok(read) if found.is_empty() => return Ok(read),
                Ok(_) => return Err(found),
                Err(error) => error,
            };
            let forgotten = match &error {
                Error::Unknown { name, .. } => typed.forget(name),
                Error::Wrong { key, .. } | Error::Twice { key, .. } => {
                    forget_section(&mut typed, key)
                }
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

/// Drops what was typed in this key's section. Returns whether there was anything.
fn forget_section(typed: &mut Typed, key: &str) -> bool {
    let mut known = Typed::default();
    // The defaults are allowed, so this asks for every key.
    let _ = Config::check(&mut known);
    let keys = known.asked.into_keys();
    let alike = |other: &&str| section(other) == section(key);
    keys.filter(alike)
        .filter(|key| typed.given(key).is_some())
        .count()
        > 0
}

/// Returns a key's section. Keys that depend on each other share one.
fn section(key: &str) -> &str {
    match key.split_once('.').map_or(key, |(section, _)| section) {
        "listen" | "unixsocket" | "unixsocketperm" => "tls",
        "write_back" => "upstream",
        section => section,
    }
}
