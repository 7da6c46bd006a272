//! A model of one key in Redis and of the fence counter: scripts that run at once, an expiry that is
//! true at its time but told late, and tracking as Redis does it. A read arms the reader's
//! connection; a change by somebody else tells and disarms it, one's own change disarms it without
//! a word (`NOLOOP`); a key that is found expired is told to everybody, the finder included.
//!
//! It can lose what it holds: start anew with nothing, or with what it held a while ago.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use lockgate::lock::{
    Deadline, Fence, LinkId, MARK_MS, Mark, Missing, Outcome, StoreReply, StoreRequest, Token,
    fault::{Fault, planted},
};

use super::clients::OUTSIDER;

/// Why the store does not do what it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// `LOADING`, to everything.
    Loading,
    /// `READONLY`, to what writes.
    ReadOnly,
    /// `NOPERM`, to everything.
    NoPermission,
    /// `OOM`, to what needs memory.
    OutOfMemory,
    /// The number of replicas that acknowledge writes.
    Replicas(u32),
}

/// What is left of the data after a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Everything.
    Nothing,
    /// Nothing.
    All,
    /// All but the changes of the latest so many microseconds: a replica took over.
    Latest(u64),
}

#[derive(Clone, Default)]
struct Data {
    value: Option<(Token, u64)>,
    counter: u64,
}

/// A change that happened, for those who are to be told.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// On which connection it was made; none: by somebody who knows no gate, or by time.
    pub(crate) by: Option<LinkId>,
    /// Connections that are told.
    pub(crate) told: Vec<LinkId>,
}

#[derive(Default)]
pub(crate) struct Store {
    data: Data,
    /// What it held, and since when.
    past: Vec<(u64, Data)>,
    armed: BTreeSet<LinkId>,
    /// It knows tracking.
    pub(crate) tells: bool,
    pub(crate) trouble: Option<Trouble>,
    /// Another one after every restart.
    pub(crate) epoch: u64,
    /// By how much its clock is behind that of the first one, in microseconds.
    pub(crate) behind: u64,
    /// The mark of the grace: of which epoch, and when it ends.
    pub(crate) mark: (u64, u64),
    /// Grows with every change.
    pub(crate) version: u64,
    pub(crate) changes: Vec<Change>,
    /// How many replicas acknowledged the latest grant of a token.
    pub(crate) acknowledged: BTreeMap<Token, u32>,
    /// Commands of gates.
    pub(crate) commands: u64,
}

impl Store {
    /// A store whose fence counter stands at `counter`.
    pub(crate) fn new(tells: bool, counter: u64) -> Self {
        let mut store = Self {
            tells,
            ..Self::default()
        };
        store.data.counter = counter;
        store
    }

    /// The holder of the lock at `now`, in microseconds, and the end of its lease, in milliseconds.
    pub(crate) fn holder(&self, now: u64) -> Option<(&Token, u64)> {
        // A key lives through the whole of its last millisecond.
        let lives = |(_, deadline): &&(Token, u64)| now / 1_000 <= *deadline;
        let value = self.data.value.as_ref().filter(lives);
        value.map(|(token, deadline)| (token, *deadline))
    }

    /// This token holds the lock.
    pub(crate) fn is_held_by(&self, now: u64, token: &Token) -> bool {
        self.holder(now).is_some_and(|(holder, _)| holder == token)
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.data.value.as_ref().map(|(_, deadline)| *deadline)
    }

    fn change(&mut self, now: u64, value: Option<(Token, u64)>, by: Option<LinkId>) {
        self.past.push((now, self.data.clone()));
        self.data.value = value;
        self.version += 1;
        let armed = std::mem::take(&mut self.armed);
        let told = armed.into_iter().filter(|link| Some(*link) != by).collect();
        self.changes.push(Change { by, told });
    }

    /// Removes a key whose time is over, as Redis does whenever it comes across it.
    pub(crate) fn expire(&mut self, now: u64) {
        if self.data.value.is_some() && self.holder(now).is_none() {
            self.change(now, None, None);
        }
    }

    /// What a plain client does: `SET key token NX PX lease`.
    pub(crate) fn set_nx(&mut self, now: u64, token: &Token, lease_ms: u64) -> bool {
        self.expire(now);
        if self.data.value.is_some() || self.trouble.is_some() {
            return false;
        }
        self.change(now, Some((token.clone(), now / 1_000 + lease_ms)), None);
        true
    }

    /// What a plain client does: delete the key if the token holds it; or, without one, at any rate.
    pub(crate) fn delete(&mut self, now: u64, token: Option<&Token>) -> bool {
        self.expire(now);
        match &self.data.value {
            Some((holder, _)) if token.is_none_or(|token| token == holder) => {
                self.change(now, None, None);
                true
            }
            _ => false,
        }
    }

    /// `FLUSHALL`: the connections that are told that everything may have changed.
    pub(crate) fn flush(&mut self, now: u64) -> Vec<LinkId> {
        let armed = std::mem::take(&mut self.armed);
        self.change(now, None, None);
        self.data.counter = 0;
        self.changes.last_mut().expect("it was made").told.clear();
        armed.into_iter().collect()
    }

    /// Comes back after it ended at `ended_at`, with what the loss leaves.
    pub(crate) fn restart(&mut self, now: u64, ended_at: u64, loss: Loss) {
        let data = match loss {
            Loss::Nothing => self.data.clone(),
            Loss::All => Data::default(),
            Loss::Latest(span) => {
                let moment = ended_at.saturating_sub(span);
                let replaced = self.past.iter().find(|(until, _)| *until > moment);
                replaced.map_or(&self.data, |(_, data)| data).clone()
            }
        };
        self.past.clear();
        self.armed.clear();
        self.data = data;
        self.version += 1;
        self.epoch += 1;
        self.expire(now);
        self.changes.clear();
    }

    /// The connection is no more.
    pub(crate) fn disarm(&mut self, link: LinkId) {
        self.armed.remove(&link);
    }

    /// What it says to a gate that has seen fences up to `seen`.
    pub(crate) fn answer(
        &mut self,
        now: u64,
        link: LinkId,
        store_request: &StoreRequest,
        seen: u64,
    ) -> StoreReply {
        self.commands += 1;
        if self.trouble == Some(Trouble::OutOfMemory) {
            self.expire(now);
        }
        if let Some(outcome) = self.refusal(store_request) {
            return StoreReply {
                outcome,
                armed: None,
                grace_ms: None,
            };
        }
        self.expire(now);
        if let Some(missing) = self.missing(store_request)
            && (self.is_refused_before(now, store_request))
        {
            return StoreReply {
                outcome: Outcome::Unacknowledged {
                    missing,
                    done: None,
                },
                armed: None,
                grace_ms: None,
            };
        }
        let outcome = self.run(now, link, store_request, seen);
        let outcome = self.unacknowledged(store_request, outcome);
        let outcome = match (store_request, outcome) {
            // Taken without looking: nothing is told of it, now or later.
            (StoreRequest::Acquire { bare: true, .. }, Outcome::Granted { fresh: true, .. }) => {
                let outcome = Outcome::Granted {
                    deadline: Deadline(0),
                    fresh: false,
                    fence: None,
                };
                return StoreReply {
                    outcome,
                    armed: None,
                    grace_ms: None,
                };
            }
            (_, outcome) => outcome,
        };
        // All others end with a read, but what leaves nothing to read.
        let reads = !matches!(
            (store_request, &outcome),
            (
                StoreRequest::Release { .. } | StoreRequest::DeleteDead { .. },
                Outcome::Free
            )
        );
        let armed = (reads && self.tells).then_some(link);
        self.armed.extend(armed);
        StoreReply {
            outcome,
            armed,
            grace_ms: None,
        }
    }

    /// How many replicas acknowledge what comes.
    fn replicas(&self) -> u32 {
        match self.trouble {
            Some(Trouble::Replicas(there)) => there,
            _ => u32::MAX,
        }
    }

    /// The replicas that are missing for what is asked.
    fn missing(&self, store_request: &StoreRequest) -> Option<Missing> {
        let have = self.replicas();
        (store_request.replicas() > have).then(|| Missing {
            error: Bytes::from_static(b"NOREPLICAS"),
            have,
            again_ms: Some(40 + self.commands % 60),
        })
    }

    /// Replicas that are known to be missing are not waited for again; and no lease is shortened before they
    /// acknowledge it.
    fn is_refused_before(&self, now: u64, store_request: &StoreRequest) -> bool {
        let (StoreRequest::Acquire {
            token, lease_ms, ..
        }
        | StoreRequest::Extend {
            token, lease_ms, ..
        }) = store_request
        else {
            return false;
        };
        let holder = self.holder(now).filter(|(holder, _)| *holder == token);
        let shortens = holder.is_some_and(|(_, deadline)| deadline > now / 1_000 + lease_ms);
        let shortens = shortens && !planted(Fault::ShortenedUnacknowledged);
        shortens || self.commands.is_multiple_of(2)
    }

    /// What becomes of a grant that too few replicas acknowledge.
    fn unacknowledged(&mut self, store_request: &StoreRequest, outcome: Outcome) -> Outcome {
        let Outcome::Granted {
            deadline, fresh, ..
        } = outcome
        else {
            return outcome;
        };
        let extended = match store_request {
            StoreRequest::Extend { token, .. } => Some(token),
            _ => None,
        };
        let granted = store_request.grants_to().map(|(_, token, _)| token);
        if let Some(token) = granted.or(extended) {
            let acknowledged = store_request.replicas().min(self.replicas());
            self.acknowledged.insert(token.clone(), acknowledged);
        }
        match self.missing(store_request) {
            Some(missing) => Outcome::Unacknowledged {
                missing,
                done: Some((deadline, fresh)),
            },
            None => outcome,
        }
    }

    fn refusal(&self, store_request: &StoreRequest) -> Option<Outcome> {
        let writes = !matches!(store_request, StoreRequest::Check { .. });
        let refused = |text| Some(Outcome::Refused(Bytes::from_static(text)));
        match self.trouble {
            Some(Trouble::Loading) => Some(Outcome::NotNow(Bytes::from_static(b"LOADING"))),
            _ if store_request.user() == OUTSIDER => refused(b"NOPERM outsider"),
            Some(Trouble::ReadOnly) if writes => {
                Some(Outcome::NotNow(Bytes::from_static(b"READONLY")))
            }
            Some(Trouble::NoPermission) => refused(b"NOPERM"),
            Some(Trouble::OutOfMemory) if self.needs_memory(store_request) => refused(b"OOM"),
            Some(Trouble::ReadOnly | Trouble::OutOfMemory | Trouble::Replicas(_)) | None => None,
        }
    }

    /// A key that is there can get another expiry without memory; a value or a fence cannot be set.
    fn needs_memory(&self, store_request: &StoreRequest) -> bool {
        let holder = self.data.value.as_ref().map(|(holder, _)| holder);
        match store_request {
            StoreRequest::Acquire { token, fence, .. } => {
                holder.is_none() || (holder == Some(token) && *fence != Fence::No)
            }
            StoreRequest::Handover {
                from, to, fence, ..
            } => holder == Some(from) || (holder == Some(to) && *fence),
            StoreRequest::WriteBack { .. } => holder.is_none(),
            StoreRequest::Release { .. }
            | StoreRequest::Extend { .. }
            | StoreRequest::Check { .. }
            | StoreRequest::DeleteDead { .. } => false,
        }
    }

    fn run(&mut self, now: u64, link: LinkId, store_request: &StoreRequest, seen: u64) -> Outcome {
        let holder = self.data.value.clone();
        let is = |token: &Token| holder.as_ref().is_some_and(|(holder, _)| holder == token);
        let is_at = |only_if: &Option<Deadline>| {
            let deadline = holder.as_ref().map(|(_, deadline)| Deadline(*deadline));
            only_if.is_none_or(|at| deadline == Some(at))
        };
        let held = || match &holder {
            Some((token, deadline)) => Outcome::Held {
                holder: Some(token.clone()),
                ttl_ms: Some(deadline.saturating_sub(now / 1_000)),
            },
            None => Outcome::Free,
        };
        match store_request {
            StoreRequest::Acquire {
                token,
                lease_ms,
                fence,
                expects,
                ..
            } if holder.is_none() || is(token) && !store_request.is_strict() => {
                let expected = expects.is_some() && is_at(expects);
                let fence = match fence {
                    Fence::No => None,
                    Fence::NewUnless(at) if holder.is_some() && is_at(&Some(*at)) => None,
                    Fence::New | Fence::NewUnless(_) => Some(self.next_fence(now, seen)),
                };
                self.set(now, link, token, *lease_ms, expected, fence)
            }
            StoreRequest::Handover {
                from,
                only_if,
                to,
                lease_ms,
                fence,
                strict,
                ..
            } if is(from) && is_at(only_if) => {
                let fence = fence.then(|| self.next_fence(now, seen));
                self.set(now, link, to, *lease_ms, *strict, fence)
            }
            StoreRequest::Handover {
                to,
                lease_ms,
                fence,
                ..
            } if is(to) && !store_request.is_strict() => {
                let fence = fence.then(|| self.next_fence(now, seen));
                self.set(now, link, to, *lease_ms, false, fence)
            }
            StoreRequest::Release { token, only_if, .. } if is(token) && is_at(only_if) => {
                self.change(now, None, Some(link));
                Outcome::Free
            }
            StoreRequest::Release { .. } => Outcome::Held {
                holder: None,
                ttl_ms: None,
            },
            StoreRequest::Extend {
                token,
                lease_ms,
                expects,
                mark,
                ..
            } if is(token) => {
                let expected = expects.is_some() && is_at(expects);
                let remainder = |at: u64| at % MARK_MS;
                let before = holder.as_ref().map(|(_, deadline)| remainder(*deadline));
                let found = *mark == Mark::Found
                    && expects.is_some_and(|Deadline(at)| before == Some(remainder(at)));
                let outcome = self.set(now, link, token, *lease_ms, expected || found, None);
                match (outcome, expects) {
                    (
                        Outcome::Granted {
                            deadline: Deadline(at),
                            fresh: true,
                            fence,
                        },
                        Some(Deadline(expected)),
                    ) if *mark != Mark::None => {
                        let at = at + (MARK_MS + remainder(*expected) - remainder(at)) % MARK_MS;
                        self.data.value = Some((token.clone(), at));
                        Outcome::Granted {
                            deadline: Deadline(at),
                            fresh: true,
                            fence,
                        }
                    }
                    (outcome, _) => outcome,
                }
            }
            StoreRequest::WriteBack {
                token, lease_ms, ..
            } if holder.is_none() || is(token) => self.restore(now, link, token, *lease_ms),
            StoreRequest::DeleteDead { token, dead }
                if is(token)
                    && holder
                        .as_ref()
                        .is_some_and(|(_, at)| dead.covers(Deadline(*at))) =>
            {
                self.change(now, None, Some(link));
                Outcome::Free
            }
            StoreRequest::Acquire { .. }
            | StoreRequest::Handover { .. }
            | StoreRequest::Extend { .. }
            | StoreRequest::Check { .. }
            | StoreRequest::WriteBack { .. }
            | StoreRequest::DeleteDead { .. } => held(),
        }
    }

    /// The token holds the lock from now on; its deadline moves by at least 3 ms.
    fn set(
        &mut self,
        now: u64,
        link: LinkId,
        token: &Token,
        lease_ms: u64,
        expected: bool,
        fence: Option<u64>,
    ) -> Outcome {
        let anew = now / 1_000 + lease_ms;
        let before = self
            .data
            .value
            .clone()
            .filter(|(holder, _)| holder == token);
        let deadline = match &before {
            Some((_, before)) if anew.abs_diff(*before) < 3 => before + 3,
            _ => anew,
        };
        self.change(now, Some((token.clone(), deadline)), Some(link));
        Outcome::Granted {
            deadline: Deadline(deadline),
            fresh: before.is_none() || expected,
            fence,
        }
    }

    fn restore(&mut self, now: u64, link: LinkId, token: &Token, lease_ms: u64) -> Outcome {
        let before = self
            .data
            .value
            .clone()
            .filter(|(holder, _)| holder == token);
        let least = before.as_ref().map_or(0, |(_, deadline)| *deadline);
        let deadline = least.max(now / 1_000 + lease_ms);
        if deadline != least {
            self.change(now, Some((token.clone(), deadline)), Some(link));
        }
        Outcome::Granted {
            deadline: Deadline(deadline),
            fresh: before.is_none(),
            fence: None,
        }
    }

    fn next_fence(&mut self, now: u64, seen: u64) -> u64 {
        let clock = now.saturating_sub(self.behind);
        self.data.counter = (self.data.counter + 1).max(clock).max(seen + 1);
        self.data.counter
    }

    /// Later fences are larger than this one.
    pub(crate) fn raise_fence(&mut self, seen: u64) {
        self.data.counter = self.data.counter.max(seen);
    }

    /// What is left of the grace, which begins with the first gate that comes, until when.
    pub(crate) fn grace_until(&mut self, now: u64, grace: u64) -> u64 {
        if self.mark.0 != self.epoch {
            self.mark = (self.epoch, now + grace);
        }
        self.mark.1
    }
}
