//! One client's own connection to Redis, opened for its first ordinary command. Bytes pass unchanged in both
//! directions. The relay counts the replies ([`ReplyForwarder`]), so that a lock command knows when its turn has
//! come. [`State`] keeps what they reveal about the connection (database, protocol, transaction …).
//!
//! When Redis is gone and owes nothing, the connection ends without its client. The next ordinary command opens it again,
//! and what the client had said before is said again first. If Redis lives and closed the connection, the client is
//! closed.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::BytesMut;

use crate::{
    auth::identity::Credentials,
    clock,
    lock::Time,
    relay::{
        Instance,
        connector::Connector,
        local::information,
        reply_forwarder::ReplyForwarder,
        restoration::Unopened,
        state::{Identity, State, Uncountable},
    },
    store::Later,
    telemetry::metrics::relays::{Open, Traffic},
    transport::{
        endpoint::Route,
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
    opened_at: Time,
    /// Completes when the connection leads to a server that is no longer the upstream.
    left: Option<Later<()>>,
    /// The look at the server of the connection, until it is done.
    look: Option<Later<()>>,
    /// The number of identity changes at the latest look.
    looked_as: Option<u64>,
    /// An earlier connection ended without its client: the next one has to be made what it was.
    detached: bool,
    /// It has just done so.
    has_detached: bool,
    /// It has ever done so.
    was_detached: bool,
}

/// Every client has a relay: one byte more would cost 128, by the size classes of the allocator.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Relay>() <= 640);

enum Link {
    None,
    Opening(Later<Result<(Stream, Route), Unopened>>),
    /// Boxed, since a client that only locks has none.
    Open(
        Box<Pipe>,
        #[expect(dead_code, reason = "it counts for as long as it lives")] Open,
    ),
    /// The connection ended; whether its server still serves is being looked at.
    Judged(Later<bool>),
    Ended,
}

/// The reason why the connection cannot continue.
#[derive(Debug)]
pub(crate) enum Broken {
    /// It could not be opened.
    Unreachable(io::Error),
    /// Redis refuses what the client had said on an earlier connection.
    Unrestored,
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
            opened_at: Time::default(),
            left: None,
            look: None,
            looked_as: None,
            detached: false,
            has_detached: false,
            was_detached: false,
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

    /// Returns whether there is a connection, or was one that has not been detached.
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

    /// Returns whether Redis closed the connection, or none was ever opened, and nothing waits for the next one.
    pub(crate) fn is_over(&self) -> bool {
        match self.link {
            Link::None | Link::Ended => true,
            Link::Judged(_) => self.first.is_empty(),
            Link::Opening(_) | Link::Open(..) => false,
        }
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
                self.open();
                self.first.unsplit(inbox.split_to(count));
            }
            Link::Opening(_) | Link::Judged(_) => self.first.unsplit(inbox.split_to(count)),
        }
    }

    fn open(&mut self) {
        let again = self.detached.then(|| self.state.restoration());
        self.link = Link::Opening(Box::pin(Arc::clone(&self.address).open(again)));
    }

    /// Returns whether the connection has ended without its client since the previous call.
    pub(crate) fn take_detached(&mut self) -> bool {
        std::mem::take(&mut self.has_detached)
    }

    /// Returns whether an earlier connection has ended without its client, or may turn out to have done so.
    pub(crate) fn was_detached(&self) -> bool {
        self.was_detached || matches!(self.link, Link::Judged(_))
    }

    /// Where the connection of a client that was detached could not be opened: drops what waits for it. Returns how many
    /// replies it would have got; none where each cannot get an error instead.
    pub(crate) fn refuse_waiting(&mut self) -> Option<usize> {
        if !self.detached || !matches!(self.link, Link::None) {
            return None;
        }
        let count = self.state.forget_unsent()?;
        self.first = BytesMut::new();
        Some(count)
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

    /// Ends what is under way beside the connection: nothing polls it any more. A look at the server would hold up those
    /// of all other clients, and an opening connection those that wait for theirs.
    pub(crate) fn stop(&mut self) {
        (self.look, self.left) = (None, None);
        if matches!(self.link, Link::Opening(_) | Link::Judged(_)) {
            self.link = Link::Ended;
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

    /// Opens the connection, and reads once if `reads`; forwards to `client`. If the connection ends, it may do so
    /// without its client if `detaches`. Returns whether anything was read.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Pipe,
        reads: bool,
        detaches: bool,
        instance: &dyn Instance,
    ) -> Result<bool, Broken> {
        if let Link::Judged(verdict) = &mut self.link {
            let Poll::Ready(is_same_server) = verdict.as_mut().poll(cx) else {
                return Ok(false);
            };
            match is_same_server {
                true => self.link = Link::Ended,
                false => self.detach(instance),
            }
            return Ok(true);
        }
        if let Link::Opening(opening) = &mut self.link {
            match opening.as_mut().poll(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(stream) => self.opened(stream, instance)?,
            }
        }
        self.look(cx);
        if !matches!(self.link, Link::Open(..)) {
            return Ok(false);
        }
        if let Some(left) = &mut self.left
            && left.as_mut().poll(cx).is_ready()
        {
            // It may live on, and answer.
            self.count_bytes();
            (self.left, self.look) = (None, None);
            match detaches && self.state.is_restorable() && self.is_between_replies() {
                true => self.detach(instance),
                false => self.link = Link::Ended,
            }
            return Ok(true);
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
                self.look = None;
                let detaches = detaches && self.state.is_restorable() && self.is_between_replies();
                self.link = match detaches {
                    true => Link::Judged(Box::pin(
                        Arc::clone(&self.address).is_same_server(self.opened_at, self.claim()),
                    )),
                    false => Link::Ended,
                };
            }
            // Redis may refuse a certificate after the connection has opened.
            if let Some(error) = refused
                && error.kind() == io::ErrorKind::InvalidData
                && self.is_between_replies()
            {
                self.link = Link::Ended;
                return Err(Broken::Unreachable(error));
            }
        }
        Ok(moved)
    }

    /// Ends the connection without its client.
    fn detach(&mut self, instance: &dyn Instance) {
        self.link = Link::None;
        // The next server may be of another version.
        self.replies = ReplyForwarder::new();
        (self.detached, self.has_detached, self.was_detached) = (true, true, true);
        if !self.first.is_empty() {
            self.open();
        }
        instance.relay_metrics().detached();
    }

    fn opened(
        &mut self,
        opened: Result<(Stream, Route), Unopened>,
        instance: &dyn Instance,
    ) -> Result<(), Broken> {
        self.link = match self.detached {
            true => Link::None,
            false => Link::Ended,
        };
        let (stream, route) = opened.map_err(|unopened| match unopened {
            Unopened::Unreachable(error) => Broken::Unreachable(error),
            Unopened::Refused => Broken::Unrestored,
        })?;
        let mut pipe = Pipe::new(stream).map_err(Broken::Unreachable)?;
        pipe.outbox = std::mem::take(&mut self.first);
        if self.closing {
            pipe.close_writing();
        }
        self.link = Link::Open(Box::new(pipe), instance.relay_metrics().opened());
        self.opened_at = clock::now();
        self.left = route.change().map(|left| -> Later<()> { Box::pin(left) });
        self.looked_as = None;
        self.detached = false;
        Ok(())
    }

    /// Returns the credentials that the client claims to have, as far as Redis accepted them.
    fn claim(&self) -> Option<Credentials> {
        match self.state.identity().0 {
            Identity::Known(credentials) => Some(credentials.clone()),
            Identity::Anonymous | Identity::NotKept => None,
        }
    }

    /// Looks at the server of the connection, so that another one in its place is recognised.
    fn look(&mut self, cx: &mut Context<'_>) {
        if !matches!(self.link, Link::Open(..)) {
            return;
        }
        let (_, changes) = self.state.identity();
        if self.looked_as != Some(changes) && self.state.settled() {
            self.looked_as = Some(changes);
            let look = Arc::clone(&self.address).look(self.opened_at, self.claim());
            self.look = Some(Box::pin(look));
        }
        if let Some(look) = &mut self.look
            && look.as_mut().poll(cx).is_ready()
        {
            self.look = None;
        }
    }
}
