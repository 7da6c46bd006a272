//! Where lockgate has a password of its own, a client has to give it before it is served. Until then its
//! commands are held to Redis's bounds for unauthenticated clients and skipped as they arrive, so they take
//! no memory. Each gets `NOAUTH`.
//!
//! A command that changes the client's identity (`AUTH`, `HELLO`, `RESET`) starts when everything before it
//! is answered. The next command waits for its reply, which shows whether the client has authenticated.

use bytes::{Bytes, BytesMut};

use super::{Session, turn::Turn};
use crate::{
    auth::guard::{self, Guard},
    limits::LOCK_COMMAND_BYTES,
    resp::{Writer, arguments},
    session::answer,
};

/// A command that Redis always refuses; in a transaction it aborts that, too.
const NO_LOGIN: &[u8] = b"*1\r\n$4\r\nAUTH\r\n";

impl Session {
    /// Returns whether the client has to authenticate first.
    pub(super) fn is_unauthenticated(&self) -> bool {
        self.shared.guard.is_some() && !self.backend.is_authenticated()
    }

    /// Returns whether the command whose name was read is for the guard.
    pub(super) fn is_for_the_guard(&self) -> bool {
        self.shared.guard.is_some()
            && match self.requests.scanner.name() {
                b"AUTH" | b"HELLO" | b"RESET" => true,
                b"QUIT" => self.is_unauthenticated(),
                _ => false,
            }
    }

    /// Starts a command for the guard.
    pub(super) fn enter(&mut self, frame: Bytes) {
        self.turn = Turn::Settling;
        match self.requests.scanner.name() {
            b"QUIT" => {
                self.answer_at_once(|out, protocol| Writer::new(out, protocol).status("OK"));
                self.left = true;
                self.close();
            }
            b"RESET"
                if self.is_unauthenticated()
                    && self.backend.streams()
                    && !self.backend.is_used() =>
            {
                self.answer_at_once(|out, protocol| Writer::new(out, protocol).status("RESET"));
            }
            b"RESET" => self.hand_on(&frame, None),
            _ => self.log_in(&frame),
        }
    }

    fn log_in(&mut self, frame: &Bytes) {
        let command = arguments(frame, LOCK_COMMAND_BYTES).unwrap_or_default();
        let admitted = match &self.shared.guard {
            Some(guard) => guard.admit(&command, !self.is_unauthenticated()),
            None => Ok(command.clone()),
        };
        match admitted {
            Ok(handed_on) if handed_on == command => self.hand_on(frame, Some(&command)),
            // In a transaction and in subscribed mode, Redis's reply does not show the result of a command.
            _ if self.backend.takes_lock_commands() => {
                self.hand_on(NO_LOGIN, Some(&[Bytes::from_static(b"AUTH")]))
            }
            Ok(handed_on) => {
                let guard = self.shared.guard.as_ref();
                let known = guard.is_some_and(Guard::has_own);
                let says = known.then_some(&handed_on[..]);
                self.hand_on(&guard::frame(&handed_on), says);
            }
            Err(text) => {
                if text == guard::WRONG_PASS {
                    self.shared.counters().wrong_passwords.count();
                }
                self.answer_at_once(|out, protocol| answer::error(out, protocol, &text));
            }
        }
    }

    /// Sends the backend `command` in place of the command just read. For Redis, `says` states the client's
    /// identity. None: the client is anonymous.
    fn hand_on(&mut self, command: &[u8], says: Option<&[Bytes]>) {
        if self.backend.streams() {
            self.backend
                .pass_on(&mut BytesMut::from(command), command.len());
            let called = arguments(&Bytes::copy_from_slice(command), LOCK_COMMAND_BYTES);
            let called = called.unwrap_or_default();
            if let Err(error) = self
                .backend
                .sent_login(&self.requests.scanner, says, &called)
            {
                self.fail(format!("ERR {error}"));
            }
            return;
        }
        let command = Bytes::copy_from_slice(command);
        if let Ok(arguments) = arguments(&command, LOCK_COMMAND_BYTES) {
            self.backend
                .answer(&arguments, &mut self.client.outbox, &*self.shared);
            self.backend.entered(&arguments);
        }
    }
}
