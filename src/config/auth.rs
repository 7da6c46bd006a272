//! The instance's own password.

use super::{Error, Typed, secret};
use crate::auth::password::{PASSWORD_BYTES, Password};

/// Reads the password. None: there is none.
pub(super) fn check(typed: &mut Typed) -> Result<Option<Password>, Error> {
    let found = secret::check(typed, "auth.password", "auth.password_file", password)?;
    Ok(found.map(|(password, _)| password))
}

fn password(text: &[u8]) -> Result<Password, String> {
    if text.len() > PASSWORD_BYTES {
        return Err(format!("a password of at most {PASSWORD_BYTES} bytes"));
    }
    Ok(Password::new(text))
}
