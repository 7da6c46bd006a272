//! The counting of replies: what a client's connection owes and is, whatever both sides say. The same
//! for every way of cutting what Redis says; a reply is never taken for another command's, so what is
//! owed never grows by a reply; and nobody sees bytes that were not sent.
//!
//! The first byte says how to cut; then requests and replies in turn, each behind its length.

use lockgate::{
    relay::state::{State, Uncountable, Visibility},
    resp::{Protocol, ReplyScanner, RequestScanner, Step},
};

use super::pieces;

/// What can be seen of a connection.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    shown: Vec<u8>,
    error: Option<Uncountable>,
    owed: usize,
    queued: usize,
    protocol: Protocol,
    database: u32,
    authenticated: bool,
    in_transaction: bool,
    subscriptions: u64,
    settled: bool,
}

pub(crate) fn body(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else {
        return;
    };
    // Attributes before a reply that may be hidden (Redis has none but for DEBUG PROTOCOL) are shown
    // or not as they come, see `Visibility`; all else is the same.
    let has = |word: &[u8]| {
        bytes
            .windows(word.len())
            .any(|part| part.eq_ignore_ascii_case(word))
    };
    let as_they_come = has(b"|") && has(b"CLIENT");
    let seen = |how| {
        let mut seen = converse(bytes, |reply| pieces(reply, how).collect());
        if as_they_come {
            seen.shown.clear();
        }
        seen
    };
    let mut whole = converse(bytes, |reply| vec![reply]);
    if as_they_come {
        whole.shown.clear();
    }
    assert_eq!(seen(how), whole, "cut by {how}");
    assert_eq!(seen(0), whole, "byte by byte");
}

fn converse<'a>(mut bytes: &'a [u8], cut: impl Fn(&'a [u8]) -> Vec<&'a [u8]>) -> Seen {
    let (mut requests, mut replies, mut state) =
        (RequestScanner::new(), ReplyScanner::new(), State::new());
    let (mut shown, mut error) = (Shown::default(), None);
    let (mut is_request, mut commands) = (true, 0);
    while let Some((&length, rest)) = bytes.split_first()
        && error.is_none()
    {
        let (part, rest) = rest.split_at(rest.len().min(usize::from(length)));
        bytes = rest;
        if is_request {
            match send(&mut requests, &mut state, part) {
                Some(count) => commands += count,
                None => break,
            }
        } else {
            for piece in cut(part) {
                error = receive(&mut replies, &mut state, piece, &mut shown);
                if error.is_some() {
                    break;
                }
            }
        }
        assert!(state.owed() <= commands, "more is owed than was asked for");
        is_request = !is_request;
    }
    Seen {
        shown: shown.bytes,
        error,
        owed: state.owed(),
        queued: state.queued(),
        protocol: state.protocol(),
        database: state.database(),
        authenticated: state.authenticated(),
        in_transaction: state.in_transaction(),
        subscriptions: state.subscriptions(),
        settled: state.settled(),
    }
}

/// Returns how many commands were sent; none where the connection ends.
fn send(scanner: &mut RequestScanner, state: &mut State, part: &[u8]) -> Option<usize> {
    let (mut at, mut commands) = (0, 0);
    while at < part.len() {
        let (consumed, step) = scanner.scan(&part[at..]);
        at += consumed;
        match step.ok()? {
            Step::More | Step::Named => {}
            Step::Blank => state.sent_blank(),
            Step::End => {
                // An uncountable connection is a plain pipe from here on, or ends.
                if State::may_end_counting(scanner) || state.sent(scanner).is_err() {
                    return None;
                }
                commands += 1;
            }
        }
    }
    Some(commands)
}

/// The visible part of an uncountable reply depends on how it is split, so it is left out.
fn receive(
    scanner: &mut ReplyScanner,
    state: &mut State,
    piece: &[u8],
    shown: &mut Shown,
) -> Option<Uncountable> {
    let mut at = 0;
    while at < piece.len() {
        let (consumed, visibility, received) = state.receive(scanner, &piece[at..]);
        let bytes = &piece[at..at + consumed];
        at += consumed;
        match visibility {
            Visibility::Shown => {
                shown.bytes.append(&mut shown.undecided);
                shown.bytes.extend_from_slice(bytes);
            }
            Visibility::Hidden => shown.undecided.clear(),
            Visibility::Undecided => shown.undecided.extend_from_slice(bytes),
        }
        match received {
            Ok(None) => {}
            Ok(Some(_)) => shown.whole = shown.bytes.len(),
            // Why Redis closes the connection.
            Err(Uncountable::Unasked) => return Some(Uncountable::Unasked),
            Err(error) => {
                shown.bytes.truncate(shown.whole);
                return Some(error);
            }
        }
    }
    None
}

/// The bytes that the client sees.
#[derive(Default)]
struct Shown {
    bytes: Vec<u8>,
    /// Of whole replies.
    whole: usize,
    undecided: Vec<u8>,
}
