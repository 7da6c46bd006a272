//! One socket with its write buffer. Bytes stay in the buffer only as long as they must; an idle connection has
//! no buffer.

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
    /// The read buffer, one for each thread: thousands of idle connections hold no buffer, and bytes that can
    /// be forwarded at once cost no allocation.
    static SPACE: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// From this size on, in bytes, buffering for the next flush costs more than it saves.
const LARGE: usize = 8 * 1024;

/// An outbox that reaches this size, in bytes, is set aside, and a new one begins. So a long backlog is never
/// moved to make room, and its memory is freed as it is written.
const PIECE: usize = 64 * 1024;

/// Most bytes that TLS buffers before they are sent.
const HELD_BY_TLS: u64 = 128 * 1024;

/// Lends the thread's read buffer. It cannot be lent twice at a time.
pub(crate) fn with_space<T>(f: impl FnOnce(&mut [u8]) -> T) -> T {
    SPACE.with_borrow_mut(|space| f(space))
}

/// A socket with the bytes to be written to it.
#[derive(Debug)]
pub(crate) struct Pipe {
    stream: Stream,
    /// Bytes to be written, after those set aside.
    pub(crate) outbox: BytesMut,
    /// Bytes to be written first, in pieces.
    aside: VecDeque<BytesMut>,
    /// Total size of these pieces, in bytes.
    aside_bytes: usize,
    /// Bytes read from the socket and bytes written to it, since the last count.
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// The other side sends no more.
    pub(crate) ended: bool,
    /// The socket has accepted bytes that are not sent yet.
    unsent: bool,
    /// Writing ends once the outbox is empty.
    closing: bool,
    closed: bool,
    /// The socket accepts no more at present, and wakes the task when it does. One that failed never does.
    stuck: bool,
}

impl Pipe {
    /// Wraps a connected socket, with `TCP_NODELAY`.
    ///
    /// # Errors
    /// The socket refuses options: it is closed already.
    pub(crate) fn new(stream: Stream) -> io::Result<Self> {
        stream.set_nodelay()?;
        Ok(Self {
            stream,
            outbox: BytesMut::new(),
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

    /// Reads once into `space` ([`with_space`]), if bytes are available. Returns them, and none at the end.
    pub(crate) fn poll_read<'a>(
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

    /// Sends these bytes. If they are too many to copy cheaply and nothing waits before them, they are
    /// written at once.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) {
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

    /// Returns whether [`Pipe::poll_flush`] is due: there is something to write that the socket has not
    /// refused yet.
    pub(crate) fn is_due(&self) -> bool {
        !self.stuck && (!self.is_written() || self.closing && !self.closed)
    }

    /// Writes as much as the socket accepts; ready when nothing is left.
    ///
    /// # Errors
    /// The other side is gone.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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

    /// Returns the number of bytes to be written.
    pub(crate) fn unwritten(&self) -> usize {
        self.aside_bytes + self.outbox.len()
    }

    /// Sets a long outbox aside. Called where more may be appended than the socket accepts at once.
    pub(crate) fn set_aside(&mut self) {
        if self.outbox.len() >= PIECE {
            let mut piece = std::mem::take(&mut self.outbox);
            if piece.capacity() > piece.len() + piece.len() / 4 {
                piece = BytesMut::from(&piece[..]);
            }
            self.aside_bytes += piece.len();
            self.aside.push_back(piece);
        }
    }

    /// Returns the end of the outbox, as a number of bytes since the connection began.
    pub(crate) fn end(&self) -> u64 {
        self.written + self.unwritten() as u64
    }

    /// Returns how many bytes have certainly been sent since the connection began.
    pub(crate) fn on_its_way(&self) -> u64 {
        match self.unsent {
            true => self.written.saturating_sub(HELD_BY_TLS),
            false => self.written,
        }
    }

    /// Returns whether everything to be written has been sent.
    pub(crate) fn is_written(&self) -> bool {
        self.unwritten() == 0 && !self.unsent
    }

    /// Discards the bytes to be written: the other side takes none.
    pub(crate) fn forget_unwritten(&mut self) {
        self.outbox.clear();
        self.aside.clear();
        self.aside_bytes = 0;
        self.unsent = false;
    }

    /// Ends the connection; over TLS this sends `close_notify`.
    pub(crate) fn say_goodbye(&mut self, cx: &mut Context<'_>) {
        self.stream.say_goodbye(cx);
    }

    /// Ends writing after the bytes in the outbox.
    pub(crate) fn close_writing(&mut self) {
        self.closing = true;
    }

    /// Returns whether the other side has closed, even if unread bytes precede the end.
    pub(crate) fn is_closed_behind_unread(&self) -> bool {
        self.stream.is_closed_behind_unread()
    }

    /// Moves the first `count` bytes of `from` to this outbox, without copying where possible.
    pub(crate) fn pass_on(&mut self, from: &mut BytesMut, count: usize) {
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
