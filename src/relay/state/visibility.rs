//! The visibility of replies: `CLIENT REPLY OFF` and `SKIP` hide some from the client, as Redis would.
//!
//! Redis suppresses replies, but never pushes, messages or confirmations of subscriptions. It checks the mode
//! of `CLIENT REPLY` when it writes, so the replies to `ON` and `RESET` are visible.

use super::{
    State,
    command::{Command, ReplyModeCommand},
};
use crate::resp::{ReplyScanner, RequestScanner};

/// Goes to Redis in place of the other two.
const CLIENT_REPLY_ON: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$2\r\nON\r\n";
const CLIENT_REPLY_OFF: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n";
const CLIENT_REPLY_SKIP: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n";

/// The visibility of Redis's bytes to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// The client sees them.
    Shown,
    /// The client does not see them.
    Hidden,
    /// It depends on the bytes that follow. This concerns a few bytes at the beginning of a reply.
    Undecided,
}

/// The effect of `CLIENT REPLY`, in Redis's own three flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ReplyMode {
    /// No command gets a reply from now on.
    pub(super) off: bool,
    /// The current command gets no reply.
    pub(super) skip: bool,
    /// The next command gets no reply.
    pub(super) skip_next: bool,
}

impl ReplyMode {
    /// Applies a `CLIENT REPLY`.
    pub(super) fn set(&mut self, mode: ReplyModeCommand) {
        match mode {
            ReplyModeCommand::On => (self.off, self.skip) = (false, false),
            ReplyModeCommand::Off => self.off = true,
            ReplyModeCommand::Skip => self.skip_next |= !self.off,
        }
    }

    /// Ends a command.
    pub(super) fn next_command(&mut self) {
        self.skip = std::mem::take(&mut self.skip_next);
    }
}

impl State {
    /// Returns the command to forward instead of this one, whose end was just read: Redis must not suppress
    /// replies.
    pub fn reply_mode_substitute(command: &RequestScanner) -> Option<&'static [u8]> {
        match Command::of(command) {
            Some(Command::Reply(ReplyModeCommand::Off | ReplyModeCommand::Skip)) => {
                Some(CLIENT_REPLY_ON)
            }
            _ => None,
        }
    }

    /// Returns whether the client sees the bytes of the reply being read.
    pub(super) fn visibility(&self, reply: &ReplyScanner) -> Visibility {
        let Some(command) = self.head() else {
            return Visibility::Shown;
        };
        let hides_reply =
            self.reply_mode.off || self.reply_mode.skip || command == Command::Nobodys;
        let stands_in = matches!(
            command,
            Command::Reply(ReplyModeCommand::Off | ReplyModeCommand::Skip)
        ) && !self.is_queued(command);
        if !hides_reply && !stands_in {
            return Visibility::Shown;
        }
        let shown = match reply.kind() {
            b'>' => true,
            b'*' if self.subscribed() => match reply.length() {
                None => return Visibility::Undecided,
                // Confirmations and messages have 3 or 4 elements. Where a transaction has subscribed, an
                // element that may be either a message or a list is no message: see `received_aside`.
                Some(3 | 4) => !self.is_executing() || !command.replies_freely(),
                // The reply to PING, or any reply in a transaction.
                Some(_) => false,
            },
            b'*' => command.confirmed_by().is_some(),
            // In attributes, before the kind is known: only replies have them. If the reply turns out to be a
            // visible error, it is shown without them.
            0 => !hides_reply && !stands_in,
            b'-' | b'!' => !hides_reply,
            _ if stands_in => false,
            _ => self.answers_in_silence(command),
        };
        if shown {
            Visibility::Shown
        } else {
            Visibility::Hidden
        }
    }

    /// Where [`State::settled`]: returns whether replies are off (`CLIENT REPLY OFF`).
    pub fn replies_off(&self) -> bool {
        self.reply_mode.off
    }

    /// Where [`State::settled`]: returns whether the next command gets no reply (`CLIENT REPLY OFF` or
    /// `SKIP`).
    pub fn silences_next(&self) -> bool {
        self.reply_mode.off || self.reply_mode.skip
    }

    /// Where [`State::settled`]: records that the next command does not go to Redis. Returns whether it gets
    /// no reply.
    pub fn take_hides_reply(&mut self) -> bool {
        let hides_reply = self.silences_next();
        self.reply_mode.skip = false;
        hides_reply
    }

    /// Where [`State::settled`]: stops hiding replies. Returns the bytes that Redis has to get before a
    /// command whose replies cannot be hidden.
    pub fn silences_for_good(&mut self) -> Option<&'static [u8]> {
        let reply_mode = if self.reply_mode.off {
            CLIENT_REPLY_OFF
        } else if self.reply_mode.skip {
            CLIENT_REPLY_SKIP
        } else {
            return None;
        };
        self.uncountable = true;
        Some(reply_mode)
    }

    /// Returns whether a command that ends the silence gets its own reply.
    fn answers_in_silence(&self, command: Command) -> bool {
        match command {
            Command::Reply(ReplyModeCommand::On) => !self.is_queued(command),
            Command::Reset => !self.reply_mode.skip,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::RequestScanner;

    /// Found by the fuzz target `counting`: the first part of the hidden reply was shown.
    #[test]
    fn nothing_of_a_hidden_reply_is_shown_where_an_attribute_stands_before_it() {
        let reply = b"|1\r\n+popularity\r\n*1\r\n:90\r\n$5\r\nvalue\r\n";
        for cut in 1..reply.len() {
            let (mut requests, mut replies) = (RequestScanner::new(), ReplyScanner::new());
            let mut state = State::new();
            for command in [&b"CLIENT REPLY OFF\r\n"[..], b"GET key\r\n"] {
                let mut at = 0;
                while at < command.len() {
                    at += requests.scan(&command[at..]).0;
                }
                state.sent(&requests).unwrap();
            }
            // The reply to `CLIENT REPLY OFF`.
            state.receive(&mut replies, b"+OK\r\n").2.unwrap();
            for piece in [&reply[..cut], &reply[cut..]] {
                let (consumed, visibility, _) = state.receive(&mut replies, piece);
                assert_eq!(consumed, piece.len());
                assert_eq!(visibility, Visibility::Hidden, "cut at {cut}");
            }
            assert!(state.settled());
        }
    }
}
