//! The users whose rights do not suffice for lockgate's own commands, though perhaps for those of their clients. Their
//! absorbed commands pass to Redis, so that each costs no more than without lockgate.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    limits::{UNAUTHORIZED_MS, UNAUTHORIZED_USERS},
    lock::{Time, UserId},
};

/// The users, and until when their commands pass.
#[derive(Debug, Default)]
pub struct Unauthorized(Mutex<HashMap<UserId, Time>>);

impl Unauthorized {
    /// Returns whether Redis refused this user a short while ago.
    pub fn has(&self, user: UserId, now: Time) -> bool {
        self.users().get(&user).is_some_and(|until| now < *until)
    }

    /// Records that Redis refused this user.
    pub fn add(&self, user: UserId, now: Time) {
        let mut users = self.users();
        if users.len() >= UNAUTHORIZED_USERS {
            users.retain(|_, until| now < *until);
        }
        if users.len() < UNAUTHORIZED_USERS {
            users.insert(user, now.plus_millis(UNAUTHORIZED_MS));
        }
    }

    fn users(&self) -> MutexGuard<'_, HashMap<UserId, Time>> {
        // No code panics while it holds this.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
