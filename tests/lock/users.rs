//! Several users at one lock: a user without the right to it learns nothing, and equal tokens of two users are two
//! owners.

use crate::harness::scenario;

const NOPERM: &str = "refused NOPERM";

#[test]
fn a_user_who_would_wait_is_asked_about_once() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b user 2", "check as 2"),
        ("3 lock c user 2", ""),
        ("held a 20000", ""),
        ("4 lock d user 2", ""),
        ("5 unlock a", "release a"),
        ("free", "5 Done; acquire b"),
        ("granted 8", "2 granted b"),
        ("6 unlock b user 2", "hand b to c"),
        ("granted 9", "6 Done; 3 granted c"),
    ]);
}

#[test]
fn whom_the_store_refuses_leaves_and_the_others_stay_in_line() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 lock c user 2", "check as 2"),
        ("4 lock d user 2", ""),
        ("5 lock e try user 2", ""),
        (
            NOPERM,
            "3 Store(b\"NOPERM\"); 4 Store(b\"NOPERM\"); 5 Store(b\"NOPERM\")",
        ),
        ("6 lock f user 2", "check as 2"),
        (NOPERM, "6 Store(b\"NOPERM\")"),
        ("7 unlock a", "hand a to b"),
        ("granted 8", "7 Done; 2 granted b"),
        ("8 unlock b", "release b"),
        ("free", "8 Done"),
        ("idle", "true"),
    ]);
}

#[test]
fn each_stay_in_the_queue_is_asked_about() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b wait 10 user 2", "check as 2"),
        ("held a 20000", ""),
        ("after 2000", "2 Nil"),
        ("3 lock c user 2", "check as 2"),
        ("unknown", "check as 2"),
        ("held a 18000", ""),
        ("3 gone c user 2", ""),
    ]);
}

/// The queue checks a client that tries again and again only now and then.
#[test]
fn a_try_is_told_nil_when_the_store_was_asked() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b try user 2", "check as 2"),
        ("held a 20000", "2 Nil"),
        ("3 lock c try user 2", "3 Nil"),
        ("4 lock d try", "4 Nil"),
        ("after 1000", ""),
        ("5 lock e try", "check"),
        ("6 lock f try user 2", ""),
        ("held a 20000", "5 Nil; check as 2"),
        (NOPERM, "6 Store(b\"NOPERM\")"),
    ]);
}

#[test]
fn another_user_takes_a_free_lock() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("1 gone a", ""),
        ("2 lock b try user 2", "check as 2"),
        ("free", "acquire b"),
        ("granted 7", "2 granted b"),
    ]);
}

#[test]
fn a_user_without_rights_does_not_learn_that_too_many_wait() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 lock c", ""),
        ("4 lock d", ""),
        ("5 lock e", ""),
        ("6 lock f", "6 TooManyWaiters"),
        ("7 lock g user 2", "check as 2"),
        (NOPERM, "7 Store(b\"NOPERM\")"),
        ("8 lock h user 2", "check as 2"),
        ("9 lock i try user 2", ""),
        ("held a 20000", "9 Nil; 8 TooManyWaiters"),
        ("10 lock j try user 2", "10 Nil"),
        ("11 unlock a", "hand a to b"),
    ]);
}

/// Found by the simulator: a believed lease is no reason for another check.
#[test]
fn an_unanswered_check_of_a_user_that_left_is_not_repeated() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b user 2", "check as 2"),
        ("2 gone b user 2", ""),
        ("unknown", ""),
        ("after 1000", ""),
    ]);
}

/// The rights of a user may have changed while its connection was broken.
#[test]
fn a_user_is_checked_anew_after_its_connection_ended() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("tracking_lost", "acquire b"),
        ("held a 20000", ""),
        ("3 lock c try", "3 Nil"),
        ("4 lock d user 2", "check as 2"),
        ("held a 20000", ""),
        ("tracking_lost", "acquire b"),
        ("refused NOPERM", "2 Store(b\"NOPERM\"); acquire d"),
        ("held a 20000", ""),
        ("5 lock e user 2", ""),
        ("6 lock f", "check"),
    ]);
}

#[test]
fn a_deadlock_is_told_to_those_who_may_know_and_whose_token_it_is() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("2 lock b user 2", "check as 2"),
        ("2 behind b user 2 x", ""),
        ("held x 20000", "2 Deadlock"),
        ("3 lock c user 3", "check as 3"),
        ("3 behind c user 3 x", ""),
        (NOPERM, "3 Store(b\"NOPERM\")"),
    ]);
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b user 2", "check as 2"),
        ("2 behind b user 2 a", ""),
        ("held a 20000", ""),
        ("3 unlock a", "release a"),
        ("free", "3 Done; acquire b"),
    ]);
}

#[test]
fn another_users_equal_token_waits_and_is_handed_nothing_in_one_step() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock a user 2", "check as 2"),
        ("held a 20000", ""),
        ("3 unlock a", "release a"),
        ("free", "3 Done; acquire a"),
        ("granted 8", "2 granted a"),
    ]);
}

/// The store, which knows no users, would take one for the other.
#[test]
fn while_a_token_holds_the_lock_nobody_asks_with_anothers_equal_one() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock a user 2", "check as 2"),
        ("held a 20000", ""),
        ("push", "check as 2"),
        ("held a 20000", ""),
        ("push", "check as 2"),
        ("free", "acquire a"),
        ("granted 8", "2 granted a"),
    ]);
}

#[test]
fn another_users_token_is_neither_released_nor_extended() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a user 2", "check as 2"),
        ("held a 20000", "2 NotHeld"),
        ("3 relock a user 2 50", "check as 2"),
        (NOPERM, "3 Store(b\"NOPERM\")"),
        ("4 unlock a user 2", "check as 2"),
        ("unknown", "check as 2"),
        ("held a 20000", "4 NotHeld"),
        ("5 relock a 50", "extend a 50 if 7"),
        ("granted 8", "5 Done"),
    ]);
}

/// The user of the release has no connection to the store; that of the waiter has one.
#[test]
fn a_release_that_cannot_be_sent_delays_no_other_user() {
    let begin = [
        ("1 lock a user 2", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", "check"),
        ("held a 30000", ""),
    ];
    // Its client got an error meanwhile.
    let given_up = [
        ("3 unlock a user 2", "release a"),
        ("no link", ""),
        ("after 2000", "3 Upstream; release a if 7"),
        ("no link", ""),
    ];
    let over = [
        ("after 2000", "release a if 7"),
        ("no link", ""),
        ("push", "acquire b"),
        ("granted 9", "2 granted b"),
    ];
    scenario(&[&begin[..], &given_up, &over].concat());
}
