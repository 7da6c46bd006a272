//! Tokens that may hold the lock although no client was told so: the store may have executed a request that was not
//! sent again, or may yet execute one that was given up. If no client waits with such a token, the queue releases it.

use std::collections::BTreeMap;

use super::{Context, InFlight, PendingOp, Queue};
use crate::lock::{
    event::{Token, UserId},
    fault::{Fault, planted},
};

/// The maker of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Maker {
    /// No client knows the token.
    Lockgate,
    /// The token may be in use at another instance.
    Client,
}

impl Queue {
    /// Records that the token of a request may hold the lock: the request is not sent again, but the store may have
    /// executed an earlier sending.
    pub(super) fn doubt(&mut self, in_flight: &InFlight) {
        if let (Some((user, token, _)), true) =
            (in_flight.store_request.grants_to(), in_flight.again)
        {
            let maker = match in_flight.explicit {
                true => Maker::Client,
                false => Maker::Lockgate,
            };
            self.unsure.insert((user, token.clone()), maker);
        }
    }

    /// Takes back the locks that may be held for no client. A token that a client named may be in use at another
    /// instance by now, and is left to its lease.
    pub(super) fn take_back_unsure(&mut self, context: &Context<'_>) {
        let unsure = std::mem::take(&mut self.unsure);
        let is_there =
            |(user, token): &(UserId, Token)| self.waiters.of_owner(*user, token).is_some();
        let (there, gone) = unsure.into_iter().partition(|(owner, _)| is_there(owner));
        self.unsure = there;
        let gone: BTreeMap<_, _> = gone;
        for ((user, token), maker) in gone {
            if maker == Maker::Client || planted(Fault::UnknownIsNotDone) {
                continue;
            }
            // The store may yet execute a request that was given up, so the queue releases the token once more by then.
            let again_at = context.now.plus_millis(context.settings.answer_within_ms);
            self.late.push_back((again_at, user, token.clone()));
            self.ops.put(PendingOp::GiveAway {
                user,
                token,
                only_if: None,
            });
        }
    }

    /// Releases tokens once more that may have come to hold the lock late.
    pub(super) fn release_late(&mut self, context: &Context<'_>) {
        while self
            .late
            .front()
            .is_some_and(|(time, ..)| *time <= context.now)
            && let Some((_, user, token)) = self.late.pop_front()
        {
            self.ops.put(PendingOp::GiveAway {
                user,
                token,
                only_if: None,
            });
        }
    }
}
