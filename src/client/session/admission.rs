//! On whose behalf the lock commands of a connection run: the user that Redis took its client for. Who
//! has not authenticated is asked about, once for a connection and `RESET`: whether a password is needed
//! is Redis's to say, which asks for it at the beginning of a connection only, and may begin to at any time.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;

use super::{Session, Turn};
use crate::{
    client::{
        answer,
        command::{Command, parse},
        state::Identity,
    },
    clock,
    identity::User,
    limits::LOCK_COMMAND_ARGUMENTS,
    lock::{Refusal, Time},
    resp::arguments,
    store::{Admission, Later},
};

/// Somebody on whose behalf lock commands run.
pub(super) struct Admitted {
    /// Held for as long as the connection is its: it is known by its number.
    #[expect(dead_code, reason = "it is held, not used")]
    user: Arc<User>,
    /// The changes of identity up to then.
    changes: u64,
}

/// A lock command of somebody who has not authenticated, while Redis is asked whether one has to.
pub(super) struct AtDoor {
    frame: Bytes,
    admission: Later<Admission>,
    came_at: Time,
    /// It is a `LOCK` that may wait; and for how long, where it says so.
    waits: Option<Option<Duration>>,
}

impl AtDoor {
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.is_some()
    }
}

impl Session {
    /// Lock commands run as somebody who may send them.
    pub(super) fn is_admitted(&self) -> bool {
        let now = self.back.identity().ok();
        let admitted = self.admitted.as_ref();
        now.is_some_and(|(_, changes)| admitted.is_some_and(|it| it.changes == changes))
    }

    /// A lock command has its turn: it runs as soon as it is known on whose behalf.
    pub(super) fn admit(&mut self, frame: Bytes) {
        let said = self.back.said();
        if !self.who.label.says(said) {
            self.who.label = Arc::new(self.who.label.saying(said));
        }
        if self.is_admitted() {
            return self.run_or_refuse(&frame);
        }
        let user = match self.back.identity() {
            Err(text) => {
                self.refuse(text);
                return;
            }
            Ok((Identity::Known(credentials), _)) => Some(self.shared.users.accepted(credentials)),
            // The memory of this process belongs to everybody.
            Ok(_) if self.shared.upstream.is_none() => Some(self.shared.users.anonymous()),
            Ok(_) => None,
        };
        if let Some(user) = user {
            self.admit_as(user);
            return self.run_or_refuse(&frame);
        }
        let waits = self.waits(&frame);
        let patience = waits.unwrap_or(Some(self.shared.timeout));
        self.turn = Turn::AtDoor(AtDoor {
            frame,
            admission: self.shared.gate.admits_anonymous(patience),
            came_at: clock::now(),
            waits,
        });
    }

    pub(super) fn await_admission(&mut self, cx: &mut Context<'_>, mut at_door: AtDoor) -> bool {
        if !self.may_answer() {
            return self.stay(Turn::AtDoor(at_door));
        }
        let Poll::Ready(admission) = at_door.admission.as_mut().poll(cx) else {
            return self.stay(Turn::AtDoor(at_door));
        };
        match admission {
            Admission::Welcome => {
                self.admit_as(self.shared.users.anonymous());
                self.waited_ms = clock::now().millis_since(at_door.came_at);
                self.run_or_refuse(&at_door.frame);
                self.waited_ms = 0;
                true
            }
            Admission::Refused(text) | Admission::Unanswered(Some(text)) => {
                let refusal = Refusal::Store(text);
                self.write_answer(|out, protocol| answer::refusal(out, protocol, &refusal))
            }
            Admission::Unanswered(None) => {
                let trouble = self.shared.gate.trouble(self.back.database());
                match trouble.map(Refusal::Store) {
                    None if at_door.is_waiting() => self.write_answer(answer::nil),
                    trouble => {
                        let refusal = trouble.unwrap_or(Refusal::Upstream);
                        self.write_answer(|out, protocol| answer::refusal(out, protocol, &refusal))
                    }
                }
            }
        }
    }

    fn admit_as(&mut self, user: Arc<User>) {
        self.who.user = user.id();
        let changes = self.back.identity().map_or(0, |(_, changes)| changes);
        self.admitted = Some(Admitted { user, changes });
    }

    fn refuse(&mut self, text: &str) -> bool {
        self.write_answer(|out, protocol| answer::error(out, protocol, text))
    }

    fn run_or_refuse(&mut self, frame: &Bytes) {
        if let Err(text) = self.run(frame) {
            self.refuse(&text);
        }
    }

    /// A `LOCK`, and how long it waits.
    fn waits(&self, frame: &Bytes) -> Option<Option<Duration>> {
        let arguments = arguments(frame, LOCK_COMMAND_ARGUMENTS).ok()?;
        match parse(&arguments, &self.shared.bounds).ok()? {
            Command::Lock {
                try_only: false,
                wait_ms,
                ..
            } => Some(wait_ms.map(Duration::from_millis)),
            _ => None,
        }
    }
}
