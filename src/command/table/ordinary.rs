//! The ordinary commands of an instance without an upstream, and the commands of Redis's own by which clients take and
//! release locks there. Flags and categories are those of the same commands in Redis; a test compares them.

use super::{Entry, KeyUse};

/// The entries of the ordinary commands.
pub static ORDINARY_COMMANDS: [Entry; 17] = [
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
    Entry {
        name: "set",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["write", "string", "slow"],
        key: Some(KeyUse::one(&["RW", "access", "update", "variable_flags"])),
        summary: "Acquires a lock, with NX and a lease.",
        since: "1.0.0",
        group: "string",
        ..CONNECTION
    },
    Entry {
        name: "get",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "string", "fast"],
        key: Some(KeyUse::one(&["RO", "access"])),
        summary: "Returns the token that holds a lock.",
        since: "1.0.0",
        group: "string",
        ..CONNECTION
    },
    Entry {
        name: "del",
        arity: -2,
        flags: &["write"],
        categories: &["keyspace", "write", "slow"],
        key: Some(KeyUse::many(&["RM", "delete"])),
        summary: "Releases one lock, whatever token holds it.",
        since: "1.0.0",
        group: "generic",
        ..CONNECTION
    },
    Entry {
        name: "unlink",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        key: Some(KeyUse::many(&["RM", "delete"])),
        summary: "Releases one lock, whatever token holds it.",
        since: "4.0.0",
        group: "generic",
        ..CONNECTION
    },
    Entry {
        name: "eval",
        flags: RUNS_SCRIPTS,
        arity: -3,
        summary: "Does what a script of a lock library does.",
        since: "2.6.0",
        ..SCRIPTING
    },
    Entry {
        name: "evalsha",
        arity: -3,
        flags: RUNS_SCRIPTS,
        summary: "Does what a script of a lock library does, named by its SHA1.",
        since: "2.6.0",
        ..SCRIPTING
    },
    Entry {
        name: "script",
        arity: -2,
        categories: &["slow"],
        summary: "A container for commands about scripts.",
        since: "2.6.0",
        complexity: "Depends on subcommand.",
        subcommands: &SCRIPT,
        ..SCRIPTING
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

static SCRIPT: [Entry; 4] = [
    Entry {
        name: "script|load",
        arity: 3,
        flags: &["noscript", "stale"],
        summary: "Returns the SHA1 of a script.",
        since: "2.6.0",
        complexity: "O(N) where N is the length of the script",
        ..SCRIPTING
    },
    Entry {
        name: "script|exists",
        arity: -3,
        flags: &["noscript"],
        summary: "Tells which SHA1s are those of scripts of lock libraries.",
        since: "2.6.0",
        complexity: "O(N) where N is the number of SHA1s",
        ..SCRIPTING
    },
    Entry {
        name: "script|flush",
        arity: -2,
        flags: &["noscript"],
        summary: "Has no effect here: no script is forgotten.",
        since: "2.6.0",
        ..SCRIPTING
    },
    Entry {
        name: "script|help",
        arity: 2,
        flags: &["loading", "stale"],
        summary: "Explains the subcommands.",
        since: "5.0.0",
        ..SCRIPTING
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

const SCRIPTING: Entry = Entry {
    categories: &["slow", "scripting"],
    group: "scripting",
    ..CONNECTION
};

/// The flags of commands that run scripts.
const RUNS_SCRIPTS: &[&str] = &[
    "noscript",
    "stale",
    "skip_monitor",
    "no_mandatory_keys",
    "movablekeys",
];

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
