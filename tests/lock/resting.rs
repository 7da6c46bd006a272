//! Queues at rest. The harness and the simulator let every queue rest that can, after each event.

use std::mem::size_of;

use lockgate::lock::{Queue, Resting};

use crate::harness::scenario;

#[test]
fn a_lock_that_is_only_held_rests() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("rests", "false"),
        ("granted 7", "1 granted a"),
        ("rests", "true"),
        ("2 relock a 50", "extend a 50 if 7"),
        ("rests", "false"),
        ("granted 8", "2 Done"),
        ("rests", "true"),
        ("3 lock b", ""),
        ("rests", "false"),
        ("3 gone b", ""),
        ("rests", "true"),
        ("4 unlock a", "release a"),
        ("rests", "false"),
    ]);
}

/// After a minute the queue no longer believes the store's reply. Without waiters it does not ask again.
#[test]
fn a_lock_that_is_held_for_long_rests() {
    scenario(&[
        ("1 lock a named px 600000", "acquire a px 600000"),
        ("granted 7", "1 granted a"),
        ("after 70000", ""),
        ("rests", "true"),
        ("2 unlock a", "release a"),
        ("free", "2 Done"),
        ("idle", "true"),
    ]);
}

#[test]
fn a_lock_that_has_more_to_do_does_not_rest() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("push", "check"),
        ("rests", "false"),
        ("held a 29000", ""),
        ("rests", "true"),
        ("data_lost", "write_back a 30000"),
        ("rests", "false"),
    ]);
}

/// The driver keeps 24 bytes more of each.
#[test]
fn a_resting_queue_takes_half_of_the_memory() {
    assert!(size_of::<Resting>() + 24 <= 320, "{}", size_of::<Resting>());
    assert!(size_of::<Queue>() > 2 * size_of::<Resting>());
}
