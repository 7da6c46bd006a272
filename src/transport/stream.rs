//! One open connection, of whatever kind. What a kind cannot do (a Unix socket has nobody to probe for
//! life, and nothing that waits to be sent) it is not asked for.
//!
//! TLS differs from the others in what it keeps inside. Bytes that it took to write are on their way only
//! once it is flushed; who has not seen [`Stream::holds_unsent`] say no must flush. What was read and not
//! yet asked for is given at the next read, so nobody may wait for the socket before reading came to
//! nothing. And its end is a message of its own (`close_notify`): a connection that ends without is broken,
//! since anybody could have cut it.

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

/// One open connection.
#[derive(Debug)]
pub enum Stream {
    /// First, since it is what nearly everybody has.
    Tcp(TcpStream),
    /// To or from a process of this machine.
    Unix(UnixStream),
    /// After its handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The TCP socket that it is, or is made of.
    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    /// Small packets are sent at once.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn set_nodelay(&self) -> io::Result<()> {
        self.tcp().map_or(Ok(()), |tcp| tcp.set_nodelay(true))
    }

    /// Closing throws away what the system has not sent yet, and resets the connection. What was
    /// written to a Unix socket is with the other side already.
    ///
    /// # Errors
    /// The connection is gone already.
    pub fn forget_unsent_on_close(&self) -> io::Result<()> {
        self.tcp().map_or(Ok(()), TcpStream::set_zero_linger)
    }

    /// Has the system probe the other side for life after so long a silence, and end the connection
    /// when it does not answer to three probes, a third of that apart; zero is not at all.
    ///
    /// # Errors
    /// The system does not take it: the connection is gone.
    pub fn probe_after(&self, silence: Duration) -> io::Result<()> {
        let Some(tcp) = self.tcp().filter(|_| !silence.is_zero()) else {
            return Ok(());
        };
        // The system counts in whole seconds, from one on.
        let seconds = |time: Duration| time.max(Duration::from_secs(1));
        sockopt::set_tcp_keepidle(tcp, seconds(silence))?;
        sockopt::set_tcp_keepintvl(tcp, seconds(silence / 3))?;
        sockopt::set_tcp_keepcnt(tcp, 3)?;
        Ok(sockopt::set_socket_keepalive(tcp, true)?)
    }

    /// The other side has closed, though bytes that were not read may stand before its end.
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

    /// Bytes that it took are not on their way yet: it is to be flushed.
    #[inline]
    pub fn holds_unsent(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Bytes for a connection on which nothing was said yet: as much as the system takes at once, whoever
    /// waits for it. Not after a handshake.
    pub fn say_at_once(&self, bytes: &[u8]) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Whoever is gone need not hear it.
        let _ = match self {
            Self::Tcp(stream) => send(stream, bytes, flags),
            Self::Unix(stream) => send(stream, bytes, flags),
            Self::Tls(_) => Ok(0),
        };
    }

    /// The last thing that is done: where its end is a message, it is sent, if the system takes it at
    /// once.
    pub fn say_goodbye(&mut self, cx: &mut Context<'_>) {
        if let Self::Tls(stream) = self {
            // Whoever is gone need not hear it.
            let _ = Pin::new(stream).poll_shutdown(cx);
        }
    }

    /// The address and port that the other side connected to; none where there is no port.
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
