//! Replies that the client has not read yet.
//!
//! They never stop the reading of requests: Redis takes those, and keeps the replies in its own output buffer. lockgate
//! keeps `limits.relay_bytes` of them, and more only where what the client sent has to wait for them: a lock command
//! runs when every reply before it has arrived. What it keeps then comes out of a [budget](crate::client::budget) that
//! all clients share. Where no more may be kept, the client has to read; one that takes nothing for [`STARVED`] is
//! closed, since it may be one that reads nothing before it has written all.

use std::{
    pin::Pin,
    task::Context,
    time::{Duration, Instant},
};

use tokio::time::Sleep;
use tracing::warn;

use super::{Session, Turn};
use crate::limits::READ_BYTES;

/// How long a client may take nothing while what it sent cannot go on before it does. (A system that has some megabytes
/// for it tells that the client took some only when it took a third of them: over a slow line that takes a while.)
const STARVED: Duration = Duration::from_secs(30);

/// How often such a client asks whether more may be kept by now.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Since when a client has taken nothing, and when to look again.
pub(super) struct Starved {
    since: Instant,
    look: Pin<Box<Sleep>>,
}

impl Session {
    /// What waits for the client to read, in bytes.
    fn unread(&self) -> usize {
        self.client.unwritten() + self.delivering.bytes()
    }

    /// One more piece may be kept for the client.
    pub(super) fn keeps_more(&mut self) -> bool {
        self.client.set_aside();
        let unread = self.unread();
        let Some(over) = unread.checked_sub(self.shared.limits.relay_bytes) else {
            return true;
        };
        over < self.share.bytes() || self.is_let_in() && self.share.grow(READ_BYTES)
    }

    /// The client has authenticated, where it has to: nothing is kept for one that has not.
    fn is_let_in(&self) -> bool {
        !self.is_barred() && (self.back.has_served() || self.is_admitted())
    }

    /// The client has taken something.
    pub(super) fn keep_less(&mut self) {
        let unread = self.unread();
        let over = unread.saturating_sub(self.shared.limits.relay_bytes);
        self.share.shrink_to(over.next_multiple_of(READ_BYTES));
    }

    /// Redis is to be read from.
    pub(super) fn reads_replies(&mut self) -> bool {
        self.client.unwritten() < self.shared.limits.relay_bytes
            || self.waits_for_replies() && self.keeps_more()
    }

    /// What the client sent cannot go on before replies have come.
    fn waits_for_replies(&self) -> bool {
        match self.turn {
            Turn::Open => !self.back.has_room(),
            _ => !self.back.is_settled(),
        }
    }

    /// What the client sent cannot go on before there is room for what it has not read.
    fn waits_for_room(&self) -> bool {
        match self.turn {
            Turn::Open => self.waits_for_replies() || !self.back.streams() && !self.is_done(),
            Turn::Next(_) | Turn::Refusing(_) => true,
            _ => self.waits_for_replies(),
        }
    }

    /// A client that takes nothing is not waited for for ever.
    pub(super) fn look_for_starvation(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closing || !self.waits_for_room() || self.keeps_more() {
            self.starved = None;
            return false;
        }
        let starved = self.starved.get_or_insert_with(|| Starved {
            since: Instant::now(),
            look: Box::pin(tokio::time::sleep(ASK_AGAIN)),
        });
        if starved.look.as_mut().poll(cx).is_pending() {
            return false;
        }
        if starved.since.elapsed() < STARVED {
            let next = tokio::time::Instant::now() + ASK_AGAIN;
            starved.look.as_mut().reset(next);
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
