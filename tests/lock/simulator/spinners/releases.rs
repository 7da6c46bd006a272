//! How clients that spin give up the lock, and the token of a refused attempt.

use lockgate::lock::{Event, Refusal, Reply, RequestId};

use super::Release;
use crate::simulator::{
    checks::Purpose,
    clients::OUTSIDER,
    world::{Ev, World},
};

impl World {
    /// Releases the token of a refused attempt.
    pub(crate) fn clean_up(&mut self, who: usize) {
        let spinner = self.spinners.all[who].clone();
        match spinner.gate.and_then(|gate| self.living_gate(gate)) {
            Some(gate) => self.send_release(who, gate, 0, false),
            None => self.spins_on(who),
        }
    }

    /// Gives the lock up.
    pub(crate) fn give_up(&mut self, who: usize) {
        let spinner = self.spinners.all[who].clone();
        let Some(request) = self.spinners.all[who].granted.take() else {
            return;
        };
        let until = self.checks.owner_by(self.now, request).map(|it| it.until);
        self.checks.gives_up_grant(request);
        // Too late, it might release the lock of another client.
        let Some(until) = until else {
            return self.next_round(who);
        };
        let Some(gate) = spinner.gate else {
            let token = Some(&spinner.token).filter(|_| !spinner.deletes);
            if self.serves() {
                self.store.delete(self.now, token);
                self.stored();
            }
            return self.next_round(who);
        };
        match self.living_gate(gate) {
            Some(gate) => self.send_release(who, gate, until, spinner.deletes),
            None => self.next_round(who),
        }
    }

    fn send_release(&mut self, who: usize, gate: usize, until: u64, deletes: bool) {
        let spinner = self.spinners.all[who].clone();
        let sabotages = self.totals.sabotages;
        let purpose = Purpose::GiveUp(who, until, sabotages);
        let (asked_at, due) = self.asked_at(gate);
        let request = self.request(purpose, gate, Some(due), false);
        self.tell(|| format!("spinner {who} gives up at gate {gate}, by DEL: {deletes}"));
        self.spinners.releases.push(Release {
            request,
            token: spinner.token.clone(),
            at: self.now,
            until,
            sabotages,
            is_open: false,
        });
        let (user, token) = (spinner.user, spinner.token);
        let event = match deletes {
            true => Event::Delete {
                request,
                asked_at,
                user,
            },
            false => Event::Unlock {
                request,
                asked_at,
                user,
                token,
                absorbed: true,
            },
        };
        self.feed(gate, event);
    }

    pub(crate) fn give_up_answered(
        &mut self,
        who: usize,
        request: RequestId,
        (until, sabotages): (u64, u64),
        reply: &Reply,
    ) {
        let sent = self.checks.sent[&request].clone();
        let spinner = self.spinners.all[who].clone();
        match reply {
            Reply::Refused(_) => {
                for release in &mut self.spinners.releases {
                    release.is_open |= release.request == request;
                }
            }
            _ => self.spinners.releases.retain(|it| it.request != request),
        }
        let refused = matches!(reply, Reply::Refused(_));
        assert!(
            spinner.user != OUTSIDER || refused,
            "spinner {who} may not know of the lock, and was told {reply:?}"
        );
        // A gate that wrote a strict lease back may not know its deadline any more, and leaves its token alone.
        let is_known = !spinner.strict || self.totals.losses == 0;
        if *reply == Reply::Done && until > 0 && !spinner.is_constant() && is_known {
            self.released(spinner.token.clone(), sent.gate);
        }
        if until == 0 {
            return self.spins_on(who);
        }
        if *reply == Reply::NotHeld && spinner.deletes {
            let delay = self.delay();
            return self.after(delay, Ev::PassDelete(who, until, sabotages));
        }
        assert!(
            *reply == Reply::Done
                || until <= self.now
                || self.may_fail(&sent, sabotages, reply)
                || *reply == Reply::Refused(Refusal::TooManyWaiters),
            "an attempt that was granted the lock had lost it: {reply:?}"
        );
        self.next_round(who);
    }

    /// The client's `DEL` reaches the store, and deletes the key of whatever client.
    pub(crate) fn pass_delete(&mut self, who: usize, until: u64, sabotages: u64) {
        let token = self.spinners.all[who].token.clone();
        if self.serves() && self.store.holder(self.now).is_some() {
            self.tell(|| format!("the DEL of spinner {who} is executed"));
            let in_time = until > self.now && sabotages == self.totals.sabotages;
            if !in_time || !self.store.is_held_by(self.now, &token) {
                self.sabotaged();
            }
            self.store.delete(self.now, None);
            self.stored();
        }
        self.next_round(who);
    }
}
