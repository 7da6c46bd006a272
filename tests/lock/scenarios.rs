//! Tables of scenarios: what happens to one lock, and what the queue does about it. The words are
//! explained in [`harness`](crate::harness).

use lockgate::lock::Settings;

use crate::harness::{Harness, SETTINGS, scenario, scenario_with};

#[test]
fn a_free_lock_costs_one_question_and_its_release_another() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("free", "2 Done"),
        ("idle", "true"),
    ]);
}

#[test]
fn a_waiter_costs_no_request_and_is_handed_the_lock() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 lock c", ""),
        ("4 unlock a", "hand a to b"),
        ("granted 8", "4 Done; 2 granted b"),
        ("5 unlock b", "hand b to c"),
        ("granted 9", "5 Done; 3 granted c"),
        ("6 unlock c", "release c"),
        ("free", "6 Done"),
        ("idle", "true"),
    ]);
}

#[test]
fn a_lock_held_elsewhere_is_waited_for_without_asking() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("2 lock b", ""),
        ("3 lock c try", "3 Nil"),
        ("push", "acquire a"),
        ("granted 7", "1 granted a"),
    ]);
}

#[test]
fn its_end_is_asked_about_one_millisecond_after_it() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 50", ""),
        ("after 50", ""),
        ("after 1", "acquire a"),
        ("granted 7", "1 granted a"),
    ]);
}

#[test]
fn a_waiter_for_a_lock_without_expiry_checks_once_a_minute() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x forever", ""),
        ("after 59999", ""),
        ("after 1", "acquire a"),
        ("held x forever", ""),
    ]);
}

#[test]
fn a_store_that_tells_nothing_is_polled() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000 polled", ""),
        ("after 100", "acquire a"),
        ("held x 20000 polled", ""),
        ("2 lock b try", "2 Nil"),
        ("1 gone a", ""),
        ("after 100", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn of_several_who_try_at_once_one_asks() {
    scenario(&[
        ("1 lock a try", "acquire a"),
        ("2 lock b try", ""),
        ("3 lock c try", ""),
        ("granted 7", "1 granted a; 2 Nil; 3 Nil"),
        ("4 lock d try", "4 Nil"),
    ]);
}

#[test]
fn a_try_that_finds_it_held_leaves_it_known() {
    scenario(&[
        ("1 lock a try", "acquire a"),
        ("held x 50", "1 Nil"),
        ("2 lock b try", "2 Nil"),
        ("after 51", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn after_so_many_handovers_the_lock_is_released_for_real() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 unlock a", "hand a to b"),
        ("granted 8", "3 Done; 2 granted b"),
        ("4 lock c", ""),
        ("5 unlock b", "hand b to c"),
        ("granted 9", "5 Done; 4 granted c"),
        ("6 lock d", ""),
        ("7 unlock c", "hand c to d"),
        ("granted 10", "7 Done; 6 granted d"),
        ("8 lock e", ""),
        ("9 unlock d", "release d"),
        ("free", "9 Done; acquire e"),
        ("granted 11", "8 granted e"),
    ]);
}

#[test]
fn after_so_long_a_time_of_them_too_and_others_get_a_moment_to_take_it() {
    let settings = Settings {
        yield_pause_ms: 20,
        ..SETTINGS
    };
    scenario_with(
        settings,
        &[
            ("1 lock a", "acquire a"),
            ("granted 7", "1 granted a"),
            ("2 lock b", ""),
            ("after 5000", ""),
            ("3 unlock a", "release a"),
            ("free", "3 Done"),
            ("after 19", ""),
            ("after 1", "acquire b"),
            ("held x 20000", ""),
        ],
    );
}

#[test]
fn a_push_that_overtook_the_answer_is_asked_about() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("push", ""),
        ("held x 20000", "acquire a"),
        ("granted 7", "1 granted a"),
    ]);
}

#[test]
fn a_push_on_another_connection_means_nothing() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("push 2", ""),
        ("held x 20000", ""),
        ("push 2", ""),
        ("push", "acquire a"),
    ]);
}

#[test]
fn a_push_during_a_release_that_finds_nothing_is_heeded() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("2 unlock z", "release z"),
        ("push", ""),
        ("not held", "2 NotHeld; acquire a"),
    ]);
}

#[test]
fn asks_in_vain_on_a_push_are_delayed_and_the_first_is_not() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("push", "acquire a"),
        ("held y 20000", ""),
        ("push", ""),
        ("after 1", "acquire a"),
        ("held z 20000", ""),
        ("push", ""),
        ("after 2", "acquire a"),
        ("granted 7", "1 granted a"),
    ]);
}

#[test]
fn a_lost_connection_is_asked_about() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("tracking_lost", "acquire a"),
        ("held x 20000", ""),
    ]);
}

#[test]
fn the_holder_that_asks_again_is_granted_again_past_all_who_wait() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 lock a named px 50", "acquire a px 50 if 7"),
        ("again 8", "3 granted a"),
        ("4 lock a named try", "acquire a"),
        ("again 9", "4 granted a"),
    ]);
}

#[test]
fn the_holder_elsewhere_that_asks_here_is_granted() {
    scenario(&[
        ("1 lock b", "acquire b"),
        ("held a 20000", ""),
        ("2 lock a named", "acquire a"),
        ("again 7", "2 granted a"),
    ]);
}

#[test]
fn a_retry_joins_its_place_with_its_own_wait() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a named wait 50", ""),
        ("3 lock b", ""),
        ("4 lock a named px 90", ""),
        ("after 50", "2 Nil"),
        ("5 unlock x", "hand x to a px 90"),
        ("granted 8", "5 Done; 4 granted a"),
    ]);
}

#[test]
fn a_lease_asked_for_while_another_is_granted_is_asked_for_once_more() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("2 lock a named px 90", ""),
        ("granted 7", "acquire a px 90 if 7"),
        ("again 8", "1 granted a; 2 granted a"),
    ]);
}

#[test]
fn a_grant_under_way_to_a_client_that_is_gone_goes_to_the_next() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("2 lock b", ""),
        ("1 gone a", ""),
        ("granted 7", "hand a to b"),
        ("granted 8", "2 granted b"),
    ]);
}

#[test]
fn or_is_taken_back_and_only_that_grant() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("1 gone a", ""),
        ("granted 7", "release a if 7"),
        ("not held", ""),
        ("after 2000", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_wait_that_ends_while_the_grant_is_under_way() {
    scenario(&[
        ("1 lock a wait 5", "acquire a"),
        ("after 5", "1 Nil"),
        ("granted 7", "release a"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_grant_that_reached_nobody_goes_to_the_next() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("1 undelivered a", "hand a to b"),
        ("granted 8", "2 granted b"),
    ]);
}

#[test]
fn a_grant_that_reached_one_of_two_stands() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("2 lock a named", ""),
        ("granted 7", "1 granted a; 2 granted a"),
        ("1 undelivered a", ""),
        ("1 undelivered a", "release a if 7"),
    ]);
}

#[test]
fn an_undelivered_grant_is_granted_again_on_retry() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock z", "release z"),
        ("1 undelivered a", ""),
        ("3 lock a named", ""),
        ("not held", "2 NotHeld; acquire a if 7"),
        ("again 8", "3 granted a"),
    ]);
}

#[test]
fn a_named_token_that_held_the_lock_already_is_left_to_its_lease() {
    scenario(&[
        ("1 lock a named px 50", "acquire a px 50"),
        ("1 gone a", ""),
        ("again 7", ""),
        ("2 lock b", ""),
        ("after 54", "acquire b"),
        ("granted 8", "2 granted b"),
    ]);
}

#[test]
fn a_lease_shorter_than_the_way_is_refused_and_taken_back() {
    scenario(&[
        ("1 lock a px 10", "acquire a px 10"),
        ("2 lock b", ""),
        ("after 10", ""),
        ("granted 7", "1 Expired; hand a to b"),
        ("granted 8", "2 granted b"),
    ]);
}

#[test]
fn a_stranger_releases_and_extends_nothing() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 unlock z", "release z"),
        ("not held", "3 NotHeld"),
        ("4 relock z 50", "extend z 50"),
        ("held a 20000", "4 NotHeld"),
        ("5 relock a 50", "extend a 50 if 7"),
        ("again 8", "5 Done"),
        ("after 55", "acquire b"),
    ]);
}

#[test]
fn a_holder_that_lost_the_lock_is_told_and_the_next_one_asks() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 unlock a", "hand a to b"),
        ("free", "3 NotHeld; acquire b"),
        ("granted 8", "2 granted b"),
        ("4 lock c", ""),
        ("5 unlock b", "hand b to c"),
        ("held x 20000", "5 NotHeld"),
    ]);
}

#[test]
fn a_handover_that_the_store_refuses_is_a_release() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 unlock a", "hand a to b"),
        ("refused OOM", "release a"),
        ("free", "3 Done; acquire b"),
        ("refused OOM", "2 Store(b\"OOM\")"),
        ("idle", "true"),
    ]);
}

#[test]
fn one_who_is_refused_leaves_the_others_in_line() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("2 lock b", ""),
        ("refused NOPERM", "1 Store(b\"NOPERM\"); acquire b"),
        ("granted 7", "2 granted b"),
    ]);
}

#[test]
fn a_store_that_cannot_now_is_asked_again() {
    scenario(&[
        ("1 lock a wait 150", "acquire a"),
        ("not now LOADING", ""),
        ("after 100", "acquire a"),
        ("not now LOADING", ""),
        ("after 50", "1 Store(b\"LOADING\")"),
        ("after 100", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_lost_answer_is_asked_for_again_with_the_same_token() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("unknown", "acquire a"),
        ("again 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("unknown", "release a"),
        ("not held", "2 Done"),
        ("3 relock a 50", "extend a 50"),
        ("unknown", "extend a 50"),
        ("free", "3 NotHeld"),
    ]);
}

#[test]
fn a_release_of_which_nothing_is_known_says_so() {
    scenario(&[
        ("1 unlock a", "release a"),
        ("unknown", "release a"),
        ("not held", "1 Upstream"),
    ]);
}

#[test]
fn a_lost_handover_is_sent_again_and_may_find_itself_done() {
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
fn an_orphaned_grant_is_released_unless_the_token_may_be_in_use() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("1 gone a", ""),
        ("unknown", "release a"),
        ("not held", ""),
        ("2 lock b named", "acquire b"),
        ("2 gone b", ""),
        ("unknown", ""),
    ]);
}

#[test]
fn a_store_that_is_silent_is_told_of_where_nobody_wants_to_wait() {
    scenario(&[
        ("1 lock a try", "acquire a"),
        ("2 unlock z", ""),
        ("3 lock b", ""),
        ("after 1999", ""),
        ("after 1", "1 Upstream; 2 Upstream"),
        ("unknown", "release a"),
        ("free", "acquire b"),
    ]);
}

#[test]
fn an_unlock_given_up_on_is_done_all_the_same_for_that_grant_only() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("after 2000", "2 Upstream"),
        ("unknown", "release a if 7"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_lock_whose_holders_unlock_stands_behind_it_is_refused() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("2 behind b z", ""),
        ("2 behind b a", "2 Deadlock"),
    ]);
    // Also when the holder becomes known later.
    scenario(&[
        ("1 lock b", "acquire b"),
        ("1 behind b a", ""),
        ("held a 20000", "1 Deadlock"),
    ]);
}

#[test]
fn one_more_than_may_wait_is_refused() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 lock c", ""),
        ("4 lock d", ""),
        ("5 lock e", ""),
        ("6 lock f", "6 TooManyWaiters"),
        ("7 lock g try", "7 Nil"),
    ]);
}

#[test]
fn a_client_that_stops_waiting_gets_the_grant_in_flight_or_nil() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("2 lock b", ""),
        ("1 stop a", ""),
        ("2 stop b", "2 Nil"),
        ("granted 7", "1 granted a"),
    ]);
    scenario(&[
        ("1 lock a", "acquire a"),
        ("1 stop a", ""),
        ("held x 20000", "1 Nil"),
    ]);
}

#[test]
fn an_old_request_has_the_rest_of_its_time() {
    scenario(&[
        ("1 unlock a", "release a"),
        ("within", "2000"),
        ("not held", "1 NotHeld"),
        ("2 unlock a late 1500", "release a"),
        ("within", "500"),
        ("3 relock b 50", ""),
        ("4 unlock c late 1600", ""),
        ("after 399", ""),
        ("after 1", "4 Upstream"),
        ("after 100", "2 Upstream"),
        ("unknown", "extend b 50"),
        ("within", "1500"),
    ]);
}

/// Where other gates want the lock, a turn is those who waited when it began.
#[test]
fn a_turn_is_those_who_waited_when_it_began_where_the_lock_was_held_elsewhere() {
    let settings = Settings {
        max_handovers: 64,
        ..SETTINGS
    };
    let mut harness = Harness::new(settings);
    for (event, done) in [
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("2 lock b", ""),
        ("push", "acquire a"),
        ("granted 7", "1 granted a"),
        ("3 lock c", ""),
        ("4 unlock a", "hand a to b"),
        ("granted 8", "4 Done; 2 granted b"),
        ("5 unlock b", "release b"),
        ("free", "5 Done; acquire c"),
        ("granted 9", "3 granted c"),
    ] {
        assert_eq!(harness.happen(event), done, "{event}");
    }
    // Until the pauses after several turns went unused.
    let mut turns = 1;
    let mut holder = "c".to_owned();
    loop {
        let next = format!("t{turns}");
        harness.happen(&format!("{} lock {next}", 100 + turns));
        let done = harness.happen(&format!("{} unlock {holder}", 200 + turns));
        if done.starts_with("hand") {
            break;
        }
        turns += 1;
        harness.happen("free");
        harness.happen("granted 9");
        holder = next;
    }
    assert_eq!(turns, 4);
}

/// The store forgets what it tracks when its table is full.
#[test]
fn a_push_about_a_lock_that_did_not_change_is_counted() {
    let mut harness = Harness::new(SETTINGS);
    for (event, done) in [
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("after 100", ""),
        ("push", "acquire a"),
        ("held x 19900", ""),
        // It was extended.
        ("push", ""),
        ("after 20", "acquire a"),
        ("held x 20000", ""),
    ] {
        assert_eq!(harness.happen(event), done, "{event}");
    }
    let counted = |what: &str| harness.counted.iter().filter(|it| *it == what).count();
    assert_eq!(counted("ToldOfNothing"), 1);
    assert_eq!(counted("InVain { on_push: true }"), 2);
}
