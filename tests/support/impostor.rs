//! A Redis that says that it is another server: a TCP proxy that replaces words in its replies by others of the same
//! length, so that the frames stay whole.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
};

use super::forger::listen_before;

/// The replication section of a Redis without replicas, and that of a KeyDB that is one of several masters.
pub(crate) const ACTIVE_REPLICA: (&str, &str) = (
    "role:master\r\nconnected_slaves:0\r\n",
    "role:active-replica\r\nx:12345678\r\n",
);

/// Dragonfly has no run id.
pub(crate) const NO_RUN_ID: (&str, &str) = ("\r\nrun_id:", "\r\nnot_id:");

/// Pushes of changes are pushes of another kind.
pub(crate) const NO_PUSHES: (&str, &str) = ("\r\ninvalidate\r\n", "\r\nirrelevant\r\n");

/// Connections have other addresses.
pub(crate) const ADDRESSES: (&str, &str) = ("addr=127.0.0.1:", "addr=127.0.0.9:");

/// More than one write of Redis to these tests has, so that no word is read in two pieces.
const CHUNK_BYTES: usize = 64 * 1024;

pub(crate) struct Impostor {
    address: SocketAddr,
}

impl Impostor {
    /// One on a free port, before this address, that replaces the first words by the second.
    pub(crate) fn before(to: SocketAddr, words: (&'static str, &'static str)) -> Self {
        assert_eq!(words.0.len(), words.1.len());
        let address = listen_before(to, move |client, server| {
            let (from, back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || carry(from, server, None));
            thread::spawn(move || carry(back, client, Some(words)));
        });
        Self { address }
    }

    /// What lockgate's `--upstream` takes.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, words: Option<(&str, &str)>) {
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let chunk = &mut bytes[..count];
        if let Some((was, is)) = words
            && let Some(at) = chunk.windows(was.len()).position(|it| it == was.as_bytes())
        {
            chunk[at..at + is.len()].copy_from_slice(is.as_bytes());
        }
        if to.write_all(chunk).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
