//! TLS, to clients and to Redis, as whoever has the right certificate uses it, and as whoever has not is
//! refused.

use std::{path::Path, process::Command, sync::Arc};

use rustls::ClientConfig;

use crate::support::{
    Authority, Client, Lockgate, Pair, RedisServer, SHORT_GRACE, free_address, text,
};

mod certificates;
mod clients;
mod redis;

/// A gate with a certificate, and who signed it.
struct Secured {
    gate: Lockgate,
    authority: Authority,
    /// The certificate of the gate.
    pair: Pair,
    /// What a client of it needs.
    config: Arc<ClientConfig>,
}

impl Secured {
    /// Without a Redis, listening with TLS and without.
    fn embedded() -> Self {
        Self::start(Authority::new(), &[])
    }

    fn start(authority: Authority, environment: &[(&str, &str)]) -> Self {
        let pair = authority.issue("gate", "127.0.0.1");
        let own = [
            ("LOCKGATE_TLS_LISTEN", "127.0.0.1:0"),
            ("LOCKGATE_TLS_CERTIFICATE", text(&pair.certificate)),
            ("LOCKGATE_TLS_KEY", text(&pair.key)),
        ];
        Self {
            gate: Lockgate::start_with(&[], &[&own, environment].concat()),
            config: authority.client(None),
            authority,
            pair,
        }
    }

    fn client(&self) -> Client {
        connect(&self.gate, &self.config)
    }
}

#[track_caller]
fn connect(gate: &Lockgate, config: &Arc<ClientConfig>) -> Client {
    Client::try_connect_tls(gate.tls_address(), config).expect("the gate takes this client")
}

/// A Redis that speaks TLS as well, with a certificate from this authority.
struct SecureRedis {
    redis: RedisServer,
    url: String,
}

impl SecureRedis {
    fn start(authority: &Authority, pair: &Pair, arguments: &[&str]) -> Self {
        let port = free_address().port().to_string();
        let ca = authority.file();
        let tls = [
            ["--tls-port", &port],
            ["--tls-cert-file", text(&pair.certificate)],
            ["--tls-key-file", text(&pair.key)],
            ["--tls-ca-cert-file", text(&ca)],
        ];
        let off = ["--tls-auth-clients", "no"];
        Self {
            redis: RedisServer::start(&[&tls.concat(), &off[..], arguments].concat()),
            url: format!("rediss://127.0.0.1:{port}"),
        }
    }

    /// A gate in front of it.
    fn gate(&self, environment: &[(&str, &str)]) -> Lockgate {
        let environment = [&SHORT_GRACE, environment].concat();
        Lockgate::start_with(&["--upstream", &self.url], &environment)
    }
}

/// What redis-cli says when it sends a command with TLS, believing this authority.
fn redis_cli(gate: &Lockgate, ca: &Path, more: &[&str], command: &[&str]) -> String {
    let port = gate.tls_address().port().to_string();
    let output = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert"])
        .arg(ca)
        .args(more)
        .args(command)
        .output()
        .expect("redis-cli starts; it comes with the server");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).trim().to_owned()
}
