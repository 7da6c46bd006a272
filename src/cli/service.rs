//! The interface to a service manager: notifications (`sd_notify`) and sockets that it handed over (`LISTEN_FDS`).
//! Without a service manager nothing happens here.

use std::{
    env,
    io::{Error, ErrorKind, Result},
    time::Duration,
};

use listenfd::ListenFd;
use lockgate::Sockets;
use sd_notify::NotifyState;
use tracing::warn;

/// The name (`FileDescriptorName=`) of sockets for TLS clients.
const TLS: &str = "tls";

/// How long disconnecting clients, after `drain`, may take.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// Takes the sockets that were handed over. Those named `tls` are for TLS clients; the kind of any other socket
/// decides its use. Must be called once, before any thread starts.
///
/// # Errors
/// One of them is not a socket that clients can connect to.
pub(crate) fn sockets() -> Result<Sockets> {
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut handed = ListenFd::from_env();
    let mut sockets = Sockets::default();
    for index in 0..handed.len() {
        let name = names.next().unwrap_or_default();
        if let Ok(Some(socket)) = handed.take_tcp_listener(index) {
            match name {
                TLS => sockets.tls.push(socket),
                _ => sockets.plain.push(socket),
            }
        } else if let (Ok(Some(socket)), true) = (handed.take_unix_listener(index), name != TLS) {
            sockets.unix.push(socket);
        } else {
            let why =
                format!("number {index} ({name:?}) is not a socket that clients can connect to");
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
    }
    Ok(sockets)
}

/// Reports that clients can connect.
pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the configuration is being reloaded; [`ready`] reports the end of the reload.
pub(crate) fn reloading() {
    // Fails only on systems without this clock.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
}

/// Reports that the shutdown has begun, and the longest time that it will take.
pub(crate) fn stopping(drain: Duration) {
    let within = (drain + LAST_MOMENT).as_micros();
    let within = u32::try_from(within).unwrap_or(u32::MAX);
    notify(&[
        NotifyState::Stopping,
        NotifyState::Status("shutting down; clients may finish what they do"),
        NotifyState::ExtendTimeoutUsec(within),
    ]);
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot tell the service manager (NOTIFY_SOCKET)");
    }
}
