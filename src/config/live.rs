//! The configuration that may change at run time, read by each component whenever it needs a value.
//! [`crate::server::reload`] changes it.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tracing::warn;

use crate::{
    absorb::Rules,
    auth::password::Current,
    config::{Config, Upstream},
    telemetry::slow_log::SlowLog,
};

/// The values in force.
#[derive(Debug)]
pub struct LiveConfig {
    /// The password that clients have to give, where there is one.
    password: Option<Current>,
    clients: AtomicUsize,
    slow_log: Arc<SlowLog>,
    drain_ms: AtomicU64,
    /// Whether any key is absorbed: sessions read this for every command that may concern a lock.
    absorbs: AtomicBool,
    rules: RwLock<Arc<Rules>>,
    /// The prefix of the keys of locks, which a reload does not change.
    key_prefix: Bytes,
}

impl LiveConfig {
    /// Creates the values that an instance starts with.
    pub fn new(config: &Config) -> Self {
        let prefix = &config.lock.key_prefix;
        let rules = match config.upstream.url {
            Upstream::Embedded => Rules::every_key(config.absorb.clone(), prefix.clone()),
            Upstream::Redis(_) => Rules::new(config.absorb.clone(), prefix.clone()),
        };
        let live = Self {
            password: config.password.clone().map(Current::from),
            clients: AtomicUsize::new(0),
            slow_log: Arc::default(),
            drain_ms: AtomicU64::new(0),
            absorbs: AtomicBool::new(false),
            rules: RwLock::new(Arc::new(rules)),
            key_prefix: config.lock.key_prefix.clone(),
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
        self.slow_log
            .change(config.log_slow_wait, config.log_slow_hold);
        self.change_absorb(config);
    }

    fn change_absorb(&self, config: &Config) {
        if config.lock.key_prefix != self.key_prefix {
            // Its patterns were checked against a prefix that is not in force.
            warn!("[absorb] stays as it was until lock.key_prefix changes with a new start");
            return;
        }
        // Only a reload writes, so nothing changes in between.
        let rules = self.rules().changed(config.absorb.clone());
        let are_none = rules.are_none();
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
        // A session that reads the flag meanwhile uses the old rules or the new ones.
        self.absorbs.store(!are_none, Ordering::Relaxed);
    }

    /// Returns the rules by which commands are absorbed, perhaps none.
    pub fn rules(&self) -> Arc<Rules> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&rules)
    }

    /// Returns the password that clients have to give; it changes with this.
    pub fn password(&self) -> Option<&Current> {
        self.password.as_ref()
    }

    /// Returns whether any command is absorbed.
    pub fn absorbs(&self) -> bool {
        self.absorbs.load(Ordering::Relaxed)
    }

    /// Returns the rules by which commands are absorbed. `None`: none is. Without a Redis there are always rules.
    pub fn absorb(&self) -> Option<Arc<Rules>> {
        self.absorbs().then(|| self.rules())
    }

    /// Returns from when on waits and holds are logged; it changes with this.
    pub fn slow_log(&self) -> &Arc<SlowLog> {
        &self.slow_log
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
