//! The scanner of replies: the same result for every way of cutting, and what a parser with a stack
//! makes of the same bytes. The first byte says how to cut.

use lockgate::resp::{ReplyScanner, ReplyStep, reply::plain_reply};

use super::{pieces, reference};

/// The steps of the scanner in one reply.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    end: usize,
    kind: u8,
    length: Option<i64>,
    first: Option<Vec<u8>>,
    count: Option<i64>,
    status: Option<Vec<u8>>,
    code: Option<Vec<u8>>,
    nil: bool,
}

pub(crate) fn body(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else {
        return;
    };
    let whole = scan([bytes].into_iter());
    assert_eq!(scan(pieces(bytes, how)), whole, "cut by {how}");
    assert_eq!(scan(pieces(bytes, 0)), whole, "byte by byte");

    let (told, goes_on) = whole;
    let (expected, may_go_on) = reference::replies(bytes);
    assert_eq!(goes_on, may_go_on);
    assert_eq!(told.len(), expected.len());
    let mut begin = 0;
    for (told, expected) in told.iter().zip(&expected) {
        assert_eq!((told.end, told.kind), (expected.end, expected.kind));
        if let Some(length) = plain_reply(&bytes[begin..]) {
            assert_eq!(
                begin + length,
                told.end,
                "a plain reply ends where any does"
            );
            assert!(matches!(told.kind, b'+' | b':' | b'$' | b'_'));
        }
        begin = told.end;
    }
    if let Some(length) = plain_reply(&bytes[begin..]) {
        panic!("a plain reply of {length} bytes at {begin}, where none ends");
    }
}

/// The replies, and whether what follows is the beginning of one.
fn scan<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Told>, bool) {
    let (mut scanner, mut told, mut before) = (ReplyScanner::new(), Vec::new(), 0);
    for piece in pieces {
        let mut at = 0;
        while at < piece.len() {
            let (consumed, step) = scanner.scan(&piece[at..]);
            at += consumed;
            let owned = |text: Option<&[u8]>| text.map(<[u8]>::to_vec);
            match step {
                Err(_) => return (told, false),
                Ok(ReplyStep::More) => {}
                Ok(ReplyStep::End) => told.push(Told {
                    end: before + at,
                    kind: scanner.kind(),
                    length: scanner.length(),
                    first: owned(scanner.first()),
                    count: scanner.count(),
                    status: owned(scanner.status()),
                    code: owned(scanner.error_code()),
                    nil: scanner.is_nil(),
                }),
            }
        }
        before += piece.len();
    }
    (told, true)
}
