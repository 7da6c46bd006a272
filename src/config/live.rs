//! The configuration that may change at run time, read by each component whenever it needs a value.
//! [`crate::server::reload`] changes it.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use crate::{auth::password::Current, config::Config};

/// The values in force.
#[derive(Debug)]
pub struct LiveConfig {
    /// The password that clients have to give, where there is one.
    password: Option<Current>,
    clients: AtomicUsize,
    drain_ms: AtomicU64,
}

impl LiveConfig {
    /// Creates the values that an instance starts with.
    pub fn new(config: &Config) -> Self {
        let live = Self {
            password: config.password.clone().map(Current::from),
            clients: AtomicUsize::new(0),
            drain_ms: AtomicU64::new(0),
        };
        live.change(config);
        live
    }

    /// Puts this configuration in force. Whether there is a password at all does not change; clients that gave the
    /// old one stay authenticated.
    pub fn change(&self, config: &Config) {
        if let (Some(current), Some(new)) = (&self.password, &config.password) {
            current.change(new.clone());
        }
        let drain_ms = u64::try_from(config.drain.as_millis()).unwrap_or(u64::MAX);
        self.clients.store(config.limits.clients, Ordering::Relaxed);
        self.drain_ms.store(drain_ms, Ordering::Relaxed);
    }

    /// Returns the password that clients have to give; it changes with this.
    pub fn password(&self) -> Option<&Current> {
        self.password.as_ref()
    }

    /// Returns the number of clients that may be connected at a time.
    pub fn most_clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Returns how long clients may take to finish at shutdown.
    pub fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms.load(Ordering::Relaxed))
    }
}
