//! What each reply is an answer to, and what follows from it.

use std::num::NonZeroU32;

use super::{
    Received, State, Subscriptions, Uncountable,
    command::{Command, Confirmation},
};
use crate::resp::ReplyScanner;

impl State {
    /// The next reply is read element by element.
    pub(super) fn opens_next(&self) -> bool {
        // While subscribed in RESP2 an array is a message, and EXEC is refused.
        self.executing.is_empty()
            && matches!(self.owed.front(), Some(Command::Exec))
            && !self.subscribed()
    }

    /// A whole reply came.
    pub(super) fn received(&mut self, reply: &ReplyScanner) -> Result<Received, Uncountable> {
        let confirmation = self.confirmation(reply);
        if let Some(confirmation) = confirmation {
            self.subscriptions.confirmed(confirmation, reply.count())?;
        }
        if let Some(received) = self.received_aside(reply, confirmation)? {
            return Ok(received);
        }
        let answered = self.answered(reply)?;
        let owed = self.commands_owed;
        if answered {
            self.pop();
        }
        Ok(if self.commands_owed < owed {
            Received::Reply
        } else {
            Received::Part
        })
    }

    /// Takes what is no reply, and confirmations, which are replies and can come many for one command.
    fn received_aside(
        &mut self,
        reply: &ReplyScanner,
        confirmation: Option<Confirmation>,
    ) -> Result<Option<Received>, Uncountable> {
        if let (Some(came), Some(command)) = (confirmation, self.head())
            && !self.is_queued(command)
            && command.confirmed_by() == Some(came)
        {
            let left = self
                .confirmations
                .unwrap_or_else(|| self.confirmations_of(command, reply))
                - 1;
            self.confirmations = Some(left);
            if left > 0 {
                return Ok(Some(Received::Part));
            }
            let owed = self.commands_owed;
            self.pop();
            return Ok(Some(if self.commands_owed < owed {
                Received::Reply
            } else {
                Received::Part
            }));
        }
        if reply.kind() == b'>' || confirmation.is_some() {
            return Ok(Some(Received::Message));
        }
        if !self.is_message(reply) {
            return Ok(None);
        }
        // Redis up to 7.0 writes messages between the elements of EXEC, where a list may look like one.
        match self.executing.front() {
            Some(Command::Ordinary(_)) => Err(Uncountable::Doubtful),
            _ => Ok(Some(Received::Message)),
        }
    }

    /// How many confirmations the oldest command gets, when the first one has come.
    fn confirmations_of(&self, command: Command, first: &ReplyScanner) -> u64 {
        match command {
            Command::Confirm { times, .. } => u64::from(times),
            // The first of them has been counted.
            Command::ConfirmAll { confirmation } if first.count().is_some() => {
                self.subscriptions.of(confirmation).saturating_add(1)
            }
            _ => 1,
        }
    }

    /// Which confirmation of a subscription this is. In RESP2 an array could look like one, so it
    /// is one only where one can come.
    fn confirmation(&self, reply: &ReplyScanner) -> Option<Confirmation> {
        if reply.length() != Some(3) || reply.count().is_none() {
            return None;
        }
        let confirmation = Confirmation::of(reply.first()?)?;
        let expected = || {
            self.head().is_some_and(|head| {
                head.confirmed_by() == Some(confirmation) && !self.is_queued(head)
            })
        };
        // Redis takes shard channels away when their slot moves.
        let taken_away = || {
            confirmation == Confirmation::ShardUnsubscribe
                && self.subscribed()
                && self.subscriptions.shard_channels > 0
        };
        match reply.kind() {
            b'>' => Some(confirmation),
            b'*' if expected() || taken_away() => Some(confirmation),
            _ => None,
        }
    }

    /// A message in the form of RESP2.
    fn is_message(&self, reply: &ReplyScanner) -> bool {
        self.subscribed()
            && reply.kind() == b'*'
            && matches!(
                (reply.length(), reply.first()),
                (Some(3), Some(b"message" | b"smessage")) | (Some(4), Some(b"pmessage"))
            )
    }

    /// Applies a reply to the oldest command. Whether it was its last.
    fn answered(&mut self, reply: &ReplyScanner) -> Result<bool, Uncountable> {
        let command = self.head().ok_or(Uncountable::Unasked)?;
        if self.is_queued(command) && reply.status() == Some(b"QUEUED") {
            Self::push_merged(&mut self.queued, command.alone());
            return Ok(true);
        }
        self.ran(command, reply)
    }

    fn ran(&mut self, command: Command, reply: &ReplyScanner) -> Result<bool, Uncountable> {
        if self.confirmations.is_some() {
            return Err(Uncountable::Doubtful);
        }
        let done = !reply.is_error();
        match command {
            Command::Ordinary(_) | Command::Amended | Command::Publish | Command::Nobodys => {}
            Command::Exec => return self.exec_answered(reply),
            _ if !done => self.failed(command, reply),
            // Only the commands above may be answered by anything inside MULTI.
            _ if self.is_queued(command) => return Err(Uncountable::Doubtful),
            Command::Select(database) => {
                self.database = database.ok_or(Uncountable::Doubtful)?;
            }
            Command::Auth { number } => self.logged_in(number),
            Command::Naming { number } => self.named(number),
            Command::Hello {
                protocol,
                login,
                naming,
            } => {
                self.named(naming);
                if let Some(protocol) = protocol {
                    self.protocol = protocol;
                }
                if let Some(number) = login {
                    self.logged_in(number);
                }
            }
            Command::Multi => self.in_transaction = true,
            Command::Discard => self.end_transaction(),
            Command::Reset => self.reset(),
            Command::Reply(mode) => self.silence.set(mode),
            Command::Monitor => self.uncountable = true,
            Command::Confirm { .. }
            | Command::ConfirmAll { .. }
            | Command::Blank
            | Command::Stream => {
                return Err(Uncountable::Doubtful);
            }
        }
        Ok(true)
    }

    fn named(&mut self, number: Option<NonZeroU32>) {
        if let (Some(number), Some(naming)) = (number, &mut self.naming) {
            naming.accepted(number);
        }
    }

    fn logged_in(&mut self, number: u64) {
        if self.logins.accepted(number) {
            self.login = Some(number);
            self.login_in_doubt = false;
        }
    }

    fn failed(&mut self, command: Command, reply: &ReplyScanner) {
        if self.subscribed() || self.is_queued(command) {
            return;
        }
        let as_nobody = matches!(
            reply.error_code(),
            Some(b"WRONGPASS" | b"NOPROTO" | b"NOPERM" | b"NOAUTH")
        );
        match command {
            Command::Auth { number } => {
                // It has no other options.
                self.logins.refused(number, true);
            }
            Command::Hello {
                login: Some(number),
                ..
            } => self.login_in_doubt |= self.logins.refused(number, as_nobody),
            _ => {}
        }
        if let Command::Naming {
            number: Some(number),
        }
        | Command::Hello {
            naming: Some(number),
            ..
        } = command
            && let Some(naming) = &mut self.naming
        {
            naming.refused(number);
        }
    }

    fn exec_answered(&mut self, reply: &ReplyScanner) -> Result<bool, Uncountable> {
        let queued = std::mem::take(&mut self.queued);
        self.end_transaction();
        if reply.is_error() || reply.is_nil() {
            return Ok(true);
        }
        let commands: u64 = queued.iter().map(|command| command.times()).sum();
        if !reply.is_opened() || reply.length().map(u64::try_from) != Some(Ok(commands)) {
            return Err(Uncountable::Doubtful);
        }
        self.executing = queued;
        Ok(self.executing.is_empty())
    }
}

impl Subscriptions {
    fn of(&self, confirmation: Confirmation) -> u64 {
        match confirmation {
            Confirmation::Subscribe | Confirmation::Unsubscribe => self.channels,
            Confirmation::PatternSubscribe | Confirmation::PatternUnsubscribe => self.patterns,
            Confirmation::ShardSubscribe | Confirmation::ShardUnsubscribe => self.shard_channels,
        }
    }

    /// `count` is what Redis says there are now: of channels and patterns together, or of shard channels.
    fn confirmed(
        &mut self,
        confirmation: Confirmation,
        count: Option<i64>,
    ) -> Result<(), Uncountable> {
        let count = count
            .and_then(|count| u64::try_from(count).ok())
            .ok_or(Uncountable::Doubtful)?;
        match confirmation {
            Confirmation::Subscribe | Confirmation::Unsubscribe => {
                self.channels = count
                    .checked_sub(self.patterns)
                    .ok_or(Uncountable::Doubtful)?;
            }
            Confirmation::PatternSubscribe | Confirmation::PatternUnsubscribe => {
                self.patterns = count
                    .checked_sub(self.channels)
                    .ok_or(Uncountable::Doubtful)?;
            }
            Confirmation::ShardSubscribe | Confirmation::ShardUnsubscribe => {
                self.shard_channels = count
            }
        }
        Ok(())
    }
}
