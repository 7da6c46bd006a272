//! For tests: a real Redis to compare with, and replies read by third-party decoders. The crate
//! redis-protocol decodes RESP2, the crate redis RESP3 (the former refuses a set of maps, which `COMMAND`
//! has).

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
};

use redis_protocol::resp2;
use tempfile::TempDir;

use crate::resp::Protocol;

/// A reply in either protocol. Maps and sets are sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Text(Vec<u8>),
    Null,
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Set(Vec<Value>),
}

impl Value {
    /// Decodes the first RESP2 frame in these bytes. Returns it with its length; `None` where it is
    /// incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let read = resp2::decode::decode(bytes).unwrap();
        read.map(|(frame, length)| (frame.into(), length))
    }

    /// Decodes bytes that are exactly one reply.
    pub(crate) fn whole(protocol: Protocol, bytes: &[u8]) -> Self {
        match protocol {
            Protocol::Resp2 => {
                let (value, length) = Self::read(bytes).expect("a whole reply");
                assert_eq!(length, bytes.len(), "one reply");
                value
            }
            Protocol::Resp3 => {
                // The parser does not report how much it consumed, so another reply follows.
                let bytes = [bytes, b"+that is all\r\n"].concat();
                let mut bytes = bytes.as_slice();
                let mut parser = redis::Parser::new();
                let value = parser.parse_value(&mut bytes).expect("a whole reply");
                let end = parser.parse_value(&mut bytes).expect("nothing behind it");
                assert_eq!(Self::from(end), Self::Simple("that is all".into()));
                value.into()
            }
        }
    }

    /// Returns the bytes of a string.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Bulk(bytes) | Self::Text(bytes) => bytes,
            Self::Simple(text) => text.into_bytes(),
            other => panic!("not a string: {other:?}"),
        }
    }

    /// Returns the text of a string.
    pub(crate) fn into_text(self) -> String {
        String::from_utf8(self.into_bytes()).unwrap()
    }

    /// Returns the elements of an array or a set, or of a RESP2 map.
    pub(crate) fn into_elements(self) -> Vec<Value> {
        match self {
            Self::Array(elements) | Self::Set(elements) => elements,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Returns the pairs of a map, sorted; RESP2 has maps as flat arrays.
    pub(crate) fn into_pairs(self) -> Vec<(String, Value)> {
        let mut pairs: Vec<(String, Value)> = match self {
            Self::Map(pairs) => pairs
                .into_iter()
                .map(|(key, value)| (key.into_text(), value))
                .collect(),
            Self::Array(flat) => {
                assert_eq!(flat.len() % 2, 0, "{flat:?}");
                flat.chunks(2)
                    .map(|pair| (pair[0].clone().into_text(), pair[1].clone()))
                    .collect()
            }
            other => panic!("not a map: {other:?}"),
        };
        pairs.sort();
        pairs
    }

    /// Returns the value at `key` of a map.
    pub(crate) fn at(&self, key: &str) -> Value {
        let pairs = self.clone().into_pairs();
        let found = pairs.into_iter().find(|(name, _)| name == key);
        found.unwrap_or_else(|| panic!("no {key} in {self:?}")).1
    }
}

impl From<resp2::types::OwnedFrame> for Value {
    fn from(frame: resp2::types::OwnedFrame) -> Self {
        use resp2::types::OwnedFrame as Frame;
        match frame {
            Frame::SimpleString(text) => Self::Simple(String::from_utf8(text).unwrap()),
            Frame::Error(text) => Self::Error(text),
            Frame::Integer(number) => Self::Integer(number),
            Frame::BulkString(bytes) => Self::Bulk(bytes),
            Frame::Array(elements) => Self::Array(elements.into_iter().map(Into::into).collect()),
            Frame::Null => Self::Null,
        }
    }
}

impl From<redis::Value> for Value {
    fn from(value: redis::Value) -> Self {
        match value {
            redis::Value::Okay => Self::Simple("OK".into()),
            redis::Value::SimpleString(text) => Self::Simple(text),
            redis::Value::ServerError(error) => {
                let text = [error.code(), error.details().unwrap_or_default()].join(" ");
                Self::Error(text.trim_end().to_owned())
            }
            redis::Value::Int(number) => Self::Integer(number),
            redis::Value::BulkString(bytes) => Self::Bulk(bytes),
            redis::Value::VerbatimString { text, .. } => Self::Text(text.into_bytes()),
            redis::Value::Nil => Self::Null,
            redis::Value::Array(elements) => {
                Self::Array(elements.into_iter().map(Into::into).collect())
            }
            redis::Value::Map(pairs) => {
                let pairs = pairs.into_iter();
                let mut pairs: Vec<_> = pairs
                    .map(|(key, value)| (key.into(), value.into()))
                    .collect();
                pairs.sort();
                Self::Map(pairs)
            }
            redis::Value::Set(elements) => {
                let mut elements: Vec<_> = elements.into_iter().map(Into::into).collect();
                elements.sort();
                Self::Set(elements)
            }
            other => panic!("unexpected in a test: {other:?}"),
        }
    }
}

/// A redis-server of one test, which ends with it. Its socket is a file, so that concurrent tests cannot take
/// each other's port.
pub(crate) struct Redis {
    server: Child,
    directory: TempDir,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let mut server = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", "socket"])
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is needed to compare with");
        let mut client_info = BufReader::new(server.stdout.take().unwrap()).lines();
        let up = client_info.find(|line| {
            let line = line.as_ref().unwrap();
            line.contains("accept connections at") || line.contains("ready to accept connections")
        });
        assert!(up.is_some(), "redis-server did not come up");
        Self { server, directory }
    }

    pub(crate) fn connect(&self) -> Connection {
        Connection {
            socket: UnixStream::connect(self.directory.path().join("socket")).unwrap(),
            unread: Vec::new(),
            protocol: Protocol::Resp2,
            resp3: redis::Parser::new(),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A client of a real Redis.
pub(crate) struct Connection {
    socket: UnixStream,
    unread: Vec<u8>,
    protocol: Protocol,
    resp3: redis::Parser,
}

impl Connection {
    /// Sends a command.
    pub(crate) fn send(&mut self, arguments: &[&[u8]]) {
        let mut frame = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            frame.extend(format!("${}\r\n", argument.len()).into_bytes());
            frame.extend_from_slice(argument);
            frame.extend(b"\r\n");
        }
        self.socket.write_all(&frame).unwrap();
    }

    /// Waits for the next reply.
    pub(crate) fn receive(&mut self) -> Value {
        if self.protocol == Protocol::Resp3 {
            return self.resp3.parse_value(&mut self.socket).unwrap().into();
        }
        let mut chunk = vec![0; 64 * 1024];
        loop {
            if !self.unread.is_empty()
                && let Some((value, length)) = Value::read(&self.unread)
            {
                self.unread.drain(..length);
                return value;
            }
            let length = self.socket.read(&mut chunk).unwrap();
            assert_ne!(length, 0, "Redis closed the connection");
            self.unread.extend_from_slice(&chunk[..length]);
        }
    }

    /// Sends a command and waits for its reply.
    pub(crate) fn ask(&mut self, arguments: &[&[u8]]) -> Value {
        self.send(arguments);
        self.receive()
    }

    /// Sends a command of single words and waits for its reply.
    pub(crate) fn say(&mut self, words: &str) -> Value {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    /// Changes the protocol.
    pub(crate) fn hello(&mut self, protocol: Protocol) -> Value {
        self.protocol = protocol;
        match protocol {
            Protocol::Resp2 => self.say("HELLO 2"),
            Protocol::Resp3 => self.say("HELLO 3"),
        }
    }
}
