//! TLS towards clients and towards Redis, with rustls.
//!
//! - [`TlsServer`] has the certificate for clients, and what they have to show.
//! - [`TlsClient`] has what Redis has to show, and the certificate for Redis.
//!
//! Both are made from files, which can be [reloaded](TlsServer::reload), also from other paths. Open connections
//! stay; later ones use the new files. Where a new file cannot be used, the old ones stay. (A reload ends session
//! resumption: each set of files has its own memory of sessions.)
//!
//! Where a handshake fails, an alert notifies the peer, and the caller gets the error. With TLS 1.3 a server checks
//! a client's certificate after the client has finished its part, so a refused client gets the alert when it reads.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
};
use thiserror::Error;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::stream::Stream;

/// A certificate, with the chain to its authority, and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// PEM: the certificate itself first.
    pub certificate: PathBuf,
    /// PEM: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
}

/// Whether clients show a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientCertificates {
    /// They are not asked for a certificate.
    Off,
    /// A client may show a certificate of one of these authorities (PEM), and no other.
    Optional(PathBuf),
    /// Every client must show a certificate of one of these authorities (PEM).
    Required(PathBuf),
}

/// The files of a TLS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate for clients.
    pub pair: KeyPair,
    /// The certificates of clients.
    pub clients: ClientCertificates,
}

/// The files of a TLS client of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// The trusted authorities (PEM); none are those of this system.
    pub authorities: Option<PathBuf>,
    /// The certificate for Redis, where Redis asks for one.
    pub pair: Option<KeyPair>,
}

/// The reason why files cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or its content is wrong.
    #[error("cannot use {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// This system has no trusted authorities.
    #[error("this system names no certificate authorities ({0}); name a file of them")]
    NoAuthorities(String),
    /// The server's name is not a valid name.
    #[error("{0:?} cannot be the name of a server")]
    Name(String),
}

/// TLS towards clients.
#[derive(Debug)]
pub struct TlsServer {
    handshake_timeout: Duration,
    config: RwLock<Arc<ServerConfig>>,
    /// Whether every client must show a certificate.
    demands_certificates: AtomicBool,
}

/// TLS towards Redis.
#[derive(Debug)]
pub struct TlsClient {
    name: ServerName<'static>,
    config: RwLock<Arc<ClientConfig>>,
}

impl ServerFiles {
    fn demand_certificates(&self) -> bool {
        matches!(self.clients, ClientCertificates::Required(_))
    }
}

impl TlsServer {
    /// Creates TLS from these files, with a bound on the handshake.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(files: &ServerFiles, handshake_timeout: Duration) -> Result<Self, TlsError> {
        Ok(Self {
            config: RwLock::new(Arc::new(server_config(files)?)),
            demands_certificates: AtomicBool::new(files.demand_certificates()),
            handshake_timeout,
        })
    }

    /// Replaces the files by these, which are read anew.
    ///
    /// # Errors
    /// As [`new`](Self::new); then the old ones stay.
    pub fn reload(&self, files: &ServerFiles) -> Result<(), TlsError> {
        let config = server_config(files)?;
        // During the change this is true only where both the old and the new files demand certificates.
        let demand = files.demand_certificates();
        self.demands_certificates
            .fetch_and(demand, Ordering::SeqCst);
        replace(&self.config, config);
        self.demands_certificates.store(demand, Ordering::SeqCst);
        Ok(())
    }

    /// Returns whether every client must show a certificate.
    pub fn demands_certificates(&self) -> bool {
        self.demands_certificates.load(Ordering::SeqCst)
    }

    /// Performs the handshake with a client.
    ///
    /// # Errors
    /// The handshake fails, or takes too long.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let acceptor = TlsAcceptor::from(current(&self.config));
        match timeout(self.handshake_timeout, acceptor.accept(stream)).await {
            Ok(accepted) => Ok(Stream::Tls(Box::new(accepted?.into()))),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the handshake was not done in time (tls.handshake_timeout)",
            )),
        }
    }
}

impl TlsClient {
    /// Creates TLS from these files, for a server with a certificate for this name or address.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(files: &ClientFiles, name: &str) -> Result<Self, TlsError> {
        let wrong = |_| TlsError::Name(name.to_owned());
        Ok(Self {
            config: RwLock::new(Arc::new(client_config(files)?)),
            name: ServerName::try_from(name.to_owned()).map_err(wrong)?,
        })
    }

    /// Replaces the files by these, which are read anew.
    ///
    /// # Errors
    /// As [`new`](Self::new); then the old ones stay.
    pub fn reload(&self, files: &ClientFiles) -> Result<(), TlsError> {
        replace(&self.config, client_config(files)?);
        Ok(())
    }

    /// Performs the handshake with the server; the caller bounds its time.
    ///
    /// # Errors
    /// The handshake fails.
    pub async fn connect(&self, stream: TcpStream) -> io::Result<Stream> {
        let connector = TlsConnector::from(current(&self.config));
        let connected = connector.connect(self.name.clone(), stream).await?;
        Ok(Stream::Tls(Box::new(connected.into())))
    }
}

fn current<T>(config: &RwLock<Arc<T>>) -> Arc<T> {
    Arc::clone(&config.read().unwrap_or_else(PoisonError::into_inner))
}

fn replace<T>(config: &RwLock<Arc<T>>, new: T) {
    *config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn server_config(files: &ServerFiles) -> Result<ServerConfig, TlsError> {
    let certificate = &files.pair.certificate;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong_file(certificate, &error))?;
    let (path, required) = match &files.clients {
        ClientCertificates::Off => (None, false),
        ClientCertificates::Optional(path) => (Some(path), false),
        ClientCertificates::Required(path) => (Some(path), true),
    };
    let builder = match path {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let authorities = Arc::new(read_authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider());
            let verifier = if required {
                verifier.build()
            } else {
                verifier.allow_unauthenticated().build()
            };
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong_file(path, &error))?)
        }
    };
    let (chain, key) = read_pair(&files.pair)?;
    builder
        .with_single_cert(chain, key)
        .map_err(|error| wrong_file(certificate, &error))
}

fn client_config(files: &ClientFiles) -> Result<ClientConfig, TlsError> {
    let authorities = match &files.authorities {
        Some(path) => read_authorities(path)?,
        None => authorities_of_the_system()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::NoAuthorities(error.to_string()))?
        .with_root_certificates(authorities);
    let Some(pair) = &files.pair else {
        return Ok(builder.with_no_client_auth());
    };
    let (chain, key) = read_pair(pair)?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| wrong_file(&pair.certificate, &error))
}

fn read_pair(
    pair: &KeyPair,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let key = PrivateKeyDer::from_pem_file(&pair.key);
    Ok((
        read_certificates(&pair.certificate)?,
        key.map_err(|error| wrong_file(&pair.key, &error))?,
    ))
}

fn read_authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut authorities = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let added = authorities.add(certificate);
        added.map_err(|error| wrong_file(path, &error))?;
    }
    Ok(authorities)
}

/// Reads the certificates in a file: at least one.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| wrong_file(path, &error))?;
    if certificates.is_empty() {
        return Err(wrong_file(
            path,
            &"it holds no certificate in the form of PEM",
        ));
    }
    Ok(certificates)
}

fn authorities_of_the_system() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    let (added, _) = authorities.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(ToString::to_string);
        return Err(TlsError::NoAuthorities(why.unwrap_or_default()));
    }
    Ok(authorities)
}

fn wrong_file(path: &Path, why: &impl ToString) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        why: why.to_string(),
    }
}
