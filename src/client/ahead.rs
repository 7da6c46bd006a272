//! A look at what a client sent behind a `LOCK` that waits.
//!
//! It is kept, not run. But a client that shares one connection between tasks would lock itself
//! out: the `UNLOCK` of the task that holds stands behind the `LOCK` of the task that waits. So an
//! `UNLOCK` or `RELOCK` with only lock commands before it, none of them with its own key and token,
//! overtakes. Ordinary commands may not be overtaken, they belong to the critical section; an
//! `UNLOCK` behind one can only come when the `LOCK` is answered, and if its token holds the very
//! lock, that is a deadlock, which the queue is told of.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
};

use bytes::{Bytes, BytesMut};

use super::command::{Bounds, Command, Verb, parse};
use crate::{
    gate::Pending,
    limits::LOCK_COMMAND_ARGUMENTS,
    lock::Token,
    resp::{RequestScanner, Step, arguments},
};

/// What was seen of the commands behind the one that waits, in their order. Nothing, for nearly
/// every client at nearly every time, and then it takes no memory.
#[derive(Debug, Default)]
pub(super) struct Ahead(Option<Box<Behind>>);

#[derive(Debug, Default)]
struct Behind {
    scanner: RequestScanner,
    /// Bytes of the inbox looked at.
    seen: usize,
    /// Bytes of the inbox before the command being looked at.
    frame_at: usize,
    commands: VecDeque<Kept>,
    /// What follows cannot be told before what stands here has run.
    opaque: bool,
    /// Kept `UNLOCK`s and `RELOCK`s that did not overtake. Where there is none, nothing is judged.
    returns: usize,
    judged: Judged,
    hasher: RandomState,
}

/// One kept command.
#[derive(Debug)]
enum Kept {
    /// It goes to Redis.
    Ordinary,
    /// It is a lock command.
    Lock {
        /// What it wants. None: it is wrong, and its error comes when its turn does.
        command: Option<Command>,
        /// The hash of the lock and the token it is about, where it names both.
        own: Option<u64>,
        /// It overtook; its reply waits for its turn.
        started: Option<Box<Pending>>,
    },
}

/// Which commands may overtake the one that waits is decided once for each, however many come: what
/// stands before a command changes only when the one that waits does.
#[derive(Debug, Default)]
struct Judged {
    /// So many of the kept commands.
    count: usize,
    /// What the one that waits and those of the kept ones are about that did not overtake, by their
    /// hashes (which are keyed, and of 64 bits: two that are equal by chance only keep each other's order).
    own: HashSet<u64>,
    /// An ordinary command is among them.
    ordinary: bool,
}

impl Ahead {
    /// Commands kept, as far as they were looked at.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |behind| behind.commands.len())
    }

    /// Nothing is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Looks at what is new in the inbox. Returns whether there was any whole command.
    pub(super) fn look(&mut self, inbox: &BytesMut, bounds: &Bounds, most: usize) -> bool {
        if inbox.is_empty() {
            return false;
        }
        self.0.get_or_insert_default().look(inbox, bounds, most)
    }

    /// Starts what may overtake the `LOCK` of `key` with `token` that waits, and tells of each
    /// `UNLOCK` of that very lock that may not. `anew` where it waits since now.
    pub(super) fn overtake(
        &mut self,
        key: &Bytes,
        token: Option<&Token>,
        anew: bool,
        start: impl FnMut(&Command) -> Option<Pending>,
        tell: impl FnMut(&Token),
    ) {
        if let Some(behind) = &mut self.0 {
            if anew {
                behind.judged = Judged::default();
            }
            behind.overtake(key, token, start, tell);
        }
    }

    /// The client's next command, of so many bytes, has its turn: the reply on its way, if it overtook.
    pub(super) fn turn(&mut self, frame_bytes: usize) -> Option<Pending> {
        let behind = self.0.as_mut()?;
        let kept = behind.commands.pop_front();
        behind.passed(frame_bytes);
        let started = match kept {
            Some(Kept::Lock {
                started: Some(pending),
                ..
            }) => Some(*pending),
            Some(kept) => {
                behind.returns -= usize::from(kept.returns());
                None
            }
            None => None,
        };
        if behind.commands.is_empty() {
            self.0 = None;
        }
        started
    }

    /// So many bytes that were no command left the inbox.
    pub(super) fn passed_blank(&mut self, bytes: usize) {
        match &mut self.0 {
            Some(behind) if !behind.commands.is_empty() => behind.passed(bytes),
            _ => self.0 = None,
        }
    }

    /// Gives `run` every `UNLOCK` in the inbox that did not overtake; for a client that is served no
    /// longer. Those in a transaction that never was are not lock commands, and those behind a command that never
    /// was, by which they would mean another lock or another user, mean nothing.
    pub(super) fn each_unlock(
        &self,
        inbox: &Bytes,
        bounds: &Bounds,
        mut run: impl FnMut(&Command),
    ) {
        let mut scanner = RequestScanner::new();
        let commands = self.0.iter().flat_map(|behind| &behind.commands);
        let mut started = commands.map(|kept| {
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
                        b"CLIENT" => {}
                        name if changes_what_follows(name) => return,
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

impl Behind {
    fn look(&mut self, inbox: &BytesMut, bounds: &Bounds, most: usize) -> bool {
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
                let own = command.as_ref().and_then(whose);
                Kept::Lock {
                    own: own.map(|own| self.hasher.hash_one(own)),
                    command,
                    started: None,
                }
            }
            None => {
                self.opaque = changes_what_follows(self.scanner.name());
                Kept::Ordinary
            }
        };
        self.returns += usize::from(kept.returns());
        self.commands.push_back(kept);
    }

    fn overtake(
        &mut self,
        key: &Bytes,
        token: Option<&Token>,
        mut start: impl FnMut(&Command) -> Option<Pending>,
        mut tell: impl FnMut(&Token),
    ) {
        if self.returns == 0 {
            return;
        }
        let judged = &mut self.judged;
        let waiting = token.map(|token| self.hasher.hash_one((key, token)));
        judged.own.extend(waiting);
        for kept in self.commands.range_mut(judged.count..) {
            let returns = kept.returns();
            let Kept::Lock {
                command: Some(command),
                own,
                started,
            } = kept
            else {
                judged.ordinary |= matches!(kept, Kept::Ordinary);
                continue;
            };
            let (Some(own), Some((its_key, its_token))) = (*own, whose(command)) else {
                continue;
            };
            if returns && started.is_none() {
                if !judged.ordinary && !judged.own.contains(&own) {
                    *started = start(command).map(Box::new);
                    self.returns -= usize::from(started.is_some());
                } else if its_key == key && Some(its_token) != token {
                    tell(its_token);
                }
            }
            // What overtook goes first at the gate, too.
            if started.is_none() {
                judged.own.insert(own);
            }
        }
        judged.count = self.commands.len();
    }

    /// So many bytes left the inbox.
    fn passed(&mut self, bytes: usize) {
        self.seen = self.seen.saturating_sub(bytes);
        self.frame_at = self.frame_at.saturating_sub(bytes);
        self.judged = Judged::default();
    }
}

impl Kept {
    /// It is an `UNLOCK` or `RELOCK`.
    fn returns(&self) -> bool {
        let Self::Lock { command, .. } = self else {
            return false;
        };
        matches!(
            command,
            Some(Command::Unlock { .. } | Command::Relock { .. })
        )
    }
}

/// What the frame of a lock command wants. None: it is wrong.
fn command_of(frame: &Bytes, bounds: &Bounds) -> Option<Command> {
    if frame.len() > bounds.command_bytes {
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
