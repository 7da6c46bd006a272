//! The wire to Redis: one connection that many callers share, and the task that owns its socket.
//!
//! A caller appends its command to the outbox, and queues where the reply shall go ([`ReplyTo`]). The task writes all that
//! has gathered in one go. Redis replies in order, so a reply goes where the first of that queue says.
//!
//! The task itself passes on what it reads, in the order in which Redis sent it. Pushes and replies to the requests of
//! locks' queues go to the [`Receiver`]. So between Redis and such a queue there is no other task, no channel and no
//! future; and what the queue sends next is written with the rest of the round.
//!
//! When the connection ends, every waiting future learns it at once. The queues' requests stay with the wire until
//! [`Wire::take_unanswered`], so that the link's owner decides when they may be sent again.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use redis::{Cmd, PushKind, Value, parse_redis_value};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{Semaphore, oneshot},
};

use crate::{
    limits::{LEAST_BUFFER_BYTES, REPLY_BYTES, REQUESTS_IN_FLIGHT},
    resp::{ReplyScanner, ReplyStep, integer, reply::plain_reply},
    store::task::Task,
    telemetry::metrics::upstream::{Purpose, UpstreamMetrics},
    transport::{pipe::with_space, stream::Stream},
};

use super::requests::SentRequest;

/// The receiver of what comes on a wire without a future that waits for it.
pub(super) trait Receiver: Send + Sync {
    /// Redis pushed that these keys changed; nil for all.
    fn changed(&self, keys: Value);

    /// Redis replied to a queue's request.
    fn replied(&self, sent: SentRequest, reply: Value);
}

/// The destination of a reply.
enum ReplyTo {
    /// A future waits for the reply, or is gone.
    Future(oneshot::Sender<Value>),
    /// A queue waits for the reply.
    Queue(SentRequest),
    /// The reply does not matter.
    Ignored,
}

/// The connection ended before the reply.
#[derive(Debug, Clone)]
pub(super) struct WireEnded(String);

/// One connection to Redis.
pub(super) struct Wire {
    outbox: Mutex<Outbox>,
    /// A permit for each command that may join those without a reply. Commands that found none get theirs in order.
    room: Semaphore,
    /// Replies received.
    answered: AtomicU64,
    metrics: Arc<UpstreamMetrics>,
}

#[derive(Default)]
struct Outbox {
    /// Commands to be written.
    bytes: Vec<u8>,
    /// The destinations of the replies that Redis owes.
    unanswered: VecDeque<ReplyTo>,
    /// Wakes the task to write. None: it runs, or waits for the socket to take bytes.
    waker: Option<Waker>,
    /// Why the connection ended.
    ended: Option<WireEnded>,
}

impl Wire {
    /// Takes over an open connection. Also returns the task that reads and writes it.
    pub(super) fn new(
        stream: Stream,
        receiver: Arc<dyn Receiver>,
        metrics: Arc<UpstreamMetrics>,
    ) -> (Arc<Self>, Task) {
        let wire = Arc::new(Self {
            outbox: Mutex::default(),
            room: Semaphore::new(REQUESTS_IN_FLIGHT),
            answered: AtomicU64::new(0),
            metrics,
        });
        let mut driver = Driver {
            wire: Arc::clone(&wire),
            stream,
            receiver,
            inbox: Vec::new(),
            scanner: ReplyScanner::new(),
            received: Vec::new(),
            answered: Vec::new(),
            writing: Vec::new(),
            written: 0,
        };
        let task = Task::spawn(async move {
            let ended = poll_fn(|cx| driver.poll(cx)).await;
            driver.wire.outbox().ended.get_or_insert(ended);
        });
        (wire, task)
    }

    /// Sends a command, and returns the reply.
    pub(super) async fn send(&self, purpose: Purpose, command: &Cmd) -> Result<Value, WireEnded> {
        self.send_bytes(purpose, |bytes| command.write_packed_command(bytes))
            .await
    }

    /// Sends the command that `write` appends, and returns the reply.
    pub(super) async fn send_bytes(
        &self,
        purpose: Purpose,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Value, WireEnded> {
        // Fails once the connection has ended.
        if let Ok(permit) = self.room.acquire().await {
            permit.forget();
            let (tell, reply) = oneshot::channel();
            if self.append(purpose, ReplyTo::Future(tell), write)
                && let Ok(reply) = reply.await
            {
                return Ok(reply);
            }
        }
        let ended = self.outbox().ended.clone();
        Err(ended.unwrap_or_else(WireEnded::unexplained))
    }

    /// Sends a queue's request, if there is room. Otherwise returns it.
    pub(super) fn send_now(&self, sent: SentRequest) -> Option<SentRequest> {
        let Ok(permit) = self.room.try_acquire() else {
            return Some(sent);
        };
        permit.forget();
        let mut outbox = self.outbox();
        if outbox.ended.is_some() {
            return Some(sent);
        }
        let (request, form) = sent.request();
        self.metrics.asked(request.purpose(form));
        request.write(form, &mut outbox.bytes);
        self.wake(outbox, ReplyTo::Queue(sent));
        None
    }

    /// Sends a command whose reply does not matter, if there is room.
    pub(super) fn send_unheard(&self, purpose: Purpose, command: &Cmd) {
        if let Ok(permit) = self.room.try_acquire() {
            permit.forget();
            let write = |bytes: &mut Vec<u8>| command.write_packed_command(bytes);
            self.append(purpose, ReplyTo::Ignored, write);
        }
    }

    /// Appends a command. Returns false once the connection has ended.
    fn append(
        &self,
        purpose: Purpose,
        reply_to: ReplyTo,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let mut outbox = self.outbox();
        if outbox.ended.is_some() {
            return false;
        }
        self.metrics.asked(purpose);
        write(&mut outbox.bytes);
        self.wake(outbox, reply_to);
        true
    }

    /// Queues the destination of the reply to a command that is in the outbox, and wakes the task.
    fn wake(&self, mut outbox: MutexGuard<'_, Outbox>, reply_to: ReplyTo) {
        outbox.unanswered.push_back(reply_to);
        let waker = outbox.waker.take();
        drop(outbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the number of commands without a reply.
    pub(super) fn in_flight(&self) -> usize {
        self.outbox().unanswered.len()
    }

    /// Returns the number of replies received.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Returns the queues' requests without a reply, after the task has ended.
    pub(super) fn take_unanswered(&self) -> Vec<SentRequest> {
        let unanswered = std::mem::take(&mut self.outbox().unanswered);
        self.metrics.settled(unanswered.len());
        let requests = unanswered.into_iter().filter_map(|it| match it {
            ReplyTo::Queue(request) => Some(request),
            ReplyTo::Future(_) | ReplyTo::Ignored => None,
        });
        requests.collect()
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        // No code panics while it holds this.
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.take_unanswered();
    }
}

/// The task of a wire.
struct Driver {
    wire: Arc<Wire>,
    stream: Stream,
    receiver: Arc<dyn Receiver>,
    /// The beginning of a reply that has not arrived whole.
    inbox: Vec<u8>,
    scanner: ReplyScanner,
    /// Replies and pushes that were read and not passed on; empty between two rounds, like the next two.
    received: Vec<Value>,
    answered: Vec<ReplyTo>,
    /// Commands on their way to the socket, and how many of these bytes it took.
    writing: Vec<u8>,
    written: usize,
}

impl Driver {
    /// Passes on all that Redis has sent, and then writes what gathered, also by that. Ready when the connection ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WireEnded> {
        loop {
            match self.read(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(ended)) => return Poll::Ready(ended),
                Poll::Pending => match ready!(self.write(cx)) {
                    Ok(never) => match never {},
                    Err(error) => return Poll::Ready(error.into()),
                },
            }
        }
    }

    /// Reads once, and passes on what came.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WireEnded>> {
        ready!(with_space(|space| {
            let mut read = ReadBuf::new(space);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
            Poll::Ready(match read.filled() {
                [] => Err(WireEnded("Redis closed the connection".to_owned())),
                bytes => self.scan(bytes),
            })
        }))?;
        Poll::Ready(self.pass_on())
    }

    /// Takes the whole replies out of these bytes.
    fn scan(&mut self, mut bytes: &[u8]) -> Result<(), WireEnded> {
        while !bytes.is_empty() {
            if self.inbox.is_empty()
                && let Some((number, length)) = number(bytes)
            {
                self.received.push(Value::Int(number));
                bytes = &bytes[length..];
                continue;
            }
            let (length, step) = self.scanner.scan(bytes);
            let (scanned, rest) = bytes.split_at(length);
            bytes = rest;
            let whole = match step.map_err(WireEnded::by)? {
                ReplyStep::End if self.inbox.is_empty() => scanned,
                step => {
                    if self.inbox.len() + length > REPLY_BYTES {
                        return Err(WireEnded("a reply of Redis is too long".to_owned()));
                    }
                    self.inbox.extend_from_slice(scanned);
                    if step == ReplyStep::More {
                        return Ok(());
                    }
                    &self.inbox
                }
            };
            self.received
                .push(parse_redis_value(whole).map_err(WireEnded::by)?);
            self.inbox.clear();
            self.inbox.shrink_to(LEAST_BUFFER_BYTES);
        }
        Ok(())
    }

    /// Passes replies and pushes on.
    fn pass_on(&mut self) -> Result<(), WireEnded> {
        let is_push = |value: &Value| matches!(value, Value::Push { .. });
        let replies = self.received.iter().filter(|it| !is_push(it)).count();
        {
            let mut outbox = self.wire.outbox();
            if outbox.unanswered.len() < replies {
                return Err(WireEnded("Redis replied to no command".to_owned()));
            }
            self.answered.extend(outbox.unanswered.drain(..replies));
        }
        self.wire.settled(replies);
        let mut answered = self.answered.drain(..);
        for value in self.received.drain(..) {
            if let Value::Push { kind, data } = value {
                if kind == PushKind::Invalidate {
                    let keys = data.into_iter().next();
                    self.receiver.changed(keys.unwrap_or(Value::Nil));
                }
                continue;
            }
            match answered.next() {
                Some(ReplyTo::Queue(sent)) => self.receiver.replied(sent, value),
                // The caller may be gone.
                Some(ReplyTo::Future(tell)) => drop(tell.send(value)),
                Some(ReplyTo::Ignored) | None => {}
            }
        }
        Ok(())
    }

    /// Writes all that has gathered. Pending when nothing is left, or the socket takes no more.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<std::convert::Infallible>> {
        loop {
            while self.written < self.writing.len() {
                let rest = &self.writing[self.written..];
                match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => self.written += written,
                }
            }
            while self.stream.holds_unsent() {
                ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            }
            self.writing.clear();
            self.writing.shrink_to(LEAST_BUFFER_BYTES);
            self.written = 0;
            let mut outbox = self.wire.outbox();
            if outbox.bytes.is_empty() {
                outbox.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            std::mem::swap(&mut outbox.bytes, &mut self.writing);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.wire.room.close();
        let mut outbox = self.wire.outbox();
        outbox.ended.get_or_insert_with(WireEnded::unexplained);
        outbox.bytes = Vec::new();
        outbox.waker = None;
        let before = outbox.unanswered.len();
        let is_queue = |it: &ReplyTo| matches!(it, ReplyTo::Queue(_));
        outbox.unanswered.retain(is_queue);
        self.wire.metrics.settled(before - outbox.unanswered.len());
    }
}

impl Wire {
    /// Counts replies.
    fn settled(&self, replies: usize) {
        if replies > 0 {
            let count = u64::try_from(replies).unwrap_or(u64::MAX);
            self.answered.fetch_add(count, Ordering::Relaxed);
            self.metrics.settled(replies);
            self.room.add_permits(replies);
        }
    }
}

/// Returns the integer at the front of the bytes, and its length there.
fn number(bytes: &[u8]) -> Option<(i64, usize)> {
    let text = bytes.strip_prefix(b":")?;
    let length = plain_reply(bytes)?;
    Some((integer(&text[..length - 3])?, length))
}

impl WireEnded {
    fn unexplained() -> Self {
        Self("the connection was closed".to_owned())
    }

    fn by(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl From<io::Error> for WireEnded {
    fn from(error: io::Error) -> Self {
        Self::by(error)
    }
}

impl fmt::Display for WireEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests;
