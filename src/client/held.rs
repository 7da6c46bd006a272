//! The leases bound to a client's connection (`SESSION`), and what is to be told of them: a lock that
//! is lost is told to a RESP3 client by a push, to a RESP2 client by closing its connection.
//!
//! Only a close by the client releases its locks. Where the gate closes, the client may go on working:
//! its locks are left to their leases.

use std::{
    collections::HashMap,
    task::{Context, Poll},
};

use bytes::BytesMut;
use tokio::sync::mpsc;

use crate::{
    gate::{Bound, Mailbox, SessionOver},
    lock::{RequestId, Token},
    resp::{Protocol, Writer},
    store::LockName,
};

/// The leases bound to one connection.
#[derive(Default)]
pub(super) struct Held {
    bound: HashMap<RequestId, Bound>,
    /// Released or lost before their grants were written.
    over_early: Vec<SessionOver>,
    /// Where the gate tells; made with the first such lease.
    mail: Option<(Mailbox, mpsc::UnboundedReceiver<SessionOver>)>,
    /// A lock of which the client has to be told.
    lost: Vec<Bound>,
}

impl Held {
    /// Where the gate is to tell of a lease that is asked for.
    pub(super) fn mailbox(&mut self) -> Mailbox {
        self.mail
            .get_or_insert_with(mpsc::unbounded_channel)
            .0
            .clone()
    }

    /// The client has one more.
    pub(super) fn add(&mut self, bound: Bound) {
        let request = bound.request();
        let early = self.over_early.iter().position(|it| it.request == request);
        match early.map(|at| self.over_early.swap_remove(at)) {
            Some(SessionOver { lost: true, .. }) => self.lost.push(bound),
            Some(_) => bound.is_over(),
            None => {
                self.bound.insert(request, bound);
            }
        }
    }

    /// How many it has, with those whose grants are being written.
    pub(super) fn with_early(&self, delivering: usize) -> usize {
        self.bound.len() + delivering.saturating_sub(self.over_early.len())
    }

    /// It has one of this lock with this token.
    pub(super) fn has(&self, name: &LockName, token: Option<&Token>) -> bool {
        let is_it = |bound: &Bound| bound.name() == name && Some(bound.token()) == token;
        self.bound.values().any(is_it)
    }

    /// No grant is being written.
    pub(super) fn all_are_written(&mut self) {
        self.over_early.clear();
    }

    /// The client has one at least.
    pub(super) fn any(&self) -> bool {
        !self.bound.is_empty()
    }

    /// Reads what the gate told. Returns whether a lock is lost of which the client has to be told.
    pub(super) fn read_mail(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((_, mail)) = &mut self.mail else {
            return false;
        };
        while let Poll::Ready(Some(SessionOver { request, lost })) = mail.poll_recv(cx) {
            match self.bound.remove(&request) {
                Some(bound) if lost => self.lost.push(bound),
                Some(bound) => bound.is_over(),
                None => self.over_early.push(SessionOver { request, lost }),
            }
        }
        !self.lost.is_empty()
    }

    /// Writes a push for each lock that is lost.
    pub(super) fn tell_lost(&mut self, out: &mut BytesMut) {
        for bound in self.lost.drain(..) {
            write_lost(out, &bound);
            bound.is_over();
        }
    }

    /// Writes a push for each lock: the gate shuts down and renews none of them any longer. They stay
    /// bound, so that the client can still release them by closing.
    pub(super) fn tell_all(&self, out: &mut BytesMut) {
        for bound in self.bound.values() {
            write_lost(out, bound);
        }
    }

    /// The client closed its connection.
    pub(super) fn release(&mut self) {
        self.bound.drain().for_each(|(_, bound)| bound.release());
    }
}

fn write_lost(out: &mut BytesMut, bound: &Bound) {
    let mut writer = Writer::new(out, Protocol::Resp3);
    writer.push(3);
    writer.bulk("lock-lost");
    writer.bulk(&bound.name().key);
    writer.bulk(bound.token().as_bytes());
}
