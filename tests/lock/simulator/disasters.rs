//! What goes wrong with the store and with gates, and what is promised all the same.

use std::collections::BTreeSet;

use lockgate::lock::{LAST_LOOK_PART, LinkId, RequestId, Token, WriteBack};

use super::{
    MILLI, SECOND,
    checks::{Owner, show},
    day::{Disaster, GRACE, LONGEST_RECONNECT, Moment, NOTICED, SETTLED},
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
    /// So long after it was back the gates are connected that it concerns.
    noticed_within: u64,
    /// These are they.
    has_stake: Vec<bool>,
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

impl Lost {
    /// A gate may take what is over for a lease, or a lease for what is over.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubt || self.was_taken || self.unsure.contains(&true)
    }
}

impl World {
    /// Every gate was there in time after the loss, and has been since.
    pub(super) fn all_were_well_since(&self, lost: &Lost) -> bool {
        (0..self.gates.len()).all(|gate| self.was_well_since(gate, lost))
    }

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
            // Such a moment may not come.
            Disaster::RestartAt(moment, loss, span) => {
                let any_at = self.now + 500 * MILLI;
                self.crashes_at = Some((moment, Disaster::Restart(loss, span), any_at));
            }
            Disaster::Switch(loss) => self.switch(loss),
            Disaster::SwitchAt(moment, loss) => {
                let any_at = self.now + 500 * MILLI;
                self.crashes_at = Some((moment, Disaster::Switch(loss), any_at));
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

    /// Replicas are missing, or were a moment ago: waiters that want more are passed over.
    pub(super) fn lacks_replicas(&self) -> bool {
        let lately = self
            .trouble_at
            .is_some_and(|at| self.now < at + 200 * MILLI + 8 * self.day.way);
        matches!(self.store.trouble, Some(Trouble::Replicas(_))) || (self.day.replicates && lately)
    }

    /// Replicas were missing when the queue chose to serve this request, perhaps.
    pub(super) fn lacked_replicas(&self, request: RequestId) -> bool {
        let sent = self.checks.sent.get(&request);
        let since = sent.is_some_and(|sent| self.trouble_at >= Some(sent.at));
        self.lacks_replicas() || (self.day.replicates && since)
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

    /// Another client, with the right to do so, deletes the lock under its holder.
    pub(super) fn sabotaged(&mut self) {
        self.totals.sabotages += 1;
        self.spinners.deleted_at = self.store.version;
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
        let due = |(moment, _, any_at): &mut (Moment, Disaster, u64)| {
            *moment == now || (now == Moment::StoreRequest && *any_at <= time)
        };
        if let Some((_, disaster, _)) = self.crashes_at.take_if(due) {
            let at = self.random.between(0, within);
            self.after(at, Ev::Disaster(disaster));
        }
    }

    fn crash(&mut self, loss: Loss, span: u64) {
        if self.is_down {
            return;
        }
        self.loses(u64::MAX / 2, LONGEST_RECONNECT);
        self.is_down = true;
        for gate in 0..self.gates.len() {
            self.break_link(gate);
        }
        self.after(span, Ev::Back(loss, self.now));
    }

    /// The connections lead nowhere, and each gate finds out by itself.
    fn switch(&mut self, loss: Loss) {
        if self.is_down {
            return;
        }
        self.totals.switches += 1;
        self.loses(self.now, NOTICED + LONGEST_RECONNECT);
        for gate in 0..self.gates.len() {
            let Some(link) = self.gates[gate].port.link else {
                continue;
            };
            self.silence(link);
            self.store.disarm(link);
            let within = match self.gates[gate].has_stake(self.now) {
                true => NOTICED,
                false => 7 * SECOND,
            };
            let found = self.random.between(within / 10, within);
            self.after(found, Ev::Silent(link));
        }
        self.comes_back(loss, self.now);
    }

    /// The store loses data, and is back at that time; so long after that gates are connected again that a loss
    /// concerns.
    fn loses(&mut self, back_at: u64, noticed_within: u64) {
        let settled = |lost: &Lost| self.now >= lost.back_at.saturating_add(SETTLED);
        // A lease that waits to be written back is not the one of whose change its gate was told.
        let since_grace = self.loss.as_ref().is_none_or(settled);
        self.forgets_again();
        self.totals.losses += 1;
        let doubt = self.gates.iter().any(Gate::missed_a_change);
        let unsure = self.gates.iter().map(|gate| gate.heard.is_some()).collect();
        self.loss = Some(Lost {
            number: self.totals.losses,
            crashed_at: self.now,
            back_at,
            noticed_within,
            has_stake: self.gates.iter().map(|it| it.has_stake(self.now)).collect(),
            doubt,
            unsure,
            over: match since_grace {
                true => self.known_to_be_over(),
                false => BTreeSet::new(),
            },
            holder: None,
            was_taken: false,
        });
        self.hangs_until = None;
        self.store.trouble = None;
        self.disturb_all();
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
        self.comes_back(loss, crashed_at);
        for gate in 0..self.gates.len() {
            if self.gates[gate].alive {
                self.connect_later(gate);
            }
        }
    }

    fn comes_back(&mut self, loss: Loss, crashed_at: u64) {
        self.store.behind = self.day.behind;
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
        self.checks.zombies.extend(
            holder
                .clone()
                .filter(|it| self.checks.owner(now, it).is_none()),
        );
        let settings = self.day.settings;
        let lost = self.loss.as_mut().expect("it crashed");
        lost.back_at = now;
        lost.holder = holder;
        let (number, noticed_within) = (lost.number, lost.noticed_within);
        let lost = self.loss.as_ref().expect("it crashed");
        let may_lose: Vec<Token> = self
            .checks
            .owners
            .iter()
            .filter(|owner| lost.doubt || self.meets_another(lost, owner))
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
            noticed_within + 14 * way + 120 * MILLI,
            Ev::WrittenBack(number),
        );
        self.after(SETTLED, Ev::GraceOver(number));
        self.after(SETTLED, Ev::NoDead(number));
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
        let by = lost.back_at.saturating_add(lost.noticed_within);
        let refused = self.trouble_at.is_some_and(|at| at > lost.back_at);
        self.is_well(gate) && !refused && self.gates[gate].disturbed_at.is_none_or(|at| at <= by)
    }

    /// The store brought a token back that no living gate can know to be dead.
    fn meets_another(&self, lost: &Lost, owner: &Owner) -> bool {
        match &lost.holder {
            Some(holder) if *holder != owner.token => self.knows_dead(holder).is_none(),
            _ => false,
        }
    }

    /// A gate that released the lock of this token for a client, and has lived since.
    fn knows_dead(&self, token: &Token) -> Option<usize> {
        let (gate, life) = *self.checks.released_by.get(token)?;
        let it = &self.gates[gate];
        (it.alive && it.life == life && !self.came_back_with(token)).then_some(gate)
    }

    /// A client asked again with a token that was released.
    fn came_back_with(&self, token: &Token) -> bool {
        let asked_at = self.checks.asked_at.get(token);
        let released_at = self.checks.released_at.get(token);
        asked_at > released_at
    }

    /// The store brought a token back that a gate knew to be dead, and nothing but that kept this owner's gate
    /// from writing the lease back.
    pub(super) fn met_what_was_released(&self, owner: &Owner) -> bool {
        let (Some(lost), Some(gate)) = (&self.loss, owner.gate) else {
            return false;
        };
        let back = lost.holder.as_ref().filter(|it| **it != owner.token);
        let back = back.filter(|it| self.store.is_held_by(self.now, it));
        let Some(released_by) = back.and_then(|it| self.knows_dead(it)) else {
            return false;
        };
        let in_time = self.now < lost.back_at.saturating_add(SETTLED);
        let sure = !lost.doubt && !lost.unsure[gate] && !lost.was_taken;
        // A session is renewed at two fifths of its lease at the latest, and notified of its loss a twelfth before its
        // end.
        let is_late = owner.session && self.now >= lost.crashed_at + owner.lease / 2;
        let safe = sure && !is_late && !owner.robbed && owner.since < lost.crashed_at;
        let well = self.was_well_since(gate, lost) && self.was_well_since(released_by, lost);
        in_time && safe && well
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
                // A push that tells of the end of a dead token may be lost.
                let contested = lost.holder.as_ref().is_some_and(|it| *it != owner.token);
                let well = self.all_were_well_since(&lost);
                let waits = contested && (self.day.loss > 0 || !self.day.tells || !well);
                owner.orphan || waits || !owner.gate.is_some_and(safe)
            })
            .map(|owner| owner.token.clone())
            .collect();
        self.loss = Some(lost);
        self.excuse(|owner| excused.contains(&owner.token));
    }

    /// No token that a gate knows to be dead holds the lock when the grace is over.
    pub(super) fn no_dead_token_holds(&mut self, number: u64) {
        let Some(lost) = self.loss.as_ref().filter(|lost| lost.number == number) else {
            return;
        };
        let last_look = GRACE / LAST_LOOK_PART + 10 * self.day.way;
        let grace_over = self.store.mark.1 + last_look;
        if self.now < grace_over {
            // It begins when the first gate notices.
            return self.at(grace_over, Ev::NoDead(number));
        }
        let Some((holder, _)) = self.store.holder(self.now) else {
            return;
        };
        let Some(gate) = self.knows_dead(holder) else {
            return;
        };
        let released_at = self.checks.released_at.get(holder).copied();
        // Before the loss, or within the grace.
        let in_time = released_at.is_some_and(|at| {
            at + 4 * self.day.way < lost.crashed_at || (lost.back_at < at && at < self.store.mark.1)
        });
        let writes_back = self.day.settings.write_back != WriteBack::Off;
        // A later deadline of which the gate was not told may be that of another grant.
        let unknown = lost.is_in_doubt() && self.checks.extended_elsewhere.contains(holder);
        assert!(
            !in_time
                || !writes_back
                || unknown
                || lost.was_taken
                || !self.was_well_since(gate, lost),
            "{} holds the lock after the grace, and gate {gate} released it",
            show(holder)
        );
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
        let concerned = (0..self.gates.len()).filter(|gate| lost.has_stake[*gate]);
        let all_well = { concerned }.all(|gate| self.was_well_since(gate, &lost));
        if all_well && !lost.doubt && !lost.was_taken {
            for owner in &self.checks.owners {
                let contested = lost.holder.as_ref().is_some_and(|it| *it != owner.token);
                let waits = contested && (self.day.loss > 0 || !self.day.tells);
                if owner.robbed
                    || waits
                    || owner.orphan
                    || owner.since >= lost.crashed_at
                    || owner.until <= self.now
                    || owner.gate.is_none_or(|gate| lost.unsure[gate])
                    || self.meets_another(&lost, owner)
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
