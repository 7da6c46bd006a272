//! What the client says of itself (`CLIENT SETNAME`, `CLIENT SETINFO`, `HELLO … SETNAME`), to be shown to
//! operators. As with logins, what it says is kept until Redis answers, and counts once Redis accepted it.

use std::{collections::VecDeque, num::NonZeroU32};

use bytes::Bytes;

use super::command::c_equal;
use crate::gate::{SAID_BYTES, Said};

/// Of what is on its way, so much is remembered, the latest.
const OFFERED: usize = 16;

/// What one command says.
#[derive(Debug, Clone)]
enum Offer {
    Name(Box<[u8]>),
    Library(Box<[u8]>),
    Version(Box<[u8]>),
    Nothing,
}

/// What the client said of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Naming {
    /// On its way, by its number.
    offered: VecDeque<(NonZeroU32, Offer)>,
    name: Box<[u8]>,
    library: Box<[u8]>,
    version: Box<[u8]>,
}

impl Naming {
    pub(super) fn said(&self) -> Said<'_> {
        Said {
            name: &self.name,
            library: &self.library,
            version: &self.version,
        }
    }

    /// These arguments say something.
    pub(super) fn is_in(arguments: &[Bytes]) -> bool {
        !matches!(Offer::of(arguments), Offer::Nothing)
    }

    /// A command with these arguments was sent.
    pub(super) fn sent(&mut self, number: NonZeroU32, arguments: &[Bytes]) {
        if self.offered.len() >= OFFERED {
            self.offered.pop_front();
        }
        self.offered.push_back((number, Offer::of(arguments)));
    }

    /// Redis accepted it. Where it is not remembered what that was, nothing is shown rather than what was
    /// true before.
    pub(super) fn accepted(&mut self, number: NonZeroU32) {
        match self.take(number) {
            Some(Offer::Name(name)) => self.name = name,
            Some(Offer::Library(library)) => self.library = library,
            Some(Offer::Version(version)) => self.version = version,
            Some(Offer::Nothing) => {}
            None => {
                self.name = Box::default();
                self.library = Box::default();
                self.version = Box::default();
            }
        }
    }

    /// Redis refused it.
    pub(super) fn refused(&mut self, number: NonZeroU32) {
        self.take(number);
    }

    /// As in Redis, what was said of the library stays.
    pub(super) fn reset(&mut self) {
        self.name = Box::default();
    }

    /// They are answered in the order of their numbers; some, in transactions, never.
    fn take(&mut self, number: NonZeroU32) -> Option<Offer> {
        let at = self.offered.iter().position(|(its, _)| *its == number)?;
        let offer = self.offered.drain(..=at).next_back();
        if self.offered.is_empty() {
            // Thousands of connections are idle, and each said its name once.
            self.offered = VecDeque::new();
        }
        offer.map(|(_, offer)| offer)
    }
}

impl Offer {
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

    /// Of several the last counts.
    fn of_hello(mut options: &[Bytes]) -> Self {
        let mut offer = Self::Nothing;
        loop {
            options = match options {
                [option, _name, _password, rest @ ..] if c_equal(option, b"AUTH") => rest,
                [option, name, rest @ ..] if c_equal(option, b"SETNAME") => {
                    offer = Self::Name(kept(name));
                    rest
                }
                // Done, or wrong: Redis refuses it there.
                _ => return offer,
            };
        }
    }
}

fn kept(said: &[u8]) -> Box<[u8]> {
    said.get(..SAID_BYTES).unwrap_or(said).into()
}
