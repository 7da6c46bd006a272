//! The queue releases a grant that no client counts on: its outcome was unknown, or its client left. It takes no lock
//! from an owner by that.

use crate::harness::scenario;

/// The token may be granted again elsewhere meanwhile: what was answered is done for that grant only, in
/// whatever way it comes to be asked again.
#[test]
fn an_operation_that_was_given_up_is_done_for_that_grant_only() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 unlock a", "hand a to b"),
        ("after 2000", "3 Upstream"),
        ("unknown", "hand a to b if 7"),
        ("granted 9", "2 granted b"),
    ]);
    // Nor can it while another store request is on its way; and what it was granted by is known, though not by whom.
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock x", "release x"),
        ("3 unlock a", ""),
        ("after 2000", "2 Upstream; 3 Upstream"),
        ("not held", "release a if 7"),
    ]);
    scenario(&[
        ("1 lock a", "acquire a"),
        ("again 7", "1 granted a"),
        ("2 unlock x", "release x"),
        ("3 unlock a", ""),
        ("after 2000", "2 Upstream; 3 Upstream"),
        ("not held", ""),
    ]);
    // Where nobody can say which grant that was its lease runs out.
    scenario(&[
        ("1 lock a", "acquire a"),
        ("again 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("after 2000", "2 Upstream"),
        ("unknown", ""),
    ]);
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("again 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("after 2000", "2 Upstream"),
        ("unknown", ""),
    ]);
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("not now BUSY", ""),
        ("after 100", "release a"),
        ("not now BUSY", ""),
        ("after 2000", "release a; 2 Store(b\"BUSY\")"),
        ("not now BUSY", ""),
        ("after 100", "release a if 7"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

/// No client knows the token. So the queue releases what the first sending may have acquired, whatever becomes of the
/// store request later.
#[test]
fn an_acquisition_of_which_nothing_is_known_is_undone_whatever_comes_between() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("unknown", "acquire a"),
        ("not yet 500", ""),
        ("1 gone a", "release a"),
        ("free", ""),
        ("after 2000", "release a"),
        ("not held", ""),
        ("idle", "true"),
    ]);
    // Or when its time to wait is over.
    scenario(&[
        ("1 lock a wait 200", "acquire a"),
        ("unknown", "acquire a"),
        ("not yet 500", ""),
        ("after 200", "1 Nil; release a"),
    ]);
    scenario(&[
        ("1 lock a", "acquire a"),
        ("unknown", "acquire a"),
        ("not yet 500", ""),
        ("after 500", "acquire a"),
        ("not now BUSY", ""),
        ("1 gone a", ""),
        ("after 100", "release a"),
    ]);
    scenario(&[
        ("1 lock a", "acquire a"),
        ("unknown", "acquire a"),
        ("not now BUSY", ""),
        ("1 gone a", ""),
        ("after 100", "release a"),
        ("free", ""),
        ("after 2000", "release a"),
        ("not held", ""),
        ("idle", "true"),
    ]);
    // Of a handover, too, to which nobody can say any more by which grant its lock was held.
    scenario(&[
        ("1 lock a px 1500", "acquire a px 1500"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("2 unlock a", "hand a to b"),
        ("2 gone b", ""),
        ("after 2000", "2 Upstream"),
        ("unknown", "release b"),
    ]);
    // A client that named its token may use it at another gate.
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("unknown", "acquire a"),
        ("not yet 500", ""),
        ("1 gone a", ""),
        ("after 3000", ""),
    ]);
    // But it is not told that somebody else has the lock.
    scenario(&[
        ("1 lock a named wait 900", "acquire a"),
        ("unknown", "acquire a"),
        ("not yet 500", ""),
        ("after 500", "acquire a"),
        ("after 400", "1 Upstream"),
    ]);
    // A waiter that is still there gets it.
    scenario(&[
        ("1 lock a", "acquire a"),
        ("unknown", "acquire a"),
        ("not yet 500", ""),
        ("after 501", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock a named", "acquire a if 7"),
        ("not yet 500", ""),
        ("2 gone a", ""),
    ]);
}

/// Granted while a second one with the same token came, it is asked for once more; who of them nobody is there
/// for then has to be given back, whatever was asked in between.
#[test]
fn a_lease_that_was_told_nobody_is_given_back() {
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("2 lock a named px 50", ""),
        ("granted 7", "acquire a px 50 if 7"),
        (
            "refused OOM",
            "1 Store(b\"OOM\"); 2 Store(b\"OOM\"); release a if 7",
        ),
        ("free", ""),
        ("idle", "true"),
    ]);
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("2 lock a named px 50", ""),
        ("granted 7", "acquire a px 50 if 7"),
        ("not yet 50", ""),
        ("1 gone a", ""),
        ("2 gone a", "release a if 7"),
    ]);
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 relock a 50", "extend a 50 if 7"),
        ("1 undelivered a", ""),
        ("3 lock a named", ""),
        ("3 gone a", ""),
        ("refused OOM", "2 Store(b\"OOM\"); release a if 7"),
    ]);
    scenario(&[
        ("1 lock a named", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 relock a 50", "extend a 50 if 7"),
        ("1 undelivered a", ""),
        ("3 lock a named", ""),
        ("3 stop a", "3 Nil"),
        ("refused OOM", "2 Store(b\"OOM\"); release a if 7"),
    ]);
}

/// However the last one with its token leaves.
#[test]
fn a_lease_that_was_to_be_given_back_is_given_back_when_who_came_for_it_leaves() {
    let comes_and = |leaves: &[(&str, &str)]| {
        let before = [
            ("1 lock a named", "acquire a"),
            ("granted 7", "1 granted a"),
            ("2 unlock x", "release x"),
            ("1 undelivered a", ""),
        ];
        scenario(&[&before[..], leaves].concat());
    };
    comes_and(&[("not held", "2 NotHeld; release a if 7")]);
    comes_and(&[
        ("3 lock a named wait 10", ""),
        ("after 10", "3 Nil"),
        ("not held", "2 NotHeld; release a if 7"),
    ]);
    comes_and(&[
        ("4 lock b", ""),
        ("5 lock c", ""),
        ("6 lock d", ""),
        ("7 lock e", ""),
        ("3 lock a named", "3 TooManyWaiters"),
        ("not held", "2 NotHeld; hand a to b if 7"),
    ]);
    comes_and(&[
        ("4 lock b", ""),
        ("5 lock c", ""),
        ("6 lock d", ""),
        ("7 lock e", ""),
        ("3 lock a named try", "3 Nil"),
        ("not held", "2 NotHeld; hand a to b if 7"),
    ]);
    comes_and(&[
        ("3 lock a named", ""),
        ("not held", "2 NotHeld; acquire a if 7"),
        ("3 gone a", ""),
        ("not yet 0", "release a if 7"),
    ]);
}

/// Its reply waited so long for its client that the lease ended meanwhile, and another client with the same token
/// has the lock now.
#[test]
fn a_grant_that_is_not_delivered_takes_no_later_lease_back() {
    scenario(&[
        ("1 lock a named px 50", "acquire a px 50"),
        ("granted 7", "1 granted a"),
        ("after 100", ""),
        ("2 lock a named", "acquire a"),
        ("granted 9", "2 granted a"),
        ("1 undelivered a", ""),
        ("3 lock b", ""),
        ("2 undelivered a", "hand a to b if 9"),
    ]);
}

/// The store takes no writes when it is asked for the second time.
#[test]
fn a_first_sending_is_undone_where_the_second_is_refused() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("unknown", "acquire a"),
        ("refused NOREPLICAS", "1 Store(b\"NOREPLICAS\"); release a"),
        ("refused NOREPLICAS", ""),
        ("after 2000", "release a"),
        ("free", ""),
        ("idle", "true"),
    ]);
}
