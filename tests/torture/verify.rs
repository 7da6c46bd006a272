//! The checks are held to what they are for: a history that is wrong is found so, and one that is
//! right, or excused, is not.

use crate::{
    checks::{Verdict, judge},
    history::{History, Incident, Late, LeaseFrom, Micros, Tenure, Through, What},
};

const SECOND: Micros = 1_000_000;
const START: Micros = 1_000 * SECOND;

/// Asked for at `from`, granted a moment later, with a lease of 2 s, and let go of at `until`.
fn tenure(token: &str, from: Micros, until: Micros) -> Tenure {
    let fence = START + from + 100;
    Tenure {
        lock: 0,
        token: token.to_owned(),
        extended: false,
        through: Through::Gate(0),
        first_sent: START + from,
        read: fence + 100,
        fence: Some(fence),
        lease_from: LeaseFrom::Fence(fence),
        lease: 2 * SECOND,
        session: false,
        until: START + until,
        denied: None,
        told_lost: None,
    }
}

fn session(token: &str, from: Micros, until: Micros) -> Tenure {
    Tenure {
        session: true,
        ..tenure(token, from, until)
    }
}

fn plain(token: &str, from: Micros, until: Micros) -> Tenure {
    Tenure {
        through: Through::Redis,
        fence: None,
        lease_from: LeaseFrom::Sent(START + from),
        ..tenure(token, from, until)
    }
}

/// What came of this one after a `RELOCK` at `from`.
fn extended(tenure: &Tenure, from: Micros, until: Micros) -> Tenure {
    Tenure {
        extended: true,
        fence: None,
        lease_from: LeaseFrom::Sent(START + from),
        read: START + from + 100,
        until: START + until,
        ..tenure.clone()
    }
}

fn incident(what: What, from: Micros, to: Micros) -> Incident {
    Incident {
        what,
        from: START + from,
        to: START + to,
    }
}

fn judged(tenures: &[Tenure], incidents: &[Incident]) -> Verdict {
    judge(&History {
        tenures: tenures.to_vec(),
        incidents: incidents.to_vec(),
        ..History::default()
    })
}

#[track_caller]
fn is_found(tenures: &[Tenure], incidents: &[Incident], what: &str) {
    let verdict = judged(tenures, incidents);
    let found = verdict.violations.iter().any(|v| v.contains(what));
    assert!(found, "{verdict:?}");
}

#[track_caller]
fn is_right(tenures: &[Tenure], incidents: &[Incident]) -> Verdict {
    let verdict = judged(tenures, incidents);
    assert!(verdict.violations.is_empty(), "{verdict:?}");
    verdict
}

#[test]
fn one_after_the_other_is_right() {
    let verdict = is_right(
        &[
            tenure("a", 0, 300_000),
            plain("b", 300_100, 400_000),
            session("c", 400_100, 9 * SECOND),
            tenure("d", 9 * SECOND, 9 * SECOND + 1_000),
        ],
        &[],
    );
    assert_eq!(verdict.excused_after_loss + verdict.excused_with_plain, 0);
}

#[test]
fn two_owners_at_a_time_are_found() {
    let first = || tenure("a", 0, 300_000);
    for second in [tenure, session, plain] {
        is_found(&[first(), second("b", 299_000, 400_000)], &[], "two own");
        is_found(&[second("b", 100_000, 200_000), first()], &[], "two own");
    }
    let elsewhere = Tenure {
        lock: 1,
        ..tenure("b", 100_000, 200_000)
    };
    is_right(&[first(), elsewhere], &[]);
}

#[test]
fn a_loss_of_data_excuses_a_reply_that_was_under_way() {
    let first = tenure("a", 0, 800_000);
    let answered_late = Tenure {
        read: START + 1_500_000,
        ..extended(&first, 800_000, 1_600_000)
    };
    let tenures = [first, answered_late, tenure("b", 1_100_000, 1_900_000)];
    is_found(&tenures, &[], "two own");
    is_right(&tenures, &[incident(What::Flushed, 900_000, 950_000)]);
    is_found(
        &tenures,
        &[incident(What::Flushed, 700_000, 750_000)],
        "two own",
    );
}

#[test]
fn a_lease_that_is_over_is_nobodys() {
    let overstays = || tenure("a", 0, 5 * SECOND);
    is_right(&[overstays(), tenure("b", 2 * SECOND, 3 * SECOND)], &[]);
    is_found(
        &[overstays(), tenure("b", 1_900_000, 3 * SECOND)],
        &[],
        "two own",
    );
    let again = extended(&overstays(), SECOND, 5 * SECOND);
    is_found(&[again, tenure("b", 2_900_000, 3 * SECOND)], &[], "two own");
}

#[test]
fn a_session_is_owned_until_its_owner_hears_otherwise() {
    let owner = || session("a", 0, 5 * SECOND);
    let other = || tenure("b", 4 * SECOND, 4 * SECOND + 1_000);
    is_found(&[owner(), other()], &[], "two own");
    let stopped = |gate| incident(What::GateStopped(gate), SECOND, 5 * SECOND);
    is_found(&[owner(), other()], &[stopped(1)], "two own");
    is_right(&[owner(), other()], &[stopped(0)]);
}

#[test]
fn a_loss_of_data_excuses_for_one_lease() {
    let flushed = [incident(What::Flushed, SECOND, SECOND + 1_000)];
    let before = || tenure("a", 0, 1_900_000);
    let verdict = is_right(&[before(), tenure("b", 1_100_000, 1_200_000)], &flushed);
    assert_eq!(verdict.excused_after_loss, 1);
    assert!(verdict.write_back_holes.is_empty());
    let verdict = is_right(&[before(), plain("b", 1_100_000, 1_200_000)], &flushed);
    assert_eq!(verdict.excused_with_plain, 1);
    is_found(
        &[before(), tenure("b", 900_000, 950_000)],
        &flushed,
        "two own",
    );
    let confirmed = extended(&before(), 1_050_000, 1_900_000);
    is_found(
        &[confirmed, tenure("b", 1_100_000, 1_200_000)],
        &flushed,
        "two own",
    );
    let hears_late = session("a", 0, 4 * SECOND);
    is_found(
        &[hears_late, tenure("b", 3_500_000, 5 * SECOND)],
        &flushed,
        "two own",
    );
}

#[test]
fn a_lease_written_back_after_a_release_elsewhere_is_valid() {
    let flushed = [incident(What::Flushed, SECOND, SECOND + 1_000)];
    let before = tenure("a", 0, 1_500_000);
    let after = extended(&before, 1_500_000, 3 * SECOND);
    let meanwhile = plain("b", 1_100_000, 1_200_000);
    let verdict = is_right(&[before.clone(), meanwhile, after.clone()], &flushed);
    assert_eq!(verdict.excused_with_plain, 1);
    let still = plain("b", 1_100_000, 1_600_000);
    is_found(&[before, still, after], &flushed, "two own");
}

#[test]
fn well_gates_are_to_write_back_what_redis_forgot() {
    let tenures = [tenure("a", 0, 1_900_000), tenure("b", 1_700_000, 1_800_000)];
    let forgot = incident(What::Forgot, SECOND, 1_500_000);
    let verdict = is_right(&tenures, std::slice::from_ref(&forgot));
    assert_eq!(verdict.write_back_holes.len(), 1);
    assert_eq!(verdict.to_write_back, 1);
    let taken = [plain("c", 1_510_000, 1_511_000)];
    let verdict = is_right(
        &[&tenures[..], &taken].concat(),
        std::slice::from_ref(&forgot),
    );
    assert!(verdict.write_back_holes.is_empty());
    let cut = incident(What::LinkBroken(1), 0, 1_000);
    let verdict = is_right(&tenures, &[cut, forgot]);
    assert_eq!(verdict.excused_after_loss, 1);
    assert!(verdict.write_back_holes.is_empty());
}

#[test]
fn fences_that_do_not_rise_are_found() {
    let (first, second) = (tenure("a", 0, 1_000), tenure("b", 10_000, 11_000));
    let fenced = |tenure: &Tenure, fence| Tenure {
        fence: Some(fence),
        ..tenure.clone()
    };
    let same = fenced(&second, first.fence.unwrap());
    is_found(&[first.clone(), same.clone()], &[], "one fence for two");
    is_found(&[first.clone(), same], &[], "a smaller fence");
    let early = fenced(&second, START + 9_999);
    is_found(&[first.clone(), early], &[], "not of its time");
    let late = fenced(&first, START + SECOND);
    is_found(&[late, second], &[], "not of its time");
}

#[test]
fn a_lease_that_somebody_else_ended_is_found() {
    let denied = |at| Tenure {
        denied: Some(START + at),
        ..tenure("a", 0, 300_000)
    };
    is_found(&[denied(301_000)], &[], "lost within its lease");
    is_right(&[denied(2 * SECOND)], &[]);
    is_right(&[denied(301_000)], &[incident(What::Flushed, 100, 200)]);
}

#[test]
fn a_session_lock_that_is_lost_for_no_reason_is_found() {
    let lost = || Tenure {
        told_lost: Some(START + 300_000),
        ..session("a", 0, 200_000)
    };
    is_found(&[lost()], &[], "lost for no reason");
    is_right(&[lost()], &[incident(What::LinkBroken(0), 0, 1_000)]);
}

#[test]
fn a_late_reply_is_found_where_nothing_hindered() {
    let late = |read| Late {
        what: "LOCK",
        gate: 0,
        sent: START,
        due: START + SECOND,
        read: START + read,
    };
    let judged = |read, what| {
        judge(&History {
            late: vec![late(read)],
            incidents: vec![incident(what, 0, 100)],
            ..History::default()
        })
    };
    assert_eq!(judged(3 * SECOND, What::RedisStopped).violations.len(), 1);
    assert!(
        judged(3 * SECOND, What::GateStopped(0))
            .violations
            .is_empty()
    );
    let verdict = judged(SECOND + 1_000, What::RedisStopped);
    assert!(verdict.violations.is_empty());
    assert_eq!(verdict.latest["LOCK"], 1_000);
}
