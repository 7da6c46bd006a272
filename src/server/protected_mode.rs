//! Protected mode, as Redis has it: where nobody asks clients for a password, only those of this machine
//! are served. To the Redis behind every client of a proxy looks local, so its own protected mode
//! protects nobody here.
//!
//! What counts: a password of this gate (`[auth]`), certificates that clients have to show, or that Redis
//! itself asks for a password. The last one only Redis can tell, and it may change, so it is asked, as a
//! client would ask, when somebody comes from elsewhere.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicBool, Ordering},
};

use tracing::warn;

use crate::{
    client::Shared,
    error::{self, DENIED},
    lock::Refusal,
    store::Admission,
};

/// Whether clients from elsewhere are served.
#[derive(Default)]
pub(super) struct ProtectedMode {
    told: AtomicBool,
}

impl ProtectedMode {
    /// Somebody who is not on this machine comes, and has shown a certificate or not: the error to refuse
    /// it with, without the leading `-`.
    pub(super) async fn refuses(&self, shared: &Shared, has_shown: bool) -> Option<Vec<u8>> {
        if !shared.protected_mode || shared.guard.is_some() || has_shown {
            return None;
        }
        let refusal = match shared.gate.admits(None, Some(shared.timeout)).await {
            // It asks for a password.
            Admission::Refused(_) => return None,
            Admission::Welcome(_) => Cow::Borrowed(DENIED.as_bytes()),
            Admission::Unanswered(Some(trouble)) => Cow::Owned(trouble.to_vec()),
            Admission::Unanswered(None) => error::refusal(&Refusal::Upstream),
        };
        if !self.told.swap(true, Ordering::Relaxed) {
            warn!(
                "protected mode: clients from elsewhere are refused, since nobody asks them for a password \
                 (auth.password, protected_mode)"
            );
        }
        Some(refusal.into_owned())
    }
}
