//! The front of the connection: the one command, or the one end, whose turn it is.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::{
    Session,
    absorbing::{Absorbed, Front},
    admission::AuthPending,
    answer,
};
use crate::{
    gate::{Answer, Info, Pending},
    store::Later,
};

/// The front of the connection.
pub(super) enum Turn {
    /// The next command of the inbox.
    Open,
    /// A command that starts once everything before it is answered: a lock command, one for the guard, or one
    /// that may make this a plain pipe.
    Next(Front),
    /// The next command, once everything before it is answered.
    Settling,
    /// A lock command whose client the store has to admit first.
    AuthPending(Box<AuthPending>),
    /// A lock command at the gate.
    Running(Running),
    /// A `LOCKINFO` in progress.
    Looking(Later<Result<Info, Bytes>>),
    /// A `LOCKS` with its pattern and count, while the store checks the client's permission.
    Listing(Later<Result<(), Bytes>>, Option<Bytes>, Option<usize>),
    /// A lock command whose reply is to be written, or an absorbed one.
    Answered(Answer, Option<Box<Absorbed>>),
    /// A command to be refused, once everything before it is answered.
    Refusing(String),
    /// An error to close with, once everything before it is answered.
    Failing(String),
    /// A close without an error, once everything before it is answered.
    Dropping,
    /// `QUIT` was sent: nothing behind it runs. Ends when Redis closes the connection.
    Quitting,
}

pub(super) struct Running {
    pub(super) pending: Pending,
    /// Set where commands behind it may start before its reply.
    pub(super) passable: Option<Passable>,
    /// Set for a command of Redis's own.
    pub(super) absorbed: Option<Box<Absorbed>>,
}

/// A lock command, or a parked attempt, behind which other commands may start.
pub(super) struct Passable {
    /// It is a `LOCK` or a parked attempt.
    pub(super) waits: bool,
    /// The commands behind it were judged when it came to the front.
    pub(super) looked: bool,
    /// The gate was notified that the client has closed.
    pub(super) stopped: bool,
}

impl Running {
    /// A command at the gate, behind which no other starts.
    pub(super) fn alone(pending: Pending, absorbed: Option<Box<Absorbed>>) -> Self {
        Self {
            pending,
            passable: None,
            absorbed,
        }
    }

    /// A lock command at the gate, or a parked attempt.
    pub(super) fn passable(pending: Pending, absorbed: Option<Box<Absorbed>>, waits: bool) -> Self {
        let passable = Passable {
            waits,
            looked: false,
            stopped: false,
        };
        Self {
            pending,
            passable: Some(passable),
            absorbed,
        }
    }

    /// Returns whether it may wait for a lock: it is a `LOCK` or a parked attempt.
    pub(super) fn waits(&self) -> bool {
        self.passable.as_ref().is_some_and(|it| it.waits)
    }
}

impl Session {
    /// Takes turns as far as possible. Returns whether it took any.
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !self.is_closing() && !self.yields && self.take_turn(cx) {
            moved = true;
        }
        moved
    }

    fn take_turn(&mut self, cx: &mut Context<'_>) -> bool {
        match std::mem::replace(&mut self.turn, Turn::Open) {
            Turn::Open => self.dispatch(),
            Turn::Next(front) => {
                if !self.backend.is_settled() || !self.keeps_more() {
                    return self.stay(Turn::Next(front));
                }
                match front {
                    Front::Own(frame) => self.begin(frame),
                    Front::Absorbed(absorbed) => self.begin_absorbed(absorbed),
                }
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
            Turn::Answered(answer, absorbed) => self.answer(answer, absorbed),
            Turn::Refusing(text) => {
                if !self.backend.is_settled() || !self.keeps_more() {
                    return self.stay(Turn::Refusing(text));
                }
                self.answer_at_once(|out, protocol| answer::error(out, protocol, &text))
            }
            Turn::Failing(text) => {
                if !self.backend.is_settled() {
                    return self.stay(Turn::Failing(text));
                }
                self.answer_at_once(|out, protocol| answer::error(out, protocol, &text));
                self.cut_off_after_error();
                true
            }
            Turn::Dropping => {
                if !self.backend.is_settled() {
                    return self.stay(Turn::Dropping);
                }
                self.close();
                true
            }
            Turn::Quitting => self.stay(Turn::Quitting),
        }
    }

    /// Returns whether a lock command may be answered: a message that arrives while it runs must not have
    /// been forwarded in part.
    pub(super) fn may_answer(&self) -> bool {
        self.stage.is_mute() || self.backend.is_between_replies()
    }

    pub(super) fn stay(&mut self, turn: Turn) -> bool {
        self.turn = turn;
        false
    }

    /// Returns whether all bytes read have had their turn.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.turn, Turn::Open) && self.requests.unscanned() == 0
    }

    /// Returns whether a `LOCK` waits.
    pub(super) fn is_waiting(&self) -> bool {
        match &self.turn {
            Turn::Running(running) => running.waits() && running.absorbed.is_none(),
            Turn::AuthPending(auth_pending) => auth_pending.is_waiting(),
            _ => false,
        }
    }
}
