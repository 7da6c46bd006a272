//! Errors: the side at fault, and the text in the Redis protocol.
//!
//! Errors are part of the interface. They use Redis's own words where Redis has them; otherwise a one-word code,
//! the problem, and the remedy. The texts here have no leading `-`.

use std::{borrow::Cow, io};

use thiserror::Error;

use crate::{
    lock::Refusal,
    transport::{endpoint::Endpoint, tls::TlsError},
};

/// The reason why lockgate cannot run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The address or the socket cannot be listened on.
    #[error("cannot listen on {place}: {source}; `{key}` must be {wanted}")]
    Listen {
        /// The address, or the path of the socket.
        place: String,
        /// The key of the configuration that names it.
        key: &'static str,
        /// The allowed values.
        wanted: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Sockets that were handed over cannot be used.
    #[error("cannot use the sockets that were handed over (LISTEN_FDS): {0}")]
    HandedOver(io::Error),
    /// Certificates or keys cannot be used.
    #[error("[{section}]: {source}")]
    Tls {
        /// The section of the configuration that names them.
        section: &'static str,
        /// The file and the reason.
        source: TlsError,
    },
}

/// lockgate's: the instance shuts down; waiters get this error.
pub const SHUTDOWN: &str = "SHUTDOWN lockgate is shutting down; ask another one, or later";

/// lockgate's: the limit of clients is reached.
pub const MAX_CLIENTS: &str = "ERR max number of clients reached";

/// The client's: it connects from another machine, and no password is required.
pub const DENIED: &str = "DENIED lockgate is running in protected mode because protected mode is enabled and neither lockgate \
     nor the Redis behind it asks for a password. In this mode connections are only accepted from the \
     loopback interface and from Unix sockets. If you want to connect from external computers to lockgate \
     you may adopt one of the following solutions: 1) Give lockgate a password of its own: auth.password in \
     its configuration file, or the environment variable LOCKGATE_AUTH_PASSWORD. 2) Set up an \
     authentication password for the default user of the Redis behind. 3) Let clients show certificates: \
     tls.client_certificates = 'required'. 4) Just disable protected mode by protected_mode = false in the \
     configuration file, or LOCKGATE_PROTECTED_MODE=false, however MAKE SURE lockgate is not publicly \
     accessible from internet if you do so. NOTE: You only need to do one of the above things in order for \
     the server to start accepting connections from the outside.";

/// The client's: this key cannot be a lock.
pub const RESERVED: &str = "ERR this key is lockgate's own and cannot be a lock";

/// The client's: its connection has the maximum number of leases bound to it.
pub const TOO_MANY_SESSIONS: &str = "MAXSESSIONS as many SESSION locks are bound to this connection as may be (limits.session_locks)";

/// Returns the client's error: a lease this short, bound to its connection, would be renewed too often.
pub fn short_session(least_ms: u64) -> String {
    format!(
        "ERR SESSION takes a lease of {least_ms} milliseconds at least (lock.min_session_lease)"
    )
}

/// The client's: it has to authenticate first.
pub const NOAUTH: &str = "NOAUTH Authentication required.";

/// Returns the error that a refused request gets.
pub fn refusal(refusal: &Refusal) -> Cow<'_, [u8]> {
    let text = match refusal {
        Refusal::Expired => {
            "EXPIRED the lease was over before the grant could be delivered, and the lock was given \
             back; ask for a lease longer than the way to Redis"
        }
        Refusal::Deadlock => {
            "DEADLOCK the UNLOCK of the lock's holder stands behind this LOCK on the same \
             connection, with other commands between; use a connection of its own for each"
        }
        Refusal::TooManyWaiters => {
            "MAXWAITERS as many requests wait for this lock as may (limits.waiters)"
        }
        Refusal::TooManyLocks => "MAXLOCKS as many locks are known here as may be (limits.locks)",
        Refusal::Upstream | Refusal::NotSent => {
            "UPSTREAM Redis did not answer in time; whether it did what was asked is not known"
        }
        Refusal::Store(error) => return Cow::Borrowed(error),
    };
    Cow::Borrowed(text.as_bytes())
}

/// Returns the upstream's error: it cannot be reached.
pub fn unreachable(upstream: &Endpoint, error: &io::Error) -> String {
    format!("UPSTREAM cannot connect to Redis at {upstream}: {error}")
}
