//! Grants whose replies are being written. A client has its lock once its socket has accepted the reply. A
//! grant that is dropped before is taken back.

use std::collections::VecDeque;

use crate::{gate::Grant, limits::KEPT_GRANT_BYTES};

/// Grants on their way to one client, in the order of their replies.
#[derive(Default)]
pub(super) struct Delivering {
    /// Each grant with the end of its reply ([`Pipe::end`](crate::transport::pipe::Pipe::end)).
    grants: VecDeque<(u64, Grant)>,
    bytes: usize,
    sessions: usize,
}

impl Delivering {
    pub(super) fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// Returns the memory for these grants, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many of them bind their lease to the connection (`SESSION`).
    pub(super) fn sessions(&self) -> usize {
        self.sessions
    }

    /// Adds a grant whose reply ends at `end`.
    pub(super) fn push(&mut self, end: u64, grant: Grant) {
        self.bytes += bytes_of(&grant);
        self.sessions += usize::from(grant.is_session());
        self.grants.push_back((end, grant));
    }

    /// Removes and returns the next grant whose reply ends at or before `written`.
    pub(super) fn take_written(&mut self, written: u64) -> Option<Grant> {
        self.grants.front().filter(|(end, _)| *end <= written)?;
        let (_, grant) = self.grants.pop_front()?;
        self.bytes -= bytes_of(&grant);
        self.sessions -= usize::from(grant.is_session());
        if self.grants.is_empty() {
            self.grants = VecDeque::new();
        }
        Some(grant)
    }
}

fn bytes_of(grant: &Grant) -> usize {
    KEPT_GRANT_BYTES + grant.name().key.len() + grant.token().as_bytes().len()
}
