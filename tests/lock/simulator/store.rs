//! A model of one key in Redis: scripts that run at once, an expiry that is true at its time but
//! told late, and tracking as Redis does it. A read arms the reader's connection; a change by
//! somebody else tells and disarms it, one's own change disarms it without a word (`NOLOOP`); a key
//! that is found expired is told to everybody, the finder included.

use std::collections::BTreeSet;

use lockgate::lock::{Answer, Deadline, LinkId, Outcome, Question, Token};

#[derive(Default)]
pub(crate) struct Store {
    value: Option<(Token, u64)>,
    armed: BTreeSet<LinkId>,
    /// Grows with every change.
    pub(crate) version: u64,
    /// To be told of a change.
    pub(crate) pushes: Vec<LinkId>,
    /// Commands of clients.
    pub(crate) commands: u64,
}

impl Store {
    /// Who holds the lock at `now`, in microseconds, and until when, in milliseconds.
    pub(crate) fn holder(&self, now: u64) -> Option<(&Token, u64)> {
        // A key lives through the whole of its last millisecond.
        let lives = |(_, deadline): &&(Token, u64)| now / 1_000 <= *deadline;
        self.value
            .as_ref()
            .filter(lives)
            .map(|(token, deadline)| (token, *deadline))
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.value.as_ref().map(|(_, deadline)| *deadline)
    }

    fn change(&mut self, value: Option<(Token, u64)>, by: Option<LinkId>) {
        self.value = value;
        self.version += 1;
        let armed = std::mem::take(&mut self.armed);
        self.pushes
            .extend(armed.into_iter().filter(|link| Some(*link) != by));
    }

    /// Removes a key whose time is over, as Redis does whenever it comes across it.
    pub(crate) fn expire(&mut self, now: u64) {
        if self.value.is_some() && self.holder(now).is_none() {
            self.change(None, None);
        }
    }

    /// What a plain client does: `SET key token NX PX lease`.
    pub(crate) fn set_nx(&mut self, now: u64, token: &Token, lease_ms: u64) -> bool {
        self.expire(now);
        if self.value.is_some() {
            return false;
        }
        self.change(Some((token.clone(), now / 1_000 + lease_ms)), None);
        true
    }

    /// What a plain client does: delete the key if the token holds it; or, without one, at any rate.
    pub(crate) fn delete(&mut self, now: u64, token: Option<&Token>) -> bool {
        self.expire(now);
        match &self.value {
            Some((holder, _)) if token.is_none_or(|token| token == holder) => {
                self.change(None, None);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn answer(&mut self, now: u64, link: LinkId, question: &Question) -> Answer {
        self.commands += 1;
        self.expire(now);
        let outcome = self.run(now, link, question);
        // It ends with a read.
        self.armed.insert(link);
        Answer {
            outcome,
            armed: Some(link),
        }
    }

    fn run(&mut self, now: u64, link: LinkId, question: &Question) -> Outcome {
        let set = |store: &mut Self, token: &Token, lease_ms: u64| {
            let anew = now / 1_000 + lease_ms;
            let deadline = match &store.value {
                Some((holder, before)) if holder == token && anew.abs_diff(*before) < 3 => {
                    before + 3
                }
                _ => anew,
            };
            let fresh = store
                .value
                .as_ref()
                .is_none_or(|(holder, _)| holder != token);
            store.change(Some((token.clone(), deadline)), Some(link));
            Outcome::Granted {
                deadline: Deadline(deadline),
                fresh,
                fence: None,
            }
        };
        let holder = self.value.clone();
        let is = |token: &Token| holder.as_ref().is_some_and(|(holder, _)| holder == token);
        let is_at = |only_if: &Option<Deadline>| {
            only_if.is_none_or(|at| {
                holder
                    .as_ref()
                    .is_some_and(|(_, deadline)| *deadline == at.0)
            })
        };
        let held = || match &holder {
            Some((token, deadline)) => Outcome::Held {
                holder: Some(token.clone()),
                ttl_ms: Some(deadline.saturating_sub(now / 1_000)),
            },
            None => Outcome::Free,
        };
        match question {
            Question::Ask {
                token, lease_ms, ..
            } if holder.is_none() || is(token) => set(self, token, *lease_ms),
            Question::Ask { .. } => held(),
            Question::HandOver {
                from,
                only_if,
                to,
                lease_ms,
                ..
            } if is(from) && is_at(only_if) => set(self, to, *lease_ms),
            Question::HandOver { to, lease_ms, .. } if is(to) => set(self, to, *lease_ms),
            Question::HandOver { .. } => held(),
            Question::Release { token, only_if, .. } if is(token) && is_at(only_if) => {
                self.change(None, Some(link));
                Outcome::Free
            }
            Question::Release { .. } => Outcome::Held {
                holder: None,
                ttl_ms: None,
            },
            Question::Extend {
                token, lease_ms, ..
            } if is(token) => set(self, token, *lease_ms),
            Question::Extend { .. } | Question::Check { .. } | Question::Restore { .. } => held(),
        }
    }
}
