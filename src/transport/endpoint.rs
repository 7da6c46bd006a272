//! The address of Redis, and how a connection to it is opened.
//!
//! The address may be that of a service whose master changes. The module `sentinel` then tells each endpoint where the
//! master is ([`Whereabouts`]).

use std::{
    fmt,
    future::{Future, pending},
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpStream, UnixStream, lookup_host},
    sync::{Semaphore, watch},
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
    /// The master of a service that sentinels watch.
    Master {
        /// The name of the service.
        service: String,
        /// The hosts and ports of some of its sentinels.
        sentinels: Vec<(String, u16)>,
    },
}

/// The host and the port of the master of a service, or why none may be used now.
pub type Whereabouts = Result<(String, u16), String>;

/// The address of a master, as it is known to an endpoint.
#[derive(Debug, Clone)]
pub struct Master {
    /// The latest address.
    pub at: watch::Receiver<Whereabouts>,
    /// Told when the address may be out of date.
    pub doubts: Arc<watch::Sender<()>>,
}

/// The address that an endpoint had at some time.
#[derive(Debug)]
pub struct Route(Option<watch::Receiver<Whereabouts>>);

/// A server, and how it is reached.
#[derive(Debug, Clone)]
pub struct Endpoint {
    place: Place,
    /// Where the place is a service.
    master: Option<Master>,
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
            master: None,
            tls,
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    /// Sets the channel that tells where the master of the service is.
    pub fn led_by(self, master: Master) -> Self {
        Self {
            master: Some(master),
            ..self
        }
    }

    /// Returns the present address. Connections that were opened before it is [left](Route::left) lead to an earlier one.
    pub fn route(&self) -> Route {
        Route(self.master.as_ref().map(|master| {
            let mut at = master.at.clone();
            at.mark_unchanged();
            at
        }))
    }

    /// Returns the address that a connection opened now leads to, or a later one; waits until it is known.
    ///
    /// # Errors
    /// It is not known within half of `within`.
    pub async fn known_route(&self, within: Duration) -> io::Result<Route> {
        if self.master.is_some() {
            self.whereabouts(within).await?;
        }
        Ok(self.route())
    }

    /// Has the address checked: a connection failed, or the server is no master.
    pub fn doubt(&self) {
        if let Some(master) = &self.master {
            master.doubts.send_replace(());
        }
    }

    /// Returns where the master is, or waits until that is known, for half of `within`: the rest is for connecting.
    async fn whereabouts(&self, within: Duration) -> io::Result<(String, u16)> {
        let Some(master) = &self.master else {
            return Err(io::Error::other("no sentinels were set to name the master"));
        };
        let mut at = master.at.clone();
        if let Ok(known) = timeout(within / 2, at.wait_for(Result::is_ok)).await {
            // Its sender may be gone at the end of the process.
            return known
                .map_err(io::Error::other)?
                .clone()
                .map_err(io::Error::other);
        }
        let why = at.borrow().clone();
        why.map_err(io::Error::other)
    }

    /// Connects to the first address of the host that accepts. A silent address gets no more than its share of
    /// `within`.
    ///
    /// # Errors
    /// The system's error for the last address tried.
    pub async fn reach(&self, within: Duration) -> io::Result<Stream> {
        let (host, port) = match &self.place {
            Place::Tcp { host, port } => (host.clone(), *port),
            Place::Master { .. } => self.whereabouts(within).await?,
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
        let addresses = self.look_up(&host, port).await?;
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

impl Route {
    /// Returns what completes when the address has changed; none if it never does.
    pub fn change(mut self) -> Option<impl Future<Output = ()>> {
        self.0.is_some().then_some(async move { self.left().await })
    }

    /// Returns when the address has changed, or may no longer be used.
    pub async fn left(&mut self) {
        if let Some(at) = &mut self.0
            && at.changed().await.is_ok()
        {
            return;
        }
        pending().await
    }

    /// Returns whether the address has changed, or may no longer be used.
    pub fn is_left(&self) -> bool {
        let at = self.0.as_ref();
        at.is_some_and(|at| at.has_changed().unwrap_or(false))
    }
}

/// Writes a host and a port: an IPv6 address gets brackets.
pub fn host_and_port((host, port): &(String, u16)) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => f.write_str(&host_and_port(&(host.clone(), *port))),
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Master { service, sentinels } => {
                let sentinels: Vec<_> = sentinels.iter().map(host_and_port).collect();
                write!(f, "{}/{service}", sentinels.join(","))
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place, &self.master) {
            (Place::Master { service, .. }, Some(master)) => match &*master.at.borrow() {
                Ok(address) => write!(f, "{} ({service})", host_and_port(address)),
                Err(_) => write!(f, "the master of {service}"),
            },
            _ => self.place.fmt(f),
        }
    }
}
