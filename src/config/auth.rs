//! The password of the gate itself: in the configuration, or in a file of its own, as secrets of
//! containers are.

use std::fs;

use super::{Error, Typed};
use crate::password::{PASSWORD_BYTES, Password};

/// None: there is no password.
pub(super) fn check(typed: &mut Typed) -> Result<Option<Password>, Error> {
    let typed_in = typed.parse_secret("auth.password", "", |text| password(text.as_bytes()))?;
    let in_file = typed.parse("auth.password_file", "", |path| {
        if path.is_empty() {
            return Ok(None);
        }
        let text = fs::read(path).map_err(|error| format!("a file that can be read ({error})"))?;
        match password(first_line(&text))? {
            None => Err("a file whose first line is the password".to_owned()),
            found => Ok(found),
        }
    })?;
    match (typed_in, in_file) {
        (Some(_), Some(_)) => Err(Error::Twice(
            "auth.password".to_owned(),
            "auth.password_file".to_owned(),
        )),
        (typed_in, in_file) => Ok(typed_in.or(in_file)),
    }
}

fn password(text: &[u8]) -> Result<Option<Password>, String> {
    if text.len() > PASSWORD_BYTES {
        return Err(format!("a password of at most {PASSWORD_BYTES} bytes"));
    }
    Ok((!text.is_empty()).then(|| Password::new(text)))
}

/// Editors end it with a line feed.
fn first_line(text: &[u8]) -> &[u8] {
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}
