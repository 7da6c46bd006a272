//! The lifecycle of a session, and what ends it: the client closes, lockgate shuts down, or lockgate closes the
//! client.

use std::{task::Context, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Session, bound_leases::BoundLeases, delivering::Delivering, turn::Turn};
use crate::{error::SHUTDOWN, resp::Protocol, transport::pipe::with_space};

/// Interval of checks whether a client that is not being read has closed.
const LOOK_FOR_CLOSE: Duration = Duration::from_millis(50);

/// Time limit for the commands of a client that has closed, and for the last bytes to a client that lockgate
/// closes. It starts anew whenever the client takes some of its replies.
const LINGER: Duration = Duration::from_secs(10);

/// The stage of a session. It only advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The client's commands are read and run.
    Open,
    /// Nothing more is read. The commands read before still run.
    Ended,
    /// As `Ended`, but the client's socket is broken: no reply can reach it.
    Mute,
    /// Only the outbox is still written, nothing else is done for the client.
    Closing,
    /// As `Closing`. The outbox ends with an error for the client, which may still be sending.
    LastWord,
    /// Nothing is done any longer.
    Over,
}

impl Stage {
    /// Returns whether no reply can reach the client.
    pub(super) fn is_mute(self) -> bool {
        matches!(self, Self::Mute | Self::Over)
    }
}

impl Session {
    /// Starts the shutdown. Notifies a waiting client, and the holder of locks bound to this connection;
    /// commands in flight finish. A client that got a push about its locks may still release them.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.end_parking();
        if self.bound_leases.any() && self.may_push() {
            self.bound_leases.tell_all(&mut self.client.outbox);
            if self.is_waiting() {
                self.turn = Turn::Refusing(SHUTDOWN.to_owned());
            }
            return;
        }
        self.end();
    }

    /// Ends the service of a client at shutdown.
    fn end(&mut self) {
        if self.is_waiting() {
            self.turn = Turn::Failing(SHUTDOWN.to_owned());
        } else if matches!(self.turn, Turn::Open) && self.backend.is_settled() {
            self.close();
        }
        self.end_reading();
    }

    /// Stops reading from the client.
    pub(super) fn end_reading(&mut self) {
        self.stage = self.stage.max(Stage::Ended);
    }

    /// Closes the client once the outbox is written. If the client has not left, its bound leases are renewed no
    /// longer: to write the outbox may take long.
    pub(super) fn close(&mut self) {
        self.backend.stop();
        self.stage = match self.stage {
            Stage::Mute => Stage::Over,
            stage => stage.max(Stage::Closing),
        };
        if !self.binds() {
            self.bound_leases = BoundLeases::default();
        }
    }

    /// Returns whether leases are still bound to the connection.
    pub(super) fn binds(&self) -> bool {
        self.left || !self.is_closing()
    }

    /// Closes a client that cannot be served any longer.
    pub(super) fn cut_off(&mut self) {
        self.abandon();
        self.close();
    }

    /// As [`cut_off`](Self::cut_off), where the outbox ends with an error.
    pub(super) fn cut_off_after_error(&mut self) {
        let may_be_sending = self.stage == Stage::Open;
        self.cut_off();
        if may_be_sending {
            self.stage = Stage::LastWord;
        }
    }

    /// Records that the client's socket is broken: the grants being written did not reach it.
    pub(super) fn mute(&mut self) {
        self.replies.delivering = Delivering::default();
        if self.is_closing() {
            // lockgate closes the client, which may not have left.
            self.stage = Stage::Over;
        } else {
            self.left = true;
            self.stage = Stage::Mute;
        }
    }

    /// Gives up on the client. That does not count as the client leaving.
    pub(super) fn give_up(&mut self) {
        self.abandon();
        self.replies.delivering = Delivering::default();
        self.stage = Stage::Over;
    }

    /// Returns whether nothing more is done for the client.
    pub(super) fn is_closing(&self) -> bool {
        self.stage >= Stage::Closing
    }

    pub(super) fn is_over(&self) -> bool {
        // A grant belongs to the client once its reply is written, even an empty one (`CLIENT REPLY OFF`).
        let is_written = || self.client.is_written() && self.replies.delivering.is_empty();
        let is_done = || self.is_done() && self.backend.is_over();
        match self.stage {
            Stage::Open => false,
            Stage::Ended => is_done() && is_written(),
            Stage::Mute => is_done(),
            Stage::Closing | Stage::LastWord => is_written(),
            Stage::Over => true,
        }
    }

    /// Reads and drops what the client still sends after lockgate's last error; returns whether to go on. If
    /// a connection is closed with unread bytes, the system resets it, and the client may lose that error. So
    /// lockgate reads until the client has closed, too, or for [`LINGER`].
    pub(super) fn listens_on(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stage != Stage::LastWord {
            return false;
        }
        self.client.close_writing();
        let read = with_space(|space| self.client.poll_read(cx, space).is_ready());
        if read || self.client.is_due() {
            cx.waker().wake_by_ref();
        }
        !(read && self.client.ended)
    }

    /// Detects that a client that is not being read has closed. Gives up on a closed client after [`LINGER`].
    pub(super) fn look_for_close(&mut self, cx: &mut Context<'_>) -> bool {
        // After a `QUIT`, replies to earlier commands may still be due.
        if self.is_closing() || self.left && self.stage != Stage::Open {
            let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            if linger.as_mut().poll(cx).is_pending() {
                return false;
            }
            self.give_up();
            return true;
        }
        // With bytes left to pass on, the relay is full.
        let is_open = matches!(self.turn, Turn::Open);
        if self.reads() || is_open && self.requests.unscanned() == 0 {
            self.watch = None;
            return false;
        }
        if self.watch.is_none() && self.stage == Stage::Open && !is_open {
            self.shared.counters().held_back_behind_locks.count();
        }
        let watch = self
            .watch
            .get_or_insert_with(|| Box::pin(sleep(LOOK_FOR_CLOSE)));
        if watch.as_mut().poll(cx).is_pending() {
            return false;
        }
        watch.as_mut().reset(Instant::now() + LOOK_FOR_CLOSE);
        if self.client.is_closed_behind_unread() {
            self.left = true;
            self.end_reading();
        }
        true
    }

    /// Closes a client that was idle for too long, as Redis does. A client is not idle while it waits for a
    /// lock, a reply or a message, or holds a lock bound to its connection.
    pub(super) fn look_for_silence(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_closing() {
            return false;
        }
        let Some(idle) = &mut self.idle else {
            return false;
        };
        if idle.poll_silent(cx).is_pending() {
            return false;
        }
        // A client that does not read is itself the reason that replies are owed.
        let owed = !self.backend.is_settled() && self.client.unwritten() == 0;
        let waits = !matches!(self.turn, Turn::Open) || owed || self.backend.is_subscribed();
        if waits || self.bound_leases.any() {
            idle.heard();
        } else {
            self.shared.counters().closed_idle_clients.count();
            self.close();
        }
        true
    }

    /// Notifies the client of lost locks: by a push, or by closing its connection.
    pub(super) fn tell_lost(&mut self, cx: &mut Context<'_>) -> bool {
        if self.is_closing() {
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
                self.cut_off();
            }
            return true;
        }
        if self.draining
            && self.stage == Stage::Open
            && !self.bound_leases.any()
            && self.replies.delivering.is_empty()
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
}
