//! How a client is shown to operators: where it comes from, and what it says of itself.

use std::fmt;

use crate::shown::shown;

/// Most bytes kept of each thing that a client says of itself: it is kept for every lock that it holds or
/// waits for.
pub const SAID_BYTES: usize = 64;

/// What a client says of itself, as Redis (or what stands for it) accepted it; empty where it said nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said<'a> {
    /// The name of its connection: `CLIENT SETNAME`, `HELLO … SETNAME`.
    pub name: &'a [u8],
    /// Its library: `CLIENT SETINFO LIB-NAME`.
    pub library: &'a [u8],
    /// The version of that: `CLIENT SETINFO LIB-VER`.
    pub version: &'a [u8],
}

/// A client, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Where it comes from, as `address:port`.
    pub address: Box<str>,
    name: Box<[u8]>,
    library: Box<[u8]>,
    version: Box<[u8]>,
}

impl Label {
    /// A client that has said nothing yet.
    pub fn of(address: &str) -> Self {
        Self {
            address: address.into(),
            name: Box::default(),
            library: Box::default(),
            version: Box::default(),
        }
    }

    /// It has said this of itself, and nothing else.
    pub fn says(&self, said: Said<'_>) -> bool {
        *self.name == *cut(said.name)
            && *self.library == *cut(said.library)
            && *self.version == *cut(said.version)
    }

    /// The same client, which says this now. Of each thing the first [`SAID_BYTES`] are kept.
    pub fn saying(&self, said: Said<'_>) -> Self {
        Self {
            address: self.address.clone(),
            name: cut(said.name).into(),
            library: cut(said.library).into(),
            version: cut(said.version).into(),
        }
    }

    /// Its name, fit to be shown; empty where it has none.
    pub fn name(&self) -> String {
        shown(&self.name)
    }

    /// Its library and the version of that, fit to be shown; empty where it names none.
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
