//! What one client's connection to Redis owes and is: which replies are still to come, and the
//! protocol, database, identity, transaction and subscriptions that lock commands depend on.
//!
//! Redis runs the commands of a connection one after the other, so this does the same: commands
//! wait in a queue, and each reply is taken as the oldest one's, which is then known to have
//! happened and is applied. State is never taken from a request alone, and a reply to one command
//! is never taken for another's: what the queue does not allow is [`Uncountable`].
//!
//! - The reply to `EXEC` is read element by element ([`State::receive`] opens it): the queued
//!   commands run once more through the same queue, so that a `SUBSCRIBE` among them may give any
//!   number of elements and a `SELECT` counts only if it succeeded.
//! - `CLIENT REPLY OFF` and `SKIP` give no reply unless they fail. They are taken to succeed when
//!   their turn comes; an error that cannot be anything else puts it right, one that can be ends
//!   the counting. What happened unseen is [`State::certain`] no more.

use std::collections::VecDeque;

use thiserror::Error;

use crate::resp::{Protocol, ProtocolError, ReplyScanner, ReplyStep, RequestScanner};

mod command;
mod replies;

use command::{Command, ReplyMode};

/// What a whole reply was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// The end of the reply to the oldest command.
    Reply,
    /// A part of the reply to the oldest command; more parts follow.
    Part,
    /// A message or an invalidation: the reply to nothing.
    Message,
}

/// Which reply belongs to which command is not known (any more). The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Uncountable {
    /// Nothing was owed. Redis says so why it closes a connection (`-ERR max number of clients
    /// reached`), so an error may still be passed on.
    #[error("Redis sent a reply to no command")]
    Unasked,
    /// The reply cannot be the oldest command's, or could be that of several.
    #[error("a reply of Redis cannot be told to be that of a certain command")]
    Doubtful,
    /// Redis does not speak the protocol.
    #[error("Redis sent something else than a reply: {0}")]
    Protocol(#[from] ProtocolError),
}

/// What happened without a reply to tell whether it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Unseen {
    protocol: bool,
    database: bool,
    identity: bool,
    transaction: bool,
}

/// A `CLIENT REPLY OFF` or `SKIP` taken to have succeeded, until a reply shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Assumed {
    /// Ordinary commands passed over since: their replies come if it failed after all.
    passed: u64,
    /// More than that was passed over, or it is not the only assumption.
    lost: bool,
}

/// Numbers of subscriptions, as Redis counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Subscriptions {
    channels: u64,
    patterns: u64,
    shard_channels: u64,
}

/// The state of one client's connection to Redis.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Forwarded and not answered, the oldest first.
    owed: VecDeque<Command>,
    /// Replies owed by `owed`, as far as its length tells.
    commands_owed: usize,
    /// Queued in the open transaction.
    queued: VecDeque<Command>,
    /// Of the `EXEC` that is the oldest in `owed`: queued commands whose reply is still to come.
    executing: VecDeque<Command>,
    /// Confirmations still to come for the oldest command; none has come yet where this is none.
    confirmations: Option<u64>,
    in_transaction: bool,
    replies_off: bool,
    /// The command whose turn it is gets no reply.
    skipped: bool,
    /// The command after it will get none.
    skip_next: bool,
    assumed: Option<Assumed>,
    /// Something the last command forwarded does is for the next one.
    primed: bool,
    protocol: Protocol,
    database: u32,
    login: Option<u64>,
    logins_sent: u64,
    unseen: Unseen,
    subscriptions: Subscriptions,
    uncountable: bool,
}

/// What commands do that are not queued in a transaction.
impl State {
    /// A connection just opened.
    pub fn new() -> Self {
        Self::default()
    }

    /// A command was forwarded whole; `command` has just read its end.
    ///
    /// # Errors
    /// What Redis makes of it cannot be known.
    pub fn sent(&mut self, command: &RequestScanner) -> Result<(), Uncountable> {
        if self.uncountable {
            return Ok(());
        }
        self.primed = command::primes_next(command, self.primed);
        let command = Command::of(command).ok_or(Uncountable::Doubtful)?;
        match command {
            Command::Stream => {
                self.uncountable = true;
                return Ok(());
            }
            Command::Auth { .. } | Command::Hello { login: Some(_), .. } => {
                self.logins_sent += 1;
                self.push(command.numbered(self.logins_sent));
            }
            _ => self.push(command),
        }
        self.pass_silent()
    }

    /// A frame without a command was forwarded ([`Step::Blank`](crate::resp::Step::Blank)). It
    /// gets no reply, but spends a `CLIENT REPLY SKIP`.
    ///
    /// # Errors
    /// What Redis makes of it cannot be known.
    pub fn sent_blank(&mut self) -> Result<(), Uncountable> {
        match self.owed.back() {
            None => self.skipped = false,
            Some(Command::Reply(ReplyMode::Skip) | Command::Exec) => {
                self.owed.push_back(Command::Blank)
            }
            Some(_) => {}
        }
        self.pass_silent()
    }

    /// Reads on with `scanner`, which is used for nothing else, as
    /// [`ReplyScanner::scan`] does: up to the end of one reply, or to that of `input`.
    ///
    /// # Errors
    /// Which reply belongs to which command is not known.
    pub fn receive(
        &mut self,
        scanner: &mut ReplyScanner,
        input: &[u8],
    ) -> (usize, Result<Option<Received>, Uncountable>) {
        if self.uncountable {
            return (input.len(), Ok(None));
        }
        if scanner.between_replies() {
            scanner.open_arrays(self.opens_next());
        }
        let (consumed, step) = scanner.scan(input);
        let received = match step {
            Ok(ReplyStep::More) => Ok(None),
            Ok(ReplyStep::End) => self.received(scanner).map(Some),
            Err(error) => Err(error.into()),
        };
        (consumed, received)
    }

    /// Commands forwarded whose reply has not come whole. The caller bounds it, and with it and
    /// [`State::queued`] the memory this takes.
    pub fn owed(&self) -> usize {
        self.commands_owed
    }

    /// Commands queued in the open transaction, where they are not ordinary ones in a row.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Nothing is owed: a lock command may run.
    pub fn settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// The protocol that replies are written in now.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The number of the selected database.
    pub fn database(&self) -> u32 {
        self.database
    }

    /// A successful `AUTH`, or `HELLO` with `AUTH`, was seen since the connection was opened or `RESET`.
    pub fn authenticated(&self) -> bool {
        self.login.is_some()
    }

    /// Which one it was: the how many-th `AUTH` or `HELLO` with `AUTH` forwarded, from 1 on.
    pub fn login(&self) -> Option<u64> {
        self.login
    }

    /// How many `AUTH` and `HELLO` with `AUTH` were forwarded.
    pub fn logins_sent(&self) -> u64 {
        self.logins_sent
    }

    /// `MULTI` was answered, and no `EXEC`, `DISCARD` or `RESET` since.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// The number of subscriptions, of every kind.
    pub fn subscriptions(&self) -> u64 {
        let Subscriptions {
            channels,
            patterns,
            shard_channels,
        } = self.subscriptions;
        channels + patterns + shard_channels
    }

    /// The connection is in RESP2's subscribed mode, where Redis takes few commands.
    pub fn subscribed(&self) -> bool {
        self.protocol == Protocol::Resp2 && self.subscriptions() > 0
    }

    /// Protocol, database, identity and transaction are known. Otherwise a command that changes
    /// one of them ran unseen, after `CLIENT REPLY OFF` or `SKIP`, and what is told of it is from before.
    pub fn certain(&self) -> bool {
        self.unseen == Unseen::default()
    }

    /// Where [`State::settled`]: replies are off (`CLIENT REPLY OFF`).
    pub fn replies_off(&self) -> bool {
        self.replies_off
    }

    /// Where [`State::settled`]: the next command gets no reply (`CLIENT REPLY SKIP`).
    pub fn skips_next(&self) -> bool {
        self.skipped && !self.replies_off
    }

    /// The last command forwarded is for the next one (`CLIENT REPLY SKIP`, `CLIENT CACHING`,
    /// `ASKING`): if a lock command comes next, something else must spend that upstream.
    pub fn primed(&self) -> bool {
        self.primed
    }

    /// What Redis sends are no replies any more (`MONITOR`, `SYNC`, `PSYNC`, `REPLCONF`): the
    /// session is a plain byte pipe from now on.
    pub fn uncountable(&self) -> bool {
        self.uncountable
    }
}

/// The queue.
impl State {
    fn push(&mut self, command: Command) {
        self.commands_owed += 1;
        Self::push_merged(&mut self.owed, command);
    }

    /// Ordinary commands in a row take one place.
    fn push_merged(queue: &mut VecDeque<Command>, command: Command) {
        match (queue.back_mut(), command) {
            (Some(Command::Ordinary(before)), Command::Ordinary(more)) => *before += more,
            _ => queue.push_back(command),
        }
    }

    /// The oldest command, or the one of a running `EXEC`.
    fn head(&self) -> Option<Command> {
        self.executing.front().or(self.owed.front()).copied()
    }

    /// The oldest command has had all its replies.
    fn pop(&mut self) {
        self.confirmations = None;
        if !self.executing.is_empty() {
            take_one(&mut self.executing);
            if !self.executing.is_empty() {
                return;
            }
            // That was the last of its EXEC.
        }
        if !matches!(self.owed.front(), Some(Command::Blank)) {
            self.commands_owed = self.commands_owed.saturating_sub(1);
        }
        take_one(&mut self.owed);
        self.skipped = std::mem::take(&mut self.skip_next);
    }

    /// The oldest command is queued by Redis, not run, if the transaction is open.
    fn is_queued(&self, command: Command) -> bool {
        self.in_transaction && self.executing.is_empty() && !command.runs_in_transaction()
    }

    /// Lets pass what gets no reply.
    fn pass_silent(&mut self) -> Result<(), Uncountable> {
        while let Some(command) = self.head() {
            let mute = self.replies_off || self.skipped;
            let queued = self.is_queued(command);
            match command {
                Command::Blank => {}
                Command::Reply(mode)
                    if (mute || mode != ReplyMode::On) && self.may_be_refused() =>
                {
                    return Err(Uncountable::Doubtful);
                }
                // In RESP2's subscribed mode CLIENT is refused, and inside MULTI it is queued.
                Command::Reply(ReplyMode::Off | ReplyMode::Skip)
                    if !queued && !self.subscribed() =>
                {
                    self.assume(command);
                }
                _ if !mute => break,
                _ if queued => self.queue_unseen(command)?,
                Command::Reply(ReplyMode::On) if !self.subscribed() => break,
                // In which protocol they come, and so what else may come, is not known.
                Command::Confirm { .. } | Command::ConfirmAll { .. } if self.unseen.protocol => {
                    return Err(Uncountable::Doubtful);
                }
                // Redis mutes neither confirmations nor what comes after the end of muting.
                Command::Confirm { .. } | Command::ConfirmAll { .. } => break,
                Command::Reset if !self.skipped => break,
                _ => self.run_unseen(command)?,
            }
            self.pop();
        }
        Ok(())
    }

    /// It is not known whether this is RESP2's subscribed mode, where `CLIENT` is refused.
    fn may_be_refused(&self) -> bool {
        self.unseen.protocol && self.subscriptions() > 0
    }

    fn assume(&mut self, command: Command) {
        self.assumed = Some(Assumed {
            passed: 0,
            lost: self.assumed.is_some(),
        });
        match command {
            Command::Reply(ReplyMode::Off) => self.replies_off = true,
            _ => self.skip_next = !self.replies_off,
        }
    }

    fn queue_unseen(&mut self, command: Command) -> Result<(), Uncountable> {
        if matches!(command, Command::Reply(_)) {
            // Whether it was queued decides whether there are replies from now on.
            return Err(Uncountable::Doubtful);
        }
        self.passed(command);
        Self::push_merged(&mut self.queued, command.alone());
        Ok(())
    }

    fn run_unseen(&mut self, command: Command) -> Result<(), Uncountable> {
        self.passed(command);
        // In RESP2's subscribed mode Redis refuses all of these but RESET.
        if self.subscribed() && command != Command::Reset {
            return if self.unseen.protocol {
                Err(Uncountable::Doubtful)
            } else {
                Ok(())
            };
        }
        match command {
            Command::Select(_) => self.unseen.database = true,
            Command::Auth { .. } => self.unseen.identity = true,
            Command::Hello { login, .. } => {
                self.unseen.protocol = true;
                self.unseen.identity |= login.is_some();
            }
            Command::Multi => {
                self.in_transaction = true;
                self.unseen.transaction = true;
            }
            Command::Discard => self.end_transaction(),
            Command::Exec => {
                for queued in std::mem::take(&mut self.queued) {
                    match queued {
                        Command::Confirm { .. }
                        | Command::ConfirmAll { .. }
                        | Command::Reply(_)
                        | Command::Monitor => {
                            return Err(Uncountable::Doubtful);
                        }
                        _ => self.run_unseen(queued)?,
                    }
                }
                self.end_transaction();
            }
            Command::Reset => self.reset(),
            Command::Monitor => self.uncountable = true,
            _ => {}
        }
        Ok(())
    }

    fn passed(&mut self, command: Command) {
        if let Some(assumed) = &mut self.assumed {
            match command {
                Command::Ordinary(_) => assumed.passed += 1,
                _ => assumed.lost = true,
            }
        }
    }

    fn end_transaction(&mut self) {
        self.in_transaction = false;
        self.unseen.transaction = false;
        self.queued.clear();
    }

    fn reset(&mut self) {
        self.end_transaction();
        self.protocol = Protocol::Resp2;
        self.database = 0;
        self.login = None;
        self.unseen = Unseen::default();
        self.subscriptions = Subscriptions::default();
        self.replies_off = false;
        self.skip_next = false;
    }
}

/// Takes one command off a queue.
fn take_one(queue: &mut VecDeque<Command>) {
    match queue.front_mut() {
        Some(Command::Ordinary(times)) if *times > 1 => *times -= 1,
        _ => drop(queue.pop_front()),
    }
}
