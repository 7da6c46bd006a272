//! Lock commands. One starts when everything before it is answered, goes to the gate, and ends with its reply
//! or with the client.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};

use super::{
    Session,
    absorbing::{Absorbed, Front},
    answer,
    lifecycle::Stage,
    requests::Frame,
    turn::{Running, Turn},
};
use crate::{
    clock,
    command::{Command, CommandError, parse},
    error::{self, SHUTDOWN},
    gate::{Answer, Extension, Grant, LockOptions, Mailbox, Pending},
    limits::{LOCK_COMMAND_ARGUMENTS, LOOKED_AT_ONCE},
    lock::{ConnectionId, Refusal, Time, Token},
    resp::{Protocol, arguments},
    session::lookahead::{AtFront, Lookahead, Reader, Request},
    store::LockName,
    telemetry::metrics::{absorb::EarlyEnd, locks},
};

impl Session {
    /// Starts a lock command, one that may make this a plain pipe, or one for the guard.
    pub(super) fn begin(&mut self, frame: Bytes) {
        if self.is_for_the_guard() {
            return self.enter(frame);
        }
        if self.backend.may_become_pipe(&self.requests.scanner) {
            self.backend.reply_mode_on();
            self.turn = Turn::Settling;
            return self.give_to_redis(frame);
        }
        if self.backend.takes_lock_commands() {
            // In a transaction and in subscribed mode Redis replies, as to an unknown command.
            return self.give_to_redis(frame);
        }
        self.hides_reply = self.backend.hides_reply();
        self.admit(Front::Own(frame));
    }

    pub(super) fn give_to_redis(&mut self, frame: Bytes) {
        let count = frame.len();
        self.backend.pass_on(&mut BytesMut::from(frame), count);
        self.sent();
    }

    /// Runs a lock command of an admitted client.
    pub(super) fn run(&mut self, frame: &Bytes) -> Result<(), String> {
        let arguments = arguments(frame, LOCK_COMMAND_ARGUMENTS).map_err(|_| {
            self.shared.counters().refused_lock_commands.count();
            "ERR syntax error".to_owned()
        })?;
        let command = parse(&arguments, &self.shared.bounds).map_err(|error| {
            self.count(error);
            error.to_string()
        })?;
        if let Command::Lock { key, .. } = &command {
            if self.draining {
                return Err(SHUTDOWN.to_owned());
            }
            if self.shared.gate.is_reserved(&self.name(Arc::clone(key))) {
                return Err(error::RESERVED.to_owned());
            }
            self.check_session(&command)?;
        }
        self.turn = match command {
            Command::Lock {
                session, try_only, ..
            } => {
                let mailbox = session.then(|| self.bound_leases.mailbox());
                match self.acquire(&command, mailbox) {
                    Some(pending) => Turn::Running(Running::passable(pending, None, !try_only)),
                    None => Turn::Open,
                }
            }
            Command::Unlock { .. } | Command::Relock { .. } => match self.start(&command) {
                Some(pending) => Turn::Running(Running::passable(pending, None, false)),
                None => {
                    let metrics = self.shared.gate.metrics();
                    metrics.answered_at_once(match command {
                        Command::Unlock { .. } => locks::Request::Unlock,
                        _ => locks::Request::Relock,
                    });
                    Turn::Answered(Answer::NotHeld, None)
                }
            },
            Command::LockInfo { key } => {
                let name = self.name(key);
                let gate = Arc::clone(&self.shared.gate);
                Turn::Looking(Box::pin(gate.info(self.who.clone(), name)))
            }
            Command::Locks { pattern, count } => {
                let database = self.backend.database();
                let may = self.shared.gate.may_list(database, &self.who);
                Turn::Listing(may, pattern, count)
            }
        };
        Ok(())
    }

    /// Checks whether the client may bind this lease to its connection.
    fn check_session(&self, command: &Command) -> Result<(), String> {
        let Command::Lock {
            key,
            token,
            lease_ms,
            session: true,
            ..
        } = command
        else {
            return Ok(());
        };
        let (shared, counters) = (&self.shared, self.shared.counters());
        let least_ms = shared.min_session_lease_ms;
        if lease_ms.is_some_and(|lease_ms| lease_ms < least_ms) {
            counters.refused_leases.count();
            return Err(error::short_session(least_ms));
        }
        let bound = self
            .bound_leases
            .with_early(self.replies.delivering.sessions());
        let is_full = bound >= shared.limits.session_locks;
        if is_full
            && !self
                .bound_leases
                .has(&self.name(Arc::clone(key)), token.as_ref())
        {
            counters.refused_sessions.count();
            return Err(error::TOO_MANY_SESSIONS.to_owned());
        }
        Ok(())
    }

    /// Answers `LOCKS` once the client's permission is known.
    pub(super) fn list(
        &mut self,
        may: Result<(), Bytes>,
        pattern: Option<Bytes>,
        count: Option<usize>,
    ) -> bool {
        if let Err(error) = may {
            let refusal = Refusal::Store(error);
            return self.write_answer(|out, protocol| answer::refusal(out, protocol, &refusal));
        }
        self.yields = true;
        let names = self.shared.locks(self.backend.database(), pattern, count);
        self.write_answer(|out, protocol| answer::locks(out, protocol, &names))
    }

    fn count(&self, error: CommandError) {
        let counters = self.shared.counters();
        match error {
            CommandError::KeyTooLong { .. } => counters.refused_keys.count(),
            CommandError::TokenSize { .. } => counters.refused_tokens.count(),
            CommandError::InvalidExpire(_) => counters.refused_leases.count(),
            _ => {}
        }
    }

    /// Requests the lock for a `LOCK` or a `TRYLOCK`; `None` for any other command.
    fn acquire(&self, command: &Command, mailbox: Option<Mailbox>) -> Option<Pending> {
        let Command::Lock {
            key,
            token,
            lease_ms,
            wait_ms,
            try_only,
            fence,
            session,
            replicas,
        } = command
        else {
            return None;
        };
        let least_ms = match session {
            true => self.shared.min_session_lease_ms,
            false => 0,
        };
        let lease_ms = lease_ms.unwrap_or(self.shared.default_lease_ms.max(least_ms));
        let wish = LockOptions {
            asked_at: self.asked_at(),
            token: token.clone(),
            lease_ms,
            wait_ms: *wait_ms,
            try_only: *try_only,
            fence: *fence,
            session: mailbox,
            replicas: replicas.unwrap_or(self.shared.default_replicas),
            connection: ConnectionId(self.id),
            attempt: None,
        };
        let name = self.name(key.clone());
        Some(self.shared.gate.lock(&self.who, name, &wish))
    }

    /// Starts a command that stands behind other lock commands. `None`: it is not for the gate, or has to wait for its
    /// turn.
    fn start_kept(&self, request: &Request) -> Option<Pending> {
        if self.recheck.is_some() && !request.releases() {
            return None;
        }
        match request {
            Request::Command(command @ Command::Lock { key, .. }) => {
                let may = self.is_admitted()
                    && !self.draining
                    && !self.shared.gate.is_reserved(&self.name(Arc::clone(key)));
                may.then(|| self.acquire(command, None)).flatten()
            }
            Request::Command(command) => self.start(command),
            Request::Absorbed(shape) => self.start_absorbed(shape),
        }
    }

    /// Starts an `UNLOCK` or `RELOCK`. `None`: its token is no valid one and holds nothing; or the client is
    /// not admitted, which goes unreported only if the client is gone.
    fn start(&self, command: &Command) -> Option<Pending> {
        if !self.is_admitted() {
            return None;
        }
        let gate = &self.shared.gate;
        match command {
            Command::Unlock { key, token } if self.may_hold(key, token) => {
                let name = self.name(key.clone());
                Some(gate.unlock(&self.who, name, token.clone(), self.asked_at(), false))
            }
            Command::Relock {
                key,
                token,
                lease_ms,
                replicas,
            } if self.may_hold(key, token) => {
                let extension = Extension {
                    lease_ms: lease_ms.unwrap_or(self.shared.default_lease_ms),
                    replicas: replicas.unwrap_or(self.shared.default_replicas),
                };
                let (name, token) = (self.name(key.clone()), token.clone());
                Some(gate.relock(&self.who, name, token, extension, self.asked_at(), false))
            }
            _ => None,
        }
    }

    /// Returns when the client requested the command that starts now.
    pub(super) fn asked_at(&self) -> Time {
        self.came_at.unwrap_or_else(clock::now)
    }

    /// Returns whether a lock of that name can have been granted to the token.
    fn may_hold(&self, key: &Arc<[u8]>, token: &Token) -> bool {
        (1..=self.shared.bounds.token_bytes).contains(&token.as_bytes().len())
            && !self.shared.gate.is_reserved(&self.name(Arc::clone(key)))
    }

    pub(super) fn name(&self, key: Arc<[u8]>) -> LockName {
        LockName {
            database: self.backend.database(),
            key,
        }
    }

    pub(super) fn await_gate(&mut self, cx: &mut Context<'_>, mut running: Running) -> bool {
        if let Poll::Ready(answer) = Pin::new(&mut running.pending).poll(cx) {
            // Redis executes what stands behind a command of its own although its client closed.
            let waited = running.waits() && running.absorbed.is_none();
            if self.stage != Stage::Open && waited && !matches!(answer, Answer::Granted(_)) {
                self.abandon();
            } else {
                self.turn = Turn::Answered(answer, running.absorbed);
            }
            return true;
        }
        let mut moved = false;
        if let Some(passable) = &mut running.passable {
            // Other sessions run between two scans.
            let some = self.requests.lookahead.len() + LOOKED_AT_ONCE;
            let rules = self.shared.live.absorb();
            let reader = Reader {
                bounds: &self.shared.bounds,
                rules: rules.as_deref(),
                database: self.backend.database(),
            };
            moved = self.requests.lookahead.status(
                &self.requests.inbox,
                &reader,
                some.min(self.shared.limits.pipelined_commands),
            );
            self.yields |= moved;
            if moved || !passable.looked {
                let anew = !std::mem::replace(&mut passable.looked, true);
                let mut lookahead = std::mem::take(&mut self.requests.lookahead);
                let is_own = running.absorbed.is_none();
                let front = AtFront {
                    key: &running.pending.name().key,
                    token: running.pending.token(),
                    holds_up: !is_own || passable.waits && running.pending.is_queued(),
                };
                lookahead.overtake(
                    &front,
                    anew,
                    |request| self.start_kept(request),
                    |token| {
                        // What stands behind an attempt ends its parking.
                        if is_own && passable.waits {
                            running.pending.unlock_behind(token.clone());
                        }
                    },
                );
                self.requests.lookahead = lookahead;
            }
            // Nothing waits behind a parked attempt.
            let why = match &running.absorbed {
                _ if self.stage != Stage::Open => Some(EarlyEnd::Closed),
                Some(_) if self.requests.lookahead.holds_command() => Some(EarlyEnd::Behind),
                _ => None,
            };
            if let Some(why) = why
                && passable.waits
                && !passable.stopped
            {
                if running.absorbed.is_some() {
                    self.is_shared |= why == EarlyEnd::Behind;
                    self.ended_early(why);
                }
                passable.stopped = true;
                running.pending.stop_waiting();
                moved = true;
            }
        }
        if running.waits() && self.requests.lookahead.poll_acquisitions(cx) {
            // Redis replies in order. So this LOCK waits, unless its reply has just come, too.
            if let Poll::Ready(answer) = Pin::new(&mut running.pending).poll(cx) {
                self.turn = Turn::Answered(answer, running.absorbed);
                return true;
            }
            self.requests.lookahead.withdraw_acquisitions();
        }
        self.turn = Turn::Running(running);
        // If the answer has arrived meanwhile, the next turn takes it; if not, nothing is done twice.
        moved
    }

    /// Writes the answer to a lock command, but never inside a reply or message of Redis. A grant waits until
    /// its client has taken everything before it; otherwise its lease might expire meanwhile. It does not
    /// wait if more commands stand behind it: the client may read nothing before it has sent them all.
    pub(super) fn answer(&mut self, answer: Answer, absorbed: Option<Box<Absorbed>>) -> bool {
        let busy = !self.client.is_written() && self.requests.inbox.is_empty();
        let is_grant = matches!(answer, Answer::Granted(_));
        if is_grant && self.recheck.is_some() && !self.stage.is_mute() {
            return self.stay(Turn::Answered(answer, absorbed));
        }
        // A command that overtook may be answered before Redis has replied to one that it overtook.
        let is_next = self.stage.is_mute() || self.backend.is_settled();
        if !is_next || (is_grant && busy && !self.stage.is_mute()) {
            return self.stay(Turn::Answered(answer, absorbed));
        }
        if let Some(absorbed) = absorbed {
            return self.answer_absorbed(answer, &absorbed);
        }
        match answer {
            Answer::Granted(grant) if grant.is_over() => {
                self.shared.counters().refused(&Refusal::Expired);
                self.write_answer(|out, protocol| answer::refusal(out, protocol, &Refusal::Expired))
            }
            Answer::Granted(grant) => {
                self.write_answer(|out, protocol| answer::granted(out, protocol, &grant));
                self.deliver_grant(grant)
            }
            Answer::Nil => self.write_answer(answer::nil),
            Answer::Done => self.write_answer(|out, protocol| answer::number(out, protocol, 1)),
            Answer::NotHeld | Answer::HeldByAnother => {
                self.write_answer(|out, protocol| answer::number(out, protocol, 0))
            }
            Answer::Refused(refusal) => {
                self.write_answer(|out, protocol| answer::refusal(out, protocol, &refusal))
            }
        }
    }

    /// Delivers a grant whose reply is in the outbox.
    pub(super) fn deliver_grant(&mut self, grant: Grant) -> bool {
        // From here on the lease may expire while the reply is on its way, as with Redis itself. A client that lockgate
        // stopped reading for a shutdown is still present.
        if self.left {
            self.late.push(grant);
        } else {
            self.replies.delivering.push(self.client.end(), grant);
        }
        true
    }

    /// Writes the reply to the running lock command, unless the client suppresses it.
    pub(super) fn write_answer(&mut self, write: impl FnOnce(&mut BytesMut, Protocol)) -> bool {
        let protocol = self.backend.protocol();
        if std::mem::take(&mut self.hides_reply) {
            write(&mut BytesMut::new(), protocol);
        } else {
            write(&mut self.client.outbox, protocol);
        }
        true
    }

    /// Writes the reply to a command that lockgate answers without running it.
    pub(super) fn answer_at_once(&mut self, write: impl FnOnce(&mut BytesMut, Protocol)) -> bool {
        self.hides_reply = self.backend.hides_reply();
        self.write_answer(write)
    }

    /// Drops the commands of a client that left a waiting `LOCK` or cannot be served any longer. Every
    /// `UNLOCK` among them runs if its meaning is known.
    pub(super) fn abandon(&mut self) {
        let turn = std::mem::replace(&mut self.turn, Turn::Open);
        let lookahead = std::mem::take(&mut self.requests.lookahead);
        let rest = std::mem::take(&mut self.requests.inbox).freeze();
        self.end_reading();
        self.requests.clear();
        if !self.backend.changes_nothing() {
            self.requests.frame = Frame::Unnamed;
            return;
        }
        let run = |request: &Request| drop(self.start_kept(request));
        let rules = self.shared.live.absorb();
        let reader = Reader {
            bounds: &self.shared.bounds,
            rules: rules.as_deref(),
            database: self.backend.database(),
        };
        if let Turn::Next(front) = &turn {
            Lookahead::default().each_unlock(front.frame(), &reader, run);
        }
        // Inside an ordinary command the start of the next frame is unknown.
        if self.requests.frame != Frame::Ordinary {
            lookahead.each_unlock(&rest, &reader, run);
        }
        self.requests.frame = Frame::Unnamed;
    }
}
