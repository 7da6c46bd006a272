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
//! - Redis never hears `CLIENT REPLY OFF` or `SKIP`: what it answers in silence, nobody can know.
//!   `CLIENT REPLY ON` is sent in their place ([`State::stand_in`]), so that every command gets its
//!   reply, and those that Redis would have kept back are hidden from the client ([`Visibility`]).
//!
//! What remains in doubt, and ends the connection:
//! - `CLIENT` with a NUL in the word `REPLY`, and a name of a command with one (the scanner refuses
//!   it): the chance of Redis's hash tables decides what is run.
//! - In RESP2, an element of `EXEC` that looks like a message, where the transaction subscribed and the
//!   command may answer with an array: Redis up to 7.0 writes messages there, and nothing tells them
//!   from a list that reads the same.
//! - A reply that this version of the protocol does not allow at all.
//!
//! Not noticed at all: an error whose text has line ends, as Redis 7.0 gives to `FUNCTION LOAD`; a command renamed in the configuration of Redis (`rename-command`), if it is one
//! of those that [`command`](Command) knows; and a Redis Cluster that takes a shard channel away while
//! its client unsubscribes from it.

use std::{collections::VecDeque, num::NonZeroU32};

use bytes::Bytes;
use thiserror::Error;

use super::amend::Amendment;
use crate::{
    gate::Said,
    resp::{Protocol, ProtocolError, ReplyScanner, ReplyStep, RequestScanner},
};

mod command;
mod login;
mod naming;
mod replies;
mod visibility;

use command::{Command, ReplyMode};
pub use command::{is_naming, is_plain, is_plain_in_any_case};
pub use login::Identity;
use login::Logins;
use naming::Naming;
pub use visibility::Visibility;

/// Goes to Redis in the place of the other two.
const CLIENT_REPLY_ON: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$2\r\nON\r\n";
const CLIENT_REPLY_OFF: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n";
const CLIENT_REPLY_SKIP: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n";

/// A queue that grew longer than this gives its memory back when it is empty: thousands of connections
/// are idle, and each was busy once.
const KEPT_CAPACITY: usize = 16;

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
    /// What a transaction queues changes its connection too often to be kept in mind.
    #[error("too many commands that change the connection are queued in one transaction")]
    Endless,
}

/// What `CLIENT REPLY` said, in the three flags that Redis has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Silence {
    /// No replies from now on.
    off: bool,
    /// The command whose turn it is gets no reply.
    skip: bool,
    /// The command after it will get none.
    skip_next: bool,
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
    /// What is to be done to the replies of those in `owed` that are [`Command::Amended`]; nothing
    /// any more where that has begun.
    amendments: VecDeque<Option<Amendment>>,
    /// Queued in the open transaction.
    queued: VecDeque<Command>,
    /// Of the `EXEC` that is the oldest in `owed`: queued commands whose reply is still to come.
    executing: VecDeque<Command>,
    /// Confirmations still to come for the oldest command; none has come yet where this is none.
    confirmations: Option<u64>,
    in_transaction: bool,
    silence: Silence,
    /// Something the last command forwarded does is for the next one.
    primed: bool,
    protocol: Protocol,
    database: u32,
    login: Option<u64>,
    logins_sent: u64,
    logins: Logins,
    /// Counts what may have said something of the client itself.
    names_sent: u32,
    /// Of what it said; few clients say anything.
    naming: Option<Box<Naming>>,
    /// Redis may have changed the user before it refused what it was asked.
    login_in_doubt: bool,
    subscriptions: Subscriptions,
    /// The open transaction may be subscribed when it runs: messages may come between the elements of its reply.
    may_hear: bool,
    /// Redis has answered otherwise than by an error.
    has_served: bool,
    uncountable: bool,
}

/// What commands do that are not queued in a transaction.
impl State {
    /// A connection just opened.
    pub fn new() -> Self {
        Self::default()
    }

    /// What to forward instead of this command, of which the end was just read: Redis is not to
    /// keep back replies.
    pub fn stand_in(command: &RequestScanner) -> Option<&'static [u8]> {
        match Command::of(command) {
            Some(Command::Reply(ReplyMode::Off | ReplyMode::Skip)) => Some(CLIENT_REPLY_ON),
            _ => None,
        }
    }

    /// Whether the command, of which so much was read, is one that Redis may not have before it is known whole:
    /// it may take replies away, or end them.
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

    /// What follows this command may be no replies any more. It is to be forwarded when nothing is
    /// owed, after [`State::silences_for_good`], and nothing behind it before it is answered.
    pub fn may_end_counting(command: &RequestScanner) -> bool {
        matches!(
            Command::of(command),
            Some(Command::Stream | Command::Monitor | Command::Debug)
        )
    }

    /// A command was forwarded whole, or its [`State::stand_in`]; `command` has just read its end.
    ///
    /// # Errors
    /// What Redis makes of it cannot be known.
    pub fn sent(&mut self, command: &RequestScanner) -> Result<(), Uncountable> {
        if self.uncountable {
            return Ok(());
        }
        self.primed = command::primes_next(command, self.primed);
        let mut command = Command::of(command).ok_or(Uncountable::Doubtful)?;
        if command.names() {
            command = command.named(self.next_name());
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

    /// As [`State::sent`], for an `AUTH` or `HELLO` that says with these arguments who the client is, and
    /// with those how it is called: that will be known. Of one that was but [`State::sent`] it is not.
    ///
    /// # Errors
    /// As [`State::sent`].
    pub fn sent_login(
        &mut self,
        command: &RequestScanner,
        who: &[Bytes],
        called: &[Bytes],
    ) -> Result<(), Uncountable> {
        let (before, names_before) = (self.logins_sent, self.names_sent);
        self.sent(command)?;
        if self.logins_sent > before {
            self.logins.sent(self.logins_sent, who);
        }
        self.offer_name(names_before, called);
        Ok(())
    }

    /// As [`State::sent`], for a command with these arguments that may say something of the client itself:
    /// it is shown what Redis accepts. Of one that was but [`State::sent`] nothing is known.
    ///
    /// # Errors
    /// As [`State::sent`].
    pub fn sent_naming(
        &mut self,
        command: &RequestScanner,
        arguments: &[Bytes],
    ) -> Result<(), Uncountable> {
        let before = self.names_sent;
        self.sent(command)?;
        self.offer_name(before, arguments);
        Ok(())
    }

    /// What the client said of itself, as Redis accepted it.
    pub fn said(&self) -> Said<'_> {
        let naming = self.naming.as_ref();
        naming.map_or_else(Said::default, |naming| naming.said())
    }

    /// As [`State::sent`], for so many commands, one at least, whose names are all such that
    /// [`is_plain`].
    pub fn sent_plain(&mut self, count: usize) {
        if !self.uncountable {
            self.primed = false;
            self.commands_owed += count;
            Self::push_merged(&mut self.owed, Command::Ordinary(count as u64));
        }
    }

    /// So many replies that are no array and no push, next, are shown to the client and change nothing.
    pub fn plain_owed(&self) -> u64 {
        let is_plain = !self.uncountable
            && !self.in_transaction
            && self.executing.is_empty()
            && self.silence == Silence::default();
        match self.owed.front() {
            Some(Command::Ordinary(count)) if is_plain => *count,
            _ => 0,
        }
    }

    /// So many of them came.
    pub fn received_plain(&mut self, count: u64) {
        if let (Some(Command::Ordinary(owed)), Some(but_one)) =
            (self.owed.front_mut(), count.checked_sub(1))
        {
            self.has_served = true;
            *owed -= but_one;
            self.commands_owed -= but_one as usize;
            self.pop();
        }
    }

    /// As [`State::sent`]; and the reply is to be amended, unless it turns out to be none such.
    pub fn sent_amended(&mut self, amendment: Amendment) {
        if !self.uncountable {
            self.primed = false;
            self.amendments.push_back(Some(amendment));
            self.push(Command::Amended);
        }
    }

    /// A frame without a command was forwarded ([`Step::Blank`](crate::resp::Step::Blank)). It
    /// gets no reply, but spends what the command before it left for the next one.
    pub fn sent_blank(&mut self) {
        self.primed = false;
        match self.owed.back() {
            None => self.silence.skip = false,
            Some(Command::Reply(ReplyMode::Skip) | Command::Exec) => {
                self.owed.push_back(Command::Blank);
            }
            Some(_) => {}
        }
    }

    /// A command was forwarded that the client did not send: any that has one reply. It takes the
    /// place of a command that does not go to Redis.
    pub fn sent_for_nobody(&mut self) {
        self.primed = false;
        self.push(Command::Nobodys);
    }

    /// Reads on with `scanner`, which is used for nothing else, as
    /// [`ReplyScanner::scan`] does: up to the end of one reply, or to that of `input`. Also tells
    /// whether the bytes consumed are for the client.
    ///
    /// # Errors
    /// Which reply belongs to which command is not known.
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

    /// Where a reply begins with this byte: what is to be done to it. To be asked once.
    pub fn amendment(&mut self, first: u8) -> Option<Amendment> {
        let amended = self.head() == Some(Command::Amended)
            // A message comes between, or the request was queued: this is no reply to it.
            && first != b'>'
            && !self.subscribed()
            && !self.is_queued(Command::Amended)
            // Nobody would see it.
            && !self.silences_next();
        if amended {
            self.amendments.front_mut()?.take()
        } else {
            None
        }
    }

    /// Replies are to be amended.
    pub fn amends(&self) -> bool {
        !self.amendments.is_empty()
    }

    /// What is to be added to them, in entries.
    pub fn amendment_weight(&self) -> usize {
        let amendments = self.amendments.iter().flatten();
        amendments.map(Amendment::weight).sum()
    }

    /// Commands forwarded whose reply has not come whole.
    pub fn owed(&self) -> usize {
        self.commands_owed
    }

    /// The same, ordinary ones in a row counted as one. The caller bounds it, and with it and
    /// [`State::queued`] the memory this takes.
    pub fn owed_entries(&self) -> usize {
        self.owed.len()
    }

    /// Commands queued in the open transaction, where they are not ordinary ones in a row.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Nothing is owed, or that is not known any more: a lock command may run.
    pub fn settled(&self) -> bool {
        self.owed.is_empty() || self.uncountable
    }

    /// None of the replies that are owed changes what later commands mean.
    pub fn changes_nothing(&self) -> bool {
        let mut in_transaction = self.in_transaction;
        let all = self.queued.iter().chain(&self.executing).chain(&self.owed);
        let none_does = all.into_iter().all(|command| match command {
            Command::Ordinary(_)
            | Command::Amended
            | Command::Naming { .. }
            | Command::Reply(_)
            | Command::Nobodys
            | Command::Publish(_)
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

    /// The reply to `EXEC` has come in part.
    pub fn is_executing(&self) -> bool {
        !self.executing.is_empty()
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

    /// Returns the user that the client claims to be, as far as Redis accepted it, and how often that has changed: a
    /// `RESET` makes it anonymous anew. Where the identity is [`certain`](State::certain). A reply is no proof: the store verifies what
    /// the client claims before anything is locked on its behalf.
    pub fn identity(&self) -> (&Identity, u64) {
        self.logins.identity()
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

    /// Redis has run a command for this client since it connected, or `RESET` the connection: where Redis wants a
    /// password, the client has given it.
    pub fn has_served(&self) -> bool {
        self.has_served
    }

    /// The identity is known. Otherwise a `HELLO` with `AUTH` failed for another reason, or a `RESET` did, and
    /// what is told of it is from before.
    pub fn certain(&self) -> bool {
        !self.login_in_doubt
    }

    /// Where [`State::settled`]: replies are off (`CLIENT REPLY OFF`).
    pub fn replies_off(&self) -> bool {
        self.silence.off
    }

    /// Where [`State::settled`]: the next command gets no reply (`CLIENT REPLY OFF` or `SKIP`).
    pub fn silences_next(&self) -> bool {
        self.silence.off || self.silence.skip
    }

    /// Where [`State::settled`]: the next command is not sent to Redis. Whether it gets no reply.
    pub fn take_silence(&mut self) -> bool {
        let silent = self.silences_next();
        self.silence.skip = false;
        silent
    }

    /// Where [`State::settled`]: what Redis has to be told before a command of which the replies
    /// cannot be hidden, and that nothing is hidden any more.
    pub fn silences_for_good(&mut self) -> Option<&'static [u8]> {
        let silence = if self.silence.off {
            CLIENT_REPLY_OFF
        } else if self.silence.skip {
            CLIENT_REPLY_SKIP
        } else {
            return None;
        };
        self.uncountable = true;
        Some(silence)
    }

    /// The last command forwarded is for the next one (`CLIENT CACHING`, `ASKING`): if a lock
    /// command comes next, something else must spend that upstream.
    pub fn primed(&self) -> bool {
        self.primed
    }

    /// What Redis sends are no replies any more (`MONITOR`, `SCRIPT DEBUG YES`, `SYNC`, `PSYNC`, `REPLCONF`): the
    /// session is a plain byte pipe from now on.
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

    /// The command just sent said this, unless it was none that could.
    fn offer_name(&mut self, before: u32, arguments: &[Bytes]) {
        if let Some(number) = NonZeroU32::new(self.names_sent)
            && self.names_sent != before
            && (self.naming.is_some() || Naming::is_in(arguments))
        {
            self.naming.get_or_insert_default().sent(number, arguments);
        }
    }

    fn push(&mut self, command: Command) {
        self.commands_owed += 1;
        Self::push_merged(&mut self.owed, command);
    }

    /// Ordinary commands in a row take one place, as does `PUBLISH`.
    fn push_merged(queue: &mut VecDeque<Command>, command: Command) {
        match (queue.back_mut(), command) {
            (Some(Command::Ordinary(before)), Command::Ordinary(more))
            | (Some(Command::Publish(before)), Command::Publish(more)) => *before += more,
            _ => queue.push_back(command),
        }
    }

    /// Redis has queued a command in the open transaction.
    fn queue(&mut self, command: Command) {
        self.may_hear |= self.subscriptions() > 0 || command.confirmed_by().is_some();
        let command = match command.alone() {
            // Its reply is told from a message only where a message may come.
            Command::Publish(times) if !self.may_hear => Command::Ordinary(times),
            other => other,
        };
        Self::push_merged(&mut self.queued, command);
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
        self.commands_owed = self.commands_owed.saturating_sub(1);
        if take_one(&mut self.owed) == Some(Command::Amended) {
            self.amendments.pop_front();
            if self.amendments.is_empty() {
                // Few clients ask twice.
                self.amendments = VecDeque::new();
            }
        }
        self.silence.next_command();
        while let Some(Command::Blank) = self.owed.front() {
            self.owed.pop_front();
            self.silence.next_command();
        }
    }

    /// The oldest command is queued by Redis, not run, if the transaction is open.
    fn is_queued(&self, command: Command) -> bool {
        self.in_transaction && self.executing.is_empty() && !command.runs_in_transaction()
    }

    fn end_transaction(&mut self) {
        self.in_transaction = false;
        self.may_hear = false;
        self.queued = VecDeque::new();
    }

    fn reset(&mut self) {
        self.end_transaction();
        self.protocol = Protocol::Resp2;
        self.database = 0;
        self.login = None;
        self.logins.reset();
        if let Some(naming) = &mut self.naming {
            naming.reset();
        }
        self.login_in_doubt = false;
        self.has_served = false;
        self.subscriptions = Subscriptions::default();
        // As Redis does: the SKIP of this very command goes on.
        self.silence.off = false;
        self.silence.skip_next = false;
    }
}

impl Silence {
    /// A `CLIENT REPLY` ran.
    fn set(&mut self, mode: ReplyMode) {
        match mode {
            ReplyMode::On => (self.off, self.skip) = (false, false),
            ReplyMode::Off => self.off = true,
            ReplyMode::Skip => self.skip_next |= !self.off,
        }
    }

    /// A command has ended.
    fn next_command(&mut self) {
        self.skip = std::mem::take(&mut self.skip_next);
    }
}

/// Takes one command off a queue.
fn take_one(queue: &mut VecDeque<Command>) -> Option<Command> {
    let taken = match queue.front_mut() {
        Some(Command::Ordinary(times)) if *times > 1 => {
            *times -= 1;
            Some(Command::Ordinary(1))
        }
        Some(Command::Publish(times)) if *times > 1 => {
            *times -= 1;
            Some(Command::Publish(1))
        }
        _ => queue.pop_front(),
    };
    if queue.is_empty() && queue.capacity() > KEPT_CAPACITY {
        *queue = VecDeque::new();
    }
    taken
}
