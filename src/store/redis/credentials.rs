//! The `AUTH` at the very beginning of a connection. It is written here, byte by byte, so that a password may
//! contain any bytes and passes through no code that could keep or print it.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::handshake::{NoLink, is_full, lossy};
use crate::{
    auth::identity::{Credentials, DEFAULT},
    resp::{Protocol, Writer, integer},
};

/// Longest reply to a command of this file, in bytes: one line.
const LINE_BYTES: usize = 1024;

/// Longest reply of many lines, in bytes: a section of `INFO`.
const TEXT_BYTES: usize = 64 * 1024;

/// The result of an `AUTH`.
#[derive(Debug)]
pub(super) enum Login {
    /// Accepted: the connection is the user's.
    Done,
    /// Rejected: Redis's own error, without the leading `-`.
    Refused(Bytes),
}

/// Authenticates the connection.
///
/// # Errors
/// The connection cannot be used.
pub(super) async fn log_in(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: &Credentials,
) -> Result<Login, NoLink> {
    let mut bytes = BytesMut::new();
    write_auth(&mut bytes, credentials);
    let line = exchange(stream, &bytes).await.map_err(failed)?;
    login(stream, credentials, line).await
}

/// Appends the `AUTH` with these credentials.
pub(super) fn write_auth(bytes: &mut BytesMut, credentials: &Credentials) {
    let [words, _] = forms_of(credentials);
    write(bytes, &[&[&b"AUTH"[..]], words.as_slice()].concat());
}

/// Interprets the reply to that `AUTH`. If Redis has no ACL users, sends `AUTH` with the password alone.
///
/// # Errors
/// The connection cannot be used, or Redis cannot decide now.
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
        Line::Error(text) => without_arguments(text),
    };
    let code = refused.split(|byte| *byte == b' ').next();
    let passes = matches!(code, Some(b"LOADING" | b"MASTERDOWN" | b"BUSY"));
    if is_full(&refused) || passes {
        return Err(NoLink::Failed(lossy(&refused)));
    }
    Ok(Login::Refused(refused))
}

/// Cuts the arguments out of Redis's error: where `AUTH` is renamed, the error repeats the password.
pub(super) fn without_arguments(mut error: Bytes) -> Bytes {
    const ARGUMENTS: &[u8] = b", with args";
    let mut ends = error.windows(ARGUMENTS.len());
    if let Some(end) = ends.position(|words| words == ARGUMENTS) {
        error.truncate(end);
    }
    error
}

/// Returns the arguments of `AUTH`; the second form is for a Redis that [may have no users](may_know_no_users).
pub(super) fn forms_of(credentials: &Credentials) -> [Vec<&[u8]>; 2] {
    let (name, password) = (credentials.name(), credentials.password());
    [vec![name, password], vec![password]]
}

/// Returns whether Redis may be older than 6: it then has no users, and one password for all clients.
pub(super) fn may_know_no_users(credentials: &Credentials, refused: &[u8]) -> bool {
    credentials.name() == DEFAULT && refused.starts_with(b"ERR wrong number of arguments")
}

fn failed(error: io::Error) -> NoLink {
    NoLink::Failed(error.to_string())
}

/// A one-line reply.
#[derive(Debug)]
pub(super) enum Line {
    Good,
    /// An error, without the leading `-`.
    Error(Bytes),
}

/// Sends a command with a one-line reply, and reads the reply.
pub(super) async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    words: &[&[u8]],
) -> io::Result<Line> {
    let mut bytes = BytesMut::new();
    write(&mut bytes, words);
    exchange(stream, &bytes).await
}

fn write(bytes: &mut BytesMut, words: &[&[u8]]) {
    // A command has the same form as an array of strings.
    let mut command = Writer::new(bytes, Protocol::Resp2);
    command.array(words.len());
    words.iter().for_each(|word| command.bulk(word));
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes: &[u8],
) -> io::Result<Line> {
    stream.write_all(bytes).await?;
    // With TLS, the bytes may not be sent before a flush.
    stream.flush().await?;
    read_line(stream).await
}

/// Asks for the server's role. None: the account may not know. The connection is of no use afterwards.
pub(super) async fn role(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> io::Result<Option<String>> {
    let mut bytes = BytesMut::new();
    write(&mut bytes, &[b"INFO", b"replication"]);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    // The length of the text, or an error. The title and the role follow.
    if read_text(stream).await?.first() != Some(&b'$') {
        return Ok(None);
    }
    read_text(stream).await?;
    let line = read_text(stream).await?;
    Ok(line.strip_prefix(b"role:").map(lossy))
}

/// A reply of many lines.
pub(super) enum Text {
    Given(String),
    /// An error, without the leading `-`.
    Error(Bytes),
}

/// Sends a command whose reply is a text, and reads the reply.
pub(super) async fn ask_text(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    words: &[&[u8]],
) -> io::Result<Text> {
    let mut bytes = BytesMut::new();
    write(&mut bytes, words);
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    let line = read_text(stream).await?;
    let length = match line.first() {
        Some(b'-') => return Ok(Text::Error(line.slice(1..))),
        Some(b'$') => integer(&line[1..]).and_then(|length| usize::try_from(length).ok()),
        _ => None,
    };
    let Some(length) = length.filter(|length| *length <= TEXT_BYTES) else {
        return Err(io::Error::other(
            "Redis answers something else than was asked",
        ));
    };
    let mut text = vec![0; length + 2];
    stream.read_exact(&mut text).await?;
    text.truncate(length);
    Ok(Text::Given(String::from_utf8_lossy(&text).into_owned()))
}

/// Reads the next reply, of one line, and no byte after it.
pub(super) async fn read_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Line> {
    let line = read_text(stream).await?;
    match line.first() {
        Some(b'-') => Ok(Line::Error(line.slice(1..))),
        Some(b'+' | b':') => Ok(Line::Good),
        _ => Err(io::Error::other(
            "Redis answers something else than was asked",
        )),
    }
}

async fn read_text(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let mut line = BytesMut::new();
    while !line.ends_with(b"\r\n") {
        if line.len() >= LINE_BYTES {
            return Err(io::Error::other("Redis answers with a line without end"));
        }
        // The line is short, and the bytes after it belong to another reader.
        let byte = stream.read_u8().await?;
        line.extend_from_slice(&[byte]);
    }
    line.truncate(line.len() - 2);
    Ok(line.freeze())
}
