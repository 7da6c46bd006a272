//! The scanner of requests: the same result for every way of cutting, and what Redis makes of the same
//! bytes. The first byte says how to cut.

use bytes::Bytes;
use lockgate::resp::{ProtocolError, RequestScanner, Step, arguments};

use super::{
    pieces,
    reference::{self, Ending},
};

/// The steps of the scanner, and their positions.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Named {
        at: usize,
        name: Vec<u8>,
        count: u64,
    },
    End {
        at: usize,
        bytes: u64,
        captured: [Option<Vec<u8>>; 4],
    },
    Blank {
        at: usize,
    },
    Error(ProtocolError),
}

pub(crate) fn body(data: &[u8]) {
    let Some((&how, bytes)) = data.split_first() else {
        return;
    };
    let whole = scan([bytes].into_iter());
    assert_eq!(scan(pieces(bytes, how)), whole, "cut by {how}");
    assert_eq!(scan(pieces(bytes, 0)), whole, "byte by byte");
    agrees_with_redis(bytes, &whole);
}

fn scan<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<Told> {
    let (mut scanner, mut told, mut before) = (RequestScanner::new(), Vec::new(), 0);
    for piece in pieces {
        let mut at = 0;
        while at < piece.len() {
            let (consumed, step) = scanner.scan(&piece[at..]);
            at += consumed;
            let (at, step) = match step {
                Ok(step) => (before + at, step),
                Err(error) => {
                    told.push(Told::Error(error));
                    return told;
                }
            };
            match step {
                Step::More => {}
                Step::Named => told.push(Told::Named {
                    at,
                    name: scanner.name().to_vec(),
                    count: scanner.argument_count(),
                }),
                Step::End => {
                    let owned = |text: Option<&[u8]>| text.map(<[u8]>::to_vec);
                    let captured = [
                        owned(scanner.argument(1)),
                        owned(scanner.argument(2)),
                        owned(scanner.argument_beginning(1)),
                        owned(scanner.argument_beginning(2)),
                    ];
                    let bytes = scanner.frame_bytes();
                    told.push(Told::End {
                        at,
                        bytes,
                        captured,
                    });
                }
                Step::Blank => told.push(Told::Blank { at }),
            }
        }
        before += piece.len();
    }
    told
}

fn agrees_with_redis(bytes: &[u8], told: &[Told]) {
    let (expected, ending) = reference::requests(bytes);
    let mut expected = expected.iter();
    let (mut begin, mut name, mut error) = (0, None, None);
    for told in told {
        match told {
            Told::Named {
                name: its, count, ..
            } => name = Some((its, count)),
            Told::Blank { at } => {
                let request = expected.next().expect("Redis sees a frame, too");
                assert_eq!((request.end, request.arguments.len()), (*at, 0));
                begin = *at;
            }
            Told::End {
                at,
                bytes: length,
                captured,
            } => {
                let request = expected.next().expect("Redis sees a command, too");
                assert_eq!(request.end, *at, "it ends where Redis sees its end");
                assert_eq!(*length as usize, at - begin);
                let (name, count) = name.take().expect("a name was told before the end");
                assert_eq!(*count as usize, request.arguments.len());
                is_told(name, &request.arguments[0]);
                for (index, captured) in captured[..2].iter().enumerate() {
                    let argument = request.arguments.get(index + 1);
                    let short = argument.filter(|argument| argument.len() <= 32);
                    assert_eq!(captured.as_ref(), short, "argument {}", index + 1);
                }
                let frame = Bytes::copy_from_slice(&bytes[begin..*at]);
                let split = arguments(&frame, usize::MAX).expect("a whole frame");
                assert_eq!(split, request.arguments);
                begin = *at;
            }
            Told::Error(its) => error = Some(*its),
        }
    }
    match error {
        // Redis hashes such a name to its end, and compares it up to its NUL.
        Some(ProtocolError::NulInName) => assert!(bytes[begin..].contains(&0) || has_escape(bytes)),
        Some(error) => {
            assert_eq!(expected.next(), None, "Redis reads on");
            let text = error.to_string();
            match ending {
                Ending::Error(its) => assert!(text.starts_with(its), "{text}, Redis: {its}"),
                Ending::Unclear => {}
                Ending::More => panic!("{text}, where Redis waits for more"),
            }
        }
        None => {
            assert_eq!(expected.next(), None, "Redis reads on");
            assert_eq!(ending, Ending::More);
        }
    }
}

/// A name is told in capitals, and one of more than 24 bytes as none.
fn is_told(told: &[u8], name: &[u8]) {
    if name.len() <= 24 {
        assert_eq!(told, name.to_ascii_uppercase());
    } else {
        assert!(told.is_empty());
    }
}

/// `"\x00"` in an inline command is a NUL, too.
fn has_escape(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|four| four == b"\\x00")
}
