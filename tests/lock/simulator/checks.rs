//! What was promised, checked by what can be seen from outside.

use std::collections::BTreeMap;

use lockgate::lock::{RequestId, Token};

/// Who believes to hold the lock.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(crate) token: Token,
    /// By its own count of its lease, in microseconds.
    pub(crate) until: u64,
}

/// A request that a client sent.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) gate: usize,
    /// In the order in which the gate got them.
    pub(crate) order: u64,
    /// It waits in line like everybody: own token, nothing special.
    pub(crate) plain: bool,
    /// It must be answered by then.
    pub(crate) due: Option<u64>,
    pub(crate) answered: bool,
    pub(crate) gone: bool,
}

#[derive(Default)]
pub(crate) struct Checks {
    pub(crate) owners: Vec<Owner>,
    pub(crate) sent: BTreeMap<RequestId, Sent>,
    /// Tokens whose lock somebody deleted, perhaps before they heard of their grant.
    pub(crate) victims: Vec<Token>,
    /// Since when the lock is free while somebody waits.
    pub(crate) idle_since: Option<u64>,
}

impl Checks {
    /// A client was told that its token holds the lock until then.
    pub(crate) fn granted(&mut self, now: u64, token: &Token, until: u64) {
        self.owners
            .retain(|owner| owner.until > now && owner.token != *token);
        if let Some(other) = self.owners.first() {
            panic!(
                "two owners at {now}: {} until {}, and now {}",
                show(&other.token),
                other.until,
                show(token)
            );
        }
        self.owners.push(Owner {
            token: token.clone(),
            until,
        });
    }

    /// A client gave the lock up, or lost it by the act of somebody who may.
    pub(crate) fn no_owner(&mut self, token: Option<&Token>) {
        self.owners
            .retain(|owner| token.is_some_and(|token| owner.token != *token));
    }

    /// The token's owner still counts on it.
    pub(crate) fn owns(&self, now: u64, token: &Token) -> bool {
        self.owners
            .iter()
            .any(|owner| owner.token == *token && owner.until > now)
    }

    pub(crate) fn replied(&mut self, now: u64, request: RequestId, granted: bool) {
        let sent = self
            .sent
            .get_mut(&request)
            .unwrap_or_else(|| panic!("a reply to nobody"));
        assert!(!sent.answered, "{request:?} was answered twice");
        assert!(!sent.gone, "{request:?} was answered after it was gone");
        assert!(
            sent.due.is_none_or(|due| now <= due),
            "{request:?} was answered after its WAIT"
        );
        sent.answered = true;
        let (gate, order, plain) = (sent.gate, sent.order, sent.plain);
        if granted && plain {
            let passed = self.sent.iter().find(|(_, other)| {
                let waits = !other.answered && !other.gone;
                other.plain && waits && other.gate == gate && other.order < order
            });
            assert!(
                passed.is_none(),
                "{request:?} was served before {:?}",
                passed.map(|(id, _)| id)
            );
        }
    }

    /// How many wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.sent
            .values()
            .filter(|sent| !sent.answered && !sent.gone)
            .count()
    }
}

/// A token as text; the tokens of a simulation are no secrets.
pub(crate) fn show(token: &Token) -> String {
    String::from_utf8_lossy(token.as_bytes()).into_owned()
}
