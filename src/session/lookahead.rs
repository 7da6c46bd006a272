//! A scan of the commands that a client sent behind a waiting `LOCK`.
//!
//! The session keeps these commands and does not run them. But a client that shares one connection between
//! tasks would then lock itself out: the `UNLOCK` of the holding task stands behind the `LOCK` of the waiting
//! task. So an `UNLOCK` or `RELOCK` overtakes if only lock commands stand before it and none of them names
//! its key and token. Nothing overtakes ordinary commands: they belong to the critical section. An `UNLOCK`
//! behind one can run only after the `LOCK` is answered. If its token holds the same lock, that is a
//! deadlock, and the queue is notified.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
};

use bytes::{Bytes, BytesMut};

use super::absorbing::recognise;
use crate::{
    absorb::{Ask, Rules, Shape},
    command::{Bounds, Command, Verb, parse},
    gate::Pending,
    limits::{LOCK_COMMAND_ARGUMENTS, LOCK_COMMAND_BYTES},
    lock::Token,
    resp::{RequestScanner, Step, arguments},
};

/// The kept commands behind the waiting one, in their order. Empty, and without memory, for nearly every
/// client at nearly every time.
#[derive(Debug, Default)]
pub(crate) struct Lookahead(Option<Box<Behind>>);

#[derive(Debug, Default)]
struct Behind {
    scanner: RequestScanner,
    /// Bytes of the inbox that were scanned.
    seen: usize,
    /// Bytes of the inbox before the command being scanned.
    frame_at: usize,
    commands: VecDeque<Kept>,
    /// Later commands cannot be interpreted before the kept ones have run.
    opaque: bool,
    /// Kept `UNLOCK`s and `RELOCK`s that did not overtake. At zero, nothing is judged.
    returns: usize,
    judged: Judged,
    hasher: RandomState,
}

/// One kept command.
#[derive(Debug)]
enum Kept {
    /// A command for Redis.
    Ordinary,
    /// A request about a lock.
    Lock {
        /// The request. `None`: it is invalid, and gets its error in its turn.
        request: Option<Request>,
        /// The hash of its lock and token, where it names both.
        own: Option<u64>,
        /// The pending reply of a command that overtook. It is written in its turn.
        started: Option<Box<Pending>>,
    },
}

/// A request about a lock.
#[derive(Debug)]
pub(super) enum Request {
    /// A lock command.
    Command(Command),
    /// A command of Redis's own.
    Absorbed(Shape),
}

/// The means to read a request.
pub(super) struct Reader<'a> {
    pub(super) bounds: &'a Bounds,
    /// The rules by which commands are absorbed.
    pub(super) rules: Option<&'a Rules>,
    pub(super) database: u32,
}

/// The decisions on which commands may overtake. Each is made once, however many commands arrive: the
/// commands before it change only when the waiting one does.
#[derive(Debug, Default)]
struct Judged {
    /// Number of kept commands judged.
    count: usize,
    /// Hashes of the lock and token of the waiting command and of those judged commands that did not
    /// overtake. The hashes are keyed and have 64 bits: a collision only preserves the order of two commands.
    own: HashSet<u64>,
    /// An ordinary command is among the judged ones.
    ordinary: bool,
}

impl Lookahead {
    /// Returns the absorbed command that is next and overtook.
    pub(crate) fn started_shape(&self) -> Option<&Shape> {
        match self.0.as_ref()?.commands.front()? {
            Kept::Lock {
                request: Some(Request::Absorbed(shape)),
                started: Some(_),
                ..
            } => Some(shape),
            _ => None,
        }
    }

    /// Returns the number of kept commands scanned.
    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |behind| behind.commands.len())
    }

    /// Returns whether a whole command is kept.
    pub(crate) fn holds_command(&self) -> bool {
        let behind = self.0.as_ref();
        behind.is_some_and(|behind| !behind.commands.is_empty())
    }

    /// Returns whether no byte is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Scans the new bytes in the inbox. Returns whether they contained a whole command.
    pub(crate) fn status(&mut self, inbox: &BytesMut, reader: &Reader<'_>, most: usize) -> bool {
        if inbox.is_empty() {
            return false;
        }
        self.0.get_or_insert_default().status(inbox, reader, most)
    }

    /// Starts the commands that may overtake the waiting `LOCK` of `key` with `token`, and calls `tell` for
    /// each `UNLOCK` of the same lock that may not. `anew`: this `LOCK` has just begun to wait.
    pub(crate) fn overtake(
        &mut self,
        key: &Bytes,
        token: Option<&Token>,
        anew: bool,
        start: impl FnMut(&Request) -> Option<Pending>,
        tell: impl FnMut(&Token),
    ) {
        if let Some(behind) = &mut self.0 {
            if anew {
                behind.judged = Judged::default();
            }
            behind.overtake(key, token, start, tell);
        }
    }

    /// Advances to the client's next command, which has `frame_bytes` bytes. Returns its pending reply if it
    /// overtook.
    pub(crate) fn turn(&mut self, frame_bytes: usize) -> Option<Pending> {
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

    /// Records that bytes without a command left the inbox.
    pub(crate) fn passed_blank(&mut self, bytes: usize) {
        match &mut self.0 {
            Some(behind) if !behind.commands.is_empty() => behind.passed(bytes),
            _ => self.0 = None,
        }
    }

    /// Calls `run` for every `UNLOCK` in the inbox that did not overtake, when lockgate stops serving the
    /// client. Skips those inside a transaction, which are not lock commands. Stops at a command that changes
    /// the meaning of what follows: it never runs, and the `UNLOCK`s behind it would have meant another lock
    /// or another user.
    pub(crate) fn each_unlock(
        &self,
        inbox: &Bytes,
        reader: &Reader<'_>,
        mut run: impl FnMut(&Request),
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
                        _ if transaction || started => {}
                        _ => {
                            let request = reader.request(&scanner, &frame[..]).flatten();
                            request.iter().filter(|it| it.releases()).for_each(&mut run);
                        }
                    }
                }
            }
        }
    }
}

impl Behind {
    fn status(&mut self, inbox: &BytesMut, reader: &Reader<'_>, most: usize) -> bool {
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
                    self.keep(frame, reader);
                }
                // The client gets this error in its turn.
                Err(_) => self.opaque = true,
            }
        }
        self.commands.len() > before
    }

    fn keep(&mut self, frame: &[u8], reader: &Reader<'_>) {
        let kept = match reader.request(&self.scanner, frame) {
            Some(request) => {
                let own = request.as_ref().and_then(Request::whose);
                Kept::Lock {
                    own: own.map(|own| self.hasher.hash_one(own)),
                    request,
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
        mut start: impl FnMut(&Request) -> Option<Pending>,
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
                request: Some(request),
                own,
                started,
            } = kept
            else {
                judged.ordinary |= matches!(kept, Kept::Ordinary);
                continue;
            };
            let (Some(own), Some((its_key, its_token))) = (*own, request.whose()) else {
                continue;
            };
            if returns && started.is_none() {
                if !judged.ordinary && !judged.own.contains(&own) {
                    *started = start(request).map(Box::new);
                    self.returns -= usize::from(started.is_some());
                } else if its_key == key && Some(its_token) != token {
                    tell(its_token);
                }
            }
            // A command that overtook is first at the gate, too.
            if started.is_none() {
                judged.own.insert(own);
            }
        }
        judged.count = self.commands.len();
    }

    /// Records that bytes left the inbox.
    fn passed(&mut self, bytes: usize) {
        self.seen = self.seen.saturating_sub(bytes);
        self.frame_at = self.frame_at.saturating_sub(bytes);
        self.judged = Judged::default();
    }
}

impl Kept {
    /// Returns whether it is an `UNLOCK` or `RELOCK`, or the same in a command of Redis's own.
    fn returns(&self) -> bool {
        let Self::Lock {
            request: Some(request),
            ..
        } = self
        else {
            return false;
        };
        let extends = matches!(
            request,
            Request::Command(Command::Relock { .. })
                | Request::Absorbed(Shape {
                    ask: Ask::Extend { .. },
                    ..
                })
        );
        extends || request.releases()
    }
}

impl Request {
    /// Returns the lock and the token that the request names.
    fn whose(&self) -> Option<(&Bytes, &Token)> {
        match self {
            Self::Command(command) => whose(command),
            Self::Absorbed(Shape { key, ask, .. }) => match ask {
                Ask::Acquire { token, .. } | Ask::Release { token } | Ask::Extend { token, .. } => {
                    Some((key, token))
                }
                Ask::Delete => None,
            },
        }
    }

    /// Returns whether the request releases a lock.
    pub(super) fn releases(&self) -> bool {
        matches!(
            self,
            Self::Command(Command::Unlock { .. })
                | Self::Absorbed(Shape {
                    ask: Ask::Release { .. },
                    ..
                })
        )
    }
}

impl Reader<'_> {
    /// Reads the request of a whole frame that was just scanned. `None`: it is an ordinary command; `Some(None)`: it is
    /// an invalid lock command.
    fn request(&self, scanner: &RequestScanner, frame: &[u8]) -> Option<Option<Request>> {
        if Verb::of(scanner.name()).is_some() {
            let frame = Bytes::copy_from_slice(frame);
            return Some(command_of(&frame, self.bounds).map(Request::Command));
        }
        let rules = self.rules?;
        let count = usize::try_from(scanner.argument_count()).ok()?;
        Shape::key_at(scanner.name(), count)?;
        if frame.len() > LOCK_COMMAND_BYTES {
            return None;
        }
        let command = arguments(&Bytes::copy_from_slice(frame), LOCK_COMMAND_BYTES).ok()?;
        let (_, shape) = recognise(rules, &command, self.database)?;
        // A deletion may concern any token, so nothing overtakes it.
        let shape = shape.filter(|shape| shape.ask != Ask::Delete);
        shape.map(|shape| Some(Request::Absorbed(shape)))
    }
}

/// Parses the frame of a lock command. `None`: it is invalid.
fn command_of(frame: &Bytes, bounds: &Bounds) -> Option<Command> {
    if frame.len() > bounds.command_bytes {
        return None;
    }
    let arguments = arguments(frame, LOCK_COMMAND_ARGUMENTS).ok()?;
    parse(&arguments, bounds).ok()
}

/// Returns the lock and the token that a command names.
fn whose(command: &Command) -> Option<(&Bytes, &Token)> {
    match command {
        Command::Lock { key, token, .. } => token.as_ref().map(|token| (key, token)),
        Command::Unlock { key, token } | Command::Relock { key, token, .. } => Some((key, token)),
        Command::LockInfo { .. } | Command::Locks { .. } => None,
    }
}

/// Returns whether the same bytes may mean something else after this command.
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
