//! The client's identity. Credentials in an `AUTH` or `HELLO … AUTH` are kept until Redis replies, and count
//! once Redis has accepted them.

use std::collections::VecDeque;

use bytes::Bytes;

use super::command::c_equal;
use crate::auth::identity::{Credentials, DEFAULT};

/// Most logins in flight that are kept, the latest ones: of many in one packet the last counts.
const OFFERED: usize = 16;

/// The client's identity in Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Identity {
    /// The client has not logged in, and has the rights of a new connection.
    #[default]
    Anonymous,
    /// Redis accepted these credentials.
    Known(Credentials),
    /// Redis accepted credentials that were too long, or among too many, to be kept.
    NotKept,
}

/// The content of one `AUTH` or `HELLO`.
#[derive(Debug, Clone)]
enum PendingLogin {
    /// No credentials.
    Nothing,
    /// lockgate itself has let the client in, which is anonymous to Redis.
    LetIn,
    Credentials(Option<Credentials>),
    /// The `default` user's, stated by the password alone.
    Password(Option<Credentials>),
    /// Several credentials. If Redis accepts the command, the last ones count; if not, any of them may.
    Several(Option<Credentials>),
}

/// The logins in flight, and the identity that resulted from the earlier ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Logins {
    /// The logins in flight, with their numbers.
    offered: VecDeque<(u64, PendingLogin)>,
    identity: Identity,
    /// The client stated its password alone, as Redis before 6 expects.
    is_password: bool,
    /// Number of changes of the identity.
    changes: u64,
}

impl Logins {
    pub(super) fn identity(&self) -> (&Identity, u64) {
        (&self.identity, self.changes)
    }

    /// Returns the words that state the identity again, in the form that the client used: where the `default` user needs
    /// no password, Redis refuses a password alone, and before version 6 a name.
    pub(super) fn again(&self) -> Option<Vec<&[u8]>> {
        let Identity::Known(credentials) = &self.identity else {
            return None;
        };
        let (name, password) = (credentials.name(), credentials.password());
        Some(match self.is_password {
            true => vec![b"AUTH", password],
            false => vec![b"AUTH", name, password],
        })
    }

    /// Keeps a forwarded login with its arguments. None: lockgate itself has let the client in.
    pub(super) fn sent(&mut self, number: u64, arguments: Option<&[Bytes]>) {
        if self.offered.len() >= OFFERED {
            self.offered.pop_front();
        }
        self.offered.push_back((
            number,
            arguments.map_or(PendingLogin::LetIn, PendingLogin::of),
        ));
    }

    /// Applies a login that Redis accepted. Returns whether it contained credentials or made the client
    /// anonymous.
    pub(super) fn accepted(&mut self, number: u64) -> bool {
        use PendingLogin as P;
        let login = self.take(number);
        let is_password = matches!(login, Some(P::Password(_)));
        self.identity = match login {
            Some(P::Nothing) => return false,
            Some(P::LetIn) => Identity::Anonymous,
            Some(P::Credentials(kept) | P::Password(kept) | P::Several(kept)) => {
                kept.map_or(Identity::NotKept, Identity::Known)
            }
            None => Identity::NotKept,
        };
        self.is_password = is_password;
        self.changes += 1;
        true
    }

    /// Discards a login that Redis refused, `as_nobody` or for another reason. Returns whether part of it may
    /// have taken effect.
    pub(super) fn refused(&mut self, number: u64, as_nobody: bool) -> bool {
        match self.take(number) {
            Some(PendingLogin::Nothing | PendingLogin::LetIn) => false,
            // Redis up to 7.0 logs in before it reads the options that follow.
            Some(PendingLogin::Credentials(_) | PendingLogin::Password(_)) => !as_nobody,
            Some(PendingLogin::Several(_)) | None => true,
        }
    }

    /// Makes the client anonymous, as on a new connection.
    pub(super) fn reset(&mut self) {
        self.identity = Identity::Anonymous;
        self.changes += 1;
    }

    /// Removes the login with this number. Replies arrive in the order of the numbers; some logins, in
    /// transactions, get none.
    fn take(&mut self, number: u64) -> Option<PendingLogin> {
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

impl PendingLogin {
    fn of(arguments: &[Bytes]) -> Self {
        let is_hello = |name: &Bytes| name.eq_ignore_ascii_case(b"HELLO");
        match arguments {
            [name, _version, options @ ..] if is_hello(name) => Self::of_hello(options),
            [_auth, password] => Self::Password(Credentials::new(DEFAULT, password)),
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
                // The end, or an invalid option, where Redis refuses the command.
                _ => return offer,
            };
        }
    }
}
