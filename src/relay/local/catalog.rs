//! `COMMAND …` on an instance without an upstream.

use bytes::Bytes;

use crate::{
    command::table::{self, Entry, INFO_FIELDS, LOCK_COMMANDS, ORDINARY_COMMANDS},
    limits::AMENDED_ENTRIES,
    resp::Writer,
};

/// Returns every command, without subcommands.
fn commands() -> impl Iterator<Item = &'static Entry> {
    LOCK_COMMANDS.iter().chain(&ORDINARY_COMMANDS)
}

/// Returns every command, with subcommands.
fn all() -> impl Iterator<Item = &'static Entry> {
    commands().flat_map(|entry| std::iter::once(entry).chain(entry.subcommands))
}

fn named(name: &[u8]) -> Option<&'static Entry> {
    all().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Writes the reply to `COMMAND`.
pub(super) fn write_all(out: &mut Writer<'_>) {
    out.array(commands().count());
    for entry in commands() {
        entry.write_info(INFO_FIELDS, out);
    }
}

/// Writes the reply to one subcommand whose number of arguments is right.
pub(super) fn write(subcommand: &str, rest: &[Bytes], out: &mut Writer<'_>) {
    match subcommand {
        "count" => out.integer(i64::try_from(commands().count()).unwrap_or(i64::MAX)),
        // The reply for a name is hundreds of times as long as the name.
        "info" | "docs" if rest.len() > AMENDED_ENTRIES => {
            out.error(format!("ERR at most {AMENDED_ENTRIES} names at a time"));
        }
        "info" if rest.is_empty() => write_all(out),
        "info" => write_info(rest, out),
        "docs" => write_docs(rest, out),
        "list" => write_list(rest, out),
        "help" => {
            out.array(HELP.len());
            for line in HELP {
                out.status(line);
            }
        }
        other => debug_assert!(false, "command|{other} is in the table only"),
    }
}

/// Writes one entry for each name, nil for an unknown one.
fn write_info(names: &[Bytes], out: &mut Writer<'_>) {
    out.array(names.len());
    for name in names {
        match named(name) {
            Some(entry) => entry.write_info(INFO_FIELDS, out),
            None => out.null(),
        }
    }
}

/// Writes the explanations of these names, and nothing for an unknown one.
fn write_docs(names: &[Bytes], out: &mut Writer<'_>) {
    let entries: Vec<&Entry> = match names {
        [] => commands().collect(),
        names => names.iter().filter_map(|name| named(name)).collect(),
    };
    out.map(entries.len());
    for entry in entries {
        entry.write_docs(out);
    }
}

fn write_list(filter: &[Bytes], out: &mut Writer<'_>) {
    let Some(shown) = table::filter(filter) else {
        return out.error("ERR syntax error");
    };
    let entries: Vec<_> = all().filter(|entry| shown(entry)).collect();
    out.array(entries.len());
    for entry in entries {
        out.bulk(entry.name);
    }
}

const HELP: [&str; 13] = [
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)",
    "    Return details about all commands.",
    "COUNT",
    "    Return the number of commands.",
    "DOCS [<command-name> ...]",
    "    Explain commands, all of them without a name.",
    "INFO [<command-name> ...]",
    "    Return details about commands, all of them without a name.",
    "LIST [FILTERBY (MODULE <name>|ACLCAT <category>|PATTERN <pattern>)]",
    "    Return the names of commands.",
    "HELP",
    "    Print this help.",
];
