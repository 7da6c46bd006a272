//! The notifications to systemd, and the sockets that it hands over.

use std::{
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use crate::support::{
    Authority, Client, Lockgate, Machine, SOON, eventually, free_address, median, report, text,
};

/// The end of `NOTIFY_SOCKET` that systemd has.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self {
            socket,
            path,
            _directory: directory,
        }
    }

    /// The lines of the next message.
    #[track_caller]
    fn is_told(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self
            .socket
            .recv(&mut bytes)
            .expect("systemd is told something");
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn systemd_is_told_when_it_is_ready_reads_its_configuration_and_stops() {
    let _machine = Machine::shared();
    let manager = Manager::new();
    let environment = [
        ("NOTIFY_SOCKET", text(&manager.path)),
        ("LOCKGATE_DRAIN", "90s"),
    ];
    let mut gate = Lockgate::start_with(&[], &environment);
    let ready = [
        "READY=1".to_owned(),
        format!("STATUS=listening on {}; upstream embedded", gate.address()),
    ];
    assert_eq!(manager.is_told(), ready);
    gate.hang_up();
    let reloading = manager.is_told();
    assert_eq!(reloading[0], "RELOADING=1");
    let micros = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap();
    assert!(micros.parse::<u64>().unwrap() > 0);
    assert_eq!(manager.is_told(), ready);
    eventually("it says so", || gate.log().contains("was read again"));
    gate.terminate();
    let stopping = manager.is_told();
    assert_eq!(stopping[0], "STOPPING=1");
    assert!(
        stopping.contains(&"EXTEND_TIMEOUT_USEC=95000000".to_owned()),
        "{stopping:?}"
    );
    assert_eq!(gate.exit_code(), Some(0));
}

#[test]
fn a_service_manager_that_is_gone_is_no_reason_to_fail() {
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[("NOTIFY_SOCKET", "/no/such/socket")]);
    assert_eq!(gate.client().say("PING"), "PONG");
    eventually("it says so", || gate.log().contains("NOTIFY_SOCKET"));
}

/// A lockgate that was given two sockets.
struct Activated(Child);

impl Activated {
    /// Files become numbers 3 and 4 by a shell, whose number lockgate keeps.
    fn start(names: &str, three: OwnedFd, four: OwnedFd, environment: &[(&str, &str)]) -> Self {
        let script = "exec 3<&0 4<&1 </dev/null >/dev/null; \
                      LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" --log off";
        let child = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_lockgate")])
            .env("LISTEN_FDNAMES", names)
            .envs(environment.iter().copied())
            .stdin(Stdio::from(three))
            .stdout(Stdio::from(four))
            .spawn();
        Self(child.expect("sh starts"))
    }

    fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.expect("it ended")
    }
}

impl Drop for Activated {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tcp() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn unix(directory: &Path) -> (UnixListener, PathBuf) {
    let path = directory.join("gate.sock");
    (UnixListener::bind(&path).unwrap(), path)
}

/// A client that connects before lockgate starts waits in the system's queue, and is served.
#[test]
fn it_serves_the_sockets_that_were_handed_over_in_place_of_its_own() {
    let _machine = Machine::shared();
    let directory = tempfile::tempdir().unwrap();
    let (plain, address) = tcp();
    let (socket, path) = unix(directory.path());
    let own = free_address();
    let mut early = Client::connect(address);
    early.send(&["LOCK", "k", "TOKEN", "early"]);
    let environment = [
        ("LOCKGATE_LISTEN", own.to_string()),
        ("LOCKGATE_UNIXSOCKET", "/no/such/directory/own".to_owned()),
    ];
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let names = "lockgate.socket:unixsocket";
    let mut gate = Activated::start(names, plain.into(), socket.into(), &environment);
    assert_eq!(early.read_reply(), "early");
    let mut local = Client::try_connect_unix(&path).unwrap();
    assert_eq!(local.say("UNLOCK k early"), 1);
    assert!(
        Client::try_connect(own).is_err(),
        "its own is not listened on"
    );

    // The file is systemd's.
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&gate.0),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    drop((early, local));
    assert_eq!(gate.ends().code(), Some(0));
    assert!(path.exists());
}

#[test]
fn the_socket_called_tls_is_for_tls() {
    let _machine = Machine::shared();
    let authority = Authority::new();
    let pair = authority.issue("gate", "127.0.0.1");
    let ((plain, address), (secure, tls_address)) = (tcp(), tcp());
    let environment = [
        ("LOCKGATE_TLS_LISTEN", "127.0.0.1:0"),
        ("LOCKGATE_TLS_CERTIFICATE", text(&pair.certificate)),
        ("LOCKGATE_TLS_KEY", text(&pair.key)),
    ];
    let _gate = Activated::start("tls:listen", secure.into(), plain.into(), &environment);
    assert_eq!(Client::connect(address).say("PING"), "PONG");
    let mut client = Client::try_connect_tls(tls_address, &authority.client(None)).unwrap();
    assert_eq!(client.say("PING"), "PONG");
}

#[test]
fn sockets_of_no_use_end_it() {
    let _machine = Machine::shared();
    let datagram = UnixDatagram::unbound().unwrap();
    let (one, _other) = UnixStream::pair().unwrap();
    for (names, useless) in [
        ("listen:other", OwnedFd::from(datagram)),
        ("listen:other", OwnedFd::from(one)),
        // There is no certificate.
        ("listen:tls", OwnedFd::from(tcp().0)),
    ] {
        let mut gate = Activated::start(names, tcp().0.into(), useless, &[]);
        assert_eq!(gate.ends().code(), Some(3), "{names}");
    }
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    /// From its start until clients can connect, and how large it is: what an image, or a restart, costs.
    #[test]
    fn it_starts_at_once() {
        let _machine = Machine::alone();
        let directory = tempfile::tempdir().unwrap();
        let times = (0..20).map(|_| {
            let manager = Manager::new();
            let began = Instant::now();
            let mut process = Command::new(env!("CARGO_BIN_EXE_lockgate"))
                .args(["--listen", "127.0.0.1:0", "--log", "off"])
                .current_dir(directory.path())
                .env("NOTIFY_SOCKET", &manager.path)
                .spawn()
                .expect("the program starts");
            let told = manager.is_told();
            let took = began.elapsed();
            let _ = process.kill();
            let _ = process.wait();
            assert_eq!(told[0], "READY=1");
            took
        });
        let took = median(times.collect());
        let bytes = std::fs::metadata(env!("CARGO_BIN_EXE_lockgate"))
            .unwrap()
            .len();
        report(&format!(
            "start: from exec to READY=1 in {took:.1?}, a program of {:.1} MB",
            bytes as f64 / 1e6
        ));
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
}
