//! The bytes read from a client and not yet used, and how far they were scanned.

use bytes::{Bytes, BytesMut};

use super::lookahead::Lookahead;
use crate::{
    limits::LOCK_COMMAND_BYTES,
    resp::{ProtocolError, RequestScanner, Step, arguments},
};

/// The inbox of a client.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) inbox: BytesMut,
    /// Bytes at the front of the inbox that go to Redis.
    pub(super) passing: usize,
    /// Bytes of the inbox that were scanned.
    scanned: usize,
    pub(super) scanner: RequestScanner,
    /// The frame that ends the scanned bytes.
    pub(super) frame: Frame,
    /// The commands behind the scanned bytes, where a `LOCK` waits.
    pub(super) lookahead: Lookahead,
}

/// The kind of the frame being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Frame {
    /// Its name has not been read.
    #[default]
    Unnamed,
    Ordinary,
    Lock,
    /// An ordinary command that is read whole before it passes.
    Kept,
    /// A command of Redis's own that may be a request about a lock, read whole.
    Candidate,
    /// A command for the guard, read whole.
    Guarded,
    /// A command of an unauthenticated client, skipped and refused at its end.
    Unauthenticated,
    /// A command too long to be kept whole, skipped and refused at its end.
    Excess,
    /// HTTP: the client is dropped.
    CrossProtocol,
}

impl Requests {
    /// Returns the number of bytes that were not scanned.
    pub(super) fn unscanned(&self) -> usize {
        self.inbox.len() - self.scanned
    }

    /// Scans on, up to the next step.
    pub(super) fn scan(&mut self) -> Result<Step, ProtocolError> {
        let (count, step) = self.scanner.scan(&self.inbox[self.scanned..]);
        self.scanned += count;
        step
    }

    /// Returns the scanned bytes that do not go to Redis: of the frame being read, or of the one just read.
    pub(super) fn part(&self) -> &[u8] {
        &self.inbox[self.passing..self.scanned]
    }

    /// Returns the size of the frame, as far as it was scanned.
    pub(super) fn frame_bytes(&self) -> usize {
        usize::try_from(self.scanner.frame_bytes()).unwrap_or(usize::MAX)
    }

    /// Returns the arguments of the command just read, unless it exceeds `LOCK_COMMAND_BYTES`.
    pub(super) fn arguments(&self) -> Option<Vec<Bytes>> {
        let frame = self.part();
        if frame.len() > LOCK_COMMAND_BYTES {
            return None;
        }
        arguments(&Bytes::copy_from_slice(frame), LOCK_COMMAND_BYTES).ok()
    }

    /// Lets all scanned bytes go to Redis.
    pub(super) fn pass_scanned(&mut self) {
        self.passing = self.scanned;
    }

    /// Lets all bytes go to Redis, without scanning them.
    pub(super) fn pass_all(&mut self) {
        self.scanned = self.inbox.len();
        self.pass_scanned();
    }

    /// Records that the passing bytes left the inbox.
    pub(super) fn passed(&mut self) {
        self.scanned -= std::mem::take(&mut self.passing);
    }

    /// Takes the scanned bytes, of which none goes to Redis.
    pub(super) fn take_scanned(&mut self) -> Bytes {
        let frame = self.inbox.split_to(std::mem::take(&mut self.scanned));
        if self.inbox.is_empty() {
            self.inbox = BytesMut::new();
        }
        frame.freeze()
    }

    /// Drops all bytes.
    pub(super) fn clear(&mut self) {
        self.inbox.clear();
        (self.passing, self.scanned) = (0, 0);
    }
}
