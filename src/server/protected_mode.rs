//! Protected mode, as in Redis: where no password is required, only clients on this machine are served. To the
//! Redis behind a proxy every client looks local, so Redis's own protected mode protects nothing here.
//!
//! Clients from other machines need one of three things: a password of this instance (`[auth]`), certificates that
//! clients have to show, or a password that Redis itself requires. Only Redis knows the last one, and it may
//! change. So this instance probes Redis as a client would, whenever a client connects from another machine.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicBool, Ordering},
};

use tracing::warn;

use crate::{
    error::{self, DENIED},
    lock::Refusal,
    session::Shared,
    store::Admission,
};

/// Protected mode, and whether the log has its warning.
#[derive(Default)]
pub(super) struct ProtectedMode {
    told: AtomicBool,
}

impl ProtectedMode {
    /// Decides about a client on another machine, which `has_shown` a certificate or not. Returns the error that
    /// refuses it, without the leading `-`; None: the client is served.
    pub(super) async fn refuses(&self, shared: &Shared, has_shown: bool) -> Option<Vec<u8>> {
        if !shared.protected_mode || shared.guard.is_some() || has_shown {
            return None;
        }
        let refusal = match shared.gate.admits(None, Some(shared.timeout)).await {
            // Redis requires a password.
            Admission::Refused(_) => return None,
            Admission::Welcome(_) => Cow::Borrowed(DENIED.as_bytes()),
            Admission::Unanswered(Some(trouble)) => Cow::Owned(trouble.to_vec()),
            Admission::Unanswered(None) => error::refusal(&Refusal::Upstream),
        };
        if !self.told.swap(true, Ordering::Relaxed) {
            warn!(
                "protected mode: clients from elsewhere are refused, since lockgate has no password \
                 (auth.password, protected_mode)"
            );
        }
        Some(refusal.into_owned())
    }
}
