//! What a client's bytes travel on.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use rustls::{ClientConnection, StreamOwned};

pub(super) enum Link {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Link {
    /// How long reading may take; none is for ever.
    pub(super) fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(time),
            Self::Unix(stream) => stream.set_read_timeout(time),
            Self::Tls(stream) => stream.sock.set_read_timeout(time),
        }
    }

    pub(super) fn set_write_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(time),
            Self::Unix(stream) => stream.set_write_timeout(time),
            Self::Tls(stream) => stream.sock.set_write_timeout(time),
        }
    }

    pub(super) fn finish_sending(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tls(stream) => {
                stream.conn.send_close_notify();
                stream.flush()
            }
        }
    }

    #[track_caller]
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => &stream.sock,
            Self::Unix(_) => panic!("not over TCP"),
        }
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
