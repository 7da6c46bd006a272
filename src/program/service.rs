//! What a service manager is told (`sd_notify`), and what sockets it handed over (`LISTEN_FDS`). Without one,
//! nothing happens here.

use std::{
    env,
    io::{Error, ErrorKind, Result},
    time::Duration,
};

use listenfd::ListenFd;
use lockgate::host::Sockets;
use sd_notify::NotifyState;
use tracing::warn;

/// The name (`FileDescriptorName=`) of sockets for clients that speak TLS.
const TLS: &str = "tls";

/// What cutting clients, after `drain`, may take.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// The sockets that were handed over: those called `tls` are for clients that speak it, all others go by
/// what they are. To be called once, before there are threads.
///
/// # Errors
/// One of them is no socket for clients.
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

/// Clients can connect.
pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration is read again; [`ready`] says that this is done.
pub(crate) fn reloading() {
    // It fails on systems without a clock.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[NotifyState::Reloading, now]);
    }
}

/// The end has begun, and will take no longer than this and a moment.
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
