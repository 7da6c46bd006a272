//! The ordinary commands of an instance without an upstream: those that client libraries and redis-cli send
//! on connecting, and those that people send to look around. Pure: the arguments of one command in, its reply
//! out, and the connection's own state in between.
//!
//! Replies match those of Redis (in the words of 7.0, with the additions of 7.2 that libraries send); the
//! tests compare them with a real one. The only user, `default`, needs no password here: where lockgate has a
//! password, [`guard`](crate::auth::guard) has checked it. Every other command gets an error that explains how to
//! configure an upstream. So does a command of Redis's own that the session did not recognise as a request about a lock.
//!
//! `connection` implements `CLIENT`, `catalog` implements `COMMAND`, `scripts` implements `SCRIPT`, [`information`]
//! implements `INFO`.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use crate::{
    auth::guard::WRONG_PASS,
    command::table::{Entry, ORDINARY_COMMANDS},
    gate::ClientInfo,
    lock::Time,
    relay::Instance,
    resp::{Protocol, Writer, integer},
};

mod catalog;
mod connection;
pub mod information;
mod scripts;

#[cfg(test)]
mod tests;

use information::Facts;

/// The version of Redis that lockgate imitates. Libraries choose their commands by it.
pub const REDIS_VERSION: &str = "7.2.0";

/// The version of this program.
pub const LOCKGATE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The number of databases, Redis's default.
pub const DATABASES: u32 = 16;

/// Longest name of a connection or of a client library, in bytes. It is kept until the connection ends.
pub const NAME_BYTES: usize = 256;

/// Most bytes of a client's input that an error repeats (Redis's `%.128s`).
const QUOTED_BYTES: usize = 128;

/// The end of errors of commands that need a Redis.
const HOW_TO_GIVE_ONE: &str = "start lockgate with --upstream redis://host:port to give it one";

/// The next step after a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Then {
    /// Go on with the next command.
    Go,
    /// Close the connection once the reply is written.
    Close,
}

/// The state of one connection.
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
    /// The client has given lockgate's password, where there is one.
    is_in: bool,
}

/// The mode that `CLIENT REPLY` has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replies {
    On,
    Off,
    /// The next command gets no reply.
    SkipNext,
    /// The current command gets no reply.
    SkipThis,
}

impl Local {
    /// Creates the state of a new connection. `id` is unique in this process. `peer` is the client's address
    /// and port, `address` those that it connected to.
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

    /// Returns whether the client has given lockgate's password since the connection was opened or `RESET`.
    pub fn is_in(&self) -> bool {
        self.is_in
    }

    /// Records whether the client has given the password; a `RESET` takes it back.
    pub fn set_in(&mut self, is_in: bool) {
        self.is_in = is_in;
    }

    /// Returns the number of the connection.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the name of the connection; empty without one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the client's name and library, as stated by the client.
    pub fn client_info(&self) -> ClientInfo<'_> {
        ClientInfo {
            name: self.name.as_bytes(),
            library: self.lib_name.as_bytes(),
            version: self.lib_ver.as_bytes(),
        }
    }

    /// Returns the protocol of the next reply.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the database of the next lock command, below [`DATABASES`].
    pub fn database(&self) -> u32 {
        self.database
    }

    /// Returns whether `CLIENT REPLY` suppresses the reply to the next command. Called once for each command
    /// that [`answer`](Self::answer) does not see.
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

    /// Runs one ordinary command and appends its reply to `out`.
    pub fn answer(
        &mut self,
        arguments: &[Bytes],
        instance: &dyn Instance,
        out: &mut BytesMut,
    ) -> Then {
        if arguments.is_empty() {
            return Then::Go;
        }
        if self.replies == Replies::SkipNext {
            self.replies = Replies::SkipThis;
        }
        let before = out.len();
        let then = match find(arguments) {
            Ok(entry) => self.run(entry, arguments, instance, out),
            Err(error) => {
                self.writer(out).error(&*error);
                Then::Go
            }
        };
        // Checked afterwards, since `CLIENT REPLY ON` and `RESET` take effect on their own replies.
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
        instance: &dyn Instance,
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
            "info" => information::write(rest, &instance.facts(), &mut self.writer(out)),
            "reset" => self.reset(out),
            "quit" => {
                self.writer(out).status("OK");
                return Then::Close;
            }
            "command" => catalog::write_all(&mut self.writer(out)),
            "get" => self.get(rest, instance, out),
            "set" => self.unserved("SET only takes locks: SET key token NX PX|EX time", out),
            "del" => self.unserved("DEL only releases locks: DEL key", out),
            "unlink" => self.unserved("UNLINK only releases locks: UNLINK key", out),
            "evalsha" if !scripts::is_known(rest, &instance.rules()) => {
                self.writer(out).error(scripts::NO_SCRIPT);
            }
            "eval" | "evalsha" => {
                self.unserved("EVAL only runs scripts of lock libraries, on one key", out);
            }
            _ => {
                let rest = arguments.get(2..).unwrap_or_default();
                match entry.name.split_once('|') {
                    Some(("client", what)) => self.client(what, rest, &instance.facts(), out),
                    Some(("command", what)) => catalog::write(what, rest, &mut self.writer(out)),
                    Some(("script", what)) => {
                        scripts::write(what, rest, &instance.rules(), &mut self.writer(out));
                    }
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

    /// Writes the token that holds a lock, which is the value of its key in Redis.
    fn get(&self, rest: &[Bytes], instance: &dyn Instance, out: &mut BytesMut) {
        let token = rest
            .first()
            .and_then(|key| instance.token_of(self.database, key));
        match token {
            Some(token) => self.writer(out).bulk(token.as_bytes()),
            None => self.writer(out).null(),
        }
    }

    /// Writes the error of a command whose other forms are requests about locks.
    fn unserved(&self, served: &str, out: &mut BytesMut) {
        let error = format!("ERR without a Redis, {served}; {HOW_TO_GIVE_ONE}");
        self.writer(out).error(error);
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

    /// Applies a `HELLO`: all of it, or nothing where any part is invalid.
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

    /// Resets the connection. As in Redis, the name and version of the client library stay.
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

/// Returns the entry of the command or subcommand, if the number of arguments is right; else the error,
/// without the leading `-`.
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
         only; {HOW_TO_GIVE_ONE}",
        quoted(name)
    )
}

/// Returns a client's input for an error: bounded, and with printable characters only.
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
