//! The label of a client, for operators: its address, and how it describes itself.

use std::fmt;

use crate::shown::shown;

/// Most bytes kept of each thing that a client says of itself. They are kept for every lock that it holds or
/// waits for.
pub const SAID_BYTES: usize = 64;

/// A client's own description, as Redis (or lockgate in its place) accepted it; empty where the client gave
/// none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said<'a> {
    /// The connection's name: `CLIENT SETNAME`, `HELLO … SETNAME`.
    pub name: &'a [u8],
    /// The client library: `CLIENT SETINFO LIB-NAME`.
    pub library: &'a [u8],
    /// The library's version: `CLIENT SETINFO LIB-VER`.
    pub version: &'a [u8],
}

/// The label of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The client's address, as `address:port`.
    pub address: Box<str>,
    name: Box<[u8]>,
    library: Box<[u8]>,
    version: Box<[u8]>,
}

impl Label {
    /// Creates the label of a client that has not described itself yet.
    pub fn of(address: &str) -> Self {
        Self {
            address: address.into(),
            name: Box::default(),
            library: Box::default(),
            version: Box::default(),
        }
    }

    /// Returns whether the label shows exactly this description.
    pub fn says(&self, said: Said<'_>) -> bool {
        *self.name == *cut(said.name)
            && *self.library == *cut(said.library)
            && *self.version == *cut(said.version)
    }

    /// Returns the label with this description instead. The first [`SAID_BYTES`] of each part are kept.
    pub fn saying(&self, said: Said<'_>) -> Self {
        Self {
            address: self.address.clone(),
            name: cut(said.name).into(),
            library: cut(said.library).into(),
            version: cut(said.version).into(),
        }
    }

    /// Returns the connection's name, fit for display; empty if it has none.
    pub fn name(&self) -> String {
        shown(&self.name)
    }

    /// Returns the library and its version, fit for display; empty if the client names none.
    pub fn library(&self) -> String {
        let (library, version) = (shown(&self.library), shown(&self.version));
        match (library.is_empty(), version.is_empty()) {
            (true, _) => version,
            (false, true) => library,
            (false, false) => format!("{library} {version}"),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

fn cut(said: &[u8]) -> &[u8] {
    said.get(..SAID_BYTES).unwrap_or(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_kept_up_to_its_bound_and_known_again() {
        let (long, label) = ([b'a'; 1_000], Label::of("127.0.0.1:5000"));
        let said = Said {
            name: &long,
            library: b"redis-py",
            version: b"8.1",
        };
        assert!(label.says(Said::default()) && !label.says(said));
        let saying = label.saying(said);
        assert!(saying.says(said) && !saying.says(Said::default()));
        assert_eq!(saying.name(), "a".repeat(SAID_BYTES));
        assert_eq!(saying.library(), "redis-py 8.1");
        assert_eq!(saying.to_string(), "127.0.0.1:5000");
        assert!(!saying.says(Said {
            version: b"8.2",
            ..said
        }));
    }
}
