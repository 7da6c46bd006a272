//! The client of a contest: one command, one reply, over a socket of its own. It speaks to Redis and to lockgate in
//! the same way, so that the client does not make the difference.

use std::{io, time::Duration};

use bytes::BytesMut;
use lockgate::{
    resp::{Protocol, Writer},
    transport::{endpoint::Endpoint, stream::Stream},
};
use thiserror::Error;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    time::timeout,
};

/// Size of the read buffer, in bytes; most replies are a few bytes, and there may be 10,000 clients.
const READ_BYTES: usize = 256;

/// Longest line of a reply, in bytes.
const LINE_BYTES: u64 = 4 * 1024;

/// Longest string that is accepted, in bytes: a reply to `INFO` has some ten thousand.
const STRING_BYTES: usize = 4 * 1024 * 1024;

/// The server that clients connect to, and their credentials.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) endpoint: Endpoint,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Bound on connecting, the first reply included.
    pub(super) within: Duration,
}

/// The reason why a command failed.
#[derive(Debug, Error)]
pub(super) enum Trouble {
    /// The server's own error, without the leading `-`.
    #[error("{0}")]
    Said(String),
    /// The connection is broken.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// No reply came in time.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Late(Duration),
    /// The token no longer held the lock.
    #[error("a lock was gone before its owner released it: does somebody else delete keys there?")]
    Lost,
    /// Not the protocol, or not a reply to this command.
    #[error("it answers something else than a Redis does")]
    Strange,
}

/// The reply to a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Nil,
    Integer(i64),
    Text(Vec<u8>),
}

/// One connection.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<Stream>,
}

impl Client {
    /// Connects, authenticates, and waits for a first reply.
    pub(super) async fn connect(target: &Target) -> Result<Self, Trouble> {
        let connected = async {
            let stream = target.endpoint.reach(target.within).await?;
            let stream = target.endpoint.secure(stream).await?;
            let mut client = Self {
                stream: BufReader::with_capacity(READ_BYTES, stream),
            };
            let password = target.password.as_deref();
            match (target.user.as_deref(), password) {
                (None, None) => {}
                (None, Some(password)) => {
                    client.call(&["AUTH", password]).await?;
                }
                (Some(user), password) => {
                    let password = password.unwrap_or_default();
                    client.call(&["AUTH", user, password]).await?;
                }
            }
            client.call(&["PING"]).await?;
            Ok(client)
        };
        let late = |_| Trouble::Late(target.within);
        timeout(target.within, connected).await.map_err(late)?
    }

    /// Sends a command and reads its reply. Dropping the future before its end makes the connection useless.
    pub(super) async fn call(&mut self, words: &[&str]) -> Result<Reply, Trouble> {
        let mut bytes = BytesMut::new();
        // A command has the form of an array of strings.
        let mut command = Writer::new(&mut bytes, Protocol::Resp2);
        command.array(words.len());
        words.iter().for_each(|word| command.bulk(word));
        self.stream.write_all(&bytes).await?;
        // TLS may hold the bytes until then.
        self.stream.flush().await?;
        self.reply().await
    }

    async fn reply(&mut self) -> Result<Reply, Trouble> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at_checked(1).ok_or(Trouble::Strange)?;
        let number = || rest.parse::<i64>().map_err(|_| Trouble::Strange);
        Ok(match kind {
            "+" => Reply::Done,
            "-" => return Err(Trouble::Said(rest.to_owned())),
            ":" => Reply::Integer(number()?),
            "$" if rest == "-1" => Reply::Nil,
            "$" => Reply::Text(self.string(number()?).await?),
            _ => return Err(Trouble::Strange),
        })
    }

    async fn line(&mut self) -> Result<String, Trouble> {
        let mut line = Vec::new();
        let mut some = (&mut self.stream).take(LINE_BYTES);
        some.read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let line = line.strip_suffix(b"\r\n").ok_or(Trouble::Strange)?;
        Ok(String::from_utf8_lossy(line).into_owned())
    }

    async fn string(&mut self, length: i64) -> Result<Vec<u8>, Trouble> {
        let length = usize::try_from(length).map_err(|_| Trouble::Strange)?;
        if length > STRING_BYTES {
            return Err(Trouble::Strange);
        }
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).await?;
        if bytes.split_off(length) != b"\r\n" {
            return Err(Trouble::Strange);
        }
        Ok(bytes)
    }
}
