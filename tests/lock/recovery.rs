//! Recovery from a loss of data: leases are written back, and dead tokens are deleted; tables as in `scenarios`.

use lockgate::lock::{Settings, WriteBack};

use crate::harness::{Harness, SETTINGS, scenario, scenario_with};

#[test]
fn a_lease_is_written_back_for_the_time_that_is_left() {
    scenario(&[
        ("1 lock a fence", "acquire a fence"),
        ("granted 7 fence 40", "1 granted a fence 40"),
        ("2 lock b", ""),
        ("after 1000", ""),
        ("data_lost", "write_back a 29000"),
        ("granted 9", ""),
        ("3 unlock a", "hand a to b"),
    ]);
}

#[test]
fn no_waiter_is_granted_a_free_lock_within_the_grace() {
    scenario(&[
        ("1 lock b", "acquire b"),
        ("held a 50000", ""),
        ("data_lost", "acquire b"),
        ("not yet 1500", ""),
        ("after 1499", ""),
        ("after 1", "acquire b"),
        ("granted 9", "1 granted b"),
    ]);
}

#[test]
fn a_lease_that_meets_an_unknown_token_waits_for_its_end_within_the_grace() {
    let rest = [
        ("1 lock a session", "acquire a"),
        ("granted 7", "1 granted a session"),
        ("data_lost", "write_back a 30000"),
        ("held x 50 grace 50", ""),
        ("2 unlock b", "release b"),
        ("not held", "2 NotHeld"),
        // Another instance knew it to be dead.
        ("push", "write_back a 30000"),
        ("held y 50 grace 20", ""),
        ("3 relock a 30000", ""),
        ("after 19", ""),
        ("after 1", "write_back a 29980"),
    ];
    let kept = [
        ("granted 9", "extend a 30000 if 9"),
        ("granted 10", "3 Done"),
    ];
    scenario(&[&rest[..], &kept[..]].concat());
    let lost = [("held y 50", "1 lost; 3 NotHeld")];
    scenario(&[&rest[..], &lost[..]].concat());
}

/// The owner gives up what was not written back yet: it is no other owner's doing that it is not there.
#[test]
fn a_lease_is_released_before_it_was_written_back() {
    // A token that lockgate made is dead at any deadline; a client may use its own token again elsewhere.
    for (lock, dead) in [("1 lock a", "a"), ("1 lock a named", "a up to 7")] {
        let mut harness = Harness::new(SETTINGS);
        for (event, expected) in [
            (lock, "acquire a"),
            ("granted 7", "1 granted a"),
            ("data_lost", "write_back a 30000"),
            ("held x 50 grace 50", ""),
            ("2 unlock a", "release a"),
            ("not held", "2 Done"),
            ("push", ""),
        ] {
            assert_eq!(harness.happen(event), expected, "{event}");
        }
        assert_eq!(harness.dead, [dead]);
    }
}

/// Within the grace the lease that another instance granted may yet be written back.
#[test]
fn an_unlock_waits_for_a_lease_that_another_instance_may_write_back() {
    scenario(&[
        ("1 unlock a", "release a"),
        ("held x 50 grace 90", ""),
        ("2 relock b 500", "extend b 500"),
        ("free grace 80", ""),
        // One answer for both.
        ("push", "check"),
        ("held a 50 grace 70", "release a"),
        ("free grace 60", "1 Done; check"),
        ("free grace 60", ""),
        ("after 70", "extend b 500"),
        ("granted 9", "2 Done; check"),
    ]);
}

#[test]
fn a_token_released_within_the_grace_is_looked_for_until_it_is_over() {
    let mut harness = Harness::new(SETTINGS);
    for (event, expected) in [
        ("1 unlock a", "release a"),
        ("free grace 160", "1 Done; check"),
        ("free grace 159", ""),
        ("after 169", ""),
        ("after 1", "check"),
        ("held a 50 dead", "delete_dead a"),
        ("free", ""),
        ("idle", "true"),
    ] {
        assert_eq!(harness.happen(event), expected, "{event}");
    }
    assert_eq!(harness.dead, ["a before the loss"]);
}

#[test]
fn a_dead_token_that_is_back_is_deleted_before_the_lease_is_written_back() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("data_lost dead", "write_back a 30000"),
        (
            "held z 50 dead 6 8 grace 50",
            "delete_dead z up to 6 or at 8",
        ),
        ("free", "write_back a 30000"),
        ("held y 50 dead grace 50", "delete_dead y"),
        // Its deadline says that it was granted anew elsewhere.
        ("held y 40 dead", "write_back a 30000"),
        ("held y 50 dead grace 50", ""),
        ("after 50", "write_back a 29950"),
        ("held y 40 dead", ""),
    ]);
    // Later than the grace, too.
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("data_lost dead", "write_back a 30000"),
        ("held z 50 dead", "delete_dead z"),
        ("free", "write_back a 30000"),
        ("granted 9", ""),
    ]);
}

#[test]
fn a_lock_that_no_client_wants_is_looked_at_for_dead_tokens() {
    scenario(&[
        ("data_lost dead", "check"),
        ("held z 50 dead", "delete_dead z"),
        ("unknown", "check"),
        ("held z 50 dead", "delete_dead z"),
        ("free", ""),
        // For the last time.
        ("after 30000", "check"),
        ("free", ""),
        ("idle", "true"),
    ]);
    // Another instance did not know of the release, and wrote the lease back.
    scenario(&[
        ("data_lost dead", "check"),
        ("held y 50", ""),
        ("push", "check"),
        ("held z 50 dead", "delete_dead z"),
        ("free", ""),
    ]);
    scenario(&[
        ("data_lost dead", "check"),
        ("unknown", "check"),
        ("after 30000", ""),
        ("unknown", "check"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_waiter_is_not_kept_by_a_dead_token() {
    scenario(&[
        ("1 lock b", "acquire b"),
        ("held z 50000 dead", "delete_dead z"),
        ("free", "acquire b"),
        ("granted 9", "1 granted b"),
    ]);
    // It is there for it again.
    scenario(&[
        ("1 lock z named", "acquire z"),
        ("held x 50000", ""),
        ("push", "acquire z"),
        ("held z 50000 dead", "acquire z"),
    ]);
}

#[test]
fn a_token_is_dead_once_it_is_released_handed_on_or_lost() {
    let dead = |lines: &[&str]| {
        let mut harness = Harness::new(SETTINGS);
        lines.iter().for_each(|line| drop(harness.happen(line)));
        harness.dead
    };
    let held = ["1 lock a named", "granted 7"];
    let after = |more: &[&str]| dead(&[&held[..], more].concat());
    assert_eq!(after(&["2 unlock a", "free"]), ["a up to 7"]);
    assert_eq!(
        after(&["2 lock b", "3 unlock a", "granted 8"]),
        ["a up to 7"]
    );
    assert_eq!(after(&["push", "held x 50"]), ["a up to 7"]);
    assert_eq!(after(&["push", "free"]), ["a up to 7"]);
    assert_eq!(after(&["1 undelivered a", "free"]), ["a up to 7"]);
    // The store may have the lease from before it was shortened; one that was made longer again ends with it.
    let shortened = ["2 relock a 500", "granted 5"];
    assert_eq!(
        after(&[&shortened[..], &["3 unlock a", "free"]].concat()),
        ["a up to 5 or at 7"]
    );
    assert_eq!(
        after(&[&shortened[..], &["push", "free"]].concat()),
        ["a up to 5 or at 7"]
    );
    let longer = [
        "3 relock a 900",
        "granted 6",
        "4 relock a 90000",
        "granted 9",
        "5 unlock a",
        "free",
    ];
    assert_eq!(after(&[&shortened[..], &longer[..4]].concat()), [""; 0]);
    assert_eq!(
        after(&[&shortened[..], &longer[..2], &longer[4..]].concat()),
        ["a up to 6 or at 7"]
    );
    assert_eq!(
        after(&[&shortened[..], &longer[..]].concat()),
        ["a up to 9"]
    );
    // Its client extended it at another instance, as its time to live shows.
    assert_eq!(
        after(&["push", "held a 60000", "2 unlock a", "free"]),
        ["a"]
    );
    assert_eq!(
        after(&["push", "held a 29990", "2 unlock a", "free"]),
        ["a up to 7"]
    );
    // Another instance granted it, perhaps with a longer lease, and its client shortened it here.
    assert_eq!(
        dead(&["2 relock a 500", "again 9", "3 unlock a", "free"]),
        ["a"]
    );
    // The first write-back may be executed late, with a later deadline than the second.
    let twice = ["data_lost", "unknown", "granted 8", "2 unlock a", "free"];
    assert_eq!(after(&twice), ["a"]);
    assert_eq!(
        after(&["data_lost", "granted 8", "2 unlock a", "free"]),
        ["a up to 8"]
    );
    let lost = after(&["2 unlock a", "data_lost", "free"]);
    assert_eq!(lost, ["a up to 7 before the loss"]);
    // Another instance granted it too, and may have extended it.
    let again = dead(&["1 lock a named", "again 7", "push", "free"]);
    assert_eq!(again, [""; 0]);
    assert_eq!(dead(&["2 unlock x", "free"]), ["x"]);
}

#[test]
fn a_lease_that_met_another_owner_is_lost_and_told() {
    scenario(&[
        ("1 lock a session", "acquire a"),
        ("granted 7", "1 granted a session"),
        ("data_lost", "write_back a 30000"),
        ("held x 50", "1 lost"),
    ]);
}

#[test]
fn a_lease_whose_release_is_under_way_is_not_written_back() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("data_lost", ""),
        ("unknown", "release a"),
        ("not held", "2 Done"),
    ]);
}

/// The `UNLOCK` waited for a connection when the store lost the lock: it is released all the same.
#[test]
fn a_release_that_comes_after_the_loss_was_done() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 unlock a", "release a"),
        ("data_lost", ""),
        // Where the answer is from before the loss, the token may be back.
        ("not held", "2 Done; check"),
        ("free", ""),
        ("after 5312", "check"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_lease_that_changed_is_not_written_back_but_asked_about() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("push", "check"),
        ("data_lost", ""),
        ("unknown", "check"),
        ("free", ""),
        ("idle", "true"),
    ]);
}

#[test]
fn a_lease_is_written_back_over_the_token_that_it_was_handed_on_from_last() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 lock b", ""),
        ("3 unlock a", "hand a to b"),
        ("data_lost", ""),
        // Answered before the loss, heard of after it.
        ("granted 8", "3 Done; 2 granted b; write_back b 30000"),
        ("held a 50 dead grace 50", "delete_dead a"),
        ("free", "write_back b 30000"),
        ("granted 9", ""),
    ]);
}

#[test]
fn a_lease_that_is_extended_when_the_store_forgets_is_written_back_first() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("2 relock a 500", "extend a 500 if 7"),
        ("data_lost", ""),
        ("free", "write_back a 30000"),
        ("granted 8", "extend a 500 if 8"),
        ("granted 9", "2 Done"),
    ]);
}

#[test]
fn a_write_back_without_a_reply_is_sent_again() {
    scenario(&[
        ("1 lock a px 2000", "acquire a px 2000"),
        ("granted 7", "1 granted a"),
        ("data_lost", "write_back a 2000"),
        ("after 500", ""),
        ("unknown", "write_back a 1500"),
        ("not now LOADING", ""),
        ("after 100", "write_back a 1400"),
    ]);
}

/// The reply to the first write-back arrives after the break of the connection that it armed, so no push reports a
/// change.
#[test]
fn a_lease_is_written_back_again_when_the_connection_broke_meanwhile() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("data_lost", "write_back a 30000"),
        ("tracking_lost", ""),
        ("granted 8", "check"),
        ("data_lost", ""),
        ("unknown", "write_back a 30000"),
    ]);
}

/// The user may not write just now, or memory is short. (Found by the simulator.)
#[test]
fn a_write_back_that_was_refused_is_tried_again_until_the_lease_is_over() {
    scenario(&[
        ("1 lock a px 450 session", "acquire a px 450"),
        ("granted 7", "1 granted a session"),
        ("data_lost", "write_back a 450"),
        ("refused OOM", ""),
        // It is not known yet whether the lease stands.
        ("2 relock a 400", ""),
        ("after 99", ""),
        ("after 1", "write_back a 350"),
        ("refused OOM", ""),
        // Ever less often.
        ("after 199", ""),
        ("after 1", "write_back a 150"),
        ("refused OOM", ""),
        ("after 150", "1 lost; release a if 7"),
    ]);
}

/// The store has no memory for the lease, or its user may not write there any more. The lease stands all the same.
#[test]
fn no_other_user_is_granted_a_lock_whose_lease_is_not_written_back() {
    scenario(&[
        ("1 lock a", "acquire a"),
        ("granted 7", "1 granted a"),
        ("data_lost", "write_back a 30000"),
        ("refused OOM", ""),
        ("2 lock b user 2", "check as 2"),
        ("free", ""),
        ("3 lock c try user 2", "3 Nil"),
        ("4 lock d try", "4 Nil"),
        ("after 100", "write_back a 29900"),
        ("refused OOM", ""),
        ("after 200", "write_back a 29700"),
        ("granted 9", ""),
        ("5 unlock a", "release a"),
        ("free", "5 Done; acquire b"),
    ]);
}

#[test]
fn a_lock_whose_lease_cannot_be_written_back_is_asked_for_at_the_end_of_the_lease() {
    scenario(&[
        ("1 lock a px 2000", "acquire a px 2000"),
        ("granted 7", "1 granted a"),
        ("data_lost", "write_back a 2000"),
        ("no link", ""),
        ("2 lock b user 2", "check as 2"),
        ("free", ""),
        ("after 1999", ""),
        ("after 1", "acquire b"),
        ("granted 9", "2 granted b"),
    ]);
}

#[test]
fn a_lease_that_is_over_is_not_written_back() {
    scenario(&[
        ("1 lock a px 2000", "acquire a px 2000"),
        ("granted 7", "1 granted a"),
        ("after 2000", ""),
        ("data_lost", "check"),
    ]);
}

#[test]
fn write_back_is_a_setting() {
    let with = |write_back| Settings {
        write_back,
        ..SETTINGS
    };
    let plain: [(&str, &str); 3] = [
        ("1 lock a", "bare acquire a"),
        ("again 0 polled", "1 granted a"),
        ("data_lost", "check"),
    ];
    scenario_with(with(WriteBack::Off), &plain);
    scenario_with(with(WriteBack::Session), &plain);
    scenario_with(
        with(WriteBack::Session),
        &[
            ("1 lock a session", "acquire a"),
            ("granted 7", "1 granted a session"),
            ("data_lost", "write_back a 30000"),
        ],
    );
}
