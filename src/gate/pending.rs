//! A reply on its way to its client, and the consequences if the client is gone.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Weak,
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use super::Gate;
use crate::{
    clock,
    lock::{Event, GrantKind, Refusal, Reply, RequestId, Time, Token, UserId},
    store::LockName,
};

/// A request without a reply yet. Dropping a waiting `LOCK` leaves the queue; `UNLOCK` and `RELOCK` run all the
/// same.
#[derive(Debug)]
pub struct Pending {
    whose: Whose,
    request: RequestId,
    /// The request is a `LOCK` or a `TRYLOCK`.
    waits: bool,
    reply: oneshot::Receiver<Reply>,
    answered: bool,
}

/// The reply to a request.
#[derive(Debug)]
pub enum Answer {
    /// The token holds the lock. The grant must be delivered.
    Granted(Grant),
    /// `LOCK` or `TRYLOCK`: not granted.
    Nil,
    /// `UNLOCK`: released; `RELOCK`: the lease was extended.
    Done,
    /// `UNLOCK` or `RELOCK`: this token does not hold the lock.
    NotHeld,
    /// A release by a client whose attempt was just refused: another token is known to hold the lock.
    HeldByAnother,
    /// An error.
    Refused(Refusal),
}

/// A grant on its way to its client. If it is dropped before it is [delivered](Grant::delivered), the lock goes
/// to the next waiter, or is taken back.
#[derive(Debug)]
pub struct Grant {
    whose: Whose,
    request: RequestId,
    until: Time,
    since: Time,
    fence: Option<u64>,
    session: bool,
    how: GrantKind,
    delivered: bool,
}

/// A lease that is bound to its client's connection (`SESSION`). Dropped, it is left to expire.
#[derive(Debug)]
pub struct Bound {
    whose: Whose,
    request: RequestId,
    over: bool,
}

/// A user's token for a lock.
#[derive(Clone)]
struct Whose {
    gate: Weak<Gate>,
    name: LockName,
    user: UserId,
    token: Token,
}

impl Pending {
    pub(super) fn new(
        gate: Weak<Gate>,
        name: LockName,
        request: RequestId,
        user: UserId,
        token: Token,
        waits: bool,
        reply: oneshot::Receiver<Reply>,
    ) -> Self {
        let whose = Whose {
            gate,
            name,
            user,
            token,
        };
        Self {
            whose,
            request,
            waits,
            reply,
            answered: false,
        }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.whose.name
    }

    /// Returns the token of the request. lockgate made it where the client named none.
    pub fn token(&self) -> &Token {
        &self.whose.token
    }

    /// Ends the wait of a `LOCK`: it gets the result of the store request on its way, or nil.
    pub fn stop_waiting(&self) {
        let request = self.request;
        self.whose.tell(Event::StopWaiting { request });
    }

    /// Returns whether a `LOCK` only waits: no request to the store is on its way for it.
    pub fn is_queued(&self) -> bool {
        let gate = self.whose.gate.upgrade();
        gate.is_some_and(|gate| gate.is_queued(&self.whose.name, self.request))
    }

    /// Reports that an `UNLOCK` of the lock with this token waits behind this `LOCK` on the same connection.
    pub fn unlock_behind(&self, held_by: Token) {
        let request = self.request;
        self.whose.tell(Event::UnlockBehind { request, held_by });
    }

    fn take(&mut self, reply: Reply) -> Answer {
        self.answered = true;
        match reply {
            Reply::Granted {
                until,
                since,
                fence,
                session,
                how,
                ..
            } => Answer::Granted(Grant {
                whose: self.whose.clone(),
                request: self.request,
                until,
                since,
                fence,
                session,
                how,
                delivered: false,
            }),
            Reply::Nil => Answer::Nil,
            Reply::Done => Answer::Done,
            Reply::NotHeld => Answer::NotHeld,
            Reply::HeldByAnother => Answer::HeldByAnother,
            Reply::Refused(refusal) => Answer::Refused(refusal),
        }
    }
}

impl Future for Pending {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        Pin::new(&mut self.reply).poll(cx).map(|reply| {
            // A gate that ends sends no replies.
            let reply = reply.unwrap_or(Reply::Refused(Refusal::Upstream));
            self.take(reply)
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.answered || !self.waits {
            return;
        }
        self.reply.close();
        match self.reply.try_recv() {
            // The reply came, but the caller did not take it.
            Ok(reply) => drop(self.take(reply)),
            Err(_) => {
                let request = self.request;
                self.whose.tell(Event::Gone { request });
            }
        }
    }
}

impl Grant {
    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.whose.name
    }

    /// Returns the token, the proof of ownership: the reply to the client.
    pub fn token(&self) -> &Token {
        &self.whose.token
    }

    /// Returns whether the lease has ended: a client that gets the grant now does not hold the lock.
    pub fn is_over(&self) -> bool {
        clock::now() >= self.until
    }

    /// Returns how the grant came about.
    pub fn how(&self) -> GrantKind {
        self.how
    }

    /// Returns whether the lease must be bound to the client's connection (`SESSION`).
    pub fn is_session(&self) -> bool {
        self.session
    }

    /// Returns the fence, if the client asked for one.
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Records that the reply was written to the client's socket. From now on the lease is renewed, if it is
    /// bound to the connection.
    pub fn delivered(mut self) -> Option<Bound> {
        self.delivered = true;
        self.session.then(|| Bound {
            whose: self.whose.clone(),
            request: self.request,
            over: false,
        })
    }
}

impl Bound {
    /// Returns the request that was granted.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.whose.name
    }

    /// Returns the token that holds the lock.
    pub fn token(&self) -> &Token {
        &self.whose.token
    }

    /// Drops the binding without an event, after the gate has notified the client's mailbox that it is over.
    pub fn is_over(mut self) {
        self.over = true;
    }

    /// Releases the lock: the client closed the connection.
    pub fn release(mut self) {
        self.close(true);
    }

    fn close(&mut self, by_client: bool) {
        if !std::mem::replace(&mut self.over, true) {
            let (request, user) = (self.request, self.whose.user);
            let token = self.whose.token.clone();
            self.whose.tell(Event::SessionClosed {
                request,
                user,
                token,
                by_client,
            });
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.close(false);
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.delivered {
            let (request, user) = (self.request, self.whose.user);
            let token = self.whose.token.clone();
            self.whose.tell(Event::Undelivered {
                request,
                user,
                token,
                since: self.since,
            });
        }
    }
}

impl Whose {
    fn tell(&self, event: Event) {
        if let Some(gate) = self.gate.upgrade() {
            gate.dispatch(&self.name, event, None);
        }
    }
}

impl fmt::Debug for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Whose")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
