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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::RequestScanner;

    /// Found by the fuzz target `counting`: the part of it that came first was shown.
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
            // To `CLIENT REPLY OFF`.
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
