//! `CLIENT …`: the state that a connection sets and reads of itself.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use super::{Facts, Local, NAME_BYTES, Replies, quoted};
use crate::resp::{Protocol, integer};

type Answer = Result<(), Cow<'static, str>>;

const SYNTAX: Cow<'static, str> = Cow::Borrowed("ERR syntax error");

impl Local {
    /// Runs one subcommand whose number of arguments is right.
    pub(super) fn client(
        &mut self,
        subcommand: &str,
        rest: &[Bytes],
        facts: &Facts<'_>,
        out: &mut BytesMut,
    ) {
        let changed = match (subcommand, rest) {
            ("setname", [name]) => name_of_client(name).map(|name| self.name = name),
            ("setinfo", [attribute, value]) => self.set_info(attribute, value),
            ("no-evict", [wish]) => on_or_off(wish).map(|wish| self.no_evict = wish),
            ("no-touch", [wish]) => on_or_off(wish).map(|wish| self.no_touch = wish),
            ("reply", [mode]) => match self.set_replies(mode) {
                Ok(true) => Ok(()),
                Ok(false) => return,
                Err(error) => Err(error),
            },
            _ => return self.tell(subcommand, rest, facts, out),
        };
        match changed {
            Ok(()) => self.writer(out).status("OK"),
            Err(error) => self.writer(out).error(&*error),
        }
    }

    fn set_info(&mut self, attribute: &Bytes, value: &Bytes) -> Answer {
        let field = if attribute.eq_ignore_ascii_case(b"LIB-NAME") {
            &mut self.lib_name
        } else if attribute.eq_ignore_ascii_case(b"LIB-VER") {
            &mut self.lib_ver
        } else {
            let attribute = quoted(attribute);
            return Err(format!("ERR Unrecognized option '{attribute}'").into());
        };
        *field = printable(value, &quoted(attribute))?;
        Ok(())
    }

    /// Sets the mode of replies. Returns whether this command itself gets a reply: `OFF` and `SKIP` do not.
    fn set_replies(&mut self, mode: &Bytes) -> Result<bool, Cow<'static, str>> {
        if mode.eq_ignore_ascii_case(b"ON") {
            self.replies = Replies::On;
            return Ok(true);
        }
        if mode.eq_ignore_ascii_case(b"OFF") {
            self.replies = Replies::Off;
        } else if !mode.eq_ignore_ascii_case(b"SKIP") {
            return Err(SYNTAX);
        } else if self.replies != Replies::Off {
            self.replies = Replies::SkipNext;
        }
        Ok(false)
    }

    /// Runs the subcommands that change nothing.
    fn tell(&self, subcommand: &str, rest: &[Bytes], facts: &Facts<'_>, out: &mut BytesMut) {
        let mut out = self.writer(out);
        match subcommand {
            "id" => out.integer(self.id_number()),
            "getname" if self.name.is_empty() => out.null(),
            "getname" => out.bulk(&self.name),
            "info" => out.verbatim(&self.line("client|info", facts)),
            "list" => match self.is_listed(rest) {
                Ok(true) => out.verbatim(&self.line("client|list", facts)),
                Ok(false) => out.verbatim(""),
                Err(error) => out.error(&*error),
            },
            "getredir" => out.integer(-1),
            "trackinginfo" => {
                out.map(3);
                out.bulk("flags");
                out.set(1);
                out.bulk("off");
                out.bulk("redirect");
                out.integer(-1);
                out.bulk("prefixes");
                out.array(0);
            }
            "help" => {
                out.array(HELP.len());
                for line in HELP {
                    out.status(line);
                }
            }
            other => debug_assert!(false, "client|{other} is in the table only"),
        }
    }

    /// Returns whether `CLIENT LIST` with this filter includes this connection, the only one it can list.
    fn is_listed(&self, filter: &[Bytes]) -> Result<bool, Cow<'static, str>> {
        match filter {
            [] => Ok(true),
            [by, kind] if by.eq_ignore_ascii_case(b"TYPE") => {
                let kinds = ["normal", "master", "replica", "slave", "pubsub"];
                match kinds
                    .iter()
                    .find(|name| kind.eq_ignore_ascii_case(name.as_bytes()))
                {
                    Some(name) => Ok(*name == "normal"),
                    None => Err(format!("ERR Unknown client type '{}'", quoted(kind)).into()),
                }
            }
            [by, ids @ ..] if by.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
                let mut listed = false;
                for id in ids {
                    let id = integer(id).ok_or("ERR Invalid client ID")?;
                    listed |= id == self.id_number();
                }
                Ok(listed)
            }
            _ => Err(SYNTAX),
        }
    }

    /// Returns this connection as a line of `CLIENT LIST`, with those of Redis's fields that have a meaning
    /// here.
    fn line(&self, command: &str, facts: &Facts<'_>) -> String {
        let mut flags = String::new();
        if self.no_evict {
            flags.push('e');
        }
        if self.no_touch {
            flags.push('T');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        format!(
            "id={} addr={} laddr={} name={} age={} idle=0 flags={} db={} sub=0 psub=0 ssub=0 \
             multi=-1 cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
            self.id,
            self.peer,
            self.address,
            self.name,
            facts.now.millis_since(self.opened) / 1_000,
            flags,
            self.database,
            command,
            match self.protocol {
                Protocol::Resp2 => 2,
                Protocol::Resp3 => 3,
            },
            self.lib_name,
            self.lib_ver,
        )
    }
}

/// Checks the name of a connection. An empty name removes the name.
pub(super) fn name_of_client(name: &Bytes) -> Result<String, Cow<'static, str>> {
    printable(name, "Client names")
}

/// Checks a value for a line of `CLIENT LIST`, whose fields are separated by spaces.
fn printable(value: &Bytes, what: &str) -> Result<String, Cow<'static, str>> {
    if value.len() > NAME_BYTES {
        return Err(format!("ERR {what} cannot be longer than {NAME_BYTES} bytes.").into());
    }
    match std::str::from_utf8(value) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.to_owned()),
        _ => {
            Err(format!("ERR {what} cannot contain spaces, newlines or special characters.").into())
        }
    }
}

fn on_or_off(wish: &Bytes) -> Result<bool, Cow<'static, str>> {
    if wish.eq_ignore_ascii_case(b"ON") {
        Ok(true)
    } else if wish.eq_ignore_ascii_case(b"OFF") {
        Ok(false)
    } else {
        Err(SYNTAX)
    }
}

const HELP: [&str; 25] = [
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GETNAME",
    "    Return the name of the current connection.",
    "GETREDIR",
    "    Return -1: there is no tracking without a Redis.",
    "ID",
    "    Return the number of the current connection.",
    "INFO",
    "    Return information about the current connection.",
    "LIST [TYPE <type> | ID <id> [<id> ...]]",
    "    Return the same if the filter lets the current connection through.",
    "NO-EVICT (ON|OFF)",
    "    Without effect: nothing is evicted here.",
    "NO-TOUCH (ON|OFF)",
    "    Without effect: locks have no last access.",
    "REPLY (ON|OFF|SKIP)",
    "    Control the replies sent to the current connection.",
    "SETINFO (LIB-NAME|LIB-VER) <value>",
    "    Note which client library is at work.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "TRACKINGINFO",
    "    Tell that there is no tracking without a Redis.",
    "HELP",
    "    Print this help.",
];
