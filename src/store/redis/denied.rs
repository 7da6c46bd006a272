//! A command that a script of ours runs, and that the user may not run: what Redis says then differs
//! from version to version and does not name the command. Outside of scripts it does, so that is where
//! the error comes from that the client reads.

use bytes::Bytes;
use redis::{Cmd, Value};

use super::{link::Link, scripts::error_text};
use crate::metrics::upstream::Purpose;

/// The commands of the scripts but `DEL`, in forms that do nothing: Redis looks whether the user may
/// before it looks at what is wrong with them.
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

/// Nothing harmless deletes.
const NO_DEL: &[u8] = b"NOPERM this user has no permissions to run the 'del' command";

/// Inside a script Redis did not let the user run a command.
pub(super) fn is_by_script(error: &[u8]) -> bool {
    let says = |words: &[u8]| error.windows(words.len()).any(|found| found == words);
    // Up to Redis 7.0, and from 7.2 on.
    says(b"The user executing the script can't") || says(b"ACL failure in script")
}

/// What Redis says to the command itself.
pub(super) async fn in_words_of_redis(link: &Link, key: &[u8]) -> Bytes {
    for (name, arguments) in HARMLESS {
        let mut command = Cmd::new();
        command.arg(name);
        if name != "TIME" {
            command.arg(key).arg(arguments);
        }
        if let Some(Value::ServerError(error)) = link.send(Purpose::Explain, &command).await
            && error.code() == "NOPERM"
        {
            return error_text(&error);
        }
    }
    Bytes::from_static(NO_DEL)
}
