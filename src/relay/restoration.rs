//! What a client had said on its connection to Redis, said again on the next one.
//!
//! Redis's replies to these words are read here and never reach the client. No command of the client goes to Redis
//! before Redis has accepted all of them: otherwise it would run as another user, or in another database.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::resp::{Protocol, ReplyScanner, ReplyStep, Writer};

/// Bytes read at a time: the replies to all of the words, `HELLO` included, have fewer.
const READ_BYTES: usize = 1024;

/// The commands that make a new connection what the previous one was.
#[derive(Default)]
#[cfg_attr(test, derive(PartialEq))]
pub(super) struct Restoration {
    /// They contain the user's password, so nothing prints them.
    words: BytesMut,
    commands: usize,
}

/// The reason why a connection could not be opened.
#[derive(Debug)]
pub(super) enum Unopened {
    /// Redis cannot be reached, or does not serve at present.
    Unreachable(io::Error),
    /// Redis refuses what the client had said before.
    Refused,
}

#[cfg(test)]
impl std::fmt::Debug for Restoration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.words.escape_ascii())
    }
}

impl Restoration {
    /// Adds a command.
    pub(super) fn add(&mut self, words: &[&[u8]]) {
        // A command has the same form as an array of strings.
        let mut command = Writer::new(&mut self.words, Protocol::Resp2);
        command.array(words.len());
        words.iter().for_each(|word| command.bulk(word));
        self.commands += 1;
    }

    /// Says everything on a new connection, which carries nothing else meanwhile.
    pub(super) async fn say_on(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<(), Unopened> {
        stream.write_all(&self.words).await?;
        // With TLS, the bytes may not be sent before a flush.
        stream.flush().await?;
        let (mut scanner, mut space) = (ReplyScanner::new(), [0; READ_BYTES]);
        let mut left = self.commands;
        while left > 0 {
            let count = stream.read(&mut space).await?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let mut at = 0;
            while at < count {
                let (scanned, step) = scanner.scan(&space[at..count]);
                at += scanned;
                if step.map_err(io::Error::other)? == ReplyStep::End {
                    left = left.checked_sub(1).ok_or_else(unasked)?;
                    accept(&scanner)?;
                }
            }
            if left == 0 && !scanner.between_replies() {
                return Err(unasked().into());
            }
        }
        Ok(())
    }
}

fn accept(reply: &ReplyScanner) -> Result<(), Unopened> {
    let Some(text) = reply.error_text() else {
        return Ok(());
    };
    Err(match reply.error_code() {
        // Redis says it to any client, and closes.
        _ if text.starts_with(b"ERR max number of") => {
            io::Error::other("it has as many clients as it takes").into()
        }
        Some(code @ (b"LOADING" | b"MASTERDOWN" | b"BUSY")) => {
            let code = String::from_utf8_lossy(code);
            io::Error::other(format!("it says {code}")).into()
        }
        _ => Unopened::Refused,
    })
}

fn unasked() -> io::Error {
    io::Error::other("Redis sent a reply to no command")
}

impl From<io::Error> for Unopened {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says two commands to a Redis that replies this; returns whether it accepts them.
    async fn said(replies: &[u8]) -> Result<(), Unopened> {
        let mut again = Restoration::default();
        again.add(&[b"AUTH", b"pw"]);
        again.add(&[b"HELLO", b"3"]);
        let words: &[u8] = b"*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n";
        let mut stream = tokio_test_stream(words, replies);
        again.say_on(&mut stream).await
    }

    /// A peer that has sent these replies and closed; it takes whatever is written.
    fn tokio_test_stream(words: &[u8], replies: &[u8]) -> tokio::io::DuplexStream {
        let (here, mut there) = tokio::io::duplex(words.len() + replies.len());
        let replies = replies.to_vec();
        let len = words.len();
        let words = words.to_vec();
        tokio::spawn(async move {
            let mut read = vec![0; len];
            there.read_exact(&mut read).await.unwrap();
            assert_eq!(read, words);
            // One byte at a time. The reader may be gone before the end.
            for byte in replies {
                let _ = there.write_all(&[byte]).await;
            }
        });
        here
    }

    #[tokio::test]
    async fn every_command_has_to_be_accepted() {
        let hello = "%1\r\n$6\r\nserver\r\n*1\r\n$5\r\nredis\r\n";
        let all = |first: &str, second: &str| format!("{first}{second}").into_bytes();
        assert!(said(&all("+OK\r\n", hello)).await.is_ok());
        for (first, second) in [
            ("-WRONGPASS invalid\r\n", "-NOAUTH no\r\n"),
            ("+OK\r\n", "-NOPERM no\r\n"),
            ("-ERR AUTH called without any password configured\r\n", ""),
        ] {
            let refused = said(&all(first, second)).await;
            assert!(matches!(refused, Err(Unopened::Refused)), "{first}");
        }
        for (first, second) in [
            ("+OK\r\n", ""),
            ("+OK\r\n", "%1\r\n$6\r\nserver\r\n"),
            ("-LOADING wait\r\n", ""),
            ("-ERR max number of clients reached\r\n", ""),
            ("", ""),
            ("HTTP/1.1 400\r\n", ""),
        ] {
            let unreachable = said(&all(first, second)).await;
            assert!(
                matches!(unreachable, Err(Unopened::Unreachable(_))),
                "{first}{second}"
            );
        }
    }
}
