//! A password in the configuration, or in a file of its own, as container platforms provide secrets.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use super::{Error, Typed, file};
use crate::{auth::password::Password, limits::SECRET_FILE_BYTES};

/// Reads the password of one of these keys, and returns it with the key. `parse` returns the allowed values where it
/// refuses a password that is not empty. None: there is none.
pub(super) fn check<T>(
    typed: &mut Typed,
    key: &'static str,
    file_key: &'static str,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<Option<(T, &'static str)>, Error> {
    let typed_in = typed.parse_secret(key, "", |text| match text {
        "" => Ok(None),
        _ => parse(text.as_bytes()).map(Some),
    })?;
    match (typed_in, typed.parse(file_key, "", file)?) {
        (Some(_), Some(_)) => Err(typed.twice(key, file_key, "")),
        (Some(password), None) => Ok(Some((password, key))),
        (None, None) => Ok(None),
        (None, Some(path)) => {
            let read = read(&path).and_then(|line| {
                let allowed = |allowed| format!("allowed is {allowed}");
                Ok((parse(&line).map_err(allowed)?, Password::new(&line)))
            });
            match read {
                Ok((password, content)) => {
                    typed.state_content(file_key, content);
                    Ok(Some((password, file_key)))
                }
                Err(why) => Err(Error::UselessFile {
                    key: file_key,
                    place: typed.said.place(file_key).to_owned(),
                    path,
                    why,
                }),
            }
        }
    }
}

/// Returns the first line of a file, without its end; the error is the reason why there is none.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let read = |path| -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        // A line that is cut here is too long for every password.
        File::open(path)?
            .take(SECRET_FILE_BYTES)
            .read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read(path).map_err(|error| error.to_string())?;
    match first_line(&text) {
        b"" => Err("its first line has to be the password".to_owned()),
        line => Ok(line.to_vec()),
    }
}

fn first_line(text: &[u8]) -> &[u8] {
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}
