//! One client's own connection to Redis, opened for its first ordinary command. Bytes pass as they
//! are, both ways; replies are counted, so that a lock command knows when its turn has come, and
//! what they say of the connection (database, protocol, transaction …) is kept in [`State`].

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use tokio::net::TcpStream;

use super::{
    pipe::Pipe,
    state::{State, Uncountable},
};
use crate::{resp::ReplyScanner, store::Later};

/// Where Redis is.
#[derive(Debug, Clone)]
pub struct Address {
    /// A name, resolved anew for each connection, or an address.
    pub host: Arc<str>,
    /// The port.
    pub port: u16,
    /// How long to wait for the connection.
    pub connect_timeout: Duration,
}

/// A client's connection to Redis.
pub(super) struct Relay {
    address: Address,
    link: Link,
    /// What waits for the connection to open.
    first: BytesMut,
    replies: ReplyScanner,
    pub(super) state: State,
    /// Nothing more goes to Redis.
    closing: bool,
}

enum Link {
    None,
    Opening(Later<io::Result<TcpStream>>),
    Open(Pipe),
    Ended,
}

/// The connection cannot go on.
#[derive(Debug)]
pub(super) enum Broken {
    /// It could not be opened, for this reason.
    Unreachable(io::Error),
    /// What Redis sent cannot be counted.
    Uncountable(Uncountable),
}

impl Relay {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            link: Link::None,
            first: BytesMut::new(),
            replies: ReplyScanner::new(),
            state: State::new(),
            closing: false,
        }
    }

    /// Every command sent was answered, and no reply has come in part.
    pub(super) fn is_settled(&self) -> bool {
        self.state.settled() && self.is_between_replies()
    }

    /// No reply or message has come in part.
    pub(super) fn is_between_replies(&self) -> bool {
        self.replies.between_replies()
    }

    /// There was something to send.
    pub(super) fn is_used(&self) -> bool {
        !matches!(self.link, Link::None)
    }

    /// Bytes on their way to Redis.
    pub(super) fn backlog(&self) -> usize {
        match &self.link {
            Link::Open(pipe) => pipe.outbox.len(),
            _ => self.first.len(),
        }
    }

    /// Redis closed the connection, or there never was one.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.link, Link::None | Link::Ended)
    }

    /// Redis closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.link, Link::Ended)
    }

    /// The first `count` bytes of the inbox go to Redis.
    pub(super) fn pass_on(&mut self, inbox: &mut BytesMut, count: usize) {
        match &mut self.link {
            Link::Open(pipe) => pipe.pass_on(inbox, count),
            Link::Ended => drop(inbox.split_to(count)),
            Link::None => {
                self.link = Link::Opening(Box::pin(connect(self.address.clone())));
                self.first.unsplit(inbox.split_to(count));
            }
            Link::Opening(_) => self.first.unsplit(inbox.split_to(count)),
        }
    }

    /// Nothing more goes to Redis.
    pub(super) fn close_writing(&mut self) {
        self.closing = true;
        if let Link::Open(pipe) = &mut self.link {
            pipe.close_writing();
        }
    }

    /// Opens, writes and reads as far as it can; what Redis says goes to `client`, which takes
    /// `most` bytes. Returns whether anything moved.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut BytesMut,
        most: usize,
    ) -> Result<bool, Broken> {
        if let Link::Opening(opening) = &mut self.link {
            match opening.as_mut().poll(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(stream) => {
                    let mut pipe = stream.and_then(Pipe::new).map_err(Broken::Unreachable)?;
                    pipe.outbox = std::mem::take(&mut self.first);
                    if self.closing {
                        pipe.close_writing();
                    }
                    self.link = Link::Open(pipe);
                }
            }
        }
        let Link::Open(pipe) = &mut self.link else {
            return Ok(false);
        };
        let backlog = pipe.outbox.len();
        // Where Redis reads no more it may still have said why.
        let _ = pipe.poll_flush(cx);
        let mut moved = pipe.outbox.len() < backlog;
        if client.len() < most {
            let (replies, state) = (&mut self.replies, &mut self.state);
            let mut counted = Ok(());
            let read = pipe.poll_read(cx, |_, bytes| {
                counted = count(replies, state, bytes);
                client.extend_from_slice(bytes);
            });
            moved |= read.is_ready();
            counted.map_err(Broken::Uncountable)?;
            if pipe.ended {
                self.link = Link::Ended;
            }
        }
        Ok(moved)
    }
}

/// Counts the replies in these bytes.
fn count(
    replies: &mut ReplyScanner,
    state: &mut State,
    mut bytes: &[u8],
) -> Result<(), Uncountable> {
    while !bytes.is_empty() {
        let (count, received) = state.receive(replies, bytes);
        received?;
        bytes = &bytes[count..];
    }
    Ok(())
}

async fn connect(address: Address) -> io::Result<TcpStream> {
    let connecting = TcpStream::connect((&*address.host, address.port));
    match tokio::time::timeout(address.connect_timeout, connecting).await {
        Ok(stream) => stream,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "timed out")),
    }
}
