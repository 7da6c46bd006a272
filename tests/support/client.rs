//! A client as plain as they come: bytes into a socket, replies out of it, a deadline on both.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::SOON;

mod link;

use link::Link;

/// A reply, or a push of RESP3. Every kind of nil is one.
#[derive(Clone, PartialEq)]
pub(crate) enum Value {
    Nil,
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<Value>),
    /// Keys and values in turn.
    Map(Vec<Value>),
    Push(Vec<Value>),
    /// Boolean, double, big number, verbatim text: as it came.
    Other(String),
}

impl Value {
    /// The text of a string.
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Other(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("a string was expected, not {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn integer(&self) -> i64 {
        match self {
            Self::Integer(number) => *number,
            other => panic!("an integer was expected, not {other:?}"),
        }
    }

    /// The text of an error, its code first.
    #[track_caller]
    pub(crate) fn error(&self) -> &str {
        match self {
            Self::Error(text) => text,
            other => panic!("an error was expected, not {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn items(&self) -> &[Value] {
        match self {
            Self::Array(items) | Self::Map(items) | Self::Push(items) => items,
            other => panic!("an aggregate was expected, not {other:?}"),
        }
    }

    /// The value of a field of a map, or of a flat array that stands for one.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> &Value {
        let pairs = || self.items().chunks_exact(2);
        let found = pairs().find(|pair| pair[0] == name).map(|pair| &pair[1]);
        found.unwrap_or_else(|| panic!("no field {name:?} in {self:?}"))
    }

    pub(crate) fn is_nil(&self) -> bool {
        *self == Self::Nil
    }
}

impl PartialEq<str> for Value {
    fn eq(&self, other: &str) -> bool {
        match self {
            Self::Simple(text) => text == other,
            Self::Bulk(bytes) => bytes == other.as_bytes(),
            _ => false,
        }
    }
}

impl PartialEq<&str> for Value {
    fn eq(&self, other: &&str) -> bool {
        self == *other
    }
}

impl PartialEq<String> for Value {
    fn eq(&self, other: &String) -> bool {
        self == other.as_str()
    }
}

impl PartialEq<i64> for Value {
    fn eq(&self, other: &i64) -> bool {
        *self == Self::Integer(*other)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => write!(f, "nil"),
            Self::Simple(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(number) => write!(f, ":{number}"),
            Self::Bulk(bytes) if bytes.len() > 200 => write!(f, "({} bytes)", bytes.len()),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Map(items) => {
                write!(f, "map").and_then(|()| f.debug_list().entries(items).finish())
            }
            Self::Push(items) => {
                write!(f, "push").and_then(|()| f.debug_list().entries(items).finish())
            }
            Self::Other(text) => write!(f, "{text}"),
        }
    }
}

/// One connection.
pub(crate) struct Client {
    stream: BufReader<Link>,
}

impl Client {
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).expect("the server accepts connections")
    }

    /// Connects to what may be down.
    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Self::over(Link::Tcp(stream))
    }

    /// Connects to a socket in the file system.
    pub(crate) fn try_connect_unix(path: &Path) -> io::Result<Self> {
        Self::over(Link::Unix(UnixStream::connect(path)?))
    }

    /// Connects with TLS; the certificate has to be for the address.
    pub(crate) fn try_connect_tls(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        let name = address.ip().into();
        let mut connection =
            ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        Self::over(Link::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    fn over(link: Link) -> io::Result<Self> {
        link.set_read_timeout(Some(SOON))?;
        link.set_write_timeout(Some(SOON))?;
        Ok(Self {
            stream: BufReader::with_capacity(4 * 1024, link),
        })
    }

    /// Sends a command without waiting for its reply.
    #[track_caller]
    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, command: &[A]) {
        self.write_raw(&frame(command));
    }

    /// Sends a command and reads the next reply.
    #[track_caller]
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Value {
        self.send(command);
        self.read_reply()
    }

    /// As [`Client::call`], with a command of words without spaces.
    #[track_caller]
    pub(crate) fn say(&mut self, command: &str) -> Value {
        self.call(&words(command))
    }

    #[track_caller]
    pub(crate) fn write_raw(&mut self, bytes: &[u8]) {
        self.try_write(bytes)
            .expect("the server takes what is written");
    }

    /// Writes what the server may refuse to take.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// The next reply.
    #[track_caller]
    pub(crate) fn read_reply(&mut self) -> Value {
        self.try_read().expect("a reply comes in time")
    }

    /// The next reply, or why there is none: an end of file where the server closed.
    pub(crate) fn try_read(&mut self) -> io::Result<Value> {
        read_value(&mut self.stream)
    }

    /// The next bytes as they are.
    #[track_caller]
    pub(crate) fn read_raw(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream
            .read_exact(&mut bytes)
            .expect("so many bytes come in time");
        bytes
    }

    /// Returns when something can be read, and reads nothing of it.
    #[track_caller]
    pub(crate) fn hears_something(&mut self) {
        let some = self.stream.fill_buf().expect("something comes in time");
        assert!(!some.is_empty(), "the server closed");
    }

    /// Whether something can be read before this much time has passed; reads nothing of it. An
    /// error where the server closed.
    pub(crate) fn hears_within(&mut self, time: Duration) -> io::Result<bool> {
        // Zero would be forever.
        let time = time.max(Duration::from_millis(1));
        self.stream.get_ref().set_read_timeout(Some(time))?;
        let heard = match self.stream.fill_buf() {
            Ok([]) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if is_timeout(&error) => Ok(false),
            Err(error) => Err(error),
        };
        self.stream.get_ref().set_read_timeout(Some(SOON))?;
        heard
    }

    /// No reply is there now, and none comes within this time.
    #[track_caller]
    pub(crate) fn hears_nothing_for(&mut self, time: Duration) {
        self.stream.get_ref().set_read_timeout(Some(time)).unwrap();
        match self.try_read() {
            Ok(value) => panic!("nothing was expected, not {value:?}"),
            Err(error) if is_timeout(&error) => {}
            Err(error) => panic!("the connection was to stay open: {error}"),
        }
        self.stream.get_ref().set_read_timeout(Some(SOON)).unwrap();
    }

    /// Waits for replies as long as the connection lives.
    pub(crate) fn is_patient(&mut self) {
        self.stream.get_ref().set_read_timeout(None).unwrap();
    }

    /// The server closes this connection, whatever it says before.
    #[track_caller]
    pub(crate) fn is_closed_by_the_server(&mut self) {
        loop {
            match self.try_read() {
                Ok(_) => {}
                Err(error) if is_timeout(&error) => panic!("still open after {SOON:?}"),
                Err(_) => return,
            }
        }
    }

    /// Says that nothing more will be sent; what is answered can still be read.
    pub(crate) fn finish_sending(&mut self) {
        self.stream.get_mut().finish_sending().unwrap();
    }

    /// A second handle on the same connection, for writing while another thread reads.
    pub(crate) fn writer(&self) -> TcpStream {
        self.stream.get_ref().tcp().try_clone().unwrap()
    }
}

/// The bytes of a command.
pub(crate) fn frame<A: AsRef<[u8]>>(command: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The words of a command.
pub(crate) fn words(command: &str) -> Vec<&str> {
    command.split_ascii_whitespace().collect()
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// How often this happened, as `INFO` tells.
#[track_caller]
pub(crate) fn counted(client: &mut Client, name: &str) -> u64 {
    let (info, line) = (
        client.say("INFO lockgate").text(),
        format!("lockgate_{name}:"),
    );
    let value = info.lines().find_map(|its| its.strip_prefix(&line));
    let value = value.unwrap_or_else(|| panic!("no {line} in {info}"));
    value.parse().expect("a number")
}

fn read_value(stream: &mut impl BufRead) -> io::Result<Value> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line)?;
    let line = String::from_utf8(line).map_err(|_| wrong("a line is not text"))?;
    let Some(line) = line.strip_suffix("\r\n") else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let (kind, rest) = line
        .split_at_checked(1)
        .ok_or_else(|| wrong("an empty line"))?;
    let number = || rest.parse::<i64>().map_err(|_| wrong(line));
    Ok(match kind {
        "+" => Value::Simple(rest.to_owned()),
        "-" => Value::Error(rest.to_owned()),
        ":" => Value::Integer(number()?),
        "_" => Value::Nil,
        "$" | "*" if rest == "-1" => Value::Nil,
        "$" => Value::Bulk(read_bulk(stream, number()?)?),
        "=" => Value::Other(String::from_utf8_lossy(&read_bulk(stream, number()?)?).into_owned()),
        "*" | "~" => Value::Array(read_values(stream, number()?)?),
        "%" => Value::Map(read_values(stream, number()? * 2)?),
        ">" => Value::Push(read_values(stream, number()?)?),
        "#" | "," | "(" => Value::Other(line.to_owned()),
        _ => return Err(wrong(line)),
    })
}

fn read_values(stream: &mut impl BufRead, count: i64) -> io::Result<Vec<Value>> {
    (0..count).map(|_| read_value(stream)).collect()
}

fn read_bulk(stream: &mut impl Read, length: i64) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).map_err(|_| wrong("a negative length"))?;
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes)?;
    if bytes.split_off(length) != b"\r\n" {
        return Err(wrong("a bulk string that does not end where it should"));
    }
    Ok(bytes)
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not the Redis protocol: {what:?}"),
    )
}
