//! Opens a connection to Redis: the socket, and the first words on it.
//!
//! - **The socket is of our own making**, for `TCP_NODELAY` and `SO_LINGER 0`: what is given up on
//!   must not execute later, so closing throws away what the kernel has not sent yet.
//! - **A new connection ends the one before it** by `CLIENT KILL`, before its first question: what
//!   the network, or Redis itself, still has of that one does not execute after what is asked on
//!   this one. A user who may not do so loses that and no more.
//! - **Who it is** is asked of every new connection, by `INFO`, since it may have lost data.
//! - **Redis tells of changes** by `CLIENT TRACKING ON NOLOOP`, which needs RESP3. Where Redis
//!   refuses either, the connection works without.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisError, ServerError, Value, aio::MultiplexedConnection,
};
use tokio::{net::TcpStream, time::timeout};

use super::{
    history::{History, Identity},
    scripts::{FENCE_KEY, error_text},
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

/// Whose locks a connection is about, and whom it tells of changes.
pub(super) struct Subject {
    pub(super) settings: Arc<RedisSettings>,
    pub(super) database: u32,
    pub(super) listener: Arc<dyn Listener>,
    pub(super) history: Arc<History>,
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
    let opened = match greet(subject, id, ProtocolVersion::RESP3, previous).await {
        Err(Greeting::OldServer(reason)) => greet(subject, id, ProtocolVersion::RESP2, previous)
            .await
            .map(|opened| Opened {
                mute: Some(reason),
                ..opened
            }),
        other => other,
    };
    opened.map_err(|greeting| match greeting {
        Greeting::NoLink(no_link) => no_link,
        Greeting::OldServer(reason) => NoLink::Failed(reason),
    })
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

async fn greet(
    subject: &Arc<Subject>,
    id: LinkId,
    protocol: ProtocolVersion,
    previous: Option<&Peer>,
) -> Result<Opened, Greeting> {
    let stream = dial(&subject.settings).await?;
    let introduction = introduce(subject, id, protocol, previous, stream);
    match timeout(subject.settings.connect_timeout, introduction).await {
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
    previous: Option<&Peer>,
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
    if let Some(peer) = previous {
        peer.end(&mut connection).await?;
    }
    let peer = Peer::of(&mut connection).await?;
    let (identity, evicts) = if subject.history.matters() {
        identify(&mut connection).await?
    } else {
        (Err("it was not asked".to_owned()), None)
    };
    Ok(Opened {
        connection,
        driver,
        mute,
        peer,
        identity,
        evicts,
    })
}

/// Who it is that the connection leads to, and whether it throws keys away when memory is short.
async fn identify(
    connection: &mut MultiplexedConnection,
) -> Result<(Result<Identity, String>, Option<String>), NoLink> {
    let mut info = String::new();
    for section in ["server", "replication", "persistence", "memory"] {
        let mut command = redis::cmd("INFO");
        match connection.send_packed_command(command.arg(section)).await {
            Ok(Value::BulkString(text)) => info.push_str(&String::from_utf8_lossy(&text)),
            Ok(Value::VerbatimString { text, .. }) => info.push_str(&text),
            Ok(Value::ServerError(error)) => {
                let text = String::from_utf8_lossy(&error_text(&error)).into_owned();
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
            *why = String::from_utf8_lossy(&error_text(&error)).into_owned();
        }
    }
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let evicts = field("maxmemory_policy:")
        .filter(|policy| *policy != "noeviction")
        .filter(|_| field("maxmemory:").is_some_and(|bytes| bytes != "0"));
    Ok((identity, evicts.map(str::to_owned)))
}

impl Peer {
    /// What Redis knows this connection as; none before Redis 6.2, or where the user may not ask.
    async fn of(connection: &mut MultiplexedConnection) -> Result<Option<Self>, NoLink> {
        let mut command = redis::cmd("CLIENT");
        command.arg("INFO");
        let info = match connection.send_packed_command(&command).await {
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
    async fn end(&self, connection: &mut MultiplexedConnection) -> Result<(), NoLink> {
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
            let full = text.starts_with(b"ERR max number of clients");
            Err(if full || is_passing(&error) {
                NoLink::Failed(String::from_utf8_lossy(&text).into_owned())
            } else {
                NoLink::Refused(text)
            })
        }
    }
}

/// It may help to ask again later.
fn is_passing(error: &ServerError) -> bool {
    matches!(
        error.code(),
        "LOADING" | "MASTERDOWN" | "READONLY" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN"
    )
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
    if key == FENCE_KEY {
        // Every fence of another gate changes it, and no lock has that name.
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
