//! The path of a request about a lock to Redis, and of its outcome back to the queue.
//!
//! - **The usual request** is sent [at once](send_now), where the link is open and nothing puts the request off. Its
//!   reply [comes back](replied) in the task that reads the link, and goes to the listener from there.
//! - **All others are futures** ([`send`]): those that wait for a link, for room on it, or for their turn in a recovery.
//!   A usual request becomes one when its reply leaves something to do: the script is unknown to Redis, replicas have to
//!   acknowledge the grant, or the link must be given up.

use std::{sync::Arc, time::Duration};

use redis::Value;

use super::{
    acl_error,
    data_loss::{DataLossDetector, left_ms},
    handshake::Subject,
    link::Link,
    reconnector::Reconnector,
    scripts::{FENCE_CEILING, Form, Reading, Request},
};
use crate::{
    clock,
    lock::{LinkId, Outcome, StoreReply, StoreRequestId, Time},
    store::LockName,
};

/// A lock request that has waited this long for a connection, in milliseconds, returns to its queue to be
/// issued anew: its lease counts from when it was issued, and its client may be gone.
const ANEW_AFTER_MS: u64 = 100;

/// A request that was sent at once, and whose outcome goes to the listener.
pub(super) struct SentRequest {
    name: LockName,
    id: StoreRequestId,
    request: Request,
    form: Form,
    sent_at: Time,
    link: LinkId,
    /// Redis pushes changes of the keys that are read on the link.
    tells: bool,
}

/// Sends a request now, and has its outcome reported to the listener. Otherwise returns the request.
pub(super) fn send_now(
    reconnector: &Reconnector,
    name: &LockName,
    id: StoreRequestId,
    request: Request,
) -> Option<Request> {
    let Some(link) = reconnector.open_link() else {
        return Some(request);
    };
    let data_loss = &reconnector.subject().data_loss;
    let is_put_off = data_loss.grace_left_ms().is_some() || left_ms(link.grace_until).is_some();
    if is_put_off || request.recovers() || link.lacks(request.replicas()) {
        return Some(request);
    }
    let sent = SentRequest {
        name: name.clone(),
        id,
        form: request.first_form(),
        request,
        sent_at: clock::now(),
        link: link.id,
        tells: link.tells(),
    };
    link.send_now(sent).map(|unsent| unsent.request)
}

impl SentRequest {
    /// A check of this lock, as a queue sends it.
    #[cfg(test)]
    pub(super) fn check(key: &'static str) -> Self {
        use crate::lock::{StoreRequest, UserId};
        let key = Arc::<[u8]>::from(key.as_bytes());
        let user = UserId::ANONYMOUS;
        Self {
            request: Request::new(Arc::clone(&key), StoreRequest::Check { user }, 0),
            name: LockName { database: 0, key },
            id: StoreRequestId(0),
            form: Form::ByHash,
            sent_at: Time::default(),
            link: LinkId::new(0),
            tells: true,
        }
    }

    /// Returns the request, and the form in which it is sent.
    pub(super) fn request(&self) -> (&Request, Form) {
        (&self.request, self.form)
    }
}

/// Reports the outcome of a request that was sent at once, or goes on with the request where its reply leaves something
/// to do.
pub(super) fn replied(subject: &Arc<Subject>, sent: SentRequest, reply: Value) {
    let took = clock::now().micros_since(sent.sent_at);
    subject.metrics.latency.count(took);
    match sent.request.read(sent.form, reply) {
        Reading::Done { outcome, read } if !needs_more(&sent.request, &outcome) => {
            let armed = (read && sent.tells).then_some(sent.link);
            let reply = conclude(subject, &sent.request, outcome, armed);
            subject.listener.replied(&sent.name, sent.id, reply);
        }
        reading => {
            let subject = Arc::clone(subject);
            tokio::spawn(async move {
                let reply = go_on(&subject, &sent, reading).await;
                subject.listener.replied(&sent.name, sent.id, reply);
            });
        }
    }
}

/// Reports that the connection ended before the reply to a request that was sent at once.
pub(super) fn unanswered(subject: &Subject, sent: &SentRequest) {
    let reply = untold(Outcome::Unknown);
    subject.listener.replied(&sent.name, sent.id, reply);
}

async fn go_on(subject: &Subject, sent: &SentRequest, reading: Reading) -> StoreReply {
    let Some(reconnector) = subject.reconnector.upgrade() else {
        return untold(Outcome::Unknown);
    };
    match reconnector.open_link().filter(|it| it.id == sent.link) {
        Some(link) => finish(&link, &reconnector, &sent.request, reading).await,
        None => untold(Outcome::Unknown),
    }
}

/// Sends a request that waits up to `within` for a connection.
pub(super) async fn send(
    reconnector: Arc<Reconnector>,
    request: Request,
    within: Duration,
) -> StoreReply {
    let _permit = match request.recovers() {
        true => reconnector.recovery().await,
        false => None,
    };
    let data_loss = &reconnector.subject().data_loss;
    if let (true, false, Some(ms)) = (
        request.is_fenced(),
        request.acquires(),
        data_loss.grace_left_ms(),
    ) {
        // Another instance that has seen larger fences may not have raised the counter yet.
        return untold(Outcome::NotYet { ms });
    }
    let asked_at = clock::now();
    let link = match reconnector.link_soon(within).await {
        Some(Ok(link)) => link,
        Some(Err(refusal)) => return untold(Outcome::Refused(refusal)),
        None => return untold(Outcome::NoLink),
    };
    if request.acquires() {
        // It may take a free lock.
        if let Some(ms) = puts_off(data_loss, asked_at) {
            // A token that holds the lock, as after a handover, takes no free one.
            let reply = match request.to_extension().filter(|_| ms > 0) {
                Some(extension) => send_on(&link, &reconnector, &extension).await,
                None => untold(Outcome::NotYet { ms }),
            };
            return match reply.outcome {
                Outcome::Free => untold(Outcome::NotYet { ms }),
                _ => reply,
            };
        }
        if let Some(ms) = left_ms(link.grace_until) {
            return hold_back(&link, &request, ms).await;
        }
    } else if Duration::from_micros(clock::now().micros_since(asked_at)) > within {
        // If this process was paused, the connection may come after the limit.
        return untold(Outcome::NoLink);
    }
    send_on(&link, &reconnector, &request).await
}

/// Sends a request on this link.
async fn send_on(link: &Arc<Link>, reconnector: &Reconnector, request: &Request) -> StoreReply {
    // While replicas are missing, no lock is taken in vain.
    let replicas = request.replicas();
    if link.lacks(replicas)
        && let Err(missing) = link.acknowledge(replicas).await
    {
        if missing.is_elsewhere() {
            // What was taken on it is given back by now.
            reconnector.give_up(link).await;
        }
        return untold(missing.outcome(None));
    }
    let first = Reading::Again(request.first_form());
    finish(link, reconnector, request, first).await
}

/// Returns whether such an outcome is not the end of the request.
fn needs_more(request: &Request, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Granted { .. } => request.replicas() > 0,
        Outcome::Held { .. } => request.replicas() > 0 && !request.is_in_vain(outcome),
        Outcome::Refused(text) => acl_error::is_by_script(text),
        Outcome::NotNow(text) => makes_useless(text),
        _ => false,
    }
}

/// Returns whether this error makes a link useless: the address may resolve to a new master by now. If this server
/// accepts writes again, it may have lost data.
fn makes_useless(error: &[u8]) -> bool {
    [&b"READONLY"[..], b"LOADING", b"MASTERDOWN"]
        .iter()
        .any(|word| error.starts_with(word))
}

/// Goes on with a request from this reading of its reply to its end. Gives the link up if it is of no use for the next
/// request.
async fn finish(
    link: &Arc<Link>,
    reconnector: &Reconnector,
    request: &Request,
    reading: Reading,
) -> StoreReply {
    let Some((mut outcome, read)) = link.ask_until_done(request, reading).await else {
        // A caller that sends the request again must not find the same link.
        reconnector.give_up(link).await;
        return untold(Outcome::Unknown);
    };
    if let Outcome::Refused(text) = &outcome
        && acl_error::is_by_script(text)
    {
        outcome = Outcome::Refused(acl_error::in_words_of_redis(link, request.key()).await);
    }
    if let Outcome::NotNow(text) = &outcome
        && makes_useless(text)
    {
        reconnector.give_up(link).await;
    }
    let armed = (read && link.tells()).then_some(link.id);
    let reply = conclude(reconnector.subject(), request, outcome, armed);
    acknowledged(link, reconnector, request, reply).await
}

/// Makes the reply to a request of this outcome, and records what the outcome says of Redis.
fn conclude(
    subject: &Subject,
    request: &Request,
    outcome: Outcome,
    armed: Option<LinkId>,
) -> StoreReply {
    subject
        .can_lock
        .replied(request.purpose(Form::ByHash), &outcome);
    if let Outcome::Granted {
        fence: Some(fence), ..
    } = outcome
        && fence < FENCE_CEILING
    {
        let mut seen = subject.fences.entry(subject.database).or_default();
        *seen = fence.max(*seen);
    }
    StoreReply {
        outcome,
        armed,
        grace_ms: subject.data_loss.grace_left_ms(),
    }
}

/// Waits until the replicas that the request wants acknowledged what it granted on this link, or the longer lease that it
/// found, which it then shortens.
async fn acknowledged(
    link: &Arc<Link>,
    reconnector: &Reconnector,
    request: &Request,
    reply: StoreReply,
) -> StoreReply {
    let (done, shortening) = match &reply.outcome {
        _ if request.replicas() == 0 => return reply,
        Outcome::Granted {
            deadline, fresh, ..
        } => (Some((*deadline, *fresh)), None),
        outcome @ Outcome::Held { .. } if !request.is_in_vain(outcome) => {
            (None, request.shortening())
        }
        _ => return reply,
    };
    if request.acquires() && done.is_some() {
        link.taken(request.key());
    }
    match (link.acknowledge(request.replicas()).await, shortening) {
        (Ok(()), None) => reply,
        (Ok(()), Some(shortening)) => {
            let first = Reading::Again(shortening.first_form());
            Box::pin(finish(link, reconnector, &shortening, first)).await
        }
        (Err(missing), _) => StoreReply {
            outcome: missing.outcome(done),
            ..reply
        },
    }
}

/// Returns after how many milliseconds a lock request issued at `asked_at` must be issued anew; none if it can
/// be sent now.
fn puts_off(data_loss: &DataLossDetector, asked_at: Time) -> Option<u64> {
    let is_old = clock::now().millis_since(asked_at) >= ANEW_AFTER_MS;
    data_loss.grace_left_ms().or(is_old.then_some(0))
}

/// Puts off a request of a user that may take no free lock for `ms`. If another token holds the lock, the reply
/// is that holder: users that wait for the lock in this instance and are not held back need it too.
async fn hold_back(link: &Link, request: &Request, ms: u64) -> StoreReply {
    match link.ask(&request.to_check()).await {
        Some((outcome, read)) if request.is_in_vain(&outcome) => StoreReply {
            outcome,
            armed: (read && link.tells()).then_some(link.id),
            grace_ms: Some(ms),
        },
        _ => untold(Outcome::NotYet { ms }),
    }
}

/// Returns an [`StoreReply`] after which no push will come.
pub(super) fn untold(outcome: Outcome) -> StoreReply {
    StoreReply {
        outcome,
        armed: None,
        grace_ms: None,
    }
}
