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
    sync::mpsc,
    time::{sleep, timeout},
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
pub(super) async fn watch(sentinels: Weak<Sentinels>, at: (String, u16)) {
    loop {
        let Some(service) = sentinels.upgrade() else {
            return;
        };
        match serve(&service, &at).await {
            Failed::Reason(why) => service.failed(&at, &why),
            Failed::Known => return service.forget(&at),
        }
        drop(service);
        sleep(PAUSE).await;
    }
}

/// Asks and listens until the connection fails.
async fn serve(service: &Arc<Sentinels>, at: &(String, u16)) -> Failed {
    let settings = &service.settings;
    let (events, mut heard) = mpsc::channel(SENTINEL_MESSAGES);
    let opened = timeout(settings.timeout, open(settings, at, events)).await;
    let (mut connection, _driver) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Failed::Reason(error.to_string()),
        Err(_) => return Failed::Reason("it does not answer".to_owned()),
    };
    let mut doubts = service.doubts.subscribe();
    let mut is_first = true;
    loop {
        doubts.mark_unchanged();
        let asked = ask(settings, &mut connection, is_first);
        let Ok(answer) = timeout(settings.timeout, asked).await else {
            return Failed::Reason("it does not answer".to_owned());
        };
        let down_after = match answer {
            Ok(Answer { id, claim, others }) => {
                if let Some(id) = id
                    && service.is_known(at, &id)
                {
                    return Failed::Known;
                }
                service.replied(at, &claim, &others);
                claim.down_after
            }
            Err(why) => return Failed::Reason(why),
        };
        is_first = false;
        let pause = settings.poll.min(down_after / POLLS_IN_SILENCE);
        tokio::select! {
            event = heard.recv() => match event {
                Some(event) => service.heard(&event),
                None => return Failed::Reason("it closed the connection".to_owned()),
            },
            _ = doubts.changed() => {}
            () = sleep(pause.max(SHORTEST_POLL)) => {}
        }
        // All that has come meanwhile, before the next question.
        while let Ok(event) = heard.try_recv() {
            service.heard(&event);
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
    let mut subscribe = redis::cmd("SUBSCRIBE");
    let subscribed = connection.send_packed_command(subscribe.arg(&CHANNELS));
    if let Value::ServerError(error) = subscribed.await? {
        return Err(error.into());
    }
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
