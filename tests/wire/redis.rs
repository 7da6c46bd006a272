//! A Redis server of one's own, on a socket in a temporary directory, and plain connections to it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use lockgate::resp::{ReplyScanner, ReplyStep};

pub(crate) struct Redis {
    server: Child,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("redis");
        let mut server = Command::new("redis-server")
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--enable-debug-command",
                "yes",
                "--unixsocket",
            ])
            .arg(&socket)
            .arg("--dir")
            .arg(directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is installed");
        let mut log = BufReader::new(server.stdout.take().expect("its output is piped"));
        let mut line = String::new();
        while !line.contains("Ready to accept") && !line.contains("ready to accept") {
            line.clear();
            assert_ne!(
                log.read_line(&mut line).expect("its output can be read"),
                0,
                "redis-server did not start"
            );
        }
        // It blocks when nobody reads what it logs.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self {
            server,
            socket,
            _directory: directory,
        }
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("redis-server accepts");
        stream
            .set_read_timeout(Some(Duration::from_secs(2)))
            .expect("a timeout can be set");
        stream
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A command as clients send it.
pub(crate) fn request<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        out.extend(format!("${}\r\n", argument.len()).bytes());
        out.extend(argument);
        out.extend(b"\r\n");
    }
    out
}

/// Sends a command and reads its one reply.
pub(crate) fn ask(stream: &mut UnixStream, arguments: &[&str]) -> String {
    stream.write_all(&request(arguments)).expect("Redis reads");
    let (mut scanner, mut reply, mut byte) = (ReplyScanner::new(), Vec::new(), [0]);
    loop {
        stream.read_exact(&mut byte).expect("Redis replies");
        reply.push(byte[0]);
        if scanner.scan(&byte).1.expect("Redis speaks its protocol") == ReplyStep::End {
            return String::from_utf8_lossy(&reply).into_owned();
        }
    }
}
