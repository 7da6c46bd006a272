//! The ordinary commands of a client where no Redis stands behind this gate: just what client
//! libraries and redis-cli send on connecting, and what a person sends to look around. Pure: the
//! arguments of one command in, its reply out, and the connection's own state in between.
//!
//! Whatever is answered, is answered as Redis does (in the words of 7.0, and with the additions of
//! 7.2 that libraries send); the tests compare with one. There is one user, `default`, who needs no
//! password here: where the gate has one, [`guard`](super::guard) has seen to that. Everything else gets
//! an error that says how to give this gate a Redis.
//!
//! `connection` has `CLIENT`, `catalog` has `COMMAND`, [`information`] has `INFO`.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::{
    command::integer,
    guard::WRONG_PASS,
    table::{Entry, ORDINARY_COMMANDS},
};
use crate::{
    gate::Said,
    lock::Time,
    resp::{Protocol, Writer},
};

mod catalog;
mod connection;
pub mod information;

#[cfg(test)]
mod tests;

use information::Facts;

/// The version of Redis whose manners these are: libraries choose what to send by it.
pub const REDIS_VERSION: &str = "7.2.0";

/// The version of this program.
pub const LOCKGATE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The number of databases, as a Redis has by default.
pub const DATABASES: u32 = 16;

/// Longest name of a connection or of a client library, in bytes: it is kept as long as the
/// connection lives.
pub const NAME_BYTES: usize = 256;

/// Most bytes of a client's own words that are repeated in an error (as Redis's `%.128s`).
const QUOTED_BYTES: usize = 128;

/// What follows a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Then {
    /// The next command.
    Go,
    /// The end of the connection, once the reply is written.
    Close,
}

/// What one connection is and has been told.
#[derive(Debug, Clone)]
pub struct Local {
    id: u64,
    peer: String,
    address: String,
    opened: Time,
    name: String,
    lib_name: String,
    lib_ver: String,
    protocol: Protocol,
    database: u32,
    no_evict: bool,
    no_touch: bool,
    replies: Replies,
    /// It has given the password of the gate, where there is one.
    is_in: bool,
}

/// What `CLIENT REPLY` asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replies {
    On,
    Off,
    /// The next command gets none.
    SkipNext,
    /// The command that runs gets none.
    SkipThis,
}

impl Local {
    /// A new connection: its number, unique while this process lives; the address and port of the
    /// client, and those it connected to; and the time.
    pub fn new(id: u64, peer: impl Into<String>, address: impl Into<String>, now: Time) -> Self {
        Self {
            id,
            peer: peer.into(),
            address: address.into(),
            opened: now,
            name: String::new(),
            lib_name: String::new(),
            lib_ver: String::new(),
            protocol: Protocol::Resp2,
            database: 0,
            no_evict: false,
            no_touch: false,
            replies: Replies::On,
            is_in: false,
        }
    }

    /// It has given the password of the gate, since the connection was opened or `RESET`.
    pub fn is_in(&self) -> bool {
        self.is_in
    }

    /// It has given the password, or was `RESET`.
    pub fn set_in(&mut self, is_in: bool) {
        self.is_in = is_in;
    }

    /// The number of the connection.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name that the client gave its connection; empty without one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the client said of itself.
    pub fn said(&self) -> Said<'_> {
        Said {
            name: self.name.as_bytes(),
            library: self.lib_name.as_bytes(),
            version: self.lib_ver.as_bytes(),
        }
    }

    /// The protocol of the next reply.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The database of the next lock command, below [`DATABASES`].
    pub fn database(&self) -> u32 {
        self.database
    }

    /// Whether the next command gets no reply, as `CLIENT REPLY` asked for. To be called once for
    /// each command that [`answer`](Self::answer) does not see.
    pub fn takes_silence(&mut self) -> bool {
        match self.replies {
            Replies::On => false,
            Replies::Off => true,
            Replies::SkipNext | Replies::SkipThis => {
                self.replies = Replies::On;
                true
            }
        }
    }

    /// Answers one whole command, which is no lock command: appends its reply to `out`.
    pub fn answer(&mut self, arguments: &[Bytes], facts: &Facts<'_>, out: &mut BytesMut) -> Then {
        if arguments.is_empty() {
            return Then::Go;
        }
        if self.replies == Replies::SkipNext {
            self.replies = Replies::SkipThis;
        }
        let before = out.len();
        let then = match find(arguments) {
            Ok(entry) => self.run(entry, arguments, facts, out),
            Err(error) => {
                self.writer(out).error(&*error);
                Then::Go
            }
        };
        // Looked at afterwards, since `CLIENT REPLY ON` and `RESET` are answered by what they made.
        if self.replies != Replies::On && self.replies != Replies::SkipNext {
            out.truncate(before);
        }
        if self.replies == Replies::SkipThis {
            self.replies = Replies::On;
        }
        then
    }

    fn writer<'a>(&self, out: &'a mut BytesMut) -> Writer<'a> {
        Writer::new(out, self.protocol)
    }

    fn run(
        &mut self,
        entry: &'static Entry,
        arguments: &[Bytes],
        facts: &Facts<'_>,
        out: &mut BytesMut,
    ) -> Then {
        let rest = arguments.get(1..).unwrap_or_default();
        match entry.name {
            "ping" => self.ping(rest, out),
            "echo" => rest
                .iter()
                .for_each(|message| self.writer(out).bulk(message)),
            "hello" => self.hello(rest, out),
            "auth" => self.auth(rest, out),
            "select" => self.select(rest, out),
            "info" => information::write(rest, facts, &mut self.writer(out)),
            "reset" => self.reset(out),
            "quit" => {
                self.writer(out).status("OK");
                return Then::Close;
            }
            "command" => catalog::write_all(&mut self.writer(out)),
            _ => {
                let rest = arguments.get(2..).unwrap_or_default();
                match entry.name.split_once('|') {
                    Some(("client", what)) => self.client(what, rest, facts, out),
                    Some(("command", what)) => catalog::write(what, rest, &mut self.writer(out)),
                    _ => debug_assert!(false, "{} is in the table only", entry.name),
                }
            }
        }
        Then::Go
    }

    fn ping(&self, rest: &[Bytes], out: &mut BytesMut) {
        match rest {
            [] => self.writer(out).status("PONG"),
            [message] => self.writer(out).bulk(message),
            _ => self.writer(out).error(wrong_arity("ping")),
        }
    }

    fn hello(&mut self, rest: &[Bytes], out: &mut BytesMut) {
        if let Err(error) = self.introduce(rest) {
            return self.writer(out).error(&*error);
        }
        let mut out = self.writer(out);
        out.map(8);
        for (field, text) in [("server", "redis"), ("version", REDIS_VERSION)] {
            out.bulk(field);
            out.bulk(text);
        }
        out.bulk("proto");
        out.integer(match self.protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        });
        out.bulk("id");
        out.integer(self.id_number());
        for (field, text) in [("mode", "standalone"), ("role", "master")] {
            out.bulk(field);
            out.bulk(text);
        }
        out.bulk("modules");
        out.array(0);
        out.bulk("lockgate");
        out.bulk(LOCKGATE_VERSION);
    }

    /// What `HELLO` changes: all of it, or nothing where any part is wrong.
    fn introduce(&mut self, rest: &[Bytes]) -> Result<(), Cow<'static, str>> {
        let Some((version, mut options)) = rest.split_first() else {
            return Ok(());
        };
        let protocol = match integer(version) {
            None => return Err("ERR Protocol version is not an integer or out of range".into()),
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
        };
        let (mut user, mut name) = (None, None);
        while let Some((option, after)) = options.split_first() {
            options = match after {
                [given, _password, after @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    user = Some(given);
                    after
                }
                [given, after @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(connection::name_of_client(given)?);
                    after
                }
                _ => {
                    let option = quoted(option);
                    return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
                }
            };
        }
        if user.is_some_and(|user| user != "default") {
            return Err(WRONG_PASS.into());
        }
        if let Some(name) = name {
            self.name = name;
        }
        self.protocol = protocol;
        Ok(())
    }

    fn auth(&self, rest: &[Bytes], out: &mut BytesMut) {
        let mut out = self.writer(out);
        match rest {
            [_password] => out.error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ),
            [user, _password] if user == "default" => out.status("OK"),
            [_user, _password] => out.error(WRONG_PASS),
            _ => out.error("ERR syntax error"),
        }
    }

    fn select(&mut self, rest: &[Bytes], out: &mut BytesMut) {
        let number = rest.first().and_then(|index| integer(index));
        let database = match number.map(i32::try_from) {
            None => Err("ERR value is not an integer or out of range"),
            Some(Err(_)) => {
                Err("ERR value is out of range, value must between -2147483648 and 2147483647")
            }
            Some(Ok(index)) => u32::try_from(index)
                .ok()
                .filter(|index| *index < DATABASES)
                .ok_or("ERR DB index is out of range"),
        };
        match database {
            Err(error) => self.writer(out).error(error),
            Ok(database) => {
                self.database = database;
                self.writer(out).status("OK");
            }
        }
    }

    /// As in Redis, what was said of the client library stays.
    fn reset(&mut self, out: &mut BytesMut) {
        self.name.clear();
        self.protocol = Protocol::Resp2;
        self.database = 0;
        self.no_evict = false;
        self.no_touch = false;
        if self.replies == Replies::Off {
            self.replies = Replies::On;
        }
        self.writer(out).status("RESET");
    }

    fn id_number(&self) -> i64 {
        i64::try_from(self.id).unwrap_or(i64::MAX)
    }
}

/// The entry of the command or subcommand that is meant, its number of arguments being right; else
/// the error, without the leading `-`.
fn find(arguments: &[Bytes]) -> Result<&'static Entry, String> {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(unknown_command(b""));
    };
    let Some(mut entry) = called(&ORDINARY_COMMANDS, name) else {
        return Err(unknown_command(name));
    };
    if let Some(subname) = rest.first()
        && !entry.subcommands.is_empty()
    {
        entry = called(entry.subcommands, subname).ok_or_else(|| {
            let (subname, container) = (quoted(subname), entry.name.to_ascii_uppercase());
            format!("ERR unknown subcommand '{subname}'. Try {container} HELP.")
        })?;
    }
    if !entry.takes(arguments.len()) {
        return Err(wrong_arity(entry.name));
    }
    Ok(entry)
}

fn called(entries: &'static [Entry], name: &[u8]) -> Option<&'static Entry> {
    entries
        .iter()
        .find(|entry| entry.short_name().as_bytes().eq_ignore_ascii_case(name))
}

fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

fn unknown_command(name: &[u8]) -> String {
    format!(
        "ERR unknown command '{}': this lockgate runs without a Redis and serves lock commands \
         only; to give it one, start it with --upstream redis://host:port",
        quoted(name)
    )
}

/// A client's own words for an error: not too many, and nothing that would not print.
fn quoted(words: &[u8]) -> String {
    words
        .iter()
        .take(QUOTED_BYTES)
        .map(|byte| match byte {
            b'\r' | b'\n' => ' ',
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        })
        .collect()
}
