//! What must hold of a history, found out after the fact, from what clients sent and read alone.
//!
//! - A client **owns** a lock for certain from the reply that granted it until it sent `UNLOCK`, or its
//!   lease was over, counted from before the command was sent. Two that own one lock at a time are wrong.
//! - A lease that is not over is **valid**: `UNLOCK` and `RELOCK` say 1, Redis has it once the grace is
//!   over, and no SESSION connection is closed.
//! - A token whose `UNLOCK` said 1 is **dead**: Redis does not have it once the grace is over.
//! - A lock without an owner keeps no client **waiting** between one loss and the next.
//! - **Fences** of one lock rise from each grant to each that was asked for later.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Write,
    time::Duration,
};

use super::history::{History, Moment, Said, Step, What};

/// What a clock of a machine may be off by, for a lease.
const TOLERANCE: Duration = Duration::from_millis(2);

/// A reply that comes so long before the end of the lease cannot be due to its end.
const COMFORTABLY: Duration = Duration::from_millis(150);

/// How long hearing of a lost SESSION may take.
const HEARING: Duration = Duration::from_millis(100);

/// The number of violations that are shown with the history of their locks.
const MOST_SHOWN: usize = 6;

/// One acquisition, from all that its client knows.
#[derive(Clone, Debug)]
struct Tenure<'a> {
    token: &'a str,
    granted: &'a Step,
    fence: Option<i64>,
    /// For each lease the time in which it was certain.
    owned: Vec<(Moment, Moment)>,
    /// From the first to the last moment in which it may have had the lock.
    possibly: (Moment, Moment),
    /// When the reply to a successful `UNLOCK` was read.
    released: Option<Moment>,
    /// When it was found lost, though its lease was valid, and how.
    lost: Option<(Moment, String)>,
}

#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) what: &'static str,
    at: Moment,
    lock: usize,
    tokens: Vec<String>,
    told: String,
}

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) wrongs: Vec<Wrong>,
    figures: String,
}

pub(crate) const DOUBLE: &str = "two owners at a time";
pub(crate) const LOST: &str = "a valid lease was lost";
pub(crate) const MISSING: &str = "a valid lease is not in Redis after the grace";
pub(crate) const DEAD: &str = "a dead token is in Redis after the grace";
pub(crate) const WAITS: &str = "waited for a lock without an owner";
pub(crate) const FENCE: &str = "fences do not rise";
pub(crate) const OTHER: &str = "other";

/// A lock that is free gets to the next within `at_once`, beside the machine's stutters.
pub(crate) fn judge(history: &History, at_once: Duration) -> Verdict {
    let mut wrongs = Vec::new();
    let locks = history.steps.iter().map(|step| step.lock + 1).max();
    let mut steps: Vec<Vec<&Step>> = vec![Vec::new(); locks.unwrap_or(0)];
    for step in &history.steps {
        steps[step.lock].push(step);
    }
    let (mut grants, mut at_stake) = (0, BTreeMap::<_, usize>::new());
    for (lock, steps) in steps.iter_mut().enumerate() {
        steps.sort_by_key(|step| step.sent);
        let tenures = tenures(steps);
        grants += tenures.len();
        for loss in &history.losses {
            let held = tenures.iter().filter(|tenure| tenure.owns_at(loss.from));
            *at_stake.entry(loss.kind).or_default() += held.count();
        }
        check_exclusion(lock, &tenures, &mut wrongs);
        check_lost(lock, &tenures, &mut wrongs);
        check_looks(lock, &tenures, steps, history, &mut wrongs);
        check_waits(lock, &tenures, steps, history, at_once, &mut wrongs);
        check_fences(lock, &tenures, &mut wrongs);
    }
    wrongs.extend(history.wrong.iter().map(|told| Wrong {
        what: OTHER,
        at: Moment::ZERO,
        lock: 0,
        tokens: Vec::new(),
        told: told.clone(),
    }));
    wrongs.sort_by_key(|wrong| wrong.at);
    let figures = figures(history, grants, &at_stake, &wrongs);
    Verdict { wrongs, figures }
}

/// By their tokens, of the steps of one lock.
fn tenures<'a>(steps: &[&'a Step]) -> Vec<Tenure<'a>> {
    let mut tenures: Vec<Tenure<'a>> = Vec::new();
    let mut by_token = HashMap::new();
    for step in steps {
        match (step.what, &step.said) {
            (What::Lock { .. } | What::TryLock { .. }, Said::Granted { fence }) => {
                by_token.insert(step.token.as_str(), tenures.len());
                tenures.push(Tenure::new(step, *fence));
            }
            _ => {
                if let Some(&n) = by_token.get(step.token.as_str()) {
                    tenures[n].goes_on(step);
                }
            }
        }
    }
    tenures
}

impl<'a> Tenure<'a> {
    fn new(granted: &'a Step, fence: Option<i64>) -> Self {
        let (lease, session) = match granted.what {
            What::Lock { lease, session } => (lease, session),
            What::TryLock { lease } => (lease, false),
            _ => (Duration::ZERO, false),
        };
        let (certain, possible) = match session {
            true => (Moment::MAX, Moment::MAX),
            false => (granted.sent + lease - TOLERANCE, granted.read + lease),
        };
        Self {
            token: &granted.token,
            granted,
            fence,
            owned: vec![(granted.read, certain)],
            possibly: (granted.sent, possible),
            released: None,
            lost: None,
        }
    }

    fn is_session(&self) -> bool {
        matches!(self.granted.what, What::Lock { session: true, .. })
    }

    /// What its client did next.
    fn goes_on(&mut self, step: &Step) {
        let last = self.owned.last_mut().expect("one at least");
        let lease_ends = last.1;
        last.1 = lease_ends.min(step.sent);
        let comfortably = lease_ends == Moment::MAX || step.read + COMFORTABLY < lease_ends;
        match (step.what, &step.said) {
            (What::Relock { lease }, Said::Yes) => {
                let ends = match self.is_session() {
                    true => (Moment::MAX, Moment::MAX),
                    false => (step.sent + lease - TOLERANCE, step.read + lease),
                };
                self.owned.push((step.read, ends.0));
                self.possibly.1 = ends.1;
            }
            (What::Relock { lease }, Said::Unknown(_)) => {
                let ends = lease_ends.min(step.sent + lease - TOLERANCE);
                self.owned.push((step.read, ends));
                if !self.is_session() {
                    self.possibly.1 = self.possibly.1.max(step.read + lease);
                }
            }
            (What::Unlock, Said::Yes) => {
                self.released = Some(step.read);
                self.possibly.1 = step.read;
            }
            (What::Relock { .. } | What::Unlock, Said::No) => {
                // A second try says nothing: the first may have released the lock.
                if comfortably && self.lost.is_none() && self.released.is_none() {
                    self.lost = Some((step.read, step.to_string()));
                }
                self.possibly.1 = step.read;
            }
            (What::Unlock, _) => {
                // It is not known any more whether it owns it; its session ends with its connection at the latest.
                self.owned.push((step.read, step.read));
                if self.is_session() {
                    self.possibly.1 = step.read + Duration::from_secs(60);
                }
            }
            (What::HeardLost, _) => {
                last.1 = last.1.saturating_sub(HEARING);
                self.lost = Some((step.read, step.to_string()));
                self.possibly.1 = step.read + Duration::from_secs(60);
            }
            _ => {}
        }
    }

    fn owns_at(&self, moment: Moment) -> bool {
        let mut owned = self.owned.iter();
        owned.any(|(from, to)| *from <= moment && moment < *to)
    }

    /// Whether it owned it through all of this time.
    fn owns_through(&self, from: Moment, to: Moment) -> bool {
        let mut owned = self.owned.iter();
        owned.any(|(begin, end)| *begin < from && to + COMFORTABLY < *end)
    }
}

fn check_exclusion(lock: usize, tenures: &[Tenure<'_>], wrongs: &mut Vec<Wrong>) {
    let spans = tenures.iter().enumerate();
    let mut owned: Vec<_> = spans
        .flat_map(|(n, tenure)| tenure.owned.iter().map(move |&(from, to)| (from, to, n)))
        .filter(|(from, to, _)| from < to)
        .collect();
    owned.sort_unstable();
    let (mut open, mut seen): (Vec<(Moment, usize)>, _) = (Vec::new(), HashSet::new());
    for (from, to, n) in owned {
        open.retain(|(end, _)| *end > from);
        for &(end, other) in &open {
            if other != n && seen.insert((other, n)) {
                let (one, two) = (tenures[other].token, tenures[n].token);
                wrongs.push(Wrong {
                    what: DOUBLE,
                    at: from,
                    lock,
                    tokens: vec![one.to_owned(), two.to_owned()],
                    told: format!("{one} and {two} for {:?}", end.min(to) - from),
                });
            }
        }
        open.push((to, n));
    }
}

fn check_lost(lock: usize, tenures: &[Tenure<'_>], wrongs: &mut Vec<Wrong>) {
    for tenure in tenures {
        if let Some((at, how)) = &tenure.lost {
            wrongs.push(Wrong {
                what: LOST,
                at: *at,
                lock,
                tokens: vec![tenure.token.to_owned()],
                told: how.clone(),
            });
        }
    }
}

/// What Redis had after the grace, against what it must have and must not have.
fn check_looks(
    lock: usize,
    tenures: &[Tenure<'_>],
    steps: &[&Step],
    history: &History,
    wrongs: &mut Vec<Wrong>,
) {
    let by_token: HashMap<_, _> = tenures.iter().map(|t| (t.token, t)).collect();
    for look in &history.looks {
        let holder = look.holders[lock].as_deref();
        let mut wrong = |what, tokens: Vec<&str>, told: String| {
            wrongs.push(Wrong {
                what,
                at: look.from,
                lock,
                tokens: tokens.into_iter().map(str::to_owned).collect(),
                told,
            });
        };
        if let Some(token) = holder {
            let dead = by_token.get(token).and_then(|tenure| tenure.released);
            if let Some(released) = dead.filter(|released| *released < look.from) {
                let ago = look.from - released;
                wrong(
                    DEAD,
                    vec![token],
                    format!("{token}, which was released {ago:?} before"),
                );
            } else if !steps
                .iter()
                .any(|step| step.token == token || step.token.is_empty())
            {
                wrong(OTHER, vec![token], format!("a token of no client: {token}"));
            }
        }
        for tenure in tenures
            .iter()
            .filter(|t| t.owns_through(look.from, look.to))
        {
            if holder != Some(tenure.token) {
                let told = format!("{}: Redis has {holder:?}", tenure.token);
                wrong(MISSING, vec![tenure.token], told);
            }
        }
    }
}

/// Finds clients that waited, in the calm between two losses, for a lock that had no owner.
fn check_waits(
    lock: usize,
    tenures: &[Tenure<'_>],
    steps: &[&Step],
    history: &History,
    at_once: Duration,
    wrongs: &mut Vec<Wrong>,
) {
    // A tenure begins when its grant was read: a grant that takes long is a wait.
    let mut owned: Vec<_> = tenures
        .iter()
        .map(|tenure| (tenure.granted.read, tenure.possibly.1))
        .collect();
    owned.extend(
        steps
            .iter()
            .filter_map(|step| match (step.what, &step.said) {
                (What::Lock { lease, .. } | What::TryLock { lease }, Said::Unknown(_)) => {
                    Some((step.sent, step.read + lease))
                }
                _ => None,
            }),
    );
    // During a loss no lock is granted.
    let losses = history.losses.iter();
    let losses: Vec<_> = losses.map(|loss| (loss.from, loss.settled)).collect();
    let mut busy = [&owned[..], &losses, &history.stutters].concat();
    busy.sort_unstable();
    let waiting = steps.iter().filter(|step| {
        matches!(step.what, What::Lock { .. })
            && matches!(step.said, Said::Granted { .. } | Said::Nil)
    });
    for step in waiting.filter(|step| step.read - step.sent > at_once) {
        let Some((from, to)) = longest_gap(&busy, step.sent, step.read) else {
            continue;
        };
        if to - from > at_once {
            wrongs.push(Wrong {
                what: WAITS,
                at: from,
                lock,
                tokens: vec![step.token.clone()],
                told: format!("{:?}: {step}", to - from),
            });
        }
    }
}

/// The longest time, from `from` to `to`, that none of these covers; they are sorted.
fn longest_gap(busy: &[(Moment, Moment)], from: Moment, to: Moment) -> Option<(Moment, Moment)> {
    let (mut free_from, mut longest) = (from, None);
    let length = |(from, to): (Moment, Moment)| to.saturating_sub(from);
    let ends = busy
        .iter()
        .copied()
        .filter(|(begin, end)| *begin < to && *end > from);
    for (begin, end) in ends.chain([(to, to)]) {
        let gap = (free_from, begin);
        if gap.0 < gap.1 && longest.is_none_or(|longest| length(gap) > length(longest)) {
            longest = Some(gap);
        }
        free_from = free_from.max(end);
    }
    longest
}

fn check_fences(lock: usize, tenures: &[Tenure<'_>], wrongs: &mut Vec<Wrong>) {
    let fenced = |tenure: &&Tenure<'_>| tenure.fence.is_some();
    let mut granted: Vec<_> = tenures.iter().filter(fenced).collect();
    let mut asked = granted.clone();
    granted.sort_by_key(|tenure| tenure.granted.read);
    asked.sort_by_key(|tenure| tenure.granted.sent);
    let mut granted = granted.into_iter().peekable();
    let mut largest: Option<&Tenure<'_>> = None;
    for tenure in asked {
        while let Some(before) = granted.next_if(|one| one.granted.read < tenure.granted.sent) {
            if largest.is_none_or(|largest| largest.fence < before.fence) {
                largest = Some(before);
            }
        }
        if let Some(before) = largest.filter(|before| before.fence >= tenure.fence) {
            wrongs.push(Wrong {
                what: FENCE,
                at: tenure.granted.read,
                lock,
                tokens: vec![before.token.to_owned(), tenure.token.to_owned()],
                told: format!("{:?} after {:?}", tenure.fence, before.fence),
            });
        }
    }
}

/// What happened, how much was at stake, and what went wrong after losses of which kind.
fn figures(
    history: &History,
    grants: usize,
    at_stake: &BTreeMap<&str, usize>,
    wrongs: &[Wrong],
) -> String {
    let mut text = format!(
        "{} losses, {grants} grants, {} commands\n",
        history.losses.len(),
        history.steps.len()
    );
    for (kind, leases) in at_stake {
        let losses = history.losses.iter().filter(|loss| loss.kind == *kind);
        let (count, slowest) = losses.fold((0, Duration::ZERO), |(count, slowest), loss| {
            (count + 1, slowest.max(loss.settled - loss.from))
        });
        let _ = writeln!(
            text,
            "  {count:4} × {kind}: {leases} leases were held; grants again after {:.1} s at most",
            slowest.as_secs_f64()
        );
    }
    let mut counts: BTreeMap<_, BTreeMap<_, usize>> = BTreeMap::new();
    for wrong in wrongs {
        let before = history.losses.iter().rfind(|loss| loss.from <= wrong.at);
        let kind = before.map_or("before any", |loss| loss.kind);
        *counts
            .entry(wrong.what)
            .or_default()
            .entry(kind)
            .or_default() += 1;
    }
    for what in [DOUBLE, LOST, MISSING, DEAD, WAITS, FENCE, OTHER] {
        let kinds = counts.remove(what).unwrap_or_default();
        let _ = writeln!(
            text,
            "  {:4} {what} {kinds:?}",
            kinds.values().sum::<usize>()
        );
    }
    text
}

impl Verdict {
    pub(crate) fn figures(&self) -> &str {
        &self.figures
    }

    /// The violations, with the histories of the first ones of each kind.
    pub(crate) fn report(&self, history: &History) -> String {
        let mut text = self.figures.clone();
        for what in [DOUBLE, LOST, MISSING, DEAD, WAITS, FENCE, OTHER] {
            let of_it = self.wrongs.iter().filter(|wrong| wrong.what == what);
            for wrong in of_it.take(MOST_SHOWN.div_ceil(2)) {
                let tokens: Vec<_> = wrong.tokens.iter().map(String::as_str).collect();
                let _ = writeln!(
                    text,
                    "\n{what}, lock {}, at {:.4}: {}\n{}",
                    wrong.lock,
                    wrong.at.as_secs_f64(),
                    wrong.told,
                    history.around(wrong.lock, wrong.at, &tokens)
                );
            }
        }
        text
    }
}
