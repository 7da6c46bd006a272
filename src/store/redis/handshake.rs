//! Opens a connection to Redis: the socket, and the handshake on it.
//!
//! - **The connection belongs to the user**: Redis allows or refuses each request as it would for the user
//!   itself. A connection without an account of lockgate's own begins with the credentials, as plain bytes. If
//!   a user has several passwords, those that Redis no longer accepts are forgotten.
//! - **With an account of its own (`upstream.user`), lockgate logs in as itself first.** It reads the server's
//!   identity and ends the previous connection on this very connection, since another one may lead to another
//!   server. Then the connection becomes the user's.
//! - **lockgate opens the socket itself**, for `TCP_NODELAY` and `SO_LINGER 0`: requests that were given up
//!   must not execute later, so closing discards what the kernel has not sent yet. (Bytes written to a Unix
//!   socket reach Redis at once; the next rule covers those.)
//! - **A new connection ends the previous one** by `CLIENT KILL`, before its first request. Whatever the
//!   network or Redis itself still holds of the previous connection does not execute after requests on this
//!   one. A user that may not run it loses this guarantee and nothing else.
//! - **Every new connection reads the server's role** by `INFO`, since one of several masters takes writes, and its
//!   identity if write-back is on, since Redis may have lost data.
//! - **Redis pushes changes** after `CLIENT TRACKING ON NOLOOP`, which needs RESP3. If Redis refuses either, or pushes a
//!   connection's own changes back to it, the connection works without.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use dashmap::DashMap;
use redis::{Cmd, ServerError, Value};
use tokio::time::{Instant, timeout_at};

use super::{
    can_lock::CanLock,
    credentials::{Login, forms_of, log_in, may_know_no_users, without_arguments},
    data_loss::{DataLossDetector, Identity},
    reconnector::Reconnector,
    requests::{self, SentRequest},
    scripts::{ACK_KEY, FENCE_KEY, GRACE_KEY, RAISE_FENCE, error_text, is_passing},
    server_info::{ServerInfo, identify},
    settings::RedisSettings,
    wire::{Receiver, Wire, WireEnded},
};
use crate::{
    auth::identity::{Credentials, User},
    error::NOAUTH,
    lock::LinkId,
    store::{Listener, LockName, task::Task},
    telemetry::metrics::upstream::{Purpose, UpstreamMetrics},
    transport::stream::Stream,
};

/// The purpose of a connection: the user and the database whose locks it serves, and the listener for its
/// pushes.
pub(super) struct Subject {
    pub(super) settings: Arc<RedisSettings>,
    pub(super) user: Arc<User>,
    pub(super) database: u32,
    pub(super) listener: Arc<dyn Listener>,
    pub(super) data_loss: Arc<DataLossDetector>,
    /// The largest fence seen, by database.
    pub(super) fences: Arc<DashMap<u32, u64>>,
    pub(super) metrics: Arc<UpstreamMetrics>,
    pub(super) can_lock: Arc<CanLock>,
    /// The reconnector of these connections.
    pub(super) reconnector: Weak<Reconnector>,
}

impl Subject {
    /// Returns the lock with this key in Redis. None: the key lacks the prefix of locks.
    pub(super) fn lock_of(&self, key: &[u8]) -> Option<LockName> {
        let name = key.strip_prefix(&self.settings.key_prefix[..])?;
        Some(LockName {
            database: self.database,
            key: name.into(),
        })
    }
}

/// A connection that is ready for requests.
pub(super) struct Opened {
    pub(super) wire: Arc<Wire>,
    /// The task that reads and writes the connection.
    pub(super) driver: Task,
    /// Why `CLIENT TRACKING` is unavailable; none if Redis pushes changes.
    pub(super) mute: Option<String>,
    /// The connection as Redis lists it; none if Redis does not tell.
    pub(super) peer: Option<Peer>,
    /// The facts that `INFO` reports.
    pub(super) server: ServerInfo,
    /// Why lockgate's own account cannot be used.
    pub(super) no_account: Option<String>,
}

/// What locks lose where Redis denies lockgate something, in the words of the log and of `lockgate doctor`.
pub(super) const NO_ACCOUNT: &str =
    "Redis does not let upstream.user in, so INFO is asked as the client's user";
pub(super) const NO_PUSHES: &str = "Redis does not tell of changes, so locks are polled";
pub(super) const NO_IDENTITY: &str = "Redis does not say who it is (INFO), so leases are not written back when it loses \
                                      them";
pub(super) const NO_MARK: &str = "lockgate:grace cannot be used, so each start of lockgate grants nothing for \
                                  write_back.grace";
pub(super) const EVICTS: &str = "Redis may evict a lock before its lease is over";
pub(super) const NO_KILL: &str = "Redis does not list or end connections of lockgate's, so requests of a broken one may \
                                  execute late";

impl Opened {
    /// Returns what locks lose on this connection, with the reason of each.
    pub(super) fn lacks(&self, writes_back: bool) -> Vec<(&'static str, &str)> {
        let server = &self.server;
        let mut lacks = Vec::new();
        lacks.extend(self.no_account.as_deref().map(|why| (NO_ACCOUNT, why)));
        lacks.extend(self.mute.as_deref().map(|why| (NO_PUSHES, why)));
        match &server.identity {
            Err(why) if writes_back => lacks.push((NO_IDENTITY, why)),
            Ok(Identity {
                grace_left: Err(why),
                ..
            }) if writes_back && server.takes_no_writes.is_none() => lacks.push((NO_MARK, why)),
            _ => {}
        }
        lacks.extend(server.evicts.as_deref().map(|policy| (EVICTS, policy)));
        if self.peer.is_none() {
            lacks.push((NO_KILL, "CLIENT INFO"));
        }
        lacks
    }
}

/// The id and the address of a connection, as Redis lists it. Together they end that connection and no other,
/// whichever server gets the `CLIENT KILL`.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    id: String,
    address: String,
}

/// The reasons for having no connection.
#[derive(Debug)]
pub(super) enum NoLink {
    /// Redis rejects the credentials: its own error. Other credentials may work.
    WrongPassword(Bytes),
    /// Redis refuses access: its own error. A retry will not help.
    Refused(Bytes),
    /// A temporary failure: the reason.
    Failed(String),
}

impl NoLink {
    /// Returns the reason, in Redis's own words where it gave any.
    pub(super) fn reason(self) -> String {
        match self {
            Self::Failed(reason) => reason,
            Self::Refused(text) | Self::WrongPassword(text) => lossy(&text),
        }
    }
}

/// Opens a connection with this number, and ends the previous one.
///
/// # Errors
/// See [`NoLink`].
pub(super) async fn open(
    subject: &Arc<Subject>,
    id: LinkId,
    previous: Option<&Peer>,
) -> Result<Opened, NoLink> {
    let known = subject.user.credentials();
    let deadline = subject.settings.connect_deadline();
    let mut refusal = None;
    for (number, credentials) in known.iter().enumerate() {
        match open_as(subject, id, previous, Some(credentials), deadline).await {
            Err(NoLink::WrongPassword(text)) => refusal = Some(text),
            opened => {
                // If Redis rejects all of them, the user may be the problem, not the passwords.
                if opened.is_ok() {
                    known[..number]
                        .iter()
                        .for_each(|it| subject.user.refused(it));
                }
                return opened;
            }
        }
    }
    match refusal {
        Some(text) => Err(NoLink::Refused(text)),
        None => open_as(subject, id, previous, None, deadline).await,
    }
}

async fn open_as(
    subject: &Arc<Subject>,
    id: LinkId,
    previous: Option<&Peer>,
    credentials: Option<&Credentials>,
    deadline: Instant,
) -> Result<Opened, NoLink> {
    let mut first_words = Handshake {
        subject,
        id,
        previous,
        credentials,
        own: subject
            .settings
            .own
            .as_ref()
            .filter(|_| subject.data_loss.matters()),
        resp3: true,
        deadline,
    };
    let (mut mute, mut no_account) = (None, None);
    // Each of the two fallbacks is taken once at most.
    let opened = loop {
        match first_words.say().await {
            Err(Hello::OldServer(reason)) if mute.is_none() => {
                first_words.resp3 = false;
                mute = Some(reason);
            }
            Err(Hello::NoAccount(reason)) if no_account.is_none() => {
                first_words.own = None;
                no_account = Some(reason);
            }
            Err(hello) => return Err(hello.into_no_link()),
            Ok(opened) => break opened,
        }
    };
    Ok(Opened {
        mute: mute.or(opened.mute),
        no_account,
        ..opened
    })
}

/// Agrees with Redis on RESP3, which pushes need.
pub(super) async fn speak_resp3(wire: &Wire) -> Result<(), Hello> {
    let mut hello = redis::cmd("HELLO");
    match say(wire, hello.arg(3)).await? {
        Ok(()) => Ok(()),
        Err(error) => Err(hello_refused(&error)),
    }
}

/// Reads these sections of `INFO`. The inner error is Redis's refusal.
pub(super) async fn info(wire: &Wire, sections: &[&str]) -> Result<Result<String, String>, NoLink> {
    let mut info = String::new();
    for section in sections {
        let mut command = redis::cmd("INFO");
        match wire.send(Purpose::Info, command.arg(section)).await? {
            Value::BulkString(text) => info.push_str(&String::from_utf8_lossy(&text)),
            Value::VerbatimString { text, .. } => info.push_str(&text),
            Value::ServerError(error) => return Ok(Err(lossy(&error_text(&error)))),
            _ => {}
        }
    }
    Ok(Ok(info))
}

/// The failures of a handshake.
pub(super) enum Hello {
    NoLink(NoLink),
    /// Redis does not speak RESP3: the reason.
    OldServer(String),
    /// lockgate's own account cannot be used: the reason.
    NoAccount(String),
}

impl Hello {
    pub(super) fn into_no_link(self) -> NoLink {
        match self {
            Self::NoLink(no_link) => no_link,
            Self::OldServer(reason) | Self::NoAccount(reason) => NoLink::Failed(reason),
        }
    }
}

impl From<WireEnded> for NoLink {
    fn from(ended: WireEnded) -> Self {
        Self::Failed(ended.to_string())
    }
}

impl From<NoLink> for Hello {
    fn from(no_link: NoLink) -> Self {
        Self::NoLink(no_link)
    }
}

/// The handshake on a new connection.
struct Handshake<'a> {
    subject: &'a Arc<Subject>,
    id: LinkId,
    previous: Option<&'a Peer>,
    /// The user's credentials.
    credentials: Option<&'a Credentials>,
    /// lockgate's own credentials.
    own: Option<&'a Credentials>,
    /// Whether to speak RESP3, which pushes need.
    resp3: bool,
    /// The connection is open by then, or given up.
    deadline: Instant,
}

/// Opens a stream to Redis.
pub(super) async fn dial(settings: &RedisSettings, deadline: Instant) -> Result<Stream, NoLink> {
    let within = deadline.saturating_duration_since(Instant::now());
    let reached = async {
        let stream = settings.endpoint.reach(within).await?;
        stream.forget_unsent_on_close()?;
        settings.endpoint.secure(stream).await
    };
    let reason = match timeout_at(deadline, reached).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "not reached in time".to_owned(),
    };
    Err(NoLink::Failed(format!("{}: {reason}", settings.endpoint)))
}

impl Handshake<'_> {
    async fn say(&self) -> Result<Opened, Hello> {
        let stream = dial(&self.subject.settings, self.deadline).await?;
        match timeout_at(self.deadline, self.say_on(stream)).await {
            Ok(result) => result,
            Err(_) => Err(NoLink::Failed("Redis does not answer to the handshake".into()).into()),
        }
    }

    /// Logs in, agrees on the protocol, runs lockgate's own set-up commands, selects the database and starts tracking.
    async fn say_on(&self, mut stream: Stream) -> Result<Opened, Hello> {
        if let Some(first) = self.own.or(self.credentials) {
            self.subject.metrics.sent(Purpose::Setup);
            match log_in(&mut stream, first).await? {
                Login::Done => {}
                Login::Refused(text) if self.own.is_some() => {
                    return Err(Hello::NoAccount(lossy(&text)));
                }
                Login::Refused(text) => return Err(NoLink::WrongPassword(text).into()),
            }
        }
        let receiver = Arc::new(LinkReceiver {
            subject: Arc::clone(self.subject),
            id: self.id,
        });
        let (wire, driver) = Wire::new(stream, receiver, Arc::clone(&self.subject.metrics));
        if self.resp3 {
            speak_resp3(&wire).await?;
        }
        let setup = SetupReplies::run(self, &wire).await?;
        if self.own.is_some() {
            self.become_the_user(&wire).await?;
        }
        if self.subject.database != 0 {
            let mut select = redis::cmd("SELECT");
            entry(&wire, select.arg(self.subject.database)).await?;
        }
        self.raise_fence(&wire).await?;
        let mute = match &setup.server.echoes {
            Some(reason) => Some(reason.clone()),
            None if self.resp3 => start_tracking(&wire).await?,
            None => None,
        };
        Ok(Opened {
            wire,
            driver,
            mute,
            peer: setup.peer,
            server: setup.server,
            no_account: None,
        })
    }

    /// Raises the fence counter, since the clock of another Redis may be behind: its next fences must still be
    /// larger.
    async fn raise_fence(&self, wire: &Wire) -> Result<(), NoLink> {
        let largest = self.subject.fences.get(&self.subject.database);
        let Some(largest) = largest.map(|largest| *largest) else {
            return Ok(());
        };
        let mut raise = redis::cmd("EVAL");
        raise.arg(RAISE_FENCE).arg(1).arg(FENCE_KEY).arg(largest);
        // A user that may not do this gets no fences either.
        say(wire, &raise).await.map(drop)
    }

    /// Turns lockgate's own connection into the user's.
    async fn become_the_user(&self, wire: &Wire) -> Result<(), Hello> {
        if let Some(credentials) = self.credentials {
            let mut refused = Bytes::new();
            for words in forms_of(credentials) {
                let mut command = redis::cmd("AUTH");
                refused = match say(wire, command.arg(words)).await? {
                    Ok(()) => return Ok(()),
                    Err(error) => without_arguments(error_text(&error)),
                };
                if !may_know_no_users(credentials, &refused) {
                    break;
                }
            }
            return Err(NoLink::WrongPassword(refused).into());
        }
        // `RESET` makes the connection anonymous again, as if it were new.
        if say(wire, &redis::cmd("RESET")).await?.is_err() {
            // Redis before 6.2 has no way back.
            return Err(Hello::NoAccount(
                "this Redis has no RESET, so INFO is asked as the client's user".to_owned(),
            ));
        }
        if self.resp3 {
            let mut hello = redis::cmd("HELLO");
            entry(wire, hello.arg(3)).await?;
        }
        Ok(())
    }
}

/// The results of the set-up commands that run with lockgate's own account, or as the user without one.
struct SetupReplies {
    peer: Option<Peer>,
    server: ServerInfo,
}

impl SetupReplies {
    async fn run(words: &Handshake<'_>, wire: &Wire) -> Result<Self, NoLink> {
        if let Some(peer) = words.previous {
            // A user that may not end connections loses that guarantee and nothing else.
            let _ = peer.end(wire).await?;
        }
        let peer = Peer::of(wire).await?;
        let server = identify(wire, &words.subject.data_loss).await?;
        Ok(Self { peer, server })
    }
}

impl Peer {
    /// Reads how Redis lists this connection; none before Redis 6.2, or if the user may not ask.
    pub(super) async fn of(wire: &Wire) -> Result<Option<Self>, NoLink> {
        let mut command = redis::cmd("CLIENT");
        command.arg("INFO");
        let info = match wire.send(Purpose::Setup, &command).await? {
            Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            Value::VerbatimString { text, .. } => text,
            _ => return Ok(None),
        };
        let field = |name: &str| {
            info.split_whitespace()
                .find_map(|field| field.strip_prefix(name))
        };
        Ok(field("id=").zip(field("addr=")).map(|(id, address)| Self {
            id: id.to_owned(),
            address: address.to_owned(),
        }))
    }

    /// Ends that connection, if this server has it. The inner error is Redis's refusal.
    pub(super) async fn end(&self, wire: &Wire) -> Result<Result<(), ServerError>, NoLink> {
        let mut command = redis::cmd("CLIENT");
        command
            .arg("KILL")
            .arg("ID")
            .arg(&self.id)
            .arg("ADDR")
            .arg(&self.address);
        say(wire, &command).await
    }
}

/// Classifies the error of `HELLO`.
fn hello_refused(error: &ServerError) -> Hello {
    let text = error_text(error);
    let details = error.details().unwrap_or_default();
    match error.code() {
        "NOPROTO" => Hello::OldServer(lossy(&text)),
        _ if details.starts_with("unknown command") => {
            Hello::OldServer(lossy(&without_arguments(text)))
        }
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => NoLink::Refused(in_short(text)).into(),
        _ if details.contains("AUTH") => NoLink::Refused(text).into(),
        _ => NoLink::Failed(lossy(&text)).into(),
    }
}

/// Sends a command that the link cannot work without. Its refusal is permanent, unless Redis is full or
/// temporarily unavailable.
async fn entry(wire: &Wire, command: &Cmd) -> Result<(), NoLink> {
    match say(wire, command).await? {
        Ok(()) => Ok(()),
        Err(error) => {
            let text = error_text(&error);
            Err(if is_full(&text) || is_passing(&error) {
                NoLink::Failed(lossy(&text))
            } else {
                NoLink::Refused(in_short(text))
            })
        }
    }
}

/// Shortens the `NOAUTH` of an unauthenticated `HELLO`: Redis adds advice that is not for the client.
fn in_short(error: Bytes) -> Bytes {
    if error.starts_with(b"NOAUTH ") {
        return Bytes::from_static(NOAUTH.as_bytes());
    }
    error
}

/// Returns whether Redis has reached its limit of clients.
pub(super) fn is_full(error: &[u8]) -> bool {
    error.starts_with(b"ERR max number of clients")
}

pub(super) fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// Turns on tracking. Returns the reason if Redis refuses.
pub(super) async fn start_tracking(wire: &Wire) -> Result<Option<String>, NoLink> {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON").arg("NOLOOP");
    Ok(say(wire, &command)
        .await?
        .err()
        .map(|error| lossy(&error_text(&error))))
}

pub(super) async fn say(wire: &Wire, command: &Cmd) -> Result<Result<(), ServerError>, NoLink> {
    match wire.send(Purpose::Setup, command).await? {
        Value::ServerError(error) => Ok(Err(error)),
        _ => Ok(Ok(())),
    }
}

/// Passes what comes on a link to the listener.
struct LinkReceiver {
    subject: Arc<Subject>,
    id: LinkId,
}

impl Receiver for LinkReceiver {
    fn changed(&self, keys: Value) {
        self.subject.metrics.pushed();
        match keys {
            Value::Array(keys) => {
                let keys = keys.into_iter();
                keys.for_each(|key| told(&self.subject, self.id, key));
            }
            // Redis flushed all data.
            _ => self.subject.listener.tracking_lost(self.id),
        }
    }

    fn replied(&self, sent: SentRequest, reply: Value) {
        requests::replied(&self.subject, sent, reply);
    }
}

fn told(subject: &Subject, id: LinkId, key: Value) {
    let Value::BulkString(key) = key else {
        return;
    };
    if key == FENCE_KEY || key == GRACE_KEY || key == ACK_KEY {
        // Other instances change these keys, and no lock has such a name.
        return;
    }
    if let Some(name) = subject.lock_of(&key) {
        subject.listener.changed(id, &name);
    }
}
