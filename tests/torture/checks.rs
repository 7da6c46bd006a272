//! What must hold of a history, found out after the fact. Why this is sound is told at the top of
//! `main.rs`.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::history::{History, Incident, LeaseFrom, Micros, Tenure, Through, What};

const MILLISECOND: Micros = 1_000;

/// How long a script may take from where Redis sets the expiry to where it reads the clock for the
/// fence, on a busy machine.
const FENCE_MARGIN: Micros = 50 * MILLISECOND;

/// The longest lease, and the longest time that a gate may know of a fault after it is over: how
/// long before a loss of data its gates must have been well for a lease to be certain to survive.
const WELL_BEFORE: Micros = 3_500 * MILLISECOND;

/// How late a reply may be where nothing hindered.
const LATE: Micros = 1_000 * MILLISECOND;

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    /// Overlaps after a loss of data where one of the two knows nothing of lockgate.
    pub(crate) excused_with_plain: u64,
    /// Overlaps after a loss of data with a lease from before it.
    pub(crate) excused_after_loss: u64,
    /// Those of them in which Redis was restarted without its data, both gates were well, and no
    /// plain client took the lock meanwhile: what writing back the leases is to close.
    pub(crate) write_back_holes: Vec<String>,
    /// How many leases were to be written back so, which tells what the line above is worth.
    pub(crate) to_write_back: u64,
    /// The most that a reply to each command was late where nothing hindered.
    pub(crate) latest: BTreeMap<&'static str, Micros>,
}

/// A tenure and the time for which it is certain that it owned the lock.
struct Owned<'a> {
    tenure: &'a Tenure,
    from: Micros,
    to: Micros,
}

pub(crate) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict {
        violations: history.wrong.clone(),
        ..Verdict::default()
    };
    let locks = history.tenures.iter().map(|tenure| tenure.lock + 1).max();
    for lock in 0..locks.unwrap_or(0) {
        let tenures: Vec<_> = history.tenures.iter().filter(|t| t.lock == lock).collect();
        check_exclusion(&tenures, history, &mut verdict);
        check_fences(&tenures, &mut verdict);
        for tenure in &tenures {
            check_denied(tenure, history, &mut verdict);
            check_lost(tenure, history, &mut verdict);
        }
    }
    check_late(history, &mut verdict);
    verdict
}

/// Until when it is certain that this tenure owned the lock, unless Redis lost its data.
fn certain_until(tenure: &Tenure, history: &History) -> Micros {
    let lease_ends = match tenure.lease_from {
        LeaseFrom::Sent(moment) => moment + tenure.lease - 2 * MILLISECOND,
        LeaseFrom::Fence(moment) => {
            // The expiry may have been set before Redis was stopped, and the clock read after.
            let stops = [What::RedisStopped, What::MachineStuttered];
            let stops = history.incidents.iter().filter(|i| stops.contains(&i.what));
            let stops = stops.filter(|stop| stop.overlaps(moment - FENCE_MARGIN, moment));
            let earliest = stops.map(|stop| stop.from).min().unwrap_or(moment);
            earliest.min(moment) + tenure.lease - FENCE_MARGIN
        }
    };
    match (tenure.session, tenure.through) {
        (true, Through::Gate(gate)) => {
            // A stopped instance can renew nothing and notify no client.
            let hinders = |what: What| {
                matches!(what, What::GateStopped(g) if g == gate) || what == What::MachineStuttered
            };
            let hindered = history
                .incidents
                .iter()
                .filter(|i| hinders(i.what) && i.overlaps(tenure.read, tenure.until))
                .map(|incident| incident.from)
                .min();
            tenure.until.min(hindered.unwrap_or(Micros::MAX))
        }
        _ => tenure.until.min(lease_ends),
    }
}

fn incidents(history: &History, what: What) -> impl Iterator<Item = &Incident> {
    history.incidents.iter().filter(move |i| i.what == what)
}

fn check_exclusion(tenures: &[&Tenure], history: &History, verdict: &mut Verdict) {
    let mut owned: Vec<_> = tenures
        .iter()
        .map(|&tenure| Owned {
            tenure,
            from: tenure.fence.unwrap_or(tenure.read).min(tenure.read),
            to: certain_until(tenure, history),
        })
        .filter(|owned| owned.from < owned.to)
        .collect();
    owned.sort_by_key(|owned| owned.from);
    let is_plain = |tenure: &&&Tenure| tenure.through == Through::Redis;
    let plain: Vec<_> = tenures.iter().filter(is_plain).map(|t| t.read).collect();
    let mut earlier: Vec<&Owned<'_>> = Vec::new();
    for later in &owned {
        earlier.retain(|one| one.to > later.from);
        for one in &earlier {
            check_overlap(one, later, &plain, history, verdict);
        }
        earlier.push(later);
    }
    verdict.to_write_back += owned
        .iter()
        .filter(|owned| owned.is_to_be_written_back(history))
        .count() as u64;
}

/// `plain` is when plain clients were granted this lock.
fn check_overlap(
    one: &Owned<'_>,
    other: &Owned<'_>,
    plain: &[Micros],
    history: &History,
    verdict: &mut Verdict,
) {
    let ends = one.to.min(other.to);
    let losses: Vec<_> = history
        .incidents
        .iter()
        .filter(|i| i.what.is_loss())
        // Who is known later of the two may all the same be the one who had it before: the reply to its
        // `RELOCK` was under way while the data was lost.
        .filter(|loss| one.may_be_ended_by(loss, other) || other.may_be_ended_by(loss, one))
        .collect();
    let Some(first) = losses.first() else {
        verdict.violations.push(format!(
            "two own the lock for {} µs:\n  {one}\n  {other}",
            ends - other.from
        ));
        return;
    };
    if [one, other]
        .iter()
        .any(|o| o.tenure.through == Through::Redis)
    {
        verdict.excused_with_plain += 1;
        return;
    }
    verdict.excused_after_loss += 1;
    let only_forgot = losses.iter().all(|loss| loss.what == What::Forgot);
    let taken = plain
        .iter()
        .any(|taken| (first.from..other.from).contains(taken));
    if only_forgot && !taken && gates_were_well(history, first.from, other.from) {
        verdict.write_back_holes.push(format!(
            "Redis forgot from {} to {}:\n  {one}\n  {other}",
            first.from, first.to
        ));
    }
}

/// Whether both gates, and what lies between them and Redis, were well from a lease before this
/// time to its end.
fn gates_were_well(history: &History, from: Micros, to: Micros) -> bool {
    let ill = |incident: &Incident| {
        !matches!(
            incident.what,
            What::Forgot | What::Restarted | What::Disturbed
        ) && incident.overlaps(from - WELL_BEFORE, to)
    };
    !history.incidents.iter().any(ill)
}

impl Owned<'_> {
    /// Whether this ownership may have ended with that loss, so that the next one could begin.
    fn may_be_ended_by(&self, loss: &Incident, next: &Self) -> bool {
        let ends = self.to.min(next.to);
        self.may_be_lost_in(loss) && next.begins_after(loss) && ends <= loss.to + self.tenure.lease
    }

    /// Whether all that is known for certain of this ownership is from before the end of the loss.
    fn may_be_lost_in(&self, loss: &Incident) -> bool {
        let known = match self.tenure.session {
            // Its renewals are known to its gate only.
            true => self.from,
            false => self.tenure.lease_from.moment(),
        };
        known <= loss.to
    }

    fn begins_after(&self, loss: &Incident) -> bool {
        self.from >= loss.from
    }

    /// Whether Redis lost it while it was owned, and well gates were to write it back.
    fn is_to_be_written_back(&self, history: &History) -> bool {
        let written_back = |loss: &Incident| {
            self.may_be_lost_in(loss)
                && self.to > loss.to
                && gates_were_well(history, loss.from, loss.to)
        };
        self.tenure.through != Through::Redis && incidents(history, What::Forgot).any(written_back)
    }
}

impl fmt::Display for Owned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} to {}: {:?}", self.from, self.to, self.tenure)
    }
}

/// All differ; each is of the time in which it was made; and they rise from every grant to every
/// one that was asked for later.
fn check_fences(tenures: &[&Tenure], verdict: &mut Verdict) {
    let fenced = |tenure: &&'_ Tenure| tenure.fence.is_some();
    let mut granted: Vec<_> = tenures.iter().copied().filter(fenced).collect();
    let mut wrong = |what: &str, tenures: &[&Tenure]| {
        verdict.violations.push(format!("{what}: {tenures:#?}"));
    };
    let mut owners: HashMap<u64, &Tenure> = HashMap::new();
    for &tenure in &granted {
        let fence = tenure.fence.unwrap_or_default();
        if fence < tenure.first_sent || fence > tenure.read + MILLISECOND {
            wrong("a fence that is not of its time", &[tenure]);
        }
        if let Some(other) = owners.insert(fence, tenure) {
            wrong("one fence for two grants", &[other, tenure]);
        }
    }
    let mut asked = granted.clone();
    granted.sort_by_key(|tenure| tenure.read);
    asked.sort_by_key(|tenure| tenure.first_sent);
    let mut granted = granted.into_iter().peekable();
    let mut largest: Option<&Tenure> = None;
    for tenure in asked {
        while let Some(before) = granted.next_if(|before| before.read < tenure.first_sent) {
            if largest.is_none_or(|largest| largest.fence < before.fence) {
                largest = Some(before);
            }
        }
        if let Some(largest) = largest.filter(|largest| largest.fence >= tenure.fence) {
            wrong("a later grant with a smaller fence", &[largest, tenure]);
        }
    }
}

/// A lease that is not over, and was not lost with the data, is nobody else's.
fn check_denied(tenure: &Tenure, history: &History, verdict: &mut Verdict) {
    let Some(denied) = tenure.denied else {
        return;
    };
    let lost = history.incidents.iter().any(|incident| {
        incident.what.is_loss() && incident.overlaps(tenure.lease_from.moment(), denied)
    });
    let leased = Tenure {
        session: false,
        until: Micros::MAX,
        ..tenure.clone()
    };
    if !lost && denied < certain_until(&leased, history) {
        verdict
            .violations
            .push(format!("lost within its lease: {tenure:#?}"));
    }
}

/// A session lock is kept as long as its connection lives, if nothing breaks.
fn check_lost(tenure: &Tenure, history: &History, verdict: &mut Verdict) {
    let Some(told) = tenure.told_lost else {
        return;
    };
    let mut incidents = history.incidents.iter();
    if !incidents.any(|i| i.overlaps(tenure.read - WELL_BEFORE, told)) {
        verdict.violations.push(format!(
            "a session lock was lost for no reason: {tenure:#?}"
        ));
    }
}

/// A reply that was late by more than its gate was hindered.
fn check_late(history: &History, verdict: &mut Verdict) {
    for late in &history.late {
        let hindered = history
            .incidents
            .iter()
            .filter(|incident| match incident.what {
                What::GateStopped(gate) | What::GateKilled(gate) => gate == late.gate,
                What::MachineStuttered => true,
                _ => false,
            })
            .any(|incident| incident.overlaps(late.sent, late.read));
        if hindered {
            continue;
        }
        let latest = verdict.latest.entry(late.what).or_default();
        *latest = (*latest).max(late.read - late.due);
        if late.read > late.due + LATE {
            verdict.violations.push(format!("a late reply: {late:?}"));
        }
    }
}
