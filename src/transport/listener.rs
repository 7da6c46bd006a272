//! Listeners for clients: an address, or a Unix socket.
//!
//! The file of a Unix socket outlives its listener, so a new listener removes an existing file, as Redis does, but
//! only if it is a socket. The file gets its mode before any client can connect. At the end the listener removes
//! its file, unless another process has replaced it meanwhile.

use std::{
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll, ready},
};

#[cfg(not(target_vendor = "apple"))]
use rustix::net::sockopt::socket_acceptconn as is_listening;
#[cfg(target_vendor = "apple")]
use start_listening as is_listening;
use tokio::net::{TcpListener, UnixListener, UnixSocket};

use super::{address::Address, stream::Stream, tls::TlsServer};

/// Connections that the system queues until they are accepted, as many as with `TcpListener::bind`.
pub(super) const BACKLOG: u32 = 1_024;

/// Sockets that another process opened and already listens on: clients can connect before lockgate starts and while
/// it restarts.
#[derive(Debug, Default)]
pub struct Sockets {
    /// In place of `listen`.
    pub plain: Vec<std::net::TcpListener>,
    /// In place of `tls.listen`.
    pub tls: Vec<std::net::TcpListener>,
    /// In place of `unixsocket`.
    pub unix: Vec<std::os::unix::net::UnixListener>,
}

impl Sockets {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.tls.is_empty() && self.unix.is_empty()
    }

    /// Checks that every socket can be used.
    ///
    /// # Errors
    /// A socket is not listening.
    pub fn check(&self) -> io::Result<()> {
        let tcp = self.plain.iter().chain(&self.tls).map(is_listening);
        for listens in tcp.chain(self.unix.iter().map(is_listening)) {
            if !listens? {
                let why = "a socket that was handed over is not listened on";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
        }
        Ok(())
    }
}

/// Makes a socket listen, and returns whether it can. macOS does not report whether a socket already listens; one that
/// does keeps the clients that already connected.
#[cfg(any(test, target_vendor = "apple"))]
fn start_listening(socket: impl std::os::fd::AsFd) -> rustix::io::Result<bool> {
    let backlog = i32::try_from(BACKLOG).unwrap_or(i32::MAX);
    match rustix::net::listen(socket, backlog) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::INVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A listener for clients.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    tls: Option<Arc<TlsServer>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix {
        path: Arc<Path>,
        /// The file, where this listener created it. Dropped before the socket: while that is open, no other file
        /// gets the same number.
        _file: Option<SocketFile>,
        listener: UnixListener,
    },
}

/// An accepted client.
#[derive(Debug)]
pub struct Accepted {
    /// Its connection, before any handshake.
    pub stream: Stream,
    /// TLS for its handshake, where its listener has TLS.
    pub tls: Option<Arc<TlsServer>>,
    /// The origin of the client.
    pub peer: Peer,
}

impl Accepted {
    /// Performs the handshake, where there is one, and returns the connection.
    ///
    /// # Errors
    /// The handshake fails, or takes too long.
    pub async fn secure(self) -> io::Result<Stream> {
        match (self.tls, self.stream) {
            (Some(tls), Stream::Tcp(stream)) => tls.accept(stream).await,
            (_, stream) => Ok(stream),
        }
    }
}

/// The origin of a client.
#[derive(Debug, Clone)]
pub enum Peer {
    /// The address and port of its end.
    Tcp(SocketAddr),
    /// The Unix socket that the client connected to: its own end has no name.
    Unix(Arc<Path>),
}

/// The file of a Unix socket.
#[derive(Debug)]
struct SocketFile {
    path: Arc<Path>,
    /// Device and number of the file, which identify it.
    id: (u64, u64),
}

impl Listener {
    /// Listens on this socket address, with TLS or without; port 0 takes a free one.
    ///
    /// # Errors
    /// The system refuses it.
    pub async fn tcp(address: SocketAddr, tls: Option<Arc<TlsServer>>) -> io::Result<Self> {
        let socket = Socket::Tcp(TcpListener::bind(address).await?);
        Ok(Self { socket, tls })
    }

    /// Listens on every socket address that this address stands for, with TLS or without.
    ///
    /// # Errors
    /// See [`Address::bind`].
    pub async fn all(address: &Address, tls: Option<&Arc<TlsServer>>) -> io::Result<Vec<Self>> {
        let listeners = address.bind().await?.into_iter();
        let with_tls = |listener| Self {
            socket: Socket::Tcp(listener),
            tls: tls.cloned(),
        };
        Ok(listeners.map(with_tls).collect())
    }

    /// Listens on a Unix socket with this mode.
    ///
    /// # Errors
    /// The system refuses it, or another kind of file has that name.
    pub fn unix(path: PathBuf, mode: u32) -> io::Result<Self> {
        if Self::check_path(&path)? {
            fs::remove_file(&path)?;
        }
        let socket = UnixSocket::new_stream()?;
        socket.bind(&path)?;
        let made = fs::symlink_metadata(&path)?;
        let file = SocketFile {
            path: path.into(),
            id: (made.dev(), made.ino()),
        };
        // Clients can connect only after `listen`, below.
        fs::set_permissions(&file.path, fs::Permissions::from_mode(mode))?;
        let socket = Socket::Unix {
            path: Arc::clone(&file.path),
            _file: Some(file),
            listener: socket.listen(BACKLOG)?,
        };
        Ok(Self { socket, tls: None })
    }

    /// Uses sockets that another process opened. That process also removes their files, where they have any.
    ///
    /// # Errors
    /// They cannot be used, or one is for TLS and TLS is not configured.
    pub fn handed_over(sockets: Sockets, tls: Option<&Arc<TlsServer>>) -> io::Result<Vec<Self>> {
        sockets.check()?;
        if !sockets.tls.is_empty() && tls.is_none() {
            let why = "a socket for TLS was handed over, and tls.listen is off";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let plain = sockets.plain.into_iter().map(|socket| (socket, None));
        let secure = sockets.tls.into_iter().map(|socket| (socket, tls.cloned()));
        let mut listeners = Vec::new();
        // Plain addresses come after those with TLS: the banner suggests the last listener.
        for (socket, tls) in secure.chain(plain) {
            socket.set_nonblocking(true)?;
            let socket = Socket::Tcp(TcpListener::from_std(socket)?);
            listeners.push(Self { socket, tls });
        }
        for socket in sockets.unix {
            socket.set_nonblocking(true)?;
            let listener = UnixListener::from_std(socket)?;
            let address = listener.local_addr()?;
            let path = address.as_pathname().unwrap_or(Path::new("unix"));
            let socket = Socket::Unix {
                path: path.into(),
                _file: None,
                listener,
            };
            listeners.push(Self { socket, tls: None });
        }
        Ok(listeners)
    }

    /// Returns whether there is an old socket that [`Listener::unix`] would remove.
    ///
    /// # Errors
    /// No socket can be created: another kind of file has that name, or the directory does not exist.
    pub fn check_path(path: &Path) -> io::Result<bool> {
        match fs::symlink_metadata(path) {
            Ok(there) if there.file_type().is_socket() => Ok(true),
            Ok(_) => {
                let why = "a file that is no socket has this name";
                Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
            }
            Err(_) => match path.parent() {
                Some(directory) if directory != Path::new("") => {
                    fs::metadata(directory).map(|_| false)
                }
                _ => Ok(false),
            },
        }
    }

    /// Returns whether the clients of this listener use TLS.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the address, where it has one.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix { .. } => None,
        }
    }

    /// Returns the port, where it has one.
    pub fn port(&self) -> Option<u16> {
        self.address().map(|address| address.port())
    }

    /// Polls for the next client.
    ///
    /// # Errors
    /// The system cannot supply a socket, though a client may be there.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (stream, peer) = match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address) = ready!(listener.poll_accept(cx))?;
                (Stream::Tcp(stream), Peer::Tcp(address))
            }
            Socket::Unix { path, listener, .. } => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                (Stream::Unix(stream), Peer::Unix(Arc::clone(path)))
            }
        };
        let tls = self.tls.clone();
        Poll::Ready(Ok(Accepted { stream, tls, peer }))
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Socket::Tcp(listener) => match listener.local_addr() {
                Ok(address) => address.fmt(f),
                Err(error) => error.fmt(f),
            },
            Socket::Unix { path, .. } => write!(f, "{}", path.display()),
        }
    }
}

impl Peer {
    /// Returns whether the client is on this machine, as far as the system shows it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address.ip()),
            Self::Unix(_) => true,
        }
    }
}

/// Shows a client of a Unix socket as Redis does: the path and port 0.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{}:0", path.display()),
        }
    }
}

/// Returns whether this is a loopback address. An IPv4 address may come in IPv6 form.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = |there: fs::Metadata| (there.dev(), there.ino()) == self.id;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // Another process may have removed it already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_already_listens_keeps_its_clients_when_it_is_made_to_listen() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        assert_eq!(start_listening(&socket), Ok(true));
        let (_, peer) = socket.accept().unwrap();
        assert_eq!(peer, client.local_addr().unwrap());
        // A connection cannot listen.
        assert_eq!(start_listening(&client), Ok(false));
    }

    #[test]
    fn a_client_on_this_machine_is_local() {
        let peer = |address: &str| Peer::Tcp(address.parse().unwrap());
        for address in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(peer(address).is_local(), "{address}");
        }
        for address in [
            "192.0.2.1:1",
            "0.0.0.0:1",
            "[::]:1",
            "[2001:db8::1]:1",
            "[::ffff:192.0.2.1]:1",
        ] {
            assert!(!peer(address).is_local(), "{address}");
        }
        let socket = Peer::Unix(Path::new("/run/gate.sock").into());
        assert!(socket.is_local());
        assert_eq!(socket.to_string(), "/run/gate.sock:0");
    }
}
