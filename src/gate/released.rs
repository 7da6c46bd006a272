//! A bounded memory of the tokens that this gate released or handed on. A replica without the latest
//! writes may bring such a token back; it then holds the lock for nobody, and who holds it by the
//! books of this gate may have it back.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    clock,
    lock::{Time, Token},
    store::LockName,
};

/// Released tokens, the latest last.
pub(super) struct Released {
    most: usize,
    kept: Mutex<VecDeque<(LockName, Token, Time)>>,
}

impl Released {
    /// Remembers so many at most.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            kept: Mutex::default(),
        }
    }

    /// A token was released whose lease would have been over at this moment. False where an older one
    /// was forgotten for it before its time.
    pub(super) fn remember(&self, name: &LockName, token: Token, over_at: Time) -> bool {
        if self.most == 0 {
            return true;
        }
        let mut kept = self.kept();
        let forgotten = (kept.len() >= self.most)
            .then(|| kept.pop_front())
            .flatten();
        kept.push_back((name.clone(), token, over_at));
        forgotten.is_none_or(|(.., over_at)| over_at <= clock::now())
    }

    /// Those that the store may still have, by lock.
    pub(super) fn by_lock(&self, now: Time) -> HashMap<LockName, Vec<Token>> {
        let mut by_lock: HashMap<_, Vec<_>> = HashMap::new();
        let mut kept = self.kept();
        kept.retain(|(.., over_at)| *over_at > now);
        for (name, token, _) in kept.iter() {
            by_lock.entry(name.clone()).or_default().push(token.clone());
        }
        by_lock
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(LockName, Token, Time)>> {
        // Nothing panics while it is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &'static str) -> LockName {
        LockName {
            database: 0,
            key: key.into(),
        }
    }

    fn token(text: &'static str) -> Token {
        Token::new(text)
    }

    #[test]
    fn the_oldest_and_those_whose_lease_would_be_over_are_forgotten() {
        let released = Released::new(3);
        let over_at = Time::from_millis(100);
        for (key, text) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")] {
            released.remember(&name(key), token(text), over_at);
        }
        released.remember(&name("c"), token("5"), Time::from_millis(200));
        let by_lock = released.by_lock(Time::from_millis(99));
        assert_eq!(by_lock.get(&name("a")), Some(&vec![token("4")]));
        assert_eq!(by_lock.get(&name("b")), Some(&vec![token("3")]));
        let later = released.by_lock(over_at);
        assert_eq!(later.into_keys().collect::<Vec<_>>(), [name("c")]);
    }
}
