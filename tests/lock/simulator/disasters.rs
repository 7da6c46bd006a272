//! What goes wrong with the store and with gates, and what is promised all the same.

use std::collections::BTreeSet;

use lockgate::lock::{LinkId, Token, WriteBack};

use super::{
    MILLI, SECOND,
    checks::{Owner, show},
    day::{Disaster, LONGEST_RECONNECT, Moment, SETTLED},
    gates::{Clock, Gate},
    network::Port,
    store::{Loss, Trouble},
    world::{Ev, World},
};

/// A loss of data.
#[derive(Debug)]
pub(crate) struct Lost {
    number: u64,
    crashed_at: u64,
    pub(crate) back_at: u64,
    /// A gate was not told of a change before the loss: it may write back what is over.
    doubt: bool,
    /// Gates that knew of a change and had not looked yet what it was: they write nothing back.
    pub(crate) unsure: Vec<bool>,
    /// Tokens that had the lock before, and every gate that granted it to them was told of a change.
    over: BTreeSet<Token>,
    /// The token that the store brought back.
    holder: Option<Token>,
    /// A client that knows no gate took the free lock.
    pub(crate) was_taken: bool,
}

impl World {
    pub(super) fn open_gates(&mut self) {
        for number in 0..self.day.gates {
            let offset = self.random.between(0, 1_000_000 * SECOND);
            let ahead = match self.day.drifts {
                true => i64::try_from(self.random.between(0, 2_000)).unwrap() - 1_000,
                false => 0,
            };
            self.gates.push(Gate {
                alive: true,
                clock: Clock { offset, ahead },
                ..Gate::default()
            });
            let link = self.new_link(number);
            self.gates[number].port = Port::connected(link);
        }
    }

    pub(super) fn disaster(&mut self, disaster: Disaster) {
        self.tell(|| format!("disaster: {disaster:?}"));
        match disaster {
            Disaster::Break(gate) => self.break_link(gate),
            Disaster::BreakNext(gate) => self.gates[gate].port.breaks_next = true,
            Disaster::Mute(gate) => self.mute(gate),
            Disaster::Hang(span) => self.hang(span),
            Disaster::Restart(loss, span) => self.crash(loss, span),
            Disaster::RestartAt(moment, loss, span) => {
                // Such a moment may not come.
                let any_at = self.now + 500 * MILLI;
                self.crashes_at = Some((moment, loss, span, any_at));
            }
            Disaster::Flush => self.flush(),
            Disaster::Die(gate) => self.die(gate),
            Disaster::Trouble(trouble, span) => self.trouble(trouble, span),
        }
    }

    fn mute(&mut self, gate: usize) {
        if let Some(link) = self.gates[gate].port.link {
            self.silence(link);
            self.disturb(gate);
            // So long until it is asked whether it lives, and does not answer.
            self.after(7 * SECOND, Ev::Silent(link));
        }
    }

    pub(super) fn is_silent(&mut self, link: LinkId) {
        let gate = self.link_of(link).gate;
        if self.gates[gate].port.link == Some(link) {
            self.break_link(gate);
        }
    }

    fn hang(&mut self, span: u64) {
        if self.is_down || self.hangs_until.is_some() {
            return;
        }
        self.disturb_all();
        self.hangs_until = Some(self.now + span);
        self.after(span, Ev::GoesOn);
    }

    pub(super) fn goes_on(&mut self) {
        if self.hangs_until == Some(self.now) {
            self.tell(|| "the store goes on".to_owned());
            self.hangs_until = None;
            self.disturb_all();
        }
    }

    fn trouble(&mut self, trouble: Trouble, span: u64) {
        if self.is_down {
            return;
        }
        self.store.trouble = Some(trouble);
        self.troubles += 1;
        self.trouble_at = Some(self.now);
        self.disturb_all();
        self.after(span, Ev::TroubleOver(self.troubles));
    }

    pub(super) fn trouble_over(&mut self, number: u64) {
        if self.troubles == number && self.store.trouble.take().is_some() {
            self.tell(|| "the trouble is over".to_owned());
            self.trouble_at = Some(self.now);
            self.disturb_all();
        }
    }

    fn flush(&mut self) {
        if self.is_down || self.hangs_until.is_some() {
            return;
        }
        self.sabotaged();
        for link in self.store.flush(self.now) {
            self.push(link, true);
        }
        self.stored();
    }

    /// Whoever holds the lock loses it, by somebody who may.
    pub(super) fn sabotaged(&mut self) {
        self.totals.sabotages += 1;
        let victim = self
            .store
            .holder(self.now)
            .map(|(holder, _)| holder.clone());
        self.checks.victims.extend(victim);
        self.checks.rob(|_| true);
    }

    // ── gates ────────────────────────────────────────────────────────────────────────────────

    fn die(&mut self, gate: usize) {
        if !self.gates[gate].alive {
            return;
        }
        self.tell(|| format!("gate {gate} dies"));
        self.totals.deaths += 1;
        self.disturb(gate);
        self.unplug(gate);
        let Gate {
            life, clock, port, ..
        } = std::mem::take(&mut self.gates[gate]);
        self.gates[gate] = Gate {
            life: life + 1,
            clock,
            port: port.of_a_dead_gate(),
            disturbed_at: Some(self.now),
            died_at: Some(self.now),
            ..Gate::default()
        };
        let is_here = |owner: &Owner| owner.gate == Some(gate);
        self.checks
            .owners
            .retain(|owner| !(is_here(owner) && owner.session));
        for owner in self.checks.owners.iter_mut().filter(|owner| is_here(owner)) {
            owner.orphan = true;
        }
        self.lose_connections(gate);
        let span = self.random.between(20, 2_000) * MILLI;
        self.after(span, Ev::Return(gate));
    }

    pub(super) fn returns(&mut self, gate: usize) {
        self.tell(|| format!("gate {gate} is started again"));
        self.gates[gate].alive = true;
        self.connect_later(gate);
    }

    // ── a store that forgets ─────────────────────────────────────────────────────────────────

    /// The moment has come: the store crashes within this time, if it is to.
    pub(super) fn crash_at(&mut self, now: Moment, within: u64) {
        let time = self.now;
        let due = |(moment, _, _, any_at): &mut (Moment, Loss, u64, u64)| {
            *moment == now || (now == Moment::Question && *any_at <= time)
        };
        if let Some((_, loss, span, _)) = self.crashes_at.take_if(due) {
            let at = self.random.between(0, within);
            self.after(at, Ev::Disaster(Disaster::Restart(loss, span)));
        }
    }

    fn crash(&mut self, loss: Loss, span: u64) {
        if self.is_down {
            return;
        }
        self.forgets_again();
        self.totals.losses += 1;
        let doubt = self.gates.iter().any(Gate::missed_a_change);
        let unsure = self.gates.iter().map(|gate| gate.heard.is_some()).collect();
        self.loss = Some(Lost {
            number: self.totals.losses,
            crashed_at: self.now,
            back_at: u64::MAX / 2,
            doubt,
            unsure,
            over: self.known_to_be_over(),
            holder: None,
            was_taken: false,
        });
        self.is_down = true;
        self.hangs_until = None;
        self.store.trouble = None;
        self.disturb_all();
        for gate in 0..self.gates.len() {
            self.break_link(gate);
        }
        self.after(span, Ev::Back(loss, self.now));
    }

    /// Another loss before the grace of the last one was over: what a gate was not sure of then it
    /// has looked at by now, and does not write back either.
    fn forgets_again(&mut self) {
        let Some(lost) = &self.loss else {
            return;
        };
        let (unsure, back_at) = (lost.unsure.clone(), lost.back_at);
        if self.now < back_at.saturating_add(SETTLED) {
            self.excuse(|owner| owner.since < back_at && owner.gate.is_some_and(|it| unsure[it]));
        }
    }

    pub(super) fn back(&mut self, loss: Loss, crashed_at: u64) {
        self.is_down = false;
        self.store.restart(self.now, crashed_at, loss);
        let (now, way) = (self.now, self.day.way);
        let holder = self.store.holder(now).map(|(token, _)| token.clone());
        self.tell(|| {
            format!(
                "the store is back; {:?} has the lock",
                holder.as_ref().map(show)
            )
        });
        self.disturb_all();
        for gate in 0..self.gates.len() {
            if self.gates[gate].alive {
                self.connect_later(gate);
            }
        }
        self.checks.zombies.extend(
            holder
                .clone()
                .filter(|it| self.checks.owner(now, it).is_none()),
        );
        let settings = self.day.settings;
        let lost = self.loss.as_mut().expect("it crashed");
        lost.back_at = now;
        lost.holder = holder;
        let number = lost.number;
        let released_by = lost
            .holder
            .as_ref()
            .and_then(|it| self.checks.released_by.get(it))
            .copied();
        let may_lose: Vec<Token> = self
            .checks
            .owners
            .iter()
            .filter(|owner| lost.doubt || Self::meets_another(lost, owner, released_by))
            .map(|owner| owner.token.clone())
            .collect();
        self.excuse(|owner| {
            let written_back = match settings.write_back {
                WriteBack::All => true,
                WriteBack::Session => owner.session,
                WriteBack::Off => false,
            };
            // Even where its token came back, its deadline may be an earlier one.
            let safe = written_back && !owner.orphan && owner.gate.is_some();
            loss != Loss::Nothing && (!safe || may_lose.contains(&owner.token))
        });
        self.after(
            LONGEST_RECONNECT + 6 * way + 60 * MILLI,
            Ev::WrittenBack(number),
        );
        self.after(SETTLED, Ev::GraceOver(number));
        self.stored();
    }

    fn excuse(&mut self, whom: impl Fn(&Owner) -> bool) {
        let count = self
            .checks
            .owners
            .iter()
            .filter(|owner| whom(owner))
            .count();
        self.totals.excused += count as u64;
        self.checks.rob(whom);
    }

    /// The gate was there in time after the loss, and has been since.
    fn was_well_since(&self, gate: usize, lost: &Lost) -> bool {
        let by = lost.back_at + LONGEST_RECONNECT;
        let refused = self.trouble_at.is_some_and(|at| at > lost.back_at);
        self.is_well(gate) && !refused && self.gates[gate].disturbed_at.is_none_or(|at| at <= by)
    }

    /// The store brought a token back that this owner's gate cannot know to be over.
    fn meets_another(lost: &Lost, owner: &Owner, released_by: Option<usize>) -> bool {
        match &lost.holder {
            Some(holder) if *holder != owner.token => released_by != owner.gate,
            _ => false,
        }
    }

    /// The store brought a token back that this owner's gate released, and nothing but that kept the
    /// gate from writing the lease back.
    pub(super) fn met_what_it_released(&self, owner: &Owner) -> bool {
        let (Some(lost), Some(gate)) = (&self.loss, owner.gate) else {
            return false;
        };
        let back = lost.holder.as_ref().filter(|it| **it != owner.token);
        let back = back.filter(|it| self.store.is_held_by(self.now, it));
        let released_by = back.and_then(|it| self.checks.released_by.get(it));
        let in_time = self.now < lost.back_at.saturating_add(SETTLED);
        let sure = !lost.doubt && !lost.unsure[gate] && !lost.was_taken;
        // A session is renewed at a third of its lease, and told a twelfth before its end that it was not.
        let is_late = owner.session && self.now >= lost.crashed_at + owner.lease * 7 / 12;
        let safe = sure && !is_late && !owner.robbed && owner.since < lost.crashed_at;
        released_by == Some(&gate) && in_time && safe && self.was_well_since(gate, lost)
    }

    /// Nobody took a lock that was found free before this. From now on gates may, and those owners
    /// are not safe whose gates could not write back.
    pub(super) fn grace_over(&mut self, number: u64) {
        let Some(lost) = self.loss.take_if(|lost| lost.number == number) else {
            return;
        };
        let excused: Vec<Token> = self
            .checks
            .owners
            .iter()
            .filter(|owner| owner.since < lost.back_at)
            .filter(|owner| !self.store.is_held_by(self.now, &owner.token))
            .filter(|owner| {
                let safe = |gate: usize| !lost.unsure[gate] && self.was_well_since(gate, &lost);
                owner.orphan || !owner.gate.is_some_and(safe)
            })
            .map(|owner| owner.token.clone())
            .collect();
        self.loss = Some(lost);
        self.excuse(|owner| excused.contains(&owner.token));
    }

    fn known_to_be_over(&self) -> BTreeSet<Token> {
        let is_told =
            |gates: &BTreeSet<usize>| gates.iter().all(|gate| self.gates[*gate].heard.is_some());
        let granted = self.checks.granted_by.iter();
        let over = granted.filter(|(token, gates)| {
            let is_held = self.store.is_held_by(self.now, token);
            !is_held && is_told(gates) && !self.is_waited_for(token)
        });
        over.map(|(token, _)| token.clone()).collect()
    }

    /// A lock that its gate knew to be changed does not come back by the gate's doing.
    fn is_not_written_back_in_vain(&self, lost: &Lost) {
        let Some((holder, _)) = self.store.holder(self.now) else {
            return;
        };
        let asked_at = self.checks.asked_at.get(holder);
        let came_back = asked_at.is_some_and(|at| *at >= lost.crashed_at);
        let kept = lost.holder.as_ref() == Some(holder);
        assert!(
            came_back || kept || !lost.over.contains(holder),
            "{} was written back though its gate knew of a change",
            show(holder)
        );
    }

    /// Every lease that was not over is in the store again, until its end.
    pub(super) fn is_written_back(&mut self, number: u64) {
        let Some(lost) = self.loss.take_if(|lost| lost.number == number) else {
            return;
        };
        self.is_not_written_back_in_vain(&lost);
        let all_well = (0..self.gates.len()).all(|gate| self.was_well_since(gate, &lost));
        if all_well && !lost.doubt && !lost.was_taken {
            for owner in &self.checks.owners {
                let released_by = lost
                    .holder
                    .as_ref()
                    .and_then(|it| self.checks.released_by.get(it));
                if owner.robbed
                    || owner.orphan
                    || owner.since >= lost.crashed_at
                    || owner.until <= self.now
                    || owner.gate.is_none_or(|gate| lost.unsure[gate])
                    || Self::meets_another(&lost, owner, released_by.copied())
                {
                    continue;
                }
                // A gate's clock and the store's do not agree to the last of a lease.
                let tolerance = MILLI + owner.lease / 500;
                let holder = self.store.holder(self.now);
                if holder.is_none() && owner.until <= self.now + tolerance {
                    continue;
                }
                let until = holder
                    .filter(|(it, _)| **it == owner.token)
                    .map(|(_, until)| until);
                assert!(
                    until.is_some_and(|until| {
                        owner.session || until * MILLI + tolerance >= owner.until
                    }),
                    "{} was not written back until {}: {holder:?}",
                    show(&owner.token),
                    owner.until
                );
                self.totals.written_back += 1;
            }
        }
        self.loss = Some(lost);
    }
}
