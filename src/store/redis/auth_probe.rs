//! Decides on whose behalf a client may lock. Redis says whether the client's credentials are right, or whether
//! it allows anything without credentials.
//!
//! The probe has a connection of its own for this, which carries nothing else. Redis's reply to `AUTH` on the
//! client's own connection does not count, since that reply can be miscounted or forged. A shared connection
//! does not show whether Redis requires a password by now, because Redis checks that only at the start of a
//! connection. `RESET` makes the probe's connection new before each check of an anonymous client, and removes
//! the last user from it.
//!
//! Each verdict counts for [`VERIFIED_FOR_MS`], except a rejection of credentials, which is not kept. Clients
//! that make the same claim at the same time share one request. One round trip carries few claims
//! ([`TOGETHER`]), and those of different users first ([`Claims`]), so that false logins in the name of one
//! user do not delay another user's. A client has one claim at a time.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    claims::{Asker, Claim, Claims},
    credentials::{self, Line, Login},
    handshake::{NoLink, dial, lossy},
    settings::{LONGEST_PAUSE, RedisSettings},
};
use crate::{
    auth::identity::{Credentials, Users, VERIFIED_FOR_MS},
    clock,
    lock::Time,
    store::{Admission, Later, task::Task},
    telemetry::metrics::upstream::{Purpose, UpstreamMetrics},
    transport::stream::Stream,
};

/// How long an idle connection stays open.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// Most clients queued at the probe; further clients wait to join the queue.
const QUEUED: usize = 1_024;

/// Most claims in one round trip. Redis closes an unauthenticated connection with more than 1 KiB of pending
/// replies, and a rejection has up to a hundred bytes.
const TOGETHER: usize = 8;

/// `RESET` makes the connection new, and `PING` tests it.
const RESET: &[u8] = b"*1\r\n$5\r\nRESET\r\n";
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The probe: verifies the claims of clients.
pub(super) struct AuthProbe {
    reconnector: Arc<Prober>,
    asked: OnceLock<(mpsc::Sender<(Claim, Asker)>, Task)>,
}

struct Prober {
    settings: Arc<RedisSettings>,
    users: Arc<Users>,
    metrics: Arc<UpstreamMetrics>,
    /// The latest verdict on anonymous clients, and when it came.
    anonymous: Mutex<Option<(Time, Admission)>>,
    /// Why Redis does not reply.
    trouble: Mutex<Option<String>>,
}

/// The reasons for having no reply.
enum NoAnswer {
    /// The connection cannot be used.
    Broken(String),
    /// No reply came in time.
    Late(String),
}

impl AuthProbe {
    /// Creates a probe. It opens no connection before the first claim.
    pub(super) fn new(
        settings: Arc<RedisSettings>,
        users: Arc<Users>,
        metrics: Arc<UpstreamMetrics>,
    ) -> Self {
        Self {
            reconnector: Arc::new(Prober {
                settings,
                users,
                metrics,
                anonymous: Mutex::default(),
                trouble: Mutex::default(),
            }),
            asked: OnceLock::new(),
        }
    }

    /// Verifies a claim, as [`Store::admits`](crate::store::Store::admits).
    pub(super) fn ask(&self, claim: Claim, patience: Option<Duration>) -> Later<Admission> {
        let reconnector = Arc::clone(&self.reconnector);
        if let Some(known) = reconnector.known(&claim) {
            return Box::pin(std::future::ready(known));
        }
        let (asked, _) = self.asked.get_or_init(|| {
            let (asked, askers) = mpsc::channel(QUEUED);
            (asked, Task::spawn(Arc::clone(&reconnector).keep(askers)))
        });
        let asked = asked.clone();
        Box::pin(async move {
            let answer = async {
                let (asker, answer) = oneshot::channel();
                // The task lives as long as the store.
                let _ = asked.send((claim, asker)).await;
                answer.await.unwrap_or(Admission::Unanswered(None))
            };
            match patience {
                None => answer.await,
                Some(patience) => match timeout(patience, answer).await {
                    Ok(admission) => admission,
                    Err(_) => Admission::Unanswered(reconnector.trouble()),
                },
            }
        })
    }
}

impl Prober {
    async fn keep(self: Arc<Self>, mut askers: mpsc::Receiver<(Claim, Asker)>) {
        let mut stream = None;
        let mut route = self.settings.endpoint.route();
        let mut waiting = Claims::default();
        loop {
            if waiting.count() == 0 {
                let first = match timeout(OPEN_FOR, askers.recv()).await {
                    Ok(first) => first,
                    Err(_) => {
                        stream = None;
                        askers.recv().await
                    }
                };
                let Some((claim, asker)) = first else { return };
                waiting.add(claim, asker);
            }
            while waiting.count() < QUEUED
                && let Ok((claim, asker)) = askers.try_recv()
            {
                waiting.add(claim, asker);
            }
            let claims = self.of_one_round_trip(&mut waiting);
            if claims.is_empty() {
                continue;
            }
            if route.is_left() {
                stream = None;
                route = self.settings.endpoint.route();
            }
            let was_open = stream.is_some();
            match self.status(&mut stream, &claims).await {
                Ok(admissions) => {
                    self.set_trouble(None);
                    for (claim, admission) in claims.iter().zip(&admissions) {
                        waiting.answer(claim, admission);
                    }
                    continue;
                }
                // Redis may have closed an old connection since.
                Err(NoAnswer::Broken(_)) if was_open => {}
                Err(NoAnswer::Broken(reason) | NoAnswer::Late(reason)) => {
                    self.set_trouble(Some(reason));
                    sleep(LONGEST_PAUSE).await;
                }
            }
            claims.into_iter().for_each(|claim| waiting.wait(claim));
        }
    }

    /// Takes the claims for the next round trip.
    fn of_one_round_trip(&self, waiting: &mut Claims) -> Vec<Claim> {
        let mut claims = Vec::new();
        while claims.len() < TOGETHER
            && let Some(claim) = waiting.next()
        {
            // The reply to an earlier request may settle this claim, too.
            match self.known(&claim) {
                Some(admission) => waiting.answer(&claim, &admission),
                None => claims.push(claim),
            }
        }
        // Without `RESET` the connection is new only before the first `AUTH`.
        claims.sort_by_key(Option::is_some);
        claims
    }

    /// Returns the verdict that still counts.
    fn known(&self, claim: &Claim) -> Option<Admission> {
        let now = clock::now();
        match claim {
            Some(credentials) => {
                let user = self.users.user_of(credentials, now)?;
                Some(Admission::Welcome(user))
            }
            None => {
                let latest = lock(&self.anonymous);
                let (at, admission) = latest.as_ref()?;
                (now < at.plus_millis(VERIFIED_FOR_MS)).then(|| admission.clone())
            }
        }
    }

    /// Sends these claims to Redis in one round trip. The verdicts are in the same order.
    async fn status(
        &self,
        stream: &mut Option<BufReader<Stream>>,
        claims: &[Claim],
    ) -> Result<Vec<Admission>, NoAnswer> {
        let mut open = match stream.take() {
            Some(open) => open,
            None => BufReader::new(
                dial(&self.settings, self.settings.connect_deadline())
                    .await
                    .map_err(broken)?,
            ),
        };
        let answers = timeout(self.settings.timeout, self.ask(&mut open, claims)).await;
        let (answers, stays_open) =
            answers.map_err(|_| NoAnswer::Late("Redis does not answer".to_owned()))??;
        *stream = stays_open.then_some(open);
        Ok(answers)
    }

    /// Returns the verdicts, and whether `RESET` can make the connection new again.
    async fn ask(
        &self,
        stream: &mut BufReader<Stream>,
        claims: &[Claim],
    ) -> Result<(Vec<Admission>, bool), NoAnswer> {
        let mut bytes = BytesMut::new();
        for claim in claims {
            match claim {
                None => bytes.extend_from_slice(&[RESET, PING].concat()),
                Some(credentials) => credentials::write_auth(&mut bytes, credentials),
            }
        }
        let logs_in = claims.iter().any(Option::is_some);
        if logs_in {
            bytes.extend_from_slice(RESET);
        }
        let commands = claims.len() + claims.iter().filter(|claim| claim.is_none()).count();
        for _ in 0..commands + usize::from(logs_in) {
            self.metrics.sent(Purpose::Admission);
        }
        stream.write_all(&bytes).await?;
        // With TLS, the bytes may not be sent before a flush.
        stream.flush().await?;
        let (mut logins, mut stays_open) = (Vec::new(), true);
        for claim in claims {
            logins.push(match claim {
                None => {
                    stays_open &= is_new(stream).await?;
                    credentials::read_line(stream).await?
                }
                Some(_) => credentials::read_line(stream).await?,
            });
        }
        if logs_in {
            stays_open &= is_new(stream).await?;
        }
        let mut admissions = Vec::new();
        for (claim, line) in claims.iter().zip(logins) {
            admissions.push(match claim {
                None => self.anonymous_may(line),
                Some(credentials) => self.verify(stream, credentials, line).await?,
            });
        }
        Ok((admissions, stays_open))
    }

    /// Interprets the reply to `PING` on a new connection.
    fn anonymous_may(&self, line: Line) -> Admission {
        let admission = match line {
            Line::Error(text) if text.starts_with(b"NOAUTH") => Admission::Refused(text),
            // No other error means that Redis requires a password.
            Line::Good | Line::Error(_) => Admission::Welcome(self.users.anonymous()),
        };
        *lock(&self.anonymous) = Some((clock::now(), admission.clone()));
        admission
    }

    /// Interprets the reply to `AUTH`.
    async fn verify(
        &self,
        stream: &mut BufReader<Stream>,
        credentials: &Credentials,
        line: Line,
    ) -> Result<Admission, NoAnswer> {
        let login = credentials::login(stream, credentials, line).await;
        Ok(match login.map_err(broken)? {
            Login::Done => Admission::Welcome(self.users.verified(credentials, clock::now())),
            Login::Refused(text) => Admission::Refused(text),
        })
    }

    fn set_trouble(&self, reason: Option<String>) {
        *lock(&self.trouble) = reason;
    }

    fn trouble(&self) -> Option<Bytes> {
        let trouble = lock(&self.trouble);
        let reason = trouble.as_ref()?;
        let text = self.settings.unreachable(reason);
        Some(Bytes::from(text))
    }
}

/// Reads the reply to `RESET`. Returns whether Redis has the command.
async fn is_new(stream: &mut BufReader<Stream>) -> io::Result<bool> {
    match credentials::read_line(stream).await? {
        Line::Good => Ok(true),
        Line::Error(text) if text.starts_with(b"ERR unknown command") => Ok(false),
        // Such as too many clients.
        Line::Error(text) => Err(io::Error::other(lossy(&text))),
    }
}

fn broken(no_link: NoLink) -> NoAnswer {
    NoAnswer::Broken(no_link.reason())
}

impl From<io::Error> for NoAnswer {
    fn from(error: io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds this.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncBufReadExt, net::UnixListener};

    use super::*;
    use crate::transport::endpoint::{Endpoint, Place};

    const SOON: Duration = Duration::from_secs(5);

    /// Serves one connection as a Redis before 6.2 does that requires a password: it has no `RESET`.
    async fn serve_without_reset(listener: UnixListener) {
        let (stream, _) = listener.accept().await.unwrap();
        let (reads, mut writes) = stream.into_split();
        let (mut lines, mut is_in) = (BufReader::new(reads).lines(), false);
        while let Ok(Some(line)) = lines.next_line().await {
            let reply = match &*line {
                "AUTH" => {
                    is_in = true;
                    "+OK\r\n"
                }
                "RESET" => "-ERR unknown command 'RESET'\r\n",
                "PING" if is_in => "+PONG\r\n",
                "PING" => "-NOAUTH Authentication required.\r\n",
                _ => continue,
            };
            writes.write_all(reply.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn without_reset_an_anonymous_client_does_not_pass_for_the_user_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("redis");
        let redis = tokio::spawn(serve_without_reset(UnixListener::bind(&path).unwrap()));
        let settings = RedisSettings {
            endpoint: Arc::new(Endpoint::new(Place::Unix(path), None)),
            own: None,
            connect_timeout: SOON,
            timeout: SOON,
            ping: SOON,
            grace: None,
            key_prefix: Bytes::new(),
            replicas_timeout: SOON,
            connections: 1,
            idle: SOON,
        };
        let probe = AuthProbe::new(Arc::new(settings), Arc::default(), Arc::default());
        // The probe's task runs only when both have asked, so one round trip carries both.
        let ann = Credentials::new(b"ann", b"pw");
        let (ann, anonymous) =
            tokio::join!(probe.ask(ann, Some(SOON)), probe.ask(None, Some(SOON)));
        assert!(matches!(ann, Admission::Welcome(_)));
        assert!(matches!(anonymous, Admission::Refused(_)));
        redis.abort();
    }
}
