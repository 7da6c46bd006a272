//! Whether a lock that is most likely free may be taken by plain commands instead of a script ([`Form::Plain`]), on one
//! connection.
//!
//! The first lock is taken by the script. So a user who may not run scripts, and could not release a lock, is refused at
//! once.
//!
//! [`Form::Plain`]: super::scripts::Form::Plain

use std::sync::atomic::{AtomicU8, Ordering};

const BY_SCRIPT: u8 = 0;
const PLAIN: u8 = 1;
const REFUSED: u8 = 2;

/// How the locks of a connection are taken.
#[derive(Default)]
pub(super) struct PlainAcquisitions(AtomicU8);

impl PlainAcquisitions {
    /// Returns whether plain commands may take a lock.
    pub(super) fn are_allowed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == PLAIN
    }

    /// Records that a script took a lock.
    pub(super) fn script_granted(&self) {
        if self.0.load(Ordering::Relaxed) == BY_SCRIPT {
            let _ = self
                .0
                .compare_exchange(BY_SCRIPT, PLAIN, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Records that Redis took a lock and did not tell its deadline.
    pub(super) fn refused(&self) {
        self.0.store(REFUSED, Ordering::Relaxed);
    }

    /// Starts anew, for a new connection.
    pub(super) fn reset(&self) {
        self.0.store(BY_SCRIPT, Ordering::Relaxed);
    }
}
