//! Admits the client of a lock command as a user. Before a connection's first lock command, and after each
//! `AUTH`, `HELLO … AUTH` and `RESET`, the store verifies the credentials that the client gave, unless a
//! recent verification of the same credentials still counts. Of a client that gave none, it checks whether
//! Redis serves it. Redis's reply on the client's own connection is not enough: it shows only that the client
//! claims to be a user.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::sleep;

use super::{Session, absorbing::Front, answer, turn::Turn};
use crate::{
    auth::identity::{Credentials, User},
    clock,
    command::{Command, parse},
    gate::Answer,
    limits::LOCK_COMMAND_ARGUMENTS,
    lock::{Refusal, Time},
    relay::state::Identity,
    resp::arguments,
    session::admission_queue::Ticket,
    store::{Admission, Later},
};

/// The user on whose behalf lock commands run.
pub(super) struct Admitted {
    /// Held until another user is admitted or the connection ends: the connection refers to it by its number.
    user: Arc<User>,
    /// The number of identity changes up to the admission.
    changes: u64,
}

/// A lock command whose client the store has to admit first.
pub(super) struct AuthPending {
    front: Front,
    /// The credentials that the client gave.
    claim: Option<Credentials>,
    admission: Later<Admission>,
    /// Its place among the clients with the same claim. The first of them is admitted first.
    ticket: Option<Ticket>,
    /// The user as which the store admits the client.
    user: Option<Arc<User>>,
    came_at: Time,
    /// Set for a `LOCK` that may wait, with its time limit, if any.
    waits: Option<Option<Duration>>,
}

impl AuthPending {
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }
}

impl Session {
    /// Returns whether the client is admitted with its current identity.
    pub(super) fn is_admitted(&self) -> bool {
        let now = self.backend.identity().ok();
        let admitted = self.admitted.as_ref();
        now.is_some_and(|(_, changes)| admitted.is_some_and(|it| it.changes == changes))
    }

    /// Starts a lock command, which runs as soon as its client is admitted.
    pub(super) fn admit(&mut self, front: Front) {
        let client_info = self.backend.client_info();
        if !self.who.label.says(client_info) {
            self.who.label = Arc::new(self.who.label.saying(client_info));
        }
        if self.is_admitted() && (self.recheck.is_none() || self.releases(&front)) {
            return self.run_or_refuse(front);
        }
        let claim = match self.backend.identity() {
            Err(text) => {
                let refusal = Refusal::Store(Bytes::from(text));
                return self.refuse(&front, refusal);
            }
            Ok((Identity::Known(credentials), _)) => Some(credentials.clone()),
            Ok(_) => None,
        };
        let known = match &claim {
            // Every client shares the memory of this process.
            _ if self.shared.upstream.is_none() => Some(self.shared.users.anonymous()),
            Some(credentials) => self.shared.users.user_of(credentials, clock::now()),
            None => None,
        };
        if let Some(user) = known
            && self.shared.admission_queue.is_free(&claim)
        {
            self.admit_as(user);
            return self.run_or_refuse(front);
        }
        let waits = self.waits(&front);
        let patience = waits.unwrap_or(Some(self.shared.timeout));
        self.turn = Turn::AuthPending(Box::new(AuthPending {
            front,
            admission: self.shared.gate.admits(claim.clone(), patience),
            claim,
            ticket: None,
            user: None,
            came_at: clock::now(),
            waits,
        }));
    }

    pub(super) fn await_admission(
        &mut self,
        cx: &mut Context<'_>,
        mut auth_pending: Box<AuthPending>,
    ) -> bool {
        if !self.may_answer() {
            // The clients behind it in the line do not wait for the rest of Redis's message.
            auth_pending.ticket = None;
            return self.stay(Turn::AuthPending(auth_pending));
        }
        let ticket = auth_pending.ticket.take();
        let ticket =
            ticket.unwrap_or_else(|| self.shared.admission_queue.ticket(&auth_pending.claim));
        let user = match auth_pending.user.take() {
            Some(user) => user,
            None => match auth_pending.admission.as_mut().poll(cx) {
                Poll::Ready(Admission::Welcome(user)) => user,
                Poll::Ready(Admission::Refused(text)) => {
                    return self.turn_away(&auth_pending, Some(text));
                }
                Poll::Ready(Admission::Unanswered(text)) => {
                    return self.turn_away(&auth_pending, text);
                }
                Poll::Pending => {
                    auth_pending.ticket = Some(ticket);
                    return self.stay(Turn::AuthPending(auth_pending));
                }
            },
        };
        if ticket.poll_turn(cx).is_pending() {
            (auth_pending.ticket, auth_pending.user) = (Some(ticket), Some(user));
            return self.stay(Turn::AuthPending(auth_pending));
        }
        self.admit_as(user);
        self.came_at = Some(auth_pending.came_at);
        self.run_or_refuse(auth_pending.front);
        self.came_at = None;
        true
    }

    /// Answers a client that was not admitted; `text` is the reason, where known.
    fn turn_away(&mut self, auth_pending: &AuthPending, text: Option<Bytes>) -> bool {
        let trouble = || self.shared.gate.trouble(self.backend.database());
        match text.or_else(trouble).map(Refusal::Store) {
            None if auth_pending.is_waiting() => self.write_answer(answer::nil),
            refusal => {
                let refusal = refusal.unwrap_or(Refusal::Upstream);
                self.refuse(&auth_pending.front, refusal);
                true
            }
        }
    }

    /// Begins to verify an admitted client anew: another server takes the place of the one that accepted its
    /// credentials, and may not. (Whether it serves anonymous clients shows on their shared connection.)
    pub(super) fn check_again(&mut self) {
        if let Some(admitted) = &self.admitted
            && let Ok((Identity::Known(credentials), _)) = self.backend.identity()
        {
            admitted.user.doubt(credentials);
            let claim = Some(credentials.clone());
            self.recheck = Some(self.shared.gate.admits(claim, None));
        }
    }

    /// Closes the client if it is refused. Takes back a grant that has waited for the check for too long.
    pub(super) fn look_for_recheck(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(recheck) = &mut self.recheck else {
            self.withheld = None;
            return false;
        };
        let Poll::Ready(admission) = recheck.as_mut().poll(cx) else {
            return self.look_for_withheld_grant(cx);
        };
        self.recheck = None;
        match admission {
            Admission::Welcome(user) if self.is_admitted() => self.admit_as(user),
            Admission::Welcome(_) => {}
            Admission::Refused(_) | Admission::Unanswered(_) => {
                self.shared.counters().unrestored_clients.count();
                self.cut_off();
            }
        }
        true
    }

    fn look_for_withheld_grant(&mut self, cx: &mut Context<'_>) -> bool {
        let Turn::Answered(answer @ Answer::Granted(_), _) = &mut self.turn else {
            self.withheld = None;
            return false;
        };
        let timeout = self.shared.timeout;
        let withheld = self
            .withheld
            .get_or_insert_with(|| Box::pin(sleep(timeout)));
        if withheld.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.withheld = None;
        *answer = Answer::Refused(Refusal::Upstream);
        self.shared.counters().refused(&Refusal::Upstream);
        true
    }

    fn admit_as(&mut self, user: Arc<User>) {
        self.recheck = None;
        self.who.user = user.id();
        let changes = self.backend.identity().map_or(0, |(_, changes)| changes);
        self.admitted = Some(Admitted { user, changes });
    }

    fn refuse(&mut self, front: &Front, refusal: Refusal) {
        match front {
            Front::Own(_) => {
                self.write_answer(|out, protocol| answer::refusal(out, protocol, &refusal));
            }
            Front::Absorbed(absorbed) => self.fall_open(absorbed, Some(refusal)),
        }
    }

    fn run_or_refuse(&mut self, front: Front) {
        match front {
            Front::Own(frame) => {
                if let Err(text) = self.run(&frame) {
                    self.write_answer(|out, protocol| answer::error(out, protocol, &text));
                }
            }
            Front::Absorbed(absorbed) => self.run_absorbed(absorbed),
        }
    }

    /// Returns whether the command only releases a lock. It grants nothing, so it need not wait for a new check.
    fn releases(&self, front: &Front) -> bool {
        match front {
            Front::Own(_) => matches!(self.parsed(front), Some(Command::Unlock { .. })),
            Front::Absorbed(absorbed) => absorbed.releases(),
        }
    }

    /// Returns whether the command is a `LOCK` that may wait, and for how long.
    fn waits(&self, front: &Front) -> Option<Option<Duration>> {
        match self.parsed(front)? {
            Command::Lock {
                try_only: false,
                wait_ms,
                ..
            } => Some(wait_ms.map(Duration::from_millis)),
            _ => None,
        }
    }

    fn parsed(&self, front: &Front) -> Option<Command> {
        let Front::Own(frame) = front else {
            return None;
        };
        let arguments = arguments(frame, LOCK_COMMAND_ARGUMENTS).ok()?;
        parse(&arguments, &self.shared.bounds).ok()
    }
}

#[cfg(test)]
mod tests;
