//! Pending operations (`UNLOCK`, `RELOCK`) and waiters compete for the one store request about a lock; and users without a
//! connection keep no others waiting. Tables as in `scenarios`.

use crate::harness::scenario;

const NOPERM: &str = "refused NOPERM";

#[test]
fn waiters_and_pending_operations_take_turns() {
    scenario(&[
        ("1 unlock x", "release x"),
        ("2 unlock y", ""),
        ("3 unlock z user 2", ""),
        ("4 lock a", ""),
        ("not held", "1 NotHeld; acquire a"),
        ("granted 7", "4 granted a; 2 NotHeld; release z"),
        ("not held", "3 NotHeld"),
    ]);
}

/// 4,000 of them, each with a store request of its own, made every other client's `LOCK` time out.
#[test]
fn one_refusal_answers_all_earlier_pending_operations_of_its_user() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("2 unlock x user 2", ""),
        ("3 relock y 50 user 2", ""),
        ("4 unlock z user 2", ""),
        ("granted 7", "1 granted a; check as 2"),
        ("5 unlock w user 2", ""),
        (
            NOPERM,
            "2 Store(b\"NOPERM\"); 3 Store(b\"NOPERM\"); 4 Store(b\"NOPERM\"); release w",
        ),
        (NOPERM, "5 Store(b\"NOPERM\")"),
    ]);
}

#[test]
fn an_answer_that_tells_the_holder_settles_the_pending_operations_of_other_tokens() {
    scenario(&[
        ("1 unlock w", "release w"),
        ("2 unlock x", ""),
        ("3 relock y 50", ""),
        ("4 lock a", ""),
        ("5 unlock a", ""),
        ("not held", "1 NotHeld; acquire a"),
        ("6 relock a 50", ""),
        ("granted 7", "4 granted a; 2 NotHeld; 3 NotHeld; release a"),
        ("free", "5 Done; 6 NotHeld"),
        ("idle", "true"),
    ]);
    scenario(&[
        ("1 unlock x", "release x"),
        ("2 unlock y", ""),
        ("3 unlock z", ""),
        ("not held", "1 NotHeld; check"),
        ("held z 20000", "2 NotHeld; release z"),
        ("free", "3 Done"),
    ]);
}

/// The token may have been granted the lock meanwhile, by another gate.
#[test]
fn an_answer_settles_no_pending_operation_that_came_after_its_question() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("held x 20000", ""),
        ("2 unlock b", "release b"),
        ("3 unlock c", ""),
        ("not held", "2 NotHeld; release c"),
        ("free", "3 Done; acquire a"),
    ]);
}

/// Whether a user may know of the lock is the store's to say.
#[test]
fn an_answer_to_one_user_settles_nothing_of_an_unknown_one() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("2 unlock x user 2", ""),
        ("3 unlock y user 3", ""),
        ("4 unlock z user 2", ""),
        ("granted 7", "1 granted a; check as 2"),
        (
            NOPERM,
            "2 Store(b\"NOPERM\"); 4 Store(b\"NOPERM\"); release y",
        ),
        ("not held", "3 NotHeld"),
    ]);
}

#[test]
fn pending_operations_take_turns_by_user_and_the_release_of_the_holder_goes_first() {
    scenario(&[
        ("1 lock a user 3", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock x user 1", "release x"),
        ("3 unlock y user 1", ""),
        ("4 unlock z user 1", ""),
        ("5 unlock v user 2", ""),
        ("not held", "2 NotHeld; release v"),
        ("6 unlock a user 3", ""),
        ("not held", "5 NotHeld; release a"),
        ("free", "6 Done; 3 NotHeld; 4 NotHeld"),
    ]);
}

#[test]
fn pending_operations_of_one_user_are_bounded_but_for_the_release_of_the_holder() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock v", "release v"),
        ("3 unlock w", ""),
        ("4 unlock x", ""),
        ("5 unlock y", ""),
        ("6 unlock z", ""),
        ("7 unlock b", "7 TooManyWaiters"),
        ("8 unlock b user 2", ""),
        ("9 unlock a", ""),
    ]);
}

#[test]
fn a_refused_acquisition_answers_all_who_wait_for_the_same_stranger() {
    scenario(&[
        ("1 lock x", "acquire x"),
        ("2 lock a user 2", ""),
        ("3 lock b user 2", ""),
        ("4 lock c", ""),
        ("after 1", ""),
        ("refused OOM", "1 Store(b\"OOM\"); acquire a"),
        ("5 lock d user 2", ""),
        (
            NOPERM,
            "2 Store(b\"NOPERM\"); 3 Store(b\"NOPERM\"); acquire c",
        ),
        ("granted 7", "4 granted c; check as 2"),
    ]);
}

#[test]
fn a_user_without_a_connection_keeps_its_place_and_nobody_waiting() {
    scenario(&[
        ("1 lock a user 2", "acquire a"),
        ("2 lock b", ""),
        ("3 lock c user 2", ""),
        ("no link", "acquire b"),
        ("granted 7", "2 granted b"),
        ("4 unlock b", "release b"),
        ("linked 2", ""),
        ("5 lock d", ""),
        ("free", "4 Done; acquire a"),
        ("granted 8", "1 granted a"),
    ]);
    // Without an event the queue asks again after a while.
    scenario(&[
        ("1 lock a user 2", "acquire a"),
        ("no link", ""),
        ("after 1999", ""),
        ("after 1", "acquire a"),
        ("no link", ""),
        ("linked 2", "acquire a"),
        ("granted 8", "1 granted a"),
    ]);
}

#[test]
fn a_pending_operation_without_a_connection_keeps_nobody_waiting_and_is_given_up_in_time() {
    scenario(&[
        ("1 unlock x user 2", "release x"),
        ("2 lock a", ""),
        ("3 unlock y", ""),
        ("no link", "acquire a"),
        ("granted 7", "2 granted a; 3 NotHeld"),
        ("after 2000", "1 Upstream"),
        ("4 unlock a", "release a"),
        ("free", "4 Done"),
        ("idle", "true"),
    ]);
    scenario(&[
        ("1 lock a session px 3000", "acquire a px 3000"),
        ("granted 7", "1 granted a session"),
        ("after 1200", "extend a 3000 if 7"),
        ("no link", ""),
        ("2 lock b user 2", "check as 2"),
        ("held a 1700", ""),
        ("linked 0", "extend a 3000 if 7"),
    ]);
}

#[test]
fn a_wait_that_ends_without_a_connection_is_told_that_nobody_knows() {
    scenario(&[
        ("1 lock a wait 50", "acquire a"),
        ("no link", ""),
        ("after 50", "1 Upstream"),
        ("idle", "true"),
    ]);
    scenario(&[
        ("1 lock a try", "acquire a"),
        ("no link", ""),
        ("after 2000", "1 Upstream"),
    ]);
}
