//! One connected client: reads, dispatches and replies in order.
//!
//! Ordinary commands pass to Redis as they arrive ([`relay`](crate::relay)), or are answered here without an upstream
//! ([`local`](crate::relay::local)). A lock command starts when everything before it is answered, and the next command
//! starts when the lock command is answered. So at any time one command is at the front of the connection, its
//! [`Turn`]. While a `LOCK` waits there, the session keeps the client's input in the inbox, up to a limit, and scans it
//! ([`Lookahead`]): some commands may overtake.
//!
//! The session is one task. On every event it moves bytes and turns as far as possible, round by round and in
//! both directions at once: reading must never wait for writing, or two full buffers deadlock. It does not
//! read for a side whose buffer is full.
//!
//! The session notices at once that a client has closed while its `LOCK` waits. It drops the commands behind
//! that `LOCK`, as Redis does for a blocked client, but runs every `UNLOCK`. Everything else that the client
//! sent before it closed runs.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Sleep;
use tracing::warn;

use crate::{
    error::SHUTDOWN,
    gate::{self, Answer, Grant, Info, Label, Pending},
    limits::{LEAST_BUFFER_BYTES, LINE_BYTES},
    lock::{Time, Token, UserId},
    relay::{Backend, connection::Broken},
    resp::{Protocol, RequestScanner},
    session::{bound_leases::BoundLeases, budget::Share, idle::Idle, lookahead::Lookahead},
    store::Later,
    transport::{
        pipe::{Pipe, with_space},
        stream::Stream,
    },
};

mod admission;
pub mod admission_queue;
mod answer;
mod bound_leases;
pub mod budget;
mod delivering;
mod entering;
mod idle;
mod locking;
mod lookahead;
mod passing;
mod shared;
mod unread;

pub use shared::{Shared, Warnings, serve};

use admission::{Admitted, AuthPending};
use delivering::Delivering;
use unread::Starved;

/// Interval of checks whether a client that is not being read has closed.
const LOOK_FOR_CLOSE: Duration = Duration::from_millis(50);

/// Time limit for the commands of a client that has closed, and for the last bytes to a client that lockgate
/// closes. It starts anew whenever the client takes some of its replies.
const LINGER: Duration = Duration::from_secs(10);

/// One connected client.
pub(crate) struct Session {
    shared: Arc<Shared>,
    who: gate::Client,
    admitted: Option<Admitted>,
    client: Pipe,
    backend: Backend,
    scanner: RequestScanner,
    /// Bytes at the front of the inbox that go to Redis.
    passing: usize,
    /// Bytes of the inbox that were scanned.
    scanned: usize,
    frame: Frame,
    turn: Turn,
    lookahead: Lookahead,
    /// Grants whose replies are being written.
    delivering: Delivering,
    /// The budget taken for unread replies beyond `limits.relay_bytes`.
    share: Share,
    /// Set while the budget allows no more unread replies that the client's commands depend on.
    starved: Option<Starved>,
    /// Grants to a client that closed. They hold while the commands behind them run.
    late: Vec<Grant>,
    /// No reply can reach the client.
    mute: bool,
    /// Only the outbox is still written, nothing else is done for the client.
    closing: bool,
    /// The outbox ends with an error for the client, which may still be sending.
    has_last_word: bool,
    /// The client closed the connection, or asked to (`QUIT`).
    left: bool,
    /// lockgate is shutting down: commands in flight finish, and no `LOCK` or `TRYLOCK` starts.
    draining: bool,
    /// The leases bound to this connection.
    bound_leases: BoundLeases,
    /// The running lock command gets no reply (`CLIENT REPLY OFF` or `SKIP`).
    hides_reply: bool,
    /// Arrival time of the lock command about to start, where it waited for admission.
    came_at: Option<Time>,
    /// Timer of the next check whether a client that is not being read has closed.
    watch: Option<Pin<Box<Sleep>>>,
    /// Timer that ends the service of a client that closed or is being closed.
    linger: Option<Pin<Box<Sleep>>>,
    /// The client's idle time, where it is limited.
    idle: Option<Box<Idle>>,
    /// The last step was expensive: other sessions run before this one continues.
    yields: bool,
    /// The client is not read because of the commands kept behind a `LOCK`.
    kept_full: bool,
    /// One side is not read because of the bytes that wait for the other.
    relay_full: bool,
}

/// The kind of the frame being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// Its name has not been read.
    Unnamed,
    Ordinary,
    Lock,
    /// An ordinary command that is read whole before it passes.
    Kept,
    /// A command for the guard, read whole.
    Guarded,
    /// A command of an unauthenticated client, skipped and refused at its end.
    Unauthenticated,
    /// A command too long to be kept whole, skipped and refused at its end.
    Excess,
    /// HTTP: the client is dropped.
    CrossProtocol,
}

/// The front of the connection.
enum Turn {
    /// The next command of the inbox.
    Open,
    /// A command that starts once everything before it is answered: a lock command, one for the guard, or one
    /// that may make this a plain pipe.
    Next(Bytes),
    /// The next command, once everything before it is answered.
    Settling,
    /// A lock command whose client the store has to admit first.
    AuthPending(AuthPending),
    /// A lock command at the gate.
    Running(Running),
    /// A `LOCKINFO` in progress.
    Looking(Later<Result<Info, Bytes>>),
    /// A `LOCKS` with its pattern and count, while the store checks the client's permission.
    Listing(Later<Result<(), Bytes>>, Option<Bytes>, Option<usize>),
    /// A lock command whose reply is to be written.
    Answered(Answer),
    /// A command to be refused, once everything before it is answered.
    Refusing(String),
    /// An error to close with, once everything before it is answered.
    Failing(String),
    /// A close without an error, once everything before it is answered.
    Dropping,
    /// `QUIT` was sent: nothing behind it runs. Ends when Redis closes the connection.
    Quitting,
}

struct Running {
    pending: Pending,
    /// Set for a `LOCK`, which may wait.
    waiting: Option<Waiting>,
}

struct Waiting {
    key: Bytes,
    token: Option<Token>,
    /// The commands behind it were scanned when it began to wait.
    looked: bool,
    /// The gate was notified that the client has closed.
    stopped: bool,
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stream: Stream,
        peer: &str,
        id: u64,
    ) -> std::io::Result<Self> {
        let backend = Backend::new(&*shared, &stream, peer, id);
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
            backend,
            scanner: RequestScanner::new(),
            passing: 0,
            scanned: 0,
            frame: Frame::Unnamed,
            turn: Turn::Open,
            lookahead: Lookahead::default(),
            delivering: Delivering::default(),
            share: Share::none_of(Arc::clone(&shared.budget)),
            starved: None,
            late: Vec::new(),
            mute: false,
            closing: false,
            has_last_word: false,
            left: false,
            draining: false,
            bound_leases: BoundLeases::default(),
            hides_reply: false,
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

    /// Runs one round; ready once the connection has ended.
    ///
    /// The next round writes the output of this one, after all other sessions with work have had their round.
    /// So commands that many clients send at a time reach Redis in one go and in order of arrival, and Redis
    /// wakes up once for all of them.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.yields = false;
        self.write(cx);
        self.backend.flush(cx);
        let mut moved = self.read(cx);
        moved |= self.go_on(cx);
        moved |= self.exchange(cx);
        moved |= self.look_for_starvation(cx);
        moved |= self.look_for_close(cx);
        moved |= self.tell_lost(cx);
        moved |= self.look_for_silence(cx);
        self.shared.relays.passed(self.backend.take_traffic());
        if self.is_over() && !self.listens_on(cx) {
            if self.left {
                self.bound_leases.release();
            }
            self.client.say_goodbye(cx);
            return Poll::Ready(());
        }
        if moved || self.client.is_due() || self.backend.is_due() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Starts the shutdown. Notifies a waiting client, and the holder of locks bound to this connection;
    /// commands in flight finish. A client that got a push about its locks may still release them.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        if self.bound_leases.any() && self.may_push() {
            self.bound_leases.tell_all(&mut self.client.outbox);
            if self.is_waiting() {
                self.turn = Turn::Refusing(SHUTDOWN.to_owned());
            }
            return;
        }
        self.end();
    }

    /// Stops reading from the client.
    fn end(&mut self) {
        if self.is_waiting() {
            self.turn = Turn::Failing(SHUTDOWN.to_owned());
        } else {
            self.closing |= matches!(self.turn, Turn::Open) && self.backend.is_settled();
        }
        self.client.ended = true;
    }

    fn is_waiting(&self) -> bool {
        match &self.turn {
            Turn::Running(running) => running.waiting.is_some(),
            Turn::AuthPending(auth_pending) => auth_pending.is_waiting(),
            _ => false,
        }
    }

    fn is_over(&self) -> bool {
        // A grant belongs to the client once its reply is written, even an empty one (`CLIENT REPLY OFF`).
        let written = self.client.is_written() && self.delivering.is_empty();
        let done = self.client.ended && self.is_done() && self.backend.is_over();
        (self.closing || done) && (self.mute || written)
    }

    /// Reads and drops what the client still sends after lockgate's last error; returns whether to go on. If
    /// a connection is closed with unread bytes, the system resets it, and the client may lose that error. So
    /// lockgate reads until the client has closed, too, or for [`LINGER`].
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

    /// Returns whether all bytes read have had their turn.
    fn is_done(&self) -> bool {
        matches!(self.turn, Turn::Open) && self.scanned == self.client.inbox.len()
    }

    // ── the client's bytes ───────────────────────────────────────────────────────────────────

    fn reads(&self) -> bool {
        let most = match self.turn {
            // A frame is kept until its name is known; that of an inline command is known at the end of its
            // line.
            Turn::Open => LINE_BYTES + LEAST_BUFFER_BYTES,
            _ => self.shared.limits.pipelined_bytes,
        };
        !self.closing
            && !self.client.ended
            && self.client.inbox.len() < most
            && self.lookahead.len() < self.shared.limits.pipelined_commands
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

    /// Delivers the grants whose replies were written.
    fn deliver(&mut self) {
        if self.delivering.is_empty() {
            if matches!(self.turn, Turn::Open) {
                self.bound_leases.all_are_written();
            }
            return;
        }
        let written = self.client.on_its_way();
        while let Some(grant) = self.delivering.take_written(written) {
            if let Some(bound) = grant.delivered() {
                self.bound_leases.add(bound);
            }
        }
    }

    /// Records that the client's socket is broken: the grants being written did not reach it.
    fn mute(&mut self) {
        self.mute = true;
        self.left = true;
        self.client.ended = true;
        self.delivering = Delivering::default();
    }

    /// Gives up on the client. That does not count as the client leaving.
    fn give_up(&mut self) {
        self.abandon();
        let left = self.left;
        self.mute();
        self.left = left;
        self.closing = true;
    }

    /// Detects that a client that is not being read has closed. Gives up on a closed client after [`LINGER`].
    fn look_for_close(&mut self, cx: &mut Context<'_>) -> bool {
        // After a `QUIT`, replies to earlier commands may still be due.
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

    /// Closes a client that was idle for too long, as Redis does. A client is not idle while it waits for a
    /// lock, a reply or a message, or holds a lock bound to its connection.
    fn look_for_silence(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(idle) = &mut self.idle else {
            return false;
        };
        if self.closing || idle.poll_silent(cx).is_pending() {
            return false;
        }
        // A client that does not read is itself the reason that replies are owed.
        let owed = !self.backend.is_settled() && self.client.unwritten() == 0;
        let waits = !matches!(self.turn, Turn::Open) || owed || self.backend.is_subscribed();
        if waits || self.bound_leases.any() {
            idle.heard();
        } else {
            self.shared.counters().closed_idle_clients.count();
            self.closing = true;
        }
        true
    }

    /// Notifies the client of lost locks: by a push, or by closing its connection.
    fn tell_lost(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closing {
            return false;
        }
        if self.bound_leases.read_mail(cx) {
            if self.backend.protocol() == Protocol::Resp3 && !self.backend.is_plain_pipe() {
                // A push has to wait for the end of a reply.
                if !self.may_push() {
                    return false;
                }
                self.bound_leases.tell_lost(&mut self.client.outbox);
            } else {
                self.abandon();
                self.closing = true;
            }
            return true;
        }
        if self.draining
            && !self.client.ended
            && !self.bound_leases.any()
            && self.delivering.is_empty()
        {
            self.end();
            return true;
        }
        false
    }

    fn may_push(&self) -> bool {
        self.backend.protocol() == Protocol::Resp3
            && !self.backend.is_plain_pipe()
            && self.backend.is_between_replies()
    }

    // ── Redis, or the local backend ──────────────────────────────────────────────────────────

    fn exchange(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closing {
            return false;
        }
        // Redis drops running commands of a closed connection. So a client that has not closed gets its replies
        // first.
        let quits = matches!(self.turn, Turn::Quitting);
        let ended = self.client.ended && (self.is_done() || quits);
        if (ended || quits) && (ended && self.left || self.backend.is_settled()) {
            self.backend.close_writing();
        }
        let reads = self.reads_replies();
        let is_full = !reads || self.backend.backlog() >= self.shared.limits.relay_bytes;
        if is_full && !self.relay_full {
            self.shared.counters().held_back_relays.count();
        }
        self.relay_full = is_full;
        match self
            .backend
            .poll(cx, &mut self.client, reads, &*self.shared)
        {
            Ok(moved) => {
                self.client.set_aside();
                if self.backend.has_ended() && !self.closing {
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
                        answer::error(&mut self.client.outbox, self.backend.protocol(), &text);
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

    /// Takes turns as far as possible. Returns whether it took any.
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
                if !self.backend.is_settled() || !self.keeps_more() {
                    return self.stay(Turn::Next(frame));
                }
                self.begin(frame);
                true
            }
            Turn::Settling => {
                if !self.backend.is_settled() {
                    return self.stay(Turn::Settling);
                }
                true
            }
            Turn::AuthPending(auth_pending) => self.await_admission(cx, auth_pending),
            Turn::Running(running) => self.await_gate(cx, running),
            Turn::Looking(status) if !self.may_answer() => self.stay(Turn::Looking(status)),
            Turn::Looking(mut status) => match status.as_mut().poll(cx) {
                Poll::Ready(info) => {
                    self.write_answer(|out, protocol| answer::info(out, protocol, info))
                }
                Poll::Pending => self.stay(Turn::Looking(status)),
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
                if !self.backend.is_settled() || !self.keeps_more() {
                    return self.stay(Turn::Refusing(text));
                }
                self.hides_reply = self.backend.hides_reply();
                self.write_answer(|out, protocol| answer::error(out, protocol, &text))
            }
            Turn::Failing(text) => {
                if !self.backend.is_settled() {
                    return self.stay(Turn::Failing(text));
                }
                self.hides_reply = self.backend.hides_reply();
                self.write_answer(|out, protocol| answer::error(out, protocol, &text));
                self.has_last_word = !self.client.ended;
                self.abandon();
                self.closing = true;
                true
            }
            Turn::Dropping => {
                if !self.backend.is_settled() {
                    return self.stay(Turn::Dropping);
                }
                self.closing = true;
                true
            }
            Turn::Quitting => self.stay(Turn::Quitting),
        }
    }

    /// Returns whether a lock command may be answered: a message that arrives while it runs must not have
    /// been forwarded in part.
    fn may_answer(&self) -> bool {
        self.mute || self.backend.is_between_replies()
    }

    fn stay(&mut self, turn: Turn) -> bool {
        self.turn = turn;
        false
    }
}
