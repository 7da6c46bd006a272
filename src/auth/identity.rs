//! Identities: the users that clients are to Redis, and the credentials that open connections for them.
//!
//! A user is its name in Redis's ACL: every client that authenticated as `ann` is `ann`, whichever of her passwords
//! it gave. Clients of one user share locks, places in queues and connections. A client that has not authenticated
//! is [`UserId::ANONYMOUS`]: it may do what Redis allows on a new connection (as the `default` user, while that
//! needs no password), and no more. It shares nothing with clients that gave a password.
//!
//! Only the store adds credentials here, after Redis has accepted them from lockgate itself, in an `AUTH` on
//! lockgate's own connection. A reply on a client's connection is never enough: it can be miscounted, or forged by
//! a script. A verification counts for [`VERIFIED_FOR_MS`], for all clients that log in with the same credentials.
//! Opening a connection with credentials also shows whether Redis still accepts them. Credentials stay in memory
//! and are never printed.

use std::{
    collections::HashMap,
    fmt,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use subtle::ConstantTimeEq;

use crate::lock::{Time, UserId};

/// Longest user name and password together that lockgate keeps, in bytes: some passwords are signed tokens.
pub const CREDENTIAL_BYTES: usize = 8 * 1024;

/// Passwords remembered for one user, the latest ones: a rotation needs two, and the rest is reserve.
const PASSWORDS: usize = 4;

/// How long a verification of credentials counts, in milliseconds. One `AUTH` of lockgate's own serves every client
/// that logs in with them meanwhile, and a changed password is trusted no longer than this.
pub const VERIFIED_FOR_MS: u64 = 1_000;

/// The user that `AUTH` with one argument means.
pub const DEFAULT: &[u8] = b"default";

/// A name and its password. Printing them shows neither.
#[derive(Clone, Eq)]
pub struct Credentials {
    name: Arc<[u8]>,
    password: Arc<[u8]>,
}

impl Credentials {
    /// Creates the credentials of a user. None where they are too long to be kept.
    pub fn new(name: &[u8], password: &[u8]) -> Option<Self> {
        let fits = name.len() + password.len() <= CREDENTIAL_BYTES;
        fits.then(|| Self {
            name: name.into(),
            password: password.into(),
        })
    }

    /// Returns the user's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the user's name without copying it.
    pub(crate) fn shared_name(&self) -> Arc<[u8]> {
        Arc::clone(&self.name)
    }

    /// Returns the password, which no output may show.
    pub fn password(&self) -> &[u8] {
        &self.password
    }
}

impl PartialEq for Credentials {
    /// Takes as long for a nearly right password as for any other.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.password.ct_eq(&other.password).into()
    }
}

impl Hash for Credentials {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.password.hash(state);
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(not shown)")
    }
}

/// Credentials that Redis accepted from lockgate.
#[derive(Debug)]
struct Verified {
    credentials: Credentials,
    /// When Redis last accepted them; none where it has refused them since.
    at: Option<Time>,
}

/// One user. Its number means this user while any reference to it exists.
#[derive(Debug)]
pub struct User {
    id: UserId,
    /// The credentials that Redis accepted, the latest first.
    verified: Mutex<Vec<Verified>>,
}

impl User {
    fn new(id: UserId) -> Self {
        Self {
            id,
            verified: Mutex::default(),
        }
    }

    /// Returns the user's number.
    pub fn id(&self) -> UserId {
        self.id
    }

    /// Returns the credentials that open connections, the latest first. None for [`UserId::ANONYMOUS`].
    pub fn credentials(&self) -> Vec<Credentials> {
        let verified = lock(&self.verified);
        verified.iter().map(|it| it.credentials.clone()).collect()
    }

    /// Returns the user's name as a log may show it; none where the user gave no credentials.
    pub fn name(&self) -> Option<String> {
        let verified = lock(&self.verified);
        let name = verified.first()?.credentials.name();
        Some(name.escape_ascii().to_string())
    }

    /// Records that Redis accepted these credentials from lockgate.
    fn verified(&self, credentials: &Credentials, now: Time) {
        let mut kept = lock(&self.verified);
        kept.retain(|other| other.credentials != *credentials);
        let latest = Verified {
            credentials: credentials.clone(),
            at: Some(now),
        };
        kept.insert(0, latest);
        kept.truncate(PASSWORDS);
    }

    /// Returns whether Redis accepted credentials of this user from lockgate at that time or later.
    pub fn is_verified_since(&self, time: Time) -> bool {
        let kept = lock(&self.verified);
        kept.iter().any(|it| it.at.is_some_and(|at| at >= time))
    }

    /// Returns whether the verification of these credentials still counts.
    fn is_verified(&self, credentials: &Credentials, now: Time) -> bool {
        let kept = lock(&self.verified);
        let its = kept.iter().find(|it| it.credentials == *credentials);
        let at = its.and_then(|it| it.at);
        at.is_some_and(|at| now < at.plus_millis(VERIFIED_FOR_MS))
    }

    /// Makes an earlier verification of these credentials void: the server that accepted them is gone.
    pub fn doubt(&self, credentials: &Credentials) {
        let mut kept = lock(&self.verified);
        let its = kept.iter_mut().find(|it| it.credentials == *credentials);
        if let Some(it) = its {
            it.at = None;
        }
    }

    /// Records that Redis no longer accepts these credentials from lockgate.
    pub fn refused(&self, credentials: &Credentials) {
        let mut kept = lock(&self.verified);
        // At least one stays: without credentials, the user's connections would be anonymous.
        if kept.len() > 1 {
            kept.retain(|other| other.credentials != *credentials);
        }
        let its = kept.iter_mut().find(|it| it.credentials == *credentials);
        if let Some(it) = its {
            it.at = None;
        }
    }
}

/// The users in use. There are no more of them than clients and shared connections.
#[derive(Debug)]
pub struct Users {
    anonymous: Arc<User>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    by_name: HashMap<Arc<[u8]>, Arc<User>>,
    by_id: HashMap<UserId, Arc<User>>,
    next: u32,
}

impl Default for Users {
    fn default() -> Self {
        Self {
            anonymous: Arc::new(User::new(UserId::ANONYMOUS)),
            known: Mutex::new(Known {
                by_name: HashMap::new(),
                by_id: HashMap::new(),
                next: UserId::ANONYMOUS.0 + 1,
            }),
        }
    }
}

impl Users {
    /// Returns the user of clients that have not authenticated.
    pub fn anonymous(&self) -> Arc<User> {
        Arc::clone(&self.anonymous)
    }

    /// Returns the user of these credentials, where a verification of them still counts.
    pub fn user_of(&self, credentials: &Credentials, now: Time) -> Option<Arc<User>> {
        let user = lock(&self.known).by_name.get(credentials.name()).cloned();
        user.filter(|user| user.is_verified(credentials, now))
    }

    /// Returns the user of these credentials, which Redis has just accepted from lockgate itself.
    pub fn verified(&self, credentials: &Credentials, now: Time) -> Arc<User> {
        let mut known = lock(&self.known);
        let user = match known.by_name.get(credentials.name()) {
            Some(user) => Arc::clone(user),
            None => known.add(Arc::clone(&credentials.name)),
        };
        drop(known);
        user.verified(credentials, now);
        user
    }

    /// Returns the user of this number, if it is in use.
    pub fn get(&self, id: UserId) -> Option<Arc<User>> {
        if id == UserId::ANONYMOUS {
            return Some(self.anonymous());
        }
        lock(&self.known).by_id.get(&id).cloned()
    }

    /// Forgets users that are no longer in use, with their credentials.
    pub fn forget_unused(&self) {
        let mut known = lock(&self.known);
        // Both maps hold a reference.
        known.by_id.retain(|_, user| Arc::strong_count(user) > 2);
        let Known { by_name, by_id, .. } = &mut *known;
        by_name.retain(|_, user| by_id.contains_key(&user.id));
    }

    /// Returns the number of known users, without the anonymous one.
    pub fn known(&self) -> usize {
        lock(&self.known).by_id.len()
    }
}

impl Known {
    fn add(&mut self, name: Arc<[u8]>) -> Arc<User> {
        while self.next == UserId::ANONYMOUS.0 || self.by_id.contains_key(&UserId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let id = UserId(self.next);
        self.next = self.next.wrapping_add(1);
        let user = Arc::new(User::new(id));
        self.by_name.insert(name, Arc::clone(&user));
        self.by_id.insert(id, Arc::clone(&user));
        user
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while the lock is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_micros(1_000);

    fn credentials(name: &str, password: &str) -> Credentials {
        Credentials::new(name.as_bytes(), password.as_bytes()).unwrap()
    }

    #[test]
    fn a_user_is_its_name_whichever_of_its_passwords_it_gave() {
        let users = Users::default();
        let ann = users.verified(&credentials("ann", "one"), NOW);
        assert_eq!(
            users.verified(&credentials("ann", "two"), NOW).id(),
            ann.id()
        );
        assert_ne!(
            users.verified(&credentials("ben", "one"), NOW).id(),
            ann.id()
        );
        assert_ne!(ann.id(), UserId::ANONYMOUS);
        assert_ne!(
            users.verified(&credentials("default", "one"), NOW).id(),
            UserId::ANONYMOUS
        );
        let latest_first = [credentials("ann", "two"), credentials("ann", "one")];
        assert_eq!(ann.credentials(), latest_first);
        users.verified(&credentials("ann", "one"), NOW);
        assert_eq!(ann.credentials()[0], latest_first[1]);
    }

    #[test]
    fn the_passwords_of_a_user_are_bounded_and_the_last_is_kept() {
        let user = Users::default().verified(&credentials("ann", "0"), NOW);
        for number in 1..=9 {
            user.verified(&credentials("ann", &number.to_string()), NOW);
        }
        assert_eq!(user.credentials().len(), PASSWORDS);
        for old in user.credentials() {
            user.refused(&old);
        }
        assert_eq!(user.credentials(), [credentials("ann", "6")]);
        let long = vec![b'x'; CREDENTIAL_BYTES];
        assert_eq!(Credentials::new(b"a", &long), None);
        assert!(Credentials::new(b"", &long).is_some());
    }

    #[test]
    fn a_verification_counts_for_a_second_and_not_after_a_refusal() {
        let users = Users::default();
        let (right, other) = (credentials("ann", "right"), credentials("ann", "other"));
        assert!(users.user_of(&right, NOW).is_none());
        let ann = users.verified(&right, NOW);
        let known = |credentials, ms| users.user_of(credentials, NOW.plus_millis(ms)).is_some();
        assert!(known(&right, 0) && known(&right, VERIFIED_FOR_MS - 1));
        assert!(!known(&right, VERIFIED_FOR_MS) && !known(&other, 0));
        users.verified(&right, NOW.plus_millis(VERIFIED_FOR_MS));
        assert!(known(&right, VERIFIED_FOR_MS));
        ann.doubt(&right);
        assert!(!known(&right, VERIFIED_FOR_MS), "by a server that is gone");
        users.verified(&right, NOW.plus_millis(VERIFIED_FOR_MS));
        ann.refused(&right);
        assert!(
            !known(&right, VERIFIED_FOR_MS),
            "the last one, kept to be tried"
        );
        assert_eq!(ann.credentials(), [right]);
    }

    #[test]
    fn whom_nobody_holds_is_forgotten() {
        let users = Users::default();
        let (ann, ben) = (
            users.verified(&credentials("ann", "x"), NOW),
            users.verified(&credentials("ben", "x"), NOW),
        );
        let gone = ben.id();
        drop(ben);
        users.forget_unused();
        assert_eq!(users.known(), 1);
        assert!(users.get(gone).is_none() && users.get(ann.id()).is_some());
        assert_ne!(users.verified(&credentials("ben", "x"), NOW).id(), gone);
        assert!(users.get(UserId::ANONYMOUS).is_some());
    }

    #[test]
    fn nothing_of_credentials_is_printed() {
        let users = Users::default();
        let user = users.verified(&credentials("ann", "hunter2"), NOW);
        let printed = format!("{users:?} {user:?} {:?}", user.credentials());
        assert!(!printed.contains("hunter2"), "{printed}");
        assert_eq!(user.name().as_deref(), Some("ann"));
        assert_eq!(users.anonymous().name(), None);
    }
}
