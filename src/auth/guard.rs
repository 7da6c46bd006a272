//! The guard of an instance with a password of its own (`[auth]`). Pure.
//!
//! `AUTH` and `HELLO … AUTH` then address lockgate, which has one user, `default`, with that password. The
//! backend gets another command in their place, so that it replies in its own words and in order: lockgate's
//! own credentials for Redis, where the upstream URL has some, else a command that only replies `OK`. So the
//! backend's reply shows whether the client has authenticated, like every other fact about its connection.
//! Redis never sees lockgate's password, nor any wrong password that a client tried.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use crate::{
    auth::{identity::Credentials, password::Current},
    resp::{Protocol, Writer, integer},
};

/// Redis's error for wrong credentials.
pub(crate) const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

const NOT_YET: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
     <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
     the same time";

/// The only user.
const USER: &[u8] = b"default";

/// The password that clients have to give, and what the backend gets in its place.
#[derive(Debug)]
pub struct Guard {
    password: Current,
    /// `AUTH` with lockgate's own credentials for Redis.
    own: Option<Vec<Bytes>>,
    /// The command in its place where lockgate has no credentials.
    says_ok: Vec<Bytes>,
}

impl Guard {
    /// Creates the guard in front of a Redis, with lockgate's own credentials for it, if any.
    pub fn before_redis(password: Current, own: Option<&Credentials>) -> Self {
        let own = own.map(|own| {
            let words = [b"AUTH", own.name(), own.password()];
            words.map(Bytes::copy_from_slice).into()
        });
        Self {
            password,
            says_ok: ["CLIENT", "REPLY", "ON"].map(Bytes::from).into(),
            own,
        }
    }

    /// Creates the guard of an instance without an upstream, whose local backend accepts any password.
    pub fn without_redis(password: Current) -> Self {
        Self {
            password,
            says_ok: ["AUTH", "default", ""].map(Bytes::from).into(),
            own: None,
        }
    }

    /// Returns whether lockgate has credentials of its own for Redis. If so, authenticated clients are
    /// lockgate's user to Redis, else they are anonymous.
    pub fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns the command to forward in place of an `AUTH` or `HELLO`; `is_in`: the client has authenticated
    /// before.
    ///
    /// # Errors
    /// The error for the client, without the leading `-`. The client's authentication is unchanged.
    pub fn admit(&self, command: &[Bytes], is_in: bool) -> Result<Vec<Bytes>, Cow<'static, str>> {
        match command {
            [name, rest @ ..] if name.eq_ignore_ascii_case(b"AUTH") => self.auth(rest),
            [name, rest @ ..] => self.hello(name, rest, is_in),
            [] => Err("ERR syntax error".into()),
        }
    }

    fn auth(&self, rest: &[Bytes]) -> Result<Vec<Bytes>, Cow<'static, str>> {
        let right = match rest {
            [] => return Err("ERR wrong number of arguments for 'auth' command".into()),
            [password] => self.password.is(password),
            [user, password] => self.is_right(user, password),
            _ => return Err("ERR syntax error".into()),
        };
        match right {
            true => Ok(self.own.as_ref().unwrap_or(&self.says_ok).clone()),
            false => Err(WRONG_PASS.into()),
        }
    }

    /// Checks the options of a `HELLO` up to the first invalid one, but leaves the client's name to the
    /// backend.
    fn hello(
        &self,
        name: &Bytes,
        rest: &[Bytes],
        is_in: bool,
    ) -> Result<Vec<Bytes>, Cow<'static, str>> {
        let mut handed_on = vec![name.clone()];
        let mut knows = is_in;
        if let Some((version, mut options)) = rest.split_first() {
            match integer(version) {
                None => return Err("ERR Protocol version is not an integer or out of range".into()),
                Some(2 | 3) => handed_on.push(version.clone()),
                Some(_) => return Err("NOPROTO unsupported protocol version".into()),
            }
            let mut logins = 0;
            while let Some((option, after)) = options.split_first() {
                options = match after {
                    [user, password, after @ ..] if is_word(option, b"AUTH") => {
                        if !self.is_right(user, password) {
                            return Err(WRONG_PASS.into());
                        }
                        logins += 1;
                        after
                    }
                    [given, after @ ..] if is_word(option, b"SETNAME") => {
                        handed_on.extend([option.clone(), given.clone()]);
                        after
                    }
                    // The command is invalid from here on, so none of it runs.
                    _ => {
                        let option = String::from_utf8_lossy(option);
                        return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
                    }
                };
            }
            if logins > 0 {
                knows = true;
                handed_on.splice(2..2, self.own.iter().flatten().cloned());
            }
        }
        match knows {
            true => Ok(handed_on),
            false => Err(NOT_YET.into()),
        }
    }

    fn is_right(&self, user: &[u8], password: &[u8]) -> bool {
        // The password is checked in any case, so that the time reveals nothing.
        self.password.is(password) & (user == USER)
    }
}

/// Returns whether two options are equal to Redis: case-insensitively, up to the first NUL.
fn is_word(given: &[u8], word: &[u8]) -> bool {
    let given = given.split(|&byte| byte == 0).next().unwrap_or_default();
    given.eq_ignore_ascii_case(word)
}

/// Encodes a command.
pub(crate) fn frame(command: &[Bytes]) -> BytesMut {
    let mut frame = BytesMut::new();
    let mut writer = Writer::new(&mut frame, Protocol::Resp2);
    writer.array(command.len());
    command.iter().for_each(|argument| writer.bulk(argument));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::password::Password;

    fn guard(own: Option<(&str, &str)>) -> Guard {
        let own = own.and_then(|(name, it)| Credentials::new(name.as_bytes(), it.as_bytes()));
        Guard::before_redis(Password::new(b"open").into(), own.as_ref())
    }

    /// Returns the forwarded command as words, or the code of the error.
    fn says(guard: &Guard, is_in: bool, command: &str) -> String {
        let words = command.split(' ');
        let words: Vec<_> = words
            .map(|word| Bytes::copy_from_slice(word.as_bytes()))
            .collect();
        match guard.admit(&words, is_in) {
            Ok(handed_on) => {
                let words = handed_on.iter().map(|word| String::from_utf8_lossy(word));
                words.collect::<Vec<_>>().join(" ")
            }
            Err(error) => format!("-{}", error.split(' ').next().unwrap_or_default()),
        }
    }

    #[test]
    fn a_client_with_the_password_acts_as_the_account_of_lockgate() {
        let named = guard(Some(("gate", "secret")));
        for (command, handed_on) in [
            ("AUTH open", "AUTH gate secret"),
            ("auth default open", "AUTH gate secret"),
            ("HELLO 3 AUTH default open", "HELLO 3 AUTH gate secret"),
            (
                "HELLO 2 SETNAME me auth default open",
                "HELLO 2 AUTH gate secret SETNAME me",
            ),
            ("HELLO 3 AUTH\0x default open", "HELLO 3 AUTH gate secret"),
        ] {
            assert_eq!(says(&named, false, command), handed_on, "{command}");
            assert_eq!(says(&named, true, command), handed_on, "{command}");
        }
        let unknown = guard(None);
        assert_eq!(says(&unknown, false, "AUTH open"), "CLIENT REPLY ON");
        assert_eq!(
            says(&unknown, false, "HELLO 3 AUTH default open SETNAME me"),
            "HELLO 3 SETNAME me"
        );
    }

    #[test]
    fn without_the_password_nothing_is_forwarded() {
        for guard in [guard(None), guard(Some(("gate", "secret")))] {
            for (command, code) in [
                ("AUTH shut", "-WRONGPASS"),
                ("AUTH secret", "-WRONGPASS"),
                ("AUTH gate secret", "-WRONGPASS"),
                ("AUTH gate open", "-WRONGPASS"),
                ("AUTH DEFAULT open", "-WRONGPASS"),
                ("AUTH", "-ERR"),
                ("AUTH default open more", "-ERR"),
                ("HELLO 3 AUTH default shut", "-WRONGPASS"),
                ("HELLO 3 AUTH gate secret", "-WRONGPASS"),
                ("HELLO 3 AUTH default open AUTH gate secret", "-WRONGPASS"),
                ("HELLO 3 AUTH default", "-ERR"),
                ("HELLO 3 OTHER AUTH default open", "-ERR"),
                ("HELLO 4 AUTH default open", "-NOPROTO"),
                ("HELLO three AUTH default open", "-ERR"),
            ] {
                assert_eq!(says(&guard, false, command), code, "{command}");
                assert_eq!(says(&guard, true, command), code, "{command}");
            }
        }
    }

    #[test]
    fn a_hello_without_credentials_is_for_who_is_in() {
        let guard = guard(None);
        for command in ["HELLO", "HELLO 3", "HELLO 2 SETNAME AUTH"] {
            assert_eq!(says(&guard, false, command), "-NOAUTH", "{command}");
            assert_eq!(says(&guard, true, command), command);
        }
    }
}
