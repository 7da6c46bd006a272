//! The client's error when the user may not run a command inside a lockgate script. The error that Redis
//! returns from a script depends on its version and does not name the command. Outside of a script it does, so
//! lockgate sends the commands one by one and passes on that error.

use bytes::Bytes;
use redis::{Cmd, Value};

use super::{link::Link, scripts::error_text};
use crate::telemetry::metrics::upstream::Purpose;

/// The commands of the scripts, except `DEL`, in forms that change nothing. Redis checks the user's rights
/// before it checks the arguments.
const HARMLESS: [(&str, &[&str]); 8] = [
    ("SET", &["", "NX", "XX"]),
    ("GET", &[]),
    ("PTTL", &[]),
    ("PEXPIRETIME", &[]),
    ("SETRANGE", &["0", ""]),
    ("PEXPIRE", &["never"]),
    ("PEXPIREAT", &["never"]),
    ("TIME", &[]),
];

/// No form of `DEL` is harmless, so this text stands in.
const NO_DEL: &[u8] = b"NOPERM this user has no permissions to run the 'del' command";

/// Returns whether the error says that Redis denied the user a command inside a script.
pub(super) fn is_by_script(error: &[u8]) -> bool {
    let says = |words: &[u8]| error.windows(words.len()).any(|found| found == words);
    // Up to Redis 7.0, and from 7.2 on.
    says(b"The user executing the script can't") || says(b"ACL failure in script")
}

/// Returns the commands in their harmless forms, for this key.
pub(super) fn harmless(key: &[u8]) -> impl Iterator<Item = Cmd> {
    HARMLESS.into_iter().map(move |(name, arguments)| {
        let mut command = Cmd::new();
        command.arg(name);
        if name != "TIME" {
            command.arg(key).arg(arguments);
        }
        command
    })
}

/// Returns the error that Redis gives to the denied command itself.
pub(super) async fn in_words_of_redis(link: &Link, key: &[u8]) -> Bytes {
    for command in harmless(key) {
        if let Some(Value::ServerError(error)) = link.send(Purpose::Explain, &command).await
            && error.code() == "NOPERM"
        {
            return error_text(&error);
        }
    }
    Bytes::from_static(NO_DEL)
}
