//! Locks in a Redis node: a plain string key with an expiry, whose value is the owner's token.
//!
//! - [`settings`]: which Redis, as whom, and how long to wait for it.
//! - `scripts`: one Lua script for each question.
//! - `link`: one connection, shared by all questions of one user about one database; Redis tells on
//!   it when somebody else changes a lock.
//! - `greeting`: the socket, and the first words on it.
//! - `keeper`: opens a new link whenever one breaks.
//! - `history`: whether Redis lost data meanwhile.
//!
//! Questions for many locks share a link so that they travel in batches; what a question costs here
//! is therefore kept small: no task, no timer, no lock across an await.

use std::sync::{Arc, OnceLock, atomic::AtomicU64};

use bytes::Bytes;
use dashmap::DashMap;
use redis::{Cmd, Value};

use self::{
    greeting::Subject,
    history::History,
    keeper::Keeper,
    scripts::{FENCE_KEY, Reading, Request, error_text},
};
use super::{Later, Listener, LockName, Look, Store};
use crate::lock::{Answer, Deadline, Outcome, Question, UserId};

mod greeting;
mod history;
mod keeper;
mod link;
mod scripts;
pub mod settings;

pub use settings::RedisSettings;

/// Most shared connections, that is users times databases with locks.
pub const SHARED_CONNECTIONS: usize = 1_024;

/// The user of the URL, the only one that is served.
const URL_USER: UserId = UserId(0);

/// Locks in a Redis node.
pub struct RedisStore {
    settings: Arc<RedisSettings>,
    listener: OnceLock<Arc<dyn Listener>>,
    keepers: DashMap<(UserId, u32), Arc<Keeper>>,
    next_id: Arc<AtomicU64>,
    history: Arc<History>,
    /// The largest fence seen, by database: the next one is larger, whatever Redis forgot.
    fences: Arc<DashMap<u32, u64>>,
}

impl RedisStore {
    /// Connects when it is told to, or when the first question comes.
    pub fn new(settings: RedisSettings) -> Self {
        Self {
            listener: OnceLock::new(),
            keepers: DashMap::new(),
            next_id: Arc::new(AtomicU64::new(1)),
            history: Arc::new(History::new(settings.grace)),
            fences: Arc::default(),
            settings: Arc::new(settings),
        }
    }

    fn keeper(&self, user: UserId, database: u32) -> Result<Arc<Keeper>, Bytes> {
        if let Some(keeper) = self.keepers.get(&(user, database)) {
            return Ok(Arc::clone(&keeper));
        }
        let Some(listener) = self.listener.get().filter(|_| user == URL_USER) else {
            return Err(Bytes::from_static(
                b"ERR the store does not know this user, or nobody listens to it",
            ));
        };
        if self.keepers.len() >= SHARED_CONNECTIONS {
            return Err(Bytes::from_static(
                b"ERR max number of databases with locks reached",
            ));
        }
        let entry = self.keepers.entry((user, database)).or_insert_with(|| {
            let subject = Subject {
                settings: Arc::clone(&self.settings),
                database,
                listener: Arc::clone(listener),
                history: Arc::clone(&self.history),
            };
            Arc::new(Keeper::new(subject, Arc::clone(&self.next_id)))
        });
        Ok(Arc::clone(&entry))
    }

    fn key(&self, name: &LockName) -> Bytes {
        if self.settings.key_prefix.is_empty() {
            return name.key.clone();
        }
        [&self.settings.key_prefix[..], &name.key[..]]
            .concat()
            .into()
    }
}

impl Store for RedisStore {
    fn listen(&self, listener: Arc<dyn Listener>) {
        // Called once; a second listener would be a mistake of ours and hears nothing.
        let _ = self.listener.set(listener);
    }

    fn connect(&self) {
        if let Ok(keeper) = self.keeper(URL_USER, 0) {
            keeper.begin();
        }
    }

    fn ask(&self, name: &LockName, question: &Question) -> Later<Answer> {
        let keeper = match self.keeper(question.user(), name.database) {
            Ok(keeper) => keeper,
            Err(text) => return Box::pin(std::future::ready(untold(Outcome::Refused(text)))),
        };
        let key = self.key(name);
        if !wants_fence(question) {
            let request = Request::new(&key, question, 0);
            let (history, waits) = (Arc::clone(&self.history), takes_free(question));
            if let Question::Ask {
                token,
                lease_ms,
                bare: true,
                ..
            } = question
            {
                let first = scripts::bare(&key, token, *lease_ms);
                return Box::pin(async move {
                    match ask_bare(&keeper, &first, &history).await {
                        Some(answer) => answer,
                        None => ask(&keeper, &request, &history, true).await,
                    }
                });
            }
            return Box::pin(async move { ask(&keeper, &request, &history, waits).await });
        }
        let (fences, history) = (Arc::clone(&self.fences), Arc::clone(&self.history));
        let (database, question) = (name.database, question.clone());
        Box::pin(async move {
            let floor = fences.get(&database).map_or(0, |seen| *seen + 1);
            let request = Request::new(&key, &question, floor);
            let waits = takes_free(&question);
            let answer = ask(&keeper, &request, &history, waits).await;
            if let Outcome::Granted {
                fence: Some(fence), ..
            } = answer.outcome
            {
                let mut seen = fences.entry(database).or_default();
                *seen = fence.max(*seen);
            }
            answer
        })
    }

    fn trouble(&self, name: &LockName, user: UserId) -> Option<Bytes> {
        let reason = self.keepers.get(&(user, name.database))?.trouble()?;
        let (host, port) = (&self.settings.host, self.settings.port);
        let own_words = ["LOADING ", "READONLY ", "MASTERDOWN "];
        if own_words.iter().any(|word| reason.starts_with(word)) {
            return Some(Bytes::from(reason));
        }
        let text = format!("UPSTREAM no connection to Redis at {host}:{port}: {reason}");
        // One line, whatever the system says.
        Some(Bytes::from(text.replace(['\r', '\n'], " ")))
    }

    fn is_reserved(&self, name: &LockName) -> bool {
        let prefix = &self.settings.key_prefix;
        FENCE_KEY.strip_prefix(&prefix[..]) == Some(&name.key[..])
    }

    fn look(&self, name: &LockName, user: UserId) -> Later<Result<Look, Bytes>> {
        let keeper = match self.keeper(user, name.database) {
            Ok(keeper) => keeper,
            Err(text) => return Box::pin(std::future::ready(Err(text))),
        };
        let (key, limit) = (self.key(name), self.settings.timeout);
        Box::pin(async move {
            tokio::time::timeout(limit, look(&keeper, &key))
                .await
                .unwrap_or(Err(Bytes::from_static(
                    b"UPSTREAM Redis does not answer in time",
                )))
        })
    }
}

/// The question may take a lock that is free.
fn takes_free(question: &Question) -> bool {
    matches!(question, Question::Ask { .. })
}

fn wants_fence(question: &Question) -> bool {
    matches!(
        question,
        Question::Ask { fence: true, .. } | Question::HandOver { fence: true, .. }
    )
}

/// Whoever `waits` is not asked within the grace time.
async fn ask(keeper: &Keeper, request: &Request, history: &History, waits: bool) -> Answer {
    let link = match keeper.link().await {
        Ok(link) => link,
        Err(text) => return untold(Outcome::Refused(text)),
    };
    if let Some(ms) = history.grace_left_ms().filter(|_| waits) {
        return untold(Outcome::NotYet { ms });
    }
    let Some(Reading::Done { outcome, read }) = link.ask(request).await else {
        // Whoever hears this and asks again must not find the same link.
        keeper.give_up(&link).await;
        return untold(Outcome::Unknown);
    };
    let says = |word: &[u8]| matches!(&outcome, Outcome::NotNow(text) if text.starts_with(word));
    if says(b"READONLY") || says(b"LOADING") || says(b"MASTERDOWN") {
        history.no_writes_yet();
    }
    if says(b"READONLY") {
        // The address may lead to a new master by now.
        keeper.give_up(&link).await;
    }
    Answer {
        outcome,
        armed: (read && link.tells()).then_some(link.id),
    }
}

/// Takes the lock in the cheapest way; none where that did not help, and the question is to be asked.
async fn ask_bare(keeper: &Keeper, first: &Cmd, history: &History) -> Option<Answer> {
    let link = keeper.link().await.ok()?;
    if history.grace_left_ms().is_some() {
        return None;
    }
    match link.send(first).await {
        Some(Value::Okay) => Some(untold(Outcome::Granted {
            deadline: Deadline(0),
            fresh: false,
            fence: None,
        })),
        Some(_) => None,
        None => {
            keeper.give_up(&link).await;
            Some(untold(Outcome::Unknown))
        }
    }
}

async fn look(keeper: &Keeper, key: &[u8]) -> Result<Look, Bytes> {
    let mut command = redis::cmd("PTTL");
    command.arg(key);
    loop {
        let link = keeper.link().await?;
        return match link.send(&command).await {
            Some(Value::Int(ttl_ms)) => Ok(Look {
                held: ttl_ms != -2,
                ttl_ms,
            }),
            Some(Value::ServerError(error)) => Err(error_text(&error)),
            Some(_) => Err(Bytes::from_static(
                b"UPSTREAM Redis gave an answer that PTTL does not give",
            )),
            // It changes nothing, so it may be asked again.
            None => {
                keeper.give_up(&link).await;
                continue;
            }
        };
    }
}

/// An answer after which nothing will be told.
fn untold(outcome: Outcome) -> Answer {
    Answer {
        outcome,
        armed: None,
    }
}
