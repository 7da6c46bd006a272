//! A store under test, and everything that it tells.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate::{
    auth::identity::{Credentials, User, Users},
    clock,
    lock::{
        Deadline, Fence, LinkId, Mark, Outcome, StoreReply, StoreRequest, StoreRequestId, Token,
        UserId,
    },
    store::{
        Later, Listener, LockName, LockStatus, Receipt, Store,
        embedded::EmbeddedStore,
        redis::{RedisSettings, RedisStore},
    },
};
use tokio::sync::{Notify, RwLock, mpsc, oneshot};

use crate::redis::Server;

/// Long enough for any machine; nothing waits for it to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How long a store request that takes no free lock may wait for a connection, where a test says nothing else.
pub(crate) const WITHIN: Duration = Duration::from_secs(5);

/// A lease that does not end within a test.
pub(crate) const LONG: u64 = 600_000;

const USER: UserId = UserId::ANONYMOUS;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Changed(LinkId, LockName),
    TrackingLost(LinkId),
    DataLost,
    /// Every queue has heard of the loss.
    DataLossNotified,
}

struct Recorder {
    told: mpsc::UnboundedSender<Told>,
    linked: Arc<Notify>,
    replies: Arc<Replies>,
    notifies: Arc<RwLock<()>>,
}

/// The store requests under way.
#[derive(Default)]
struct Replies {
    numbers: AtomicU64,
    waiting: Mutex<HashMap<StoreRequestId, oneshot::Sender<StoreReply>>>,
}

impl Replies {
    /// Asks the store as a gate does.
    async fn ask(
        &self,
        store: &dyn Store,
        name: &LockName,
        store_request: StoreRequest,
        within: Duration,
    ) -> StoreReply {
        let id = StoreRequestId(self.numbers.fetch_add(1, Ordering::Relaxed));
        let (tell, told) = oneshot::channel();
        self.waiting.lock().unwrap().insert(id, tell);
        match store.ask(name, id, store_request, within) {
            Receipt::Answered(reply) => reply,
            Receipt::Underway => told.await.expect("each request gets a reply"),
            Receipt::Later(reply) => reply.await,
        }
    }
}

impl Listener for Recorder {
    fn replied(&self, _: &LockName, id: StoreRequestId, store_reply: StoreReply) {
        let waiting = self.replies.waiting.lock().unwrap().remove(&id);
        let waiting = waiting.expect("one reply to each request");
        // The test may not wait for it any more.
        let _ = waiting.send(store_reply);
    }

    fn changed(&self, link: LinkId, name: &LockName) {
        let _ = self.told.send(Told::Changed(link, name.clone()));
    }

    fn tracking_lost(&self, link: LinkId) {
        let _ = self.told.send(Told::TrackingLost(link));
    }

    fn linked(&self, _: UserId, _: u32) {
        self.linked.notify_waiters();
    }

    fn data_lost(&self, _: Duration) -> Later<()> {
        let _ = self.told.send(Told::DataLost);
        let (notifies, told) = (Arc::clone(&self.notifies), self.told.clone());
        Box::pin(async move {
            let _ = notifies.read().await;
            let _ = told.send(Told::DataLossNotified);
        })
    }
}

pub(crate) struct Fixture {
    store: Arc<dyn Store>,
    /// On whose behalf it asks.
    pub(crate) user: Arc<User>,
    pub(crate) users: Arc<Users>,
    told: mpsc::UnboundedReceiver<Told>,
    /// The store has a connection again.
    linked: Arc<Notify>,
    replies: Arc<Replies>,
    /// While it is locked, queues hear nothing of a loss of data.
    pub(crate) notifies: Arc<RwLock<()>>,
    pub(crate) server: Option<Server>,
}

impl Fixture {
    fn new(store: impl Store, users: Arc<Users>, server: Option<Server>) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let linked = Arc::<Notify>::default();
        let replies = Arc::<Replies>::default();
        let notifies = Arc::<RwLock<()>>::default();
        let recorder = Recorder {
            told: sender,
            linked: Arc::clone(&linked),
            replies: Arc::clone(&replies),
            notifies: Arc::clone(&notifies),
        };
        store.listen(Arc::new(recorder));
        Self {
            store: Arc::new(store),
            user: users.anonymous(),
            users,
            told,
            linked,
            replies,
            notifies,
            server,
        }
    }

    pub(crate) fn embedded() -> Self {
        Self::new(EmbeddedStore::new(), Arc::default(), None)
    }

    pub(crate) fn redis() -> Self {
        let server = Server::start();
        let fixture = Self::at(server.settings());
        Self {
            server: Some(server),
            ..fixture
        }
    }

    /// A store for a server that is none of the bed's.
    pub(crate) fn at(settings: RedisSettings) -> Self {
        let users: Arc<Users> = Arc::default();
        Self::new(RedisStore::new(settings, Arc::clone(&users)), users, None)
    }

    /// The same, which asks as this user.
    pub(crate) fn at_as(settings: RedisSettings, name: &str, password: &str) -> Self {
        let mut fixture = Self::at(settings);
        fixture.becomes(name, password);
        fixture
    }

    /// From now on it asks as this user, whom Redis accepted by this password.
    pub(crate) fn becomes(&mut self, name: &str, password: &str) {
        let credentials = Credentials::new(name.as_bytes(), password.as_bytes()).unwrap();
        self.user = self.users.verified(&credentials, clock::now());
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The next report of the store.
    pub(crate) async fn told(&mut self) -> Told {
        tokio::time::timeout(PATIENCE, self.told.recv())
            .await
            .expect("the listener is told")
            .unwrap()
    }

    /// What the store has told up to now and nobody looked at.
    pub(crate) fn told_already(&mut self) -> Vec<Told> {
        std::iter::from_fn(|| self.told.try_recv().ok()).collect()
    }

    /// Starts a store request, and goes on without its answer.
    pub(crate) fn start(
        &self,
        name: &LockName,
        store_request: StoreRequest,
    ) -> tokio::task::JoinHandle<StoreReply> {
        tokio::spawn(self.ask_until_sent(name.clone(), store_request))
    }

    pub(crate) async fn put(&self, name: &LockName, store_request: StoreRequest) -> StoreReply {
        let answer = self.ask_until_sent(name.clone(), store_request);
        tokio::time::timeout(PATIENCE, answer)
            .await
            .expect("the store answers")
    }

    /// As a queue does: what was not sent for want of a connection is asked again when there is one.
    fn ask_until_sent(
        &self,
        name: LockName,
        store_request: StoreRequest,
    ) -> impl Future<Output = StoreReply> + use<> {
        let (store, linked) = (Arc::clone(&self.store), Arc::clone(&self.linked));
        let replies = Arc::clone(&self.replies);
        async move {
            loop {
                let is_linked = linked.notified();
                let request = store_request.clone();
                let answer = replies.ask(&*store, &name, request, WITHIN).await;
                if answer.outcome != Outcome::NoLink {
                    return answer;
                }
                let _ = tokio::time::timeout(WITHIN, is_linked).await;
            }
        }
    }

    pub(crate) async fn put_within(
        &self,
        name: &LockName,
        store_request: StoreRequest,
        within: Duration,
    ) -> StoreReply {
        let answer = self.replies.ask(&*self.store, name, store_request, within);
        tokio::time::timeout(PATIENCE, answer)
            .await
            .expect("the store answers")
    }

    pub(crate) async fn ask(&self, name: &LockName, token: &str, lease_ms: u64) -> StoreReply {
        self.put(name, ask_as(self.user.id(), token, lease_ms))
            .await
    }

    /// A lock that is held now: when its lease ends.
    pub(crate) async fn hold(&self, name: &LockName, token: &str) -> Deadline {
        granted(&self.ask(name, token, LONG).await)
    }

    /// The grant that is the answer; or, where the store request has waited long for a connection and is to be
    /// asked anew, the one that follows.
    pub(crate) async fn granted_or_anew(
        &self,
        answer: StoreReply,
        name: &LockName,
        token: &str,
    ) -> StoreReply {
        let anew = matches!(answer.outcome, Outcome::NotYet { ms: 0 });
        let answer = match anew {
            true => self.ask(name, token, LONG).await,
            false => answer,
        };
        granted(&answer);
        answer
    }

    pub(crate) async fn hand_over(&self, name: &LockName, from: &str, to: &str) -> StoreReply {
        self.hand_over_if(name, from, None, to).await
    }

    pub(crate) async fn hand_over_if(
        &self,
        name: &LockName,
        from: &str,
        only_if: Option<Deadline>,
        to: &str,
    ) -> StoreReply {
        let store_request = StoreRequest::Handover {
            user: self.user.id(),
            from: token(from),
            only_if,
            to: token(to),
            lease_ms: LONG,
            fence: false,
            strict: false,
        };
        self.put(name, store_request).await
    }

    pub(crate) async fn release(&self, name: &LockName, token: &str) -> Outcome {
        self.release_if(name, token, None).await
    }

    pub(crate) async fn release_if(
        &self,
        name: &LockName,
        holder: &str,
        only_if: Option<Deadline>,
    ) -> Outcome {
        let store_request = StoreRequest::Release {
            user: self.user.id(),
            token: token(holder),
            only_if,
        };
        self.put(name, store_request).await.outcome
    }

    pub(crate) async fn release_answer(&self, name: &LockName, holder: &str) -> StoreReply {
        let store_request = StoreRequest::Release {
            user: self.user.id(),
            token: token(holder),
            only_if: None,
        };
        self.put(name, store_request).await
    }

    pub(crate) async fn check(&self, name: &LockName) -> StoreReply {
        let user = self.user.id();
        self.put(name, StoreRequest::Check { user }).await
    }

    pub(crate) async fn extend(&self, name: &LockName, holder: &str, lease_ms: u64) -> StoreReply {
        self.put(
            name,
            StoreRequest::Extend {
                user: self.user.id(),
                token: token(holder),
                lease_ms,
                expects: None,
                mark: Mark::None,
                replicas: 0,
            },
        )
        .await
    }

    pub(crate) async fn try_look(&self, name: &LockName) -> Result<LockStatus, Bytes> {
        tokio::time::timeout(PATIENCE, self.store.status(name, self.user.id()))
            .await
            .expect("the store answers")
    }

    pub(crate) async fn status(&self, name: &LockName) -> LockStatus {
        self.try_look(name).await.unwrap()
    }

    /// Whether somebody holds the lock, by its token: asks with a token that cannot be there.
    pub(crate) async fn holder(&self, name: &LockName) -> Option<Token> {
        match self.extend(name, "a token of nobody", 1).await.outcome {
            Outcome::Held { holder, .. } => holder,
            Outcome::Free => None,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn ask(holder: &str, lease_ms: u64) -> StoreRequest {
    ask_as(USER, holder, lease_ms)
}

pub(crate) fn ask_as(user: UserId, holder: &str, lease_ms: u64) -> StoreRequest {
    StoreRequest::Acquire {
        user,
        token: token(holder),
        lease_ms,
        fence: Fence::No,
        expects: None,
        bare: false,
        strict: false,
        replicas: 0,
    }
}

pub(crate) fn token(text: &str) -> Token {
    Token::new(text)
}

pub(crate) fn lock(key: impl AsRef<[u8]>) -> LockName {
    lock_in(0, key)
}

pub(crate) fn lock_in(database: u32, key: impl AsRef<[u8]>) -> LockName {
    LockName {
        database,
        key: key.as_ref().into(),
    }
}

/// The deadline of a grant.
pub(crate) fn granted(answer: &StoreReply) -> Deadline {
    match answer.outcome {
        Outcome::Granted { deadline, .. } => deadline,
        ref other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn armed(answer: &StoreReply) -> LinkId {
    answer
        .armed
        .unwrap_or_else(|| panic!("not armed: {answer:?}"))
}

/// The holder of a lock that the store request found held, and how long its key still lives.
pub(crate) fn held(answer: &StoreReply) -> (Token, Option<u64>) {
    match &answer.outcome {
        Outcome::Held {
            holder: Some(holder),
            ttl_ms,
        } => (holder.clone(), *ttl_ms),
        other => panic!("not held: {other:?}"),
    }
}
