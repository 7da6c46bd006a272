//! A look at what a client sent behind a `LOCK` that waits.
//!
//! It is kept, not run. But a client that shares one connection between tasks would lock itself
//! out: the `UNLOCK` of the task that holds stands behind the `LOCK` of the task that waits. So an
//! `UNLOCK` or `RELOCK` with only lock commands before it, none of them with its own key and token,
//! overtakes. Ordinary commands may not be overtaken, they belong to the critical section; an
//! `UNLOCK` behind one can only come when the `LOCK` is answered, and if its token holds the very
//! lock, that is a deadlock, which the queue is told of.

use std::collections::{HashSet, VecDeque};

use bytes::{Bytes, BytesMut};

use super::command::{Bounds, Command, Verb, parse};
use crate::{
    gate::Pending,
    limits::{LOCK_COMMAND_ARGUMENTS, LOCK_COMMAND_BYTES},
    lock::Token,
    resp::{RequestScanner, Step, arguments},
};

/// What was seen of the commands behind the one that waits, in their order.
#[derive(Debug)]
pub(super) struct Ahead {
    scanner: RequestScanner,
    /// Bytes of the inbox looked at.
    seen: usize,
    /// Bytes of the inbox before the command being looked at.
    frame_at: usize,
    commands: VecDeque<Kept>,
    /// What follows cannot be told before what stands here has run.
    opaque: bool,
}

/// One kept command.
#[derive(Debug)]
pub(super) enum Kept {
    /// It goes to Redis.
    Ordinary,
    /// It is a lock command.
    Lock {
        /// What it wants. None: it is wrong, and its error comes when its turn does.
        command: Option<Command>,
        /// It overtook; its reply waits for its turn.
        started: Option<Box<Pending>>,
        /// The queue was told that it stands here.
        told: bool,
    },
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self {
            scanner: RequestScanner::new(),
            seen: 0,
            frame_at: 0,
            commands: VecDeque::new(),
            opaque: false,
        }
    }

    /// Commands kept, as far as they were looked at.
    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Looks at what is new in the inbox. Returns whether there was any whole command.
    pub(super) fn look(&mut self, inbox: &BytesMut, bounds: &Bounds, most: usize) -> bool {
        let before = self.commands.len();
        while !self.opaque && self.seen < inbox.len() && self.commands.len() < most {
            let (count, step) = self.scanner.scan(&inbox[self.seen..]);
            self.seen += count;
            match step {
                Ok(Step::More | Step::Named) => {}
                Ok(Step::Blank) => self.frame_at = self.seen,
                Ok(Step::End) => {
                    let frame = &inbox[self.frame_at..self.seen];
                    self.frame_at = self.seen;
                    self.keep(frame, bounds);
                }
                // It gets its error when its turn comes.
                Err(_) => self.opaque = true,
            }
        }
        self.commands.len() > before
    }

    fn keep(&mut self, frame: &[u8], bounds: &Bounds) {
        let kept = match Verb::of(self.scanner.name()) {
            Some(_) => {
                let command = command_of(&Bytes::copy_from_slice(frame), bounds);
                Kept::Lock {
                    command,
                    started: None,
                    told: false,
                }
            }
            None => {
                self.opaque = changes_what_follows(self.scanner.name());
                Kept::Ordinary
            }
        };
        self.commands.push_back(kept);
    }

    /// Starts what may overtake the `LOCK` of `key` with `token` that waits, and tells of each
    /// `UNLOCK` of that very lock that may not.
    pub(super) fn overtake(
        &mut self,
        key: &Bytes,
        token: Option<&Token>,
        mut start: impl FnMut(&Command) -> Option<Pending>,
        mut tell: impl FnMut(&Token),
    ) {
        let mut before: HashSet<(Bytes, Token)> = HashSet::new();
        before.extend(token.map(|token| (key.clone(), token.clone())));
        let mut only_lock_commands = true;
        for kept in &mut self.commands {
            let Kept::Lock {
                command,
                started,
                told,
            } = kept
            else {
                only_lock_commands = false;
                continue;
            };
            let Some((its_key, its_token)) = command.as_ref().and_then(whose) else {
                continue;
            };
            let returns = matches!(
                command,
                Some(Command::Unlock { .. } | Command::Relock { .. })
            );
            let own = (its_key.clone(), its_token.clone());
            if returns && started.is_none() {
                if only_lock_commands && !before.contains(&own) {
                    *started = command.as_ref().and_then(&mut start).map(Box::new);
                } else if !*told && own.0 == *key && Some(its_token) != token {
                    *told = true;
                    tell(its_token);
                }
            }
            // What overtook goes first at the gate, too.
            if started.is_none() {
                before.insert(own);
            }
        }
    }

    /// The client's next command, of so many bytes, has its turn: the reply on its way, if it overtook.
    pub(super) fn turn(&mut self, frame_bytes: usize) -> Option<Pending> {
        let kept = self.commands.pop_front();
        if self.commands.is_empty() {
            *self = Self::new();
        } else {
            self.seen = self.seen.saturating_sub(frame_bytes);
            self.frame_at = self.frame_at.saturating_sub(frame_bytes);
        }
        match kept {
            Some(Kept::Lock { started, .. }) => started.map(|pending| *pending),
            Some(Kept::Ordinary) | None => None,
        }
    }

    /// So many bytes that were no command left the inbox.
    pub(super) fn passed_blank(&mut self, bytes: usize) {
        if self.commands.is_empty() {
            *self = Self::new();
        } else {
            self.seen -= bytes;
            self.frame_at -= bytes;
        }
    }

    /// Gives `run` every `UNLOCK` in the inbox that did not overtake; for a client that is served no
    /// longer. Those in a transaction that never was are not lock commands.
    pub(super) fn each_unlock(
        &self,
        inbox: &Bytes,
        bounds: &Bounds,
        mut run: impl FnMut(&Command),
    ) {
        let mut scanner = RequestScanner::new();
        let mut started = self.commands.iter().map(|kept| {
            matches!(
                kept,
                Kept::Lock {
                    started: Some(_),
                    ..
                }
            )
        });
        let (mut at, mut frame_at, mut transaction) = (0, 0, false);
        while at < inbox.len() {
            let (count, step) = scanner.scan(&inbox[at..]);
            at += count;
            match step {
                Ok(Step::More) | Err(_) => return,
                Ok(Step::Named) => {}
                Ok(Step::Blank) => frame_at = at,
                Ok(Step::End) => {
                    let frame = inbox.slice(frame_at..at);
                    frame_at = at;
                    let started = started.next().unwrap_or(false);
                    match scanner.name() {
                        b"MULTI" => transaction = true,
                        b"EXEC" | b"DISCARD" => transaction = false,
                        b"UNLOCK" if !transaction && !started => {
                            command_of(&frame, bounds).iter().for_each(&mut run);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// What the frame of a lock command wants. None: it is wrong.
fn command_of(frame: &Bytes, bounds: &Bounds) -> Option<Command> {
    if frame.len() > LOCK_COMMAND_BYTES {
        return None;
    }
    let arguments = arguments(frame, LOCK_COMMAND_ARGUMENTS).ok()?;
    parse(&arguments, bounds).ok()
}

/// The lock and the token that a command is about.
fn whose(command: &Command) -> Option<(&Bytes, &Token)> {
    match command {
        Command::Lock { key, token, .. } => token.as_ref().map(|token| (key, token)),
        Command::Unlock { key, token } | Command::Relock { key, token, .. } => Some((key, token)),
        Command::LockInfo { .. } | Command::Locks { .. } => None,
    }
}

/// Commands after which the same bytes may mean something else.
fn changes_what_follows(name: &[u8]) -> bool {
    matches!(
        name,
        b"MULTI"
            | b"SELECT"
            | b"AUTH"
            | b"HELLO"
            | b"RESET"
            | b"QUIT"
            | b"SUBSCRIBE"
            | b"PSUBSCRIBE"
            | b"SSUBSCRIBE"
            | b"MONITOR"
            | b"SYNC"
            | b"PSYNC"
            | b"CLIENT"
    )
}
