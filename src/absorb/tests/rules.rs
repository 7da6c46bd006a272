use super::*;

fn settings(keys: &str, try_keys: &str, park_ms: u64) -> AbsorbSettings {
    AbsorbSettings {
        keys: KeyPatterns::parse(keys).unwrap(),
        try_keys: KeyPatterns::parse(try_keys).unwrap(),
        park_ms,
        release_scripts: ReleaseScripts::default(),
    }
}

#[test]
fn a_key_in_both_lists_is_tried_once() {
    let rules = Rules::new(
        settings("lock:*,mutex:*", "lock:once:*,job:*", 50),
        Bytes::new(),
    );
    for (key, treatment) in [
        ("lock:a", Some(Treatment::Park)),
        ("mutex:once:a", Some(Treatment::Park)),
        ("lock:once:a", Some(Treatment::Try)),
        ("job:a", Some(Treatment::Try)),
        ("data:a", None),
        ("", None),
    ] {
        assert_eq!(rules.treatment(key.as_bytes()), treatment, "{key}");
    }
}

#[test]
fn without_a_redis_every_key_is_a_lock() {
    let rules = Rules::every_key(settings("", "job:*", 50), Bytes::new());
    assert_eq!(rules.treatment(b"data:a"), Some(Treatment::Park));
    assert_eq!(rules.treatment(b"job:a"), Some(Treatment::Try));
    let rules = rules.changed(settings("lock:*", "", 50));
    assert_eq!(rules.treatment(b"job:a"), Some(Treatment::Park));
}

#[test]
fn rules_without_patterns_are_none() {
    assert!(Rules::new(settings("", "", 50), Bytes::new()).are_none());
    assert!(!Rules::new(settings("a", "", 50), Bytes::new()).are_none());
    assert!(!Rules::new(settings("", "a", 50), Bytes::new()).are_none());
    assert!(!Rules::every_key(settings("", "", 50), Bytes::new()).are_none());
}

#[test]
fn an_attempt_is_parked_for_a_fortieth_of_its_lease_at_most() {
    let rules = Rules::new(settings("lock:*", "", 50), Bytes::new());
    for (lease_ms, park_ms) in [
        (30_000, 50),
        (2_000, 50),
        (1_999, 49),
        (1_000, 25),
        (39, 0),
        (u64::MAX, 50),
    ] {
        assert_eq!(rules.park_ms(lease_ms), park_ms, "{lease_ms}");
    }
}

#[test]
fn a_park_of_zero_refuses_at_once() {
    let rules = Rules::new(settings("lock:*", "", 0), Bytes::new());
    assert_eq!(rules.treatment(b"lock:a"), Some(Treatment::Try));
    assert_eq!(rules.treatment(b"a"), None);
}
