//! Lock commands in the middle of a conversation, and what their replies must be.
//!
//! Directly, Redis answers as to an unknown command. Through lockgate so it must where the connection
//! is in a transaction or in RESP2's subscribed mode, and nowhere else. Which of them it is, the `PING`
//! just before tells: only in neither it is answered with its own argument.

use crate::support::frame;

/// A command about a lock of the client's own: its number is part of its name and of its token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Lock {
    Granted(u32),
    Released(u32),
    /// In the database of the connection.
    Placed(u32),
    NotHeld(u32),
    /// Somebody else has it.
    Nil(u32),
    WrongSyntax(u32),
    WrongNumber(u32),
    /// `CLIENT REPLY SKIP` is for it.
    Skipped(u32),
    /// `CLIENT CACHING` is for it, and not for what follows.
    Cached(u32),
    /// After what replies nothing, and before what follows.
    InSilence(u32),
    /// The client locks as the user that Redis sees (`ACL WHOAMI`).
    Whose(u32),
}

/// lockgate's error after a `HELLO` that failed and may have logged in before.
const IN_DOUBT: &str = "-ERR which user this connection has is not known: a HELLO with AUTH or a RESET failed, \
                        which may have changed it; AUTH again\r\n";

const UNKNOWN: &[u8] = b"-ERR unknown command '";

const NO_KEY: &str =
    "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";

impl Lock {
    /// The bytes to send.
    pub(crate) fn bytes(self) -> Vec<u8> {
        let lines = |lines: &[String]| {
            let words = |line: &String| frame(&crate::support::words(line));
            // The blank line spends a CLIENT REPLY SKIP, which would hide the probe.
            let blank = b"\r\n".to_vec();
            [blank]
                .into_iter()
                .chain(lines.iter().map(words))
                .flatten()
                .collect::<Vec<u8>>()
        };
        let probe = |n: u32| format!("PING probe-{n}");
        let lock = |n: u32| format!("LOCK lk:{n} TOKEN tk-{n} PX 10000");
        match self {
            Self::Granted(n) => lines(&[probe(n), lock(n)]),
            Self::Released(n) => lines(&[probe(n), lock(n), format!("UNLOCK lk:{n} tk-{n}")]),
            Self::Placed(n) => lines(&[probe(n), lock(n), format!("GETDEL lk:{n}")]),
            Self::NotHeld(n) => lines(&[probe(n), format!("unlock lk:{n} wrong")]),
            Self::Nil(n) => lines(&[
                format!("SET lk:{n} other"),
                format!("GET nil:{n}"),
                probe(n),
                format!("TRYLOCK lk:{n} TOKEN tk-{n}"),
            ]),
            Self::WrongSyntax(n) => lines(&[probe(n), format!("LOCK lk:{n} PX")]),
            Self::WrongNumber(n) => lines(&[probe(n), "LOCK".to_owned()]),
            Self::Skipped(n) => lines(&[
                probe(n),
                "CLIENT REPLY SKIP".to_owned(),
                lock(n),
                "ECHO after".to_owned(),
            ]),
            Self::Cached(n) => lines(&[
                "CLIENT TRACKING on OPTIN".to_owned(),
                "CLIENT CACHING yes".to_owned(),
                lock(n),
                "GET s".to_owned(),
                "SET s changed".to_owned(),
                probe(n),
            ]),
            Self::InSilence(n) => lines(&[
                "CLIENT REPLY OFF".to_owned(),
                format!("SET lk:{n} other NX"),
                format!("LOCK lk:{n} TOKEN tk-{n} PX 10000 WAIT 1"),
                "CLIENT REPLY ON".to_owned(),
                format!("GETDEL lk:{n}"),
            ]),
            Self::Whose(n) => lines(&[
                probe(n),
                "ACL WHOAMI".to_owned(),
                format!("LOCK @lk:{n} TOKEN tk-{n} PX 10000"),
                format!("LOCK #lk:{n} TOKEN tk-{n} PX 10000"),
            ]),
        }
    }

    /// What is to come through lockgate, where `direct` came directly. What was `heard` counts only where
    /// lockgate said that it does not know the user.
    pub(crate) fn expected(self, direct: Vec<u8>, heard: &[u8]) -> Vec<u8> {
        if let Some(direct) = self.in_doubt(&direct, heard) {
            return direct;
        }
        let token = |n: u32| {
            let token = format!("tk-{n}");
            format!("${}\r\n{token}\r\n", token.len())
        };
        match self {
            Self::Granted(n) => replaced(direct, n, &[&token(n)], false),
            Self::Released(n) => replaced(direct, n, &[&token(n), ":1\r\n"], false),
            Self::Placed(n) => replaced(direct, n, &[&token(n), &token(n)], false),
            Self::NotHeld(n) => replaced(direct, n, &[":0\r\n"], false),
            Self::Nil(n) => {
                let resp3 = find(&direct, &probe_reply(n))
                    .is_some_and(|at| direct[..at].ends_with(b"_\r\n"));
                let nil = if resp3 { "_\r\n" } else { "$-1\r\n" };
                replaced(direct, n, &[nil], false)
            }
            Self::WrongSyntax(n) => replaced(direct, n, &["-ERR syntax error\r\n"], false),
            Self::WrongNumber(n) => {
                let error = "-ERR wrong number of arguments for 'lock' command\r\n";
                replaced(direct, n, &[error], false)
            }
            Self::Cached(n) => replaced(direct, n, &[&token(n)], true),
            Self::Whose(n) => {
                let (token, whoami) = (token(n), whoami_at(&direct, n));
                match whoami.and_then(|at| direct[at..].split(|byte| *byte == b'\r').nth(1)) {
                    Some(b"\nweak") => replaced_at(direct, whoami, &[&token, NO_KEY]),
                    Some(b"\ndefault") => replaced_at(direct, whoami, &[NO_KEY, &token]),
                    _ => direct,
                }
            }
            Self::Skipped(_) | Self::InSilence(_) => direct,
        }
    }

    /// Each lock command was answered that its user is not known, if the first was.
    fn in_doubt(self, direct: &[u8], heard: &[u8]) -> Option<Vec<u8>> {
        let (n, count) = match self {
            Self::Released(n) => (n, 2),
            Self::Granted(n) | Self::Placed(n) | Self::NotHeld(n) | Self::Nil(n) => (n, 1),
            Self::WrongSyntax(n) | Self::WrongNumber(n) | Self::Cached(n) => (n, 1),
            Self::Whose(n) => (n, 2),
            Self::Skipped(_) | Self::InSilence(_) => return None,
        };
        let place = |bytes: &[u8]| match self {
            Self::Cached(_) => {
                let end = find(bytes, &probe_reply(n))?;
                if find(&bytes[..end], format!("\ntk-{n}\r").as_bytes()).is_some() {
                    return None;
                }
                // Its key is in the error, but not where the user is not known.
                let error = [
                    UNKNOWN,
                    format!("LOCK', with args beginning with: 'lk:{n}' ").as_bytes(),
                ]
                .concat();
                find(&bytes[..end], &error).or_else(|| find(&bytes[..end], IN_DOUBT.as_bytes()))
            }
            Self::Whose(_) => whoami_at(bytes, n).map(|at| line_end(bytes, line_end(bytes, at))),
            _ => find(bytes, &probe_reply(n)).map(|at| at + probe_reply(n).len()),
        };
        let (at, heard_at) = (place(direct)?, place(heard)?);
        if !direct[at..].starts_with(UNKNOWN) || !heard[heard_at..].starts_with(IN_DOUBT.as_bytes())
        {
            return None;
        }
        let mut end = at;
        (0..count).for_each(|_| end = line_end(direct, end));
        Some(
            [
                &direct[..at],
                IN_DOUBT.repeat(count).as_bytes(),
                &direct[end..],
            ]
            .concat(),
        )
    }
}

/// Where the reply to `ACL WHOAMI` behind the probe begins.
fn whoami_at(bytes: &[u8], n: u32) -> Option<usize> {
    let at = find(bytes, &probe_reply(n))? + probe_reply(n).len();
    bytes[at..].starts_with(b"$").then_some(at)
}

/// Two errors behind a string that begins there are these replies.
fn replaced_at(mut direct: Vec<u8>, string: Option<usize>, replies: &[&str; 2]) -> Vec<u8> {
    let Some(string) = string else {
        return direct;
    };
    let begin = line_end(&direct, line_end(&direct, string));
    if direct[begin..].starts_with(UNKNOWN) {
        let end = line_end(&direct, line_end(&direct, begin));
        direct.splice(begin..end, replies.concat().bytes());
    }
    direct
}

fn probe_reply(n: u32) -> Vec<u8> {
    let probe = format!("probe-{n}");
    format!("${}\r\n{probe}\r\n", probe.len()).into_bytes()
}

pub(crate) fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Where the probe was answered outside of everything: the errors beside it are these replies.
fn replaced(mut direct: Vec<u8>, n: u32, replies: &[&str], probe_behind: bool) -> Vec<u8> {
    let probe = probe_reply(n);
    let Some(probe_at) = find(&direct, &probe) else {
        return direct;
    };
    if direct[..probe_at].ends_with(b"$4\r\npong\r\n") {
        // Subscribed mode.
        return direct;
    }
    if probe_behind {
        // The lock's error names its key, and the probe tells that there was no transaction.
        let error = format!("-ERR unknown command 'LOCK', with args beginning with: 'lk:{n}' ");
        if let Some(at) = find(&direct[..probe_at], error.as_bytes()) {
            direct.splice(at..line_end(&direct, at), replies[0].bytes());
        }
        return direct;
    }
    let begin = probe_at + probe.len();
    if !direct[begin..].starts_with(UNKNOWN) {
        return direct;
    }
    let mut end = begin;
    for _ in replies {
        end = line_end(&direct, end);
    }
    direct.splice(begin..end, replies.concat().bytes());
    direct
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    find(&bytes[from..], b"\r\n").map_or(bytes.len(), |at| from + at + 2)
}
