//! Clients that send `UNLOCK` after `UNLOCK` with tokens that hold nothing, twenty at a time, some of them without any
//! right to the lock. They must not delay the others: the checks on waiters and owners hold on such a day as on any,
//! and a batch costs a few store requests.

use std::collections::BTreeMap;

use lockgate::lock::{Event, Reply, RequestId, Time, Token, UserId};

use super::{
    MILLI,
    clients::OUTSIDER,
    world::{Ev, World},
};

/// Their requests are numbered from here.
const FIRST_REQUEST: u64 = 1 << 40;
/// Requests in a batch.
const BATCH: u64 = 20;
/// Batches of one client.
const BATCHES: u64 = 20;
/// Questions of the gate within which a batch is answered.
const MOST_QUESTIONS: u64 = 40;

/// One such client.
pub(crate) struct Nag {
    gate: usize,
    user: UserId,
    batches: u64,
    unanswered: u64,
    began_at: u64,
    /// Questions of the gate until then.
    asked: u64,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Nags {
    all: Vec<Nag>,
    next: u64,
    sent: BTreeMap<RequestId, usize>,
}

impl World {
    /// On some days there are six, all at one gate.
    pub(super) fn nags(&mut self, seed: u64) {
        if self.day.calm || !seed.is_multiple_of(4) {
            return;
        }
        let gate = usize::try_from(seed / 4).unwrap() % self.day.gates;
        for number in 0..6 {
            let user = match number % 2 {
                0 => OUTSIDER,
                _ => UserId(number % u32::try_from(self.day.users).unwrap()),
            };
            self.nags.all.push(Nag {
                gate,
                user,
                batches: 0,
                unanswered: 0,
                began_at: 0,
                asked: 0,
            });
            self.at(
                self.day.span / 4 + u64::from(number) * self.day.way,
                Ev::Nag(number as usize),
            );
        }
    }

    pub(super) fn nag(&mut self, number: usize) {
        let (now, gate) = (self.now, self.nags.all[number].gate);
        if !self.gates[gate].alive {
            return;
        }
        let asked = self.gates[gate].asked;
        let nag = &mut self.nags.all[number];
        (nag.batches, nag.unanswered) = (nag.batches + 1, BATCH);
        (nag.began_at, nag.asked) = (now, asked);
        let user = nag.user;
        for _ in 0..BATCH {
            self.nags.next += 1;
            let request = RequestId(FIRST_REQUEST + self.nags.next);
            self.nags.sent.insert(request, number);
            let unlock = Event::Unlock {
                request,
                asked_at: Time::from_micros(self.gates[gate].clock.at(now)),
                user,
                token: Token::new(format!("n{}", self.nags.next)),
                absorbed: false,
            };
            self.feed(gate, unlock);
        }
    }

    /// Whether this is the answer to one of them.
    pub(super) fn is_nags(&mut self, request: RequestId, reply: &Reply) -> bool {
        if request.0 <= FIRST_REQUEST {
            return false;
        }
        let number = self.nags.sent.remove(&request);
        let number = number.unwrap_or_else(|| panic!("{request:?} was answered twice"));
        let nag = &mut self.nags.all[number];
        nag.unanswered -= 1;
        let refused = matches!(reply, Reply::Refused(_));
        assert!(
            refused || (*reply == Reply::NotHeld && nag.user != OUTSIDER),
            "a token that was never granted: {reply:?}"
        );
        let (gate, began_at) = (nag.gate, nag.began_at);
        assert!(
            self.now <= began_at + (self.day.settings.answer_within_ms + 5) * MILLI,
            "a pending operation waited since {began_at}"
        );
        if nag.unanswered == 0 {
            let (store_requests, batches) = (self.gates[gate].asked - nag.asked, nag.batches);
            let disturbed = self.gates[gate].disturbed_at;
            // Within the grace they wait, and the lock is asked about for other reasons.
            let in_grace = began_at < self.store.mark.1;
            let disturbed = in_grace || disturbed.is_some_and(|at| at >= began_at);
            assert!(
                store_requests <= MOST_QUESTIONS || disturbed,
                "{store_requests} store requests for {BATCH} operations"
            );
            if batches < BATCHES {
                let pause = self.random.between(0, self.day.way);
                self.after(pause, Ev::Nag(number));
            }
        }
        true
    }
}
