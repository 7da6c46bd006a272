//! The instance's own password. lockgate keeps only its hash, as Redis does, so no output can contain it.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use subtle::ConstantTimeEq;

/// Longest password, in bytes (Redis's own limit for `requirepass`).
pub const PASSWORD_BYTES: usize = 512;

/// A password that clients have to give.
#[derive(Clone, PartialEq, Eq)]
pub struct Password([u8; SHA256_OUTPUT_LEN]);

impl Password {
    /// Creates a password; keeps only its hash.
    pub fn new(password: &[u8]) -> Self {
        Self(hash(password))
    }

    /// Returns whether the given password is this one. The time that takes reveals only the given password's
    /// length.
    pub fn is(&self, given: &[u8]) -> bool {
        self.0.ct_eq(&hash(given)).into()
    }
}

/// The password in force; clones change with it.
#[derive(Debug, Clone)]
pub struct Current(Arc<RwLock<Password>>);

impl Current {
    /// Replaces the password.
    pub fn change(&self, password: Password) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = password;
    }

    /// Returns whether the given password is the one in force, as [`Password::is`] does.
    pub fn is(&self, given: &[u8]) -> bool {
        let password = self.0.read().unwrap_or_else(PoisonError::into_inner);
        password.is(given)
    }
}

impl From<Password> for Current {
    fn from(password: Password) -> Self {
        Self(Arc::new(RwLock::new(password)))
    }
}

fn hash(password: &[u8]) -> [u8; SHA256_OUTPUT_LEN] {
    let mut hash = [0; SHA256_OUTPUT_LEN];
    hash.copy_from_slice(digest(&SHA256, password).as_ref());
    hash
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_is_the_password() {
        let password = Password::new(b"hunter2");
        assert!(password.is(b"hunter2"));
        for other in [&b"hunter"[..], b"hunter22", b"Hunter2", b"hunter2\0", b""] {
            assert!(!password.is(other), "{other:?}");
        }
        assert!(!format!("{password:?}").contains("hunter"));
    }
}
