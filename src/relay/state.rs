//! The state of one client's connection to Redis: the replies still to come, and the protocol, database,
//! identity, transaction and subscriptions that lock commands depend on.
//!
//! Redis runs the commands of a connection one after the other, and this state machine does the same.
//! Commands wait in a queue. Each reply belongs to the oldest one, which has then run, and its effect is
//! applied. A request alone never changes the state, and a reply to one command is never attributed to
//! another: a reply that the queue does not allow is [`Uncountable`].
//!
//! - The reply to `EXEC` is read element by element ([`State::receive`] opens it). The queued commands pass
//!   once more through the same queue, so that a `SUBSCRIBE` among them may produce any number of elements
//!   and a `SELECT` counts only if it succeeded.
//! - Redis never gets `CLIENT REPLY OFF` or `SKIP`, since silent commands would have unknown results.
//!   `CLIENT REPLY ON` is sent in their place ([`State::reply_mode_substitute`]), so that every command gets its reply.
//!   Replies that Redis would have suppressed are hidden from the client ([`Visibility`]). Only a command
//!   that ends the counting of replies has the real one before it ([`State::silences_for_good`]).
//!
//! These doubtful cases end the connection:
//! - `CLIENT` with a NUL in the word `REPLY`, and a command name with a NUL (the scanner refuses it): which
//!   command runs depends on chance in Redis's hash tables.
//! - In RESP2, an element of `EXEC` that looks like a message, if the transaction subscribed and the command
//!   may reply with an array. Redis up to 7.0 writes messages there, and they are indistinguishable from a
//!   list of the same content.
//! - A reply that this version of the protocol does not allow.
//!
//! These cases go undetected:
//! - An error whose text contains line ends, as Redis 7.0 gives to `FUNCTION LOAD`.
//! - A command renamed in Redis's configuration (`rename-command`), if it is one of those that
//!   [`command`](Command) knows.
//! - A Redis Cluster that takes a shard channel away while its client unsubscribes from it.

use std::{
    collections::VecDeque,
    num::{NonZeroU32, NonZeroU64},
};

use bytes::Bytes;
use thiserror::Error;

use crate::{
    gate::ClientInfo,
    limits::REFUSED_COMMANDS,
    relay::{restoration::Restoration, rewrite::Amendment},
    resp::{Protocol, ProtocolError, ReplyScanner, ReplyStep, RequestScanner},
};

mod client_info;
mod command;
mod command_queue;
mod login;
mod replies;
mod visibility;

use client_info::ClientInfoCommands;
use command::{Command, ReplyModeCommand};
pub use command::{awaits_replicas, is_plain, is_plain_in_any_case};
use command_queue::CommandQueue;
pub use login::Identity;
use login::Logins;
use replies::Subscriptions;
use visibility::ReplyMode;
pub use visibility::Visibility;

/// The meaning of a whole reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// The end of the reply to the oldest command.
    Reply,
    /// A part of the reply to the oldest command; more parts follow.
    Part,
    /// A message or an invalidation, which replies to no command.
    Message,
}

/// The reason why replies cannot be attributed to commands any longer. The connection must be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Uncountable {
    /// No reply was owed. An error may still be forwarded: with one, Redis announces why it closes a
    /// connection (`-ERR max number of clients reached`).
    #[error("Redis sent a reply to no command")]
    Unasked,
    /// The reply cannot be that of the oldest command, or could be that of several.
    #[error("a reply of Redis cannot be told to be that of a certain command")]
    Doubtful,
    /// Redis does not speak the protocol.
    #[error("Redis sent something else than a reply: {0}")]
    Protocol(#[from] ProtocolError),
    /// A transaction queues more commands that change the connection than are kept.
    #[error("too many commands that change the connection are queued in one transaction")]
    Endless,
}

/// The state of one client's connection to Redis.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Commands that were forwarded and not answered, the oldest first.
    owed: CommandQueue,
    /// The number of commands in `owed`, each of a merged row counted.
    commands_owed: usize,
    /// The amendments of the replies to each [`Command::Amended`] in `owed`; `None` once one has begun.
    amendments: VecDeque<Option<Amendment>>,
    /// Commands queued in the open transaction.
    queued: CommandQueue,
    /// Commands of the `EXEC` at the front of `owed` whose replies are still to come; never empty. Boxed, since few
    /// clients use transactions, and every client has a state.
    executing: Option<Box<CommandQueue>>,
    /// Confirmations still to come for the oldest command; `None` before the first.
    confirmations: Option<u64>,
    in_transaction: bool,
    reply_mode: ReplyMode,
    /// The last forwarded command takes effect on the next one.
    one_shot_pending: bool,
    protocol: Protocol,
    database: u32,
    login: Option<NonZeroU64>,
    logins_sent: u64,
    logins: Logins,
    /// Number of commands that may have named the client or its library.
    names_sent: u32,
    /// The client's name and library. Few clients state any.
    client_info: Option<Box<ClientInfoCommands>>,
    /// Redis may have changed the user before it refused the command.
    login_in_doubt: bool,
    subscriptions: Subscriptions,
    /// The open transaction may be subscribed when it runs, so that messages may come between the elements of
    /// its reply.
    may_hear: bool,
    /// Redis has sent a reply other than an error.
    has_served: bool,
    /// Redis watches keys for the next transaction (`WATCH`).
    watching: bool,
    /// Redis may remember something of this connection that is not followed here.
    remembered: bool,
    uncountable: bool,
}

/// Commands outside a transaction.
impl State {
    /// Creates the state of a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the command, of which only a part may have been read, must be whole before it goes to
    /// Redis: it may suppress replies, or end them.
    pub fn must_be_whole(command: &RequestScanner) -> bool {
        let says = |word: &[u8]| {
            let subcommand = command.argument_beginning(1);
            subcommand.is_some_and(|given| command::c_equal(given, word))
        };
        match command.name() {
            b"CLIENT" => says(b"REPLY"),
            b"SCRIPT" => says(b"DEBUG"),
            _ => false,
        }
    }

    /// Returns whether Redis may stop sending countable replies after this command. The caller forwards it
    /// when no reply is owed, after [`State::silences_for_good`], and forwards nothing behind it before it is
    /// answered.
    pub fn may_end_counting(command: &RequestScanner) -> bool {
        matches!(
            Command::of(command),
            Some(Command::Stream | Command::Monitor | Command::Debug)
        )
    }

    /// Records a command that was forwarded whole, or its [`State::reply_mode_substitute`]; `command` has just read its
    /// end.
    ///
    /// # Errors
    /// The command's effect in Redis cannot be known.
    pub fn sent(&mut self, command: &RequestScanner) -> Result<(), Uncountable> {
        self.sent_with(command, None)
    }

    /// As [`State::sent`], for an `AUTH` or `HELLO`: the arguments `who` state the client's identity, or lockgate
    /// itself has let the client in; `called` states its name. After a mere [`State::sent`] both stay unknown.
    ///
    /// # Errors
    /// As [`State::sent`].
    pub fn sent_login(
        &mut self,
        command: &RequestScanner,
        who: Option<&[Bytes]>,
        called: &[Bytes],
    ) -> Result<(), Uncountable> {
        let before = self.logins_sent;
        self.sent_naming(command, called)?;
        if self.logins_sent > before {
            self.logins.sent(self.logins_sent, who);
        }
        Ok(())
    }

    /// As [`State::sent`], for a command whose arguments may describe the client. What Redis accepts is shown to
    /// operators, and said again on the client's next connection. After a mere [`State::sent`] it stays unknown.
    ///
    /// # Errors
    /// As [`State::sent`].
    pub fn sent_naming(
        &mut self,
        command: &RequestScanner,
        arguments: &[Bytes],
    ) -> Result<(), Uncountable> {
        self.sent_with(command, Some(arguments))
    }

    fn sent_with(
        &mut self,
        command: &RequestScanner,
        arguments: Option<&[Bytes]>,
    ) -> Result<(), Uncountable> {
        if self.uncountable {
            return Ok(());
        }
        self.one_shot_pending = command::leaves_one_shot_pending(command, self.one_shot_pending);
        let mut command = Command::of(command).ok_or(Uncountable::Doubtful)?;
        if command.names() {
            let number = self.next_name();
            command = command.named(number);
            if self.client_info.is_some() || ClientInfoCommands::is_in(arguments) {
                let client_info = self.client_info.get_or_insert_default();
                client_info.sent(number, arguments);
            }
        }
        match command {
            Command::Stream => self.uncountable = true,
            Command::Auth { .. } | Command::Hello { login: Some(_), .. } => {
                self.logins_sent += 1;
                self.push(command.numbered(self.logins_sent));
            }
            _ => self.push(command),
        }
        Ok(())
    }

    /// Returns the client's name and library, as Redis accepted them.
    pub fn client_info(&self) -> ClientInfo<'_> {
        let client_info = self.client_info.as_ref();
        client_info.map_or_else(ClientInfo::default, |client_info| client_info.client_info())
    }

    /// As [`State::sent`], for `count` commands, at least one, whose names all satisfy [`is_plain`].
    pub fn sent_plain(&mut self, count: usize) {
        if !self.uncountable {
            self.one_shot_pending = false;
            self.commands_owed += count;
            self.owed.push(Command::Ordinary(count as u64));
        }
    }

    /// Returns how many of the next replies are shown to the client and change nothing, as long as they are
    /// no arrays and no pushes.
    pub fn plain_owed(&self) -> u64 {
        let is_plain = !self.uncountable
            && !self.in_transaction
            && !self.is_executing()
            && self.reply_mode == ReplyMode::default();
        match self.owed.front() {
            Some(Command::Ordinary(count)) if is_plain => count,
            _ => 0,
        }
    }

    /// Records the arrival of `count` such replies.
    pub fn received_plain(&mut self, count: u64) {
        if let (Some(Command::Ordinary(_)), Some(but_one)) =
            (self.owed.front(), count.checked_sub(1))
        {
            self.has_served = true;
            self.owed.take_ordinary(but_one);
            self.commands_owed -= but_one as usize;
            self.pop();
        }
    }

    /// As [`State::sent`], for a command whose reply is to be amended, unless the reply is of another kind.
    pub fn sent_amended(&mut self, amendment: Amendment) {
        if !self.uncountable {
            self.one_shot_pending = false;
            self.amendments.push_back(Some(amendment));
            self.push(Command::Amended);
        }
    }

    /// Records that a frame without a command was forwarded ([`Step::Blank`](crate::resp::Step::Blank)). It
    /// gets no reply, but spends what the previous command left for the next one.
    pub fn sent_blank(&mut self) {
        self.one_shot_pending = false;
        match self.owed.back() {
            None => self.reply_mode.skip = false,
            Some(Command::Reply(ReplyModeCommand::Skip) | Command::Exec) => {
                self.owed.push(Command::Blank);
            }
            Some(_) => {}
        }
    }

    /// Records a forwarded command of lockgate's own, which may be any with a single reply. It takes the
    /// place of a command that does not go to Redis.
    pub fn sent_for_nobody(&mut self) {
        self.one_shot_pending = false;
        self.push(Command::Nobodys);
    }

    /// Reads on with `scanner`, which serves nothing else, as [`ReplyScanner::scan`] does: up to the end of
    /// one reply, or of `input`. Also returns whether the client sees the bytes consumed.
    ///
    /// # Errors
    /// The reply cannot be attributed to a command with certainty.
    pub fn receive(
        &mut self,
        scanner: &mut ReplyScanner,
        input: &[u8],
    ) -> (usize, Visibility, Result<Option<Received>, Uncountable>) {
        if self.uncountable {
            return (input.len(), Visibility::Shown, Ok(None));
        }
        if scanner.between_replies() {
            scanner.open_arrays(self.opens_next());
        }
        let (consumed, step) = scanner.scan(input);
        let visibility = self.visibility(scanner);
        let received = match step {
            Ok(ReplyStep::More) => Ok(None),
            Ok(ReplyStep::End) => self.received(scanner).map(Some),
            Err(error) => Err(error.into()),
        };
        (consumed, visibility, received)
    }

    /// Returns the amendment of a reply that begins with this byte. Called once for each reply.
    pub fn amendment(&mut self, first: u8) -> Option<Amendment> {
        let amended = self.head() == Some(Command::Amended)
            // A message comes between, or Redis queued the request: this is no reply to it.
            && first != b'>'
            && !self.subscribed()
            && !self.is_queued(Command::Amended)
            // The client would not see it.
            && !self.silences_next();
        if amended {
            self.amendments.front_mut()?.take()
        } else {
            None
        }
    }

    /// Returns how many entries the amendments add at most.
    pub fn amendment_weight(&self) -> usize {
        let amendments = self.amendments.iter().flatten();
        amendments.map(Amendment::weight).sum()
    }

    /// Returns the number of forwarded commands whose reply has not arrived whole.
    pub fn owed(&self) -> usize {
        self.commands_owed
    }

    /// Returns the same number, with ordinary commands in a row counted as one. The caller bounds it and
    /// [`State::queued`], and so the memory of this state.
    pub fn owed_entries(&self) -> usize {
        self.owed.len()
    }

    /// Returns the number of commands queued in the open transaction, with ordinary commands in a row counted
    /// as one.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Returns whether a lock command may run: no reply is owed, or replies are no longer counted.
    pub fn settled(&self) -> bool {
        self.owed.is_empty() || self.uncountable
    }

    /// Returns whether none of the replies owed changes the meaning of later commands.
    pub fn changes_nothing(&self) -> bool {
        let mut in_transaction = self.in_transaction;
        let executing = self.executing.iter().flat_map(|commands| commands.iter());
        let executing = executing.chain(self.owed.iter());
        let none_does = self
            .queued
            .iter()
            .chain(executing)
            .all(|command| match command {
                Command::Ordinary(_)
                | Command::Amended
                | Command::ClientInfoCommands { .. }
                | Command::Reply(_)
                | Command::Nobodys
                | Command::Publish(_)
                | Command::Watch
                | Command::Unwatch
                | Command::Remembered
                | Command::Blank => true,
                Command::Confirm { .. } | Command::ConfirmAll { .. } => {
                    self.protocol == Protocol::Resp3
                }
                Command::Multi | Command::Exec | Command::Discard => {
                    in_transaction = matches!(command, Command::Multi);
                    true
                }
                Command::Select(_)
                | Command::Auth { .. }
                | Command::Hello { .. }
                | Command::Reset
                | Command::Monitor
                | Command::Debug
                | Command::Stream => false,
            });
        none_does && !in_transaction && !self.uncountable && !self.subscribed()
    }

    /// Returns whether the reply to `EXEC` has arrived in part.
    pub fn is_executing(&self) -> bool {
        self.executing.is_some()
    }

    /// Returns the protocol of the next reply.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the number of the selected database.
    pub fn database(&self) -> u32 {
        self.database
    }

    /// Returns whether an `AUTH`, or `HELLO` with `AUTH`, has succeeded since the connection was opened or
    /// `RESET`.
    pub fn authenticated(&self) -> bool {
        self.login.is_some()
    }

    /// Returns the number of that command among the logins forwarded (see [`State::logins_sent`]), from 1 on.
    pub fn login(&self) -> Option<u64> {
        self.login.map(NonZeroU64::get)
    }

    /// Returns the number of forwarded logins: `AUTH`, and `HELLO` with enough options for an `AUTH`.
    pub fn logins_sent(&self) -> u64 {
        self.logins_sent
    }

    /// Returns the user that the client claims to be, as far as Redis accepted it, and how often that has
    /// changed. A `RESET` makes the client anonymous again. Valid where the identity is
    /// [`certain`](State::certain). A reply is no proof: the store verifies the claim before it locks
    /// anything on the client's behalf.
    pub fn identity(&self) -> (&Identity, u64) {
        self.logins.identity()
    }

    /// Returns whether `MULTI` was answered, without an `EXEC`, `DISCARD` or `RESET` since.
    pub fn in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Returns the number of subscriptions of all kinds.
    pub fn subscriptions(&self) -> u64 {
        let Subscriptions {
            channels,
            patterns,
            shard_channels,
        } = self.subscriptions;
        channels + patterns + shard_channels
    }

    /// Returns whether the connection is in RESP2's subscribed mode, where Redis accepts few commands.
    pub fn subscribed(&self) -> bool {
        self.protocol == Protocol::Resp2 && self.subscriptions() > 0
    }

    /// Returns whether Redis has run a command for this client since the connection was opened or `RESET`.
    /// Where Redis requires a password, the client has then given it.
    pub fn has_served(&self) -> bool {
        self.has_served
    }

    /// Returns whether the identity is known. It is not after a failed `RESET`, nor after a failed `HELLO`
    /// with `AUTH` that may have logged in before it failed; [`State::identity`] then returns the earlier
    /// one.
    pub fn certain(&self) -> bool {
        !self.login_in_doubt
    }

    /// Returns whether the last forwarded command takes effect on the next one (`CLIENT CACHING`, `ASKING`).
    /// If that is a lock command, another command must spend the effect upstream.
    pub fn one_shot_pending(&self) -> bool {
        self.one_shot_pending
    }

    /// Returns whether a new connection can be made to Redis what this one is, by [`State::restoration`]: Redis owes no
    /// reply and remembers nothing else.
    pub fn is_restorable(&self) -> bool {
        let is_idle = self.owed.is_empty() && !self.uncountable && !self.one_shot_pending;
        let is_known = self.certain() && *self.logins.identity().0 != Identity::NotKept;
        let client_info = self.client_info.as_ref();
        is_idle
            && is_known
            && !self.remembered
            && !self.watching
            && !self.in_transaction
            && self.subscriptions() == 0
            && self.reply_mode == ReplyMode::default()
            && client_info.is_none_or(|client_info| client_info.is_whole())
    }

    /// Where [`State::is_restorable`]: returns what to say on a new connection.
    pub(super) fn restoration(&self) -> Restoration {
        let mut again = Restoration::default();
        if let Some(words) = self.logins.again() {
            again.add(&words);
        }
        if self.protocol == Protocol::Resp3 {
            again.add(&[b"HELLO", b"3"]);
        }
        if self.database > 0 {
            again.add(&[b"SELECT", self.database.to_string().as_bytes()]);
        }
        if let Some(client_info) = &self.client_info {
            client_info.add_to(&mut again);
        }
        again
    }

    /// Forgets the commands that were not sent after all. Returns how many replies they would have got; none where they
    /// are too many, or one of them changes the connection: the commands behind it would run in another state than the
    /// client expects.
    pub fn forget_unsent(&mut self) -> Option<usize> {
        let changes_nothing = |command| {
            matches!(
                command,
                Command::Ordinary(_) | Command::Amended | Command::Publish(_)
            )
        };
        let fits = self.commands_owed <= REFUSED_COMMANDS && !self.uncountable;
        if !fits || self.one_shot_pending || !self.owed.iter().all(changes_nothing) {
            return None;
        }
        self.owed = CommandQueue::default();
        self.amendments = VecDeque::new();
        Some(std::mem::take(&mut self.commands_owed))
    }

    /// Returns whether Redis no longer sends countable replies (`MONITOR`, `SCRIPT DEBUG YES`, `SYNC`,
    /// `PSYNC`, `REPLCONF`): the session is then a plain byte pipe.
    pub fn uncountable(&self) -> bool {
        self.uncountable
    }
}

/// The queue.
impl State {
    fn next_name(&mut self) -> NonZeroU32 {
        let next = NonZeroU32::MIN.saturating_add(self.names_sent);
        self.names_sent = if next == NonZeroU32::MAX {
            0
        } else {
            next.get()
        };
        next
    }

    fn push(&mut self, command: Command) {
        self.commands_owed += 1;
        self.owed.push(command);
    }

    /// Records that Redis has queued a command in the open transaction.
    fn queue(&mut self, command: Command) {
        self.may_hear |= self.subscriptions() > 0 || command.confirmed_by().is_some();
        let command = match command.alone() {
            // Its reply must be distinguished from a message only where a message may come.
            Command::Publish(times) if !self.may_hear => Command::Ordinary(times),
            other => other,
        };
        self.queued.push(command);
    }

    /// Returns the oldest command, or that of a running `EXEC`.
    fn head(&self) -> Option<Command> {
        self.executing.as_deref().unwrap_or(&self.owed).front()
    }

    /// Removes the oldest command, which has had all its replies.
    fn pop(&mut self) {
        self.confirmations = None;
        if let Some(executing) = &mut self.executing {
            executing.take_one();
            if !executing.is_empty() {
                return;
            }
            // That was the last command of its EXEC.
            self.executing = None;
        }
        self.commands_owed = self.commands_owed.saturating_sub(1);
        if self.owed.take_one() == Some(Command::Amended) {
            self.amendments.pop_front();
            if self.amendments.is_empty() {
                // Few clients send a second such command.
                self.amendments = VecDeque::new();
            }
        }
        self.reply_mode.next_command();
        while let Some(Command::Blank) = self.owed.front() {
            self.owed.take_one();
            self.reply_mode.next_command();
        }
    }

    /// Returns whether Redis queues this command in the open transaction instead of running it.
    fn is_queued(&self, command: Command) -> bool {
        self.in_transaction && !self.is_executing() && !command.runs_in_transaction()
    }

    fn end_transaction(&mut self) {
        if std::mem::take(&mut self.in_transaction) {
            // Without a transaction, an `EXEC` or `DISCARD` is an error and ends no watch.
            self.watching = false;
        }
        self.may_hear = false;
        self.queued = CommandQueue::default();
    }

    fn reset(&mut self) {
        self.end_transaction();
        self.watching = false;
        self.protocol = Protocol::Resp2;
        self.database = 0;
        self.login = None;
        self.logins.reset();
        if let Some(client_info) = &mut self.client_info {
            client_info.reset();
        }
        self.login_in_doubt = false;
        self.has_served = false;
        self.subscriptions = Subscriptions::default();
        // As in Redis, a SKIP for this very command stays.
        self.reply_mode.off = false;
        self.reply_mode.skip_next = false;
    }
}
