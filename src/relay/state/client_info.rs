//! What the client says of its connection: its name and library (`CLIENT SETNAME`, `CLIENT SETINFO`,
//! `HELLO … SETNAME`), for operators to see, `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`. All of it is said again on the
//! client's next connection. Like a login, a statement is kept until Redis replies, and counts once Redis has accepted
//! it.

use std::{collections::VecDeque, num::NonZeroU32};

use bytes::Bytes;

use super::command::c_equal;
use crate::{gate::ClientInfo, limits::CLIENT_STATEMENT_BYTES, relay::restoration::Restoration};

/// Most statements in flight that are kept, the latest ones.
const OFFERED: usize = 16;

/// The content of one command.
#[derive(Debug, Clone)]
enum PendingInfo {
    Name(Box<[u8]>),
    Library(Box<[u8]>),
    Version(Box<[u8]>),
    NoEvict(bool),
    NoTouch(bool),
    Nothing,
    /// The command was not read whole, or contains something unknown.
    Unknown,
}

/// The client's name and library.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientInfoCommands {
    /// The statements in flight, with their numbers.
    offered: VecDeque<(NonZeroU32, PendingInfo)>,
    name: Box<[u8]>,
    library: Box<[u8]>,
    version: Box<[u8]>,
    no_evict: bool,
    no_touch: bool,
    /// Redis accepted a statement whose content is unknown.
    unknown: bool,
}

impl ClientInfoCommands {
    pub(super) fn client_info(&self) -> ClientInfo<'_> {
        ClientInfo {
            name: &self.name,
            library: &self.library,
            version: &self.version,
        }
    }

    /// Returns whether these arguments contain a statement. None: they are unknown, and may.
    pub(super) fn is_in(arguments: Option<&[Bytes]>) -> bool {
        !matches!(PendingInfo::of(arguments), PendingInfo::Nothing)
    }

    /// Keeps the statement of a forwarded command.
    pub(super) fn sent(&mut self, number: NonZeroU32, arguments: Option<&[Bytes]>) {
        if self.offered.len() >= OFFERED {
            self.offered.pop_front();
        }
        self.offered.push_back((number, PendingInfo::of(arguments)));
    }

    /// Returns whether everything that Redis has accepted is known.
    pub(super) fn is_whole(&self) -> bool {
        let bytes = self.name.len() + self.library.len() + self.version.len();
        !self.unknown && bytes <= CLIENT_STATEMENT_BYTES
    }

    /// Adds the commands that state it again.
    pub(super) fn add_to(&self, again: &mut Restoration) {
        let mut add = |command: &[&[u8]], is_stated: bool| {
            if is_stated {
                again.add(command);
            }
        };
        let Self {
            name,
            library,
            version,
            ..
        } = self;
        add(&[b"CLIENT", b"SETNAME", name], !name.is_empty());
        let setinfo: [&[u8]; 2] = [b"CLIENT", b"SETINFO"];
        let [client, what] = setinfo;
        add(&[client, what, b"LIB-NAME", library], !library.is_empty());
        add(&[client, what, b"LIB-VER", version], !version.is_empty());
        add(&[b"CLIENT", b"NO-EVICT", b"ON"], self.no_evict);
        add(&[b"CLIENT", b"NO-TOUCH", b"ON"], self.no_touch);
    }

    /// Applies a statement that Redis accepted. If its content was not kept, nothing is shown, rather than an
    /// outdated value.
    pub(super) fn accepted(&mut self, number: NonZeroU32) {
        match self.take(number) {
            Some(PendingInfo::Name(name)) => self.name = name,
            Some(PendingInfo::Library(library)) => self.library = library,
            Some(PendingInfo::Version(version)) => self.version = version,
            Some(PendingInfo::NoEvict(on)) => self.no_evict = on,
            Some(PendingInfo::NoTouch(on)) => self.no_touch = on,
            Some(PendingInfo::Nothing) => {}
            Some(PendingInfo::Unknown) | None => {
                self.unknown = true;
                self.name = Box::default();
                self.library = Box::default();
                self.version = Box::default();
            }
        }
    }

    /// Discards a statement that Redis refused.
    pub(super) fn refused(&mut self, number: NonZeroU32) {
        self.take(number);
    }

    /// Resets the name. As in Redis, the library stays. The other two depend on its version.
    pub(super) fn reset(&mut self) {
        self.name = Box::default();
        self.unknown |= self.no_evict || self.no_touch;
    }

    /// Removes the statement with this number. Replies arrive in the order of the numbers; some statements,
    /// in transactions, get none.
    fn take(&mut self, number: NonZeroU32) -> Option<PendingInfo> {
        let at = self.offered.iter().position(|(its, _)| *its == number)?;
        let offer = self.offered.drain(..=at).next_back();
        if self.offered.is_empty() {
            // Thousands of connections are idle, and each stated its name once.
            self.offered = VecDeque::new();
        }
        offer.map(|(_, offer)| offer)
    }
}

impl PendingInfo {
    fn of(arguments: Option<&[Bytes]>) -> Self {
        let Some(arguments) = arguments else {
            return Self::Unknown;
        };
        match arguments {
            [name, _version, options @ ..] if name.eq_ignore_ascii_case(b"HELLO") => {
                Self::of_hello(options)
            }
            [_client, what, name] if c_equal(what, b"SETNAME") => Self::Name(kept(name)),
            [_client, _setinfo, what, value] if c_equal(what, b"LIB-NAME") => {
                Self::Library(kept(value))
            }
            [_client, _setinfo, what, value] if c_equal(what, b"LIB-VER") => {
                Self::Version(kept(value))
            }
            [_client, what, on] if c_equal(what, b"NO-EVICT") => Self::NoEvict(is_on(on)),
            [_client, what, on] if c_equal(what, b"NO-TOUCH") => Self::NoTouch(is_on(on)),
            // Of a kind that a later version of Redis may accept.
            [_client, _setinfo, _what, _value] => Self::Unknown,
            _ => Self::Nothing,
        }
    }

    /// Parses the options of a `HELLO`. Of several names the last counts.
    fn of_hello(mut options: &[Bytes]) -> Self {
        let mut offer = Self::Nothing;
        loop {
            options = match options {
                [option, _name, _password, rest @ ..] if c_equal(option, b"AUTH") => rest,
                [option, name, rest @ ..] if c_equal(option, b"SETNAME") => {
                    offer = Self::Name(kept(name));
                    rest
                }
                // The end, or an invalid option, where Redis refuses the command.
                _ => return offer,
            };
        }
    }
}

fn is_on(argument: &[u8]) -> bool {
    c_equal(argument, b"ON")
}

/// Returns the beginning of a statement; of one that is too long, so much of it that it cannot be taken for whole.
fn kept(statement: &[u8]) -> Box<[u8]> {
    statement
        .get(..=CLIENT_STATEMENT_BYTES)
        .unwrap_or(statement)
        .into()
}
