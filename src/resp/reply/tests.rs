use proptest::prelude::*;
use redis_protocol::resp3::decode::complete::decode_range;

use super::*;

/// The facts about one reply: where it ends, and the result of each method.
type Told = (
    usize,
    Result<
        (
            u8,
            Option<i64>,
            Option<Vec<u8>>,
            Option<i64>,
            Option<Vec<u8>>,
            Option<Vec<u8>>,
        ),
        ProtocolError,
    >,
);

fn told(stream: &[u8], sizes: &[usize]) -> Vec<Told> {
    let (mut scanner, mut told, mut at) = (ReplyScanner::new(), Vec::new(), 0);
    for size in sizes.iter().cycle() {
        let end = (at + size).min(stream.len());
        while at < end {
            let (consumed, step) = scanner.scan(&stream[at..end]);
            at += consumed;
            match step {
                Ok(ReplyStep::More) => assert_eq!(at, end, "everything was consumed"),
                Ok(ReplyStep::End) => {
                    let owned = |bytes: &[u8]| bytes.to_vec();
                    told.push((
                        at,
                        Ok((
                            scanner.kind(),
                            scanner.length(),
                            scanner.first().map(owned),
                            scanner.count(),
                            scanner.status().map(owned),
                            scanner.error_code().map(owned),
                        )),
                    ));
                }
                Err(error) => {
                    told.push((at, Err(error)));
                    return told;
                }
            }
        }
        if at == stream.len() {
            break;
        }
    }
    told
}

/// Returns a scanner that has just read the one reply in `text`.
fn read(text: &str) -> ReplyScanner {
    let mut scanner = ReplyScanner::new();
    assert_eq!(
        scanner.scan(text.as_bytes()),
        (text.len(), Ok(ReplyStep::End)),
        "{text:?}"
    );
    scanner
}

fn refused(text: &str) -> bool {
    ReplyScanner::new().scan(text.as_bytes()).1.is_err()
}

#[test]
fn every_kind_of_reply_ends_where_it_ends() {
    for text in [
        "+OK\r\n",
        "-ERR no\r\n",
        ":-5\r\n",
        "$-1\r\n",
        "$0\r\n\r\n",
        "$4\r\na\r\nb\r\n",
        "*0\r\n",
        "*-1\r\n",
        "_\r\n",
        ",1.5\r\n",
        ",inf\r\n",
        "#t\r\n",
        "!5\r\nERR x\r\n",
        "=7\r\ntxt:a\nb\r\n",
        "(123456789012345678901234567890\r\n",
        "*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
        "%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n",
        "~1\r\n_\r\n",
        ">2\r\n+message\r\n+x\r\n",
        "|1\r\n+a\r\n*1\r\n+b\r\n:5\r\n",
        "|0\r\n+x\r\n",
        "*2\r\n|1\r\n+a\r\n+b\r\n:1\r\n:2\r\n",
        "*2\r\n>2\r\n+invalidate\r\n*1\r\n+k\r\n:1\r\n:2\r\n",
        "%0\r\n",
        "+a\rb\r\r\n",
    ] {
        read(text);
        for cut in 1..text.len() {
            let step = ReplyScanner::new().scan(&text.as_bytes()[..cut]);
            assert_eq!(step, (cut, Ok(ReplyStep::More)), "{text:?} cut at {cut}");
        }
    }
}

#[test]
fn malformed_replies_are_refused() {
    for text in [
        "x",
        "\r",
        "$-2\r\n",
        "$1\r\nab",
        "$1x\r\n",
        "$+1\r\n",
        "*01\r\n",
        "$1\r\na\rx",
        "%-1\r\n",
        "$?\r\n",
        "$\r\n",
        "*1\rx",
    ] {
        assert!(refused(text), "{text:?}");
    }
    let most = i64::MAX;
    assert!(
        refused(&format!("%{most}\r\n+a\r\n%{most}\r\n")),
        "the number of elements has a bound"
    );
}

#[test]
fn commands_report_what_counting_needs() {
    let subscribed = read("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:7\r\n");
    assert_eq!(
        (
            subscribed.kind(),
            subscribed.length(),
            subscribed.first(),
            subscribed.count()
        ),
        (b'*', Some(3), Some(&b"subscribe"[..]), Some(7))
    );
    assert_eq!(
        read(">3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n").count(),
        Some(0)
    );
    assert_eq!(
        read("*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n").count(),
        Some(0)
    );
    assert_eq!(read("*3\r\n+message\r\n+c\r\n*1\r\n:5\r\n").count(), None);
    assert_eq!(read("*3\r\n*0\r\n+c\r\n:5\r\n").count(), None);
    assert_eq!(read("*3\r\n*0\r\n+c\r\n:5\r\n").first(), None);
    assert_eq!(read("*3\r\n$-1\r\n+c\r\n:5\r\n").first(), None);
    assert_eq!(read("*2\r\n+c\r\n:5\r\n").count(), None);
    assert_eq!(
        read("|1\r\n+message\r\n:1\r\n*1\r\n+pong\r\n").first(),
        Some(&b"pong"[..])
    );
    assert_eq!(
        read("|1\r\n+a\r\n:1\r\n+QUEUED\r\n").status(),
        Some(&b"QUEUED"[..])
    );
    assert_eq!(
        read("-NOPERM this user has no permissions\r\n").error_code(),
        Some(&b"NOPERM"[..])
    );
    assert!(read("!5\r\nERR x\r\n").is_error());
    assert_eq!(read("+1234567890123456789012345\r\n").status(), None);
    assert!(read("*-1\r\n").is_nil() && read("_\r\n").is_nil() && !read("*0\r\n").is_nil());
}

#[test]
fn an_opened_array_is_told_by_its_elements() {
    let mut scanner = ReplyScanner::new();
    let stream = b"*2\r\n*1\r\n+a\r\n:5\r\n";
    scanner.open_arrays(true);
    assert_eq!(scanner.scan(stream), (4, Ok(ReplyStep::End)));
    assert!(scanner.is_opened());
    assert_eq!(scanner.length(), Some(2));
    scanner.open_arrays(false);
    assert_eq!(scanner.scan(&stream[4..]), (8, Ok(ReplyStep::End)));
    assert!(!scanner.is_opened());
    assert_eq!(scanner.scan(&stream[12..]), (4, Ok(ReplyStep::End)));
    scanner.open_arrays(true);
    assert_eq!(scanner.scan(b"*-1\r\n"), (5, Ok(ReplyStep::End)));
    assert!(!scanner.is_opened() && scanner.is_nil());
}

#[test]
fn a_nesting_of_a_hundred_thousand_costs_no_memory() {
    let mut scanner = ReplyScanner::new();
    let deep = "*1\r\n".repeat(100_000);
    assert_eq!(
        scanner.scan(deep.as_bytes()),
        (deep.len(), Ok(ReplyStep::More))
    );
    assert_eq!(scanner.scan(b":1\r\n"), (4, Ok(ReplyStep::End)));
    assert!(
        std::mem::size_of::<ReplyScanner>() <= 256,
        "a scanner is small"
    );
}

#[test]
fn ten_megabytes_byte_by_byte_cost_one_step_a_byte() {
    let reply = b"*2\r\n$4\r\nabcd\r\n%1\r\n+k\r\n,1.5\r\n";
    let mut scanner = ReplyScanner::new();
    let mut ends = 0;
    for byte in reply.iter().cycle().take(reply.len() * 300_000) {
        let (consumed, step) = scanner.scan(std::slice::from_ref(byte));
        assert_eq!(consumed, 1);
        ends += usize::from(step == Ok(ReplyStep::End));
    }
    assert_eq!(ends, 300_000);
}

/// Generates a reply of RESP3, as Redis writes it.
fn replies() -> impl Strategy<Value = Vec<u8>> {
    let text = prop::collection::vec(prop::sample::select(b"ab \xc3*$\r".to_vec()), 0..30);
    let line = "[a-zA-Z ]{0,30}";
    let leaf = prop_oneof![
        line.prop_map(|text| format!("+{text}\r\n").into_bytes()),
        line.prop_map(|text| format!("-ERR {text}\r\n").into_bytes()),
        any::<i64>().prop_map(|value| format!(":{value}\r\n").into_bytes()),
        Just(b"_\r\n".to_vec()),
        Just(b"#f\r\n".to_vec()),
        Just(b",-1.25\r\n".to_vec()),
        Just(b"(12345678901234567890\r\n".to_vec()),
        text.prop_map(|text| [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat()),
        "[a-z]{0,9}".prop_map(|text| format!("=1{}\r\ntxt:{:09}\r\n", 3, text).into_bytes()),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        (
            prop::sample::select(b"*~%".to_vec()),
            prop::collection::vec(inner, 0..5),
        )
            .prop_map(|(kind, mut elements)| {
                if kind == b'%' {
                    elements.truncate(elements.len() / 2 * 2);
                }
                let length = if kind == b'%' {
                    elements.len() / 2
                } else {
                    elements.len()
                };
                [
                    format!("{}{length}\r\n", char::from(kind)).as_bytes(),
                    &elements.concat(),
                ]
                .concat()
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reply_ends_where_another_decoder_ends_it(reply in replies()) {
        let mut stream = reply.clone();
        stream.extend(b"+next\r\n");
        let ends: Vec<usize> = told(&stream, &[7]).iter().map(|(at, _)| *at).collect();
        prop_assert_eq!(ends, vec![reply.len(), stream.len()]);
        // The other decoder merges equal members of sets and maps, but the bytes are the same.
        if let Ok(Some((_, read))) = decode_range(&reply) {
            prop_assert_eq!(read, reply.len());
        }
    }

    #[test]
    fn however_the_bytes_are_cut_the_same_is_told(
        replies in prop::collection::vec(replies(), 1..4),
        sizes in prop::collection::vec(1usize..9, 1..6),
    ) {
        let stream = replies.concat();
        let whole = told(&stream, &[stream.len()]);
        prop_assert_eq!(whole.len(), replies.len());
        prop_assert_eq!(told(&stream, &sizes), whole);
    }

    #[test]
    fn a_plain_reply_ends_where_the_scanner_ends_it(reply in replies(), more in 0usize..9, less in 0usize..9) {
        let stream = [reply.as_slice(), &b"+next\r\n"[..more.min(7)]].concat();
        let (end, step) = ReplyScanner::new().scan(&stream);
        prop_assert_eq!((end, step), (reply.len(), Ok(ReplyStep::End)));
        let is_plain = matches!(reply[0], b'+' | b':' | b'$' | b'_') && reply.len() < 64;
        prop_assert_eq!(plain_reply(&stream), is_plain.then_some(end));
        prop_assert_eq!(plain_reply(&reply[..reply.len().saturating_sub(less + 1)]), None);
    }

    #[test]
    fn complex_replies_are_left_to_the_scanner(
        stream in prop::collection::vec(prop::sample::select(b"$+:_-019\r\nx".to_vec()), 0..12),
    ) {
        if let Some(end) = plain_reply(&stream) {
            prop_assert_eq!(ReplyScanner::new().scan(&stream), (end, Ok(ReplyStep::End)));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(
        stream in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"*%|>$+:-19\r\n".to_vec())], 0..48),
        size in 1usize..9,
    ) {
        prop_assert_eq!(told(&stream, &[size]), told(&stream, &[64]));
    }
}
