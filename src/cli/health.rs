//! `lockgate health`: asks the instance of the same configuration for a sign of life, for container engines.
//!
//! The check sends a lock command without arguments to the port of the clients. lockgate answers that command itself,
//! whatever Redis does, and takes `upstream.timeout` at most. (`PING` would pass to Redis.) So an instance counts as
//! alive in front of a broken Redis: it keeps leases and waiters there, and a restart would lose them. `/readyz`
//! reports Redis.
//!
//! Every error that lockgate replies is a sign of life: that arguments are missing, that a password is required, that
//! the client is refused.

use std::{
    ffi::OsString,
    io::{self, Error, ErrorKind, Write},
    sync::Arc,
    time::Duration,
};

use lockgate::{Config, config::Flags, transport::address::Address};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    runtime::Builder,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{check, exit::Exit};

/// The time for everything but Redis's part of the answer.
const OWN_TIME: Duration = Duration::from_secs(1);

/// A lock command without its arguments.
const QUESTION: &[u8] = b"LOCKINFO\r\n";

/// Checks the instance and prints one line. The exit is [`Exit::Done`] or [`Exit::Failed`]: container engines know no
/// other.
pub(crate) fn run(
    flags: Flags,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Exit {
    let config = match Config::read(flags, environment) {
        Ok((config, _)) => config,
        Err(error) => {
            check::tell(&error);
            return Exit::Failed;
        }
    };
    let place = place(&config);
    let within = config.upstream.timeout.saturating_add(OWN_TIME);
    let checked = Builder::new_current_thread().enable_all().build();
    let checked = checked.and_then(|runtime| {
        runtime.block_on(async {
            match timeout(within, ask(&config)).await {
                Ok(asked) => asked,
                Err(_) => Err(Error::new(ErrorKind::TimedOut, "no answer in time")),
            }
        })
    });
    match checked {
        Ok(()) => {
            // A reader may close the pipe early; the exit code is what counts.
            let _ = writeln!(io::stdout(), "{place} answers");
            Exit::Done
        }
        Err(error) => {
            check::tell(&format_args!("{place}: {error}"));
            Exit::Failed
        }
    }
}

/// Returns the place that is asked, for people: the first of those where clients connect.
fn place(config: &Config) -> String {
    let plain = config.listen.as_ref().map(Address::to_string);
    let socket = config.unix_socket.as_ref();
    let socket = socket.map(|socket| socket.path.display().to_string());
    let secure = config.tls.as_ref().map(|tls| tls.listen.to_string());
    plain.or(socket).or(secure).unwrap_or_default()
}

async fn ask(config: &Config) -> io::Result<()> {
    match (&config.listen, &config.unix_socket, &config.tls) {
        (Some(address), ..) => ask_on(connect(address).await?).await,
        (None, Some(socket), _) => ask_on(UnixStream::connect(&socket.path).await?).await,
        (None, None, Some(tls)) => {
            let stream = connect(&tls.listen).await?;
            let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
            let connector = TlsConnector::from(Arc::new(any_certificate()?));
            let asked = async { ask_on(connector.connect(name, stream).await?).await };
            asked
                .await
                .or_else(|error| match refuses_certificate(&error) {
                    true => Ok(()),
                    false => Err(error),
                })
        }
        (None, None, None) => Err(Error::other("it listens nowhere")),
    }
}

/// Connects to where an instance with this address listens. To the system, 0.0.0.0 and [::] are this machine here, too.
async fn connect(address: &Address) -> io::Result<TcpStream> {
    let addresses = address.look_up()?;
    if addresses.iter().any(|address| address.port() == 0) {
        return Err(Error::other(
            "port 0 is another port at each start: name it with --listen",
        ));
    }
    TcpStream::connect(&*addresses).await
}

/// Sends the question and waits for the beginning of an error.
async fn ask_on(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    stream.write_all(QUESTION).await?;
    stream.flush().await?;
    match stream.read_u8().await {
        Ok(b'-') => Ok(()),
        Ok(_) => Err(Error::other("something else than lockgate answers")),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(Error::new(error.kind(), "closed without an answer"))
        }
        Err(error) => Err(error),
    }
}

/// Returns whether the instance requires a certificate of its clients, which the check has not.
fn refuses_certificate(error: &Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(rustls::Error::AlertReceived(_)))
}

/// Returns TLS that takes every certificate: the check finds out that a process serves, and sends no secret.
fn any_certificate() -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Error::other)?;
    let config = config.dangerous();
    Ok(config
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

/// A verifier that takes every certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = self.0.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
