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
    lock::{Dead, DeadToken, DeadWatch, Outcome, StoreReply, Time},
    store::LockName,
};

/// The dead tokens in two sets of `most` each: those that are dead since the latest loss of data, and those that
/// were dead before it and whose leases would not have ended yet.
pub(super) struct DeadTokens {
    most: usize,
    kept: Mutex<Kept>,
    /// Whether there are tokens that were dead before a loss of data.
    any_before_loss: AtomicBool,
    /// When the last of all their leases would have ended, in microseconds of the process clock.
    until: AtomicU64,
}

#[derive(Default)]
struct Kept {
    /// The tokens that are dead since the latest loss of data, the latest last.
    recent: VecDeque<(LockName, DeadToken)>,
    /// The tokens that were dead before it: the store may have them again.
    before_loss: HashMap<LockName, Vec<DeadToken>>,
    /// The number of tokens in `before_loss`, and when the last of their leases would have ended.
    before_loss_count: usize,
    before_loss_until: Time,
}

impl DeadTokens {
    /// Creates a memory of `most` tokens in each set.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            kept: Mutex::default(),
            any_before_loss: AtomicBool::new(false),
            until: AtomicU64::new(0),
        }
    }

    /// Remembers a dead token of this lock; `before_loss` if the store may have it again. Returns false if a
    /// token had to be forgotten too early.
    pub(super) fn remember(
        &self,
        name: &LockName,
        dead_token: DeadToken,
        before_loss: bool,
        now: Time,
    ) -> bool {
        if self.most == 0 {
            return true;
        }
        let until = dead_token.expires_latest.micros();
        self.until.fetch_max(until, Ordering::Relaxed);
        let mut kept = self.kept();
        if kept.before_loss_until <= now && kept.before_loss_count > 0 {
            kept.forget_before_loss();
            self.any_before_loss.store(false, Ordering::Release);
        }
        if before_loss {
            let fits = kept.put_before_loss(name.clone(), dead_token, self.most);
            self.any_before_loss.store(true, Ordering::Release);
            return fits;
        }
        let oldest = (kept.recent.len() >= self.most).then(|| kept.recent.pop_front());
        kept.recent.push_back((name.clone(), dead_token));
        let oldest = oldest.flatten();
        oldest.is_none_or(|(_, dead_token)| dead_token.expires_latest <= now)
    }

    /// Returns when the last of the dead tokens' leases would have ended.
    pub(super) fn until(&self) -> Time {
        Time::from_micros(self.until.load(Ordering::Relaxed))
    }

    /// Records a loss of data. Returns what the store may have again, by lock.
    pub(super) fn lost_data(&self, now: Time) -> HashMap<LockName, DeadWatch> {
        let mut kept = self.kept();
        let older = std::mem::take(&mut kept.before_loss);
        let older = older.into_iter().flat_map(|(name, tokens)| {
            tokens
                .into_iter()
                .map(move |dead_token| (name.clone(), dead_token))
        });
        let latest = std::mem::take(&mut kept.recent);
        kept.forget_before_loss();
        // If there are too many, the latest are kept: they are the likeliest to be back.
        for (name, dead_token) in latest.into_iter().rev().chain(older) {
            if dead_token.expires_latest > now {
                kept.put_before_loss(name, dead_token, self.most);
            }
        }
        self.any_before_loss
            .store(kept.before_loss_count > 0, Ordering::Release);
        let watch = |tokens: &Vec<DeadToken>| {
            let latest = tokens
                .iter()
                .max_by_key(|dead_token| dead_token.expires_latest)?;
            Some(DeadWatch {
                user: latest.dead.user,
                until: latest.expires_latest,
            })
        };
        let by_lock = kept.before_loss.iter();
        by_lock
            .filter_map(|(name, tokens)| Some((name.clone(), watch(tokens)?)))
            .collect()
    }

    /// Returns what is remembered of the holder in this reply, if it is dead.
    pub(super) fn of_holder(&self, name: &LockName, answer: &StoreReply) -> Option<Dead> {
        if !self.any_before_loss.load(Ordering::Acquire) {
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
        let tokens = kept.before_loss.get(name)?.iter();
        let of_holder = |dead_token: &&DeadToken| {
            dead_token.token == *holder && dead_token.expires_latest > now
        };
        let dead = tokens.filter(of_holder).map(|dead_token| dead_token.dead);
        dead.reduce(Dead::or)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code panics while it holds this.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Returns false if the set is full.
    fn put_before_loss(&mut self, name: LockName, dead_token: DeadToken, most: usize) -> bool {
        if self.before_loss_count >= most {
            return false;
        }
        self.before_loss_count += 1;
        self.before_loss_until = self.before_loss_until.max(dead_token.expires_latest);
        self.before_loss.entry(name).or_default().push(dead_token);
        true
    }

    fn forget_before_loss(&mut self) {
        self.before_loss = HashMap::new();
        self.before_loss_count = 0;
        self.before_loss_until = Time::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Deadline, Token, UserId};

    fn name(key: &'static str) -> LockName {
        LockName {
            database: 0,
            key: key.as_bytes().into(),
        }
    }

    fn dead_token(text: &'static str, expires_latest: Time) -> DeadToken {
        DeadToken {
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
        assert!(tokens.remember(&name("a"), dead_token("1", later), false, now));
        assert_eq!(tokens.of_holder(&name("a"), &held_by("1")), None);
        let watches = tokens.lost_data(now);
        let watch = DeadWatch {
            user: UserId(3),
            until: later,
        };
        assert_eq!(watches, HashMap::from([(name("a"), watch)]));
        let dead = dead_token("1", later).dead;
        assert_eq!(tokens.of_holder(&name("a"), &held_by("1")), Some(dead));
        assert_eq!(tokens.of_holder(&name("b"), &held_by("1")), None);
        assert!(tokens.remember(&name("a"), dead_token("2", later), false, now));
        assert_eq!(tokens.of_holder(&name("a"), &held_by("2")), None);
        assert!(tokens.remember(&name("a"), dead_token("3", later), true, now));
        assert_eq!(tokens.of_holder(&name("a"), &held_by("3")), Some(dead));
    }

    #[test]
    fn the_oldest_and_those_whose_lease_would_be_over_are_forgotten() {
        let (tokens, now) = (DeadTokens::new(3), clock::now());
        let (soon, later) = (now.plus_millis(1), now.plus_millis(60_000));
        assert!(tokens.remember(&name("a"), dead_token("1", soon), false, now));
        for text in ["2", "3"] {
            assert!(tokens.remember(&name("a"), dead_token(text, later), false, now));
        }
        assert!(tokens.remember(&name("b"), dead_token("4", later), false, soon));
        assert!(!tokens.remember(&name("b"), dead_token("5", later), false, soon));
        let mut watches: Vec<_> = tokens.lost_data(soon).into_keys().collect();
        watches.sort();
        assert_eq!(watches, [name("a"), name("b")]);
        assert_eq!(tokens.of_holder(&name("a"), &held_by("2")), None);
        assert!(tokens.of_holder(&name("a"), &held_by("3")).is_some());
        assert!(tokens.lost_data(later).is_empty());
    }
}
