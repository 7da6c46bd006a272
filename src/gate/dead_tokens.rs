//! A bounded memory of dead tokens: tokens that held a lock and no longer do, because they were released,
//! handed over or lost. If the store loses its latest writes, such a token may be in it again, and then holds
//! the lock for no client.
//!
//! A token is only dead in data from before a loss. Without a loss, a token that appears again was granted
//! again.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crate::{
    clock,
    lock::{Burial, Dead, Outcome, StoreReply, Time, Token},
    store::LockName,
};

/// The dead tokens in two sets of `most` each: those that died since the latest loss of data, and those that
/// died before it and whose leases would not have ended yet.
pub(super) struct DeadTokens {
    most: usize,
    kept: Mutex<Kept>,
    /// Whether there are tokens that died before a loss of data.
    has_ghosts: AtomicBool,
    /// When the last of all their leases would have ended, in microseconds of the process clock.
    until: AtomicU64,
}

#[derive(Default)]
struct Kept {
    /// The tokens that died since the latest loss of data, the latest last.
    recent: VecDeque<(LockName, Grave)>,
    /// The tokens that died before it: the store may have them again.
    ghosts: HashMap<LockName, Vec<Grave>>,
    /// The number of ghosts, and when the last of their leases would have ended.
    ghost_count: usize,
    ghosts_until: Time,
}

/// A dead token.
#[derive(Debug, Clone)]
pub(super) struct Grave {
    pub(super) token: Token,
    pub(super) dead: Dead,
    /// When its lease would have ended.
    pub(super) expires_latest: Time,
}

impl DeadTokens {
    /// Creates a memory of `most` tokens in each set.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            kept: Mutex::default(),
            has_ghosts: AtomicBool::new(false),
            until: AtomicU64::new(0),
        }
    }

    /// Remembers a dead token of this lock; `before_loss` if the store may have it again. Returns false if a
    /// token had to be forgotten too early.
    pub(super) fn remember(
        &self,
        name: &LockName,
        grave: Grave,
        before_loss: bool,
        now: Time,
    ) -> bool {
        if self.most == 0 {
            return true;
        }
        let until = grave.expires_latest.micros();
        self.until.fetch_max(until, Ordering::Relaxed);
        let mut kept = self.kept();
        if kept.ghosts_until <= now && kept.ghost_count > 0 {
            kept.forget_ghosts();
            self.has_ghosts.store(false, Ordering::Release);
        }
        if before_loss {
            let fits = kept.haunt(name.clone(), grave, self.most);
            self.has_ghosts.store(true, Ordering::Release);
            return fits;
        }
        let oldest = (kept.recent.len() >= self.most).then(|| kept.recent.pop_front());
        kept.recent.push_back((name.clone(), grave));
        let oldest = oldest.flatten();
        oldest.is_none_or(|(_, grave)| grave.expires_latest <= now)
    }

    /// Returns when the last of the dead tokens' leases would have ended.
    pub(super) fn until(&self) -> Time {
        Time::from_micros(self.until.load(Ordering::Relaxed))
    }

    /// Records a loss of data. Returns what the store may have again, by lock.
    pub(super) fn lost_data(&self, now: Time) -> HashMap<LockName, Burial> {
        let mut kept = self.kept();
        let older = std::mem::take(&mut kept.ghosts);
        let older = older
            .into_iter()
            .flat_map(|(name, graves)| graves.into_iter().map(move |grave| (name.clone(), grave)));
        let latest = std::mem::take(&mut kept.recent);
        kept.forget_ghosts();
        // If there are too many, the latest are kept: they are the likeliest to be back.
        for (name, grave) in latest.into_iter().rev().chain(older) {
            if grave.expires_latest > now {
                kept.haunt(name, grave, self.most);
            }
        }
        self.has_ghosts
            .store(kept.ghost_count > 0, Ordering::Release);
        let burial = |graves: &Vec<Grave>| {
            let latest = graves.iter().max_by_key(|grave| grave.expires_latest)?;
            Some(Burial {
                user: latest.dead.user,
                until: latest.expires_latest,
            })
        };
        let ghosts = kept.ghosts.iter();
        ghosts
            .filter_map(|(name, graves)| Some((name.clone(), burial(graves)?)))
            .collect()
    }

    /// Returns what is remembered of the holder in this reply, if it is dead.
    pub(super) fn of_holder(&self, name: &LockName, answer: &StoreReply) -> Option<Dead> {
        if !self.has_ghosts.load(Ordering::Acquire) {
            return None;
        }
        let Outcome::Held {
            holder: Some(holder),
            ..
        } = &answer.outcome
        else {
            return None;
        };
        let now = clock::now();
        let kept = self.kept();
        let graves = kept.ghosts.get(name)?.iter();
        let of_holder = |grave: &&Grave| grave.token == *holder && grave.expires_latest > now;
        let dead = graves.filter(of_holder).map(|grave| grave.dead);
        dead.reduce(Dead::or)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code panics while it holds this.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Returns false if the set is full.
    fn haunt(&mut self, name: LockName, grave: Grave, most: usize) -> bool {
        if self.ghost_count >= most {
            return false;
        }
        self.ghost_count += 1;
        self.ghosts_until = self.ghosts_until.max(grave.expires_latest);
        self.ghosts.entry(name).or_default().push(grave);
        true
    }

    fn forget_ghosts(&mut self) {
        self.ghosts = HashMap::new();
        self.ghost_count = 0;
        self.ghosts_until = Time::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Deadline, UserId};

    fn name(key: &'static str) -> LockName {
        LockName {
            database: 0,
            key: key.into(),
        }
    }

    fn grave(text: &'static str, expires_latest: Time) -> Grave {
        Grave {
            token: Token::new(text),
            dead: Dead {
                user: UserId(3),
                not_after: Some(Deadline(7)),
                or_at: None,
            },
            expires_latest,
        }
    }

    fn held_by(text: &'static str) -> StoreReply {
        StoreReply {
            outcome: Outcome::Held {
                holder: Some(Token::new(text)),
                ttl_ms: None,
            },
            armed: None,
            grace_ms: None,
        }
    }

    #[test]
    fn a_token_is_dead_only_for_what_is_from_before_a_loss() {
        let (tokens, now) = (DeadTokens::new(3), clock::now());
        let later = now.plus_millis(60_000);
        assert!(tokens.remember(&name("a"), grave("1", later), false, now));
        assert_eq!(tokens.of_holder(&name("a"), &held_by("1")), None);
        let burials = tokens.lost_data(now);
        let burial = Burial {
            user: UserId(3),
            until: later,
        };
        assert_eq!(burials, HashMap::from([(name("a"), burial)]));
        let dead = grave("1", later).dead;
        assert_eq!(tokens.of_holder(&name("a"), &held_by("1")), Some(dead));
        assert_eq!(tokens.of_holder(&name("b"), &held_by("1")), None);
        assert!(tokens.remember(&name("a"), grave("2", later), false, now));
        assert_eq!(tokens.of_holder(&name("a"), &held_by("2")), None);
        assert!(tokens.remember(&name("a"), grave("3", later), true, now));
        assert_eq!(tokens.of_holder(&name("a"), &held_by("3")), Some(dead));
    }

    #[test]
    fn the_oldest_and_those_whose_lease_would_be_over_are_forgotten() {
        let (tokens, now) = (DeadTokens::new(3), clock::now());
        let (soon, later) = (now.plus_millis(1), now.plus_millis(60_000));
        assert!(tokens.remember(&name("a"), grave("1", soon), false, now));
        for text in ["2", "3"] {
            assert!(tokens.remember(&name("a"), grave(text, later), false, now));
        }
        assert!(tokens.remember(&name("b"), grave("4", later), false, soon));
        assert!(!tokens.remember(&name("b"), grave("5", later), false, soon));
        let mut burials: Vec<_> = tokens.lost_data(soon).into_keys().collect();
        burials.sort();
        assert_eq!(burials, [name("a"), name("b")]);
        assert_eq!(tokens.of_holder(&name("a"), &held_by("2")), None);
        assert!(tokens.of_holder(&name("a"), &held_by("3")).is_some());
        assert!(tokens.lost_data(later).is_empty());
    }
}
