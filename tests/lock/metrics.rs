//! The events that are counted: how grants came about, how leases ended, renewals, yields.

use crate::harness::{Harness, SETTINGS};

/// Each event, and what is counted of it.
fn counted(lines: &[(&str, &[&str])]) {
    let mut harness = Harness::new(SETTINGS);
    for (number, (event, expected)) in lines.iter().enumerate() {
        let done = harness.happen(event);
        let counted = std::mem::take(&mut harness.counted);
        assert_eq!(counted, *expected, "line {}: {event}: {done}", number + 1);
    }
}

#[test]
fn a_lock_is_found_free_and_released() {
    counted(&[
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("after 20", &[]),
        ("2 unlock a", &[]),
        ("free", &["Released after 20"]),
        ("after 1", &[]),
        ("3 lock b", &[]),
        ("granted 2", &["3 Free"]),
    ]);
}

#[test]
fn a_lock_is_handed_over() {
    counted(&[
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("2 lock b", &[]),
        ("after 7", &[]),
        ("3 unlock a", &[]),
        ("granted 2", &["HandedOver after 7", "2 Handover"]),
    ]);
}

#[test]
fn a_waiter_that_finds_the_lock_free_has_waited() {
    counted(&[
        ("1 lock a", &[]),
        ("held x 50", &["InVain { on_push: false }"]),
        ("after 51", &[]),
        ("granted 1", &["1 Waited"]),
    ]);
    // It came before the release was answered.
    counted(&[
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("2 unlock a", &[]),
        ("3 lock b", &[]),
        ("free", &["Released after 0"]),
        ("granted 2", &["3 Waited"]),
    ]);
}

#[test]
fn the_same_token_again_is_counted_as_that() {
    counted(&[
        ("1 lock a named", &[]),
        ("2 lock a named", &[]),
        ("granted 1", &["1 Free", "2 Again"]),
        ("3 lock a named", &[]),
        ("granted 9", &["3 Again"]),
    ]);
    // At another gate; and here, by a sending whose answer was lost.
    counted(&[("1 lock a named", &[]), ("again 7", &["1 Again"])]);
    counted(&[
        ("1 lock a named", &[]),
        ("unknown", &[]),
        ("again 7", &["1 Free"]),
    ]);
}

#[test]
fn one_who_joins_with_another_lease_is_granted_what_came_about_before() {
    counted(&[
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("2 lock b named", &[]),
        ("3 unlock a", &[]),
        ("4 lock b named px 50", &[]),
        ("granted 2", &["HandedOver after 0"]),
        ("granted 3", &["2 Handover", "4 Again"]),
    ]);
}

#[test]
fn a_lease_runs_out_or_is_lost() {
    counted(&[
        ("1 lock a px 50", &[]),
        ("granted 1", &["1 Free"]),
        ("after 53", &[]),
        ("after 1", &["RanOut after 54"]),
    ]);
    counted(&[
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("after 5", &[]),
        ("push", &[]),
        ("free", &["Lost after 5"]),
    ]);
    counted(&[
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("2 unlock a", &[]),
        ("not held", &["Lost after 0"]),
    ]);
    // The first sending was executed, for all that is known.
    counted(&[
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("2 unlock a", &[]),
        ("unknown", &[]),
        ("not held", &["Released after 0"]),
    ]);
}

#[test]
fn a_yield_is_counted_when_the_lock_is_released_for_it() {
    let mut lines: Vec<(&str, &[&str])> = vec![
        ("1 lock a", &[]),
        ("granted 1", &["1 Free"]),
        ("2 lock b", &[]),
        ("3 lock c", &[]),
        ("4 lock d", &[]),
        ("5 lock e", &[]),
    ];
    lines.extend_from_slice(&[
        ("6 unlock a", &[]),
        (
            "granted 2",
            &["HandedOver after 0", "2 Handover"] as &[&str],
        ),
        ("7 unlock b", &[]),
        ("granted 3", &["HandedOver after 0", "3 Handover"]),
        ("8 unlock c", &[]),
        ("granted 4", &["HandedOver after 0", "4 Handover"]),
        ("9 unlock d", &[]),
        ("free", &["Released after 0", "Yielded"]),
        ("granted 5", &["5 Waited"]),
    ]);
    counted(&lines);
}

#[test]
fn renewals_are_those_of_sessions() {
    counted(&[
        ("1 lock a px 3000 session", &[]),
        ("granted 1", &["1 Free"]),
        ("after 1200", &[]),
        ("granted 2", &["Renewed"]),
        ("after 1200", &[]),
        ("refused X", &["NotRenewed"]),
        ("after 100", &[]),
        ("unknown", &["NotRenewed"]),
        ("granted 3", &["Renewed"]),
        ("2 relock a 3000", &[]),
        ("granted 4", &[]),
    ]);
}
