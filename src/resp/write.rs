//! Writes replies, each in the form that the client's protocol version has for it.

use bytes::{BufMut, BytesMut};

use super::Protocol;

/// A writer that appends replies to a buffer. An aggregate is a header, followed by its elements.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut BytesMut,
    protocol: Protocol,
}

impl<'a> Writer<'a> {
    /// Creates a writer to the end of `out`.
    pub fn new(out: &'a mut BytesMut, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// Writes a status, as `OK`. CR and LF in it become spaces.
    pub fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error; `text` begins with its code, without the `-`. CR and LF in it become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'-', text.as_ref());
    }

    /// Writes an integer.
    pub fn integer(&mut self, value: i64) {
        self.number(b':', value);
    }

    /// Writes a string of any bytes.
    pub fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.header(b'$', bytes.len());
        self.out.put_slice(bytes);
        self.out.put_slice(b"\r\n");
    }

    /// Writes a text to be shown as it is (RESP2: a string).
    pub fn verbatim(&mut self, text: &str) {
        if self.protocol == Protocol::Resp2 {
            return self.bulk(text);
        }
        self.header(b'=', text.len() + 4);
        self.out.put_slice(b"txt:");
        self.out.put_slice(text.as_bytes());
        self.out.put_slice(b"\r\n");
    }

    /// Writes nil in the place of a string.
    pub fn null(&mut self) {
        self.out.put_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes nil in the place of an array.
    pub fn null_array(&mut self) {
        self.out.put_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes true or false (RESP2: 1 or 0).
    pub fn boolean(&mut self, value: bool) {
        self.out.put_slice(match (self.protocol, value) {
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
        });
    }

    /// Writes the header of an array of `elements`.
    pub fn array(&mut self, elements: usize) {
        self.header(b'*', elements);
    }

    /// Writes the header of a map of `pairs` (RESP2: an array of twice as many elements).
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', pairs * 2),
            Protocol::Resp3 => self.header(b'%', pairs),
        }
    }

    /// Writes the header of a set of `elements` (RESP2: an array).
    pub fn set(&mut self, elements: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', elements),
            Protocol::Resp3 => self.header(b'~', elements),
        }
    }

    /// Writes the header of a push of `elements` (RESP2: an array, as its messages are).
    pub fn push(&mut self, elements: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', elements),
            Protocol::Resp3 => self.header(b'>', elements),
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.put_u8(kind);
        self.out.extend(text.iter().map(|&byte| {
            if matches!(byte, b'\r' | b'\n') {
                b' '
            } else {
                byte
            }
        }));
        self.out.put_slice(b"\r\n");
    }

    fn header(&mut self, kind: u8, length: usize) {
        // No buffer is longer than isize::MAX bytes.
        self.number(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    fn number(&mut self, kind: u8, value: i64) {
        let mut digits = [0; 20];
        let mut begin = digits.len();
        let mut rest = value.unsigned_abs();
        loop {
            begin -= 1;
            digits[begin] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.out.put_u8(kind);
        if value < 0 {
            self.out.put_u8(b'-');
        }
        self.out.put_slice(&digits[begin..]);
        self.out.put_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use redis_protocol::{
        resp2::{decode::decode_bytes as decode2, types::BytesFrame as Frame2},
        resp3::{
            decode::complete::decode_bytes as decode3,
            types::{BytesFrame as Frame3, Resp3Frame},
        },
    };

    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Writer<'_>)) -> Bytes {
        let mut out = BytesMut::from(&b""[..]);
        write(&mut Writer::new(&mut out, protocol));
        out.freeze()
    }

    fn as_resp2(write: impl FnOnce(&mut Writer<'_>)) -> Frame2 {
        let bytes = written(Protocol::Resp2, write);
        let (frame, read) = decode2(&bytes).unwrap().expect("a whole frame");
        assert_eq!(read, bytes.len());
        frame
    }

    fn as_resp3(write: impl FnOnce(&mut Writer<'_>)) -> Frame3 {
        let bytes = written(Protocol::Resp3, write);
        let (frame, read) = decode3(&bytes).unwrap().expect("a whole frame");
        assert_eq!(read, bytes.len());
        frame
    }

    #[test]
    fn a_client_reads_what_was_written_in_either_protocol() {
        assert_eq!(
            as_resp2(|w| w.status("OK")),
            Frame2::SimpleString("OK".into())
        );
        assert_eq!(
            as_resp2(|w| w.error("ERR a\r\nb")),
            Frame2::Error("ERR a  b".into())
        );
        assert_eq!(
            as_resp2(|w| w.bulk(b"\r\n\0")),
            Frame2::BulkString(Bytes::from_static(b"\r\n\0"))
        );
        assert_eq!(
            as_resp2(|w| w.verbatim("x")),
            Frame2::BulkString("x".into())
        );
        assert_eq!(as_resp2(|w| w.null()), Frame2::Null);
        assert_eq!(written(Protocol::Resp2, |w| w.null_array()), "*-1\r\n");
        assert_eq!(as_resp2(|w| w.boolean(true)), Frame2::Integer(1));
        assert_eq!(
            as_resp3(|w| w.boolean(false)),
            Frame3::Boolean {
                data: false,
                attributes: None
            }
        );
        assert_eq!(as_resp3(|w| w.null()), Frame3::Null);
        assert_eq!(as_resp3(|w| w.null_array()), Frame3::Null);
        assert_eq!(as_resp3(|w| w.verbatim("x\n")).as_str(), Some("x\n"));
        assert!(
            matches!(as_resp3(|w| w.error("ERR x")), Frame3::SimpleError { data, .. } if &*data == "ERR x")
        );
    }

    #[test]
    fn a_map_is_a_map_or_a_flat_array() {
        let write = |w: &mut Writer<'_>| {
            w.map(2);
            w.bulk("held");
            w.integer(1);
            w.bulk("waiters");
            w.integer(7);
        };
        let Frame2::Array(flat) = as_resp2(write) else {
            panic!("no array")
        };
        assert_eq!(flat.len(), 4);
        assert_eq!(flat[3], Frame2::Integer(7));
        let Frame3::Map { data, .. } = as_resp3(write) else {
            panic!("no map")
        };
        assert_eq!(data.len(), 2);
    }

    #[test]
    fn a_push_is_told_from_an_array_in_resp3() {
        let write = |w: &mut Writer<'_>| {
            w.push(2);
            w.bulk("lock-lost");
            w.bulk("k");
        };
        assert!(matches!(as_resp3(write), Frame3::Push { data, .. } if data.len() == 2));
        assert!(matches!(as_resp2(write), Frame2::Array(data) if data.len() == 2));
    }

    #[test]
    fn every_integer_arrives_as_it_was() {
        let mut edges = vec![
            0,
            -1,
            i64::MIN,
            i64::MAX,
            999_999_999_999_999,
            9_007_199_254_740_993,
        ];
        let powers = (0..19).map(|power| 10i64.pow(power));
        edges.extend(powers.flat_map(|power| [power, power - 1, -power, 1 - power]));
        for value in edges {
            assert_eq!(
                written(Protocol::Resp2, |w| w.integer(value)),
                format!(":{value}\r\n")
            );
            assert_eq!(as_resp2(|w| w.integer(value)), Frame2::Integer(value));
        }
    }
}
