//! The ordinary commands of an instance without an upstream. Flags and categories are those of the same
//! commands in Redis; a test compares them.

use super::Entry;

/// The entries of the ordinary commands.
pub static ORDINARY_COMMANDS: [Entry; 10] = [
    Entry {
        name: "ping",
        arity: -1,
        flags: &["fast"],
        categories: FAST,
        summary: "Returns PONG, or the message.",
        since: "1.0.0",
        ..CONNECTION
    },
    Entry {
        name: "echo",
        arity: 2,
        flags: &["loading", "stale", "fast"],
        categories: FAST,
        summary: "Returns the message.",
        since: "1.0.0",
        ..CONNECTION
    },
    Entry {
        name: "hello",
        arity: -1,
        flags: ANYONE,
        categories: FAST,
        summary: "Changes the protocol, and tells who is there.",
        since: "6.0.0",
        ..CONNECTION
    },
    Entry {
        name: "auth",
        arity: -2,
        flags: ANYONE,
        categories: FAST,
        summary: "Authenticates the connection; there is one user, default.",
        since: "1.0.0",
        ..CONNECTION
    },
    Entry {
        name: "select",
        arity: 2,
        flags: &["loading", "stale", "fast"],
        categories: FAST,
        summary: "Changes the database: locks of one are apart from those of another.",
        since: "1.0.0",
        ..CONNECTION
    },
    Entry {
        name: "client",
        arity: -2,
        summary: "A container for commands about the connection.",
        since: "2.4.0",
        complexity: "Depends on subcommand.",
        subcommands: &CLIENT,
        ..CONNECTION
    },
    Entry {
        name: "command",
        arity: -1,
        flags: &["loading", "stale"],
        categories: SLOW,
        summary: "Tells of all commands.",
        since: "2.8.13",
        complexity: PER_COMMAND,
        group: "server",
        subcommands: &COMMAND,
        ..CONNECTION
    },
    Entry {
        name: "info",
        arity: -1,
        flags: &["loading", "stale"],
        categories: &["slow", "dangerous"],
        summary: "Shows the state of this instance.",
        since: "1.0.0",
        group: "server",
        ..CONNECTION
    },
    Entry {
        name: "reset",
        arity: 1,
        flags: ANYONE,
        categories: FAST,
        summary: "Makes the connection as it was when it was new.",
        since: "6.2.0",
        ..CONNECTION
    },
    Entry {
        name: "quit",
        arity: -1,
        flags: ANYONE,
        categories: FAST,
        summary: "Closes the connection.",
        since: "1.0.0",
        ..CONNECTION
    },
];

static CLIENT: [Entry; 12] = [
    Entry {
        name: "client|id",
        arity: 2,
        summary: "Returns the number of the connection.",
        since: "5.0.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|getname",
        arity: 2,
        summary: "Returns the name of the connection.",
        since: "2.6.9",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|setname",
        arity: 3,
        summary: "Names the connection.",
        since: "2.6.9",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|setinfo",
        arity: 4,
        summary: "Notes which client library is at work.",
        since: "7.2.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|info",
        arity: 2,
        summary: "Tells of this connection.",
        since: "6.2.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|list",
        arity: -2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: ADMIN,
        summary: "Tells of this connection, if the filter lets it through.",
        since: "2.4.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|reply",
        arity: 3,
        summary: "Turns replies on or off, or skips the next one.",
        since: "3.2.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|no-evict",
        arity: 3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: ADMIN,
        summary: "Notes a wish that has no effect here: nothing is evicted.",
        since: "7.0.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|no-touch",
        arity: 3,
        summary: "Notes a wish that has no effect here: locks have no last access.",
        since: "7.2.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|getredir",
        arity: 2,
        summary: "Returns -1: there is no tracking without a Redis.",
        since: "6.0.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|trackinginfo",
        arity: 2,
        summary: "Tells that there is no tracking without a Redis.",
        since: "6.2.0",
        ..SUBCOMMAND
    },
    Entry {
        name: "client|help",
        arity: 2,
        flags: &["loading", "stale"],
        summary: "Explains the subcommands.",
        since: "5.0.0",
        ..SUBCOMMAND
    },
];

static COMMAND: [Entry; 5] = [
    Entry {
        name: "command|count",
        arity: 2,
        flags: &["loading", "stale"],
        summary: "Returns the number of commands.",
        since: "2.8.13",
        group: "server",
        ..SUBCOMMAND
    },
    Entry {
        name: "command|list",
        arity: -2,
        flags: &["loading", "stale"],
        summary: "Lists the names of the commands.",
        since: "7.0.0",
        complexity: PER_COMMAND,
        group: "server",
        ..SUBCOMMAND
    },
    Entry {
        name: "command|info",
        arity: -2,
        flags: &["loading", "stale"],
        summary: "Tells of some commands.",
        since: "2.8.13",
        complexity: PER_COMMAND,
        group: "server",
        ..SUBCOMMAND
    },
    Entry {
        name: "command|docs",
        arity: -2,
        flags: &["loading", "stale"],
        summary: "Explains some commands.",
        since: "7.0.0",
        complexity: PER_COMMAND,
        group: "server",
        ..SUBCOMMAND
    },
    Entry {
        name: "command|help",
        arity: 2,
        flags: &["loading", "stale"],
        summary: "Explains the subcommands.",
        since: "5.0.0",
        group: "server",
        ..SUBCOMMAND
    },
];

/// The fields that the ordinary commands have in common.
const CONNECTION: Entry = Entry {
    name: "",
    arity: 0,
    flags: &[],
    categories: &["slow"],
    key: None,
    summary: "",
    since: "",
    group: "connection",
    complexity: "O(1)",
    arguments: &[],
    subcommands: &[],
};

const SUBCOMMAND: Entry = Entry {
    flags: &["noscript", "loading", "stale"],
    categories: SLOW,
    ..CONNECTION
};

/// The flags of commands that a client may send before any other.
const ANYONE: &[&str] = &[
    "noscript",
    "loading",
    "stale",
    "fast",
    "no_auth",
    "allow_busy",
];
const FAST: &[&str] = &["fast", "connection"];
const SLOW: &[&str] = &["slow", "connection"];
const ADMIN: &[&str] = &["admin", "slow", "dangerous", "connection"];
const PER_COMMAND: &str = "O(N) where N is the number of commands";
