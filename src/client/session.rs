//! One connected client: reads, dispatches, answers in order.
//!
//! Ordinary commands pass to Redis as they come ([`Relay`]), or are answered here where there is no
//! Redis ([`Local`]). A lock command has its turn when everything before it is answered, and what
//! comes after it has its turn when it is answered. So at any time one thing stands at the front of
//! the connection, its [`Turn`]. While that is a `LOCK` that waits, what the client sends meanwhile
//! is kept in the inbox, up to a limit, and looked at ([`Ahead`]): some of it may overtake.
//!
//! The session is one task. It moves bytes and turns as far as it can whenever something happened,
//! both ways at once (reading must never wait for writing, or two full buffers deadlock), and a
//! side whose buffer is full is not read for.
//!
//! A client that closes while its `LOCK` waits is noticed at once. What stands behind that `LOCK` is
//! dropped, as Redis does for a blocked client, but every `UNLOCK` runs; everything else that the
//! client sent before it closed runs.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{net::TcpStream, time::Sleep};
use tracing::warn;

use super::{
    Shared,
    ahead::Ahead,
    answer,
    back::Back,
    command::{Command, Verb, parse},
    held::Held,
    pipe::Pipe,
    relay::Broken,
};
use crate::{
    error::{self, SHUTDOWN},
    gate::{self, Answer, Grant, Info, Pending, Wish},
    limits::{
        LEAST_BUFFER_BYTES, LINE_BYTES, LOCK_COMMAND_ARGUMENTS, LOCK_COMMAND_BYTES, TOKEN_BYTES,
    },
    lock::{Refusal, Token},
    resp::{Protocol, RequestScanner, Step, arguments},
    store::{Later, LockName},
};

/// How often to look whether a client that is not read from has closed.
const LOOK_FOR_CLOSE: Duration = Duration::from_millis(50);

/// How long what a client sent before it closed may take.
const LINGER: Duration = Duration::from_secs(10);

/// One connected client.
pub(super) struct Session {
    shared: Arc<Shared>,
    who: gate::Client,
    client: Pipe,
    back: Back,
    scanner: RequestScanner,
    /// Bytes at the front of the inbox that go to Redis.
    passing: usize,
    /// Bytes of the inbox that were scanned.
    scanned: usize,
    frame: Frame,
    turn: Turn,
    ahead: Ahead,
    /// A grant whose reply is being written.
    delivering: Option<Grant>,
    /// Grants to a client that closed: they hold while what it sent behind them runs.
    late: Vec<Grant>,
    /// No reply can reach the client.
    mute: bool,
    /// Nothing more is done for the client but to write what is in its outbox.
    closing: bool,
    /// The client closed the connection, or asked for that (`QUIT`).
    left: bool,
    /// The gate shuts down: what runs is finished, nothing is begun.
    draining: bool,
    /// The leases bound to this connection.
    held: Held,
    /// The lock command that runs gets no reply (`CLIENT REPLY OFF` or `SKIP`).
    silent: bool,
    /// When to look whether a client that is not read from has closed.
    watch: Option<Pin<Box<Sleep>>>,
    /// When to give up what still runs for a client that closed.
    linger: Option<Pin<Box<Sleep>>>,
}

/// What is known of the frame being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// Not even its name.
    Unnamed,
    Ordinary,
    Lock,
    /// Longer than what is kept whole: it is passed over, and refused at its end.
    Excess,
}

/// What stands at the front of the connection.
enum Turn {
    /// The next command of the inbox.
    Open,
    /// A lock command, once everything before it is answered.
    Next(Bytes),
    /// A lock command at the gate.
    Running(Running),
    /// `LOCKINFO`.
    Looking(Later<Result<Info, Bytes>>),
    /// A lock command that was answered; the reply is to be written.
    Answered(Answer),
    /// A command that is refused, once everything before it is answered.
    Refusing(String),
    /// An error to close with, once everything before it is answered.
    Failing(String),
}

struct Running {
    pending: Pending,
    /// Where it is a `LOCK`: it may wait.
    waiting: Option<Waiting>,
}

struct Waiting {
    key: Bytes,
    token: Option<Token>,
    /// What was behind it when it began to wait has been looked at.
    looked: bool,
    /// It was told that its client has closed.
    stopped: bool,
}

impl Session {
    pub(super) fn new(
        shared: Arc<Shared>,
        stream: TcpStream,
        peer: &str,
        id: u64,
    ) -> std::io::Result<Self> {
        let back = Back::new(&shared, &stream, peer, id);
        let client = Pipe::new(stream)?;
        client.probe_after(shared.tcp_keepalive)?;
        Ok(Self {
            who: gate::Client {
                user: shared.user,
                label: Arc::from(peer),
            },
            client,
            back,
            shared,
            scanner: RequestScanner::new(),
            passing: 0,
            scanned: 0,
            frame: Frame::Unnamed,
            turn: Turn::Open,
            ahead: Ahead::new(),
            delivering: None,
            late: Vec::new(),
            mute: false,
            closing: false,
            left: false,
            draining: false,
            held: Held::default(),
            silent: false,
            watch: None,
            linger: None,
        })
    }

    /// Goes on until the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut moved = self.read(cx);
            moved |= self.go_on(cx);
            moved |= self.exchange(cx);
            moved |= self.write(cx);
            moved |= self.look_for_close(cx);
            moved |= self.tell_lost(cx);
            if self.is_over() {
                if self.left {
                    self.held.release();
                }
                return Poll::Ready(());
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// The gate shuts down: who waits is told, and who holds a lock bound to this connection; what
    /// runs is finished. A client that could be told of its locks may release them still.
    pub(super) fn drain(&mut self) {
        self.draining = true;
        if self.held.any() && self.may_push() {
            self.held.tell_all(&mut self.client.outbox);
            if self.is_waiting() {
                self.turn = Turn::Refusing(SHUTDOWN.to_owned());
            }
            return;
        }
        self.end();
    }

    /// Nothing more is read from the client.
    fn end(&mut self) {
        if self.is_waiting() {
            self.turn = Turn::Failing(SHUTDOWN.to_owned());
        } else {
            self.closing |= matches!(self.turn, Turn::Open) && self.back.is_settled();
        }
        self.client.ended = true;
    }

    fn is_waiting(&self) -> bool {
        matches!(&self.turn, Turn::Running(running) if running.waiting.is_some())
    }

    fn is_over(&self) -> bool {
        if self.closing {
            return self.mute || self.client.outbox.is_empty();
        }
        let written = self.mute || self.client.outbox.is_empty();
        self.client.ended && self.is_done() && self.back.is_over() && written
    }

    /// Everything that was read has had its turn.
    fn is_done(&self) -> bool {
        matches!(self.turn, Turn::Open) && self.scanned == self.client.inbox.len()
    }

    // ── the client's bytes ───────────────────────────────────────────────────────────────────

    fn reads(&self) -> bool {
        let most = match self.turn {
            // Until its name is known a frame is kept, and the longest line is an inline command's.
            Turn::Open => LINE_BYTES + LEAST_BUFFER_BYTES,
            _ => self.shared.limits.kept_bytes,
        };
        !self.closing
            && !self.client.ended
            && self.client.inbox.len() < most
            && self.ahead.len() < self.shared.limits.kept_commands
    }

    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.reads() {
            return false;
        }
        let read = self
            .client
            .poll_read(cx, |client, bytes| client.inbox.extend_from_slice(bytes));
        if let Poll::Ready(Err(_)) = read {
            self.mute();
        }
        self.left |= self.client.ended;
        read.is_ready()
    }

    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        if self.mute {
            self.client.outbox.clear();
            return false;
        }
        let before = self.client.outbox.len();
        match self.client.poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                if let Some(bound) = self.delivering.take().and_then(Grant::delivered) {
                    self.held.add(bound);
                }
                before > 0
            }
            Poll::Ready(Err(_)) => {
                self.mute();
                true
            }
            Poll::Pending => self.client.outbox.len() < before,
        }
    }

    /// The client's socket is broken: a grant being written did not reach it.
    fn mute(&mut self) {
        self.mute = true;
        self.left = true;
        self.client.ended = true;
        self.delivering = None;
    }

    /// A client that is not read from may have closed all the same; one that closed is not served
    /// for ever.
    fn look_for_close(&mut self, cx: &mut Context<'_>) -> bool {
        if self.client.ended || self.closing {
            let linger = self
                .linger
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
            if linger.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.abandon();
            self.mute();
            self.closing = true;
            return true;
        }
        if self.reads() || matches!(self.turn, Turn::Open) {
            self.watch = None;
            return false;
        }
        let watch = self
            .watch
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_FOR_CLOSE)));
        if watch.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.watch = None;
        self.client.ended = self.client.is_closed_behind_unread();
        self.left |= self.client.ended;
        true
    }

    /// The client is told of the locks that it lost: by a push, or by the end of its connection.
    fn tell_lost(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closing {
            return false;
        }
        if self.held.read_mail(cx) {
            if self.back.protocol() == Protocol::Resp3 && !self.back.is_plain_pipe() {
                // In the middle of a reply it has to wait.
                if !self.may_push() {
                    return false;
                }
                self.held.tell_lost(&mut self.client.outbox);
            } else {
                self.abandon();
                self.closing = true;
            }
            return true;
        }
        if self.draining && !self.client.ended && !self.held.any() && self.delivering.is_none() {
            self.end();
            return true;
        }
        false
    }

    fn may_push(&self) -> bool {
        self.back.protocol() == Protocol::Resp3
            && !self.back.is_plain_pipe()
            && self.back.is_between_replies()
    }

    // ── Redis, or what stands for it ─────────────────────────────────────────────────────────

    fn exchange(&mut self, cx: &mut Context<'_>) -> bool {
        if self.client.ended && self.is_done() {
            self.back.close_writing();
        }
        let most = self.shared.limits.relay_bytes;
        match self.back.poll(cx, &mut self.client.outbox, most) {
            Ok(moved) => {
                if self.back.has_ended() && !self.closing {
                    self.abandon();
                    self.closing = true;
                    return true;
                }
                moved
            }
            Err(broken) => {
                match &broken {
                    Broken::Unreachable(error) => answer::error(
                        &mut self.client.outbox,
                        self.back.protocol(),
                        &self.shared.unreachable(error),
                    ),
                    Broken::Uncountable(error) => {
                        warn!(client = %self.who.label, %error, "closing a client's connection");
                    }
                }
                self.abandon();
                self.closing = true;
                true
            }
        }
    }

    // ── turns ────────────────────────────────────────────────────────────────────────────────

    /// Takes turns as far as they go. Returns whether there was any.
    fn go_on(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !self.closing && self.take_turn(cx) {
            moved = true;
        }
        moved
    }

    fn take_turn(&mut self, cx: &mut Context<'_>) -> bool {
        match std::mem::replace(&mut self.turn, Turn::Open) {
            Turn::Open => self.dispatch(),
            Turn::Next(frame) => {
                if !self.back.is_settled() {
                    return self.stay(Turn::Next(frame));
                }
                self.begin(frame);
                true
            }
            Turn::Running(running) => self.await_gate(cx, running),
            Turn::Looking(mut look) => match look.as_mut().poll(cx) {
                Poll::Ready(info) => {
                    self.write_answer(|out, protocol| answer::info(out, protocol, info))
                }
                Poll::Pending => self.stay(Turn::Looking(look)),
            },
            Turn::Answered(answer) => self.answer(answer),
            Turn::Refusing(text) => {
                if !self.back.is_settled() {
                    return self.stay(Turn::Refusing(text));
                }
                self.silent = self.back.silences();
                self.write_answer(|out, protocol| answer::error(out, protocol, &text))
            }
            Turn::Failing(text) => {
                if !self.back.is_settled() {
                    return self.stay(Turn::Failing(text));
                }
                answer::error(&mut self.client.outbox, self.back.protocol(), &text);
                self.closing = true;
                true
            }
        }
    }

    fn stay(&mut self, turn: Turn) -> bool {
        self.turn = turn;
        false
    }

    /// Reads on in the inbox: ordinary commands pass, a lock command has the next turn.
    fn dispatch(&mut self) -> bool {
        let before = self.client.inbox.len() - self.scanned;
        while matches!(self.turn, Turn::Open)
            && self.scanned < self.client.inbox.len()
            && self.has_room()
        {
            if self.back.is_plain_pipe() {
                self.scanned = self.client.inbox.len();
                self.passing = self.scanned;
                break;
            }
            let (count, step) = self.scanner.scan(&self.client.inbox[self.scanned..]);
            self.scanned += count;
            match step {
                Ok(step) => self.step(step),
                Err(error) => self.fail(format!("ERR {error}")),
            }
        }
        self.pass_on();
        self.client.inbox.len() - self.scanned < before
    }

    fn has_room(&self) -> bool {
        let most = self.shared.limits.relay_bytes;
        self.back.backlog() + self.passing < most
            && self.client.outbox.len() < most
            && self.back.has_room()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::More => {}
            Step::Named if self.frame != Frame::Unnamed => {}
            Step::Named => {
                let is_lock = Verb::of(self.scanner.name()).is_some();
                self.frame = if is_lock {
                    Frame::Lock
                } else {
                    Frame::Ordinary
                };
            }
            Step::Blank => return self.blank(),
            Step::End => {
                return match std::mem::replace(&mut self.frame, Frame::Unnamed) {
                    Frame::Lock => self.lock_command(),
                    Frame::Unnamed | Frame::Ordinary => self.ordinary_command(),
                    Frame::Excess => self.excess(),
                };
            }
        }
        let is_long = self.scanned - self.passing > LOCK_COMMAND_BYTES;
        match self.frame {
            // So long a name or line is no lock command.
            Frame::Unnamed if is_long => self.frame = Frame::Ordinary,
            Frame::Ordinary if self.back.streams() => self.passing = self.scanned,
            Frame::Ordinary | Frame::Lock if is_long => self.frame = Frame::Excess,
            Frame::Excess => drop(self.take_frame()),
            _ => {}
        }
    }

    fn excess(&mut self) {
        self.take_frame();
        self.ahead.turn(self.frame_bytes());
        let what = if self.back.streams() {
            "a lock command"
        } else {
            "without a Redis a command"
        };
        self.turn = Turn::Refusing(format!("ERR {what} has {LOCK_COMMAND_BYTES} bytes at most"));
    }

    /// The front of the inbox up to the frame being read goes to Redis.
    fn pass_on(&mut self) {
        if self.passing > 0 {
            self.back.pass_on(&mut self.client.inbox, self.passing);
            self.scanned -= self.passing;
            self.passing = 0;
        }
    }

    /// Takes the frame just read out of the inbox.
    fn take_frame(&mut self) -> Bytes {
        self.pass_on();
        let frame = self.client.inbox.split_to(self.scanned).freeze();
        self.scanned = 0;
        if self.client.inbox.is_empty() {
            self.client.inbox = BytesMut::new();
        }
        frame
    }

    fn blank(&mut self) {
        self.ahead.passed_blank(self.scanned - self.passing);
        if self.back.streams() && self.back.is_used() {
            self.passing = self.scanned;
            if let Err(error) = self.back.sent_blank() {
                self.fail(format!("ERR {error}"));
            }
        } else {
            self.take_frame();
        }
    }

    fn frame_bytes(&self) -> usize {
        usize::try_from(self.scanner.frame_bytes()).unwrap_or(usize::MAX)
    }

    fn ordinary_command(&mut self) {
        self.left |= self.scanner.name().eq_ignore_ascii_case(b"QUIT");
        self.ahead.turn(self.frame_bytes());
        if self.back.streams() {
            self.passing = self.scanned;
            if let Err(error) = self.back.sent(&self.scanner) {
                self.fail(format!("ERR {error}"));
            }
            return;
        }
        let frame = self.take_frame();
        match arguments(&frame, LOCK_COMMAND_BYTES) {
            Ok(arguments) => {
                self.closing |= self
                    .back
                    .answer(&arguments, &mut self.client.outbox, &self.shared);
            }
            Err(error) => self.fail(format!("ERR {error}")),
        }
    }

    fn lock_command(&mut self) {
        let frame = self.take_frame();
        self.turn = match self.ahead.turn(frame.len()) {
            // It overtook: its answer is there, or on its way.
            Some(pending) => Turn::Running(Running {
                pending,
                waiting: None,
            }),
            None => Turn::Next(frame),
        };
    }

    fn fail(&mut self, text: String) {
        self.pass_on();
        self.client.inbox.clear();
        self.scanned = 0;
        self.turn = Turn::Failing(text);
    }

    // ── lock commands ────────────────────────────────────────────────────────────────────────

    /// A lock command has its turn.
    fn begin(&mut self, frame: Bytes) {
        if self.back.takes_lock_commands() {
            // In a transaction and in subscribed mode Redis answers, as to an unknown command.
            let count = frame.len();
            let sent = self.back.sent(&self.scanner);
            self.back.pass_on(&mut BytesMut::from(frame), count);
            if let Err(error) = sent {
                self.fail(format!("ERR {error}"));
            }
            return;
        }
        self.silent = self.back.silences();
        if let Err(text) = self.run(&frame) {
            self.write_answer(|out, protocol| answer::error(out, protocol, &text));
        }
    }

    fn run(&mut self, frame: &Bytes) -> Result<(), String> {
        self.back.may_lock(&self.shared)?;
        let arguments =
            arguments(frame, LOCK_COMMAND_ARGUMENTS).map_err(|_| "ERR syntax error".to_owned())?;
        let command = parse(&arguments, &self.shared.bounds).map_err(|error| error.to_string())?;
        if let Command::Lock { key, .. } = &command {
            if self.draining {
                return Err(SHUTDOWN.to_owned());
            }
            if self.shared.gate.is_reserved(&self.name(key.clone())) {
                return Err(error::RESERVED.to_owned());
            }
        }
        self.turn = match command {
            Command::Lock { .. } => self.lock(command),
            Command::Unlock { .. } | Command::Relock { .. } => match self.start(&command) {
                Some(pending) => Turn::Running(Running {
                    pending,
                    waiting: None,
                }),
                None => Turn::Answered(Answer::NotHeld),
            },
            Command::LockInfo { key } => {
                let name = self.name(key);
                let gate = Arc::clone(&self.shared.gate);
                Turn::Looking(Box::pin(gate.info(self.who.clone(), name)))
            }
            Command::Locks { pattern, count } => {
                let names = self.shared.locks(self.back.database(), pattern, count);
                self.write_answer(|out, protocol| answer::locks(out, protocol, &names));
                Turn::Open
            }
        };
        Ok(())
    }

    fn lock(&mut self, command: Command) -> Turn {
        let Command::Lock {
            key,
            token,
            lease_ms,
            wait_ms,
            try_only,
            fence,
            session,
        } = command
        else {
            return Turn::Open;
        };
        let lease_ms = lease_ms.unwrap_or(self.shared.default_lease_ms);
        let wish = Wish {
            token: token.clone(),
            lease_ms,
            wait_ms,
            try_only,
            fence,
            session: session.then(|| self.held.mailbox()),
        };
        let pending = self
            .shared
            .gate
            .lock(&self.who, self.name(key.clone()), &wish);
        let waiting = (!try_only).then_some(Waiting {
            key,
            token,
            looked: false,
            stopped: false,
        });
        Turn::Running(Running { pending, waiting })
    }

    /// Starts an `UNLOCK` or `RELOCK`. None: its token cannot be one, so it holds nothing.
    fn start(&self, command: &Command) -> Option<Pending> {
        let gate = &self.shared.gate;
        match command {
            Command::Unlock { key, token } if self.may_hold(key, token) => {
                Some(gate.unlock(&self.who, self.name(key.clone()), token.clone()))
            }
            Command::Relock {
                key,
                token,
                lease_ms,
            } if self.may_hold(key, token) => {
                let lease_ms = lease_ms.unwrap_or(self.shared.default_lease_ms);
                Some(gate.relock(&self.who, self.name(key.clone()), token.clone(), lease_ms))
            }
            _ => None,
        }
    }

    /// The token can be one that a lock of that name was granted to.
    fn may_hold(&self, key: &Bytes, token: &Token) -> bool {
        (1..=TOKEN_BYTES).contains(&token.as_bytes().len())
            && !self.shared.gate.is_reserved(&self.name(key.clone()))
    }

    fn name(&self, key: Bytes) -> LockName {
        LockName {
            database: self.back.database(),
            key,
        }
    }

    fn await_gate(&mut self, cx: &mut Context<'_>, mut running: Running) -> bool {
        if let Poll::Ready(answer) = Pin::new(&mut running.pending).poll(cx) {
            let waited = running.waiting.is_some();
            if self.client.ended && waited && !matches!(answer, Answer::Granted(_)) {
                self.abandon();
            } else {
                self.turn = Turn::Answered(answer);
            }
            return true;
        }
        let mut moved = false;
        if let Some(waiting) = &mut running.waiting {
            moved = self.ahead.look(
                &self.client.inbox,
                &self.shared.bounds,
                self.shared.limits.kept_commands,
            );
            if moved || !waiting.looked {
                waiting.looked = true;
                let mut ahead = std::mem::replace(&mut self.ahead, Ahead::new());
                ahead.overtake(
                    &waiting.key,
                    waiting.token.as_ref(),
                    |command| self.start(command),
                    |token| running.pending.unlock_behind(token.clone()),
                );
                self.ahead = ahead;
            }
            if self.client.ended && !waiting.stopped {
                waiting.stopped = true;
                running.pending.stop_waiting();
                moved = true;
            }
        }
        self.turn = Turn::Running(running);
        // The answer may have come meanwhile; if not, nothing is done twice.
        moved
    }

    /// Writes the answer to a lock command. It may not come in the middle of what Redis says.
    fn answer(&mut self, answer: Answer) -> bool {
        let busy = self.delivering.is_some() || !self.client.outbox.is_empty();
        let is_grant = matches!(answer, Answer::Granted(_));
        if !self.mute && (!self.back.is_between_replies() || (is_grant && busy)) {
            return self.stay(Turn::Answered(answer));
        }
        match answer {
            Answer::Granted(grant) if grant.is_over() => {
                self.write_answer(|out, protocol| answer::refusal(out, protocol, &Refusal::Expired))
            }
            Answer::Granted(grant) => {
                self.write_answer(|out, protocol| answer::granted(out, protocol, &grant));
                // From here on its lease may end while it is on its way, as with Redis itself.
                if self.client.ended {
                    self.late.push(grant);
                } else {
                    self.delivering = Some(grant);
                }
                true
            }
            Answer::Nil => self.write_answer(answer::nil),
            Answer::Done => self.write_answer(|out, protocol| answer::number(out, protocol, 1)),
            Answer::NotHeld => self.write_answer(|out, protocol| answer::number(out, protocol, 0)),
            Answer::Refused(refusal) => {
                self.write_answer(|out, protocol| answer::refusal(out, protocol, &refusal))
            }
        }
    }

    /// The reply to the lock command that has its turn, unless the client wants none.
    fn write_answer(&mut self, write: impl FnOnce(&mut BytesMut, Protocol)) -> bool {
        let protocol = self.back.protocol();
        if std::mem::take(&mut self.silent) {
            write(&mut BytesMut::new(), protocol);
        } else {
            write(&mut self.client.outbox, protocol);
        }
        true
    }

    /// The client left a `LOCK` that waited, or cannot be served any longer: what it sent behind it
    /// is dropped, but for every `UNLOCK`.
    fn abandon(&mut self) {
        let turn = std::mem::replace(&mut self.turn, Turn::Open);
        let ahead = std::mem::replace(&mut self.ahead, Ahead::new());
        let rest = std::mem::take(&mut self.client.inbox).freeze();
        self.client.ended = true;
        (self.scanned, self.passing) = (0, 0);
        let run = |command: &Command| drop(self.start(command));
        if let Turn::Next(frame) = &turn {
            Ahead::new().each_unlock(frame, &self.shared.bounds, run);
        }
        // In the middle of an ordinary command nothing can be told.
        if self.frame != Frame::Ordinary {
            ahead.each_unlock(&rest, &self.shared.bounds, run);
        }
        self.frame = Frame::Unnamed;
    }
}
