//! One connected client: reads, dispatches, answers in order.
//!
//! Ordinary commands pass to Redis as they come ([`Relay`]), or are answered here where there is no
//! Redis ([`Local`]). A lock command has its turn when everything before it is answered, and what
//! comes after it has its turn when it is answered. So at any time one thing stands at the front of
//! the connection, its [`Turn`]. While that is a `LOCK` that waits, what the client sends meanwhile
//! is kept in the inbox, up to a limit, and looked at ([`Ahead`]): some of it may overtake.
//!
//! The session is one task. Whenever something happened it moves bytes and turns, round by round, as far
//! as it can, both ways at once (reading must never wait for writing, or two full buffers deadlock), and a
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

use bytes::Bytes;
use tokio::time::Sleep;
use tracing::warn;

use super::{
    Shared,
    ahead::Ahead,
    answer,
    back::Back,
    budget::Share,
    held::Held,
    idle::Idle,
    pipe::{Pipe, with_space},
    relay::Broken,
};
use crate::{
    error::SHUTDOWN,
    gate::{self, Answer, Grant, Info, Label, Pending},
    limits::{LEAST_BUFFER_BYTES, LINE_BYTES},
    lock::{Time, Token, UserId},
    resp::{Protocol, RequestScanner},
    store::Later,
    transport::stream::Stream,
};

mod admission;
mod delivering;
mod entering;
mod locking;
mod passing;
mod unread;

use admission::{Admitted, AtDoor};
use delivering::Delivering;
use unread::Starved;

/// How often to look whether a client that is not read from has closed.
const LOOK_FOR_CLOSE: Duration = Duration::from_millis(50);

/// How long what a client sent before it closed may take, counted anew whenever it takes some of what
/// is written for it.
const LINGER: Duration = Duration::from_secs(10);

/// One connected client.
pub(super) struct Session {
    shared: Arc<Shared>,
    who: gate::Client,
    admitted: Option<Admitted>,
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
    /// Grants whose replies are being written.
    delivering: Delivering,
    /// What is kept of replies that the client has not read, beyond `limits.relay_bytes`.
    share: Share,
    /// More would have to be kept than may be.
    starved: Option<Starved>,
    /// Grants to a client that closed: they hold while what it sent behind them runs.
    late: Vec<Grant>,
    /// No reply can reach the client.
    mute: bool,
    /// Nothing more is done for the client but to write what is in its outbox.
    closing: bool,
    /// That ends with an error that the client is to read, though it may still be sending.
    has_last_word: bool,
    /// The client closed the connection, or asked for that (`QUIT`).
    left: bool,
    /// The gate shuts down: what runs is finished, nothing is begun.
    draining: bool,
    /// The leases bound to this connection.
    held: Held,
    /// The lock command that runs gets no reply (`CLIENT REPLY OFF` or `SKIP`).
    silent: bool,
    /// When the lock command came that begins, where it had to wait for that.
    came_at: Option<Time>,
    /// When to look whether a client that is not read from has closed.
    watch: Option<Pin<Box<Sleep>>>,
    /// When to give up what still runs for a client that closed.
    linger: Option<Pin<Box<Sleep>>>,
    /// How long nothing was heard of the client, where that has a limit.
    idle: Option<Box<Idle>>,
    /// It asked for much: before it gets more, others have their turn.
    yields: bool,
    /// It is not read from because of what is kept behind a `LOCK`.
    kept_full: bool,
    /// One side is not read from because of what waits for the other.
    relay_full: bool,
}

/// What is known of the frame being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// Not even its name.
    Unnamed,
    Ordinary,
    Lock,
    /// An ordinary one that is read whole before it is passed on.
    Kept,
    /// For the guard: read whole.
    Login,
    /// Of a client that is not in: it is passed over, and refused at its end.
    Barred,
    /// Longer than what is kept whole: it is passed over, and refused at its end.
    Excess,
}

/// What stands at the front of the connection.
enum Turn {
    /// The next command of the inbox.
    Open,
    /// A lock command, or one that may make this a plain pipe, once everything before it is answered.
    Next(Bytes),
    /// The next command, once everything before it is answered.
    Settling,
    /// A lock command of a client that may have to authenticate first.
    AtDoor(AtDoor),
    /// A lock command at the gate.
    Running(Running),
    /// `LOCKINFO`.
    Looking(Later<Result<Info, Bytes>>),
    /// `LOCKS`, with its pattern and its count, of a client that may not know names.
    Listing(Later<Result<(), Bytes>>, Option<Bytes>, Option<usize>),
    /// A lock command that was answered; the reply is to be written.
    Answered(Answer),
    /// A command that is refused, once everything before it is answered.
    Refusing(String),
    /// An error to close with, once everything before it is answered.
    Failing(String),
    /// The end, without a word, once everything before it is answered.
    Dropping,
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
        stream: Stream,
        peer: &str,
        id: u64,
    ) -> std::io::Result<Self> {
        let back = Back::new(&shared, &stream, peer, id);
        stream.probe_after(shared.tcp_keepalive)?;
        let client = Pipe::new(stream)?;
        let idle = Idle::new(shared.idle_timeout);
        Ok(Self {
            who: gate::Client {
                user: UserId::ANONYMOUS,
                label: Arc::new(Label::of(peer)),
            },
            admitted: None,
            client,
            back,
            scanner: RequestScanner::new(),
            passing: 0,
            scanned: 0,
            frame: Frame::Unnamed,
            turn: Turn::Open,
            ahead: Ahead::default(),
            delivering: Delivering::default(),
            share: Share::none_of(Arc::clone(&shared.budget)),
            starved: None,
            late: Vec::new(),
            mute: false,
            closing: false,
            has_last_word: false,
            left: false,
            draining: false,
            held: Held::default(),
            silent: false,
            came_at: None,
            watch: None,
            linger: None,
            idle,
            yields: false,
            kept_full: false,
            relay_full: false,
            shared,
        })
    }

    /// Goes on until the connection has ended.
    ///
    /// One round is one poll: what a round has to write is written by the next one, when all other
    /// sessions that have something to do have had theirs. So what many clients send at a time
    /// reaches Redis in one go, and in the order in which it came, and Redis wakes up once for all of it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.yields = false;
        self.write(cx);
        self.back.flush(cx);
        let mut moved = self.read(cx);
        moved |= self.go_on(cx);
        moved |= self.exchange(cx);
        moved |= self.look_for_starvation(cx);
        moved |= self.look_for_close(cx);
        moved |= self.tell_lost(cx);
        moved |= self.look_for_silence(cx);
        self.shared.relays.passed(self.back.take_traffic());
        if self.is_over() && !self.listens_on(cx) {
            if self.left {
                self.held.release();
            }
            self.client.say_goodbye(cx);
            return Poll::Ready(());
        }
        if moved || self.client.is_due() || self.back.is_due() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
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
        match &self.turn {
            Turn::Running(running) => running.waiting.is_some(),
            Turn::AtDoor(at_door) => at_door.is_waiting(),
            _ => false,
        }
    }

    fn is_over(&self) -> bool {
        // A grant is the client's when its reply is written, be it none (`CLIENT REPLY OFF`).
        let written = self.client.is_written() && self.delivering.is_empty();
        let done = self.client.ended && self.is_done() && self.back.is_over();
        (self.closing || done) && (self.mute || written)
    }

    /// A system that closes a connection with something unread resets it, and the other side may lose what it was
    /// told last. So what a client is still sending is read and dropped, until it has closed, too, or for [`LINGER`].
    fn listens_on(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.has_last_word || self.mute {
            return false;
        }
        self.client.close_writing();
        let read = with_space(|space| self.client.poll_read(cx, space).is_ready());
        self.has_last_word = !(read && self.client.ended);
        if read || self.client.is_due() {
            cx.waker().wake_by_ref();
        }
        self.has_last_word
    }

    /// Everything that was read has had its turn.
    fn is_done(&self) -> bool {
        matches!(self.turn, Turn::Open) && self.scanned == self.client.inbox.len()
    }

    // ── the client's bytes ───────────────────────────────────────────────────────────────────

    fn reads(&self) -> bool {
        let most = match self.turn {
            // Until its name is known a frame is kept, and that of a line is known at its end.
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
        let is_ready = with_space(|space| {
            match self.client.poll_read(cx, space) {
                Poll::Ready(Ok(bytes)) => {
                    let passed = self.pass_through(cx, bytes);
                    self.client.inbox.extend_from_slice(&bytes[passed..]);
                }
                Poll::Ready(Err(_)) => self.mute(),
                Poll::Pending => return false,
            }
            true
        });
        self.left |= self.client.ended;
        if is_ready && let Some(idle) = &mut self.idle {
            idle.heard();
        }
        is_ready
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        if self.mute {
            self.client.forget_unwritten();
            self.keep_less();
            return;
        }
        let before = self.client.unwritten();
        let flushed = self.client.poll_flush(cx);
        if self.client.unwritten() < before {
            self.linger = None;
            self.starved = None;
            if let Some(idle) = &mut self.idle {
                idle.heard();
            }
        }
        self.deliver();
        self.keep_less();
        if let Poll::Ready(Err(_)) = flushed {
            self.mute();
        }
    }

    /// The client has the grants whose replies were written.
    fn deliver(&mut self) {
        if self.delivering.is_empty() {
            if matches!(self.turn, Turn::Open) {
                self.held.all_are_written();
            }
            return;
        }
        let written = self.client.on_its_way();
        while let Some(grant) = self.delivering.take_written(written) {
            if let Some(bound) = grant.delivered() {
                self.held.add(bound);
            }
        }
    }

    /// The client's socket is broken: the grants being written did not reach it.
    fn mute(&mut self) {
        self.mute = true;
        self.left = true;
        self.client.ended = true;
        self.delivering = Delivering::default();
    }

    /// The gate gives the client up, which has not left.
    fn give_up(&mut self) {
        self.abandon();
        let left = self.left;
        self.mute();
        self.left = left;
        self.closing = true;
    }

    /// A client that is not read from may have closed all the same; one that closed is not served
    /// for ever.
    fn look_for_close(&mut self, cx: &mut Context<'_>) -> bool {
        // Who quits may still wait for what is before that.
        if (self.left && self.client.ended) || self.closing {
            let linger = self
                .linger
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
            if linger.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.give_up();
            return true;
        }
        if self.reads() || matches!(self.turn, Turn::Open) {
            self.watch = None;
            self.kept_full = false;
            return false;
        }
        if !self.kept_full && !self.client.ended {
            self.kept_full = true;
            self.shared.counters().held_back_behind_locks.count();
        }
        let watch = self
            .watch
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_FOR_CLOSE)));
        if watch.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.watch = None;
        let closed = self.client.is_closed_behind_unread();
        self.client.ended |= closed;
        self.left |= closed;
        true
    }

    /// A client of which nothing was heard for long is closed, as Redis does it: not one that waits for
    /// something, be it a lock, a reply or a message, nor one that holds a lock by its connection.
    fn look_for_silence(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(idle) = &mut self.idle else {
            return false;
        };
        if self.closing || idle.poll_silent(cx).is_pending() {
            return false;
        }
        // What is owed to a client that takes nothing is owed by its own fault.
        let owed = !self.back.is_settled() && self.client.unwritten() == 0;
        let waits = !matches!(self.turn, Turn::Open) || owed || self.back.is_subscribed();
        if waits || self.held.any() {
            idle.heard();
        } else {
            self.shared.counters().closed_idle_clients.count();
            self.closing = true;
        }
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
        if self.draining && !self.client.ended && !self.held.any() && self.delivering.is_empty() {
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
        if self.closing {
            return false;
        }
        // Redis drops what still runs for a connection that is closed, so a client that has not left
        // gets its answers first.
        let answered = self.left || self.back.is_settled();
        if self.client.ended && self.is_done() && answered {
            self.back.close_writing();
        }
        let reads = self.reads_replies();
        let is_full = !reads || self.back.backlog() >= self.shared.limits.relay_bytes;
        if is_full && !self.relay_full {
            self.shared.counters().held_back_relays.count();
        }
        self.relay_full = is_full;
        match self.back.poll(cx, &mut self.client, reads, &self.shared) {
            Ok(moved) => {
                self.client.set_aside();
                if self.back.has_ended() && !self.closing {
                    self.abandon();
                    self.closing = true;
                    return true;
                }
                moved
            }
            Err(broken) => {
                match &broken {
                    Broken::Unreachable(error) => {
                        self.shared.counters().unreachable_upstream.count();
                        let text = self.shared.unreachable(error);
                        answer::error(&mut self.client.outbox, self.back.protocol(), &text);
                        self.has_last_word = !self.client.ended;
                    }
                    Broken::Uncountable(error) => {
                        self.shared.counters().uncountable_replies.count();
                        if let Some(left_out) = self.shared.warnings.uncountable.is_due() {
                            let client = &self.who.label;
                            warn!(%client, left_out, %error, "closing a client's connection");
                        }
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
        while !self.closing && !self.yields && self.take_turn(cx) {
            moved = true;
        }
        moved
    }

    fn take_turn(&mut self, cx: &mut Context<'_>) -> bool {
        match std::mem::replace(&mut self.turn, Turn::Open) {
            Turn::Open => self.dispatch(),
            Turn::Next(frame) => {
                if !self.back.is_settled() || !self.keeps_more() {
                    return self.stay(Turn::Next(frame));
                }
                self.begin(frame);
                true
            }
            Turn::Settling => {
                if !self.back.is_settled() {
                    return self.stay(Turn::Settling);
                }
                true
            }
            Turn::AtDoor(at_door) => self.await_admission(cx, at_door),
            Turn::Running(running) => self.await_gate(cx, running),
            Turn::Looking(look) if !self.may_answer() => self.stay(Turn::Looking(look)),
            Turn::Looking(mut look) => match look.as_mut().poll(cx) {
                Poll::Ready(info) => {
                    self.write_answer(|out, protocol| answer::info(out, protocol, info))
                }
                Poll::Pending => self.stay(Turn::Looking(look)),
            },
            Turn::Listing(may, pattern, count) if !self.may_answer() => {
                self.stay(Turn::Listing(may, pattern, count))
            }
            Turn::Listing(mut may, pattern, count) => match may.as_mut().poll(cx) {
                Poll::Ready(may) => self.list(may, pattern, count),
                Poll::Pending => self.stay(Turn::Listing(may, pattern, count)),
            },
            Turn::Answered(answer) => self.answer(answer),
            Turn::Refusing(text) => {
                if !self.back.is_settled() || !self.keeps_more() {
                    return self.stay(Turn::Refusing(text));
                }
                self.silent = self.back.silences();
                self.write_answer(|out, protocol| answer::error(out, protocol, &text))
            }
            Turn::Failing(text) => {
                if !self.back.is_settled() {
                    return self.stay(Turn::Failing(text));
                }
                self.silent = self.back.silences();
                self.write_answer(|out, protocol| answer::error(out, protocol, &text));
                self.has_last_word = !self.client.ended;
                self.abandon();
                self.closing = true;
                true
            }
            Turn::Dropping => {
                if !self.back.is_settled() {
                    return self.stay(Turn::Dropping);
                }
                self.closing = true;
                true
            }
        }
    }

    /// Nothing that Redis says has been passed on in part: a message may come while a lock command runs.
    fn may_answer(&self) -> bool {
        self.mute || self.back.is_between_replies()
    }

    fn stay(&mut self, turn: Turn) -> bool {
        self.turn = turn;
        false
    }
}
