//! What was promised, checked by what can be seen from outside: what clients are told, and what the
//! store holds.

use std::collections::{BTreeMap, BTreeSet};

use lockgate::lock::{RequestId, Token, UserId};

use super::MILLI;

/// The clients that believe to hold the lock.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) token: Token,
    /// An equal token is another owner.
    pub(crate) strict: bool,
    /// The gate that granted it. None: nobody's, a client of the store itself.
    pub(crate) gate: Option<usize>,
    /// The request that was granted.
    pub(crate) request: Option<RequestId>,
    pub(crate) since: u64,
    /// By its own count of its lease, in microseconds of the store's clock. `SESSION`: never.
    pub(crate) until: u64,
    /// Its lease in microseconds.
    pub(crate) lease: u64,
    /// It owns the lock until it is told otherwise.
    pub(crate) session: bool,
    /// The gate that granted it is dead.
    pub(crate) orphan: bool,
    /// It was robbed by somebody who may, and is still to hear of it.
    pub(crate) robbed: bool,
    /// Since when the store does not know it for the owner.
    pub(crate) absent_since: Option<u64>,
}

impl Owner {
    /// The other grant is one of the same owner.
    fn is_same(&self, other: &Self) -> bool {
        let strict = self.strict || other.strict;
        self.token == other.token && (!strict || self.request == other.request)
    }
}

/// What a request is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Lock(usize),
    /// With the end of the lease that the client counted on, and the sabotages until then.
    Unlock(usize, Option<u64>, u64),
    /// With the sabotages until then, and the end of its lease and its length before, if it shortens the lease.
    Relock(usize, u64, Option<(u64, u64)>),
    /// An attempt of a client that spins.
    Attempt(usize),
    /// Its release, with the end of the lease that it counted on, or zero after a refused attempt; and the sabotages
    /// until then.
    GiveUp(usize, u64, u64),
}

/// A request that a client sent.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) purpose: Purpose,
    pub(crate) gate: usize,
    /// Which of the gate's lives got it.
    pub(crate) life: u64,
    pub(crate) at: u64,
    pub(crate) user: UserId,
    /// In the order in which the gate got them.
    pub(crate) order: u64,
    /// It waits in line like everybody: own token, nothing special.
    pub(crate) plain: bool,
    /// When it took its place in the queue, in that order, if that is known.
    pub(crate) place: Option<u64>,
    /// It must be answered by then.
    pub(crate) due: Option<u64>,
    pub(crate) answered: bool,
    pub(crate) gone: bool,
}

impl Sent {
    /// It is a `LOCK`, a `TRYLOCK` or an attempt that was not answered yet.
    pub(crate) fn waits(&self) -> bool {
        let asks = matches!(self.purpose, Purpose::Lock(_) | Purpose::Attempt(_));
        !self.answered && !self.gone && asks
    }
}

#[derive(Default)]
pub(crate) struct Checks {
    pub(crate) owners: Vec<Owner>,
    pub(crate) sent: BTreeMap<RequestId, Sent>,
    /// Tokens whose lock somebody deleted, perhaps before they heard of their grant.
    pub(crate) victims: BTreeSet<Token>,
    /// Tokens that a store which forgot brought back.
    pub(crate) zombies: BTreeSet<Token>,
    /// When a client asked for the lock with this token last.
    pub(crate) asked_at: BTreeMap<Token, u64>,
    /// The gates that granted the lock to this token.
    pub(crate) granted_by: BTreeMap<Token, BTreeSet<usize>>,
    /// The gate that released the lock of this token, and which of its lives that was.
    pub(crate) released_by: BTreeMap<Token, (usize, u64)>,
    /// When that was.
    pub(crate) released_at: BTreeMap<Token, u64>,
    /// Tokens whose lease was extended at a gate that did not grant it.
    pub(crate) extended_elsewhere: BTreeSet<Token>,
    /// When a gate got its latest connection.
    pub(crate) linked_at: BTreeMap<usize, u64>,
    /// Fences in the order in which clients were told.
    fences: Vec<(Token, u64)>,
}

impl Checks {
    /// A client was told that its token holds the lock. Where gates have clocks of their own, they
    /// may tell the end of a session late by the difference of pace.
    pub(crate) fn granted(&mut self, owner: Owner, drifts: bool) {
        let now = owner.since;
        self.owners
            .retain(|other| other.until > now && !other.is_same(&owner));
        let is_told_late = |other: &Owner| {
            let allowed = other.lease / 500 + 2 * MILLI;
            let absent = other.absent_since.map(|since| now - since);
            drifts && other.session && absent.is_some_and(|absent| absent <= allowed)
        };
        let other = self
            .owners
            .iter()
            .find(|other| !other.robbed && !is_told_late(other));
        if let Some(other) = other {
            panic!(
                "two owners at {now}: {other:?} {}, and now {owner:?} {}",
                show(&other.token),
                show(&owner.token)
            );
        }
        self.owners.push(owner);
    }

    /// A client was told that its token holds the lock, of which it was robbed meanwhile.
    pub(crate) fn granted_in_vain(&mut self, owner: Owner) {
        self.gives_up(&owner.token);
        if owner.session {
            self.owners.push(owner);
        }
    }

    /// These are owners no more, by no fault of the gates. Those of sessions are to be told.
    pub(crate) fn rob(&mut self, whom: impl Fn(&Owner) -> bool) {
        for owner in self.owners.iter_mut().filter(|owner| whom(owner)) {
            owner.robbed = true;
        }
        self.owners.retain(|owner| owner.session || !owner.robbed);
    }

    /// A client gave the lock up.
    pub(crate) fn gives_up(&mut self, token: &Token) {
        self.owners.retain(|owner| owner.token != *token);
    }

    /// The client of this attempt gave the lock up.
    pub(crate) fn gives_up_grant(&mut self, request: RequestId) {
        self.owners.retain(|owner| owner.request != Some(request));
    }

    /// The owner by this attempt, if it still counts on the lock.
    pub(crate) fn owner_by(&self, now: u64, request: RequestId) -> Option<&Owner> {
        let owns = |it: &&Owner| it.request == Some(request) && it.until > now && !it.robbed;
        self.owners.iter().find(owns)
    }

    /// The token's owner still counts on it.
    pub(crate) fn owner(&self, now: u64, token: &Token) -> Option<&Owner> {
        let owns = |owner: &&Owner| owner.token == *token && owner.until > now && !owner.robbed;
        self.owners.iter().find(owns)
    }

    /// A session is told of its loss by the end of its lease, which the gate counts from before it
    /// asked the store for the last time with success.
    pub(crate) fn sessions_are_told(&mut self, now: u64, holder: Option<&Token>) {
        for owner in self.owners.iter_mut().filter(|owner| owner.session) {
            if holder == Some(&owner.token) {
                owner.absent_since = None;
                continue;
            }
            let since = *owner.absent_since.get_or_insert(now);
            let bound = owner.lease + owner.lease / 500 + 20 * MILLI;
            assert!(
                now - since <= bound,
                "{} lost its session at {since} and was not told at {now}",
                show(&owner.token)
            );
        }
    }

    /// `lacks`: waiters that want a replica are passed over.
    pub(crate) fn replied(&mut self, now: u64, request: RequestId, granted: bool, lacks: bool) {
        let sent = self.sent.get_mut(&request);
        let sent = sent.unwrap_or_else(|| panic!("a reply to nobody"));
        assert!(!sent.answered, "{request:?} was answered twice");
        assert!(!sent.gone, "{request:?} was answered after it was gone");
        assert!(
            sent.due.is_none_or(|due| now <= due),
            "{request:?} was answered at {now}, after {:?}",
            sent.due
        );
        sent.answered = true;
        let (gate, order, plain, user) = (sent.gate, sent.order, sent.plain, sent.user);
        let linked_at = self.linked_at.get(&gate).copied();
        if granted && plain && !lacks {
            let passed = self.sent.iter().find(|(_, other)| {
                // A user without a connection is passed over.
                let was_linked = other.user == user || linked_at.is_none_or(|at| at < other.at);
                other.plain
                    && other.waits()
                    && other.gate == gate
                    && other.order < order
                    && was_linked
            });
            assert!(
                passed.is_none(),
                "{request:?} was served before {:?}",
                passed.map(|(id, _)| id)
            );
        }
    }

    /// A request that is granted the lock has the earliest place of those that waited when its gate chose it.
    pub(crate) fn is_next(&self, request: RequestId, disturbed_at: Option<u64>, chose_at: u64) {
        let sent = &self.sent[&request];
        let Some(place) = sent.place else {
            return;
        };
        // A store that said "not now" is asked again after a pause.
        let in_peace = |at: u64| disturbed_at.is_none_or(|it| it + 200 * MILLI < at);
        let passed = self.sent.iter().find(|(_, other)| {
            let was_there = other.order < chose_at && in_peace(other.at);
            other.waits()
                && other.gate == sent.gate
                && was_there
                && other.place.is_some_and(|it| it < place)
        });
        assert!(
            passed.is_none(),
            "{request:?} was served before {:?}, which has an earlier place",
            passed.map(|(id, _)| id)
        );
    }

    /// Fences rise from owner to owner.
    pub(crate) fn fenced(&mut self, token: &Token, fence: u64) {
        let others = self.fences.iter().filter(|(other, _)| other != token);
        let largest = others.map(|(_, fence)| *fence).max();
        assert!(
            largest.is_none_or(|largest| largest < fence),
            "{} has fence {fence} after {largest:?}",
            show(token)
        );
        self.fences.push((token.clone(), fence));
    }

    /// How many wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.sent.values().filter(|sent| sent.waits()).count()
    }

    /// Somebody waits at this gate.
    pub(crate) fn waits_at(&self, gate: usize) -> bool {
        self.sent
            .values()
            .any(|sent| sent.waits() && sent.gate == gate)
    }
}

/// A token as text; the tokens of a simulation are no secrets.
pub(crate) fn show(token: &Token) -> String {
    String::from_utf8_lossy(token.as_bytes()).into_owned()
}
