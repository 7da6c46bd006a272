//! One connected client: reads, dispatches and replies in order.
//!
//! Ordinary commands pass to Redis as they arrive ([`relay`](crate::relay)), or are answered here without an upstream
//! ([`local`](crate::relay::local)). A lock command starts when everything before it is answered, and the next command
//! starts when the lock command is answered. So at any time one command is at the front of the connection, its
//! [`Turn`]. While a `LOCK` waits there, the session keeps the client's input in the inbox, up to a limit, and scans it
//! ([`Lookahead`](lookahead::Lookahead)): some commands may overtake.
//!
//! The session is one task. On every event it moves bytes and turns as far as possible, round by round and in
//! both directions at once: reading must never wait for writing, or two full buffers deadlock. It does not
//! read for a side whose buffer is full.
//!
//! The session notices at once that a client has closed while its `LOCK` waits. It drops the commands behind
//! that `LOCK`, as Redis does for a blocked client, but runs every `UNLOCK`. Everything else that the client
//! sent before it closed runs.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::time::Sleep;
use tracing::warn;

use crate::{
    gate::{self, Grant, Label},
    limits::{LEAST_BUFFER_BYTES, LINE_BYTES},
    lock::{Time, UserId},
    relay::{Backend, connection::Broken},
    session::{bound_leases::BoundLeases, budget::Share, idle::Idle},
    store::{Admission, Later},
    transport::{
        pipe::{Pipe, with_space},
        stream::Stream,
    },
};

mod absorbing;
mod admission;
pub mod admission_queue;
mod answer;
mod bound_leases;
pub mod budget;
mod delivering;
mod entering;
mod idle;
mod lifecycle;
mod locking;
mod lookahead;
mod passing;
pub mod peers;
mod requests;
mod shared;
mod turn;
pub mod unauthorized;
mod unread;

pub(crate) use shared::serve;
pub use shared::{Shared, Warnings};

use admission::Admitted;
use delivering::Delivering;
use lifecycle::Stage;
use peers::Connected;
use requests::{Frame, Requests};
use turn::Turn;
use unread::Starved;

/// One connected client.
pub(crate) struct Session {
    shared: Arc<Shared>,
    who: gate::Client,
    /// The number of the connection.
    id: u64,
    /// The connection among those of its address.
    connected: Connected,
    /// Several tasks use the connection at a time: a command came behind an attempt before the attempt was answered.
    is_shared: bool,
    /// When to try again whether tasks share it.
    probe_at: Time,
    /// The lock of the previous absorbed command that passed to Redis.
    last_passed: Option<Arc<[u8]>>,
    admitted: Option<Admitted>,
    /// The new check of an admitted client whose server is gone.
    recheck: Option<Later<Admission>>,
    /// Timer of a grant that waits for the new check.
    withheld: Option<Pin<Box<Sleep>>>,
    client: Pipe,
    backend: Backend,
    requests: Requests,
    turn: Turn,
    replies: Replies,
    /// Grants to a client that closed. They hold while the commands behind them run.
    late: Vec<Grant>,
    stage: Stage,
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
    /// Timer of the next check whether the client has closed. It runs while the client is not read because of
    /// the commands kept behind a `LOCK`, or because Redis takes no more.
    watch: Option<Pin<Box<Sleep>>>,
    /// Timer that ends the session of a client that closed or is being closed.
    linger: Option<Pin<Box<Sleep>>>,
    /// The client's idle time, where it is limited.
    idle: Option<Box<Idle>>,
    /// The last step was expensive: other sessions run before this one continues.
    yields: bool,
    /// One side is not read because of the bytes that wait for the other.
    relay_full: bool,
}

/// What the client has not read, beside the bytes in the outbox.
struct Replies {
    /// Grants whose replies are being written.
    delivering: Delivering,
    /// The budget taken for unread replies beyond `limits.relay_bytes`.
    share: Share,
    /// The budget allowed no more unread replies in this round.
    refused: bool,
    /// Set while the budget allows no more unread replies that the client's commands depend on.
    starved: Option<Starved>,
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stream: Stream,
        peer: &str,
        id: u64,
    ) -> io::Result<Self> {
        let backend = Backend::new(&*shared, &stream, peer, id);
        stream.probe_after(shared.tcp_keepalive)?;
        let client = Pipe::new(stream)?;
        let idle = Idle::new(shared.idle_timeout);
        Ok(Self {
            who: gate::Client {
                user: UserId::ANONYMOUS,
                label: Arc::new(Label::of(peer)),
            },
            id,
            connected: shared.peers.connect(peer),
            is_shared: false,
            probe_at: Time::default(),
            last_passed: None,
            admitted: None,
            recheck: None,
            withheld: None,
            client,
            backend,
            requests: Requests::default(),
            turn: Turn::Open,
            replies: Replies {
                delivering: Delivering::default(),
                share: Share::none_of(Arc::clone(&shared.budget)),
                refused: false,
                starved: None,
            },
            late: Vec::new(),
            stage: Stage::Open,
            left: false,
            draining: false,
            bound_leases: BoundLeases::default(),
            hides_reply: false,
            came_at: None,
            watch: None,
            linger: None,
            idle,
            yields: false,
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
        moved |= self.look_for_recheck(cx);
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

    fn reads(&self) -> bool {
        let most = match self.turn {
            // A frame is kept until its name is known; that of an inline command is known at the end of its
            // line.
            Turn::Open => LINE_BYTES + LEAST_BUFFER_BYTES,
            _ => self.shared.limits.pipelined_bytes,
        };
        self.stage == Stage::Open
            && self.requests.inbox.len() < most
            && self.requests.lookahead.len() < self.shared.limits.pipelined_commands
    }

    fn read(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.reads() {
            return false;
        }
        let is_ready = with_space(|space| {
            match self.client.poll_read(cx, space) {
                Poll::Ready(Ok(bytes)) => {
                    let passed = self.pass_through(cx, bytes);
                    self.requests.inbox.extend_from_slice(&bytes[passed..]);
                }
                Poll::Ready(Err(_)) => self.mute(),
                Poll::Pending => return false,
            }
            true
        });
        if self.client.ended {
            self.left = true;
            self.end_reading();
        }
        if is_ready && let Some(idle) = &mut self.idle {
            idle.heard();
        }
        is_ready
    }

    fn write(&mut self, cx: &mut Context<'_>) {
        if self.stage.is_mute() {
            self.client.forget_unwritten();
            self.keep_less();
            return;
        }
        let before = self.client.unwritten();
        let flushed = self.client.poll_flush(cx);
        if self.client.unwritten() < before {
            self.linger = None;
            self.replies.starved = None;
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
        if self.replies.delivering.is_empty() {
            if matches!(self.turn, Turn::Open) {
                self.bound_leases.all_are_written();
            }
            return;
        }
        let written = self.client.on_its_way();
        while let Some(grant) = self.replies.delivering.take_written(written) {
            if let Some(bound) = grant.delivered()
                && self.binds()
            {
                self.bound_leases.add(bound);
            }
        }
    }

    fn exchange(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_closing() {
            return false;
        }
        // Redis drops running commands of a closed connection. So a client that has not closed gets its replies
        // first.
        let quits = matches!(self.turn, Turn::Quitting);
        let ended = self.stage != Stage::Open && (self.is_done() || quits);
        if (ended || quits) && (ended && self.left || self.backend.is_settled()) {
            self.backend.close_writing();
        }
        let reads = self.reads_replies();
        let is_full = !reads || self.backend.backlog() >= self.shared.limits.relay_bytes;
        if is_full && !self.relay_full {
            self.shared.counters().held_back_relays.count();
        }
        self.relay_full = is_full;
        // Inside an ordinary command, Redis may have its beginning. After `QUIT`, Redis closes because it was asked to.
        let detaches =
            self.stage == Stage::Open && self.requests.frame != Frame::Ordinary && !quits;
        let (client, shared) = (&mut self.client, &*self.shared);
        match self.backend.poll(cx, client, reads, detaches, shared) {
            Ok(moved) => {
                self.client.set_aside();
                if self.backend.take_detached() {
                    self.check_again();
                }
                let has_ended = self.backend.has_ended();
                if has_ended {
                    self.cut_off();
                }
                moved || has_ended
            }
            Err(broken) => {
                match broken {
                    Broken::Unreachable(error) => self.refuse_unreachable(&error),
                    Broken::Unrestored => {
                        self.shared.counters().unrestored_clients.count();
                        self.cut_off();
                    }
                    Broken::Uncountable(error) => {
                        self.shared.counters().uncountable_replies.count();
                        if let Some(left_out) = self.shared.warnings.uncountable.is_due() {
                            let client = &self.who.label;
                            warn!(%client, left_out, %error, "closing a client's connection");
                        }
                        self.cut_off();
                    }
                }
                true
            }
        }
    }

    /// Answers a client whose connection to Redis could not be opened. One that had a connection before stays: each of
    /// its commands gets the error.
    fn refuse_unreachable(&mut self, error: &io::Error) {
        let text = self.shared.unreachable(error);
        let (out, protocol) = (&mut self.client.outbox, self.backend.protocol());
        let is_whole =
            self.requests.frame != Frame::Ordinary && !matches!(self.turn, Turn::Quitting);
        if is_whole && let Some(count) = self.backend.refuse_waiting() {
            (0..count).for_each(|_| answer::error(out, protocol, &text));
            return;
        }
        self.shared.counters().unreachable_upstream.count();
        answer::error(out, protocol, &text);
        self.cut_off_after_error();
    }
}
