//! The label of a client, for operators: its address, and how it describes itself.

use std::fmt;

use crate::telemetry::escape::escape;

/// Most bytes kept of each thing that a client says of itself. They are kept for every lock that it holds or
/// waits for.
pub const CLIENT_INFO_BYTES: usize = 64;

/// A client's own description, as Redis (or lockgate in its place) accepted it; empty where the client gave
/// none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientInfo<'a> {
    /// The connection's name: `CLIENT SETNAME`, `HELLO … SETNAME`.
    pub name: &'a [u8],
    /// The client library: `CLIENT SETINFO LIB-NAME`.
    pub library: &'a [u8],
    /// The library's version: `CLIENT SETINFO LIB-VER`.
    pub version: &'a [u8],
}

impl<'a> ClientInfo<'a> {
    /// Returns the first [`CLIENT_INFO_BYTES`] of each part.
    fn cut(self) -> Self {
        let cut = |part: &'a [u8]| part.get(..CLIENT_INFO_BYTES).unwrap_or(part);
        Self {
            name: cut(self.name),
            library: cut(self.library),
            version: cut(self.version),
        }
    }
}

/// The label of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The client's address, as `address:port`.
    pub address: Box<str>,
    /// The client's own description, if it gave one.
    description: Option<Box<Description>>,
}

/// What is kept of a [`ClientInfo`].
#[derive(Debug, Clone, PartialEq, Eq)]
struct Description {
    name: Box<[u8]>,
    library: Box<[u8]>,
    version: Box<[u8]>,
}

impl Label {
    /// Creates the label of a client that has not described itself yet.
    pub fn of(address: &str) -> Self {
        Self {
            address: address.into(),
            description: None,
        }
    }

    /// Returns whether the label shows exactly this description.
    pub fn says(&self, client_info: ClientInfo<'_>) -> bool {
        self.description() == client_info.cut()
    }

    fn description(&self) -> ClientInfo<'_> {
        let description = self.description.as_deref();
        description.map_or_else(ClientInfo::default, |it| ClientInfo {
            name: &it.name,
            library: &it.library,
            version: &it.version,
        })
    }

    /// Returns the label with this description instead. The first [`CLIENT_INFO_BYTES`] of each part are kept.
    pub fn saying(&self, client_info: ClientInfo<'_>) -> Self {
        let ClientInfo {
            name,
            library,
            version,
        } = client_info.cut();
        Self {
            address: self.address.clone(),
            description: Some(Box::new(Description {
                name: name.into(),
                library: library.into(),
                version: version.into(),
            })),
        }
    }

    /// Returns the connection's name, fit for display; empty if it has none.
    pub fn name(&self) -> String {
        escape(self.description().name)
    }

    /// Returns the library and its version, fit for display; empty if the client names none.
    pub fn library(&self) -> String {
        let description = self.description();
        let (library, version) = (escape(description.library), escape(description.version));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_info_is_kept_up_to_its_bound() {
        let (long, label) = ([b'a'; 1_000], Label::of("127.0.0.1:5000"));
        let client_info = ClientInfo {
            name: &long,
            library: b"redis-py",
            version: b"8.1",
        };
        assert!(label.says(ClientInfo::default()) && !label.says(client_info));
        let saying = label.saying(client_info);
        assert!(saying.says(client_info) && !saying.says(ClientInfo::default()));
        assert_eq!(saying.name(), "a".repeat(CLIENT_INFO_BYTES));
        assert_eq!(saying.library(), "redis-py 8.1");
        assert_eq!(saying.to_string(), "127.0.0.1:5000");
        assert!(!saying.says(ClientInfo {
            version: b"8.2",
            ..client_info
        }));
    }
}
