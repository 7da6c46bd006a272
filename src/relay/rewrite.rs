//! Adds lockgate's commands to Redis's replies: the lock commands to `COMMAND` and
//! `COMMAND COUNT|LIST|INFO|DOCS|GETKEYS|GETKEYSANDFLAGS`, a section to `INFO`. So redis-cli completes and
//! explains `LOCK`, and client libraries find its key.
//!
//! The request passes unchanged. The part of it that matters for the reply is kept as an [`Amendment`]. An
//! [`ReplyRewriter`] then changes the reply while it streams: it buffers only the beginnings of lines, and every
//! byte that lockgate did not add is Redis's own.
//!
//! Redis's reply passes unchanged where it is an error, in a transaction (in the reply to `EXEC`) and in
//! scripts. It also passes unchanged where the request is too long to be kept: longer than
//! [`LOCK_COMMAND_BYTES`](crate::limits::LOCK_COMMAND_BYTES), or for more than [`AMENDED_ENTRIES`] entries.
//!
//! If Redis or a module has a command of the same name, lockgate's command runs instead. So lockgate's entry
//! replaces that of Redis in place. A list of all commands then contains lockgate's entry a second time at
//! its end, since the length of the list precedes its elements.

use bytes::Bytes;

use crate::{
    command::table::{self, Entry, LOCK_COMMANDS},
    limits::AMENDED_ENTRIES,
    relay::local::information,
};

mod rewriter;

#[cfg(test)]
mod tests;

pub use rewriter::ReplyRewriter;

/// The change to the reply to one command.
#[derive(Debug, Clone)]
pub enum Amendment {
    /// `COMMAND`, and `COMMAND INFO` without names: adds all entries.
    Entries,
    /// `COMMAND COUNT`: adds the number of entries.
    Count,
    /// `COMMAND LIST`: adds these names.
    Names(Vec<&'static Entry>),
    /// `COMMAND INFO` with names: replaces the entries of lockgate's commands, in the order of their places.
    Places {
        /// Number of names in the request.
        names: usize,
        /// lockgate's entries, each with its place among the names, from 0 on.
        ours: Vec<(usize, &'static Entry)>,
    },
    /// `COMMAND DOCS`: adds these explanations.
    Docs(Vec<&'static Entry>),
    /// `COMMAND GETKEYS` and `COMMAND GETKEYSANDFLAGS` of a lock command: replaces the reply.
    Key {
        /// The lock command.
        entry: &'static Entry,
        /// Its key; `None` where the number of its arguments is wrong.
        key: Option<Bytes>,
        /// Whether the reply includes the flags of the key.
        flags: bool,
    },
    /// `INFO`: adds a section.
    Section,
}

/// Returns whether the reply to a command of this name, in upper case, may need an amendment.
pub fn is_amended(name: &[u8]) -> bool {
    matches!(name, b"COMMAND" | b"INFO")
}

impl Amendment {
    /// Returns the amendment of the reply to this command; `None` where the reply passes unchanged.
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
            // A slice would keep the whole request in memory.
            key: key.map(|key| Bytes::copy_from_slice(key)),
            flags,
        })
    }

    /// Returns how many entries it keeps, and adds to a reply at most.
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
