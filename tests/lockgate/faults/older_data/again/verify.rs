//! The checks are held to what they are for: a history that is wrong is found so, and one that is right is
//! not.

use std::time::Duration;

use super::AT_ONCE;
use crate::contention::{
    checks::{DEAD, DOUBLE, FENCE, LOST, MISSING, OTHER, WAITS, judge},
    history::{History, Look, Loss, Moment, Said, Step, What},
};

const fn ms(ms: u64) -> Moment {
    Duration::from_millis(ms)
}

const LEASE: Duration = ms(5_000);

/// A command on the one lock that is answered within a millisecond.
fn step(sent: Moment, token: &str, what: What, said: Said) -> Step {
    Step {
        sent,
        read: sent + ms(1),
        client: 0,
        gate: 0,
        lock: 0,
        token: token.to_owned(),
        what,
        said,
    }
}

fn lock(sent: u64, token: &str) -> Step {
    fenced(sent, token, None)
}

fn fenced(sent: u64, token: &str, fence: Option<i64>) -> Step {
    let what = What::Lock {
        lease: LEASE,
        session: false,
    };
    step(ms(sent), token, what, Said::Granted { fence })
}

fn session(sent: u64, token: &str) -> Step {
    let what = What::Lock {
        lease: LEASE,
        session: true,
    };
    step(ms(sent), token, what, Said::Granted { fence: None })
}

fn unlock(sent: u64, token: &str, said: Said) -> Step {
    step(ms(sent), token, What::Unlock, said)
}

fn relock(sent: u64, token: &str, lease: Duration, said: Said) -> Step {
    step(ms(sent), token, What::Relock { lease }, said)
}

fn look(at: u64, holder: Option<&str>) -> Look {
    Look {
        from: ms(at),
        to: ms(at + 1),
        holders: vec![holder.map(str::to_owned)],
    }
}

#[track_caller]
fn finds(expected: &[&str], steps: &[Step], looks: &[Look]) {
    let losses = [Loss {
        kind: "loss",
        from: ms(100_000),
        settled: ms(103_000),
    }];
    let history = History {
        steps: steps.to_vec(),
        losses: losses.to_vec(),
        looks: looks.to_vec(),
        ..History::default()
    };
    let verdict = judge(&history, AT_ONCE);
    let found: Vec<_> = verdict.wrongs.iter().map(|wrong| wrong.what).collect();
    assert_eq!(found, expected, "{verdict:?}");
}

#[test]
fn owners_one_after_the_other_are_right() {
    let steps = [
        lock(0, "a"),
        unlock(1_000, "a", Said::Yes),
        lock(1_002, "b"),
        // Its lease is over.
        lock(6_003, "c"),
        relock(8_000, "c", LEASE, Said::Yes),
        unlock(12_000, "c", Said::Yes),
        session(12_002, "d"),
        unlock(30_000, "d", Said::Yes),
        lock(30_002, "e"),
    ];
    let looks = [
        look(500, Some("a")),
        look(5_998, None),
        look(20_000, Some("d")),
    ];
    finds(&[], &steps, &looks);
}

#[test]
fn two_owners_are_found() {
    for first in [lock(0, "a"), session(0, "a")] {
        finds(&[DOUBLE], &[first, lock(4_000, "b")], &[]);
    }
    let extended = [
        lock(0, "a"),
        relock(4_000, "a", LEASE, Said::Yes),
        lock(8_000, "b"),
    ];
    finds(&[DOUBLE], &extended, &[]);
    let shortened = [
        lock(0, "a"),
        relock(1_000, "a", ms(2_000), Said::Unknown(String::new())),
        lock(3_001, "b"),
    ];
    finds(&[], &shortened, &[]);
}

#[test]
fn a_valid_lease_that_is_lost_is_found() {
    let lost = |at, said: Said| [lock(0, "a"), unlock(at, "a", said)];
    finds(&[LOST], &lost(4_000, Said::No), &[]);
    finds(&[], &lost(4_990, Said::No), &[]);
    finds(
        &[LOST],
        &[lock(0, "a"), relock(4_000, "a", LEASE, Said::No)],
        &[],
    );
    let unknown = [
        lock(0, "a"),
        unlock(1_000, "a", Said::Unknown(String::new())),
        unlock(1_100, "a", Said::No),
    ];
    finds(&[], &unknown, &[]);
    let heard = step(
        ms(9_000),
        "a",
        What::HeardLost,
        Said::Unknown(String::new()),
    );
    finds(&[LOST], &[session(0, "a"), heard], &[]);
}

#[test]
fn missing_leases_and_dead_tokens_are_found() {
    let steps = [lock(0, "a"), unlock(2_000, "a", Said::Yes)];
    finds(&[MISSING], &steps, &[look(1_000, None)]);
    let of_another = [look(1_000, Some("a")), look(1_500, Some("b"))];
    finds(&[OTHER, MISSING], &steps, &of_another);
    finds(&[DEAD], &steps, &[look(2_500, Some("a"))]);
    finds(&[], &steps, &[look(2_000, Some("a")), look(2_500, None)]);
}

#[test]
fn a_client_that_waits_for_a_free_lock_is_found() {
    let late = |sent, read, said| Step {
        read: ms(read),
        said,
        ..lock(sent, "b")
    };
    let granted = Said::Granted { fence: None };
    let before = [lock(0, "a"), unlock(2_000, "a", Said::Yes)];
    let with = |step: &Step| [&before[..], std::slice::from_ref(step)].concat();
    finds(&[], &with(&late(500, 2_500, granted.clone())), &[]);
    finds(&[WAITS], &with(&late(500, 4_500, granted.clone())), &[]);
    finds(&[WAITS], &with(&late(500, 4_500, Said::Nil)), &[]);
    // In the loss, and a little before and after.
    finds(&[], &[late(99_000, 104_000, granted.clone())], &[]);
    finds(&[WAITS], &[late(99_000, 106_000, granted)], &[]);
}

#[test]
fn fences_that_do_not_rise_are_found() {
    let steps = |first, second| {
        [
            fenced(0, "a", Some(first)),
            unlock(1_000, "a", Said::Yes),
            fenced(2_000, "b", Some(second)),
        ]
    };
    finds(&[], &steps(1, 2), &[]);
    finds(&[FENCE], &steps(2, 2), &[]);
    finds(&[FENCE], &steps(2, 1), &[]);
}
