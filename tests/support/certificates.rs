//! Certificates of an authority of the test's own, as files.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// Somebody who signs certificates; its files vanish with it.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

/// A certificate and its key, in files.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut params.distinguished_name;
        // No two have one name, or a certificate of one would be taken for a forged one of the other.
        let number = RandomState::new().hash_one(());
        name.push(
            DnType::CommonName,
            format!("authority {number} of the tests"),
        );
        let directory = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            directory,
        }
    }

    /// Its own certificate, that whoever trusts it needs.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A certificate for this name or address, in files called so.
    pub(crate) fn issue(&self, called: &str, name: &str) -> Pair {
        self.sign(called, CertificateParams::new([name.to_owned()]).unwrap())
    }

    /// One that was good until 2021.
    pub(crate) fn issue_expired(&self, called: &str, name: &str) -> Pair {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(called, params)
    }

    fn sign(&self, called: &str, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let pair = Pair {
            certificate: self.directory.path().join(format!("{called}.pem")),
            key: self.directory.path().join(format!("{called}.key")),
        };
        fs::write(&pair.certificate, certificate.pem()).unwrap();
        fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }

    /// What a client that trusts this authority needs to speak TLS; it shows `pair` where it is asked.
    pub(crate) fn client(&self, pair: Option<&Pair>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.file())).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match pair {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
                let chain = vec![certificate(&pair.certificate)];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

impl Pair {
    /// Puts another one into the same files.
    pub(crate) fn becomes(&self, other: &Self) {
        fs::copy(&other.certificate, &self.certificate).unwrap();
        fs::copy(&other.key, &self.key).unwrap();
    }
}

fn certificate(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

/// A path as a program is told it.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the tests")
}
