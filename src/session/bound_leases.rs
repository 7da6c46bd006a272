//! The leases bound to a client's connection (`SESSION`), and the notices of their loss. A RESP3 client gets
//! a push for a lost lock; the connection of a RESP2 client is closed.
//!
//! A close by the client releases its locks. A close by lockgate does not, since the client may still be
//! working: its locks stay until their leases expire.

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

/// The leases bound to one connection. Without memory for nearly every client.
#[derive(Default)]
pub(crate) struct BoundLeases(Option<Box<Bindings>>);

#[derive(Default)]
struct Bindings {
    bound: HashMap<RequestId, Bound>,
    /// Leases released or lost before their grants were written.
    over_early: Vec<SessionOver>,
    /// The channel for the gate's notices, created with the first `SESSION` request.
    mail: Option<(Mailbox, mpsc::UnboundedReceiver<SessionOver>)>,
    /// Lost locks that the client has to be notified of.
    lost: Vec<Bound>,
}

impl BoundLeases {
    /// Returns the mailbox for the gate's notices about a requested lease.
    pub(crate) fn mailbox(&mut self) -> Mailbox {
        let mail = &mut self.0.get_or_insert_default().mail;
        mail.get_or_insert_with(mpsc::unbounded_channel).0.clone()
    }

    /// Adds a lease whose grant was written.
    pub(crate) fn add(&mut self, bound: Bound) {
        let request = bound.request();
        let this = self.0.get_or_insert_default();
        let early = this.over_early.iter().position(|it| it.request == request);
        match early.map(|at| this.over_early.swap_remove(at)) {
            Some(SessionOver { lost: true, .. }) => this.lost.push(bound),
            Some(_) => bound.is_over(),
            None => {
                this.bound.insert(request, bound);
            }
        }
    }

    fn bound(&self) -> impl Iterator<Item = &Bound> {
        self.0.iter().flat_map(|this| this.bound.values())
    }

    /// Returns the number of leases, including those whose grants are being written.
    pub(crate) fn with_early(&self, delivering: usize) -> usize {
        let this = self.0.as_deref();
        let (bound, early) = this.map_or((0, 0), |it| (it.bound.len(), it.over_early.len()));
        bound + delivering.saturating_sub(early)
    }

    /// Returns whether a lease of this lock with this token is bound.
    pub(crate) fn has(&self, name: &LockName, token: Option<&Token>) -> bool {
        let is_it = |bound: &Bound| bound.name() == name && Some(bound.token()) == token;
        self.bound().any(is_it)
    }

    /// Records that no grant is being written.
    pub(crate) fn all_are_written(&mut self) {
        if let Some(this) = &mut self.0 {
            this.over_early.clear();
        }
    }

    /// Returns whether any lease is bound.
    pub(crate) fn any(&self) -> bool {
        self.bound().next().is_some()
    }

    /// Reads the gate's notices. Returns whether the client has to be notified of a lost lock.
    pub(crate) fn read_mail(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(this) = &mut self.0 else {
            return false;
        };
        let Some((_, mail)) = &mut this.mail else {
            return false;
        };
        while let Poll::Ready(Some(SessionOver { request, lost })) = mail.poll_recv(cx) {
            match this.bound.remove(&request) {
                Some(bound) if lost => this.lost.push(bound),
                Some(bound) => bound.is_over(),
                None => this.over_early.push(SessionOver { request, lost }),
            }
        }
        !this.lost.is_empty()
    }

    /// Writes a push for each lost lock.
    pub(crate) fn tell_lost(&mut self, out: &mut BytesMut) {
        for bound in self.0.iter_mut().flat_map(|this| this.lost.drain(..)) {
            write_lost(out, &bound);
            bound.is_over();
        }
    }

    /// Writes a push for each lock: lockgate shuts down and stops renewing them. They stay bound, so that the
    /// client can still release them by closing.
    pub(crate) fn tell_all(&self, out: &mut BytesMut) {
        for bound in self.bound() {
            write_lost(out, bound);
        }
    }

    /// Releases all locks: the client closed its connection.
    pub(crate) fn release(&mut self) {
        if let Some(this) = self.0.take() {
            this.bound.into_values().for_each(Bound::release);
        }
    }
}

fn write_lost(out: &mut BytesMut, bound: &Bound) {
    let mut writer = Writer::new(out, Protocol::Resp3);
    writer.push(3);
    writer.bulk("lock-lost");
    writer.bulk(&bound.name().key);
    writer.bulk(bound.token().as_bytes());
}
