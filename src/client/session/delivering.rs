//! Grants whose replies are being written: a client has its lock when its socket took the reply. Dropped before that,
//! a grant is taken back.

use std::collections::VecDeque;

use crate::{gate::Grant, limits::KEPT_GRANT_BYTES};

/// Grants on their way to one client, in the order of their replies.
#[derive(Default)]
pub(super) struct Delivering {
    /// Each with the place where its reply ends ([`Pipe::end`](crate::client::pipe::Pipe::end)).
    grants: VecDeque<(u64, Grant)>,
    bytes: usize,
    sessions: usize,
}

impl Delivering {
    pub(super) fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// The memory that they take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many of them bind their lease to the connection (`SESSION`).
    pub(super) fn sessions(&self) -> usize {
        self.sessions
    }

    /// The reply that ends there is this grant's.
    pub(super) fn push(&mut self, end: u64, grant: Grant) {
        self.bytes += bytes_of(&grant);
        self.sessions += usize::from(grant.is_session());
        self.grants.push_back((end, grant));
    }

    /// The next grant whose reply ends before this place.
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
