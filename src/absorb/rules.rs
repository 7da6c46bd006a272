//! The rules by which commands are absorbed: which keys are locks, and what an attempt at one that is held gets.

use super::{
    patterns::KeyPatterns,
    scripts::{ReleaseScripts, Scripts},
    shape::Shape,
};
use bytes::Bytes;

use crate::{
    limits::PARK_PART,
    resp::{plain_argument, plain_count},
};

/// The section `[absorb]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsorbSettings {
    /// The keys of locks whose clients poll.
    pub keys: KeyPatterns,
    /// The keys of locks whose clients try once.
    pub try_keys: KeyPatterns,
    /// The longest time for which an attempt is parked, in milliseconds.
    pub park_ms: u64,
    /// The releases that the operator names.
    pub release_scripts: ReleaseScripts,
}

/// What an attempt at a lock that is held gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// A refusal, at once.
    Try,
    /// A place in the queue: it is parked for [`Rules::park_ms`] at most.
    Park,
}

/// The rules in force.
#[derive(Debug)]
pub struct Rules {
    settings: AbsorbSettings,
    /// Whether a key that no pattern matches is that of a lock.
    is_every_key: bool,
    scripts: Scripts,
    /// What the keys of all locks begin with.
    key_prefix: Bytes,
}

impl Rules {
    /// Creates the rules in front of a Redis, where only the keys of the patterns are locks.
    pub fn new(settings: AbsorbSettings, key_prefix: Bytes) -> Self {
        Self {
            scripts: Scripts::new(&settings.release_scripts),
            settings,
            is_every_key: false,
            key_prefix,
        }
    }

    /// Creates the rules without a Redis. Every key is that of a lock there: no other command stores one.
    pub fn every_key(settings: AbsorbSettings, key_prefix: Bytes) -> Self {
        Self {
            is_every_key: true,
            ..Self::new(settings, key_prefix)
        }
    }

    /// Creates the rules for other settings. Both share the scripts that clients taught.
    pub fn changed(&self, settings: AbsorbSettings) -> Self {
        Self {
            scripts: self.scripts.renamed(&settings.release_scripts),
            settings,
            is_every_key: self.is_every_key,
            key_prefix: self.key_prefix.clone(),
        }
    }

    /// Returns whether every key is that of a lock, because there is no Redis.
    pub fn are_for_every_key(&self) -> bool {
        self.is_every_key
    }

    /// Returns whether no key is that of a lock.
    pub fn are_none(&self) -> bool {
        let Self { settings, .. } = self;
        !self.is_every_key && settings.keys.is_empty() && settings.try_keys.is_empty()
    }

    /// Returns how attempts at this key are treated. `None`: it is no lock. A key in both lists has clients that try
    /// once.
    pub fn treatment(&self, key: &[u8]) -> Option<Treatment> {
        let Self { settings, .. } = self;
        if settings.try_keys.matches(key) {
            return Some(Treatment::Try);
        }
        let is_lock = self.is_every_key || settings.keys.matches(key);
        is_lock.then_some(match settings.park_ms {
            0 => Treatment::Try,
            _ => Treatment::Park,
        })
    }

    /// Returns the name of the lock with this key in Redis. `None`: no lock has this key.
    pub fn lock_name<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        let name = key.strip_prefix(&self.key_prefix[..])?;
        (!name.is_empty()).then_some(name)
    }

    /// Returns whether a request that [`plain_request`] found whole may be about a lock.
    pub fn concern(&self, request: &[u8], name: &[u8]) -> bool {
        let key_at = Shape::key_at(name, plain_count(request));
        let key = key_at.and_then(|at| plain_argument(request, at));
        key.is_some_and(|key| self.treatment(key).is_some())
    }

    /// Remembers the script that a command loads, if it is known by its text.
    pub fn learn(&self, command: &[Bytes]) {
        if let [script, load, text] = command
            && script.eq_ignore_ascii_case(b"SCRIPT")
            && load.eq_ignore_ascii_case(b"LOAD")
        {
            self.scripts.by_text(text);
        }
    }

    /// Returns the longest time for which an attempt with this lease is parked. A client counts its lease from before
    /// its attempt, so a long park would leave little of a short lease.
    pub fn park_ms(&self, lease_ms: u64) -> u64 {
        self.settings.park_ms.min(lease_ms / PARK_PART)
    }

    /// Returns the scripts that are recognised.
    pub fn scripts(&self) -> &Scripts {
        &self.scripts
    }
}
