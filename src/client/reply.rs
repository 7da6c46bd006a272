//! The writer of replies: appends them to a buffer, in the protocol that the client speaks.
//!
//! What RESP2 has no word for is written as Redis writes it there: a map as a flat array, a set as
//! an array, verbatim text as a bulk string.

use bytes::{BufMut, BytesMut};

/// The version of the protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// What every connection begins with.
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Appends replies to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut BytesMut,
    protocol: Protocol,
}

impl<'a> Writer<'a> {
    /// A writer that appends to `out`.
    pub fn new(out: &'a mut BytesMut, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// A status, such as `OK`. Line ends in it become spaces.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: its text without the leading `-`. Line ends in it become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'-', text.as_ref());
    }

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.line(b':', number.to_string().as_bytes());
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.header(b'$', bytes.len());
        self.out.put_slice(bytes);
        self.out.put_slice(b"\r\n");
    }

    /// Text for people.
    pub fn verbatim(&mut self, text: &str) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        self.header(b'=', text.len() + 4);
        self.out.put_slice(b"txt:");
        self.out.put_slice(text.as_bytes());
        self.out.put_slice(b"\r\n");
    }

    /// Nil.
    pub fn null(&mut self) {
        self.out.put_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The beginning of an array of `length` elements.
    pub fn array(&mut self, length: usize) {
        self.header(b'*', length);
    }

    /// The beginning of a map of `length` pairs.
    pub fn map(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', length * 2),
            Protocol::Resp3 => self.header(b'%', length),
        }
    }

    /// The beginning of a set of `length` elements.
    pub fn set(&mut self, length: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', length),
            Protocol::Resp3 => self.header(b'~', length),
        }
    }

    fn header(&mut self, mark: u8, length: usize) {
        self.line(mark, length.to_string().as_bytes());
    }

    fn line(&mut self, mark: u8, text: &[u8]) {
        self.out.put_u8(mark);
        self.out.extend(text.iter().map(|byte| match byte {
            b'\r' | b'\n' => b' ',
            other => *other,
        }));
        self.out.put_slice(b"\r\n");
    }
}
