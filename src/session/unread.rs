//! Replies that the client has not read.
//!
//! They never stop the reading of requests: Redis accepts those, and keeps the replies in its own output
//! buffer. lockgate keeps `limits.relay_bytes` of them. It keeps more only where the client's commands have
//! to wait for them: a lock command runs when every reply before it has arrived. That memory comes out of a
//! [budget](crate::session::budget) that all clients share. When the budget allows no more, the client has to
//! read. A client that takes nothing for [`STARVED`] is closed, since it may read nothing before it has
//! written everything.

use std::{
    pin::Pin,
    task::Context,
    time::{Duration, Instant},
};

use tokio::time::Sleep;
use tracing::warn;

use super::{Session, turn::Turn};
use crate::limits::READ_BYTES;

/// Longest time that a client may take nothing while its commands cannot proceed before it reads. (With some
/// megabytes in the socket's send buffer, the system reports that the client took some only once it took a
/// third of them; over a slow line that takes a while.)
const STARVED: Duration = Duration::from_secs(30);

/// Interval at which such a client checks the budget again.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Since when a client has taken nothing, and the timer of the next check.
pub(super) struct Starved {
    since: Instant,
    status: Pin<Box<Sleep>>,
}

impl Session {
    /// Returns the bytes that wait for the client to read, including the memory for grants.
    fn unread(&self) -> usize {
        self.client.unwritten() + self.replies.delivering.bytes()
    }

    /// Returns whether one more piece may be kept for the client.
    pub(super) fn keeps_more(&mut self) -> bool {
        self.client.set_aside();
        let unread = self.unread();
        let Some(over) = unread.checked_sub(self.shared.limits.relay_bytes) else {
            return true;
        };
        let keeps = over < self.replies.share.bytes()
            || self.is_let_in() && self.replies.share.grow(READ_BYTES);
        self.replies.refused |= !keeps;
        keeps
    }

    /// Returns whether the client has authenticated, where it has to. Nothing is kept for one that has not.
    fn is_let_in(&self) -> bool {
        !self.is_unauthenticated() && (self.backend.has_served() || self.is_admitted())
    }

    /// Gives back the budget that the client no longer needs.
    pub(super) fn keep_less(&mut self) {
        let unread = self.unread();
        let over = unread.saturating_sub(self.shared.limits.relay_bytes);
        self.replies
            .share
            .shrink_to(over.next_multiple_of(READ_BYTES));
    }

    /// Returns whether to read from Redis.
    pub(super) fn reads_replies(&mut self) -> bool {
        self.client.unwritten() < self.shared.limits.relay_bytes
            || self.waits_for_replies() && self.keeps_more()
    }

    /// Returns whether the client's commands cannot proceed before replies have arrived.
    fn waits_for_replies(&self) -> bool {
        match self.turn {
            Turn::Open => !self.backend.has_room(),
            _ => !self.backend.is_settled(),
        }
    }

    /// Returns whether the client's commands cannot proceed before there is room for unread replies.
    fn waits_for_room(&self) -> bool {
        match self.turn {
            Turn::Open => self.waits_for_replies() || !self.backend.streams() && !self.is_done(),
            Turn::Next(_) | Turn::Refusing(_) => true,
            _ => self.waits_for_replies(),
        }
    }

    /// Closes a client that takes nothing for too long.
    pub(super) fn look_for_starvation(&mut self, cx: &mut Context<'_>) -> bool {
        // Asked anew, the budget could allow it now, and nothing would wake the session that it refused before.
        let refused = std::mem::take(&mut self.replies.refused);
        if self.is_closing() || !self.waits_for_room() || !refused {
            self.replies.starved = None;
            return false;
        }
        let starved = self.replies.starved.get_or_insert_with(|| Starved {
            since: Instant::now(),
            status: Box::pin(tokio::time::sleep(ASK_AGAIN)),
        });
        if starved.status.as_mut().poll(cx).is_pending() {
            return false;
        }
        if starved.since.elapsed() < STARVED {
            let next = tokio::time::Instant::now() + ASK_AGAIN;
            starved.status.as_mut().reset(next);
            return true;
        }
        self.shared.counters().closed_starved_clients.count();
        if let Some(left_out) = self.shared.warnings.starved.is_due() {
            warn!(
                client = %self.who.label,
                unread_bytes = self.client.unwritten(),
                left_out,
                "closing a client that read nothing for {STARVED:?}, while a command that it sent waits for replies \
                 before it to be kept, of which there are as many as may be (limits.kept_reply_bytes)"
            );
        }
        self.give_up();
        true
    }
}
