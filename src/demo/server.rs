//! The Redis that the demo starts where none is named: on a free port of this machine, with nothing on disk but an
//! empty directory.
//!
//! The server ends with the demo, however that ends, even with `kill -9`. The server's parent is a shell that reads
//! from a pipe, and only the demo holds the other end open; when that closes, the shell ends the server and removes
//! the directory. The shell is in a process group of its own, since Ctrl-C on a terminal signals the whole group,
//! and the demo has to decide in which order things end.

use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

use super::Failure;

/// The programs that will do; the first one found is used.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// Attempts with another port, where another process took the free one first.
const TRIES: usize = 5;

/// Bound on the server's start.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Connections beside those of the clients: the demo's own, and lockgate's shared ones.
const OWN_CONNECTIONS: usize = 64;

/// Starts the server, and ends it when the other end of standard input is closed. The server's output goes to
/// standard output, which therefore ends with the server.
const GUARD: &str = r#"
directory=$1
shift
"$@" </dev/null 2>&1 &
server=$!
exec >/dev/null
read -r _
kill -9 "$server"
wait "$server"
rm -rf -- "$directory"
"#;

/// A server of the demo's own. Dropping it ends the server.
#[derive(Debug)]
pub(super) struct Server {
    guard: Child,
    directory: PathBuf,
    address: SocketAddr,
}

/// Returns the installed server.
pub(super) fn installed() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let directories: Vec<_> = env::split_paths(&path).collect();
    PROGRAMS.iter().find_map(|program| {
        let places = directories.iter().map(|directory| directory.join(program));
        places.into_iter().find(|place| is_program(place))
    })
}

fn is_program(place: &Path) -> bool {
    place.is_absolute()
        && fs::metadata(place)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

impl Server {
    /// Starts this program for this number of clients, and returns when it is ready.
    pub(super) async fn start(program: &Path, clients: usize) -> Result<Self, Failure> {
        let mut said = String::new();
        for _ in 0..TRIES {
            let (server, ready) = Self::launch(program, clients)?;
            match timeout(READY_WITHIN, ready).await {
                Ok(Ok(Ok(()))) => return Ok(server),
                Ok(Ok(Err(last_words))) => said = last_words,
                Ok(Err(_)) | Err(_) => {
                    said = format!("not ready within {} s", READY_WITHIN.as_secs());
                    break;
                }
            }
        }
        Err(Failure::NotStarted {
            program: program.to_owned(),
            said,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the server. The receiver gets a message when the server is ready, or its last line of output.
    fn launch(
        program: &Path,
        clients: usize,
    ) -> io::Result<(Self, oneshot::Receiver<Result<(), String>>)> {
        let directory = env::temp_dir().join(format!("lockgate-demo-{}", uuid::Uuid::new_v4()));
        fs::DirBuilder::new().mode(0o700).create(&directory)?;
        let address = free_address()?;
        // Each client of lockgate has a connection to Redis as well.
        let connections = clients * 2 + OWN_CONNECTIONS;
        let mut guard = Command::new("/bin/sh")
            .args(["-c", GUARD, "lockgate-demo"])
            .arg(&directory)
            .arg(program)
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--maxclients", &connections.to_string()])
            .arg("--dir")
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let lines = guard.stdout.take().map(BufReader::new);
        let (tell, ready) = oneshot::channel();
        thread::spawn(move || listen(lines.into_iter().flat_map(BufRead::lines), tell));
        let server = Self {
            guard,
            directory,
            address,
        };
        Ok((server, ready))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The signal to the guard, which has cleaned up when it ends.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        // The guard may have failed to.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Reads the server's output to its end, since the server would block on a full pipe.
fn listen(
    lines: impl Iterator<Item = io::Result<String>>,
    tell: oneshot::Sender<Result<(), String>>,
) {
    let mut lines = lines.map_while(Result::ok);
    let mut last = String::new();
    for line in lines.by_ref() {
        if line.to_lowercase().contains("ready to accept connections") {
            // The receiver may be gone.
            let _ = tell.send(Ok(()));
            lines.for_each(drop);
            return;
        }
        if !line.trim().is_empty() {
            last = line;
        }
    }
    let _ = tell.send(Err(last));
}

/// Returns an address that was free a moment ago.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
