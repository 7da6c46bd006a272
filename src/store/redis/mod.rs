//! Locks in a Redis node: a plain string key with an expiry, whose value is the owner's token.
//!
//! - [`settings`]: which Redis, as whom, and how long to wait for it.
//! - `scripts`: one Lua script for each question.
//! - `link`: one connection, shared by all questions of one user about one database; Redis tells on
//!   it when somebody else changes a lock.
//! - `greeting`: the socket, and the first words on it.
//! - `keeper`: opens a new link whenever one breaks.
//!
//! Questions for many locks share a link so that they travel in batches; what a question costs here
//! is therefore kept small: no task, no timer, no lock across an await.

use std::sync::{Arc, OnceLock, atomic::AtomicU64};

use bytes::Bytes;
use dashmap::DashMap;
use redis::Value;

use self::{
    greeting::Subject,
    keeper::Keeper,
    scripts::{Reading, Request, error_text},
};
use super::{Later, Listener, LockName, Look, Store};
use crate::lock::{Answer, Outcome, Question, UserId};

mod greeting;
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
}

impl RedisStore {
    /// Connects when the first question comes.
    pub fn new(settings: RedisSettings) -> Self {
        Self {
            settings: Arc::new(settings),
            listener: OnceLock::new(),
            keepers: DashMap::new(),
            next_id: Arc::new(AtomicU64::new(1)),
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

    fn ask(&self, name: &LockName, question: &Question) -> Later<Answer> {
        let keeper = match self.keeper(question.user(), name.database) {
            Ok(keeper) => keeper,
            Err(text) => return Box::pin(std::future::ready(untold(Outcome::Refused(text)))),
        };
        let request = Request::new(&self.key(name), question);
        Box::pin(async move { ask(&keeper, &request).await })
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

async fn ask(keeper: &Keeper, request: &Request) -> Answer {
    let link = match keeper.link().await {
        Ok(link) => link,
        Err(text) => return untold(Outcome::Refused(text)),
    };
    let Some(Reading::Done { outcome, read }) = link.ask(request).await else {
        // Whoever hears this and asks again must not find the same link.
        keeper.give_up(&link).await;
        return untold(Outcome::Unknown);
    };
    if matches!(&outcome, Outcome::NotNow(text) if text.starts_with(b"READONLY")) {
        // The address may lead to a new master by now.
        keeper.give_up(&link).await;
    }
    Answer {
        outcome,
        armed: (read && link.tells()).then_some(link.id),
    }
}

async fn look(keeper: &Keeper, key: &[u8]) -> Result<Look, Bytes> {
    let link = keeper.link().await?;
    let mut command = redis::cmd("PTTL");
    match link.send(command.arg(key)).await {
        Some(Value::Int(ttl_ms)) => Ok(Look {
            held: ttl_ms != -2,
            ttl_ms,
        }),
        Some(Value::ServerError(error)) => Err(error_text(&error)),
        Some(_) => Err(Bytes::from_static(
            b"UPSTREAM Redis gave an answer that PTTL does not give",
        )),
        None => Err(Bytes::from_static(
            b"UPSTREAM the connection to Redis broke",
        )),
    }
}

/// An answer after which nothing will be told.
fn untold(outcome: Outcome) -> Answer {
    Answer {
        outcome,
        armed: None,
    }
}
