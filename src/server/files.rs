//! The limit of open files: each client costs one file, and one more for its connection to Redis. Systems allow few
//! files at first and more on demand, so the program raises the limit, as Redis does. Where even that is not
//! enough, the program takes fewer clients: a client that gets an error is better off than one that cannot be
//! accepted or has no connection to Redis.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use crate::{
    config::{Config, Upstream},
    limits::{ADMIN_CONNECTIONS, OWN_FILES},
};

/// Raises the limit of open files as far as the system allows, and lowers `limits.clients` to what that permits,
/// with a warning in the log.
pub fn make_room_for_clients(config: &mut Config) {
    let clients = config.limits.clients;
    let each = match config.upstream.url {
        Upstream::Embedded => 1,
        Upstream::Redis(_) => 2,
    };
    let own = match config.admin {
        None => OWN_FILES,
        Some(_) => OWN_FILES + ADMIN_CONNECTIONS,
    };
    let needed = clients.saturating_mul(each).saturating_add(own);
    let allowed = raise(needed);
    if allowed < needed {
        let possible = clients_within(allowed.saturating_sub(own), each);
        warn!(
            allowed,
            needed,
            "limits.clients is lowered from {clients} to {possible}: the system allows too few open \
             files (ulimit -n, LimitNOFILE)"
        );
        config.limits.clients = possible;
    }
}

/// Returns how many clients these files allow: at least one, since a server without clients is of no use.
fn clients_within(files: usize, each: usize) -> usize {
    (files / each).max(1)
}

/// Raises the limit of open files as far as the system allows, and returns the limit in force.
pub fn raise(needed: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Some systems report a maximum that they do not grant.
    for wanted in [limit.maximum, Some(needed as u64)] {
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum,
        };
        if is_more(wanted, limit.current) && setrlimit(Resource::Nofile, raised).is_ok() {
            break;
        }
    }
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

/// Returns whether one limit is higher than the other. None is unlimited.
fn is_more(one: Option<u64>, other: Option<u64>) -> bool {
    one.unwrap_or(u64::MAX) > other.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_fit_into_so_many_files() {
        assert_eq!(clients_within(200, 2), 100);
        assert_eq!(clients_within(201, 2), 100);
        assert_eq!(clients_within(200, 1), 200);
        assert_eq!(clients_within(0, 2), 1);
    }
}
