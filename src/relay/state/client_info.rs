//! The client's name and library, as the client states them (`CLIENT SETNAME`, `CLIENT SETINFO`,
//! `HELLO … SETNAME`), for operators to see. Like a login, a statement is kept until Redis replies, and
//! counts once Redis has accepted it.

use std::{collections::VecDeque, num::NonZeroU32};

use bytes::Bytes;

use super::command::c_equal;
use crate::gate::{CLIENT_INFO_BYTES, ClientInfo};

/// Most statements in flight that are kept, the latest ones.
const OFFERED: usize = 16;

/// The content of one command.
#[derive(Debug, Clone)]
enum PendingInfo {
    Name(Box<[u8]>),
    Library(Box<[u8]>),
    Version(Box<[u8]>),
    Nothing,
}

/// The client's name and library.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientInfoCommands {
    /// The statements in flight, with their numbers.
    offered: VecDeque<(NonZeroU32, PendingInfo)>,
    name: Box<[u8]>,
    library: Box<[u8]>,
    version: Box<[u8]>,
}

impl ClientInfoCommands {
    pub(super) fn client_info(&self) -> ClientInfo<'_> {
        ClientInfo {
            name: &self.name,
            library: &self.library,
            version: &self.version,
        }
    }

    /// Returns whether these arguments contain a statement.
    pub(super) fn is_in(arguments: &[Bytes]) -> bool {
        !matches!(PendingInfo::of(arguments), PendingInfo::Nothing)
    }

    /// Keeps the statement of a forwarded command.
    pub(super) fn sent(&mut self, number: NonZeroU32, arguments: &[Bytes]) {
        if self.offered.len() >= OFFERED {
            self.offered.pop_front();
        }
        self.offered.push_back((number, PendingInfo::of(arguments)));
    }

    /// Applies a statement that Redis accepted. If its content was not kept, nothing is shown, rather than an
    /// outdated value.
    pub(super) fn accepted(&mut self, number: NonZeroU32) {
        match self.take(number) {
            Some(PendingInfo::Name(name)) => self.name = name,
            Some(PendingInfo::Library(library)) => self.library = library,
            Some(PendingInfo::Version(version)) => self.version = version,
            Some(PendingInfo::Nothing) => {}
            None => {
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

    /// Resets the name. As in Redis, the library stays.
    pub(super) fn reset(&mut self) {
        self.name = Box::default();
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
    fn of(arguments: &[Bytes]) -> Self {
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

fn kept(client_info: &[u8]) -> Box<[u8]> {
    client_info
        .get(..CLIENT_INFO_BYTES)
        .unwrap_or(client_info)
        .into()
}
