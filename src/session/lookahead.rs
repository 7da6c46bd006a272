//! A scan of the commands that a client sent behind a lock command without a reply.
//!
//! The session keeps these commands, and writes their replies in their order. It starts some of them before their
//! turn, if only lock commands stand before them:
//!
//! - **`UNLOCK` and `RELOCK`**, if none of the commands before it names its key and token. A client that shares one
//!   connection between tasks would lock itself out otherwise: the `UNLOCK` of the holding task stands behind the
//!   `LOCK` of the waiting task.
//! - **`LOCK` and `TRYLOCK`**, if none of the commands before it names its key, and no `LOCK` before it waits. So the
//!   lock commands of one connection travel to Redis together. A connection acquires its locks in the order in which
//!   it sent the commands: where a `LOCK` turns out to wait, the session withdraws the acquisitions behind it, and
//!   starts them again in their turn. Clients that lock several keys in one order stay free of deadlocks.
//!
//! Nothing overtakes ordinary commands: they belong to the critical section. An `UNLOCK` behind one can run only
//! after the `LOCK` is answered. If its token holds the same lock, that is a deadlock, and the queue is notified.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};

use super::absorbing::recognise;
use crate::{
    absorb::{Ask, Rules, Shape},
    command::{Bounds, Command, Verb, parse},
    gate::{Answer, Pending},
    limits::{LOCK_COMMAND_ARGUMENTS, LOCK_COMMAND_BYTES},
    lock::Token,
    resp::{RequestScanner, Step, arguments},
};

/// The kept commands behind the one at the front, in their order. Empty, and without memory, for nearly every
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
    /// Kept `UNLOCK`s and `RELOCK`s that were not started.
    returns: usize,
    /// Kept `LOCK`s and `TRYLOCK`s that were not started, and that were.
    acquisitions: usize,
    started_acquisitions: usize,
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
        /// The hash of its lock, where it is valid.
        lock: Option<u64>,
        /// The hash of its lock and token, where it names both.
        own: Option<u64>,
        /// The reply to a command that was started. It is written in its turn.
        started: Option<Box<Early>>,
    },
}

/// The reply to a command that was started before its turn.
#[derive(Debug)]
pub(crate) enum Early {
    Pending(Pending),
    Answered(Answer),
}

/// A command that was started before its turn, in its turn.
pub(crate) struct Started {
    pub(crate) reply: Early,
    pub(super) request: Option<Request>,
}

/// The command at the front, whose reply is pending.
pub(super) struct AtFront<'a> {
    pub(super) key: &'a [u8],
    pub(super) token: &'a Token,
    /// No acquisition behind it starts before its reply.
    pub(super) holds_up: bool,
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

/// The decisions on which commands may start before their turn. Each is made once, however many commands arrive: the
/// commands before it change only when the one at the front does.
///
/// The hashes are keyed and have 64 bits: a collision only preserves the order of two commands.
#[derive(Debug, Default)]
struct Judged {
    /// Number of kept commands judged.
    count: usize,
    /// Hashes of the lock and token of the command at the front and of those judged commands that a release or an
    /// extension must not overtake.
    own: HashSet<u64>,
    /// Hashes of the locks of the command at the front and of the judged commands.
    locks: HashSet<u64>,
    /// An ordinary command is among the judged ones.
    ordinary: bool,
    /// An acquisition among the judged commands did not start, so none behind it does.
    holds_up: bool,
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

    /// Starts the commands that may start before the reply to the command at the front, and calls `tell` for each
    /// `UNLOCK` of the same lock that may not. `anew`: the command has just come to the front.
    pub(crate) fn overtake(
        &mut self,
        front: &AtFront<'_>,
        anew: bool,
        start: impl FnMut(&Request) -> Option<Pending>,
        tell: impl FnMut(&Token),
    ) {
        if let Some(behind) = &mut self.0 {
            if anew {
                behind.judged = Judged::default();
            }
            behind.overtake(front, start, tell);
        }
    }

    /// Polls the acquisitions that were started. Returns whether one of them is answered.
    pub(crate) fn poll_acquisitions(&mut self, cx: &mut Context<'_>) -> bool {
        self.0
            .as_mut()
            .is_some_and(|behind| behind.poll_acquisitions(cx))
    }

    /// Withdraws the acquisitions that were started: the `LOCK` at the front waits. What was granted is taken back.
    pub(crate) fn withdraw_acquisitions(&mut self) {
        if let Some(behind) = &mut self.0 {
            behind.withdraw_acquisitions();
        }
    }

    /// Advances to the client's next command, which has `frame_bytes` bytes. Returns it if it was started.
    pub(crate) fn turn(&mut self, frame_bytes: usize) -> Option<Started> {
        let behind = self.0.as_mut()?;
        let kept = behind.commands.pop_front();
        behind.passed(frame_bytes);
        let started = kept.and_then(|kept| behind.count_out(kept));
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
                let hash = |it: &Request| {
                    let own = it.whose().map(|own| self.hasher.hash_one(own));
                    (it.key().map(|key| self.hasher.hash_one(key)), own)
                };
                let (lock, own) = request.as_ref().map_or((None, None), hash);
                Kept::Lock {
                    lock,
                    own,
                    request,
                    started: None,
                }
            }
            None => {
                self.opaque = changes_what_follows(self.scanner.name());
                Kept::Ordinary
            }
        };
        match kept.kind() {
            Some(Kind::Return) => self.returns += 1,
            Some(Kind::Acquisition) => self.acquisitions += 1,
            None => {}
        }
        self.commands.push_back(kept);
    }

    /// Removes a command that left from the counts. Returns it if it was started.
    fn count_out(&mut self, kept: Kept) -> Option<Started> {
        let kind = kept.kind();
        let (request, started) = match kept {
            Kept::Ordinary => return None,
            Kept::Lock {
                request, started, ..
            } => (request, started),
        };
        let count = match (kind, &started) {
            (Some(Kind::Acquisition), Some(_)) => &mut self.started_acquisitions,
            (Some(Kind::Acquisition), None) => &mut self.acquisitions,
            (Some(Kind::Return), None) => &mut self.returns,
            (Some(Kind::Return), Some(_)) | (None, _) => &mut 0,
        };
        *count = count.saturating_sub(1);
        started.map(|reply| Started {
            reply: *reply,
            request,
        })
    }

    fn overtake(
        &mut self,
        front: &AtFront<'_>,
        mut start: impl FnMut(&Request) -> Option<Pending>,
        mut tell: impl FnMut(&Token),
    ) {
        if self.returns == 0 && (self.acquisitions == 0 || front.holds_up) {
            return;
        }
        let judged = &mut self.judged;
        judged
            .own
            .insert(self.hasher.hash_one((front.key, front.token)));
        judged.locks.insert(self.hasher.hash_one(front.key));
        judged.holds_up |= front.holds_up;
        for kept in self.commands.range_mut(judged.count..) {
            if self.returns == 0 && (self.acquisitions == 0 || judged.holds_up) {
                return;
            }
            judged.count += 1;
            let kind = kept.kind();
            let Kept::Lock {
                request: Some(request),
                lock,
                own,
                started,
            } = kept
            else {
                judged.ordinary |= matches!(kept, Kept::Ordinary);
                continue;
            };
            let is_first = lock.is_none_or(|lock| judged.locks.insert(lock));
            let owns_first = own.is_none_or(|own| !judged.own.contains(&own));
            match kind {
                Some(Kind::Return) if started.is_none() => {
                    if !judged.ordinary && owns_first {
                        *started = start(request).map(|it| Box::new(Early::Pending(it)));
                        self.returns -= usize::from(started.is_some());
                    } else if let Some((key, token)) = request.whose()
                        && key == front.key
                        && token != front.token
                    {
                        tell(token);
                    }
                }
                Some(Kind::Acquisition) if started.is_none() => {
                    if !judged.ordinary && !judged.holds_up && is_first {
                        *started = start(request).map(|it| Box::new(Early::Pending(it)));
                        self.started_acquisitions += usize::from(started.is_some());
                        self.acquisitions -= usize::from(started.is_some());
                    }
                    judged.holds_up |= match started.as_deref() {
                        Some(Early::Pending(pending)) => pending.is_queued(),
                        Some(Early::Answered(_)) => false,
                        None => true,
                    };
                }
                Some(_) => {}
                // It shows the state of its own lock alone.
                None if matches!(request, Request::Command(Command::LockInfo { .. })) => {}
                None => judged.holds_up = true,
            }
            // A release or an extension that was started is first at the gate, too.
            if kind != Some(Kind::Return) || started.is_none() {
                judged.own.extend(*own);
            }
        }
    }

    fn poll_acquisitions(&mut self, cx: &mut Context<'_>) -> bool {
        if self.started_acquisitions == 0 {
            return false;
        }
        let mut answered = false;
        for kept in &mut self.commands {
            if let Some(early) = kept.started_acquisition() {
                if let Early::Pending(pending) = &mut **early
                    && let Poll::Ready(answer) = Pin::new(pending).poll(cx)
                {
                    **early = Early::Answered(answer);
                }
                answered |= matches!(**early, Early::Answered(_));
            }
        }
        answered
    }

    fn withdraw_acquisitions(&mut self) {
        self.judged.holds_up = true;
        self.acquisitions += std::mem::take(&mut self.started_acquisitions);
        for kept in &mut self.commands {
            if kept.started_acquisition().is_some()
                && let Kept::Lock { started, .. } = kept
            {
                *started = None;
            }
        }
    }

    /// Records that bytes left the inbox.
    fn passed(&mut self, bytes: usize) {
        self.seen = self.seen.saturating_sub(bytes);
        self.frame_at = self.frame_at.saturating_sub(bytes);
        self.judged = Judged::default();
    }
}

/// What a kept command does with its lock, if it may start before its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `UNLOCK` or `RELOCK`, or the same in a command of Redis's own.
    Return,
    /// `LOCK` or `TRYLOCK`, without `SESSION`.
    Acquisition,
}

impl Kept {
    fn kind(&self) -> Option<Kind> {
        let Self::Lock {
            request: Some(request),
            ..
        } = self
        else {
            return None;
        };
        match request {
            Request::Command(Command::Unlock { .. } | Command::Relock { .. }) => Some(Kind::Return),
            Request::Command(Command::Lock { session: false, .. }) => Some(Kind::Acquisition),
            Request::Absorbed(Shape {
                ask: Ask::Release { .. } | Ask::Extend { .. },
                ..
            }) => Some(Kind::Return),
            _ => None,
        }
    }

    /// Returns the reply to an acquisition that was started.
    fn started_acquisition(&mut self) -> Option<&mut Box<Early>> {
        if self.kind() != Some(Kind::Acquisition) {
            return None;
        }
        match self {
            Self::Lock { started, .. } => started.as_mut(),
            Self::Ordinary => None,
        }
    }
}

impl Request {
    /// Returns the lock that the request names.
    fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Command(command) => command.key(),
            Self::Absorbed(shape) => Some(&shape.key),
        }
    }

    /// Returns the lock and the token that the request names.
    fn whose(&self) -> Option<(&[u8], &Token)> {
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

    /// Returns whether it is a `LOCK`.
    pub(super) fn waits(&self) -> bool {
        matches!(
            self,
            Self::Command(Command::Lock {
                try_only: false,
                ..
            })
        )
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
fn whose(command: &Command) -> Option<(&[u8], &Token)> {
    match command {
        Command::Lock { key, token, .. } => token.as_ref().map(|token| (&key[..], token)),
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
