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
fn an_unacknowledged_grant_is_given_back_and_tried_again_after_a_pause_within_its_wait() {
    scenario(&[
        ("1 lock a wait 150 replicas 1", "acquire a replicas 1"),
        ("unacknowledged 7", "release a if 7"),
        ("free", ""),
        ("after 99", ""),
        ("after 1", "acquire a replicas 1"),
        ("unacknowledged 8", "release a if 8"),
        ("free", ""),
        ("after 50", "1 Store(b\"NOREPLICAS\")"),
        ("idle", "true"),
    ]);
}

#[test]
fn the_store_says_how_long_the_pause_is() {
    scenario(&[
        ("1 lock a replicas 1", "acquire a replicas 1"),
        ("unacknowledged in 1600", ""),
        ("after 1599", ""),
        ("after 1", "acquire a replicas 1"),
        ("granted 7", "1 granted a"),
    ]);
}

#[test]
fn an_unacknowledged_try_is_refused_at_once() {
    scenario(&[
        ("1 lock a try replicas 1", "acquire a replicas 1"),
        (
            "unacknowledged 7",
            "1 Store(b\"NOREPLICAS; the lock is given back\"); release a",
        ),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_store_that_never_acknowledges_refuses_at_once() {
    scenario(&[
        ("1 lock a replicas 1", "acquire a replicas 1"),
        (
            "unacknowledged 7 ever",
            "1 Store(b\"NOREPLICAS; the lock is given back\"); release a",
        ),
        ("free", ""),
        ("2 lock b replicas 1", "acquire b replicas 1"),
        ("unacknowledged ever", "2 Store(b\"NOREPLICAS\")"),
        ("idle", "true"),
    ]);
}

/// After a failover the token may be back, and then for no client. Where its place still waits, it may get the lock again.
#[test]
fn a_grant_that_was_given_back_is_dead() {
    let mut harness = Harness::new(SETTINGS);
    harness.happen("1 lock a try replicas 1");
    harness.happen("unacknowledged 7");
    harness.happen("free");
    harness.happen("after 100");
    harness.happen("2 lock b named try replicas 1");
    harness.happen("unacknowledged 9");
    harness.happen("free");
    harness.happen("after 100");
    harness.happen("3 lock c replicas 1");
    harness.happen("unacknowledged 11");
    harness.happen("free");
    assert_eq!(harness.dead, ["a", "b up to 9", "c up to 11"]);
}

#[test]
fn waiters_that_want_fewer_replicas_pass_an_unacknowledged_one() {
    scenario(&[
        ("1 lock a replicas 2", "acquire a replicas 2"),
        ("2 lock b replicas 2", ""),
        ("3 lock c replicas 1", ""),
        ("unacknowledged 6 have 1", "hand a to c if 6"),
        ("granted 7", "acquire c if 7 replicas 1"),
        ("granted 8", "3 granted c"),
        // A handover would leave it with the lock and no acknowledgement.
        ("4 unlock c", "release c"),
        ("free", "4 Done"),
        ("after 100", "acquire a replicas 2"),
        ("granted 9", "1 granted a"),
    ]);
}

/// One answer of the store concerns all of them, and a grant in between shows nothing new.
#[test]
fn waiters_that_want_too_many_replicas_cost_the_others_nothing() {
    scenario(&[
        ("1 lock a replicas 5", "acquire a replicas 5"),
        ("2 lock b replicas 4", ""),
        ("3 lock c replicas 3", ""),
        ("4 lock d", ""),
        ("5 lock e replicas 1", ""),
        ("unacknowledged have 1 in 2000", "acquire d"),
        ("granted 7", "4 granted d"),
        ("6 unlock d", "hand d to e"),
        ("granted 8", "6 Done; acquire e if 8 replicas 1"),
        ("granted 9", "5 granted e"),
        ("7 unlock e", "release e"),
        ("free", "7 Done"),
        ("8 lock f", "acquire f"),
        ("granted 10", "8 granted f"),
        ("9 unlock f", "release f"),
        ("free", "9 Done"),
        ("after 2000", "acquire a replicas 5"),
        ("granted 11", "1 granted a"),
        // As many are back, so the others are served as well.
        ("10 unlock a", "hand a to b"),
        ("granted 12", "10 Done; acquire b if 12 replicas 4"),
    ]);
}

#[test]
fn a_try_behind_a_waiter_that_wants_too_many_replicas_is_answered_at_once() {
    scenario(&[
        ("1 lock a replicas 3", "acquire a replicas 3"),
        ("unacknowledged have 1", ""),
        ("2 lock b try replicas 2", "2 Store(b\"NOREPLICAS\")"),
        ("3 lock c try replicas 1", "acquire c replicas 1"),
        ("granted 7", "3 granted c"),
    ]);
    // While the first acknowledgement is awaited, the lock is held.
    scenario(&[
        ("8 lock x", "acquire x"),
        ("granted 3", "8 granted x"),
        ("9 unlock x", "release x"),
        ("free", "9 Done"),
        ("1 lock a replicas 3", "acquire a replicas 3"),
        ("2 lock b try", ""),
        ("taken", "2 Nil"),
        ("3 lock c try", "3 Nil"),
        ("granted 7", "1 granted a"),
    ]);
}

/// The lock was to be had: a nil would say that another client holds it, or that the store is slow.
#[test]
fn a_wait_that_ends_before_the_first_acknowledgement_lacks_replicas() {
    let refused = "1 Store(b\"NOREPLICAS not acknowledged within WAIT; the lock is given back\")";
    scenario(&[
        ("1 lock a wait 50 replicas 1", "acquire a replicas 1"),
        ("2 lock b wait 50", ""),
        ("taken", ""),
        ("after 50", &format!("{refused}; 2 Nil")),
        ("granted 7", "release a"),
        ("free", ""),
        ("idle", "true"),
    ]);
    // Nothing is known of a lock that may be held.
    scenario(&[
        ("1 lock a wait 50 replicas 1", "acquire a replicas 1"),
        ("after 50", "1 Nil"),
        ("held b 500", ""),
    ]);
}

#[test]
fn a_store_that_hangs_during_the_acknowledgement_is_the_upstreams_fault() {
    scenario(&[
        ("1 lock a try replicas 1", "acquire a replicas 1"),
        ("2 lock b wait 3000 replicas 1", ""),
        ("taken", ""),
        ("after 2000", "1 Upstream"),
        ("after 1000", "2 Upstream"),
    ]);
    // Whatever was known of the replicas before.
    scenario(&[
        ("1 lock a wait 3000 replicas 1", "acquire a replicas 1"),
        ("unacknowledged 7", "release a if 7"),
        ("free", ""),
        ("after 100", "acquire a replicas 1"),
        ("after 2900", "1 Upstream"),
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
        ("unacknowledged", "release b if 8"),
        ("free", ""),
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
    let stays = "2 Store(b\"NOREPLICAS; the lease stays as it was\")";
    assert_eq!(harness.happen("unacknowledged 30000"), stays);
    assert_eq!(harness.holder_for_ms(), Some(1_000));
    // The key has the new deadline all the same.
    assert_eq!(harness.happen("1 undelivered a"), "release a if 30000");
}

/// The store shortens no lease before replicas acknowledged it.
#[test]
fn an_unacknowledged_extension_does_not_shorten_the_lease() {
    for done in ["unacknowledged", "unacknowledged 30003"] {
        let mut harness = Harness::new(SETTINGS);
        harness.happen("1 lock a named replicas 1");
        assert_eq!(harness.happen("granted 30000"), "1 granted a");
        assert_eq!(
            harness.happen("2 relock a 1000"),
            "extend a 1000 if 30000 replicas 1"
        );
        let stays = "2 Store(b\"NOREPLICAS; the lease stays as it was\")";
        assert_eq!(harness.happen(done), stays);
        assert_eq!(harness.holder_for_ms(), Some(30_000));
    }
}

#[test]
fn an_unacknowledged_renewal_is_tried_again_and_the_session_told_in_time() {
    for (done, expected) in [("unacknowledged 4200", 4_200), ("unacknowledged", 3_000)] {
        let mut harness = Harness::new(SETTINGS);
        harness.happen("1 lock a px 3000 session replicas 1");
        assert_eq!(harness.happen("granted 3000"), "1 granted a session");
        let renewed = harness.happen("after 1200");
        assert_eq!(renewed, "extend a 3000 if 3000 replicas 1");
        harness.happen(done);
        let again = harness.happen("after 100");
        assert_eq!(again, format!("extend a 3000 if {expected} replicas 1"));
        harness.happen(done);
        let mut told = Vec::new();
        for _ in 0..20 {
            told.push(harness.happen("after 100"));
            if told.last().is_some_and(|it| it.starts_with("extend")) {
                harness.happen(done);
            }
        }
        assert!(told.iter().any(|it| it.contains("1 lost")), "{told:?}");
    }
}

/// The same token again is the same owner, who keeps what it has.
#[test]
fn an_owner_that_asks_again_unacknowledged_keeps_its_lock() {
    for done in ["unacknowledged 9", "unacknowledged"] {
        scenario(&[
            ("1 lock a named", "acquire a"),
            ("granted 7", "1 granted a"),
            ("2 lock a named replicas 1", "acquire a if 7 replicas 1"),
            (done, "2 Store(b\"NOREPLICAS; the lease stays as it was\")"),
            ("3 unlock a", "release a"),
            ("free", "3 Done"),
            ("idle", "true"),
        ]);
    }
    // Another instance granted it.
    scenario(&[
        ("1 lock a named replicas 1", "acquire a replicas 1"),
        (
            "unacknowledged 9 foreign",
            "1 Store(b\"NOREPLICAS; the lease stays as it was\")",
        ),
        ("idle", "true"),
    ]);
}

/// The store may refuse without a look at rights: that tells nothing of them.
#[test]
fn a_refusal_for_want_of_replicas_authorizes_no_user() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("free", "2 Done"),
        ("3 lock b try replicas 1 user 2", "acquire b replicas 1"),
        ("unacknowledged", "3 Store(b\"NOREPLICAS\")"),
        ("4 lock c", "acquire c"),
        ("granted 8", "4 granted c"),
        ("5 lock d try user 2", "check as 2"),
        ("refused NOPERM", "5 Store(b\"NOPERM\")"),
    ]);
}
