//! Clients that spin: each attempt is a request of its own, which is refused or waits for a moment. `spins 7` is an
//! attempt on connection 7; `again` lets equal tokens be one owner; `once` is an attempt that no other follows.

use crate::harness::{Harness, scenario};

/// Runs a scenario that begins with the lock granted to `a`.
fn while_a_holds(lines: &[(&str, &str)]) {
    let granted = [("1 lock a", "acquire a"), ("granted 7", "1 granted a")];
    scenario(&[&granted, lines].concat());
}

#[test]
fn an_attempt_at_a_free_lock_costs_one_request_and_its_release_another() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a absorbed", "release a"),
        ("free", "2 Done"),
        ("idle", "true"),
    ]);
}

#[test]
fn an_attempt_waits_in_the_queue_and_is_handed_the_lock() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("3 lock c", ""),
        ("4 unlock a", "hand a to strict b"),
        ("granted 8", "4 Done; 2 granted b"),
        ("5 unlock b absorbed", "hand b to c"),
        ("granted 9", "5 Done; 3 granted c"),
    ]);
}

#[test]
fn a_refused_attempt_keeps_its_place_for_the_next_one_with_its_token() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("3 lock c", ""),
        ("after 50", "2 Nil"),
        ("4 lock b spins 9 wait 50", ""),
        ("5 unlock a", "hand a to strict b"),
        ("granted 8", "5 Done; 4 granted b"),
    ]);
}

/// A client whose token did not come back within its grace makes a new one each time.
#[test]
fn where_clients_make_new_tokens_the_next_attempt_on_the_connection_has_the_place() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("after 50", "2 Nil"),
        ("3 lock c spins 1 wait 50", ""),
        ("after 50", "3 Nil"),
        ("after 1950", ""),
        ("4 lock d spins 1 wait 50", "strict acquire d"),
        ("held a 20000", ""),
        ("5 lock e", ""),
        ("after 50", "4 Nil"),
        ("6 lock f spins 1 wait 50", ""),
        ("7 unlock a", "hand a to strict f"),
        ("granted 8", "7 Done; 6 granted f"),
        ("8 unlock f absorbed", "hand f to e"),
    ]);
}

/// They take their connections from a pool.
#[test]
fn where_clients_repeat_their_tokens_none_loses_its_place_to_another_on_its_connection() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("after 50", "2 Nil"),
        ("3 lock c spins 1 wait 50", ""),
        ("4 lock b spins 2 wait 50", ""),
        ("5 unlock a", "hand a to strict b"),
    ]);
}

#[test]
fn an_empty_place_is_passed_over() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("3 lock c spins 2 wait 100", ""),
        ("after 50", "2 Nil"),
        ("4 unlock a absorbed", "hand a to strict c"),
        ("granted 8", "4 Done; 3 granted c"),
        ("5 lock b spins 1 wait 50", ""),
        ("6 unlock c absorbed", "hand c to strict b"),
        ("granted 9", "6 Done; 5 granted b"),
    ]);
}

#[test]
fn an_attempt_that_does_not_wait_is_refused_from_memory_and_keeps_its_place() {
    while_a_holds(&[
        ("2 lock b spins 1 try", "2 Nil"),
        ("3 lock c", ""),
        ("4 lock b spins 1 wait 50", ""),
        ("5 unlock a", "hand a to strict b"),
    ]);
}

#[test]
fn an_attempt_that_no_other_follows_leaves_no_place() {
    while_a_holds(&[
        ("2 lock b spins 1 try once", "2 Nil"),
        ("3 lock c", ""),
        ("4 lock b spins 1 wait 50", ""),
        ("5 unlock a", "hand a to c"),
    ]);
}

#[test]
fn the_holders_own_token_is_refused() {
    scenario(&[
        ("1 lock 1 spins 1 wait 50", "strict acquire 1"),
        ("granted 7", "1 granted 1"),
        ("2 lock 1 spins 2 wait 50", ""),
        ("after 50", "2 Nil"),
        ("3 lock 1 spins 3 try", "3 Nil"),
    ]);
}

#[test]
fn equal_tokens_wait_at_places_of_their_own_and_one_grant_reaches_one_attempt() {
    scenario(&[
        ("1 lock 1 spins 1 wait 50", "strict acquire 1"),
        ("granted 7", "1 granted 1"),
        ("2 lock 1 spins 2 wait 50", ""),
        ("3 lock 1 spins 3 wait 50", ""),
        ("4 delete", "hand 1 to strict 1"),
        ("granted 8", "4 Done; 2 granted 1"),
        ("5 delete", "hand 1 to strict 1"),
        ("granted 9", "5 Done; 3 granted 1"),
        ("6 delete", "release 1"),
        ("free", "6 Done"),
        ("idle", "true"),
    ]);
}

#[test]
fn a_token_that_the_store_reports_as_the_holder_is_refused() {
    scenario(&[
        ("1 lock 1 spins 1 wait 50", "strict acquire 1"),
        ("held 1 20000", ""),
        ("push", "strict acquire 1"),
        ("held 1 20000", ""),
        ("after 50", "1 Nil"),
    ]);
}

#[test]
fn an_equal_token_that_may_hold_the_lock_again_is_granted_again() {
    scenario(&[
        ("1 lock a spins 1 again wait 50", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock a spins 2 again wait 50", "acquire a if 7"),
        ("granted 8", "2 granted a"),
    ]);
}

/// The equal token may be another client's by now, which must not share its lock.
#[test]
fn an_attempt_without_a_reply_is_sent_again_but_the_holders_token_is_still_refused() {
    scenario(&[
        ("1 lock 1 spins 1 wait 50", "strict acquire 1"),
        ("unknown", "strict acquire 1"),
        ("held 1 20000", ""),
        ("after 50", "1 Nil"),
    ]);
}

/// Executed twice, the handover would take the lock from another client with the next waiter's token.
#[test]
fn a_handover_to_an_attempt_without_a_reply_becomes_a_release_of_that_grant() {
    while_a_holds(&[
        ("2 lock 1 spins 1 wait 50", ""),
        ("3 unlock a", "hand a to strict 1"),
        ("unknown", "release a"),
        ("not held", "3 Done; strict acquire 1"),
        ("granted 8", "2 granted 1"),
    ]);
}

#[test]
fn a_release_that_is_sent_again_insists_on_the_deadline_that_it_was_to_end() {
    scenario(&[
        ("1 lock 1 spins 1 wait 50", "strict acquire 1"),
        ("granted 7", "1 granted 1"),
        ("2 unlock 1 absorbed", "release 1"),
        ("unknown", "release 1 if 7"),
        ("not held", "2 Done"),
    ]);
}

#[test]
fn a_release_right_after_the_refusal_is_answered_from_memory_and_the_place_stays() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("3 lock c", ""),
        ("after 50", "2 Nil"),
        ("4 unlock b absorbed", "4 HeldByAnother"),
        ("5 lock b spins 1 wait 50", ""),
        ("6 unlock a", "hand a to strict b"),
    ]);
}

#[test]
fn a_release_some_time_after_the_refusal_asks_the_store() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("after 50", "2 Nil"),
        ("after 51", ""),
        ("3 unlock b absorbed", "release b"),
        ("not held", "3 NotHeld"),
    ]);
}

#[test]
fn a_release_after_the_refusal_gives_up_no_place() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a spins 1 again wait 5", ""),
        ("3 lock b", ""),
        ("after 5", "2 Nil"),
        ("after 100", ""),
        ("4 unlock a absorbed", "release a"),
        ("not held", "4 NotHeld"),
        ("5 lock a spins 1 again wait 50", ""),
        ("6 unlock x", "hand x to a"),
    ]);
}

#[test]
fn a_release_after_the_refusal_asks_the_store_if_the_holder_is_not_known_for_sure() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("2 lock b spins 1 wait 50", ""),
        ("after 50", "2 Nil"),
        ("push", "acquire a"),
        ("3 unlock b absorbed", ""),
        ("held x 20000", "release b"),
        ("not held", "3 NotHeld"),
    ]);
}

/// A user without rights must not learn that the lock is held.
#[test]
fn a_release_by_a_user_that_the_store_has_not_authorized_is_not_answered_from_memory() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50 user 2", "check as 2"),
        ("after 50", "2 Nil"),
        ("3 unlock b absorbed user 2", ""),
        ("refused NOPERM", "release b"),
        ("refused NOPERM", "3 Store(b\"NOPERM\")"),
    ]);
}

/// Its client gave it up on another connection.
#[test]
fn a_release_of_a_token_that_waits_ends_its_attempt() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 500", ""),
        ("3 unlock b absorbed", "2 Nil; release b"),
        ("not held", "3 NotHeld"),
    ]);
}

#[test]
fn the_release_of_a_constant_token_ends_no_waiting_attempt() {
    scenario(&[
        ("1 lock 1 spins 1 wait 50", "strict acquire 1"),
        ("granted 7", "1 granted 1"),
        ("2 lock 1 spins 2 wait 50", ""),
        ("3 unlock 1 absorbed", "hand 1 to strict 1"),
        ("granted 8", "3 Done; 2 granted 1"),
    ]);
}

#[test]
fn a_deletion_by_a_client_whose_user_does_not_hold_the_lock_is_not_ours() {
    scenario(&[
        ("1 delete", "1 NotHeld"),
        ("2 lock a", "acquire a"),
        ("granted 7", "2 granted a"),
        ("3 delete user 5", "3 NotHeld"),
    ]);
}

/// A connection that went silent pushes nothing.
#[test]
fn attempts_are_refused_by_the_stores_word_for_a_second_only() {
    while_a_holds(&[
        ("after 999", ""),
        ("2 lock b spins 1 wait 50", ""),
        ("after 50", "2 Nil"),
        ("3 lock b spins 1 wait 50", "strict acquire b"),
        ("held a 20000", ""),
        ("after 50", "3 Nil"),
    ]);
}

/// The request in flight kept the queue from asking again.
#[test]
fn an_attempt_is_not_refused_by_a_word_of_the_store_that_grew_old_meanwhile() {
    while_a_holds(&[
        ("2 lock b user 2", "check as 2"),
        ("3 lock c spins 1 try", ""),
        ("after 1000", ""),
        ("unknown", "acquire b"),
        ("held a 20000", "3 Nil"),
    ]);
}

#[test]
fn an_attempt_whose_time_is_up_waits_for_the_grant_on_its_way() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("after 60", ""),
        ("granted 7", "1 granted a"),
        ("2 lock b spins 2 wait 50", ""),
        ("3 lock c spins 3 wait 50", ""),
        ("4 unlock a absorbed", "hand a to strict b"),
        ("after 60", "3 Nil"),
        ("granted 8", "4 Done; 2 granted b"),
    ]);
}

#[test]
fn an_attempt_waits_for_the_grant_on_its_way_no_longer_than_the_store_may_take() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("after 1999", ""),
        ("after 1", "1 Upstream"),
    ]);
}

#[test]
fn an_attempt_whose_request_found_another_holder_is_refused_at_once_when_its_time_is_up() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("after 60", ""),
        ("held x 20000", "1 Nil"),
    ]);
}

#[test]
fn an_attempt_that_does_not_wait_is_refused_while_no_free_lock_may_be_taken() {
    scenario(&[
        ("1 lock a spins 1 try", "strict acquire a"),
        ("held x 500", "1 Nil"),
        ("after 501", ""),
        ("2 lock a spins 1 try", "strict acquire a"),
        ("not yet 3000", "2 Nil"),
        ("3 lock a spins 1 try", "3 Nil"),
        ("after 3000", ""),
        ("4 lock a spins 1 try", "strict acquire a"),
        ("granted 7", "4 granted a"),
    ]);
}

/// Redis would grant it, though another instance may yet write its lease back.
#[test]
fn no_attempt_is_handed_back_while_no_free_lock_may_be_taken() {
    scenario(&[
        ("1 lock a spins 1 try", "strict acquire a"),
        ("not yet 5000", ""),
        ("2 lock b spins 1 wait 50", ""),
        ("after 50", "2 Nil"),
        ("after 1950", "1 Nil"),
    ]);
}

#[test]
fn absorbed_commands_are_handed_back_while_the_store_has_no_connection_for_their_user() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("2 lock b spins 2 wait 50", ""),
        ("3 unlock c absorbed", ""),
        ("no link", "1 NotSent; 2 NotSent; 3 NotSent"),
        ("4 lock a spins 1 wait 50", "4 NotSent"),
        ("5 unlock c absorbed", "5 NotSent"),
        ("linked 0", ""),
        ("6 lock a spins 1 wait 50", "strict acquire a"),
        ("granted 7", "6 granted a"),
    ]);
}

/// The first sending may have been executed.
#[test]
fn an_attempt_that_was_sent_once_is_not_handed_back() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("unknown", "strict acquire a"),
        ("no link", "1 Upstream"),
    ]);
}

#[test]
fn a_grant_whose_client_is_gone_goes_to_the_next_waiter() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("3 lock c", ""),
        ("4 unlock a", "hand a to strict b"),
        ("2 gone b", ""),
        ("granted 8", "4 Done; hand b to c if 8"),
        ("granted 9", "3 granted c"),
    ]);
}

#[test]
fn a_grant_for_the_token_before_does_not_reach_the_next_attempt_on_the_connection() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("3 unlock a", "hand a to strict b"),
        ("2 gone b", ""),
        ("4 lock c spins 1 wait 50", ""),
        ("granted 8", "3 Done; hand b to strict c if 8"),
        ("granted 9", "4 granted c"),
    ]);
}

#[test]
fn an_attempt_that_stops_waiting_gets_the_outcome_of_its_request() {
    while_a_holds(&[
        ("2 lock b spins 1 wait 50", ""),
        ("3 unlock a", "hand a to strict b"),
        ("2 stop b", ""),
        ("granted 8", "3 Done; 2 granted b"),
    ]);
}

#[test]
fn the_token_of_an_attempt_is_dead_at_its_own_deadline_only() {
    let mut harness = Harness::new(crate::harness::SETTINGS);
    for line in [
        "1 lock 1 spins 1 wait 50",
        "granted 7",
        "2 unlock 1 absorbed",
        "free",
    ] {
        harness.happen(line);
    }
    assert_eq!(harness.dead, ["1 up to 0 or at 7"]);
}

#[test]
fn the_token_of_an_attempt_that_was_over_at_the_grant_is_dead_at_that_deadline_only() {
    let mut harness = Harness::new(crate::harness::SETTINGS);
    for line in ["1 lock 1 spins 1 wait 50", "1 gone 1", "granted 7", "free"] {
        harness.happen(line);
    }
    assert_eq!(harness.dead, ["1 up to 0 or at 7"]);
}

/// Another client may use the same token.
#[test]
fn the_release_of_a_token_that_was_not_granted_here_leaves_no_dead_token() {
    let mut harness = Harness::new(crate::harness::SETTINGS);
    for line in ["1 unlock 1 absorbed", "free"] {
        harness.happen(line);
    }
    assert!(harness.dead.is_empty(), "{:?}", harness.dead);
}

#[test]
fn an_attempt_that_is_to_end_is_not_refused_before_a_holder_is_known() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("held x 9000", ""),
        ("push", "strict acquire a"),
        ("held x 9000", ""),
        // The next request is delayed, because the one before was in vain.
        ("push", ""),
        ("1 stop a", ""),
        ("after 1", "strict acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b spins 2 wait 50", ""),
        ("2 stop b", "2 Nil"),
    ]);
}

#[test]
fn an_attempt_is_not_refused_by_a_lease_that_is_over_although_the_timer_is_late() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("held x 5", ""),
        ("stalls 7", ""),
        ("2 lock b spins 2 wait 50", "strict acquire a"),
        ("granted 7", "1 granted a"),
    ]);
}

#[test]
fn an_attempt_before_a_release_of_the_last_holder_is_not_refused_before_a_holder_is_known() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("granted 7", "1 granted a"),
        ("push", "check"),
        ("2 lock b spins 2 wait 50", ""),
        ("2 behind a", ""),
        ("2 stop b", ""),
        ("free", "strict acquire b"),
        ("granted 8", "2 granted b"),
    ]);
}

#[test]
fn a_deletion_that_redis_executes_is_known_to_the_next_attempt() {
    scenario(&[
        ("1 lock a spins 1 wait 50", "strict acquire a"),
        ("held x 9000", ""),
        ("1 stop a", "1 Nil"),
        ("2 delete", "2 NotHeld"),
        ("3 lock a spins 1 wait 50", "strict acquire a"),
        ("granted 7", "3 granted a"),
    ]);
}

#[test]
fn no_user_costs_another_one_its_place() {
    // Four places are kept at a lock.
    while_a_holds(&[
        ("2 lock b spins 1 try", "2 Nil"),
        ("3 lock c1 spins 2 try user 5", "check as 5"),
        ("held a 29000", "3 Nil"),
        ("4 lock c2 spins 3 try user 5", "4 Nil"),
        ("5 lock c3 spins 4 try user 5", "5 Nil"),
        ("6 lock c4 spins 5 try user 5", "6 Nil"),
        ("7 lock d", ""),
        ("8 lock b spins 1 wait 50", ""),
        ("9 unlock a", "hand a to strict b"),
    ]);
}
