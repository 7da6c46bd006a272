//! TLS: the files to use, towards clients and towards Redis. A later read finds out whether a file can be used. The
//! check here is that files that belong together are named together, so that no setting is silently ignored.

use std::{path::PathBuf, time::Duration};

use super::{Error, HOUR, MILLISECOND, Typed, address, duration, file};
use crate::transport::{
    address::Address,
    tls::{ClientCertificates, ClientFiles, KeyPair, ServerFiles},
};

/// TLS towards clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The address to listen on; port 0 takes a free one.
    pub listen: Address,
    /// Certificates and keys.
    pub files: ServerFiles,
    /// Bound on the handshake with a client.
    pub handshake_timeout: Duration,
}

/// TLS towards Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// Certificates and keys.
    pub files: ClientFiles,
    /// The name that Redis's certificate is for, where that is not the host of the URL.
    pub server_name: Option<String>,
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Off,
    Optional,
    Required,
}

impl Tls {
    pub(super) fn check(typed: &mut Typed) -> Result<Option<Self>, Error> {
        let listen = typed.parse("tls.listen", "off", |text| match text {
            "off" => Ok(None),
            _ => address(text).map(Some),
        })?;
        let (here, why) = (listen.is_some(), "tls.listen is given");
        let certificate = typed.parse("tls.certificate", "", |text| needed(text, here, why))?;
        let key = typed.parse("tls.key", "", |text| needed(text, here, why))?;
        let asked = typed.parse("tls.client_certificates", "off", |text| asked(text, here))?;
        let wanted = asked != Asked::Off;
        let why = "tls.client_certificates are asked for";
        let authorities = typed.parse("tls.client_ca", "", |text| needed(text, wanted, why))?;
        let handshake_timeout =
            duration(typed, "tls.handshake_timeout", "10s", MILLISECOND..=HOUR)?;
        let (Some(listen), Some(pair)) = (listen, pair(certificate, key)) else {
            return Ok(None);
        };
        let clients = match (asked, authorities) {
            (Asked::Optional, Some(path)) => ClientCertificates::Optional(path),
            (Asked::Required, Some(path)) => ClientCertificates::Required(path),
            _ => ClientCertificates::Off,
        };
        Ok(Some(Self {
            listen,
            files: ServerFiles { pair, clients },
            handshake_timeout,
        }))
    }
}

impl UpstreamTls {
    /// Reads the section. `wanted`: the URL asks for TLS; `of_sentinels`: it does not name the Redis itself.
    pub(super) fn check(
        typed: &mut Typed,
        wanted: bool,
        of_sentinels: bool,
    ) -> Result<Option<Self>, Error> {
        let mut optional = |key| typed.parse(key, "", |text| only_if(text, wanted));
        let authorities = optional("upstream.ca")?;
        let certificate = optional("upstream.certificate")?;
        let server_name = typed.parse("upstream.server_name", "", |text| {
            match wanted && of_sentinels && text.is_empty() {
                true => Err(
                    "the name in Redis's certificate, since sentinels tell an address only"
                        .to_owned(),
                ),
                false => only_if(text, wanted),
            }
        })?;
        let (here, why) = (certificate.is_some(), "upstream.certificate is given");
        let key = typed.parse("upstream.key", "", |text| needed(text, here, why))?;
        let files = ClientFiles {
            authorities: authorities.map(PathBuf::from),
            pair: pair(certificate.map(PathBuf::from), key),
        };
        Ok(wanted.then_some(Self { files, server_name }))
    }
}

fn pair(certificate: Option<PathBuf>, key: Option<PathBuf>) -> Option<KeyPair> {
    Some(KeyPair {
        certificate: certificate?,
        key: key?,
    })
}

/// Reads the name of a file that must be given where it is `needed`, and only there.
fn needed(text: &str, needed: bool, why: &str) -> Result<Option<PathBuf>, String> {
    match (needed, text.is_empty()) {
        (true, true) => Err(format!("the path of a file (PEM), since {why}")),
        (false, false) => Err(format!("nothing, unless {why}")),
        _ => file(text),
    }
}

fn only_if(text: &str, allowed: bool) -> Result<Option<String>, String> {
    if allowed || text.is_empty() {
        return Ok((!text.is_empty()).then(|| text.to_owned()));
    }
    Err("nothing, unless upstream.url is rediss:// or rediss+sentinel://".to_owned())
}

fn asked(text: &str, listens: bool) -> Result<Asked, String> {
    match text {
        "off" => Ok(Asked::Off),
        _ if !listens => Err("off, unless tls.listen is given".to_owned()),
        "optional" => Ok(Asked::Optional),
        "required" => Ok(Asked::Required),
        _ => Err("off, optional or required".to_owned()),
    }
}
