//! The bytes of whole replies, directly and through a gate, and what is in them.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    thread,
};

use crate::support::{Client, Machine, Place, RedisServer, SOON, Value, frame, words};

const END: &str = "end of the script";

/// A gate in front of a Redis that lists its commands in one order.
pub(super) fn place() -> Place {
    let place = Place::with_redis(Machine::shared());
    settle(place.redis());
    place
}

/// The table of `COMMAND`'s own subcommands has just grown, and with each of them that is looked up Redis
/// moves a part of it on, which changes their order in its replies.
pub(super) fn settle(redis: &RedisServer) {
    const LOOKED_UP: usize = 64;
    let mut client = Client::connect(redis.address());
    (0..LOOKED_UP).for_each(|_| assert!(client.say("COMMAND COUNT").integer() > 0));
}

/// All bytes that answer these, sent at once on a new connection, in this protocol.
pub(super) fn bytes(server: SocketAddr, hello: &str, script: &[u8]) -> Vec<u8> {
    // Its reply has the number of the connection.
    let mut client = Client::connect(server);
    assert!(!client.say(hello).items().is_empty());
    let mut stream = client.writer();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
        .write_all(&[script, &frame(&["ECHO", END])].concat())
        .unwrap();
    let end = format!("${}\r\n{END}\r\n", END.len()).into_bytes();
    let (mut all, mut chunk) = (Vec::new(), [0; 16 * 1024]);
    while !all.ends_with(&end) {
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => all.extend_from_slice(&chunk[..count]),
            other => panic!("{other:?} after {}", all.escape_ascii()),
        }
    }
    all.truncate(all.len() - end.len());
    all
}

/// The bytes of these commands, one a line.
pub(super) fn script(lines: &str) -> Vec<u8> {
    let commands = lines.lines().map(words).filter(|words| !words.is_empty());
    commands.flat_map(|words| frame(&words)).collect()
}

/// The bytes of one command's reply.
pub(super) fn reply(server: SocketAddr, hello: &str, command: &str) -> Vec<u8> {
    bytes(server, hello, &frame(&words(command)))
}

pub(super) fn both(place: &Place, hello: &str, command: &str) -> (Vec<u8>, Vec<u8>) {
    let direct = reply(place.redis().address(), hello, command);
    (direct, reply(place.gate.address(), hello, command))
}

/// The first line of a reply: its kind, its number, and what follows it.
pub(super) fn opened(reply: &[u8]) -> (u8, i64, &[u8]) {
    let end = reply.iter().position(|&byte| byte == b'\n').unwrap();
    let number = std::str::from_utf8(&reply[1..end - 1]).unwrap();
    (reply[0], number.parse().unwrap(), &reply[end + 1..])
}

/// The values that these bytes are.
pub(super) fn values(bytes: &[u8]) -> Vec<Value> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = Client::connect(listener.local_addr().unwrap());
    let mut sender = listener.accept().unwrap().0;
    thread::scope(|threads| {
        threads.spawn(move || sender.write_all(bytes).unwrap());
        std::iter::from_fn(|| client.try_read().ok()).collect()
    })
}

pub(super) fn names(entries: &[Value]) -> Vec<String> {
    entries
        .iter()
        .map(|entry| match entry {
            Value::Array(fields) => fields[0].text(),
            name => name.text(),
        })
        .collect()
}

/// The reply through the gate is the direct one with `more` in its first line and something at its
/// end, which is returned.
#[track_caller]
pub(super) fn added(direct: &[u8], relayed: &[u8], more: i64) -> Vec<Value> {
    let ((kind, length, body), (its_kind, its_length, its_body)) =
        (opened(direct), opened(relayed));
    assert_eq!((its_kind, its_length), (kind, length + more));
    let rest = its_body.strip_prefix(body);
    values(rest.expect("what Redis says is all there, as it is"))
}
