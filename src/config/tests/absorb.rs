//! The section `[absorb]`, checked and reloaded.

use super::*;
use crate::{absorb::Treatment, config::live::LiveConfig};

const REDIS: &str = "upstream.url = \"redis://redis\"\n";

fn reads(keys: &str) -> Config {
    nothing_typed().file(&format!("{REDIS}{keys}")).starts()
}

fn treatment(live: &LiveConfig, key: &str) -> Option<Treatment> {
    live.absorb()?.treatment(key.as_bytes())
}

#[test]
fn a_wrong_value_is_refused_with_what_is_allowed() {
    let too_many_keys = vec!["a"; 65].join(",");
    let too_many_scripts = vec!["0".repeat(40); 65].join(",");
    for (key, value, allowed) in [
        ("absorb.keys", "*", "allowed is patterns that begin with"),
        ("absorb.keys", "lock:*,?a", "\"?a\" does not"),
        ("absorb.keys", "a,,b", "none of them empty"),
        ("absorb.keys", "a[b", "a ] for each ["),
        ("absorb.keys", &too_many_keys, "at most 64 patterns"),
        (
            "absorb.try_keys",
            "*",
            "allowed is patterns that begin with",
        ),
        ("absorb.park", "10001ms", "from 0s to 10s"),
        ("absorb.park", "50", "with its unit"),
        (
            "absorb.release_scripts",
            "90da",
            "SHA1s of 40 hexadecimal digits",
        ),
        (
            "absorb.release_scripts",
            &too_many_scripts,
            "at most 64 SHA1s",
        ),
    ] {
        let line = nothing_typed()
            .file(&format!("{key} = \"{value}\""))
            .refused();
        assert_names(&line, &[key, value, allowed]);
    }
}

#[test]
fn each_pattern_begins_with_the_prefix_of_locks() {
    let typed = |keys: &str| nothing_typed().file(&format!("lock.key_prefix = \"p:\"\n{keys}"));
    let config = typed("absorb.keys = \"p:a*,p:*\"\nabsorb.try_keys = \"p:t\"").starts();
    assert!(config.absorb.keys.matches(b"p:b"));
    for (key, patterns) in [
        ("absorb.keys", "p:a*,lock:*"),
        ("absorb.keys", "p*"),
        ("absorb.try_keys", "job:*"),
    ] {
        let line = typed(&format!("{key} = \"{patterns}\"")).refused();
        assert_names(
            &line,
            &[key, patterns, "begin with lock.key_prefix, \"p:\""],
        );
    }
}

#[test]
fn nothing_is_absorbed_before_a_key_is_named() {
    let live = LiveConfig::new(&reads(""));
    assert!(live.absorb().is_none());
    live.change(&reads("absorb.keys = \"lock:*\""));
    assert_eq!(treatment(&live, "lock:a"), Some(Treatment::Park));
    assert_eq!(treatment(&live, "data:a"), None);
    live.change(&reads("absorb.try_keys = \"lock:*\""));
    assert_eq!(treatment(&live, "lock:a"), Some(Treatment::Try));
    live.change(&reads(""));
    assert!(live.absorb().is_none());
}

#[test]
fn a_reload_changes_the_park_and_the_scripts_and_keeps_what_clients_taught() {
    let live = LiveConfig::new(&reads("absorb.keys = \"lock:*\""));
    let rules = live.absorb().unwrap();
    assert_eq!(rules.park_ms(30_000), 50);
    assert!(rules.scripts().news(b"EVALSHA", &[b'1'; 40]).is_some());
    let text = b"return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) --";
    assert!(rules.scripts().by_text(text).is_some());
    let digits = "0".repeat(40);
    let named =
        format!("absorb = {{ park = \"1s\", release_scripts = \"{digits}\", keys = \"a\" }}");
    live.change(&reads(""));
    live.change(&reads(&named));
    let rules = live.absorb().unwrap();
    assert_eq!(rules.park_ms(60_000), 1_000);
    assert!(rules.scripts().by_sha1(digits.as_bytes()).is_some());
    let again = rules.scripts().news(b"EVALSHA", &[b'1'; 40]);
    assert_eq!(again, None, "it was reported");
    let sha1 = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text);
    let hex: String = sha1.as_ref().iter().map(|it| format!("{it:02x}")).collect();
    assert!(rules.scripts().by_sha1(hex.as_bytes()).is_some(), "learned");
}

#[test]
fn patterns_for_another_prefix_wait_for_the_restart_that_changes_it() {
    let prefixed = |prefix: &str| {
        reads(&format!(
            "lock.key_prefix = \"{prefix}\"\nabsorb.keys = \"{prefix}*\""
        ))
    };
    let live = LiveConfig::new(&prefixed("p:"));
    live.change(&prefixed("q:"));
    assert_eq!(treatment(&live, "p:a"), Some(Treatment::Park));
    assert_eq!(treatment(&live, "q:a"), None);
}

#[test]
fn without_a_redis_every_key_is_absorbed_also_after_a_reload() {
    let live = LiveConfig::new(&nothing_typed().starts());
    assert_eq!(treatment(&live, "a"), Some(Treatment::Park));
    let config = nothing_typed().file("absorb.try_keys = \"job:*\"").starts();
    live.change(&config);
    assert_eq!(treatment(&live, "a"), Some(Treatment::Park));
    assert_eq!(treatment(&live, "job:a"), Some(Treatment::Try));
    // The upstream changes with a restart only.
    live.change(&reads(""));
    assert_eq!(treatment(&live, "a"), Some(Treatment::Park));
}
