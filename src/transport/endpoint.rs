//! The address of Redis, and how a connection to it is opened.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpStream, UnixStream, lookup_host},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::{stream::Stream, tls::TlsClient};
use crate::limits::LOOKUPS;

/// Pause before another attempt at a Unix socket with a full backlog. There the system fails at once, whereas with
/// TCP it retries by itself.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(10);

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A TCP address.
    Tcp {
        /// A host name, resolved anew for each connection, or an IP address (IPv6 without brackets).
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A server, and how it is reached.
#[derive(Debug, Clone)]
pub struct Endpoint {
    place: Place,
    tls: Option<Arc<TlsClient>>,
    /// Permits for name lookups. Each lookup takes a thread that cannot be stopped: silent name servers keep it for
    /// ten seconds and more, even after its caller has gone.
    lookups: Arc<Semaphore>,
}

impl Endpoint {
    /// Creates an endpoint, with TLS or without. At most [`LOOKUPS`] threads look up its name.
    pub fn new(place: Place, tls: Option<Arc<TlsClient>>) -> Self {
        Self {
            place,
            tls,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    /// Connects to the first address of the host that accepts. A silent address gets no more than its share of
    /// `within`.
    ///
    /// # Errors
    /// The system's error for the last address tried.
    pub async fn reach(&self, within: Duration) -> io::Result<Stream> {
        let (host, port) = match &self.place {
            Place::Tcp { host, port } => (host.as_str(), *port),
            Place::Unix(path) => {
                return loop {
                    match UnixStream::connect(path).await {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            sleep(FULL_QUEUE_PAUSE).await;
                        }
                        stream => break stream.map(Stream::Unix),
                    }
                };
            }
        };
        let addresses = self.look_up(host, port).await?;
        let share = within / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let mut why = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Ok(Err(error)) => why = error,
                Err(late) => why = late.into(),
            }
        }
        Err(why)
    }

    /// Looks up the addresses of a host. If the caller goes away, the thread goes on and keeps its permit.
    async fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let right = Arc::clone(&self.lookups).acquire_owned().await;
        let right = right.map_err(io::Error::other)?;
        let host = host.to_owned();
        let looked_up = tokio::spawn(async move {
            let found = lookup_host((host, port)).await.map(Iterator::collect);
            drop(right);
            found
        });
        looked_up.await.map_err(io::Error::other)?
    }

    /// Turns the socket into the connection that the server expects; the caller bounds the time.
    ///
    /// # Errors
    /// The TLS handshake fails.
    pub async fn secure(&self, stream: Stream) -> io::Result<Stream> {
        match (&self.tls, stream) {
            (Some(tls), Stream::Tcp(stream)) => tls.connect(stream).await,
            (_, stream) => Ok(stream),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}
