//! Redis's replies on their way to the client. Each is counted. A few are hidden from the client
//! ([`Visibility`]), and a few get additions ([`rewrite`](super::rewrite)).

use bytes::BytesMut;

use crate::{
    relay::{
        rewrite::ReplyRewriter,
        state::{State, Uncountable, Visibility},
    },
    resp::{ReplyScanner, reply::plain_reply},
};

/// The forwarder of one connection's replies.
pub(super) struct ReplyForwarder {
    scanner: ReplyScanner,
    /// The beginning of a reply, until its visibility is decided.
    undecided: Undecided,
    /// The rewriter of the current reply.
    rewriter: Option<Box<ReplyRewriter>>,
    /// Number of fields in an entry of `COMMAND INFO`, once known.
    fields: Option<usize>,
}

impl ReplyForwarder {
    pub(super) fn new() -> Self {
        Self {
            scanner: ReplyScanner::new(),
            undecided: Undecided::default(),
            rewriter: None,
            fields: None,
        }
    }

    /// Returns whether the last reply has ended and no byte of the next one has arrived.
    pub(super) fn is_between_replies(&self) -> bool {
        self.scanner.between_replies()
    }

    /// Counts the replies in these bytes, and calls `show` with the bytes for the client. `section` returns
    /// lockgate's section of `INFO`.
    ///
    /// # Errors
    /// A reply cannot be attributed to a command with certainty. The client sees nothing of it, except an error
    /// that no command is owed: Redis's reason for closing the connection.
    pub(super) fn forward(
        &mut self,
        state: &mut State,
        bytes: &[u8],
        section: &dyn Fn() -> String,
        mut show: impl FnMut(&[u8]),
    ) -> Result<(), Uncountable> {
        // Consecutive visible bytes are written as one piece.
        let (mut shown_from, mut at) = (0, 0);
        let mut rewritten = BytesMut::new();
        let counted = loop {
            if self.is_between_replies() {
                at += count_plain(state, &bytes[at..]);
                let amendment = bytes.get(at).and_then(|&first| state.amendment(first));
                let rewriter = |it| Box::new(ReplyRewriter::new(it, state.protocol(), self.fields));
                self.rewriter = amendment.map(rewriter);
            }
            if at == bytes.len() {
                break Ok(());
            }
            let (count, visibility, received) = state.receive(&mut self.scanner, &bytes[at..]);
            if let Err(error) = received
                && error != Uncountable::Unasked
            {
                break Err(error);
            }
            let piece = &bytes[at..at + count];
            if self.rewriter.is_some() || visibility != Visibility::Shown {
                show(&bytes[shown_from..at]);
                shown_from = at + count;
            }
            at += count;
            match (&mut self.rewriter, visibility) {
                (Some(rewriter), _) => rewriter.pass(piece, &mut rewritten, section),
                (None, Visibility::Shown) if self.undecided.len == 0 => {}
                (None, Visibility::Shown) => show(self.undecided.take()),
                (None, Visibility::Hidden) => self.undecided.len = 0,
                (None, Visibility::Undecided) => self.undecided.add(piece)?,
            }
            match received {
                Ok(None) => {}
                Ok(Some(_)) => {
                    if let Some(rewriter) = self.rewriter.take() {
                        self.fields = rewriter.end(&mut rewritten);
                    }
                }
                Err(error) => break Err(error),
            }
            if !rewritten.is_empty() {
                show(&rewritten);
                rewritten.clear();
            }
        };
        show(&bytes[shown_from..at]);
        counted
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{RequestScanner, Step};

    fn forward(
        replies: &mut ReplyForwarder,
        state: &mut State,
        bytes: &[u8],
        show: impl FnMut(&[u8]),
    ) -> Result<(), Uncountable> {
        replies.forward(state, bytes, &String::new, show)
    }

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
            let (mut replies, mut state) = (ReplyForwarder::new(), State::new());
            let mut client = BytesMut::new();
            sent(&mut state, b"CLIENT REPLY OFF\nSUBSCRIBE a\nPING\n");
            for bytes in all.chunks(size) {
                let counted = forward(&mut replies, &mut state, bytes, |shown| {
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
            let (mut replies, mut state) = (ReplyForwarder::new(), State::new());
            let subscription: &[u8] = if subscribes { b"SUBSCRIBE a\n" } else { b"" };
            let pairs = b"SET k 1\nPUBLISH a x\n".repeat(100);
            let commands = [b"MULTI\n", subscription, &pairs].concat();
            sent(&mut state, &commands);
            let queued = b"+QUEUED\r\n".repeat(200 + usize::from(subscribes));
            let bytes = [b"+OK\r\n", &queued[..]].concat();
            assert_eq!(forward(&mut replies, &mut state, &bytes, |_| {}), Ok(()));
            assert!(state.settled() && state.in_transaction());
            assert_eq!(state.queued(), entries, "{subscribes}");
            sent(&mut state, b"DISCARD\nMULTI\nPUBLISH a x\nSET k 1\n");
            let bytes = b"+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n";
            assert_eq!(forward(&mut replies, &mut state, bytes, |_| {}), Ok(()));
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
        let (mut replies, mut state) = (ReplyForwarder::new(), State::new());
        let mut read = |state: &mut State, bytes: &[u8]| {
            forward(&mut replies, state, bytes, |_| {}).unwrap();
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
        let (mut replies, mut state) = (ReplyForwarder::new(), State::new());
        let mut client = BytesMut::new();
        let mut read = |state: &mut State, bytes| {
            forward(&mut replies, state, bytes, |shown| {
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
