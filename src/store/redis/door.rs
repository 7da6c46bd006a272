//! Whether Redis takes clients that do not authenticate: that is for its `default` user to say, and may
//! change at any time. A shared connection does not show it, since Redis asks for a password at the
//! beginning of a connection only; so it is asked for each such client anew, on a connection of its own
//! that is made new again by `RESET`. Those who come at the same time are answered by one question, of
//! which each came before it was sent.

use std::{
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    credentials::{self, Line},
    greeting::{NoLink, dial, lossy},
    settings::{LONGEST_PAUSE, RedisSettings},
};
use crate::{
    metrics::upstream::{Purpose, UpstreamMetrics},
    store::{Admission, Later, task::Task},
    transport::stream::Stream,
};

/// The connection is kept so long after it was used.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// Those who wait for their question to be seen; others wait to wait.
const QUEUED: usize = 1_024;

/// Most that one question answers.
const TOGETHER: usize = 1_024;

/// The connection is made new by the first, and the second asks.
const NEW_AND_ASKED: &[u8] = b"*1\r\n$5\r\nRESET\r\n*1\r\n$4\r\nPING\r\n";

type Asker = oneshot::Sender<Admission>;

/// Where it is asked.
pub(super) struct Door {
    keeper: Arc<DoorKeeper>,
    asked: OnceLock<(mpsc::Sender<Asker>, Task)>,
}

struct DoorKeeper {
    settings: Arc<RedisSettings>,
    metrics: Arc<UpstreamMetrics>,
    /// Why there is no answer.
    trouble: Mutex<Option<String>>,
}

/// Why there is no answer.
enum NoAnswer {
    /// The connection is of no use.
    Broken(String),
    /// Nothing came.
    Late(String),
}

impl Door {
    /// Nothing is opened before somebody asks.
    pub(super) fn new(settings: Arc<RedisSettings>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self {
            keeper: Arc::new(DoorKeeper {
                settings,
                metrics,
                trouble: Mutex::default(),
            }),
            asked: OnceLock::new(),
        }
    }

    /// As [`Store::admits_anonymous`](crate::store::Store::admits_anonymous).
    pub(super) fn ask(&self, patience: Option<Duration>) -> Later<Admission> {
        let keeper = Arc::clone(&self.keeper);
        let (asked, _) = self.asked.get_or_init(|| {
            let (asked, askers) = mpsc::channel(QUEUED);
            (asked, Task::spawn(Arc::clone(&keeper).keep(askers)))
        });
        let asked = asked.clone();
        Box::pin(async move {
            let answer = async {
                let (asker, answer) = oneshot::channel();
                // The task lives as long as the store.
                let _ = asked.send(asker).await;
                answer.await.unwrap_or(Admission::Unanswered(None))
            };
            match patience {
                None => answer.await,
                Some(patience) => match timeout(patience, answer).await {
                    Ok(admission) => admission,
                    Err(_) => Admission::Unanswered(keeper.trouble()),
                },
            }
        })
    }
}

impl DoorKeeper {
    async fn keep(self: Arc<Self>, mut askers: mpsc::Receiver<Asker>) {
        let mut stream = None;
        let mut waiting = Vec::new();
        loop {
            if waiting.is_empty() {
                let first = match timeout(OPEN_FOR, askers.recv()).await {
                    Ok(first) => first,
                    Err(_) => {
                        stream = None;
                        askers.recv().await
                    }
                };
                let Some(first) = first else { return };
                waiting.push(first);
            }
            while waiting.len() < TOGETHER
                && let Ok(more) = askers.try_recv()
            {
                waiting.push(more);
            }
            let was_open = stream.is_some();
            match self.look(&mut stream).await {
                Ok(admission) => {
                    self.set_trouble(None);
                    for asker in waiting.drain(..) {
                        // Who left does not want to know.
                        let _ = asker.send(admission.clone());
                    }
                }
                // An old connection may have been closed since.
                Err(NoAnswer::Broken(_)) if was_open => {}
                Err(NoAnswer::Broken(reason) | NoAnswer::Late(reason)) => {
                    self.set_trouble(Some(reason));
                    sleep(LONGEST_PAUSE).await;
                    waiting.retain(|asker| !asker.is_closed());
                }
            }
        }
    }

    async fn look(&self, stream: &mut Option<BufReader<Stream>>) -> Result<Admission, NoAnswer> {
        let mut open = match stream.take() {
            Some(open) => open,
            None => BufReader::new(dial(&self.settings).await.map_err(|no_link| {
                NoAnswer::Broken(match no_link {
                    NoLink::Failed(reason) => reason,
                    NoLink::Refused(text) | NoLink::WrongPassword(text) => lossy(&text),
                })
            })?),
        };
        let answer = timeout(self.settings.timeout, is_admitted(&mut open, &self.metrics)).await;
        let (admission, stays_open) = answer
            .map_err(|_| NoAnswer::Late("Redis does not answer".to_owned()))?
            .map_err(|error| NoAnswer::Broken(error.to_string()))?;
        *stream = stays_open.then_some(open);
        Ok(admission)
    }

    fn set_trouble(&self, reason: Option<String>) {
        // Nothing panics while it is held.
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    fn trouble(&self) -> Option<Bytes> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = trouble.as_ref()?;
        let text = self.settings.unreachable(reason);
        Some(Bytes::from(text))
    }
}

/// Whether Redis lets a new connection do anything; and whether this one can be made new once more.
async fn is_admitted(
    stream: &mut BufReader<Stream>,
    metrics: &UpstreamMetrics,
) -> io::Result<(Admission, bool)> {
    for _ in 0..2 {
        metrics.sent(Purpose::Admission);
    }
    stream.write_all(NEW_AND_ASKED).await?;
    // With TLS it may not be on its way before.
    stream.flush().await?;
    let is_new = match credentials::read_line(stream).await? {
        Line::Good => true,
        Line::Error(text) if text.starts_with(b"ERR unknown command") => false,
        // Too many clients, and the like.
        Line::Error(text) => return Err(io::Error::other(lossy(&text))),
    };
    Ok(match credentials::read_line(stream).await? {
        Line::Error(text) if text.starts_with(b"NOAUTH") => (Admission::Refused(text), is_new),
        // Whatever else is wrong is not that.
        Line::Good | Line::Error(_) => (Admission::Welcome, is_new),
    })
}
