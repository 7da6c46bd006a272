//! The lock commands.

use super::{Argument, Entry, KeyUse, Kind};

/// The entries of `LOCK` and the other lock commands.
pub static LOCK_COMMANDS: [Entry; 6] = [
    Entry {
        name: "lock",
        arity: -2,
        flags: &["write", "denyoom", "noscript", "blocking"],
        categories: &["write", "slow", "blocking"],
        key: Some(KeyUse::one(&["RW", "access", "update"])),
        summary: "Acquires a lock, waiting for it in order; returns its token, or nil when WAIT ran out.",
        complexity: "O(log(N)) where N is the number of waiters",
        arguments: &[KEY, TOKEN, LEASE, WAIT, FENCE, SESSION, REPLICAS],
        ..LOCK
    },
    Entry {
        name: "trylock",
        arity: -2,
        flags: &["write", "denyoom", "noscript"],
        categories: &["write", "slow"],
        key: Some(KeyUse::one(&["RW", "access", "update"])),
        summary: "Acquires a lock that is neither held nor awaited; returns its token, or nil.",
        arguments: &[KEY, TOKEN, LEASE, FENCE, SESSION, REPLICAS],
        ..LOCK
    },
    Entry {
        name: "unlock",
        arity: 3,
        flags: &["write", "noscript"],
        categories: &["write", "slow"],
        key: Some(KeyUse::one(&["RW", "delete"])),
        summary: "Releases a lock that the token holds: 1, or 0 if it does not hold it.",
        arguments: &[KEY, OWNER],
        ..LOCK
    },
    Entry {
        name: "relock",
        arity: -3,
        flags: &["write", "noscript"],
        categories: &["write", "slow"],
        key: Some(KeyUse::one(&["RW", "update"])),
        summary: "Starts the lease of a lock that the token holds anew: 1, or 0 if it does not hold it.",
        arguments: &[KEY, OWNER, LEASE, REPLICAS],
        ..LOCK
    },
    Entry {
        name: "lockinfo",
        arity: 2,
        flags: &["readonly", "noscript"],
        categories: &["read", "slow"],
        key: Some(KeyUse::one(&["RO", "access"])),
        summary: "Tells whether a lock is held, for how long, and the clients that wait for it at this instance.",
        arguments: &[KEY],
        ..LOCK
    },
    Entry {
        name: "locks",
        arity: -1,
        flags: &["readonly", "noscript"],
        categories: &["read", "slow"],
        summary: "Lists the locks that this instance holds or waits for, most waiters first.",
        complexity: "O(N*log(N)) where N is the number of locks at this instance",
        arguments: &[
            Argument::new("pattern", Kind::Pattern)
                .after("MATCH")
                .optional(),
            Argument::new("count", Kind::Integer)
                .after("COUNT")
                .optional(),
        ],
        ..LOCK
    },
];

/// The fields that the lock commands have in common.
const LOCK: Entry = Entry {
    name: "",
    arity: 0,
    flags: &[],
    categories: &[],
    key: None,
    summary: "",
    since: "0.1.0",
    group: "lock",
    complexity: "O(1)",
    arguments: &[],
    subcommands: &[],
};

const KEY: Argument = Argument::new("key", Kind::Key);
const OWNER: Argument = Argument::new("token", Kind::Text);
const TOKEN: Argument = Argument::new("token", Kind::Text).after("TOKEN").optional();
const WAIT: Argument = Argument::new("milliseconds", Kind::Integer)
    .after("WAIT")
    .optional();
const FENCE: Argument = Argument::new("fence", Kind::Word).after("FENCE").optional();
const SESSION: Argument = Argument::new("session", Kind::Word)
    .after("SESSION")
    .optional();
const REPLICAS: Argument = Argument::new("replicas", Kind::Integer)
    .after("REPLICAS")
    .optional();
const LEASE: Argument = Argument::new("lease", Kind::OneOf).optional().of(&[
    Argument::new("milliseconds", Kind::Integer).after("PX"),
    Argument::new("seconds", Kind::Integer).after("EX"),
]);
