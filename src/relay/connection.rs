//! One client's own connection to Redis, opened for its first ordinary command. Bytes pass unchanged in both
//! directions. The relay counts the replies, so that a lock command knows when its turn has come. [`State`]
//! keeps what they reveal about the connection (database, protocol, transaction …). A few replies get
//! additions ([`amend`](super::rewrite)).

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
        rewrite::ReplyRewriter,
        state::{State, Uncountable, Visibility},
    },
    resp::{ReplyScanner, reply::plain_reply},
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
    replies: ReplyScanner,
    /// The beginning of a reply, until its visibility is decided.
    undecided: Undecided,
    pub(crate) state: State,
    amending: Amending,
    /// Traffic that is not counted yet.
    traffic: Traffic,
    /// No more bytes go to Redis.
    closing: bool,
}

/// The amendment of replies.
#[derive(Default)]
struct Amending {
    /// The amender of the current reply.
    reply: Option<Box<ReplyRewriter>>,
    /// Number of fields in an entry of `COMMAND INFO`, once known.
    fields: Option<usize>,
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
            replies: ReplyScanner::new(),
            undecided: Undecided::default(),
            state: State::new(),
            amending: Amending::default(),
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
        self.replies.between_replies() && !self.state.is_executing()
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
            let (undecided, amending) = (&mut self.undecided, &mut self.amending);
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
                if state.amends() {
                    let client = &mut client.outbox;
                    return amending.count(replies, state, undecided, bytes, client, instance);
                }
                count(replies, state, undecided, bytes, |shown| {
                    client.send(cx, shown)
                })
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

/// Longest line that announces a number of elements, in bytes: `*-9223372036854775808\r\n`.
const HEADER_BYTES: usize = 23;

/// The beginning of an array, up to the end of its first line.
#[derive(Debug, Default)]
struct Undecided {
    bytes: [u8; HEADER_BYTES],
    len: usize,
}

impl Undecided {
    fn add(&mut self, bytes: &[u8]) -> Result<(), Uncountable> {
        let end = self.len + bytes.len();
        let space = self.bytes.get_mut(self.len..end);
        space.ok_or(Uncountable::Doubtful)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    fn take(&mut self) -> &[u8] {
        &self.bytes[..std::mem::take(&mut self.len)]
    }
}

/// Counts the replies in these bytes, and gives the client the visible ones.
fn count(
    replies: &mut ReplyScanner,
    state: &mut State,
    undecided: &mut Undecided,
    bytes: &[u8],
    mut show: impl FnMut(&[u8]),
) -> Result<(), Uncountable> {
    // Consecutive visible bytes are written as one piece.
    let (mut shown_from, mut at) = (0, 0);
    while at < bytes.len() {
        if replies.between_replies() && undecided.len == 0 {
            at += count_plain(state, &bytes[at..]);
            if at == bytes.len() {
                break;
            }
        }
        let (count, visibility, received) = state.receive(replies, &bytes[at..]);
        let from = at;
        at += count;
        match visibility {
            Visibility::Shown if undecided.len > 0 => show(undecided.take()),
            Visibility::Shown => {}
            Visibility::Hidden | Visibility::Undecided => {
                show(&bytes[shown_from..from]);
                shown_from = at;
            }
        }
        match visibility {
            Visibility::Shown => {}
            Visibility::Hidden => undecided.len = 0,
            Visibility::Undecided => undecided.add(&bytes[from..at])?,
        }
        match received {
            Ok(_) => {}
            // Redis's reason for closing the connection.
            Err(Uncountable::Unasked) => {
                show(&bytes[shown_from..at]);
                return Err(Uncountable::Unasked);
            }
            Err(error) => {
                show(&bytes[shown_from..from.max(shown_from)]);
                return Err(error);
            }
        }
    }
    show(&bytes[shown_from..]);
    Ok(())
}

/// Counts the whole replies at the front that need no further inspection: nearly all. Returns their bytes.
fn count_plain(state: &mut State, bytes: &[u8]) -> usize {
    let (owed, mut at, mut came) = (state.plain_owed(), 0, 0);
    while came < owed
        && let Some(count) = plain_reply(&bytes[at..])
    {
        at += count;
        came += 1;
    }
    state.received_plain(came);
    at
}

impl Amending {
    /// As [`count`], where some replies are to be amended.
    fn count(
        &mut self,
        replies: &mut ReplyScanner,
        state: &mut State,
        undecided: &mut Undecided,
        mut bytes: &[u8],
        client: &mut BytesMut,
        instance: &dyn Instance,
    ) -> Result<(), Uncountable> {
        let section = || information::lockgate_section(&instance.facts());
        while let Some(&first) = bytes.first() {
            if replies.between_replies() {
                let amendment = state.amendment(first);
                let rewriter = |it| Box::new(ReplyRewriter::new(it, state.protocol(), self.fields));
                self.reply = amendment.map(rewriter);
            }
            let (consumed, visibility, received) = state.receive(replies, bytes);
            let (piece, rest) = bytes.split_at(consumed);
            bytes = rest;
            if let Err(error) = received
                && error != Uncountable::Unasked
            {
                return Err(error);
            }
            match (&mut self.reply, visibility) {
                (Some(reply), _) => reply.pass(piece, client, &section),
                (None, Visibility::Shown) => {
                    client.extend_from_slice(undecided.take());
                    client.extend_from_slice(piece);
                }
                (None, Visibility::Hidden) => undecided.len = 0,
                (None, Visibility::Undecided) => undecided.add(piece)?,
            }
            if received?.is_some()
                && let Some(reply) = self.reply.take()
            {
                self.fields = reply.end(client);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{RequestScanner, Step};

    fn sent(state: &mut State, commands: &[u8]) {
        let (mut scanner, mut at) = (RequestScanner::new(), 0);
        while at < commands.len() {
            let (count, step) = scanner.scan(&commands[at..]);
            at += count;
            if step == Ok(Step::End) {
                assert_eq!(state.sent(&scanner), Ok(()));
            }
        }
    }

    #[test]
    fn hidden_replies_stay_hidden_however_the_bytes_are_cut() {
        let pieces: [(&[u8], bool); 4] = [
            (b"+OK\r\n", false),
            (b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", true),
            (b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n", true),
            (b"*2\r\n$4\r\npong\r\n$0\r\n\r\n", false),
        ];
        let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.0.to_vec()).collect();
        let shown = pieces.iter().filter(|piece| piece.1);
        let shown: Vec<u8> = shown.flat_map(|piece| piece.0.to_vec()).collect();
        for size in 1..=all.len() {
            let (mut replies, mut state) = (ReplyScanner::new(), State::new());
            let (mut undecided, mut client) = (Undecided::default(), BytesMut::new());
            sent(&mut state, b"CLIENT REPLY OFF\nSUBSCRIBE a\nPING\n");
            for bytes in all.chunks(size) {
                let counted = count(&mut replies, &mut state, &mut undecided, bytes, |shown| {
                    client.extend_from_slice(shown)
                });
                assert_eq!(counted, Ok(()));
            }
            assert_eq!(client, shown, "{size} bytes at a time");
            assert!(state.settled());
        }
    }

    /// The reply to `PUBLISH` has to be distinguished from a message only where one may come between the
    /// elements of `EXEC`.
    #[test]
    fn a_publish_is_queued_as_an_ordinary_command_where_the_transaction_hears_nothing() {
        for (subscribes, entries) in [(false, 1), (true, 2 * 100 + 1)] {
            let (mut replies, mut state) = (ReplyScanner::new(), State::new());
            let subscription: &[u8] = if subscribes { b"SUBSCRIBE a\n" } else { b"" };
            let pairs = b"SET k 1\nPUBLISH a x\n".repeat(100);
            let commands = [b"MULTI\n", subscription, &pairs].concat();
            sent(&mut state, &commands);
            let queued = b"+QUEUED\r\n".repeat(200 + usize::from(subscribes));
            let bytes = [b"+OK\r\n", &queued[..]].concat();
            let undecided = &mut Undecided::default();
            assert_eq!(
                count(&mut replies, &mut state, undecided, &bytes, |_| {}),
                Ok(())
            );
            assert!(state.settled() && state.in_transaction());
            assert_eq!(state.queued(), entries, "{subscribes}");
            sent(&mut state, b"DISCARD\nMULTI\nPUBLISH a x\nSET k 1\n");
            let bytes = b"+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n";
            assert_eq!(
                count(&mut replies, &mut state, undecided, bytes, |_| {}),
                Ok(())
            );
            assert_eq!(state.queued(), 1, "in a transaction of its own");
        }
    }

    #[test]
    fn a_row_of_commands_of_one_kind_is_remembered_in_one_place() {
        let mut state = State::new();
        sent(&mut state, &b"PUBLISH a x\n".repeat(1_000));
        state.sent_plain(1_000_000);
        sent(&mut state, &b"PUBLISH a x\n".repeat(1_000));
        assert_eq!((state.owed(), state.owed_entries()), (1_002_000, 3));
    }

    #[test]
    fn a_client_is_served_once_redis_answers_otherwise_than_by_an_error() {
        let (mut replies, mut state) = (ReplyScanner::new(), State::new());
        let mut read = |state: &mut State, bytes: &[u8]| {
            count(
                &mut replies,
                state,
                &mut Undecided::default(),
                bytes,
                |_| {},
            )
            .unwrap();
            state.has_served()
        };
        sent(
            &mut state,
            b"GET a\nAUTH x\nGET a\nRESET\nSELECT 1\nAUTH x\n",
        );
        let noauth = b"-NOAUTH Authentication required.\r\n";
        assert!(!read(&mut state, noauth) && !read(&mut state, b"-WRONGPASS no\r\n"));
        assert!(read(&mut state, b"$-1\r\n"));
        assert!(!read(&mut state, b"+RESET\r\n") && !read(&mut state, noauth));
        assert!(read(&mut state, b"+OK\r\n"));
    }

    #[test]
    fn a_blank_line_that_comes_late_spends_a_skip() {
        let (mut replies, mut state) = (ReplyScanner::new(), State::new());
        let (mut undecided, mut client) = (Undecided::default(), BytesMut::new());
        let mut read = |state: &mut State, bytes| {
            count(&mut replies, state, &mut undecided, bytes, |shown| {
                client.extend_from_slice(shown)
            })
        };
        sent(&mut state, b"CLIENT REPLY SKIP\n");
        assert_eq!(read(&mut state, b"+OK\r\n"), Ok(()));
        state.sent_blank();
        sent(&mut state, b"PING\n");
        assert_eq!(read(&mut state, b"+PONG\r\n"), Ok(()));
        assert_eq!(&client[..], b"+PONG\r\n");
    }
}
