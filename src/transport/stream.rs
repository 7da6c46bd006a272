//! One open connection of any kind. An operation that a kind does not support does nothing: a Unix socket has no
//! other machine to probe, and no unsent bytes.
//!
//! TLS differs from the others in what it buffers. It sends bytes only when it is flushed, so a writer must flush
//! until [`Stream::holds_unsent`] returns false. It may hold decrypted bytes for the next read, so a reader must
//! not wait for the socket before a read has found nothing. Its end is a message of its own (`close_notify`): a
//! connection that ends without one is broken, since an attacker could have cut it.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use rustix::net::{SendFlags, send, sockopt};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsStream;

/// How the first bytes are sent. A peer that is gone must not raise SIGPIPE; macOS has no flag for that, and there
/// Rust's runtime has set the program to ignore that signal.
#[cfg(not(target_vendor = "apple"))]
const AT_ONCE: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(target_vendor = "apple")]
const AT_ONCE: SendFlags = SendFlags::DONTWAIT;

/// One open connection.
#[derive(Debug)]
pub enum Stream {
    /// First, since it is the most common kind.
    Tcp(TcpStream),
    /// To or from a process on this machine.
    Unix(UnixStream),
    /// After the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Returns the TCP socket of this connection, also that below TLS.
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    /// Sends small packets at once.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn set_nodelay(&self) -> io::Result<()> {
        self.tcp().map_or(Ok(()), |tcp| tcp.set_nodelay(true))
    }

    /// Makes closing discard what the system has not sent yet, and reset the connection. Bytes written to a Unix
    /// socket are with the peer already.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn forget_unsent_on_close(&self) -> io::Result<()> {
        self.tcp().map_or(Ok(()), TcpStream::set_zero_linger)
    }

    /// Makes the system probe the peer after this silence, and end the connection when the peer does not answer
    /// three probes, a third of the silence apart. Zero disables the probes.
    ///
    /// # Errors
    /// The system refuses: the connection is gone.
    pub fn probe_after(&self, silence: Duration) -> io::Result<()> {
        let Some(tcp) = self.tcp().filter(|_| !silence.is_zero()) else {
            return Ok(());
        };
        // The system counts in whole seconds, at least one.
        let seconds = |time: Duration| time.max(Duration::from_secs(1));
        sockopt::set_tcp_keepidle(tcp, seconds(silence))?;
        sockopt::set_tcp_keepintvl(tcp, seconds(silence / 3))?;
        sockopt::set_tcp_keepcnt(tcp, 3)?;
        Ok(sockopt::set_socket_keepalive(tcp, true)?)
    }

    /// Returns whether the peer has closed, even where unread bytes precede the end.
    pub fn is_closed_behind_unread(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let ready = match self {
            Self::Tcp(tcp) => pin!(tcp.ready(Interest::READABLE)).poll(&mut context),
            Self::Unix(unix) => pin!(unix.ready(Interest::READABLE)).poll(&mut context),
            Self::Tls(tls) => pin!(tls.get_ref().0.ready(Interest::READABLE)).poll(&mut context),
        };
        match ready {
            Poll::Ready(Ok(ready)) => ready.is_read_closed(),
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        }
    }

    /// Returns whether written bytes are still unsent, so that a flush is needed.
    #[inline]
    pub fn holds_unsent(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Writes the first bytes of a connection without waiting: as many as the system takes at once. Not for use
    /// after a handshake.
    pub fn say_at_once(&self, bytes: &[u8]) {
        // The peer may be gone.
        let _ = match self {
            Self::Tcp(stream) => send(stream, bytes, AT_ONCE),
            Self::Unix(stream) => send(stream, bytes, AT_ONCE),
            Self::Tls(_) => Ok(0),
        };
    }

    /// Sends the message that ends the connection, where its kind has one and the system takes it at once. This is
    /// the last operation.
    pub fn say_goodbye(&mut self, cx: &mut Context<'_>) {
        if let Self::Tls(stream) = self {
            // The peer may be gone.
            let _ = Pin::new(stream).poll_shutdown(cx);
        }
    }

    /// Returns the address and port that the peer connected to; none where there is no port.
    pub fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.tcp()?.local_addr().ok()
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
