//! One client's own connection to Redis, opened for its first ordinary command. Bytes pass unchanged in both
//! directions. The relay counts the replies ([`ReplyForwarder`]), so that a lock command knows when its turn has
//! come. [`State`] keeps what they reveal about the connection (database, protocol, transaction …).

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::BytesMut;

use crate::{
    relay::{
        Instance,
        connector::Connector,
        local::information,
        reply_forwarder::ReplyForwarder,
        state::{State, Uncountable},
    },
    store::Later,
    telemetry::metrics::relays::{Open, Traffic},
    transport::{
        pipe::{Pipe, with_space},
        stream::Stream,
    },
};

/// A client's connection to Redis.
pub(crate) struct Relay {
    address: Arc<Connector>,
    link: Link,
    /// Bytes that wait for the connection to open.
    first: BytesMut,
    replies: ReplyForwarder,
    pub(crate) state: State,
    /// Traffic that is not counted yet.
    traffic: Traffic,
    /// No more bytes go to Redis.
    closing: bool,
}

enum Link {
    None,
    Opening(Later<io::Result<Stream>>),
    Open(
        Pipe,
        #[expect(dead_code, reason = "it counts for as long as it lives")] Open,
    ),
    Ended,
}

/// The reason why the connection cannot continue.
#[derive(Debug)]
pub(crate) enum Broken {
    /// It could not be opened.
    Unreachable(io::Error),
    /// A reply of Redis matches no command for certain.
    Uncountable(Uncountable),
}

impl Relay {
    pub(crate) fn new(address: Arc<Connector>) -> Self {
        Self {
            address,
            link: Link::None,
            first: BytesMut::new(),
            replies: ReplyForwarder::new(),
            state: State::new(),
            traffic: Traffic::default(),
            closing: false,
        }
    }

    /// Returns whether every command sent was answered and no reply has arrived in part.
    pub(crate) fn is_settled(&self) -> bool {
        self.state.settled() && self.is_between_replies()
    }

    /// Returns whether no reply or message has arrived in part.
    pub(crate) fn is_between_replies(&self) -> bool {
        self.replies.is_between_replies() && !self.state.is_executing()
    }

    /// Returns whether anything was sent.
    pub(crate) fn is_used(&self) -> bool {
        !matches!(self.link, Link::None)
    }

    /// Returns the number of bytes on their way to Redis.
    pub(crate) fn backlog(&self) -> usize {
        match &self.link {
            Link::Open(pipe, _) => pipe.outbox.len(),
            _ => self.first.len(),
        }
    }

    /// Returns whether Redis closed the connection, or none was ever opened.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.link, Link::None | Link::Ended)
    }

    /// Returns whether Redis closed the connection.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.link, Link::Ended)
    }

    /// Sends the first `count` bytes of the inbox to Redis.
    pub(crate) fn pass_on(&mut self, inbox: &mut BytesMut, count: usize) {
        match &mut self.link {
            Link::Open(pipe, _) => pipe.pass_on(inbox, count),
            Link::Ended => drop(inbox.split_to(count)),
            Link::None => {
                self.link = Link::Opening(Box::pin(Arc::clone(&self.address).connect()));
                self.first.unsplit(inbox.split_to(count));
            }
            Link::Opening(_) => self.first.unsplit(inbox.split_to(count)),
        }
    }

    /// Sends Redis bytes that the client did not send.
    pub(crate) fn pass_on_own(&mut self, bytes: &[u8]) {
        self.pass_on(&mut BytesMut::from(bytes), bytes.len());
    }

    /// Returns the connection, if it is open.
    pub(crate) fn pipe(&mut self) -> Option<&mut Pipe> {
        match &mut self.link {
            Link::Open(pipe, _) => Some(pipe),
            _ => None,
        }
    }

    /// Counts commands that go to Redis.
    pub(crate) fn count_commands(&mut self, count: usize) {
        self.traffic.commands += count as u64;
    }

    /// Returns the traffic since the previous call.
    pub(crate) fn take_traffic(&mut self) -> Traffic {
        self.count_bytes();
        std::mem::take(&mut self.traffic)
    }

    fn count_bytes(&mut self) {
        if let Link::Open(pipe, _) = &mut self.link {
            self.traffic.from_redis += std::mem::take(&mut pipe.read);
            self.traffic.to_redis += std::mem::take(&mut pipe.written);
        }
    }

    /// Ends sending to Redis.
    pub(crate) fn close_writing(&mut self) {
        self.closing = true;
        if let Link::Open(pipe, _) = &mut self.link {
            pipe.close_writing();
        }
    }

    /// Returns whether bytes wait to be sent to Redis.
    pub(crate) fn is_due(&self) -> bool {
        matches!(&self.link, Link::Open(pipe, _) if pipe.is_due())
    }

    /// Sends as much as Redis takes.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        if let Link::Open(pipe, _) = &mut self.link {
            // If Redis reads no more, it may still have sent the reason.
            let _ = pipe.poll_flush(cx);
        }
    }

    /// Opens the connection, and reads once if `reads`; forwards to `client`. Returns whether anything was
    /// read.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Pipe,
        reads: bool,
        instance: &dyn Instance,
    ) -> Result<bool, Broken> {
        if let Link::Opening(opening) = &mut self.link {
            match opening.as_mut().poll(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(stream) => {
                    self.link = Link::Ended;
                    let mut pipe = stream.and_then(Pipe::new).map_err(Broken::Unreachable)?;
                    pipe.outbox = std::mem::take(&mut self.first);
                    if self.closing {
                        pipe.close_writing();
                    }
                    self.link = Link::Open(pipe, instance.relay_metrics().opened());
                }
            }
        }
        let Link::Open(pipe, _) = &mut self.link else {
            return Ok(false);
        };
        let mut moved = false;
        if reads {
            let (replies, state) = (&mut self.replies, &mut self.state);
            let section = || information::lockgate_section(&instance.facts());
            let mut refused = None;
            let counted = with_space(|space| {
                let Poll::Ready(read) = pipe.poll_read(cx, space) else {
                    return Ok(());
                };
                moved = true;
                let bytes = read.unwrap_or_else(|error| {
                    refused = Some(error);
                    &[]
                });
                replies.forward(state, bytes, &section, |shown| client.send(cx, shown))
            });
            counted.map_err(Broken::Uncountable)?;
            if pipe.ended {
                self.count_bytes();
                self.link = Link::Ended;
            }
            // Redis may refuse a certificate after the connection has opened.
            if let Some(error) = refused
                && error.kind() == io::ErrorKind::InvalidData
                && self.is_between_replies()
            {
                return Err(Broken::Unreachable(error));
            }
        }
        Ok(moved)
    }
}
