//! Opens a connection to Redis: the socket, and the first words on it.
//!
//! - **It is the user's**: what is asked on it Redis allows or refuses as it would the user itself.
//!   Credentials are said in plain bytes before anything else, and go nowhere else. Of several passwords
//!   those are forgotten that Redis does not accept any more.
//! - **Before it is the user's it is the gate's own**, where the gate has an account: what is asked on
//!   the gate's own account (who Redis is, the end of the connection before) has to be asked on this very
//!   connection, since another one may lead to another server.
//! - **The socket is of our own making**, for `TCP_NODELAY` and `SO_LINGER 0`: what is given up on
//!   must not execute later, so closing throws away what the kernel has not sent yet. (What was
//!   written to a Unix socket is with Redis at once; for that there is the next rule.)
//! - **A new connection ends the one before it** by `CLIENT KILL`, before its first question: what
//!   the network, or Redis itself, still has of that one does not execute after what is asked on
//!   this one. A user who may not do so loses that and no more.
//! - **Who it is** is asked of every new connection, by `INFO`, since it may have lost data.
//! - **Redis tells of changes** by `CLIENT TRACKING ON NOLOOP`, which needs RESP3. Where Redis
//!   refuses either, the connection works without.

use std::sync::Arc;

use bytes::Bytes;
use dashmap::DashMap;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisError, RedisResult, ServerError, Value, aio::MultiplexedConnection,
};
use tokio::time::{Instant, timeout_at};

use super::{
    credentials::{Login, forms_of, log_in, may_know_no_users},
    grace::{self, Errand},
    history::{History, Identity},
    scripts::{FENCE_KEY, GRACE_KEY, RAISE_FENCE, error_text},
    settings::RedisSettings,
};
use crate::{
    error::NOAUTH,
    identity::{Credentials, User},
    lock::LinkId,
    metrics::upstream::{Purpose, UpstreamMetrics},
    store::{Listener, LockName, task::Task},
    transport::stream::Stream,
};

/// Requests on their way from the questions to the task that writes them.
const QUEUED_REQUESTS: usize = 1_024;

/// Bytes gathered before they are written, so that many requests travel as one.
const WRITE_BYTES: usize = 64 * 1024;

/// Whose locks a connection is about, and whom it tells of changes.
pub(super) struct Subject {
    pub(super) settings: Arc<RedisSettings>,
    pub(super) user: Arc<User>,
    pub(super) database: u32,
    pub(super) listener: Arc<dyn Listener>,
    pub(super) history: Arc<History>,
    /// The largest fence seen, by database.
    pub(super) fences: Arc<DashMap<u32, u64>>,
    pub(super) metrics: Arc<UpstreamMetrics>,
}

/// A connection that is ready for questions.
pub(super) struct Opened {
    pub(super) connection: MultiplexedConnection,
    /// The task that reads and writes it.
    pub(super) driver: Task,
    /// Why Redis does not tell of changes on it; none where it does.
    pub(super) mute: Option<String>,
    /// What Redis knows it as; none where Redis does not say.
    pub(super) peer: Option<Peer>,
    /// Who it leads to; why that is not known where Redis does not say.
    pub(super) identity: Result<Identity, String>,
    /// Why a lock may vanish before its lease is over.
    pub(super) evicts: Option<String>,
    /// Why the gate's own account is of no use.
    pub(super) no_account: Option<String>,
}

/// A connection as Redis sees it: enough to end it, and no other, whichever server is asked to.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    id: String,
    address: String,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoLink {
    /// Redis does not accept the credentials: its own error. Others may do.
    WrongPassword(Bytes),
    /// Redis does not let us in: its own error. Trying again will not help.
    Refused(Bytes),
    /// Not now: the reason.
    Failed(String),
}

/// Opens a connection that will be known by this number, and ends the one before it.
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
                // Where none works it may be the user, and not the passwords.
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
    let mut first_words = FirstWords {
        subject,
        id,
        previous,
        credentials,
        own: subject
            .settings
            .own
            .as_ref()
            .filter(|_| subject.history.matters()),
        protocol: ProtocolVersion::RESP3,
        deadline,
    };
    let (mut mute, mut no_account) = (None, None);
    // Each of the two can happen once.
    let opened = loop {
        match first_words.say().await {
            Err(Greeting::OldServer(reason)) if mute.is_none() => {
                first_words.protocol = ProtocolVersion::RESP2;
                mute = Some(reason);
            }
            Err(Greeting::NoAccount(reason)) if no_account.is_none() => {
                first_words.own = None;
                no_account = Some(reason);
            }
            Err(Greeting::NoLink(no_link)) => return Err(no_link),
            Err(Greeting::OldServer(reason) | Greeting::NoAccount(reason)) => {
                return Err(NoLink::Failed(reason));
            }
            Ok(opened) => break opened,
        }
    };
    Ok(Opened {
        mute: mute.or(opened.mute),
        no_account,
        ..opened
    })
}

/// The first words on a connection, which are counted.
struct Talk {
    connection: MultiplexedConnection,
    metrics: Arc<UpstreamMetrics>,
}

impl Talk {
    async fn send(&mut self, purpose: Purpose, command: &Cmd) -> RedisResult<Value> {
        self.metrics.sent(purpose);
        self.connection.send_packed_command(command).await
    }
}

/// What came of the first words.
enum Greeting {
    NoLink(NoLink),
    /// Redis does not speak RESP3: the reason.
    OldServer(String),
    /// The gate's own account is of no use: the reason.
    NoAccount(String),
}

impl From<NoLink> for Greeting {
    fn from(no_link: NoLink) -> Self {
        Self::NoLink(no_link)
    }
}

/// What is said first on a new connection.
struct FirstWords<'a> {
    subject: &'a Arc<Subject>,
    id: LinkId,
    previous: Option<&'a Peer>,
    /// The user's.
    credentials: Option<&'a Credentials>,
    /// The gate's own.
    own: Option<&'a Credentials>,
    protocol: ProtocolVersion,
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

impl FirstWords<'_> {
    async fn say(&self) -> Result<Opened, Greeting> {
        let stream = dial(&self.subject.settings, self.deadline).await?;
        match timeout_at(self.deadline, self.say_on(stream)).await {
            Ok(result) => result,
            Err(_) => Err(NoLink::Failed("Redis does not answer to the first words".into()).into()),
        }
    }

    /// Credentials, protocol, errands of the gate's own, database, tracking.
    async fn say_on(&self, mut stream: Stream) -> Result<Opened, Greeting> {
        if let Some(first) = self.own.or(self.credentials) {
            self.subject.metrics.sent(Purpose::Setup);
            match log_in(&mut stream, first).await? {
                Login::Done => {}
                Login::Refused(text) if self.own.is_some() => {
                    return Err(Greeting::NoAccount(lossy(&text)));
                }
                Login::Refused(text) => return Err(NoLink::WrongPassword(text).into()),
            }
        }
        let (mut connection, driver) = self.speak(stream).await?;
        let errands = Errands::run(self, &mut connection).await?;
        if self.own.is_some() {
            self.become_the_user(&mut connection).await?;
        }
        if self.subject.database != 0 {
            let mut select = redis::cmd("SELECT");
            entry(&mut connection, select.arg(self.subject.database)).await?;
        }
        self.raise_fence(&mut connection).await?;
        let mute = if self.protocol.supports_resp3() {
            start_tracking(&mut connection).await?
        } else {
            None
        };
        Ok(Opened {
            connection: connection.connection,
            driver,
            mute,
            peer: errands.peer,
            identity: errands.identity,
            evicts: errands.evicts,
            no_account: None,
        })
    }

    /// Hands the stream to the crate, which agrees on the protocol.
    async fn speak(&self, stream: Stream) -> Result<(Talk, Task), Greeting> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUED_REQUESTS)
            .set_write_backpressure_boundary(WRITE_BYTES);
        if self.protocol.supports_resp3() {
            config = config.set_push_sender(push_sender(Arc::clone(self.subject), self.id));
        }
        let info = RedisConnectionInfo::default()
            .set_protocol(self.protocol)
            .set_skip_set_lib_name();
        let metrics = Arc::clone(&self.subject.metrics);
        if self.protocol.supports_resp3() {
            // The HELLO.
            metrics.sent(Purpose::Setup);
        }
        let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config)
            .await
            .map_err(hello_refused)?;
        let talk = Talk {
            connection,
            metrics,
        };
        Ok((talk, Task::spawn(driver)))
    }

    /// The clock of another Redis may be behind: the fences that it makes are larger all the same.
    async fn raise_fence(&self, connection: &mut Talk) -> Result<(), NoLink> {
        let largest = self.subject.fences.get(&self.subject.database);
        let Some(largest) = largest.map(|largest| *largest) else {
            return Ok(());
        };
        let mut raise = redis::cmd("EVAL");
        raise.arg(RAISE_FENCE).arg(1).arg(FENCE_KEY).arg(largest);
        // A user who may not has no fences.
        say(connection, &raise).await.map(drop)
    }

    /// The connection was the gate's own so far.
    async fn become_the_user(&self, connection: &mut Talk) -> Result<(), Greeting> {
        if let Some(credentials) = self.credentials {
            let mut refused = Bytes::new();
            for words in forms_of(credentials) {
                let mut command = redis::cmd("AUTH");
                refused = match say(connection, command.arg(words)).await? {
                    Ok(()) => return Ok(()),
                    Err(error) => error_text(&error),
                };
                if !may_know_no_users(credentials, &refused) {
                    break;
                }
            }
            return Err(NoLink::WrongPassword(refused).into());
        }
        // Nobody, again; and with that everything else is as it was on the new connection.
        if say(connection, &redis::cmd("RESET")).await?.is_err() {
            // Before Redis 6.2 there is no way back.
            return Err(Greeting::NoAccount(
                "this Redis has no RESET, so INFO is asked as the client's user".to_owned(),
            ));
        }
        if self.protocol.supports_resp3() {
            let mut hello = redis::cmd("HELLO");
            entry(connection, hello.arg(3)).await?;
        }
        Ok(())
    }
}

/// What is asked on the gate's own account, or as the user where the gate has none.
struct Errands {
    peer: Option<Peer>,
    identity: Result<Identity, String>,
    evicts: Option<String>,
}

impl Errands {
    async fn run(words: &FirstWords<'_>, connection: &mut Talk) -> Result<Self, NoLink> {
        if let Some(peer) = words.previous {
            peer.end(connection).await?;
        }
        let peer = Peer::of(connection).await?;
        let (identity, evicts) = if words.subject.history.matters() {
            identify(connection, &words.subject.history).await?
        } else {
            (Err("it was not asked".to_owned()), None)
        };
        Ok(Self {
            peer,
            identity,
            evicts,
        })
    }
}

/// Who it is that the connection leads to, and whether it throws keys away when memory is short.
async fn identify(
    connection: &mut Talk,
    history: &History,
) -> Result<(Result<Identity, String>, Option<String>), NoLink> {
    let mut info = String::new();
    for section in ["server", "replication", "persistence", "memory"] {
        let mut command = redis::cmd("INFO");
        match connection.send(Purpose::Info, command.arg(section)).await {
            Ok(Value::BulkString(text)) => info.push_str(&String::from_utf8_lossy(&text)),
            Ok(Value::VerbatimString { text, .. }) => info.push_str(&text),
            Ok(Value::ServerError(error)) => {
                let text = lossy(&error_text(&error));
                return Ok((Err(text), None));
            }
            Ok(_) => {}
            Err(error) => return Err(NoLink::Failed(error.to_string())),
        }
    }
    let mut identity = Identity::read(&info).ok_or_else(|| "INFO does not say".to_owned());
    if let Ok(Identity {
        takes_no_writes: Some(why),
        ..
    }) = &mut identity
    {
        // In its own words, which say more. Writing nothing writes nothing.
        let mut write = redis::cmd("SETRANGE");
        let refusal = say(connection, write.arg(FENCE_KEY).arg(0).arg("")).await?;
        if let Some(error) = refusal.err().filter(is_passing) {
            *why = lossy(&error_text(&error));
        }
    } else if let Ok(identity) = &mut identity
        && let Some(grace) = history.grace_to_keep(identity)
    {
        let begin = grace::command(identity, Errand::Begin(grace));
        let reply = connection.send(Purpose::Setup, &begin).await;
        let reply = reply.map_err(|error| NoLink::Failed(error.to_string()))?;
        identity.grace_left = grace::left(reply);
    }
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let evicts = field("maxmemory_policy:")
        .filter(|policy| *policy != "noeviction")
        .filter(|_| field("maxmemory:").is_some_and(|bytes| bytes != "0"));
    Ok((identity, evicts.map(str::to_owned)))
}

impl Peer {
    /// What Redis knows this connection as; none before Redis 6.2, or where the user may not ask.
    async fn of(connection: &mut Talk) -> Result<Option<Self>, NoLink> {
        let mut command = redis::cmd("CLIENT");
        command.arg("INFO");
        let info = match connection.send(Purpose::Setup, &command).await {
            Ok(Value::BulkString(text)) => String::from_utf8_lossy(&text).into_owned(),
            Ok(Value::VerbatimString { text, .. }) => text,
            Ok(_) => return Ok(None),
            Err(error) => return Err(NoLink::Failed(error.to_string())),
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

    /// Ends that connection, if this server is the one that has it and the user may.
    async fn end(&self, connection: &mut Talk) -> Result<(), NoLink> {
        let mut command = redis::cmd("CLIENT");
        command
            .arg("KILL")
            .arg("ID")
            .arg(&self.id)
            .arg("ADDR")
            .arg(&self.address);
        say(connection, &command).await.map(drop)
    }
}

/// What the error of the `HELLO` means (the only command that the crate sends by itself here).
fn hello_refused(error: RedisError) -> Greeting {
    if error.kind() == ErrorKind::RESP3NotSupported {
        return Greeting::OldServer(error.to_string());
    }
    let Some(code) = error.code() else {
        return NoLink::Failed(error.to_string()).into();
    };
    let details = error.detail().unwrap_or_default();
    let text = format!("{code} {details}");
    match code {
        "NOPROTO" => Greeting::OldServer(text),
        _ if details.starts_with("unknown command") => Greeting::OldServer(text),
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => {
            NoLink::Refused(in_short(text.into())).into()
        }
        _ if details.contains("AUTH") => NoLink::Refused(text.into()).into(),
        _ => NoLink::Failed(text).into(),
    }
}

/// A command without which the link is of no use: what refuses it today will do so tomorrow,
/// unless Redis is but too busy.
async fn entry(connection: &mut Talk, command: &Cmd) -> Result<(), NoLink> {
    match say(connection, command).await? {
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

/// To a `HELLO` of nobody Redis says more, which is not meant for the client.
fn in_short(error: Bytes) -> Bytes {
    if error.starts_with(b"NOAUTH ") {
        return Bytes::from_static(NOAUTH.as_bytes());
    }
    error
}

/// Redis has as many clients as it may.
pub(super) fn is_full(error: &[u8]) -> bool {
    error.starts_with(b"ERR max number of clients")
}

pub(super) fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

/// It may help to ask again later.
fn is_passing(error: &ServerError) -> bool {
    matches!(
        error.code(),
        "LOADING" | "MASTERDOWN" | "READONLY" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN"
    )
}

/// Asks to be told of changes; the reason where Redis refuses.
async fn start_tracking(connection: &mut Talk) -> Result<Option<String>, NoLink> {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON").arg("NOLOOP");
    Ok(say(connection, &command)
        .await?
        .err()
        .map(|error| lossy(&error_text(&error))))
}

async fn say(connection: &mut Talk, command: &Cmd) -> Result<Result<(), ServerError>, NoLink> {
    match connection.send(Purpose::Setup, command).await {
        Ok(Value::ServerError(error)) => Ok(Err(error)),
        Ok(_) => Ok(Ok(())),
        Err(error) => Err(NoLink::Failed(error.to_string())),
    }
}

/// Tells the listener what Redis pushes, in the task that reads the connection.
fn push_sender(
    subject: Arc<Subject>,
    id: LinkId,
) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> {
    move |push| {
        if push.kind == PushKind::Invalidate {
            subject.metrics.pushed();
            match push.data.into_iter().next() {
                Some(Value::Array(keys)) => {
                    keys.into_iter().for_each(|key| told(&subject, id, key))
                }
                // Everything was flushed.
                _ => subject.listener.deaf(id),
            }
        }
        Ok(())
    }
}

fn told(subject: &Subject, id: LinkId, key: Value) {
    let Value::BulkString(key) = key else {
        return;
    };
    if key == FENCE_KEY || key == GRACE_KEY {
        // Other instances change them, and no lock has such a name.
        return;
    }
    let prefix = &subject.settings.key_prefix;
    if key.starts_with(prefix) {
        let key = Bytes::from(key).slice(prefix.len()..);
        subject.listener.changed(
            id,
            &LockName {
                database: subject.database,
                key,
            },
        );
    }
}
