//! One socket with its two buffers. Bytes wait in a buffer only while they must; an idle
//! connection has none.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{limits::READ_BYTES, transport::stream::Stream};

thread_local! {
    /// Where bytes are read to. One for each thread, so that thousands of idle connections hold no
    /// buffer, and what can be written on at once costs no allocation.
    static SPACE: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// So many bytes are large: to keep them for the next flush costs more than it saves.
const LARGE: usize = 8 * 1024;

/// An outbox that reaches this size, in bytes, is set aside and a new one begun. A long backlog is then neither moved
/// to make room for more, nor kept in memory once it is written.
const PIECE: usize = 64 * 1024;

/// Most bytes that TLS takes before they are on their way.
const HELD_BY_TLS: u64 = 128 * 1024;

/// Lends the space that bytes are read to. It is not lent twice at a time.
pub(super) fn with_space<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    SPACE.with_borrow_mut(|space| f(space))
}

/// A socket, what was read from it and not yet used, and what is to be written to it.
#[derive(Debug)]
pub(super) struct Pipe {
    stream: Stream,
    /// What was read and not yet used.
    pub(super) inbox: BytesMut,
    /// What is to be written, behind what was set aside.
    pub(super) outbox: BytesMut,
    /// What is to be written first, piece by piece.
    aside: VecDeque<BytesMut>,
    /// The bytes of these pieces.
    aside_bytes: usize,
    /// Bytes read from the socket, and bytes that it took, since somebody counted them last.
    pub(super) read: u64,
    pub(super) written: u64,
    /// The other side writes no more.
    pub(super) ended: bool,
    /// The socket took bytes that are not on their way yet.
    unsent: bool,
    /// This side is to write no more, once the outbox is empty.
    closing: bool,
    closed: bool,
    /// The socket took no more. It wakes the task when it does; one that failed never does.
    stuck: bool,
}

impl Pipe {
    /// A connected socket. Small packets are sent at once.
    ///
    /// # Errors
    /// The socket takes no options: it is gone already.
    pub(super) fn new(stream: Stream) -> io::Result<Self> {
        stream.set_nodelay()?;
        let (inbox, outbox) = (BytesMut::new(), BytesMut::new());
        Ok(Self {
            stream,
            inbox,
            outbox,
            aside: VecDeque::new(),
            aside_bytes: 0,
            read: 0,
            written: 0,
            ended: false,
            unsent: false,
            closing: false,
            closed: false,
            stuck: false,
        })
    }

    /// Reads once, if there is anything, into `space` ([`with_space`]): returns the bytes read, none
    /// at the end.
    pub(super) fn poll_read<'a>(
        &mut self,
        cx: &mut Context<'_>,
        space: &'a mut [u8],
    ) -> Poll<io::Result<&'a [u8]>> {
        let mut read = ReadBuf::new(&mut *space);
        match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
            Poll::Ready(Ok(())) => {
                let count = read.filled().len();
                self.ended = count == 0;
                self.read += count as u64;
                Poll::Ready(Ok(&space[..count]))
            }
            Poll::Ready(Err(error)) => {
                self.ended = true;
                Poll::Ready(Err(error))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// These bytes are to be written. So much that copying it would cost more than it saves is written at
    /// once, where nothing waits before it.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) {
        let mut sent = 0;
        if bytes.len() >= LARGE
            && self.unwritten() == 0
            && let Poll::Ready(Ok(count)) = Pin::new(&mut self.stream).poll_write(cx, bytes)
        {
            sent = count;
            self.written += count as u64;
            self.unsent = self.stream.holds_unsent();
        }
        if sent < bytes.len() {
            self.outbox.extend_from_slice(&bytes[sent..]);
        }
    }

    /// Something is to be written that the socket was not asked yet to take: [`Pipe::poll_flush`] is due.
    pub(super) fn is_due(&self) -> bool {
        !self.stuck && (!self.is_written() || self.closing && !self.closed)
    }

    /// Writes what is to be written, as far as the socket takes it; ready when nothing is left.
    ///
    /// # Errors
    /// The other side is gone.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.poll_write_all(cx);
        self.stuck = !matches!(flushed, Poll::Ready(Ok(())));
        flushed
    }

    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.unwritten() > 0 {
            let next = self.aside.front_mut().unwrap_or(&mut self.outbox);
            match Pin::new(&mut self.stream).poll_write(cx, next) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    next.advance(written);
                    let is_done = next.is_empty();
                    if !self.aside.is_empty() {
                        self.aside_bytes -= written;
                        if is_done {
                            self.aside.pop_front();
                        }
                    }
                    self.written += written as u64;
                    self.unsent = self.stream.holds_unsent();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.aside.capacity() > 0 {
            self.aside = VecDeque::new();
        }
        if self.outbox.capacity() > 0 {
            self.outbox = BytesMut::new();
        }
        if self.unsent {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unsent = false;
        }
        if self.closing && !self.closed {
            match Pin::new(&mut self.stream).poll_shutdown(cx) {
                Poll::Ready(result) => {
                    self.closed = true;
                    return Poll::Ready(result);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Bytes that are to be written.
    pub(super) fn unwritten(&self) -> usize {
        self.aside_bytes + self.outbox.len()
    }

    /// Sets a long outbox aside. To be called where more may be appended than the socket takes at once.
    pub(super) fn set_aside(&mut self) {
        if self.outbox.len() >= PIECE {
            let mut piece = std::mem::take(&mut self.outbox);
            if piece.capacity() > piece.len() + piece.len() / 4 {
                piece = BytesMut::from(&piece[..]);
            }
            self.aside_bytes += piece.len();
            self.aside.push_back(piece);
        }
    }

    /// Where the outbox ends, counted in bytes from the beginning of the connection.
    pub(super) fn end(&self) -> u64 {
        self.written + self.unwritten() as u64
    }

    /// How far what was to be written is on its way for certain, counted likewise.
    pub(super) fn on_its_way(&self) -> u64 {
        match self.unsent {
            true => self.written.saturating_sub(HELD_BY_TLS),
            false => self.written,
        }
    }

    /// Everything that was to be written is on its way.
    pub(super) fn is_written(&self) -> bool {
        self.unwritten() == 0 && !self.unsent
    }

    /// Nobody takes what is to be written.
    pub(super) fn forget_unwritten(&mut self) {
        self.outbox.clear();
        self.aside.clear();
        self.aside_bytes = 0;
        self.unsent = false;
    }

    /// The last thing that is done.
    pub(super) fn say_goodbye(&mut self, cx: &mut Context<'_>) {
        self.stream.say_goodbye(cx);
    }

    /// Nothing more is to be written after what is in the outbox.
    pub(super) fn close_writing(&mut self) {
        self.closing = true;
    }

    /// The other side has closed, though bytes that were not read may stand before its end.
    pub(super) fn is_closed_behind_unread(&self) -> bool {
        self.stream.is_closed_behind_unread()
    }

    /// Moves the first `count` bytes of `from`'s inbox to this outbox, without copying where it can.
    pub(super) fn pass_on(&mut self, from: &mut BytesMut, count: usize) {
        if self.outbox.is_empty() {
            self.outbox = from.split_to(count);
        } else {
            self.outbox.extend_from_slice(&from[..count]);
            from.advance(count);
        }
        if from.is_empty() {
            *from = BytesMut::new();
        }
    }
}
