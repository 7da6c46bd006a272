//! Under any events in any order, the queue does not panic, has one store request in flight at a time, and replies to a
//! request once. A timer or a store request wakes the queue for each waiter.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::harness::{Harness, SETTINGS};

/// One event; those that answer a store request happen only while one is on its way.
fn events() -> impl Strategy<Value = Vec<(u8, u8, u8)>> {
    prop::collection::vec((0..32_u8, 0..4_u8, 0..4_u8), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_events(events in events()) {
        let mut harness = Harness::new(SETTINGS);
        let mut asked = false;
        // Unanswered requests, with their tokens.
        let mut waiting: BTreeMap<usize, (&str, bool)> = BTreeMap::new();
        // Requests whose leases are bound to a connection, with their tokens.
        let mut bound: BTreeMap<usize, &str> = BTreeMap::new();
        let mut deadline = 0;
        for (number, (what, one, other)) in events.into_iter().enumerate() {
            let token = ["a", "b", "c", "d"][usize::from(one)];
            let second = ["a", "b", "c", "d"][usize::from(other)];
            let some = waiting.keys().nth(usize::from(other)).copied();
            deadline += 1;
            let lock = |options: &str| (format!("{number} lock {token}{options}"), Some(true));
            let (line, new) = match (what, some) {
                (0, _) => lock(""),
                (1, _) => lock(" named"),
                (2, _) => lock(" named try"),
                (3, _) if other % 2 == 0 => lock(" wait 7 px 20"),
                (3, _) => lock(" named wait 7 on 1"),
                (4 | 5, _) => (format!("{number} unlock {token}"), Some(false)),
                (6, _) => (format!("{number} relock {token} 40"), Some(false)),
                (7, Some(id)) if waiting[&id].1 => {
                    let line = format!("{id} gone {}", waiting[&id].0);
                    waiting.remove(&id);
                    (line, None)
                }
                (8, Some(id)) if waiting[&id].1 => (format!("{id} stop {}", waiting[&id].0), None),
                (9, Some(id)) if waiting[&id].1 => (format!("{id} behind {} {second}", waiting[&id].0), None),
                (10, _) => (format!("{number} undelivered {token}"), None),
                (11, _) => ("push".to_owned(), None),
                (12, _) => ("tracking_lost".to_owned(), None),
                (13, _) => (format!("after {}", 3 * u64::from(one) * u64::from(other)), None),
                (14, _) if asked => (format!("granted {deadline}"), None),
                (15, _) if asked => (format!("again {deadline}"), None),
                (16, _) if asked => (format!("held {token} 9"), None),
                (17, _) if asked => ("free".to_owned(), None),
                (18, _) if asked => ("not held".to_owned(), None),
                (19, _) if asked => ("refused X".to_owned(), None),
                (20, _) if asked => ("not now X".to_owned(), None),
                (21, _) if asked => ("unknown".to_owned(), None),
                (22, _) if asked => (format!("not yet {other}"), None),
                (23, _) if asked => (format!("granted {deadline} fence {deadline}"), None),
                (24, _) => lock(" named session"),
                (25, _) => lock(" fence session px 20"),
                (26, _) => lock(" named fence"),
                (27, _) if one % 2 == 0 => ("data_lost".to_owned(), None),
                (27, _) => ("data_lost dead".to_owned(), None),
                (30, _) if asked => (format!("held {token} 9 grace 9"), None),
                (31, _) if asked => (format!("held {token} 9 dead {deadline}"), None),
                (28 | 29, _) if !bound.is_empty() => {
                    let (id, token) = bound.iter().nth(usize::from(one) % bound.len()).unwrap();
                    let how = if what == 28 { "" } else { " here" };
                    (format!("{id} closed {token}{how}"), None)
                }
                _ => continue,
            };
            if let Some(waits) = new {
                waiting.insert(number, (token, waits));
            }
            let answers = (14..24).contains(&what) || what >= 30;
            let done = harness.happen(&line);
            asked = (asked && !answers) || done.split("; ").any(|act| {
                ["acquire", "hand", "release", "extend", "check", "write_back", "delete_dead"].contains(&act.split(' ').next().unwrap())
            });
            for act in done.split("; ") {
                if let Some(request) = act.split(' ').next().and_then(|word| word.parse::<usize>().ok()) {
                    if act.ends_with(" lost") || act.ends_with(" over") {
                        prop_assert!(bound.remove(&request).is_some(), "{line}: {act}, but it was not bound");
                        continue;
                    }
                    if act.ends_with(" session") {
                        bound.insert(request, act.split(' ').nth(2).unwrap().to_owned().leak());
                    }
                    prop_assert!(waiting.remove(&request).is_some(), "{line}: {act} to nobody");
                }
            }
            prop_assert!(
                waiting.is_empty() || asked || harness.queue.wake_at().is_some(),
                "{line}: {waiting:?} wait, and nothing will wake the queue"
            );
            prop_assert!(
                bound.is_empty() || harness.queue.wake_at().is_some(),
                "{line}: {bound:?} are bound, and nothing will wake the queue"
            );
            prop_assert!(bound.len() <= 1, "{line}: {bound:?} are bound at a time");
        }
    }
}
