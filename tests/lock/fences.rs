//! Fences: new ones, and those that a lease keeps; tables as in `scenarios`.

use crate::harness::scenario;

#[test]
fn a_fence_comes_with_the_grant_and_stays_the_same() {
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("2 lock a named fence", "acquire a fence unless 7 if 7"),
        ("granted 8", "2 granted a fence 40"),
        ("3 relock a 50", "extend a 50 if 8"),
        ("granted 9", "3 Done"),
        ("4 lock a named fence", "acquire a fence unless 9 if 9"),
        ("granted 10", "4 granted a fence 40"),
    ]);
    // Granted elsewhere before, but the fence is of here.
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("again 7 fence 40", "1 granted a fence 40"),
        ("2 lock a named fence", "acquire a fence unless 7"),
        ("again 8", "2 granted a fence 40"),
    ]);
}

/// Meanwhile others may have been granted the lock with a larger one.
#[test]
fn a_fence_is_a_new_one_where_it_is_not_known_that_the_lock_was_kept() {
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("2 lock a named fence", "acquire a fence unless 7 if 7"),
        ("granted 8 fence 60", "2 granted a fence 60"),
        ("3 relock a 50", "extend a 50 if 8"),
        ("again 9", "3 Done"),
        ("4 lock a named fence", "acquire a fence if 9"),
        ("granted 10 fence 80", "4 granted a fence 80"),
    ]);
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("data_lost", "write_back a 30000"),
        ("granted 7", ""),
        ("2 lock a named fence", "acquire a fence if 7"),
        ("granted 9 fence 60", "2 granted a fence 60"),
    ]);
    // Nor after a second loss of the same lease, or where the answer to its being written back was lost.
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("data_lost", "write_back a 30000"),
        ("unknown", "write_back a 30000"),
        ("again 7", ""),
        ("2 lock a named fence", "acquire a fence if 7"),
    ]);
    // The store had this before it lost data.
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("data_lost", ""),
        (
            "granted 7 fence 40",
            "1 granted a fence 40; write_back a 30000",
        ),
        ("again 7", ""),
        ("2 lock a named fence", "acquire a fence if 7"),
    ]);
    // The next connection may lead to a store that has less.
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("2 lock a named fence", "acquire a fence unless 7 if 7"),
        ("unknown", "acquire a fence if 7"),
    ]);
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("tracking_lost", "check"),
        ("held a 30000", ""),
        ("2 lock a named fence", "acquire a fence if 7"),
    ]);
    // A request without a fence is granted, and the next fence is a new one.
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("2 lock a named", "acquire a if 7"),
        ("granted 8", "2 granted a"),
        ("3 lock a named fence", "acquire a fence if 8"),
    ]);
}

/// A write-back raises the counter past the largest fence that a client got.
#[test]
fn a_fence_that_was_told_is_not_forgotten() {
    scenario(&[
        ("1 lock a named fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("2 relock a 30000", "extend a 30000 if 7"),
        ("again 9", "2 Done"),
        ("data_lost", "write_back a 30000"),
    ]);
}

#[test]
fn a_fence_is_asked_for_by_a_handover_too() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b fence", ""),
        ("3 unlock a", "hand a to b fence"),
        ("granted 8 fence 41", "3 Done; 2 granted b fence 41"),
    ]);
}

#[test]
fn a_join_with_fence_during_an_acquisition_gets_a_fence() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("2 lock a named fence", ""),
        ("granted 7", "acquire a fence if 7"),
        ("granted 8 fence 5", "1 granted a; 2 granted a fence 5"),
    ]);
}
