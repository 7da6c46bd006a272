//! Who the client is. What it says of itself (`AUTH`, `HELLO … AUTH`) is kept until Redis answers, and is
//! true once Redis accepted it.

use std::collections::VecDeque;

use bytes::Bytes;

use super::command::c_equal;
use crate::identity::{Credentials, DEFAULT};

/// Logins on their way that are remembered, the latest ones: of many in one packet the last counts.
const OFFERED: usize = 16;

/// Who the client is to Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Identity {
    /// It has not said so: what Redis allows on a new connection.
    #[default]
    Anonymous,
    /// It said so, and Redis accepted it.
    Known(Credentials),
    /// It said so, too long or among too much to be remembered, and Redis accepted it.
    NotKept,
}

/// What one `AUTH` or `HELLO` says.
#[derive(Debug, Clone)]
enum Offer {
    /// Nothing of who it is.
    Nothing,
    /// The gate has let it in, and it is nobody to Redis.
    LetIn,
    Credentials(Option<Credentials>),
    /// Of several the last counts, if Redis accepts them all; else it may be any.
    Several(Option<Credentials>),
}

/// What the client said and Redis has not answered, and what came of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Logins {
    /// By the number of the login.
    offered: VecDeque<(u64, Offer)>,
    identity: Identity,
    /// Counts what changed it.
    changes: u64,
}

impl Logins {
    pub(super) fn identity(&self) -> (&Identity, u64) {
        (&self.identity, self.changes)
    }

    /// A login with these arguments was sent; without any the gate has let the client in itself.
    pub(super) fn sent(&mut self, number: u64, arguments: &[Bytes]) {
        if self.offered.len() >= OFFERED {
            self.offered.pop_front();
        }
        self.offered.push_back((number, Offer::of(arguments)));
    }

    /// Redis accepted it. Whether it said who the client is.
    pub(super) fn accepted(&mut self, number: u64) -> bool {
        self.identity = match self.take(number) {
            Some(Offer::Nothing) => return false,
            Some(Offer::LetIn) => Identity::Anonymous,
            Some(Offer::Credentials(Some(it)) | Offer::Several(Some(it))) => Identity::Known(it),
            Some(Offer::Credentials(None) | Offer::Several(None)) | None => Identity::NotKept,
        };
        self.changes += 1;
        true
    }

    /// Redis refused it, `as_nobody` or for another reason. Whether part of it may have come true.
    pub(super) fn refused(&mut self, number: u64, as_nobody: bool) -> bool {
        match self.take(number) {
            Some(Offer::Nothing | Offer::LetIn) => false,
            // Redis up to 7.0 logs in before it reads the options that follow.
            Some(Offer::Credentials(_)) => !as_nobody,
            Some(Offer::Several(_)) | None => true,
        }
    }

    /// As on a new connection.
    pub(super) fn reset(&mut self) {
        self.identity = Identity::Anonymous;
        self.changes += 1;
    }

    /// They are answered in the order of their numbers; some, in transactions, never.
    fn take(&mut self, number: u64) -> Option<Offer> {
        while let Some((first, _)) = self.offered.front()
            && *first <= number
        {
            let (first, offer) = self.offered.pop_front()?;
            if first == number {
                if self.offered.is_empty() {
                    // Thousands of connections are idle, and each logged in once.
                    self.offered = VecDeque::new();
                }
                return Some(offer);
            }
        }
        None
    }
}

impl Offer {
    fn of(arguments: &[Bytes]) -> Self {
        let is_hello = |name: &Bytes| name.eq_ignore_ascii_case(b"HELLO");
        match arguments {
            [name, _version, options @ ..] if is_hello(name) => Self::of_hello(options),
            [] => Self::LetIn,
            [_auth, password] => Self::Credentials(Credentials::new(DEFAULT, password)),
            [_auth, name, password] => Self::Credentials(Credentials::new(name, password)),
            _ => Self::Nothing,
        }
    }

    fn of_hello(mut options: &[Bytes]) -> Self {
        let mut offer = Self::Nothing;
        loop {
            options = match options {
                [option, name, password, rest @ ..] if c_equal(option, b"AUTH") => {
                    let credentials = Credentials::new(name, password);
                    offer = match offer {
                        Self::Nothing => Self::Credentials(credentials),
                        _ => Self::Several(credentials),
                    };
                    rest
                }
                [option, _name, rest @ ..] if c_equal(option, b"SETNAME") => rest,
                // Done, or wrong: Redis refuses it there.
                _ => return offer,
            };
        }
    }
}
