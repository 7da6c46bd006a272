//! Whose fault it was, and the error of the Redis protocol that it becomes.
//!
//! Errors are part of the interface: Redis's own words where Redis has them, else a code of one
//! word, what is wrong, and what to do. They are given here without the leading `-`.

use std::{borrow::Cow, io};

use thiserror::Error;

use crate::{
    lock::Refusal,
    transport::{endpoint::Endpoint, tls::TlsError},
};

/// Why the gate cannot run.
#[derive(Debug, Error)]
pub enum Error {
    /// The address or the socket cannot be listened on.
    #[error("cannot listen on {place}: {source}; `{key}` must be {wanted}")]
    Listen {
        /// The address, or the path of the socket.
        place: String,
        /// The key of the configuration that names it.
        key: &'static str,
        /// What may be named there.
        wanted: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Sockets that were handed over cannot be used.
    #[error("cannot use the sockets that were handed over (LISTEN_FDS): {0}")]
    HandedOver(io::Error),
    /// Certificates or keys are of no use.
    #[error("[{section}]: {source}")]
    Tls {
        /// The section of the configuration that names them.
        section: &'static str,
        /// Which, and why.
        source: TlsError,
    },
}

/// Ours: the gate shuts down, and who waits is told.
pub const SHUTDOWN: &str = "SHUTDOWN lockgate is shutting down; ask another one, or later";

/// Ours: as many clients as there may be.
pub const MAX_CLIENTS: &str = "ERR max number of clients reached";

/// The client's: it comes from elsewhere, and nobody asks it for a password.
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

/// The client's: a lock cannot have this name.
pub const RESERVED: &str = "ERR this key is lockgate's counter of fences and cannot be a lock";

/// The client's: it has as many leases bound to its connection as it may.
pub const TOO_MANY_SESSIONS: &str = "MAXSESSIONS as many SESSION locks are bound to this connection as may be (limits.session_locks)";

/// The client's: a lease bound to its connection would be renewed too often.
pub fn short_session(least_ms: u64) -> String {
    format!(
        "ERR SESSION takes a lease of {least_ms} milliseconds at least (lock.min_session_lease)"
    )
}

/// The client's: it has to authenticate first.
pub const NOAUTH: &str = "NOAUTH Authentication required.";

/// The error that a refused request gets.
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
        Refusal::Upstream => {
            "UPSTREAM Redis did not answer in time; whether it did what was asked is not known"
        }
        Refusal::Store(error) => return Cow::Borrowed(error),
    };
    Cow::Borrowed(text.as_bytes())
}

/// Upstream's: it cannot be reached.
pub fn unreachable(upstream: &Endpoint, error: &io::Error) -> String {
    format!("UPSTREAM cannot connect to Redis at {upstream}: {error}")
}
