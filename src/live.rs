//! What of the configuration may change while the gate runs, and what each part of the gate looks at whenever
//! it needs it. [`crate::reload`] changes it.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use crate::{config::Config, password::Current};

/// The values that are in force now.
#[derive(Debug)]
pub struct Live {
    /// What clients have to say first, where they have to.
    password: Option<Current>,
    clients: AtomicUsize,
    drain_ms: AtomicU64,
}

impl Live {
    /// What a gate begins with.
    pub fn new(config: &Config) -> Self {
        let live = Self {
            password: config.password.clone().map(Current::from),
            clients: AtomicUsize::new(0),
            drain_ms: AtomicU64::new(0),
        };
        live.change(config);
        live
    }

    /// From now on that is in force. Whether there is a password at all stays as it was; who has given the
    /// old one stays in.
    pub fn change(&self, config: &Config) {
        if let (Some(current), Some(new)) = (&self.password, &config.password) {
            current.change(new.clone());
        }
        let drain_ms = u64::try_from(config.drain.as_millis()).unwrap_or(u64::MAX);
        self.clients.store(config.limits.clients, Ordering::Relaxed);
        self.drain_ms.store(drain_ms, Ordering::Relaxed);
    }

    /// The password that clients have to know; it changes with this.
    pub fn password(&self) -> Option<&Current> {
        self.password.as_ref()
    }

    /// Clients that may be connected at a time.
    pub fn most_clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// How long clients may take to be done at the end.
    pub fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms.load(Ordering::Relaxed))
    }
}
