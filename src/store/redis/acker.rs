//! Waits until replicas acknowledge what a link granted. `WAIT` blocks its connection, so it has one of its own, beside
//! each link that needs it, as `upstream.user` or as the link's user.
//!
//! - **Group commit**: one `WAIT` serves all grants that Redis answered before it was sent. The next ones gather
//!   meanwhile.
//! - **Each group begins with a write**, because `WAIT` returns when replicas have the latest write of its own
//!   connection. Since Redis 7.2 only a command that Redis propagates counts as one: without a write, `WAIT` returns at
//!   once, whatever the replicas have. The write comes after the grants in the history of the same server, so a replica
//!   that has it has the grants.
//! - **The connection leads to the server of the link**, by the server's `run_id`: after a failover another server
//!   may answer at the same address, and its replicas know nothing of the grants. Where it does, the link is given up with
//!   the next request that wants replicas.
//!
//! A connection that breaks acknowledges nothing.
//!
//! **While replicas are missing**, or Redis refuses, or the connection cannot be opened, the acker remembers it ([`Lack`])
//! and refuses requests that want as many replicas, without a word to Redis, for a pause that doubles up to
//! [`LONGEST_REPLICAS_PAUSE`]. After the pause one request asks again, before its lock is taken. So neither locks nor
//! Redis pay for requests that cannot be granted.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, RedisConnectionInfo, ServerError, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{timeout, timeout_at},
};

use super::{
    credentials::{Login, log_in},
    data_loss::Identity,
    handshake::{NoLink, Subject, dial, is_full, lossy},
    scripts::{ACK_KEY, error_text, is_passing},
};
use crate::{
    clock,
    limits::{ACKNOWLEDGED_TOGETHER, LONGEST_REPLICAS_PAUSE},
    lock::{Deadline, Missing, Outcome, Time},
    store::task::Task,
    telemetry::metrics::upstream::Purpose,
};

/// How long the key of the write lives, in milliseconds.
pub(super) const ACK_KEY_LIVES_MS: u64 = 60_000;

/// The first pause after a group that too few replicas acknowledged; doubled with each one that follows.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// The number of replicas that acknowledged a group, or why none is known to have.
type Verdict = Result<i64, Failure>;

#[derive(Debug, Clone)]
enum Failure {
    /// The server does not tell, and never will: its own error.
    Refused(Bytes),
    /// The server or the connection fails for now: the reason.
    Failed(String),
    /// No connection can be opened for now: the reason.
    NotOpened(String),
    /// The server does not answer at all.
    Silent,
    /// The address leads to another server.
    OtherServer,
}

/// The reason why a grant does not count.
#[derive(Debug)]
pub(super) struct Unacknowledged {
    replicas: u32,
    within: Duration,
    failure: Option<Failure>,
    /// The number of replicas that grants can count on for now, and how long.
    have: u32,
    pause: Duration,
}

impl Unacknowledged {
    /// Returns the outcome of a request that was `done`, or changed nothing.
    pub(super) fn outcome(&self, done: Option<(Deadline, bool)>) -> Outcome {
        let never = matches!(self.failure, Some(Failure::Refused(_)));
        let pause_ms = u64::try_from(self.pause.as_millis()).unwrap_or(u64::MAX);
        Outcome::Unacknowledged {
            missing: Missing {
                error: self.error(),
                have: self.have,
                again_ms: (!never).then_some(pause_ms.max(1)),
            },
            done,
        }
    }

    /// Returns whether the link leads to a server that new connections do not reach.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self.failure, Some(Failure::OtherServer))
    }

    /// Returns the error for the client, in one line.
    fn error(&self) -> Bytes {
        let (replicas, within) = (self.replicas, self.within.as_millis());
        let reason = match &self.failure {
            None => format!("not acknowledged by {replicas} replicas within {within}ms"),
            Some(Failure::Refused(error)) => format!(
                "Redis does not acknowledge (SET lockgate:ack, WAIT, INFO): {}",
                lossy(error)
            ),
            Some(Failure::Failed(reason) | Failure::NotOpened(reason)) => {
                format!("not acknowledged by {replicas} replicas: {reason}")
            }
            Some(Failure::Silent) => {
                let text = "UPSTREAM Redis does not answer which replicas have the lock";
                return Bytes::from_static(text.as_bytes());
            }
            Some(Failure::OtherServer) => format!(
                "not acknowledged by {replicas} replicas: the address leads to another Redis by now"
            ),
        };
        let text = format!("NOREPLICAS {reason}");
        Bytes::from(text.replace(['\r', '\n'], " "))
    }
}

/// One grant that waits for its acknowledgement.
struct Member {
    replicas: u32,
    tell: oneshot::Sender<Verdict>,
}

/// The acknowledgements of one link. It connects when the first one is asked for.
pub(super) struct Acker {
    subject: Arc<Subject>,
    /// The server that the link leads to.
    run_id: OnceLock<String>,
    members: OnceLock<(mpsc::Sender<Member>, Task)>,
    lack: Arc<Mutex<Option<Lack>>>,
}

/// The replicas that are missing, by the latest group.
#[derive(Debug, Clone)]
struct Lack {
    /// The number of replicas that are there.
    have: u32,
    failure: Option<Failure>,
    /// The pause before the next group that wants more.
    pause: Duration,
    until: Time,
}

impl Lack {
    /// Returns what this verdict on a group shows that wanted `most` replicas.
    fn after(before: Option<Self>, most: u32, verdict: &Verdict) -> Option<Self> {
        let (have, failure) = match verdict {
            Ok(number) => (u32::try_from(*number).unwrap_or(0), None),
            // The next group opens another connection.
            Err(Failure::Failed(_)) => return None,
            Err(failure) => (0, Some(failure.clone())),
        };
        if have >= most {
            return before.filter(|before| before.have >= have);
        }
        let before = before.filter(|before| before.have == have);
        let longer = |before: Self| (before.pause * 2).min(LONGEST_REPLICAS_PAUSE);
        let pause = before.map_or(SHORTEST_PAUSE, longer);
        Some(Self {
            have,
            failure,
            pause,
            until: clock::now().plus(pause),
        })
    }
}

impl Acker {
    /// Creates the acker of a link to this server. None: the server did not say who it is.
    pub(super) fn new(subject: Arc<Subject>, identity: Option<&Identity>) -> Self {
        let run_id = OnceLock::new();
        if let Some(identity) = identity {
            run_id.get_or_init(|| identity.run_id.clone());
        }
        Self {
            subject,
            run_id,
            members: OnceLock::new(),
            lack: Arc::default(),
        }
    }

    /// Reports that an acquisition of the lock with this key waits for replicas.
    pub(super) fn taken(&self, key: &[u8]) {
        if let Some(name) = self.subject.lock_of(key) {
            self.subject.listener.taken(&name);
        }
    }

    /// Returns whether fewer replicas than this number acknowledged the latest group.
    pub(super) fn lacks(&self, replicas: u32) -> bool {
        let lack = self.lack.lock().unwrap_or_else(PoisonError::into_inner);
        lack.as_ref().is_some_and(|lack| lack.have < replicas)
    }

    /// Returns what is known to be missing of this number of replicas. None: a group has to show it, which no other caller
    /// asks for meanwhile.
    fn missing(&self, replicas: u32) -> Option<Unacknowledged> {
        let mut lack = self.lack.lock().unwrap_or_else(PoisonError::into_inner);
        let lack = lack.as_mut().filter(|lack| lack.have < replicas)?;
        let (now, within) = (clock::now(), self.subject.settings.replicas_timeout);
        if lack.until <= now {
            lack.until = now.plus(within);
            return None;
        }
        Some(Unacknowledged {
            replicas,
            within,
            failure: lack.failure.clone(),
            have: lack.have,
            pause: Duration::from_micros(lack.until.micros_since(now)),
        })
    }

    /// Waits until this number of replicas acknowledged everything that the link's server answered before this call.
    /// `info` asks the link's server who it is, if that is not known.
    pub(super) async fn acknowledge(
        &self,
        replicas: u32,
        info: impl Future<Output = Option<Value>>,
    ) -> Result<(), Unacknowledged> {
        if let Some(missing) = self.missing(replicas) {
            self.subject.metrics.unacknowledged();
            return Err(missing);
        }
        let begun = clock::now();
        let verdict = match self.run_id(info).await {
            Ok(run_id) => self.ask(replicas, run_id).await,
            Err(failure) => Err(failure),
        };
        let metrics = &self.subject.metrics;
        let took = clock::now().micros_since(begun);
        let failure = match verdict {
            Ok(number) if number >= i64::from(replicas) => {
                metrics.acknowledged(took);
                return Ok(());
            }
            Ok(_) => None,
            Err(failure) => Some(failure),
        };
        metrics.unacknowledged();
        let lack = self.lack.lock().unwrap_or_else(PoisonError::into_inner);
        let lack = lack.as_ref().filter(|lack| lack.have < replicas);
        Err(Unacknowledged {
            replicas,
            within: self.subject.settings.replicas_timeout,
            failure,
            have: lack.map_or(0, |lack| lack.have),
            pause: lack.map_or(SHORTEST_PAUSE, |lack| {
                Duration::from_micros(lack.until.micros_since(clock::now()))
            }),
        })
    }

    async fn run_id(&self, info: impl Future<Output = Option<Value>>) -> Result<&str, Failure> {
        if let Some(run_id) = self.run_id.get() {
            return Ok(run_id);
        }
        let run_id = run_id_of(info.await)?;
        Ok(self.run_id.get_or_init(|| run_id))
    }

    async fn ask(&self, replicas: u32, run_id: &str) -> Verdict {
        let (members, _) = self.members.get_or_init(|| {
            let (members, asked) = mpsc::channel(ACKNOWLEDGED_TOGETHER);
            let connection = Connection {
                subject: Arc::clone(&self.subject),
                run_id: run_id.to_owned(),
                as_user: false,
                open: None,
                lack: Arc::clone(&self.lack),
            };
            (members, Task::spawn(connection.serve(asked)))
        });
        let (tell, told) = oneshot::channel();
        // The task lives as long as `self`.
        let _ = members.send(Member { replicas, tell }).await;
        let gone = |_| Err(Failure::Failed("the connection broke".to_owned()));
        told.await.unwrap_or_else(gone)
    }
}

/// The connection for acknowledgements.
struct Connection {
    subject: Arc<Subject>,
    /// The server that the link leads to.
    run_id: String,
    /// Redis refused lockgate's own account: the user's counts, until Redis refuses that, too.
    as_user: bool,
    open: Option<(MultiplexedConnection, Task)>,
    lack: Arc<Mutex<Option<Lack>>>,
}

impl Connection {
    async fn serve(mut self, mut asked: mpsc::Receiver<Member>) {
        let mut group = Vec::new();
        while asked.recv_many(&mut group, ACKNOWLEDGED_TOGETHER).await > 0 {
            let most = group.iter().map(|member| member.replicas).max();
            let most = most.unwrap_or(0);
            let mut verdict = self.acknowledged(most).await;
            if self.subject.settings.own.is_some() && matches!(verdict, Err(Failure::Refused(_))) {
                self.open = None;
                self.as_user = !self.as_user;
                if self.as_user {
                    verdict = self.acknowledged(most).await;
                }
            }
            if matches!(
                &verdict,
                Err(Failure::Failed(_) | Failure::Silent | Failure::OtherServer)
            ) {
                self.open = None;
            }
            {
                let mut lack = self.lack.lock().unwrap_or_else(PoisonError::into_inner);
                *lack = Lack::after(lack.take(), most, &verdict);
            }
            for member in group.drain(..) {
                // Its caller may be gone.
                let _ = member.tell.send(verdict.clone());
            }
        }
    }

    /// Returns the number of replicas that have every write of the server up to now.
    async fn acknowledged(&mut self, replicas: u32) -> Verdict {
        if self
            .open
            .as_ref()
            .is_none_or(|(_, driver)| driver.is_finished())
        {
            let opened = self.connect().await.map_err(|failure| match failure {
                Failure::Failed(reason) => Failure::NotOpened(reason),
                other => other,
            });
            self.open = Some(opened?);
        }
        let Some((connection, _)) = &self.open else {
            return Err(Failure::Failed("there is no connection".to_owned()));
        };
        let settings = &self.subject.settings;
        let within = settings.replicas_timeout;
        let (mut write, mut wait) = (redis::cmd("SET"), redis::cmd("WAIT"));
        write.arg(ACK_KEY).arg(1).arg("PX").arg(ACK_KEY_LIVES_MS);
        wait.arg(replicas)
            .arg(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        self.subject.metrics.sent(Purpose::Acknowledge);
        // Sent at once, in this order.
        let replies = async { tokio::join!(say(connection, &write), say(connection, &wait)) };
        let (written, number) = timeout(within + settings.timeout, replies)
            .await
            .map_err(|_| Failure::Silent)?;
        written?;
        match number? {
            Value::Int(number) => Ok(number),
            _ => Err(Failure::Failed("WAIT got no number".to_owned())),
        }
    }

    /// Connects to the server of the link.
    async fn connect(&self) -> Result<(MultiplexedConnection, Task), Failure> {
        let Subject { settings, user, .. } = &*self.subject;
        let deadline = settings.connect_deadline();
        let known = match &settings.own {
            Some(own) if !self.as_user => vec![own.clone()],
            _ => user.credentials().to_vec(),
        };
        let opened = async {
            let mut stream = dial(settings, deadline).await.map_err(failure)?;
            let mut refusal = None;
            for credentials in &known {
                match log_in(&mut stream, credentials).await.map_err(failure)? {
                    Login::Done => {
                        refusal = None;
                        break;
                    }
                    Login::Refused(text) => refusal = Some(Failure::Refused(text)),
                }
            }
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None);
            let info = RedisConnectionInfo::default()
                .set_protocol(ProtocolVersion::RESP2)
                .set_skip_set_lib_name();
            let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
            let failed = |error: redis::RedisError| Failure::Failed(error.to_string());
            let (connection, driver) = opened.map_err(failed)?;
            let driver = Task::spawn(driver);
            self.subject.metrics.sent(Purpose::Info);
            let info = say(&connection, &info_command()).await?;
            match run_id_of(Some(info))? == self.run_id {
                true => Ok((connection, driver)),
                false => Err(Failure::OtherServer),
            }
        };
        let late = |_| Failure::Failed("not connected in time".to_owned());
        timeout_at(deadline, opened).await.map_err(late)?
    }
}

/// Returns the command that asks a server who it is.
pub(super) fn info_command() -> Cmd {
    let mut command = redis::cmd("INFO");
    command.arg("server");
    command
}

/// Returns the server's `run_id`, from its reply to [`info_command`].
fn run_id_of(reply: Option<Value>) -> Result<String, Failure> {
    let text = match reply {
        Some(Value::BulkString(text)) => lossy(&text),
        Some(Value::VerbatimString { text, .. }) => text,
        Some(Value::ServerError(error)) => return Err(Failure::Refused(error_text(&error))),
        _ => return Err(Failure::Failed("the connection broke".to_owned())),
    };
    let unknown = || Failure::Refused(Bytes::from_static(b"INFO does not say which server it is"));
    Identity::read(&text)
        .map(|it| it.run_id)
        .ok_or_else(unknown)
}

async fn say(connection: &MultiplexedConnection, command: &Cmd) -> Result<Value, Failure> {
    match connection.clone().send_packed_command(command).await {
        Ok(Value::ServerError(error)) if passes(&error) => {
            Err(Failure::Failed(lossy(&error_text(&error))))
        }
        Ok(Value::ServerError(error)) => Err(Failure::Refused(error_text(&error))),
        Ok(value) => Ok(value),
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}

/// Returns whether a later retry may help: Redis may have room for clients and memory by then. A master that becomes a
/// replica ends a `WAIT` by `UNBLOCKED`.
fn passes(error: &ServerError) -> bool {
    is_passing(error) || matches!(error.code(), "OOM" | "UNBLOCKED") || is_full(&error_text(error))
}

fn failure(no_link: NoLink) -> Failure {
    match no_link {
        NoLink::Failed(reason) => Failure::Failed(reason),
        NoLink::Refused(text) | NoLink::WrongPassword(text) => Failure::Refused(text),
    }
}
