//! Leases that are bound to the connection of their client (`SESSION`); tables as in `scenarios`.

use crate::harness::{Harness, SETTINGS, scenario};

#[test]
fn a_session_is_renewed_before_two_fifths_of_its_lease_are_over() {
    scenario(&[
        ("1 lock a px 3000 session", "acquire a px 3000"),
        ("granted 7", "1 granted a session"),
        ("after 599", ""),
        ("after 601", "extend a 3000 if 7"),
        ("granted 8", ""),
        ("after 1200", "extend a 3000 if 8"),
        ("granted 9", ""),
        ("2 unlock a", "release a"),
        ("free", "2 Done; 1 over"),
        ("after 5000", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_session_that_its_client_closes_is_given_to_the_next() {
    scenario(&[
        ("1 lock a session", "acquire a"),
        ("granted 7", "1 granted a session"),
        ("2 lock b", ""),
        ("1 closed a", "1 over; hand a to b if 7"),
        ("granted 8", "2 granted b"),
    ]);
}

#[test]
fn a_session_that_the_gate_closes_is_left_to_its_lease() {
    scenario(&[
        ("1 lock a px 900 session", "acquire a px 900"),
        ("granted 7", "1 granted a session"),
        ("1 closed a here", "1 over"),
        ("after 899", ""),
        ("after 5", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn the_end_of_an_earlier_connection_does_nothing() {
    scenario(&[
        ("1 lock a named session", "acquire a"),
        ("granted 7", "1 granted a session"),
        ("2 lock a named session", "acquire a if 7"),
        ("granted 8", "2 granted a session; 1 over"),
        ("1 closed a", ""),
        ("2 closed a", "2 over; release a if 8"),
    ]);
}

#[test]
fn the_latest_request_decides_on_the_session() {
    scenario(&[
        ("1 lock a named session", "acquire a"),
        ("2 lock a named", ""),
        ("granted 7", "1 granted a; 2 granted a"),
        ("after 29999", ""),
    ]);
}

/// The client may have come back at another gate with its token: that one set the deadline last.
#[test]
fn a_session_whose_lease_another_gate_extended_is_renewed_but_not_released() {
    scenario(&[
        ("1 lock a named px 3000 session", "acquire a px 3000"),
        ("granted 7", "1 granted a session"),
        ("after 1200", "extend a 3000 if 7"),
        ("again 9", ""),
        ("after 1200", "extend a 3000"),
        ("again 10", ""),
        ("1 closed a", "1 over"),
    ]);
}

/// The queue recognizes the deadline of an unanswered renewal by its mark, for named and for generated tokens.
#[test]
fn a_session_whose_renewal_was_not_answered_is_released_all_the_same() {
    for named in ["", " named"] {
        scenario(&[
            (
                &format!("1 lock a{named} px 3000 session"),
                "acquire a px 3000",
            ),
            ("granted 7", "1 granted a session"),
            ("after 1200", "extend a 3000 if 7"),
            ("unknown", "extend a 3000 if 7 found"),
            ("granted 9", ""),
            ("1 closed a", "1 over; release a if 9"),
        ]);
    }
}

/// The owner of a session goes on at another gate, with a token that it named or that lockgate made for it.
#[test]
fn a_session_whose_token_is_in_use_elsewhere_is_not_released_by_its_end() {
    for named in ["", " named"] {
        scenario(&[
            (
                &format!("1 lock a{named} px 3000 session"),
                "acquire a px 3000",
            ),
            ("granted 7", "1 granted a session"),
            ("1 closed a", "1 over; release a if 7"),
        ]);
        scenario(&[
            (
                &format!("1 lock a{named} px 3000 session"),
                "acquire a px 3000",
            ),
            ("granted 7", "1 granted a session"),
            ("after 1200", "extend a 3000 if 7"),
            ("unknown", "extend a 3000 if 7 found"),
            ("again 9", ""),
            ("1 closed a", "1 over"),
        ]);
    }
}

/// Only this instance knows the token until the client gets the grant.
#[test]
fn a_session_whose_acquisition_was_not_answered_is_released_by_its_end() {
    scenario(&[
        ("1 lock a px 3000 session", "acquire a px 3000"),
        ("unknown", "acquire a px 3000"),
        ("again 7", "1 granted a session"),
        ("1 closed a", "1 over; release a if 7"),
    ]);
}

#[test]
fn a_renewal_that_fails_is_tried_again_until_the_lease_is_over_and_then_it_is_told() {
    let mut harness = Harness::new(SETTINGS);
    harness.happen("1 lock a px 1200 session");
    harness.happen("granted 7");
    assert_eq!(harness.happen("after 400"), "extend a 1200 if 7");
    let mut asked = 1;
    let mut told = harness.happen("refused ERR no");
    while told.is_empty() {
        told = harness.happen("after 10");
        if told.starts_with("extend") {
            asked += 1;
            told = harness.happen("refused ERR no");
        }
    }
    assert!((6..=8).contains(&asked), "renewed {asked} times");
    assert_eq!(told, "1 lost; release a if 7");
}

#[test]
fn a_session_that_is_not_renewed_in_time_is_told_before_its_lease_can_be_over() {
    scenario(&[
        ("1 lock a px 1200 session", "acquire a px 1200"),
        ("granted 7", "1 granted a session"),
        ("after 400", "extend a 1200 if 7"),
        // A twelfth of the lease before its end.
        ("after 699", ""),
        ("after 1", "1 lost"),
        // The late reply shows that the renewal succeeded; its client was notified of the loss.
        ("granted 8", "release a if 8"),
    ]);
}

#[test]
fn a_session_that_was_deleted_is_told_though_nobody_waits() {
    scenario(&[
        ("1 lock a session", "acquire a"),
        ("granted 7", "1 granted a session"),
        ("push", "check"),
        ("free", "1 lost"),
        ("idle", "true"),
    ]);
}

#[test]
fn a_session_that_was_overwritten_is_told_when_somebody_waits() {
    scenario(&[
        ("1 lock a session", "acquire a"),
        ("granted 7", "1 granted a session"),
        ("2 lock b", ""),
        ("push", "acquire b"),
        ("held x 50", "1 lost"),
    ]);
}

#[test]
fn a_change_that_left_the_lock_as_it_was_ends_nothing() {
    scenario(&[
        ("1 lock a px 3000 session", "acquire a px 3000"),
        ("granted 7", "1 granted a session"),
        ("push", "check"),
        ("held a 2500", ""),
        ("after 1200", "extend a 3000 if 7"),
    ]);
}

#[test]
fn a_session_that_reached_nobody_is_no_session() {
    scenario(&[
        ("1 lock a session", "acquire a"),
        ("granted 7", "1 granted a session"),
        ("1 undelivered a", "1 over; release a"),
    ]);
}

#[test]
fn a_renewal_is_not_kept_waiting_by_what_clients_want() {
    scenario(&[
        ("1 lock a px 3000 session", "acquire a px 3000"),
        ("granted 7", "1 granted a session"),
        ("2 unlock x", "release x"),
        ("3 unlock y", ""),
        ("after 1200", ""),
        ("not held", "2 NotHeld; extend a 3000 if 7"),
        ("granted 8", "3 NotHeld"),
    ]);
}
