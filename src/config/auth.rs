//! The instance's own password: in the configuration, or in a file of its own, as container secrets are.

use std::{fs, path::Path};

use super::{Error, Typed, file};
use crate::auth::password::{PASSWORD_BYTES, Password};

const IN_FILE: &str = "auth.password_file";

/// Reads the password. None: there is none.
pub(super) fn check(typed: &mut Typed) -> Result<Option<Password>, Error> {
    let typed_in = typed.parse_secret("auth.password", "", |text| password(text.as_bytes()))?;
    match (typed_in, typed.parse(IN_FILE, "", file)?) {
        (Some(_), Some(_)) => Err(Error::Twice("auth.password".to_owned(), IN_FILE.to_owned())),
        (None, Some(path)) => read(&path).map(Some).map_err(|why| Error::UselessFile {
            key: IN_FILE,
            path,
            why,
        }),
        (typed_in, None) => Ok(typed_in),
    }
}

/// Reads the password in a file; the error is the reason why there is none.
fn read(path: &Path) -> Result<Password, String> {
    let text = fs::read(path).map_err(|error| error.to_string())?;
    let found = password(first_line(&text)).map_err(|allowed| format!("allowed is {allowed}"))?;
    found.ok_or_else(|| "its first line has to be the password".to_owned())
}

fn password(text: &[u8]) -> Result<Option<Password>, String> {
    if text.len() > PASSWORD_BYTES {
        return Err(format!("a password of at most {PASSWORD_BYTES} bytes"));
    }
    Ok((!text.is_empty()).then(|| Password::new(text)))
}

/// Returns the first line: editors end a file with a line feed.
fn first_line(text: &[u8]) -> &[u8] {
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}
