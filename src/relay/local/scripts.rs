//! `SCRIPT …`: no script is executed here, but the session serves those of lock libraries. They are known from the start
//! or by their text.

use bytes::Bytes;

use crate::{absorb::Rules, resp::Writer};

/// Redis's error for the SHA1 of a script that it does not have. Libraries then send the text.
pub(super) const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// Returns whether an `EVALSHA` with these arguments names a known script.
pub(super) fn is_known(rest: &[Bytes], rules: &Rules) -> bool {
    let sha1 = rest.first();
    sha1.is_some_and(|sha1| rules.scripts().by_sha1(sha1).is_some())
}

/// Writes the reply to one subcommand whose number of arguments is right.
pub(super) fn write(subcommand: &str, rest: &[Bytes], rules: &Rules, out: &mut Writer<'_>) {
    match (subcommand, rest) {
        ("load", [text]) => out.bulk(rules.scripts().load(text)),
        ("exists", sha1s) => {
            out.array(sha1s.len());
            for sha1 in sha1s {
                out.integer(i64::from(rules.scripts().by_sha1(sha1).is_some()));
            }
        }
        // Nothing is forgotten: which scripts are known does not depend on what clients load.
        ("flush", []) => out.status("OK"),
        ("flush", [mode])
            if mode.eq_ignore_ascii_case(b"ASYNC") || mode.eq_ignore_ascii_case(b"SYNC") =>
        {
            out.status("OK");
        }
        ("flush", _) => out.error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
        ("help", _) => {
            out.array(HELP.len());
            for line in HELP {
                out.status(line);
            }
        }
        (other, _) => debug_assert!(false, "script|{other} is in the table only"),
    }
}

const HELP: [&str; 9] = [
    "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "EXISTS <sha1> [<sha1> ...]",
    "    Tell which of these are scripts of lock libraries.",
    "FLUSH [ASYNC|SYNC]",
    "    Without effect: no script is forgotten.",
    "LOAD <script>",
    "    Return the SHA1 of a script.",
    "HELP",
    "    Print this help.",
];
