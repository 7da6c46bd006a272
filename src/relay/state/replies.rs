//! Attributes each reply to its command and applies its effect.

use std::num::{NonZeroU32, NonZeroU64};

use super::{
    Identity, Received, State, Uncountable,
    command::{Command, Confirmation},
};
use crate::resp::ReplyScanner;

impl State {
    /// Returns whether the next reply is read element by element.
    pub(super) fn opens_next(&self) -> bool {
        // While subscribed in RESP2 an array is a message, and Redis refuses EXEC.
        !self.is_executing()
            && matches!(self.owed.front(), Some(Command::Exec))
            && !self.subscribed()
    }

    /// Processes a whole reply.
    pub(super) fn received(&mut self, reply: &ReplyScanner) -> Result<Received, Uncountable> {
        self.has_served |= !reply.is_error();
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

    /// Processes messages, which reply to no command, and confirmations. One command can get many
    /// confirmations.
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
        match self.executing.as_ref().and_then(|it| it.front()) {
            Some(command) if command.replies_freely() => Err(Uncountable::Doubtful),
            _ => Ok(Some(Received::Message)),
        }
    }

    /// Returns how many confirmations the oldest command gets, once the first has arrived.
    fn confirmations_of(&self, command: Command, first: &ReplyScanner) -> u64 {
        match command {
            Command::Confirm { times, .. } => u64::from(times),
            // The first of them is already counted.
            Command::ConfirmAll { confirmation } if first.count().is_some() => {
                self.subscriptions.of(confirmation).saturating_add(1)
            }
            _ => 1,
        }
    }

    /// Returns the subscription command that this reply confirms. In RESP2 any array could look like a
    /// confirmation, so it counts only where one may come.
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
        // Redis takes shard channels away when their slot moves: between commands, not within EXEC, where any
        // list may look the same.
        let taken_away = || {
            confirmation == Confirmation::ShardUnsubscribe
                && !self.is_executing()
                && self.subscribed()
                && self.subscriptions.shard_channels > 0
        };
        match reply.kind() {
            b'>' => Some(confirmation),
            b'*' if expected() || taken_away() => Some(confirmation),
            _ => None,
        }
    }

    /// Returns whether it is a message in RESP2's form.
    fn is_message(&self, reply: &ReplyScanner) -> bool {
        self.subscribed()
            && reply.kind() == b'*'
            && matches!(
                (reply.length(), reply.first()),
                (Some(3), Some(b"message" | b"smessage")) | (Some(4), Some(b"pmessage"))
            )
    }

    /// Applies a reply to the oldest command. Returns whether it was the command's last one.
    fn answered(&mut self, reply: &ReplyScanner) -> Result<bool, Uncountable> {
        let command = self.head().ok_or(Uncountable::Unasked)?;
        if self.is_queued(command) && reply.status() == Some(b"QUEUED") {
            self.queue(command);
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
            Command::Ordinary(_) | Command::Amended | Command::Publish(_) | Command::Nobodys => {}
            Command::Remembered => self.remembered |= done,
            Command::Exec => return self.exec_answered(reply),
            _ if !done => self.failed(command, reply),
            // Inside MULTI, only the commands above may get an arbitrary reply.
            _ if self.is_queued(command) => return Err(Uncountable::Doubtful),
            // A command that changes the connection has one reply that confirms it.
            _ if !says_done(command, reply) => return Err(Uncountable::Doubtful),
            Command::Select(database) => {
                self.database = database.ok_or(Uncountable::Doubtful)?;
            }
            Command::Auth { number } => self.logged_in(number),
            Command::ClientInfoCommands { number } => self.named(number),
            Command::Hello {
                protocol,
                login,
                client_info,
            } => {
                self.named(client_info);
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
            Command::Watch => self.watching = true,
            Command::Unwatch => self.watching = false,
            Command::Reply(mode) => self.reply_mode.set(mode),
            Command::Monitor | Command::Debug => self.uncountable = true,
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
        if let (Some(number), Some(client_info)) = (number, &mut self.client_info) {
            client_info.accepted(number);
        }
    }

    fn logged_in(&mut self, number: u64) {
        if self.logins.accepted(number) {
            self.login = NonZeroU64::new(number);
            self.login_in_doubt = false;
        }
    }

    fn failed(&mut self, command: Command, reply: &ReplyScanner) {
        if command == Command::Reset {
            // Redis before 6.2 does not know RESET. If the error belongs to another command, RESET ran and
            // the client has become anonymous.
            self.login = None;
            self.login_in_doubt |= *self.logins.identity().0 != Identity::Anonymous;
        }
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
        if let Command::ClientInfoCommands {
            number: Some(number),
        }
        | Command::Hello {
            client_info: Some(number),
            ..
        } = command
            && let Some(client_info) = &mut self.client_info
        {
            client_info.refused(number);
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
        self.executing = (!queued.is_empty()).then(|| Box::new(queued));
        Ok(!self.is_executing())
    }
}

/// Returns whether the reply confirms that Redis did what the command requests.
fn says_done(command: Command, reply: &ReplyScanner) -> bool {
    match command {
        Command::Hello { .. } => {
            matches!(reply.kind(), b'*' | b'%') && reply.first() == Some(b"server")
        }
        Command::Reset => reply.status() == Some(b"RESET"),
        _ => reply.status() == Some(b"OK"),
    }
}

/// The numbers of subscriptions, as Redis counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Subscriptions {
    pub(super) channels: u64,
    pub(super) patterns: u64,
    pub(super) shard_channels: u64,
}

impl Subscriptions {
    fn of(&self, confirmation: Confirmation) -> u64 {
        match confirmation {
            Confirmation::Subscribe | Confirmation::Unsubscribe => self.channels,
            Confirmation::PatternSubscribe | Confirmation::PatternUnsubscribe => self.patterns,
            Confirmation::ShardSubscribe | Confirmation::ShardUnsubscribe => self.shard_channels,
        }
    }

    /// Applies a confirmation. `count` is Redis's number of subscriptions after it: of channels and patterns
    /// together, or of shard channels.
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        limits::{CLIENT_STATEMENT_BYTES, REFUSED_COMMANDS},
        relay::restoration::Restoration,
        resp::RequestScanner,
    };

    /// Returns the state's result for this reply to this command.
    fn received(command: &str, reply: &str) -> Result<Option<Received>, Uncountable> {
        let (mut requests, mut state) = (RequestScanner::new(), State::new());
        let (line, mut at) = (format!("{command}\r\n"), 0);
        while at < line.len() {
            at += requests.scan(&line.as_bytes()[at..]).0;
        }
        state.sent(&requests).unwrap();
        state.receive(&mut ReplyScanner::new(), reply.as_bytes()).2
    }

    /// Returns the state after these commands, each with its reply.
    fn after(said: &[(&str, &str)]) -> State {
        let (mut state, mut replies) = (State::new(), ReplyScanner::new());
        for (command, reply) in said {
            let (mut requests, line) = (RequestScanner::new(), format!("{command}\r\n"));
            let mut at = 0;
            while at < line.len() {
                at += requests.scan(&line.as_bytes()[at..]).0;
            }
            let words = command.split(' ').map(|word| Bytes::from(word.to_owned()));
            let words: Vec<_> = words.collect();
            state.sent_login(&requests, Some(&words), &words).unwrap();
            state.receive(&mut replies, reply.as_bytes()).2.unwrap();
        }
        state
    }

    #[test]
    fn a_connection_that_redis_remembers_something_of_cannot_be_restored() {
        let (ok, queued) = ("+OK\r\n", "+QUEUED\r\n");
        let subscribed = "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n";
        let is_kept: [&[(&str, &str)]; 17] = [
            &[("WAIT 0 0", ":0\r\n")],
            &[("WAITAOF 1 0 0", "*2\r\n:1\r\n:0\r\n")],
            &[
                ("MULTI", ok),
                ("WAIT 0 0", queued),
                ("EXEC", "*1\r\n:0\r\n"),
            ],
            &[("READONLY", ok)],
            &[("READWRITE", ok)],
            &[("ASKING", ok)],
            &[("CLIENT TRACKING on", ok)],
            &[("client caching YES", ok)],
            &[("CLIENT CAPA redirect", ok)],
            &[("CLIENT SOMETHING new", "*1\r\n:1\r\n")],
            &[("CLIENT SETINFO LIB-LICENCE MIT", ok)],
            &[("CLIENT REPLY OFF", ok)],
            &[("WATCH a", ok)],
            &[("WATCH a", ok), ("EXEC", "-ERR EXEC without MULTI\r\n")],
            &[
                ("MULTI", ok),
                ("READONLY", queued),
                ("EXEC", "*1\r\n+OK\r\n"),
            ],
            &[("SUBSCRIBE a", subscribed)],
            &[("CLIENT NO-EVICT ON", ok), ("RESET", "+RESET\r\n")],
        ];
        for said in is_kept {
            assert!(!after(said).is_restorable(), "{said:?}");
        }
        let mut owed = State::new();
        owed.sent_plain(1);
        assert!(!owed.is_restorable());
    }

    #[test]
    fn what_redis_refused_or_forgot_keeps_no_connection_from_being_restored() {
        let (ok, no) = ("+OK\r\n", "-ERR no\r\n");
        let is_over: [&[(&str, &str)]; 8] = [
            &[("READONLY", no)],
            &[("CLIENT MAINT_NOTIFICATIONS on", no)],
            &[("CLIENT ID", ":7\r\n"), ("CLIENT GETNAME", "$-1\r\n")],
            &[("WATCH a", ok), ("UNWATCH", ok)],
            &[("WATCH a", ok), ("MULTI", ok), ("EXEC", "*-1\r\n")],
            &[("WATCH a", ok), ("MULTI", ok), ("DISCARD", ok)],
            &[("WATCH a", ok), ("RESET", "+RESET\r\n")],
            &[("ASKING", ok), ("GET a", "$-1\r\n")],
        ];
        for said in is_over {
            assert!(after(said).is_restorable(), "{said:?}");
        }
    }

    #[test]
    fn a_connection_is_restored_by_what_redis_accepted_last() {
        let hello = "%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n";
        let (ok, no) = ("+OK\r\n", "-ERR no\r\n");
        let said = [
            ("AUTH ann old", ok),
            ("HELLO 3 AUTH ann pw SETNAME first", hello),
            ("AUTH ben pw", "-WRONGPASS no\r\n"),
            ("SELECT 3", ok),
            ("SELECT 4", no),
            ("CLIENT SETNAME me", ok),
            ("CLIENT SETINFO LIB-NAME library", ok),
            ("CLIENT SETINFO LIB-VER 1", no),
            ("CLIENT NO-TOUCH ON", ok),
            ("CLIENT NO-EVICT ON", ok),
            ("CLIENT NO-EVICT OFF", ok),
        ];
        let expected = [
            "AUTH ann pw",
            "HELLO 3",
            "SELECT 3",
            "CLIENT SETNAME me",
            "CLIENT SETINFO LIB-NAME library",
            "CLIENT NO-TOUCH ON",
        ];
        let mut again = Restoration::default();
        for command in expected {
            again.add(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        }
        assert_eq!(after(&said).restoration(), again);
        let mut default = Restoration::default();
        default.add(&[b"AUTH", b"pw"]);
        assert_eq!(after(&[("AUTH pw", ok)]).restoration(), default);
        // Where the user needs no password, Redis refuses the short form.
        let mut named = Restoration::default();
        named.add(&[b"AUTH", b"default", b"pw"]);
        assert_eq!(after(&[("AUTH default pw", ok)]).restoration(), named);
        let both = [("AUTH pw", ok), ("AUTH default pw", ok)];
        assert_eq!(after(&both).restoration(), named);
        let refused = [("AUTH pw", ok), ("AUTH default other", "-WRONGPASS no\r\n")];
        assert_eq!(after(&refused).restoration(), default);
        assert_eq!(State::new().restoration(), Restoration::default());
    }

    #[test]
    fn a_statement_is_restored_up_to_its_bound() {
        let ok = "+OK\r\n";
        let bytes = CLIENT_STATEMENT_BYTES;
        for (name, is_restorable) in [(bytes, true), (bytes + 1, false), (4 * bytes, false)] {
            let name = format!("CLIENT SETNAME {}", "x".repeat(name));
            let state = after(&[(&name, ok)]);
            assert_eq!(state.is_restorable(), is_restorable, "{}", name.len());
        }
        // One that was not read whole.
        let mut state = State::new();
        let (mut requests, line) = (RequestScanner::new(), "CLIENT SETNAME me\r\n");
        let mut at = 0;
        while at < line.len() {
            at += requests.scan(&line.as_bytes()[at..]).0;
        }
        state.sent(&requests).unwrap();
        state
            .receive(&mut ReplyScanner::new(), ok.as_bytes())
            .2
            .unwrap();
        assert!(!state.is_restorable());
    }

    #[test]
    fn only_commands_that_change_nothing_of_the_connection_are_forgotten_with_one_error_each() {
        let sent = |commands: &[&str]| {
            let mut state = State::new();
            for command in commands {
                let (mut requests, line) = (RequestScanner::new(), format!("{command}\r\n"));
                let mut at = 0;
                while at < line.len() {
                    at += requests.scan(&line.as_bytes()[at..]).0;
                }
                state.sent(&requests).unwrap();
            }
            let count = state.forget_unsent();
            (count, state.settled())
        };
        assert_eq!(sent(&["GET a", "SET a 1", "PUBLISH a x"]), (Some(3), true));
        assert_eq!(sent(&["ASKING", "GET a"]), (Some(2), true));
        for changes in [
            "MULTI",
            "EXEC",
            "DISCARD",
            "SELECT 1",
            "AUTH pw",
            "HELLO 3",
            "RESET",
            "WATCH a",
            "UNWATCH",
            "SUBSCRIBE a b",
            "UNSUBSCRIBE",
            "READONLY",
            "CLIENT SETNAME me",
            "CLIENT TRACKING ON",
            "CLIENT REPLY SKIP",
            "SCRIPT DEBUG YES",
            "MONITOR",
            "SYNC",
            "WAIT 1 0",
            "WAITAOF 1 1 0",
        ] {
            assert_eq!(sent(&[changes, "GET a"]).0, None, "{changes}");
            assert_eq!(sent(&["GET a", changes]).0, None, "{changes}");
        }
        assert_eq!(sent(&["ASKING"]), (None, false));
        assert_eq!(sent(&["GET a"; REFUSED_COMMANDS + 1]), (None, false));
    }

    #[test]
    fn a_reset_that_fails_ends_the_login() {
        let mut state = State::new();
        let mut replies = ReplyScanner::new();
        for (command, reply) in [("AUTH ann pw\r\n", "+OK\r\n"), ("RESET\r\n", "-ERR no\r\n")] {
            assert!(state.certain());
            let (mut requests, mut at) = (RequestScanner::new(), 0);
            while at < command.len() {
                at += requests.scan(&command.as_bytes()[at..]).0;
            }
            state.sent(&requests).unwrap();
            state.receive(&mut replies, reply.as_bytes()).2.unwrap();
        }
        assert!(!state.authenticated() && !state.certain());
    }

    #[test]
    fn a_change_of_the_connection_needs_the_very_reply_that_says_so() {
        let others = [
            "+OK\r\n",
            "+RESET\r\n",
            "+OKAY\r\n",
            "$2\r\nOK\r\n",
            "*1\r\n+OK\r\n",
            ":1\r\n",
            "$-1\r\n",
        ];
        for (command, says_done) in [
            ("AUTH ann pw", "+OK\r\n"),
            ("SELECT 1", "+OK\r\n"),
            ("MULTI", "+OK\r\n"),
            ("DISCARD", "+OK\r\n"),
            ("CLIENT REPLY ON", "+OK\r\n"),
            ("CLIENT SETNAME me", "+OK\r\n"),
            ("SCRIPT DEBUG YES", "+OK\r\n"),
            ("MONITOR", "+OK\r\n"),
            ("WATCH a", "+OK\r\n"),
            ("CLIENT NO-EVICT ON", "+OK\r\n"),
            ("RESET", "+RESET\r\n"),
            (
                "HELLO 3 AUTH ann pw",
                "%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n",
            ),
            ("HELLO 2", "*2\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
        ] {
            for done in [says_done, "-ERR no\r\n"] {
                assert_eq!(
                    received(command, done),
                    Ok(Some(Received::Reply)),
                    "{command}"
                );
            }
            for other in others.iter().filter(|other| **other != says_done) {
                let doubt = Err(Uncountable::Doubtful);
                assert_eq!(received(command, other), doubt, "{command}: {other:?}");
            }
        }
        let another = "*2\r\n$5\r\nredis\r\n$6\r\nserver\r\n";
        assert_eq!(received("HELLO", another), Err(Uncountable::Doubtful));
    }
}
