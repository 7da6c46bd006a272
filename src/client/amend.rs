//! Adds what lives here to what Redis says of itself: the lock commands to the replies of
//! `COMMAND`, `COMMAND COUNT|LIST|INFO|DOCS|GETKEYS|GETKEYSANDFLAGS`, a section to that of `INFO`.
//! So redis-cli completes and explains `LOCK`, and client libraries know where its key stands.
//!
//! The request passes as it is; what of it matters for the reply is kept as an [`Amendment`] until
//! the reply comes, which an [`Amender`] changes while it streams: nothing is kept of it but the
//! beginnings of lines, and every byte that is not lockgate's own is Redis's.
//!
//! Redis's reply passes unchanged where it is not what was asked for (an error), in a transaction
//! (the reply to `EXEC`), in scripts, and where the request is so long that what is kept of it would
//! be (longer than [`LOCK_COMMAND_BYTES`](crate::limits::LOCK_COMMAND_BYTES), or for more than
//! [`AMENDED_ENTRIES`]).
//!
//! Should Redis, or a module, have a command of one of these names, then not that one runs here but
//! lockgate's, so that is the one to tell of: what Redis says of its own is replaced where it
//! stands. A list of all commands then has ours once more at its end, since its length is told
//! before it is known what is in it.

use bytes::Bytes;

use super::{
    local::information,
    table::{self, Entry, LOCK_COMMANDS},
};
use crate::limits::AMENDED_ENTRIES;

mod amender;

#[cfg(test)]
mod tests;

pub use amender::Amender;

/// What is to be done to the reply to one command.
#[derive(Debug, Clone)]
pub enum Amendment {
    /// `COMMAND`, and `COMMAND INFO` without names: all entries are added.
    Entries,
    /// `COMMAND COUNT`: their number is.
    Count,
    /// `COMMAND LIST`: these names are.
    Names(Vec<&'static Entry>),
    /// `COMMAND INFO` with so many names: these are ours, in the order of their places.
    Places {
        /// All names asked for.
        names: usize,
        /// Each of ours with its place among them, from 0 on.
        ours: Vec<(usize, &'static Entry)>,
    },
    /// `COMMAND DOCS`: these explanations are added.
    Docs(Vec<&'static Entry>),
    /// `COMMAND GETKEYS` and `COMMAND GETKEYSANDFLAGS` of a lock command: answered here.
    Key {
        /// The lock command.
        entry: &'static Entry,
        /// Its key; none where the number of its arguments is wrong.
        key: Option<Bytes>,
        /// What is done with the key is told, too.
        flags: bool,
    },
    /// `INFO`: a section is added.
    Section,
}

/// Whether the reply to a command of this name, in upper case, may be one to amend.
pub fn is_amended(name: &[u8]) -> bool {
    matches!(name, b"COMMAND" | b"INFO")
}

impl Amendment {
    /// What the reply to this command needs; none where it passes unchanged.
    pub fn of(arguments: &[Bytes]) -> Option<Self> {
        let (name, rest) = arguments.split_first()?;
        let amendment = if name.eq_ignore_ascii_case(b"COMMAND") {
            Self::of_command(rest)?
        } else if name.eq_ignore_ascii_case(b"INFO") && information::wants_lockgate_section(rest) {
            Self::Section
        } else {
            return None;
        };
        (amendment.weight() <= AMENDED_ENTRIES).then_some(amendment)
    }

    fn of_command(arguments: &[Bytes]) -> Option<Self> {
        let Some((subcommand, rest)) = arguments.split_first() else {
            return Some(Self::Entries);
        };
        match (&*subcommand.to_ascii_lowercase(), rest) {
            (b"count", []) => Some(Self::Count),
            (b"list", filter) => {
                let shown = table::filter(filter)?;
                let ours = LOCK_COMMANDS.iter().filter(|entry| shown(entry));
                some(ours.collect()).map(Self::Names)
            }
            (b"info", []) => Some(Self::Entries),
            (b"info", names) => {
                let found = |(place, name): (usize, &Bytes)| Some((place, named(name)?));
                let ours = some(names.iter().enumerate().filter_map(found).collect())?;
                let names = names.len();
                Some(Self::Places { names, ours })
            }
            (b"docs", []) => Some(Self::Docs(LOCK_COMMANDS.iter().collect())),
            (b"docs", names) => {
                some(names.iter().filter_map(|name| named(name)).collect()).map(Self::Docs)
            }
            (b"getkeys", [name, rest @ ..]) => Self::of_key(name, rest, false),
            (b"getkeysandflags", [name, rest @ ..]) => Self::of_key(name, rest, true),
            _ => None,
        }
    }

    fn of_key(name: &[u8], rest: &[Bytes], flags: bool) -> Option<Self> {
        let entry = named(name)?;
        let key = rest.first().filter(|_| entry.takes(rest.len() + 1));
        Some(Self::Key {
            entry,
            // A copy, or all of the request would be kept.
            key: key.map(|key| Bytes::copy_from_slice(key)),
            flags,
        })
    }

    /// How much it keeps, and at most adds to a reply, in entries.
    pub fn weight(&self) -> usize {
        match self {
            Self::Count | Self::Section => 1,
            Self::Entries => LOCK_COMMANDS.len(),
            Self::Names(entries) | Self::Docs(entries) => entries.len(),
            Self::Places { ours, .. } => ours.len(),
            Self::Key { key, .. } => 1 + key.as_ref().map_or(0, Bytes::len) / 1024,
        }
    }
}

fn named(name: &[u8]) -> Option<&'static Entry> {
    let is_named = |entry: &&Entry| entry.name.as_bytes().eq_ignore_ascii_case(name);
    LOCK_COMMANDS.iter().find(is_named)
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
