//! Clients that want to do harm: each limit is reached and says so, floods cost no more memory than is
//! stated here and in SECURITY.md, and somebody honest is served all the while.

mod abusers;
mod floods;
mod http;
mod idle;
mod limits;
mod unauthenticated;

use std::{
    io::Read,
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::support::{Client, Lockgate, SOON, counted, median};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// What somebody honest is served with, in the median, while others flood the gate. (Every single reply
/// comes within [`SOON`].)
const MOST_MEDIAN: Duration = Duration::from_millis(250);

/// How long the honest one rests between two commands.
const REST: Duration = Duration::from_millis(1);

/// Somebody honest: says the same commands, and gets the same replies, until it is told to end.
struct Witness {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Witness {
    /// Begins on a connection of its own.
    fn begin(gate: &Lockgate, commands: &'static [(&'static str, &'static str)]) -> Self {
        Self::of(gate.client(), commands)
    }

    /// Begins on this connection. It holds a lock from now on, so that it has one though no more are to
    /// be had.
    fn of(mut client: Client, commands: &'static [(&'static str, &'static str)]) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        assert_eq!(client.say("LOCK held TOKEN h PX 600000"), "h");
        let work = move || {
            let mut times = Vec::new();
            while !told.load(Ordering::Relaxed) {
                for (command, reply) in commands {
                    let start = Instant::now();
                    let its = client.say(command);
                    times.push(start.elapsed());
                    assert_eq!(format!("{its:?}"), *reply, "{command}");
                }
                thread::sleep(REST);
            }
            times
        };
        Self {
            ends,
            thread: thread::spawn(work),
        }
    }

    /// It was served all the while.
    #[track_caller]
    fn was_served(self) {
        self.ends.store(true, Ordering::Relaxed);
        let times = self.thread.join().expect("the witness is served");
        assert!(!times.is_empty());
        let (worst, median) = (times.iter().max().copied(), median(times));
        assert!(
            median < MOST_MEDIAN,
            "a median of {median:?}, at worst {worst:?}"
        );
    }
}

/// What it says where it needs no new lock.
const WITH_ITS_LOCK: &[(&str, &str)] = &[("PING", "+PONG"), ("RELOCK held h PX 600000", ":1")];

/// What it says elsewhere.
const WITH_NEW_LOCKS: &[(&str, &str)] = &[
    ("PING", "+PONG"),
    ("LOCK w TOKEN w WAIT 10000", "\"w\""),
    ("UNLOCK w w", ":1"),
];

/// Everything that the server says to these bytes, until it closes; with that it closes at all.
#[track_caller]
fn said_until_closed(mut client: Client, bytes: &[u8]) -> Vec<u8> {
    client.write_raw(bytes);
    let (mut stream, mut said, mut some) = (client.writer(), Vec::new(), [0; 4096]);
    stream.set_read_timeout(Some(SOON)).unwrap();
    loop {
        match stream.read(&mut some) {
            // With something unread, the system of who closes says so by a reset.
            Ok(0) => return said,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return said,
            Ok(count) => said.extend_from_slice(&some[..count]),
            Err(error) => panic!(
                "not closed after {:?}: {error}",
                said.escape_ascii().to_string()
            ),
        }
    }
}

/// Its system takes little of what it does not read, so that the gate has to keep the rest.
pub(crate) fn hears_little(stream: &TcpStream) {
    rustix::net::sockopt::set_socket_recv_buffer_size(stream, 4096).unwrap();
}

/// Ends a connection from another thread than the one that reads or writes it.
fn cut(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}
