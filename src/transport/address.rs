//! Addresses as an operator types them: a host and a port.
//!
//! A name stands for all of its addresses, and no host at all for every interface, so one text may be several
//! sockets. Addresses of a family that this machine lacks are left out, as with Redis's `bind * -::*`: a container
//! without IPv6 still serves `localhost:6380`.

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
};

use rustix::{io::Errno, net::sockopt::set_ipv6_v6only};
use tokio::{
    net::{TcpListener, TcpSocket},
    task::spawn_blocking,
    time::timeout,
};

use super::listener::BACKLOG;
use crate::limits::{HOST_NAME_BYTES, LISTEN_LOOKUP};

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// Every address of a host name, which is looked up at the start.
    Name {
        /// The name.
        host: String,
        /// The port; 0 takes a free one.
        port: u16,
    },
    /// Every interface, of IPv4 and of IPv6.
    Everywhere {
        /// The port; 0 takes a free one.
        port: u16,
    },
}

impl Address {
    /// Reads `host:port`, `address:port`, `[IPv6 address]:port` or `:port`.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Self::Ip(address));
        }
        let (host, port) = text.rsplit_once(':')?;
        // `u16` alone would take a sign.
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits)?;
        match host {
            "" => Some(Self::Everywhere { port }),
            // A name that ends with a number is a mistyped IP address, which some systems would complete.
            _ if !is_host_name(host) || ends_with_number(host) => None,
            _ => Some(Self::Name {
                host: host.to_owned(),
                port,
            }),
        }
    }

    /// Returns the name, where the host is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name { host, .. } => Some(host),
            Self::Ip(_) | Self::Everywhere { .. } => None,
        }
    }

    /// Returns the host and the port to connect to. None: no host is named, or no port.
    pub fn destination(self) -> Option<(String, u16)> {
        let (host, port) = match self {
            Self::Ip(address) => (address.ip().to_string(), address.port()),
            Self::Name { host, port } => (host, port),
            Self::Everywhere { .. } => return None,
        };
        (port != 0).then_some((host, port))
    }

    /// Returns the addresses that this one stands for. The system looks up a name, which may block.
    ///
    /// # Errors
    /// The name has no address.
    pub fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        let both = |v4: Ipv4Addr, v6: Ipv6Addr, port| vec![(v4, port).into(), (v6, port).into()];
        let mut found = match self {
            Self::Ip(address) => vec![*address],
            Self::Everywhere { port } => both(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED, *port),
            // Many systems know only one of its two addresses by this name.
            Self::Name { host, port } if host.eq_ignore_ascii_case("localhost") => {
                both(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST, *port)
            }
            Self::Name { host, port } => (host.as_str(), *port).to_socket_addrs()?.collect(),
        };
        // IPv4 comes last: the banner suggests the last listener.
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.dedup();
        Ok(found)
    }

    /// Listens on every address that this one stands for. With port 0 all of them have the same free port.
    ///
    /// # Errors
    /// The name cannot be looked up, or the system refuses an address other than for a family that it lacks.
    pub async fn bind(&self) -> io::Result<Vec<TcpListener>> {
        if let Self::Ip(address) = self {
            return Ok(vec![TcpListener::bind(address).await?]);
        }
        let looked_up = self.clone();
        let looked_up = spawn_blocking(move || looked_up.look_up());
        let addresses = timeout(LISTEN_LOOKUP, looked_up).await??;
        listen_on_each(addresses?)
    }
}

/// Listens on each of these addresses that this machine has; all of them get the port of the first.
fn listen_on_each(addresses: Vec<SocketAddr>) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::<TcpListener>::new();
    let mut lacking = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for mut address in addresses {
        if let Some(first) = listeners.first() {
            address.set_port(first.local_addr()?.port());
        }
        match listen_on(address) {
            Ok(listener) => listeners.push(listener),
            Err(error) => {
                let named = io::Error::new(error.kind(), format!("{address}: {error}"));
                if !is_lacking(&error) {
                    return Err(named);
                }
                lacking = named;
            }
        }
    }
    match listeners.is_empty() {
        true => Err(lacking),
        false => Ok(listeners),
    }
}

/// Listens on one of several addresses. An IPv6 socket leaves the port of IPv4 to its neighbour.
fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true)?;
    }
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Returns whether this machine does not have the address, or nothing of its family.
fn is_lacking(error: &io::Error) -> bool {
    let lacking = [Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT];
    Errno::from_io_error(error).is_some_and(|error| lacking.contains(&error))
}

/// Returns whether this may be the name of a host.
pub fn is_host_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=HOST_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

fn ends_with_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    last.bytes().all(|byte| byte.is_ascii_digit())
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
            Self::Everywhere { port } => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_host_may_be_a_name_an_ip_address_or_every_interface() {
        let name = |host: &str, port| Address::Name {
            host: host.to_owned(),
            port,
        };
        for (text, address) in [
            ("10.0.0.1:7", Address::Ip("10.0.0.1:7".parse().unwrap())),
            ("[::1]:7", Address::Ip("[::1]:7".parse().unwrap())),
            ("localhost:6380", name("localhost", 6_380)),
            ("gate-1.example:0", name("gate-1.example", 0)),
            (":6380", Address::Everywhere { port: 6_380 }),
        ] {
            assert_eq!(Address::parse(text).as_ref(), Some(&address), "{text}");
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            ":",
            "6380",
            "localhost",
            "localhost:",
            "localhost:65536",
            "localhost:+80",
            "::1:7",
            "[::1:7",
            "127.0.0:7",
            "10.0.0.256:7",
            "a b:7",
            "user@host:7",
            "host:7:8",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[tokio::test]
    async fn localhost_and_every_interface_are_both_families_on_one_port() {
        let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
        for text in ["localhost:0", ":0"] {
            let listeners = Address::parse(text).unwrap().bind().await.unwrap();
            assert_eq!(listeners.len(), if has_ipv6 { 2 } else { 1 }, "{text}");
            let port = listeners[0].local_addr().unwrap().port();
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            if has_ipv6 {
                TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
            }
        }
    }

    #[tokio::test]
    async fn an_address_that_this_machine_lacks_is_left_out_beside_another() {
        let (here, elsewhere) = (
            "127.0.0.1:0".parse().unwrap(),
            "192.0.2.1:0".parse().unwrap(),
        );
        let listeners = listen_on_each(vec![elsewhere, here]).unwrap();
        let addresses = listeners.iter().map(|it| it.local_addr().unwrap().ip());
        assert_eq!(addresses.collect::<Vec<_>>(), [here.ip()]);
        let error = listen_on_each(vec![elsewhere]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error_that_names_it() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().unwrap();
        let address = Address::parse(&format!("localhost:{}", taken.port())).unwrap();
        let error = address.bind().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&taken.to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_an_error() {
        let address = Address::parse("gate.invalid:0").unwrap();
        address.bind().await.unwrap_err();
    }
}
