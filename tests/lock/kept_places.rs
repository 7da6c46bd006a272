//! Places that are kept for clients that may return; tables as in `scenarios`.

use crate::harness::scenario;

#[test]
fn a_named_place_is_kept_and_passed_over_while_empty() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a named", ""),
        ("3 lock b", ""),
        ("2 gone a", ""),
        ("4 unlock x", "hand x to b"),
        ("granted 8", "4 Done; 3 granted b"),
        ("5 lock c", ""),
        ("6 lock a named", ""),
        ("7 unlock b", "hand b to a"),
    ]);
}

#[test]
fn a_place_that_nobody_comes_back_to_is_given_up() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("held x forever", ""),
        ("2 lock b", ""),
        ("1 gone a", ""),
        ("after 2000", ""),
        ("3 lock a named", ""),
        ("push", "acquire b"),
    ]);
}

#[test]
fn a_named_place_is_kept_when_its_wait_ran_out() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a named wait 5", ""),
        ("3 lock b", ""),
        ("after 5", "2 Nil"),
        ("after 1990", ""),
        ("4 lock a named wait 5", ""),
        ("after 5", "4 Nil"),
        ("after 1990", ""),
        ("5 lock a named wait 5", ""),
        ("6 unlock x", "hand x to a"),
        ("granted 8", "6 Done; 5 granted a"),
        ("7 unlock a", "hand a to b"),
    ]);
}

#[test]
fn a_place_whose_wait_ran_out_is_passed_over_while_empty_and_first_again_afterwards() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a named wait 5", ""),
        ("3 lock b", ""),
        ("4 lock c", ""),
        ("after 5", "2 Nil"),
        ("5 unlock x", "hand x to b"),
        ("granted 8", "5 Done; 3 granted b"),
        ("6 lock a named wait 5", ""),
        ("7 unlock b", "hand b to a"),
    ]);
}

#[test]
fn a_place_whose_wait_ran_out_lapses_like_any_other() {
    scenario(&[
        ("1 lock a named wait 5", "acquire a"),
        ("held x forever", ""),
        ("2 lock b", ""),
        ("after 5", "1 Nil"),
        ("after 2000", ""),
        ("3 lock a named wait 5", ""),
        ("push", "acquire b"),
    ]);
}

#[test]
fn a_place_without_a_name_leaves_when_its_wait_ran_out() {
    scenario(&[
        ("1 lock x named", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a wait 5", ""),
        ("3 lock b", ""),
        ("after 5", "2 Nil"),
        ("4 lock a wait 5", ""),
        ("5 unlock x", "hand x to b"),
    ]);
}

#[test]
fn a_try_keeps_no_place_and_gives_up_the_one_of_its_token() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a named wait 5", ""),
        ("3 lock b", ""),
        ("after 5", "2 Nil"),
        ("4 lock a named try", "4 Nil"),
        ("5 lock a named", ""),
        ("6 lock c named try", "6 Nil"),
        ("6 gone c", ""),
        ("7 lock d", ""),
        ("8 lock c named", ""),
        ("9 unlock x", "hand x to b"),
        ("granted 8", "9 Done; 3 granted b"),
        ("10 unlock b", "hand b to a"),
        ("granted 9", "10 Done; 5 granted a"),
        ("11 unlock a", "hand a to d"),
    ]);
}

#[test]
fn an_unlock_gives_up_the_kept_place_of_its_token() {
    scenario(&[
        ("1 lock a named wait 5", "acquire a"),
        ("held x forever", ""),
        ("2 lock b", ""),
        ("after 5", "1 Nil"),
        ("3 unlock a user 2", "release a"),
        ("not held", "3 NotHeld"),
        ("4 lock a named wait 5", ""),
        ("after 5", "4 Nil"),
        ("5 unlock a", "release a"),
        ("not held", "5 NotHeld"),
        ("6 lock a named", ""),
        ("push", "acquire b"),
    ]);
}

#[test]
fn a_connection_keeps_the_latest_places_that_were_waited_for_on_it() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("granted 7", "1 granted x"),
        ("2 lock a named wait 5 on 3", ""),
        ("after 5", "2 Nil"),
        ("3 lock b named wait 5 on 3", ""),
        ("after 5", "3 Nil"),
        ("4 lock c named wait 5 on 3", ""),
        ("5 lock d", ""),
        ("after 5", "4 Nil"),
        ("6 lock c named", ""),
        ("7 lock a named", ""),
        ("8 lock b named", ""),
        ("9 unlock x", "hand x to b"),
        ("granted 8", "9 Done; 8 granted b"),
        ("10 unlock b", "hand b to c"),
        ("granted 9", "10 Done; 6 granted c"),
        ("11 unlock c", "hand c to d"),
    ]);
}

#[test]
fn a_client_that_closes_while_its_request_is_in_flight_keeps_its_place() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("2 lock b", ""),
        ("1 stop a", ""),
        ("held x forever", "1 Nil"),
        ("3 lock a named", ""),
        ("push", "acquire a"),
    ]);
}

#[test]
fn a_place_without_a_name_leaves_at_once() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("1 gone a", ""),
        ("push", ""),
        ("idle", "true"),
    ]);
}

/// Its first connection was granted the lock and is not told yet, the second one waited and is gone: there is
/// one place to come back to, and not two of which one forgets the other.
#[test]
fn a_token_whose_connections_are_all_gone_has_one_place() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock a named", "acquire a if 7"),
        ("2 gone a", ""),
        ("1 undelivered a", ""),
        ("3 lock b", ""),
        ("granted 8", "hand a to b if 8"),
        ("granted 9", "3 granted b; release a if 8"),
        ("held b 30000", ""),
        ("after 1000", ""),
        ("4 lock a named", ""),
        ("after 1500", ""),
        ("5 unlock b", "hand b to a"),
        ("granted 10", "5 Done; 4 granted a"),
    ]);
}
