//! Who clients are: the users that Redis took them for, and what opens connections as them.
//!
//! A user is its name, as in Redis's ACL: whoever authenticated as `ann` is `ann`, whichever of her
//! passwords it was, so her clients share locks, places and connections. Who has authenticated as
//! nobody is [`UserId::ANONYMOUS`]: what Redis allows on a new connection (its `default` user, as long
//! as that needs no password), and no more. It shares nothing with those who gave a password.
//!
//! Nothing is decided here: only what Redis has accepted gets here, and whether it still does shows
//! whenever a connection is opened with it. Credentials are in memory only, and nothing prints them.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::lock::UserId;

/// Longest user name and password together that are kept, in bytes: some are signed tokens.
pub const CREDENTIAL_BYTES: usize = 8 * 1024;

/// Passwords remembered of one user, the latest ones: two of which one is about to be taken away, and
/// then some.
const PASSWORDS: usize = 4;

/// The user whom `AUTH` with one argument means.
pub const DEFAULT: &[u8] = b"default";

/// A name and a password that belong together. Printing them shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    name: Arc<[u8]>,
    password: Arc<[u8]>,
}

impl Credentials {
    /// Of this user. None where they are too long to be kept.
    pub fn new(name: &[u8], password: &[u8]) -> Option<Self> {
        let fits = name.len() + password.len() <= CREDENTIAL_BYTES;
        fits.then(|| Self {
            name: name.into(),
            password: password.into(),
        })
    }

    /// The user's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// What nobody may be told.
    pub fn password(&self) -> &[u8] {
        &self.password
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(not shown)")
    }
}

/// One user. As long as anybody holds it, its number means it.
#[derive(Debug)]
pub struct User {
    id: UserId,
    /// The latest that Redis accepted comes first.
    credentials: Mutex<Vec<Credentials>>,
}

impl User {
    /// Its number.
    pub fn id(&self) -> UserId {
        self.id
    }

    /// What Redis accepted, the latest first. Nothing for [`UserId::ANONYMOUS`].
    pub fn credentials(&self) -> Vec<Credentials> {
        lock(&self.credentials).clone()
    }

    /// Its name as a log may show it; none where it gave no credentials.
    pub fn name(&self) -> Option<String> {
        let credentials = lock(&self.credentials);
        let name = credentials.first()?.name();
        Some(name.escape_ascii().to_string())
    }

    /// Redis accepted these.
    fn accepted(&self, credentials: &Credentials) {
        let mut kept = lock(&self.credentials);
        kept.retain(|other| other != credentials);
        kept.insert(0, credentials.clone());
        kept.truncate(PASSWORDS);
    }

    /// Redis does not accept these any more, but others.
    pub fn refused(&self, credentials: &Credentials) {
        let mut kept = lock(&self.credentials);
        // Without any it would be somebody else.
        if kept.len() > 1 {
            kept.retain(|other| other != credentials);
        }
    }
}

/// The users whom anybody holds. There are no more of them than clients and shared connections.
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
            anonymous: Arc::new(User {
                id: UserId::ANONYMOUS,
                credentials: Mutex::default(),
            }),
            known: Mutex::new(Known {
                by_name: HashMap::new(),
                by_id: HashMap::new(),
                next: UserId::ANONYMOUS.0 + 1,
            }),
        }
    }
}

impl Users {
    /// Whoever has not authenticated.
    pub fn anonymous(&self) -> Arc<User> {
        Arc::clone(&self.anonymous)
    }

    /// The user whom Redis has just accepted these of.
    pub fn accepted(&self, credentials: &Credentials) -> Arc<User> {
        let mut known = lock(&self.known);
        let user = match known.by_name.get(credentials.name()) {
            Some(user) => Arc::clone(user),
            None => known.add(Arc::clone(&credentials.name)),
        };
        drop(known);
        user.accepted(credentials);
        user
    }

    /// The user of this number, if anybody holds it.
    pub fn get(&self, id: UserId) -> Option<Arc<User>> {
        if id == UserId::ANONYMOUS {
            return Some(self.anonymous());
        }
        lock(&self.known).by_id.get(&id).cloned()
    }

    /// Forgets those, and their credentials, whom nobody holds any more.
    pub fn forget_unused(&self) {
        let mut known = lock(&self.known);
        // Held by both maps.
        known.by_id.retain(|_, user| Arc::strong_count(user) > 2);
        let Known { by_name, by_id, .. } = &mut *known;
        by_name.retain(|_, user| by_id.contains_key(&user.id));
    }

    /// How many are known.
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
        let user = Arc::new(User {
            id,
            credentials: Mutex::default(),
        });
        self.by_name.insert(name, Arc::clone(&user));
        self.by_id.insert(id, Arc::clone(&user));
        user
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(name: &str, password: &str) -> Credentials {
        Credentials::new(name.as_bytes(), password.as_bytes()).unwrap()
    }

    #[test]
    fn a_user_is_its_name_whichever_of_its_passwords_it_gave() {
        let users = Users::default();
        let ann = users.accepted(&credentials("ann", "one"));
        assert_eq!(users.accepted(&credentials("ann", "two")).id(), ann.id());
        assert_ne!(users.accepted(&credentials("ben", "one")).id(), ann.id());
        assert_ne!(ann.id(), UserId::ANONYMOUS);
        assert_ne!(
            users.accepted(&credentials("default", "one")).id(),
            UserId::ANONYMOUS
        );
        let latest_first = [credentials("ann", "two"), credentials("ann", "one")];
        assert_eq!(ann.credentials(), latest_first);
        users.accepted(&credentials("ann", "one"));
        assert_eq!(ann.credentials()[0], latest_first[1]);
    }

    #[test]
    fn the_passwords_of_a_user_are_bounded_and_the_last_is_kept() {
        let user = Users::default().accepted(&credentials("ann", "0"));
        for number in 1..=9 {
            user.accepted(&credentials("ann", &number.to_string()));
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
    fn whom_nobody_holds_is_forgotten() {
        let users = Users::default();
        let (ann, ben) = (
            users.accepted(&credentials("ann", "x")),
            users.accepted(&credentials("ben", "x")),
        );
        let gone = ben.id();
        drop(ben);
        users.forget_unused();
        assert_eq!(users.known(), 1);
        assert!(users.get(gone).is_none() && users.get(ann.id()).is_some());
        assert_ne!(users.accepted(&credentials("ben", "x")).id(), gone);
        assert!(users.get(UserId::ANONYMOUS).is_some());
    }

    #[test]
    fn nothing_of_credentials_is_printed() {
        let users = Users::default();
        let user = users.accepted(&credentials("ann", "hunter2"));
        let printed = format!("{users:?} {user:?} {:?}", user.credentials());
        assert!(!printed.contains("hunter2"), "{printed}");
        assert_eq!(user.name().as_deref(), Some("ann"));
        assert_eq!(users.anonymous().name(), None);
    }
}
