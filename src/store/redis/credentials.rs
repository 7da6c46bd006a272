//! The first words of all on a connection: who it is. They are written here, byte by byte, so that
//! passwords may be any bytes and go through nothing that could keep or print them.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::greeting::{NoLink, is_full, lossy};
use crate::{
    identity::{Credentials, DEFAULT},
    resp::{Protocol, Writer},
};

/// Longest reply to a command of this file, in bytes: a line.
const LINE_BYTES: usize = 1024;

/// What Redis said to credentials.
#[derive(Debug)]
pub(super) enum Login {
    /// The connection is the user's.
    Done,
    /// Its own error, without the leading `-`.
    Refused(Bytes),
}

/// Says who it is.
///
/// # Errors
/// The connection is of no use.
pub(super) async fn log_in(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: &Credentials,
) -> Result<Login, NoLink> {
    let mut bytes = BytesMut::new();
    write_auth(&mut bytes, credentials);
    let line = exchange(stream, &bytes).await.map_err(failed)?;
    login(stream, credentials, line).await
}

/// Adds the `AUTH` of these credentials.
pub(super) fn write_auth(bytes: &mut BytesMut, credentials: &Credentials) {
    let [words, _] = forms_of(credentials);
    write(bytes, &[&[&b"AUTH"[..]], words.as_slice()].concat());
}

/// What Redis made of that `AUTH`, to which it answered this; of another form of it where it knows no users.
///
/// # Errors
/// The connection is of no use, or Redis does not say now.
pub(super) async fn login(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: &Credentials,
    mut line: Line,
) -> Result<Login, NoLink> {
    if let Line::Error(text) = &line
        && may_know_no_users(credentials, text)
    {
        let words: [&[u8]; 2] = [b"AUTH", credentials.password()];
        line = ask(stream, &words).await.map_err(failed)?;
    }
    let refused = match line {
        Line::Good => return Ok(Login::Done),
        Line::Error(text) => text,
    };
    let code = refused.split(|byte| *byte == b' ').next();
    let passes = matches!(code, Some(b"LOADING" | b"MASTERDOWN" | b"BUSY"));
    if is_full(&refused) || passes {
        return Err(NoLink::Failed(lossy(&refused)));
    }
    Ok(Login::Refused(refused))
}

/// What to give to `AUTH`; the second, where Redis [may know no users](may_know_no_users).
pub(super) fn forms_of(credentials: &Credentials) -> [Vec<&[u8]>; 2] {
    let (name, password) = (credentials.name(), credentials.password());
    [vec![name, password], vec![password]]
}

/// Before Redis 6 there are no users, and a password is that of everybody.
pub(super) fn may_know_no_users(credentials: &Credentials, refused: &[u8]) -> bool {
    credentials.name() == DEFAULT && refused.starts_with(b"ERR wrong number of arguments")
}

fn failed(error: io::Error) -> NoLink {
    NoLink::Failed(error.to_string())
}

/// A reply of one line.
#[derive(Debug)]
pub(super) enum Line {
    Good,
    /// Without the leading `-`.
    Error(Bytes),
}

/// Sends a command whose reply is one line, and reads that.
pub(super) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    words: &[&[u8]],
) -> io::Result<Line> {
    let mut bytes = BytesMut::new();
    write(&mut bytes, words);
    exchange(stream, &bytes).await
}

fn write(bytes: &mut BytesMut, words: &[&[u8]]) {
    // A command is written as an array of strings is.
    let mut command = Writer::new(bytes, Protocol::Resp2);
    command.array(words.len());
    words.iter().for_each(|word| command.bulk(word));
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes: &[u8],
) -> io::Result<Line> {
    stream.write_all(bytes).await?;
    // With TLS it may not be on its way before.
    stream.flush().await?;
    read_line(stream).await
}

/// The next reply, of one line. Nothing behind it is read.
pub(super) async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Line> {
    let mut line = BytesMut::new();
    while !line.ends_with(b"\r\n") {
        if line.len() >= LINE_BYTES {
            return Err(io::Error::other("Redis answers with a line without end"));
        }
        // Few bytes, and what stands behind them is for somebody else.
        let byte = stream.read_u8().await?;
        line.extend_from_slice(&[byte]);
    }
    line.truncate(line.len() - 2);
    let line = line.freeze();
    match line.first() {
        Some(b'-') => Ok(Line::Error(line.slice(1..))),
        Some(b'+') => Ok(Line::Good),
        _ => Err(io::Error::other(
            "Redis answers something else than was asked",
        )),
    }
}
