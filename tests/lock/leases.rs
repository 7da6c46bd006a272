//! Leases after lost replies, broken connections and undelivered grants; tables as in `scenarios`.

use lockgate::lock::{Settings, WriteBack};

use crate::harness::{Harness, SETTINGS, scenario, scenario_with};

/// Found by the simulator: what was told of a change must not be dropped with a store request.
#[test]
fn a_change_that_was_told_while_a_question_was_on_its_way_that_is_not_asked_again_is_heeded() {
    let mut harness = Harness::new(SETTINGS);
    assert_eq!(harness.happen("1 lock b"), "acquire b");
    harness.happen("held a 50000");
    assert_eq!(harness.happen("2 unlock x"), "release x");
    assert_eq!(harness.happen("after 2000"), "2 Upstream");
    harness.happen("tracking_lost");
    assert_eq!(harness.happen("unknown"), "acquire b");
}

#[test]
fn after_a_broken_connection_a_lease_is_asked_about_so_that_its_end_is_told_again() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("tracking_lost", "check"),
        ("held a 29000", ""),
        ("push", "check"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_handover_that_was_not_answered_is_sent_again_and_the_lease_begins_anew() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 unlock a", "hand a to b"),
        ("unknown", "hand a to b"),
        ("again 8", "3 Done; 2 granted b"),
    ]);
}

#[test]
fn an_unanswered_acquisition_without_a_client_is_released_twice() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("1 gone a", ""),
        ("unknown", "release a"),
        ("not held", ""),
        ("after 1999", ""),
        ("after 1", "release a"),
        ("not held", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_wait_that_ends_before_the_store_takes_writes_is_the_error_of_the_store() {
    scenario(&[
        ("1 lock a wait 300", "acquire a"),
        ("not now MASTERDOWN", ""),
        ("after 100", "acquire a"),
        ("not yet 1500", ""),
        ("after 200", "1 Store(b\"MASTERDOWN\")"),
    ]);
}

#[test]
fn a_wait_that_ends_while_the_store_does_not_answer_is_an_error() {
    scenario(&[
        ("1 lock a wait 5000", "acquire a"),
        ("after 3000", ""),
        ("after 2000", "1 Upstream"),
    ]);
}

/// Found by the simulator: an `UNLOCK` in vain was on its way when the connection broke. Its answer,
/// on the next one, says nothing of the holder that was read on the one before.
#[test]
fn a_lock_read_on_a_broken_connection_is_read_again() {
    let mut harness = Harness::new(SETTINGS);
    assert_eq!(harness.happen("1 lock b"), "acquire b");
    harness.happen("held a 50000");
    harness.happen("2 unlock x");
    harness.happen("tracking_lost");
    assert_eq!(harness.happen("unknown"), "release x");
    harness.link = 2;
    assert_eq!(harness.happen("not held"), "2 Upstream; acquire b");
}

/// The first acquisition of a plain lock that is not written back costs Redis a bare `SET`. Who waits
/// then has the lock looked at.
#[test]
fn a_lease_without_write_back_is_taken_bare_until_a_client_waits() {
    let settings = Settings {
        write_back: WriteBack::Off,
        ..SETTINGS
    };
    scenario_with(
        settings,
        &[
            ("1 lock a", "bare acquire a"),
            ("again 0 polled", "1 granted a"),
            ("2 lock b", "acquire b"),
            ("held a 29000", ""),
            ("3 lock c", ""),
            ("4 unlock a", "hand a to b"),
            ("granted 8", "4 Done; 2 granted b"),
        ],
    );
    for options in ["fence", "session", "named"] {
        let mut harness = Harness::new(settings);
        assert!(
            harness
                .happen(&format!("1 lock a {options}"))
                .starts_with("acquire a")
        );
    }
}

/// A token that lockgate made can be in use nowhere else, so it is given away whatever its deadline is
/// by now, and again if that was not answered. (Found by the simulator.)
#[test]
fn a_grant_of_a_token_of_our_own_is_taken_back_until_it_is_answered() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("1 undelivered a", "release a"),
        ("unknown", "release a"),
        ("unknown", "release a"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_grant_of_a_token_that_the_client_named_is_taken_back_only_from_its_own_deadline() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("1 undelivered a", "hand a to b if 7"),
    ]);
}
