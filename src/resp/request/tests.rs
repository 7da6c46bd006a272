use proptest::prelude::*;
use redis_protocol::resp2::{decode::decode_bytes, types::BytesFrame};

use super::*;

/// A step in a whole stream: its kind, its position, and what was known then.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    Named {
        at: usize,
        name: Vec<u8>,
        count: u64,
    },
    End {
        at: usize,
        bytes: u64,
        name: Vec<u8>,
        first: Option<Vec<u8>>,
        second: Option<Vec<u8>>,
    },
    Blank {
        at: usize,
    },
    Refused(ProtocolError),
}

/// Feeds `stream` in pieces of the given sizes, over and over.
fn told(stream: &[u8], sizes: &[usize]) -> Vec<Told> {
    let (mut scanner, mut told, mut at) = (RequestScanner::new(), Vec::new(), 0);
    for size in sizes.iter().cycle() {
        let end = (at + size).min(stream.len());
        while at < end {
            let (consumed, step) = scanner.scan(&stream[at..end]);
            assert!(consumed <= end - at);
            at += consumed;
            let owned = |bytes: &[u8]| bytes.to_vec();
            told.push(match step {
                Ok(Step::More) => {
                    assert_eq!(at, end, "everything was consumed");
                    continue;
                }
                Ok(Step::Named) => Told::Named {
                    at,
                    name: owned(scanner.name()),
                    count: scanner.argument_count(),
                },
                Ok(Step::End) => Told::End {
                    at,
                    bytes: scanner.frame_bytes(),
                    name: owned(scanner.name()),
                    first: scanner.argument(1).map(owned),
                    second: scanner.argument(2).map(owned),
                },
                Ok(Step::Blank) => Told::Blank { at },
                Err(error) => {
                    told.push(Told::Refused(error));
                    return told;
                }
            });
        }
        if at == stream.len() {
            break;
        }
    }
    told
}

fn told_whole(stream: &[u8]) -> Vec<Told> {
    told(stream, &[stream.len().max(1)])
}

fn refusal(stream: &[u8]) -> Option<ProtocolError> {
    match told_whole(stream).pop() {
        Some(Told::Refused(error)) => Some(error),
        _ => None,
    }
}

fn end(stream: &[u8]) -> (String, Option<Vec<u8>>, Option<Vec<u8>>) {
    match told_whole(stream).pop() {
        Some(Told::End {
            name,
            first,
            second,
            at,
            ..
        }) if at == stream.len() => (String::from_utf8(name).unwrap(), first, second),
        other => panic!("no whole command: {other:?}"),
    }
}

#[test]
fn a_command_is_named_before_it_ends() {
    let set = b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$2\r\nvv\r\n";
    assert_eq!(
        told_whole(set),
        [
            Told::Named {
                at: 11,
                name: b"SET".to_vec(),
                count: 3
            },
            Told::End {
                at: set.len(),
                bytes: 28,
                name: b"SET".to_vec(),
                first: Some(b"k".to_vec()),
                second: Some(b"vv".to_vec())
            },
        ]
    );
    assert_eq!(
        told_whole(b"lock k WAIT 5\r\n"),
        [
            Told::Named {
                at: 14,
                name: b"LOCK".to_vec(),
                count: 4
            },
            Told::End {
                at: 15,
                bytes: 15,
                name: b"LOCK".to_vec(),
                first: Some(b"k".to_vec()),
                second: Some(b"WAIT".to_vec())
            },
        ]
    );
}

#[test]
fn names_and_arguments_too_long_are_not_told() {
    let long = format!(
        "*2\r\n$25\r\n{}\r\n$33\r\n{}\r\n",
        "n".repeat(25),
        "a".repeat(33)
    );
    assert_eq!(end(long.as_bytes()), (String::new(), None, None));
    let fits = format!("{} {}\n", "n".repeat(24), "a".repeat(32));
    assert_eq!(
        end(fits.as_bytes()),
        ("N".repeat(24), Some(vec![b'a'; 32]), None)
    );
}

#[test]
fn a_name_with_a_nul_is_refused_because_redis_compares_it_up_to_the_nul() {
    assert_eq!(
        refusal(b"*1\r\n$8\r\nMONITOR\0\r\n"),
        Some(ProtocolError::NulInName)
    );
    assert_eq!(
        refusal(b"\"MONITOR\\x00\"\n"),
        Some(ProtocolError::NulInName)
    );
}

#[test]
fn a_line_ends_by_64_kb_or_is_refused() {
    let spaces = " ".repeat(LINE_BYTES);
    assert_eq!(
        told_whole(format!("{spaces}\n").as_bytes()),
        [Told::Blank { at: LINE_BYTES + 1 }]
    );
    assert_eq!(
        refusal(format!("{spaces} \n").as_bytes()),
        Some(ProtocolError::TooBigInline)
    );
    let digits = "1".repeat(LINE_BYTES);
    assert_eq!(
        refusal(format!("*{digits}").as_bytes()),
        Some(ProtocolError::TooBigArgumentCount)
    );
    assert_eq!(refusal(format!("*{}", &digits[1..]).as_bytes()), None);
    assert_eq!(
        refusal(format!("*1\r\n${digits}").as_bytes()),
        Some(ProtocolError::TooBigBulkCount)
    );
}

#[test]
fn a_value_of_hundreds_of_megabytes_is_passed_over_in_pieces() {
    let mut scanner = RequestScanner::new();
    let begin = format!("*2\r\n$4\r\nPING\r\n${BULK_BYTES}\r\n");
    let (named, _) = scanner.scan(begin.as_bytes());
    assert_eq!(scanner.scan(&begin.as_bytes()[named..]).1, Ok(Step::More));
    let piece = vec![b'*'; 1 << 20];
    for _ in 0..BULK_BYTES >> 20 {
        assert_eq!(scanner.scan(&piece), (piece.len(), Ok(Step::More)));
    }
    assert_eq!(scanner.scan(b"\r\n"), (2, Ok(Step::End)));
    assert_eq!(
        refusal(format!("*1\r\n${}\r\n", BULK_BYTES + 1).as_bytes()),
        Some(ProtocolError::InvalidBulkLength)
    );
}

#[test]
fn ten_megabytes_byte_by_byte_cost_one_step_a_byte() {
    let command = multibulk(&[b"SET".to_vec(), b"k".to_vec(), vec![b'v'; 100]]);
    let mut scanner = RequestScanner::new();
    let (mut bytes, mut calls) = (0, 0);
    while bytes < 10_000_000 {
        for byte in &command {
            let mut rest = std::slice::from_ref(byte);
            while !rest.is_empty() {
                let (consumed, step) = scanner.scan(rest);
                assert!(step.is_ok());
                rest = &rest[consumed..];
                calls += 1;
            }
            bytes += 1;
        }
    }
    assert_eq!(calls, bytes);
    assert!(
        std::mem::size_of::<RequestScanner>() <= 192,
        "a scanner is small"
    );
}

#[test]
fn arguments_are_split_as_redis_splits_them() {
    for (line, expected) in [
        ("a b  c\r\n", Ok(vec!["a", "b", "c"])),
        ("  a\tb\r\r\n", Ok(vec!["a", "b"])),
        ("a\x0bb \x0b c\n", Ok(vec!["a\x0bb", "c"])),
        ("\"\" ''\n", Ok(vec!["", ""])),
        (
            r#""a\n\r\t\b\a\\\"\x41\q" x"#,
            Ok(vec!["a\n\r\t\x08\x07\\\"Aq", "x"]),
        ),
        (r#""\x4" "\xg" "\x4\x41""#, Ok(vec!["x4", "xg", "x4A"])),
        (r"'a\'b\n' c", Ok(vec![r"a'b\n", "c"])),
        (r"'a\\' c", Err(())),
        (r#"a"b c"'"#, Err(())),
        (r#"a"b c" d"#, Ok(vec!["ab c", "d"])),
        ("\"a\"\x0bb", Ok(vec!["a", "b"])),
        ("\"a\"b", Err(())),
        ("\"a", Err(())),
        ("'a\\'", Err(())),
        ("\"a\\", Err(())),
        ("\r\n", Ok(vec![])),
    ] {
        let line = if line.ends_with('\n') {
            line.to_owned()
        } else {
            format!("{line}\n")
        };
        let found = arguments(&Bytes::from(line.clone()), 8);
        let expected = expected.map(|words| words.into_iter().map(Bytes::from).collect::<Vec<_>>());
        assert_eq!(
            found,
            expected.map_err(|()| ProtocolError::UnbalancedQuotes),
            "{line:?}"
        );
    }
}

#[test]
fn only_one_whole_frame_with_few_arguments_is_split() {
    let split = |frame: &'static str, most| arguments(&Bytes::from_static(frame.as_bytes()), most);
    assert_eq!(
        split("*2\r\n$1\r\na\r\n$1\r\nb\r\n", 2),
        Ok(vec!["a".into(), "b".into()])
    );
    assert_eq!(
        split("*2\r\n$1\r\na\r\n$1\r\nb\r\n", 1),
        Err(ProtocolError::TooManyArguments)
    );
    assert_eq!(split("a b\n", 1), Err(ProtocolError::TooManyArguments));
    assert_eq!(
        split("*2147483647\r\n$1\r\na\r\n", 16),
        Err(ProtocolError::TooManyArguments)
    );
    for frame in [
        "",
        "*1\r\n",
        "*1\r\n$1\r\na\r",
        "*1\r\n$1\r\na\r\n*",
        "a",
        "a\nb",
    ] {
        assert_eq!(
            split(frame, 8),
            Err(ProtocolError::NotOneFrame),
            "{frame:?}"
        );
    }
}

fn multibulk(arguments: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        out.extend(format!("${}\r\n", argument.len()).bytes());
        out.extend(argument);
        out.extend(b"\r\n");
    }
    out
}

/// Generates streams that look like the protocol, and often are.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let bits = prop::sample::select(vec![
        "*1\r\n",
        "*2\r\n",
        "*0\r\n",
        "*-1\r\n",
        "*3\rx",
        "$4\r\nPING\r\n",
        "$4\r\nPING..",
        "$0\r\n\r\n",
        "$1\r\nk\r\n",
        "$-1\r\n",
        "$",
        "*",
        "\r",
        "\n",
        "\r\n",
        "ping\r\n",
        " ",
        "\"",
        "'",
        "\\",
        "\\x",
        "4",
        "1",
        "g",
        "set k \"v\\x41\"\n",
        "'a\\'b' c\n",
        "\x0b",
        "\0",
        "x",
    ]);
    prop::collection::vec(bits, 0..16).prop_map(|bits| bits.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn however_the_bytes_are_cut_the_same_is_told(stream in streams(), sizes in prop::collection::vec(1usize..9, 1..6)) {
        prop_assert_eq!(told(&stream, &sizes), told_whole(&stream));
        prop_assert_eq!(told(&stream, &[1]), told_whole(&stream));
    }

    #[test]
    fn any_bytes_are_read_or_refused(stream in prop::collection::vec(any::<u8>(), 0..64), size in 1usize..9) {
        prop_assert_eq!(told(&stream, &[size]), told_whole(&stream));
        let _ = arguments(&Bytes::from(stream), 4);
    }

    #[test]
    fn a_frame_is_split_where_the_scanner_ends_it(stream in streams()) {
        let mut begin = 0;
        for told in told_whole(&stream) {
            let (end, count) = match &told {
                Told::Named { .. } => continue,
                Told::End { at, .. } => (*at, None),
                Told::Blank { at } => (*at, Some(0)),
                Told::Refused(error) => {
                    // What the scanner refuses before the frame is whole may be an incomplete frame here.
                    let split = arguments(&Bytes::copy_from_slice(&stream[begin..]), 64);
                    prop_assert!(split == Err(*error) || split == Err(ProtocolError::NotOneFrame), "{split:?} {error:?}");
                    break;
                }
            };
            let split = arguments(&Bytes::copy_from_slice(&stream[begin..end]), 64);
            begin = end;
            let split = split.map_err(|error| TestCaseError::fail(error.to_string()))?;
            if let Some(count) = count {
                prop_assert_eq!(split.len(), count);
            }
            if let Told::End { name, first, second, .. } = told {
                prop_assert_eq!(split[0].to_ascii_uppercase(), name);
                prop_assert_eq!(split.get(1).map(|argument| argument.to_vec()), first);
                prop_assert_eq!(split.get(2).map(|argument| argument.to_vec()), second);
            }
        }
    }

    #[test]
    fn the_arguments_are_those_another_decoder_finds(
        name in "[a-z]{1,12}",
        rest in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..48), 0..6),
    ) {
        let given: Vec<Vec<u8>> = std::iter::once(name.into_bytes()).chain(rest).collect();
        let frame = Bytes::from(multibulk(&given));
        let found = arguments(&frame, 8).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let Ok(Some((BytesFrame::Array(other), read))) = decode_bytes(&frame) else { panic!("no array") };
        let other: Vec<Bytes> = other.into_iter().map(|element| match element {
            BytesFrame::BulkString(bytes) => bytes,
            other => panic!("no string: {other:?}"),
        }).collect();
        prop_assert_eq!(read, frame.len());
        prop_assert_eq!(found, other);
        let (_, first) = RequestScanner::new().scan(&frame);
        prop_assert_eq!(first, Ok(Step::Named));
    }

    #[test]
    fn requests_of_libraries_take_the_plain_path(
        name in "[a-zA-Z]{1,12}",
        rest in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..48), 0..6),
        more in 0usize..9,
        less in 1usize..9,
    ) {
        let given: Vec<Vec<u8>> = std::iter::once(name.clone().into_bytes()).chain(rest).collect();
        let frame = multibulk(&given);
        let stream = [frame.as_slice(), &b"*1\r\n$4\r\n"[..more]].concat();
        prop_assert_eq!(plain_request(&stream), Some((frame.len(), name.as_bytes())));
        prop_assert_eq!(plain_request(&frame[..frame.len() - less]), None, "not whole");
    }

    #[test]
    fn a_plain_request_is_what_the_scanner_reads(stream in streams()) {
        if let Some((end, name)) = plain_request(&stream) {
            let told = told_whole(&stream[..end]);
            let Some(Told::End { at, name: told, .. }) = told.last() else { panic!("{told:?}") };
            prop_assert_eq!(*at, end);
            prop_assert_eq!(told, &name.to_ascii_uppercase());
        }
    }
}
