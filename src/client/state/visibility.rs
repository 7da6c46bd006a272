//! Which replies the client sees: `CLIENT REPLY OFF` and `SKIP` keep some from it, as Redis would.
//!
//! Redis keeps back replies, never pushes, messages or what confirms a subscription; and it looks at
//! what `CLIENT REPLY` said when it writes, so `ON` and `RESET` are answered already.

use super::{
    State,
    command::{Command, ReplyMode},
};
use crate::resp::ReplyScanner;

/// Whether bytes of Redis are for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// They are.
    Shown,
    /// They are not.
    Hidden,
    /// It depends on the bytes that follow. So it is for a few bytes at the beginning of a reply.
    Undecided,
}

impl State {
    /// Whether the bytes of the reply that is being read are for the client.
    pub(super) fn visibility(&self, reply: &ReplyScanner) -> Visibility {
        let Some(command) = self.head() else {
            return Visibility::Shown;
        };
        let silent = self.silence.off || self.silence.skip || command == Command::Nobodys;
        let stands_in = matches!(command, Command::Reply(ReplyMode::Off | ReplyMode::Skip))
            && !self.is_queued(command);
        if !silent && !stands_in {
            return Visibility::Shown;
        }
        let shown = match reply.kind() {
            b'>' => true,
            b'*' if self.subscribed() => match reply.length() {
                None => return Visibility::Undecided,
                // Confirmations and messages have so many elements. Where a transaction has subscribed,
                // what may be either a message or a list is no message: see `received_aside`.
                Some(3 | 4) => {
                    self.executing.is_empty() || !matches!(command, Command::Ordinary(_))
                }
                // The reply to PING, and in a transaction any.
                Some(_) => false,
            },
            b'*' => command.confirmed_by().is_some(),
            // In attributes, before the kind is known: only replies have them. Where the reply turns out to
            // be an error that is shown, it is shown without.
            0 => !silent && !stands_in,
            b'-' | b'!' => !silent,
            _ if stands_in => false,
            _ => self.answers_in_silence(command),
        };
        if shown {
            Visibility::Shown
        } else {
            Visibility::Hidden
        }
    }

    /// A command that ends the silence by what it does.
    fn answers_in_silence(&self, command: Command) -> bool {
        match command {
            Command::Reply(ReplyMode::On) => !self.is_queued(command),
            Command::Reset => !self.silence.skip,
            _ => false,
        }
    }
}
