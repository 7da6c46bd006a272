//! Grants that replicas have to acknowledge; tables as in `scenarios`.

use crate::harness::{Harness, SETTINGS, scenario};

#[test]
fn a_grant_that_replicas_acknowledged_is_told() {
    scenario(&[
        ("1 lock a replicas 2", "acquire a replicas 2"),
        ("granted 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("free", "2 Done"),
        ("idle", "true"),
    ]);
}

#[test]
fn an_unacknowledged_grant_is_tried_again_after_a_pause_within_its_wait() {
    scenario(&[
        ("1 lock a wait 150 replicas 1", "acquire a replicas 1"),
        ("unacknowledged", ""),
        ("after 99", ""),
        ("after 1", "acquire a replicas 1"),
        ("unacknowledged", ""),
        ("after 50", "1 Store(b\"NOREPLICAS\")"),
        ("idle", "true"),
    ]);
}

#[test]
fn an_unacknowledged_try_is_refused_at_once() {
    scenario(&[
        ("1 lock a try replicas 1", "acquire a replicas 1"),
        ("unacknowledged", "1 Store(b\"NOREPLICAS\")"),
        ("idle", "true"),
    ]);
}

#[test]
fn a_store_that_never_acknowledges_refuses_at_once() {
    scenario(&[
        ("1 lock a replicas 1", "acquire a replicas 1"),
        ("unacknowledged ever", "1 Store(b\"NOREPLICAS\")"),
        ("idle", "true"),
    ]);
}

#[test]
fn waiters_that_want_fewer_replicas_pass_an_unacknowledged_one() {
    scenario(&[
        ("1 lock a replicas 2", "acquire a replicas 2"),
        ("2 lock b replicas 2", ""),
        ("3 lock c replicas 1", ""),
        ("unacknowledged", "acquire c replicas 1"),
        ("granted 7", "3 granted c"),
        // A handover would leave it with the lock and no acknowledgement.
        ("4 unlock c", "hand c to a"),
        ("granted 8", "4 Done; acquire a if 8 replicas 2"),
        ("granted 9", "1 granted a"),
    ]);
}

/// The client that released the lock does not wait for the next one's replicas.
#[test]
fn a_handover_is_told_to_the_owner_before_the_next_one_is_acknowledged() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b wait 90 replicas 1", ""),
        ("3 unlock a", "hand a to b"),
        ("granted 8", "3 Done; acquire b if 8 replicas 1"),
        ("unacknowledged", ""),
        ("after 90", "2 Store(b\"NOREPLICAS\")"),
        ("idle", "true"),
    ]);
}

#[test]
fn a_waiter_that_leaves_between_its_handover_and_the_acknowledgement_leaves_nothing() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b replicas 1", ""),
        ("3 unlock a", "hand a to b"),
        ("granted 8", "3 Done; acquire b if 8 replicas 1"),
        ("2 gone b", ""),
        ("granted 9", "release b"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn an_unacknowledged_extension_leaves_the_lease_as_it_was() {
    let mut harness = Harness::new(SETTINGS);
    assert_eq!(
        harness.happen("1 lock a named px 1000 replicas 1"),
        "acquire a px 1000 replicas 1"
    );
    assert_eq!(harness.happen("granted 1000"), "1 granted a");
    // Whatever the command says: the grant had one.
    assert_eq!(
        harness.happen("2 relock a 30000"),
        "extend a 30000 if 1000 replicas 1"
    );
    assert_eq!(
        harness.happen("unacknowledged kept 30000"),
        "2 Store(b\"NOREPLICAS\")"
    );
    assert_eq!(harness.holder_for_ms(), Some(1_000));
    // The key has the new deadline all the same.
    assert_eq!(harness.happen("1 undelivered a"), "release a if 30000");
}

#[test]
fn an_unacknowledged_renewal_is_tried_again_and_the_session_told_in_time() {
    let mut harness = Harness::new(SETTINGS);
    harness.happen("1 lock a px 3000 session replicas 1");
    assert_eq!(harness.happen("granted 3000"), "1 granted a session");
    let renewed = harness.happen("after 1200");
    assert_eq!(renewed, "extend a 3000 if 3000 replicas 1");
    harness.happen("unacknowledged kept 4200");
    let again = harness.happen("after 100");
    assert_eq!(again, "extend a 3000 if 4200 replicas 1");
    harness.happen("unacknowledged kept 4300");
    let mut told = Vec::new();
    for _ in 0..20 {
        told.push(harness.happen("after 100"));
        if told.last().is_some_and(|it| it.starts_with("extend")) {
            harness.happen("unacknowledged kept 4400");
        }
    }
    assert!(told.iter().any(|it| it.contains("1 lost")), "{told:?}");
}

/// The same token again is the same owner, who keeps what it has.
#[test]
fn an_owner_that_asks_again_unacknowledged_keeps_its_lock() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock a named replicas 1", "acquire a if 7 replicas 1"),
        ("unacknowledged kept 9", "2 Store(b\"NOREPLICAS\")"),
        ("3 unlock a", "release a"),
        ("free", "3 Done"),
        ("idle", "true"),
    ]);
}
