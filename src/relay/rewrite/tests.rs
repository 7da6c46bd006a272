use bytes::{Bytes, BytesMut};

use super::{Amendment, LOCK_COMMANDS, ReplyRewriter};
use crate::{
    limits::AMENDED_ENTRIES,
    resp::{Protocol, Writer},
    testing::Value,
};

const SECTION: &str = "# Lockgate\r\nx:1\r\n";

fn amendment(request: &str) -> Option<Amendment> {
    let arguments: Vec<Bytes> = request
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    Amendment::of(&arguments)
}

/// Amends a reply that arrives in pieces of `pieces` bytes.
fn cut(protocol: Protocol, request: &str, reply: &[u8], pieces: usize) -> BytesMut {
    let amendment = amendment(request).expect(request);
    let mut rewriter = ReplyRewriter::new(amendment, protocol, None);
    let mut out = BytesMut::new();
    for piece in reply.chunks(pieces) {
        rewriter.pass(piece, &mut out, &|| SECTION.to_owned());
    }
    rewriter.end(&mut out);
    out
}

/// Amends a reply, and checks that the result does not depend on how it is cut.
fn amended(protocol: Protocol, request: &str, reply: &str) -> String {
    let reply = reply.as_bytes();
    let whole = cut(protocol, request, reply, reply.len());
    for pieces in 1..reply.len() {
        let out = cut(protocol, request, reply, pieces);
        assert_eq!(out, whole, "{request}, {pieces} bytes at once");
    }
    String::from_utf8(whole.to_vec()).unwrap()
}

/// Returns the entries of `COMMAND` in an amended RESP2 reply: name and number of fields.
fn entries(request: &str, reply: &str) -> Vec<(String, usize)> {
    let out = amended(Protocol::Resp2, request, reply);
    let entries = Value::whole(Protocol::Resp2, out.as_bytes()).into_elements();
    let name = |entry: Value| match entry {
        Value::Null => ("nil".to_owned(), 0),
        entry => {
            let fields = entry.into_elements();
            (fields[0].clone().into_text(), fields.len())
        }
    };
    entries.into_iter().map(name).collect()
}

fn entry(name: &str, fields: usize) -> String {
    let rest = ":1\r\n".repeat(fields - 1);
    format!("*{fields}\r\n${}\r\n{name}\r\n{rest}", name.len())
}

fn owned(entries: &[(&str, usize)]) -> Vec<(String, usize)> {
    entries
        .iter()
        .map(|&(name, fields)| (name.to_owned(), fields))
        .collect()
}

#[test]
fn entries_have_as_many_fields_as_those_of_redis() {
    let ours = |fields| LOCK_COMMANDS.iter().map(move |entry| (entry.name, fields));
    for fields in [6, 7, 10] {
        let reply = format!("*1\r\n{}", entry("get", fields));
        let expected: Vec<_> = [("get", fields)].into_iter().chain(ours(fields)).collect();
        assert_eq!(entries("COMMAND", &reply), owned(&expected));
        for nil in ["*-1", "$-1"] {
            let reply = format!("*2\r\n{}{nil}\r\n", entry("get", fields));
            let expected = [("get", fields), ("lock", fields)];
            assert_eq!(entries("COMMAND INFO get lock", &reply), owned(&expected));
            // Redis's entries show the number of fields late.
            let reply = format!(
                "*5\r\n{}{}{nil}\r\n",
                format!("{nil}\r\n").repeat(3),
                entry("get", fields)
            );
            assert_eq!(
                entries("COMMAND INFO lock x LOCKS get unlock", &reply),
                owned(&[
                    ("lock", fields),
                    ("nil", 0),
                    ("locks", fields),
                    ("get", fields),
                    ("unlock", fields)
                ])
            );
        }
    }
    // Redis's reply does not show the number of fields.
    let reply = "*3\r\n$-1\r\n$-1\r\n$-1\r\n";
    assert_eq!(
        entries("COMMAND INFO x lock x", reply),
        owned(&[("nil", 0), ("lock", 10), ("nil", 0)])
    );
}

#[test]
fn the_number_of_fields_is_remembered() {
    let new = |fields| {
        ReplyRewriter::new(
            amendment("COMMAND INFO lock get").unwrap(),
            Protocol::Resp2,
            fields,
        )
    };
    let mut first = new(None);
    let reply = format!("*2\r\n$-1\r\n{}", entry("get", 7));
    first.pass(reply.as_bytes(), &mut BytesMut::new(), &String::new);
    let known = first.end(&mut BytesMut::new());
    assert_eq!(known, Some(7));
    let (mut next, mut out) = (new(known), BytesMut::new());
    next.pass(b"*2\r\n$-1\r\n$-1\r\n", &mut out, &String::new);
    assert!(out.starts_with(b"*2\r\n*7\r\n$4\r\nlock\r\n"), "{out:?}");
}

/// In RESP2 an explanation is an array; its length is not that of an entry.
#[test]
fn explanations_tell_nothing_of_the_number_of_fields() {
    for explained in [8, 10, 14] {
        let asks = amendment("COMMAND DOCS lock multi").unwrap();
        let mut rewriter = ReplyRewriter::new(asks, Protocol::Resp2, None);
        let reply = format!("*2\r\n$5\r\nmulti\r\n{}", entry("summary", explained));
        rewriter.pass(reply.as_bytes(), &mut BytesMut::new(), &String::new);
        assert_eq!(rewriter.end(&mut BytesMut::new()), None);
    }
}

#[test]
fn an_entry_announces_as_many_fields_as_it_has() {
    for (shown, written) in [(5, 6), (6, 6), (7, 7), (8, 7), (9, 7), (10, 10), (11, 10)] {
        let reply = format!("*2\r\n{}$-1\r\n", entry("get", shown));
        let expected = [("get", shown), ("lock", written)];
        assert_eq!(entries("COMMAND INFO get lock", &reply), owned(&expected));
    }
}

#[test]
fn redis_6_has_nothing_to_say_to_command_info_without_names() {
    assert_eq!(amended(Protocol::Resp2, "COMMAND INFO", "*0\r\n"), "*0\r\n");
}

#[test]
fn an_unexpected_reply_passes_unchanged() {
    let long = format!("-ERR {}\r\n", "x".repeat(300));
    let replies = [
        "-NOPERM no\r\n",
        "!7\r\nERR no!\r\n",
        "+QUEUED\r\n",
        "_\r\n",
        "$-1\r\n",
        "*-1\r\n",
        &long,
    ];
    let requests = [
        "COMMAND",
        "COMMAND COUNT",
        "COMMAND LIST",
        "COMMAND INFO lock",
        "COMMAND DOCS",
        "COMMAND GETKEYS lock k",
        "INFO",
    ];
    for request in requests {
        for reply in replies {
            if (request, reply) != ("COMMAND GETKEYS lock k", "*-1\r\n") {
                assert_eq!(amended(Protocol::Resp2, request, reply), reply, "{request}");
            }
        }
    }
    // The length differs from the number of names in the request.
    let reply = "*2\r\n$-1\r\n$-1\r\n";
    assert_eq!(amended(Protocol::Resp2, "COMMAND INFO lock", reply), reply);
}

#[test]
fn a_section_is_added_to_the_text_of_info() {
    for (protocol, reply, expected) in [
        (
            Protocol::Resp2,
            "$0\r\n\r\n",
            "$17\r\n# Lockgate\r\nx:1\r\n\r\n",
        ),
        (
            Protocol::Resp3,
            "=4\r\ntxt:\r\n",
            "=21\r\ntxt:# Lockgate\r\nx:1\r\n\r\n",
        ),
        (
            Protocol::Resp2,
            "$10\r\n# A\r\nb:2\r\n\r\n",
            "$29\r\n# A\r\nb:2\r\n\r\n# Lockgate\r\nx:1\r\n\r\n",
        ),
        (
            Protocol::Resp3,
            "=14\r\ntxt:# A\r\nb:2\r\n\r\n",
            "=33\r\ntxt:# A\r\nb:2\r\n\r\n# Lockgate\r\nx:1\r\n\r\n",
        ),
    ] {
        assert_eq!(amended(protocol, "INFO", reply), expected);
        Value::whole(protocol, expected.as_bytes());
    }
}

#[test]
fn a_command_of_the_same_name_is_replaced_where_it_stands() {
    let reply = format!(
        "*3\r\n{}{}{}",
        entry("get", 10),
        entry("lock", 10),
        entry("lockinfos", 10)
    );
    let out = entries("COMMAND", &reply);
    let (first, last) = out.split_at(3);
    assert_eq!(
        first,
        owned(&[("get", 10), ("lock", 10), ("lockinfos", 10)])
    );
    assert_eq!(last.len(), LOCK_COMMANDS.len());
    let reply = amended(Protocol::Resp2, "COMMAND", &reply);
    assert_eq!(
        reply.matches("$4\r\nlock\r\n:-2\r\n").count(),
        2,
        "both are ours"
    );

    let mut lock = BytesMut::new();
    LOCK_COMMANDS[0].write_docs(&mut Writer::new(&mut lock, Protocol::Resp3));
    let lock = String::from_utf8(lock.to_vec()).unwrap();
    let reply = "%2\r\n$4\r\nlock\r\n%1\r\n$7\r\nsummary\r\n$6\r\ntheirs\r\n$3\r\nget\r\n%0\r\n";
    let expected = format!("%3\r\n{lock}$3\r\nget\r\n%0\r\n{lock}");
    assert_eq!(
        amended(Protocol::Resp3, "COMMAND DOCS lock get", reply),
        expected
    );

    let reply = "*1\r\n$4\r\nLOCK\r\n";
    assert_eq!(
        amended(Protocol::Resp2, "COMMAND LIST FILTERBY PATTERN lock", reply),
        "*2\r\n$4\r\nlock\r\n$4\r\nlock\r\n"
    );
    let reply = "*2\r\n$1\r\na\r\n$1\r\nb\r\n";
    assert_eq!(
        amended(Protocol::Resp2, "COMMAND GETKEYS lock k", reply),
        "*1\r\n$1\r\nk\r\n"
    );
}

#[test]
fn a_push_in_the_middle_is_no_element() {
    let mut lock = BytesMut::new();
    LOCK_COMMANDS[0].write_info(7, &mut Writer::new(&mut lock, Protocol::Resp3));
    let lock = String::from_utf8(lock.to_vec()).unwrap();
    let (push, get) = (">2\r\n$10\r\ninvalidate\r\n_\r\n", entry("get", 7));
    let reply = format!("*3\r\n{get}{push}_\r\n{push}{get}");
    assert_eq!(
        amended(Protocol::Resp3, "COMMAND INFO get lock get", &reply),
        format!("*3\r\n{get}{push}{lock}{push}{get}")
    );
}

#[test]
fn empty_and_oversized_parts_are_not_kept() {
    for request in [
        "COMMAND HELP",
        "COMMAND COUNT x",
        "COMMAND INFO get lock|x",
        "COMMAND DOCS get",
        "COMMAND LIST FILTERBY PATTERN se*",
        "COMMAND LIST FILTERBY MODULE lockgate",
        "COMMAND LIST x",
        "COMMAND GETKEYS set k v",
        "COMMAND GETKEYS",
        "INFO server",
        "GET lock",
    ] {
        assert!(amendment(request).is_none(), "{request}");
    }
    let many = " lock".repeat(AMENDED_ENTRIES);
    for request in ["COMMAND INFO", "COMMAND DOCS"] {
        assert!(amendment(&format!("{request}{many}")).is_some());
        assert!(amendment(&format!("{request}{many} lock")).is_none());
    }
    let key = "k".repeat(AMENDED_ENTRIES * 1024);
    assert!(amendment(&format!("COMMAND GETKEYS lock {key}")).is_none());
    assert!(amendment(&format!("COMMAND GETKEYS lock {}", &key[2_000..])).is_some());
}
