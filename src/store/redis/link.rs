//! One connection to Redis, from its opening to its end: shared by all questions of one user about
//! the locks of one database.
//!
//! - **The socket is of our own making**, for `TCP_NODELAY` and `SO_LINGER 0`: what is given up on
//!   must not execute later, so closing throws away what the kernel has not sent yet.
//! - **Redis tells of changes** by `CLIENT TRACKING ON NOLOOP`, which needs RESP3. Where Redis
//!   refuses either, the link works without, and says so by [`Link::tells`].
//! - **Whether it lives** is not asked of each question (a timer each), but of all together:
//!   [`Link::watch`] looks some times a second whether questions wait and none was answered, and
//!   `PING`s when there were none for long. It counts its own looks, not time, so that a pause of
//!   this process is not mistaken for a silence of Redis.

use std::{
    future::{Future, pending},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisError, ServerError, Value, aio::MultiplexedConnection,
};
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    scripts::{Reading, Request, error_text},
    settings::RedisSettings,
};
use crate::{
    lock::LinkId,
    store::{Listener, LockName, task::Task},
};

/// Requests on their way from the questions to the task that writes them.
const QUEUED_REQUESTS: usize = 1_024;

/// Bytes gathered before they are written, so that many requests travel as one.
const WRITE_BYTES: usize = 64 * 1024;

/// How often, within the time that it has to answer, a link is looked at.
const LOOKS: u32 = 8;

/// Whose locks a link is about, and whom it tells of changes.
pub(super) struct Subject {
    pub(super) settings: Arc<RedisSettings>,
    pub(super) database: u32,
    pub(super) listener: Arc<dyn Listener>,
}

/// Why there is no link.
#[derive(Debug)]
pub(super) enum NoLink {
    /// Redis does not let us in: its own error. Trying again will not help.
    Refused(Bytes),
    /// Not now: the reason.
    Failed(String),
}

/// A connection, and what is known of its life.
pub(super) struct Link {
    /// Its number.
    pub(super) id: LinkId,
    /// Why Redis does not tell of changes on it; none where it does.
    pub(super) mute: Option<String>,
    connection: MultiplexedConnection,
    /// Requests sent, and requests nobody waits for any more (answered or dropped).
    asked: AtomicU64,
    settled: AtomicU64,
    /// Answers that came.
    answered: AtomicU64,
    /// Somebody found out that it is of no use any more.
    useless: Notify,
    /// A question was dropped before its answer: a ping takes its place, or a Redis that hangs
    /// would go unnoticed when all lose patience.
    abandoned: Notify,
}

impl Link {
    /// Opens a connection, and returns it with the task that reads and writes it.
    ///
    /// # Errors
    /// See [`NoLink`].
    pub(super) async fn open(subject: &Arc<Subject>, id: LinkId) -> Result<(Self, Task), NoLink> {
        let opened = match greet(subject, id, ProtocolVersion::RESP3).await {
            Err(Greeting::OldServer(reason)) => greet(subject, id, ProtocolVersion::RESP2)
                .await
                .map(|opened| (opened, Some(reason))),
            other => other.map(|opened| (opened, None)),
        };
        let ((connection, driver, mute), old_server) =
            opened.map_err(|greeting| match greeting {
                Greeting::NoLink(no_link) => no_link,
                Greeting::OldServer(reason) => NoLink::Failed(reason),
            })?;
        let link = Self {
            id,
            mute: old_server.or(mute),
            connection,
            asked: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            useless: Notify::new(),
            abandoned: Notify::new(),
        };
        Ok((link, driver))
    }

    /// Redis tells on this connection when somebody else changes a key that was read on it.
    pub(super) fn tells(&self) -> bool {
        self.mute.is_none()
    }

    /// Sends a question; none where the connection broke before the answer.
    pub(super) async fn ask(&self, request: &Request) -> Option<Reading> {
        match request.read(self.send(request.by_hash()).await?) {
            Reading::Unseen => Some(request.read(self.send(&request.in_full()).await?)),
            done => Some(done),
        }
    }

    /// Sends a command; none where the connection broke before the answer.
    pub(super) async fn send(&self, command: &Cmd) -> Option<Value> {
        let mut sent = Sent::new(self);
        let reply = self.connection.clone().send_packed_command(command).await;
        sent.answered = reply.is_ok();
        reply.ok()
    }

    /// It is of no use any more: [`watch`](Self::watch) returns.
    pub(super) fn give_up(&self) {
        self.useless.notify_one();
    }

    /// Returns when the connection broke or does not answer any more, with the reason. Calls
    /// `settled` once, when it has lived for `settled_after`.
    pub(super) async fn watch(
        &self,
        driver: &mut Task,
        settings: &RedisSettings,
        settled_after: Duration,
        mut settled: impl FnMut(),
    ) -> &'static str {
        let look = (settings.timeout.min(settings.ping) / LOOKS).max(Duration::from_millis(1));
        let mut looks = interval(look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ping: Option<Pin<Box<dyn Future<Output = Option<Value>> + Send + '_>>> = None;
        let (mut seen, mut unanswered, mut silent, mut lived) =
            (0, Duration::ZERO, Duration::ZERO, Duration::ZERO);
        loop {
            let pong = async {
                match ping.as_mut() {
                    Some(ping) => ping.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                _ = &mut *driver => return "it was closed",
                () = self.useless.notified() => return "it was given up",
                () = self.abandoned.notified() => silent = settings.ping,
                _ = pong => ping = None,
                _ = looks.tick() => {
                    let answered = self.answered.load(Ordering::Relaxed);
                    let waiting = self.asked.load(Ordering::Relaxed) > self.settled.load(Ordering::Relaxed);
                    let progress = answered != seen;
                    seen = answered;
                    unanswered = if waiting && !progress { unanswered + look } else { Duration::ZERO };
                    silent = if waiting || progress { Duration::ZERO } else { silent + look };
                    if lived < settled_after && lived + look >= settled_after {
                        settled();
                    }
                    lived += look;
                }
            }
            // One look more, since a question may have come just before the first.
            if unanswered > settings.timeout {
                return "Redis does not answer";
            }
            if silent >= settings.ping && ping.is_none() {
                silent = Duration::ZERO;
                ping = Some(Box::pin(async {
                    let command = redis::cmd("PING");
                    self.send(&command).await
                }));
            }
        }
    }
}

/// A request that is sent, for the books.
struct Sent<'a> {
    link: &'a Link,
    answered: bool,
}

impl<'a> Sent<'a> {
    fn new(link: &'a Link) -> Self {
        link.asked.fetch_add(1, Ordering::Relaxed);
        Self {
            link,
            answered: false,
        }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.answered {
            self.link.answered.fetch_add(1, Ordering::Relaxed);
        } else {
            self.link.abandoned.notify_one();
        }
        self.link.settled.fetch_add(1, Ordering::Relaxed);
    }
}

/// What came of the first words.
enum Greeting {
    NoLink(NoLink),
    /// Redis does not speak RESP3: the reason.
    OldServer(String),
}

impl From<NoLink> for Greeting {
    fn from(no_link: NoLink) -> Self {
        Self::NoLink(no_link)
    }
}

type Opened = (MultiplexedConnection, Task, Option<String>);

async fn greet(
    subject: &Arc<Subject>,
    id: LinkId,
    protocol: ProtocolVersion,
) -> Result<Opened, Greeting> {
    let stream = dial(&subject.settings).await?;
    match timeout(
        subject.settings.connect_timeout,
        introduce(subject, id, protocol, stream),
    )
    .await
    {
        Ok(result) => result,
        Err(_) => Err(NoLink::Failed("Redis does not answer to the first words".into()).into()),
    }
}

/// Opens a stream to the host, within the time to connect.
async fn dial(settings: &RedisSettings) -> Result<TcpStream, NoLink> {
    let reason = match timeout(settings.connect_timeout, reach(settings)).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "not reached in time".to_owned(),
    };
    Err(NoLink::Failed(format!(
        "{}:{}: {reason}",
        settings.host, settings.port
    )))
}

/// Opens a stream to the first address of the host that takes it. A silent address has no more
/// than its share of the time.
async fn reach(settings: &RedisSettings) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> =
        tokio::net::lookup_host((settings.host.as_str(), settings.port))
            .await?
            .collect();
    let share =
        settings.connect_timeout / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut why = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                stream.set_nodelay(true)?;
                stream.set_zero_linger()?;
                return Ok(stream);
            }
            Ok(Err(error)) => why = error,
            Err(late) => why = late.into(),
        }
    }
    Err(why)
}

/// The first words on a stream: protocol, credentials, database, tracking.
async fn introduce(
    subject: &Arc<Subject>,
    id: LinkId,
    protocol: ProtocolVersion,
    stream: TcpStream,
) -> Result<Opened, Greeting> {
    let settings = &subject.settings;
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUED_REQUESTS)
        .set_write_backpressure_boundary(WRITE_BYTES);
    let mut info = RedisConnectionInfo::default()
        .set_protocol(protocol)
        .set_skip_set_lib_name();
    let speaks_resp3 = protocol.supports_resp3();
    if speaks_resp3 {
        config = config.set_push_sender(push_sender(Arc::clone(subject), id));
        if let Some(password) = &settings.password {
            info = info.set_password(password);
            if let Some(username) = &settings.username {
                info = info.set_username(username);
            }
        }
    }
    let (mut connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config)
        .await
        .map_err(hello_refused)?;
    let driver = Task::spawn(driver);
    if !speaks_resp3 {
        authenticate(&mut connection, settings).await?;
    }
    if subject.database != 0 {
        let mut select = redis::cmd("SELECT");
        entry(&mut connection, select.arg(subject.database)).await?;
    }
    let mute = if speaks_resp3 {
        start_tracking(&mut connection).await?
    } else {
        None
    };
    Ok((connection, driver, mute))
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
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => NoLink::Refused(text.into()).into(),
        _ if details.contains("AUTH") => NoLink::Refused(text.into()).into(),
        _ => NoLink::Failed(text).into(),
    }
}

async fn authenticate(
    connection: &mut MultiplexedConnection,
    settings: &RedisSettings,
) -> Result<(), NoLink> {
    let Some(password) = &settings.password else {
        return Ok(());
    };
    let mut by_password = redis::cmd("AUTH");
    by_password.arg(password);
    let Some(username) = &settings.username else {
        return entry(connection, &by_password).await;
    };
    let mut by_name = redis::cmd("AUTH");
    by_name.arg(username).arg(password);
    match entry(connection, &by_name).await {
        // A server that has no users yet.
        Err(NoLink::Refused(text)) if text.starts_with(b"ERR wrong number of arguments") => {
            entry(connection, &by_password).await
        }
        other => other,
    }
}

/// A command without which the link is of no use: what refuses it today will do so tomorrow,
/// unless Redis is but too busy.
async fn entry(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<(), NoLink> {
    match say(connection, command).await? {
        Ok(()) => Ok(()),
        Err(error) => {
            let text = error_text(&error);
            let passing = matches!(
                error.code(),
                "LOADING" | "MASTERDOWN" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN"
            ) || text.starts_with(b"ERR max number of clients");
            Err(if passing {
                NoLink::Failed(String::from_utf8_lossy(&text).into_owned())
            } else {
                NoLink::Refused(text)
            })
        }
    }
}

/// Asks to be told of changes; the reason where Redis refuses.
async fn start_tracking(connection: &mut MultiplexedConnection) -> Result<Option<String>, NoLink> {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON").arg("NOLOOP");
    Ok(say(connection, &command)
        .await?
        .err()
        .map(|error| String::from_utf8_lossy(&error_text(&error)).into_owned()))
}

async fn say(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Result<(), ServerError>, NoLink> {
    match connection.send_packed_command(command).await {
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
