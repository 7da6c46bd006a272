//! One connection to the admin address, and its bounds: no request, however slow, and no reader, however slow,
//! keeps its slot forever.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

use super::routes::Routes;

/// Longest head of a request, in bytes; a longer one gets 431.
const HEAD_BYTES: usize = 8 * 1024;

/// Most headers of a request.
const HEADERS: usize = 64;

/// How long the head of the next request may take, counted from the end of the previous one. This bounds slow
/// requests as well as idle connections.
const REQUEST_WITHIN: Duration = Duration::from_secs(20);

/// Send buffer for a reader that takes nothing, in bytes; Linux doubles it.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// How long a reader may take none of the bytes written for it.
const WRITE_WITHIN: Duration = Duration::from_secs(10);

/// Serves one connection to its end.
pub(super) async fn serve(stream: TcpStream, routes: Arc<Routes>) {
    let small = set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
    // A connection that refuses options is gone already.
    if stream.set_nodelay(true).is_err() || small.is_err() {
        return;
    }
    let answer = |request: Request<Incoming>| {
        let routes = Arc::clone(&routes);
        async move { Ok::<_, io::Error>(routes.answer(&request).await) }
    };
    let stream = TokioIo::new(Impatient::new(stream));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(stream, service_fn(answer))
        .await;
    // Any error was caused by the peer, which has been notified where possible.
    drop(served);
}

/// A socket whose peer has to go on reading.
struct Impatient {
    stream: TcpStream,
    /// The deadline of a write; none where no write is pending.
    limit: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn new(stream: TcpStream) -> Self {
        let limit = None;
        Self { stream, limit }
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(written) = Pin::new(&mut this.stream).poll_write(cx, bytes) {
            this.limit = None;
            return Poll::Ready(written);
        }
        let limit = this
            .limit
            .get_or_insert_with(|| Box::pin(sleep(WRITE_WITHIN)));
        ready!(limit.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
