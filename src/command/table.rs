//! The `COMMAND` entries of the commands that lockgate implements: the only definition of their names, arities,
//! flags and keys, and of the lock commands' arguments.
//!
//! Clients request them on connecting: redis-cli to complete and explain commands, cluster-aware libraries to
//! find the keys. In front of an upstream, the lock commands ([`LOCK_COMMANDS`]) also belong in Redis's own
//! replies ([`amend`](crate::relay::rewrite)). So these writers produce single entries in Redis's exact form (the
//! fields of `COMMAND INFO`, the map of `COMMAND DOCS`).

use bytes::Bytes;

use crate::{command::glob::Pattern, resp::Writer};

mod locks;
mod ordinary;

pub use locks::LOCK_COMMANDS;
pub use ordinary::ORDINARY_COMMANDS;

/// Number of fields in an entry of `COMMAND` since Redis 7. Redis 6 has the first seven, older versions six.
pub const INFO_FIELDS: usize = 10;

/// One command or subcommand.
#[derive(Debug)]
pub struct Entry {
    /// The full name in lower case; `container|name` for a subcommand.
    pub name: &'static str,
    /// The number of arguments, including the name (and the subcommand's); negative: the minimum.
    pub arity: i64,
    /// The flags in `COMMAND` (`write`, `blocking` …).
    pub flags: &'static [&'static str],
    /// The ACL categories, without their `@`.
    pub categories: &'static [&'static str],
    /// The use of the key, which is the first argument; `None` without a key, or where it is not.
    pub key: Option<KeyUse>,
    /// A one-line summary.
    pub summary: &'static str,
    /// The version of Redis or lockgate that introduced it.
    pub since: &'static str,
    /// The group of the documentation.
    pub group: &'static str,
    /// The time complexity.
    pub complexity: &'static str,
    /// The arguments of a lock command; empty for an ordinary command.
    pub arguments: &'static [Argument],
    /// The subcommands.
    pub subcommands: &'static [Entry],
}

/// The use of a command's key, in the words of Redis's key specifications.
#[derive(Debug)]
pub struct KeyUse {
    flags: &'static [&'static str],
    /// Whether each further argument is a key, too.
    is_many: bool,
}

/// The documentation of one argument.
#[derive(Debug)]
pub struct Argument {
    name: &'static str,
    kind: Kind,
    token: Option<&'static str>,
    optional: bool,
    inner: &'static [Argument],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Key,
    Text,
    Integer,
    Pattern,
    /// A literal word.
    Word,
    OneOf,
}

impl Entry {
    /// Returns whether this number of arguments, including the name, is right.
    pub fn takes(&self, arguments: usize) -> bool {
        let least = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        arguments == least || (self.arity < 0 && arguments > least)
    }

    /// Returns the name without that of its container.
    pub fn short_name(&self) -> &'static str {
        self.name
            .split_once('|')
            .map_or(self.name, |(_, short)| short)
    }

    /// Writes the entry of `COMMAND` and `COMMAND INFO` with its first `fields` fields: 6 (before
    /// Redis 6), 7 (Redis 6), or [`INFO_FIELDS`].
    pub fn write_info(&self, fields: usize, out: &mut Writer<'_>) {
        out.array(fields);
        out.bulk(self.name);
        out.integer(self.arity);
        write_words(out, self.flags, "");
        // First and last key, and the step between keys.
        let positions = match &self.key {
            None => [0; 3],
            Some(key) => [1, if key.is_many { -1 } else { 1 }, 1],
        };
        for position in positions {
            out.integer(position);
        }
        if fields < 7 {
            return;
        }
        write_words(out, self.categories, "@");
        if fields < INFO_FIELDS {
            return;
        }
        out.set(0); // tips
        match &self.key {
            None => out.set(0),
            Some(key) => {
                out.set(1);
                key.write(out);
            }
        }
        if self.subcommands.is_empty() {
            return out.set(0);
        }
        out.array(self.subcommands.len());
        for subcommand in self.subcommands {
            subcommand.write_info(fields, out);
        }
    }

    /// Writes the entry of `COMMAND DOCS`: the name, then the map of its documentation.
    pub fn write_docs(&self, out: &mut Writer<'_>) {
        let texts = [
            ("summary", self.summary),
            ("since", self.since),
            ("group", self.group),
            ("complexity", self.complexity),
        ];
        out.bulk(self.name);
        out.map(texts.len() + usize::from(!self.arguments.is_empty()));
        for (name, text) in texts {
            out.bulk(name);
            out.bulk(text);
        }
        if !self.arguments.is_empty() {
            write_arguments(self.arguments, out);
        }
    }
}

/// A selection of commands.
pub type Filter = Box<dyn Fn(&Entry) -> bool>;

/// Returns the filter of `COMMAND LIST` with these arguments; `None` where they are invalid. Like Redis's, it
/// covers subcommands.
pub fn filter(arguments: &[Bytes]) -> Option<Filter> {
    let (by, what) = match arguments {
        [] => return Some(Box::new(|_| true)),
        [word, by, what] if word.eq_ignore_ascii_case(b"FILTERBY") => (by, what),
        _ => return None,
    };
    let what = what.to_ascii_lowercase();
    if by.eq_ignore_ascii_case(b"PATTERN") {
        let pattern = Pattern::new(&what);
        Some(Box::new(move |entry| {
            pattern.matches(entry.name.as_bytes())
        }))
    } else if by.eq_ignore_ascii_case(b"ACLCAT") {
        Some(Box::new(move |entry| {
            entry.categories.iter().any(|name| name.as_bytes() == what)
        }))
    } else if by.eq_ignore_ascii_case(b"MODULE") {
        Some(Box::new(|_| false))
    } else {
        None
    }
}

impl KeyUse {
    const fn one(flags: &'static [&'static str]) -> Self {
        let is_many = false;
        Self { flags, is_many }
    }

    const fn many(flags: &'static [&'static str]) -> Self {
        let is_many = true;
        Self { flags, is_many }
    }

    /// Writes the flags of the key specification.
    pub fn write_flags(&self, out: &mut Writer<'_>) {
        write_words(out, self.flags, "");
    }

    /// Writes the key specification: the first key is the argument after the name.
    fn write(&self, out: &mut Writer<'_>) {
        out.map(3);
        out.bulk("flags");
        self.write_flags(out);
        out.bulk("begin_search");
        out.map(2);
        out.bulk("type");
        out.bulk("index");
        out.bulk("spec");
        out.map(1);
        out.bulk("index");
        out.integer(1);
        out.bulk("find_keys");
        out.map(2);
        out.bulk("type");
        out.bulk("range");
        out.bulk("spec");
        out.map(3);
        let last_key = if self.is_many { -1 } else { 0 };
        for (name, number) in [("lastkey", last_key), ("keystep", 1), ("limit", 0)] {
            out.bulk(name);
            out.integer(number);
        }
    }
}

impl Argument {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            token: None,
            optional: false,
            inner: &[],
        }
    }

    /// Sets the word that precedes the value, or that is the argument.
    const fn after(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    const fn of(mut self, inner: &'static [Argument]) -> Self {
        self.inner = inner;
        self
    }

    fn write(&self, out: &mut Writer<'_>) {
        let there = [
            self.kind == Kind::Key,
            self.token.is_some(),
            self.optional,
            !self.inner.is_empty(),
        ];
        out.map(2 + there.into_iter().filter(|there| *there).count());
        out.bulk("name");
        out.bulk(self.name);
        out.bulk("type");
        out.bulk(self.kind.name());
        if self.kind == Kind::Key {
            out.bulk("key_spec_index");
            out.integer(0);
        }
        if let Some(token) = self.token {
            out.bulk("token");
            out.bulk(token);
        }
        if self.optional {
            out.bulk("flags");
            write_words(out, &["optional"], "");
        }
        if !self.inner.is_empty() {
            write_arguments(self.inner, out);
        }
    }
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Text => "string",
            Self::Integer => "integer",
            Self::Pattern => "pattern",
            Self::Word => "pure-token",
            Self::OneOf => "oneof",
        }
    }
}

fn write_arguments(arguments: &[Argument], out: &mut Writer<'_>) {
    out.bulk("arguments");
    out.array(arguments.len());
    for argument in arguments {
        argument.write(out);
    }
}

fn write_words(out: &mut Writer<'_>, words: &[&str], before: &str) {
    out.set(words.len());
    for word in words {
        out.status(&format!("{before}{word}"));
    }
}
