//! The connection to one sentinel. It subscribes to the sentinel's messages, and asks it again and again: at once after
//! a message or a doubt, and after each interval. That takes RESP3, which sentinels speak since Redis 6.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisResult, Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    SentinelSettings, Sentinels,
    reply::{self, CHANNELS, Claim, Event, Other},
};
use crate::{
    limits::SENTINEL_MESSAGES,
    store::task::Task,
    transport::endpoint::{Endpoint, Place},
};

/// The pause before another attempt to reach the sentinel.
const PAUSE: Duration = Duration::from_millis(250);

/// A sentinel is asked several times in the silence after which it would count as gone.
const POLLS_IN_SILENCE: u32 = 4;

/// The shortest interval of questions.
const SHORTEST_POLL: Duration = Duration::from_millis(50);

/// Why a watcher has no connection.
enum Failed {
    /// The reason.
    Reason(String),
    /// The sentinel is watched under another address.
    Known,
}

/// Watches the sentinel at this address until the service is gone.
pub(super) async fn watch(
    service: Weak<Sentinels>,
    settings: Arc<SentinelSettings>,
    mut doubts: watch::Receiver<()>,
    at: (String, u16),
) {
    loop {
        let failed = serve(&service, &settings, &mut doubts, &at).await;
        // It is never kept while this task waits: the tasks end with it.
        let Some(service) = service.upgrade() else {
            return;
        };
        match failed {
            Failed::Reason(why) => service.failed(&at, &why),
            Failed::Known => return service.forget(&at),
        }
        drop(service);
        sleep(PAUSE).await;
    }
}

/// Asks and listens until the connection fails.
async fn serve(
    service: &Weak<Sentinels>,
    settings: &SentinelSettings,
    doubts: &mut watch::Receiver<()>,
    at: &(String, u16),
) -> Failed {
    let ended = || Failed::Reason("the instance has ended".to_owned());
    let (events, mut heard) = mpsc::channel(SENTINEL_MESSAGES);
    let opened = timeout(settings.timeout, open(settings, at, events)).await;
    let (mut connection, _driver) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Failed::Reason(error.to_string()),
        Err(_) => return Failed::Reason("it does not answer".to_owned()),
    };
    let mut is_first = true;
    loop {
        doubts.mark_unchanged();
        let asked_at = Instant::now();
        let asked = ask(settings, &mut connection, is_first);
        let Ok(answer) = timeout(settings.timeout, asked).await else {
            return Failed::Reason("it does not answer".to_owned());
        };
        let Some(listener) = service.upgrade() else {
            return ended();
        };
        let down_after = match answer {
            Ok(Answer { id, claim, others }) => {
                if let Some(id) = id
                    && listener.is_known(at, &id)
                {
                    return Failed::Known;
                }
                listener.replied(at, &claim, &others);
                claim.down_after
            }
            Err(why) => return Failed::Reason(why),
        };
        drop(listener);
        is_first = false;
        let pause = settings.poll.min(down_after / POLLS_IN_SILENCE);
        tokio::select! {
            event = heard.recv() => {
                let Some(listener) = service.upgrade() else {
                    return ended();
                };
                match event {
                    Some(event) => listener.heard(&event),
                    None => return Failed::Reason("it closed the connection".to_owned()),
                }
                // All that has come meanwhile, before the next question.
                while let Ok(event) = heard.try_recv() {
                    listener.heard(&event);
                }
            }
            // Very many connections may fail at a time.
            _ = doubts.changed() => sleep_until(asked_at + SHORTEST_POLL).await,
            () = sleep(pause.max(SHORTEST_POLL)) => {}
        }
    }
}

async fn open(
    settings: &SentinelSettings,
    (host, port): &(String, u16),
    events: mpsc::Sender<Event>,
) -> RedisResult<(MultiplexedConnection, Task)> {
    let place = Place::Tcp {
        host: host.clone(),
        port: *port,
    };
    let endpoint = Endpoint::new(place, settings.tls.clone());
    let stream = endpoint.reach(settings.timeout).await?;
    let stream = endpoint.secure(stream).await?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_push_sender(push_sender(settings.service.clone(), events));
    let mut info = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_skip_set_lib_name();
    if let Some(own) = &settings.own {
        info = info
            .set_username(String::from_utf8_lossy(own.name()))
            .set_password(String::from_utf8_lossy(own.password()));
    }
    let (mut connection, driver) =
        MultiplexedConnection::new_with_config(&info, stream, config).await?;
    let driver = Task::spawn(driver);
    connection.subscribe(&CHANNELS).await?;
    Ok((connection, driver))
}

/// Forwards messages about the service, in the task that reads the connection. It ends with the connection, and so the
/// channel.
fn push_sender(
    service: String,
    events: mpsc::Sender<Event>,
) -> impl Fn(PushInfo) -> Result<(), redis::aio::SendError> {
    move |push| {
        if push.kind == PushKind::Message {
            let mut data = push.data.into_iter().filter_map(reply::text);
            if let (Some(channel), Some(message)) = (data.next(), data.next())
                && let Some(event) = reply::event(&service, &channel, &message)
            {
                // Where it is full, the questions find out.
                let _ = events.try_send(event);
            }
        }
        Ok(())
    }
}

/// What a sentinel replied.
struct Answer {
    id: Option<String>,
    claim: Claim,
    others: Vec<Other>,
}

/// Asks for the master and the other sentinels, and at first for the sentinel's own id. The questions travel together, so
/// that the sentinel replies to all of them in one state.
async fn ask(
    settings: &SentinelSettings,
    connection: &mut MultiplexedConnection,
    is_first: bool,
) -> Result<Answer, String> {
    let service = &settings.service;
    let mut questions = redis::pipe();
    let question = |word: &str| {
        let mut command = redis::cmd("SENTINEL");
        command.arg(word);
        command
    };
    let about = |word: &str| -> Cmd {
        let mut command = question(word);
        command.arg(service);
        command
    };
    questions.add_command(about("GET-MASTER-ADDR-BY-NAME"));
    questions.add_command(about("MASTER"));
    questions.add_command(about("SENTINELS"));
    if is_first {
        questions.add_command(question("MYID"));
    }
    let count = questions.len();
    let replies = connection.send_packed_commands(&questions, 0, count).await;
    let mut replies = replies.map_err(|error| error.to_string())?.into_iter();
    let (Some(address), Some(master), Some(others)) =
        (replies.next(), replies.next(), replies.next())
    else {
        return Err("it replies too little".to_owned());
    };
    if let Value::ServerError(error) = &master {
        let error = format!("{} {}", error.code(), error.details().unwrap_or_default());
        let known = connection.send_packed_command(&question("MASTERS")).await;
        let known = known.map(reply::services).unwrap_or_default();
        return Err(match known.is_empty() {
            true => error.trim_end().to_owned(),
            false => format!(
                "it does not know the service {service}; it knows {}",
                known.join(", ")
            ),
        });
    }
    let Some(claim) = reply::claim(address, master) else {
        return Err(format!("it does not name the master of {service}"));
    };
    Ok(Answer {
        // Sentinels before 6.2 have no MYID: one that is named by its host and by its address is watched twice.
        id: replies.next().and_then(reply::text),
        claim,
        others: reply::others(others),
    })
}
