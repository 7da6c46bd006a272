use proptest::prelude::*;

use super::*;
use crate::limits::REPLICAS;
use crate::testing::{Redis, Value};

const BOUNDS: Bounds = Bounds {
    key_bytes: 32,
    command_bytes: 16 * 1024,
    token_bytes: 8,
    min_lease_ms: 10,
    max_lease_ms: 60_000,
};

/// Parses these words, separated by single spaces, as a client's command.
fn sent(words: &str) -> Result<Command, String> {
    let arguments: Vec<Bytes> = words
        .split(' ')
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect();
    parse(&arguments, &BOUNDS).map_err(|error| error.to_string())
}

fn lock(token: Option<&str>, lease_ms: Option<u64>, wait_ms: Option<u64>) -> Command {
    Command::Lock {
        key: b"k".as_slice().into(),
        token: token.map(Token::new),
        lease_ms,
        wait_ms,
        try_only: false,
        fence: false,
        session: false,
        replicas: None,
    }
}

/// Sets these options of a `LOCK` or `TRYLOCK`.
fn with(command: Command, fence: bool, session: bool) -> Command {
    let Command::Lock {
        key,
        token,
        lease_ms,
        wait_ms,
        try_only,
        ..
    } = command
    else {
        panic!("only LOCK and TRYLOCK have them")
    };
    Command::Lock {
        key,
        token,
        lease_ms,
        wait_ms,
        try_only,
        fence,
        session,
        replicas: None,
    }
}

fn trylock(token: Option<&str>, lease: Option<u64>) -> Command {
    let Command::Lock {
        key,
        token,
        lease_ms,
        wait_ms,
        ..
    } = lock(token, lease, None)
    else {
        panic!("a LOCK is one")
    };
    Command::Lock {
        key,
        token,
        lease_ms,
        wait_ms,
        try_only: true,
        fence: false,
        session: false,
        replicas: None,
    }
}

fn relock(token: &str, lease_ms: Option<u64>) -> Command {
    Command::Relock {
        key: b"k".as_slice().into(),
        token: Token::new(token),
        lease_ms,
        replicas: None,
    }
}

fn unlock(token: &str) -> Command {
    Command::Unlock {
        key: b"k".as_slice().into(),
        token: Token::new(token),
    }
}

fn locks(pattern: Option<&str>, count: Option<usize>) -> Command {
    Command::Locks {
        pattern: pattern.map(|pattern| Bytes::copy_from_slice(pattern.as_bytes())),
        count,
    }
}

#[test]
fn valid_commands_are_parsed() {
    for (words, command) in [
        ("LOCK k", lock(None, None, None)),
        ("lOcK k", lock(None, None, None)),
        ("LOCK k TOKEN t", lock(Some("t"), None, None)),
        ("LOCK k token TOKEN", lock(Some("TOKEN"), None, None)),
        ("LOCK k TOKEN PX PX 10", lock(Some("PX"), Some(10), None)),
        ("LOCK k PX 10", lock(None, Some(10), None)),
        ("LOCK k px 60000", lock(None, Some(60_000), None)),
        ("LOCK k EX 60", lock(None, Some(60_000), None)),
        ("LOCK k WAIT 0", lock(None, None, None)),
        ("LOCK k WAIT 5", lock(None, None, Some(5))),
        (
            "LOCK k WAIT 9223372036854775807",
            lock(None, None, Some(i64::MAX as u64)),
        ),
        (
            "LOCK k Wait 5 Ex 2 Token 12345678",
            lock(Some("12345678"), Some(2_000), Some(5)),
        ),
        ("LOCK k FENCE", with(lock(None, None, None), true, false)),
        (
            "LOCK k session WAIT 5 Fence",
            with(lock(None, None, Some(5)), true, true),
        ),
        (
            "TRYLOCK k SESSION TOKEN FENCE",
            with(trylock(Some("FENCE"), None), false, true),
        ),
        ("TRYLOCK k", trylock(None, None)),
        ("trylock k EX 1 TOKEN t", trylock(Some("t"), Some(1_000))),
        ("RELOCK k t", relock("t", None)),
        ("relock k t EX 3", relock("t", Some(3_000))),
        ("RELOCK k PX PX 30", relock("PX", Some(30))),
        ("RELOCK k ", relock("", None)),
        ("UNLOCK k t", unlock("t")),
        ("UNLOCK k ", unlock("")),
        ("UNLOCK k 123456789", unlock("123456789")),
        (
            "LOCKINFO k",
            Command::LockInfo {
                key: b"k".as_slice().into(),
            },
        ),
        (
            "LOCKINFO ",
            Command::LockInfo {
                key: Arc::default(),
            },
        ),
        ("LOCKS", locks(None, None)),
        ("LOCKS MATCH a*", locks(Some("a*"), None)),
        ("locks count 7 match ", locks(Some(""), Some(7))),
    ] {
        assert_eq!(sent(words), Ok(command), "{words}");
    }
}

#[test]
fn replicas_are_counted_up_to_their_bound() {
    let replicas = |words: &str| match sent(words) {
        Ok(Command::Lock { replicas, .. } | Command::Relock { replicas, .. }) => replicas,
        other => panic!("{words}: {other:?}"),
    };
    assert_eq!(replicas("LOCK k WAIT 5 REPLICAS 1"), Some(1));
    assert_eq!(replicas("TRYLOCK k replicas 64 FENCE"), Some(64));
    assert_eq!(replicas("RELOCK k t REPLICAS 0"), Some(0));
    assert_eq!(replicas("RELOCK k REPLICAS PX 20"), None);
}

#[test]
fn invalid_commands_get_errors_of_redis() {
    let syntax = "ERR syntax error";
    let number = "ERR value is not an integer or out of range";
    let arity = |name: &str| format!("ERR wrong number of arguments for '{name}' command");
    let expire = |name: &str| format!("ERR invalid expire time in '{name}' command");
    for (words, error) in [
        ("LOCK", arity("lock")),
        ("TryLock", arity("trylock")),
        ("RELOCK k", arity("relock")),
        ("UNLOCK k", arity("unlock")),
        ("UNLOCK k t x", arity("unlock")),
        ("LOCKINFO", arity("lockinfo")),
        ("LOCKINFO k k", arity("lockinfo")),
        ("LOCK k FOO", syntax.into()),
        ("LOCK k ", syntax.into()),
        ("LOCK k PX", syntax.into()),
        ("LOCK k TOKEN", syntax.into()),
        ("LOCK k WAIT", syntax.into()),
        ("LOCK k PX 10 PX 10", syntax.into()),
        ("LOCK k PX 10 EX 1", syntax.into()),
        ("LOCK k TOKEN t TOKEN t", syntax.into()),
        ("LOCK k WAIT 1 WAIT 1", syntax.into()),
        ("LOCK k FENCE FENCE", syntax.into()),
        ("LOCK k SESSION SESSION", syntax.into()),
        ("LOCK k REPLICAS", syntax.into()),
        ("LOCK k REPLICAS 1 REPLICAS 1", syntax.into()),
        ("UNLOCK k t REPLICAS 1", arity("unlock")),
        ("LOCK k REPLICAS 65", number.into()),
        ("LOCK k REPLICAS -1", number.into()),
        ("LOCK k REPLICAS x", number.into()),
        ("LOCK k PX x FOO", syntax.into()),
        ("LOCK k FENCE FOO", syntax.into()),
        ("LOCK k MATCH a", syntax.into()),
        ("TRYLOCK k WAIT 5", syntax.into()),
        ("RELOCK k t TOKEN t", syntax.into()),
        ("RELOCK k t FENCE", syntax.into()),
        ("RELOCK k t PX", syntax.into()),
        ("LOCKS a*", syntax.into()),
        ("LOCKS MATCH", syntax.into()),
        ("LOCKS COUNT 1 COUNT 1", syntax.into()),
        ("LOCKS COUNT 0", syntax.into()),
        ("LOCKS COUNT -1", syntax.into()),
        ("LOCKS COUNT x", number.into()),
        ("LOCK k PX x", number.into()),
        ("LOCK k PX ", number.into()),
        ("LOCK k EX 1.5", number.into()),
        ("LOCK k WAIT x", number.into()),
        ("LOCK k WAIT 9223372036854775808", number.into()),
        ("LOCK k PX 0", expire("lock")),
        ("LOCK k PX -20", expire("lock")),
        ("LOCK k PX 9", expire("lock")),
        ("LOCK k PX 60001", expire("lock")),
        ("LOCK k EX 61", expire("lock")),
        ("LOCK k EX 9223372036854775807", expire("lock")),
        ("LOCK k EX -9223372036854775808", expire("lock")),
        // 2^64 + 384 milliseconds: the remainder after an overflow would be a valid lease.
        ("LOCK k EX 18446744073709552", expire("lock")),
        ("TRYLOCK k PX 0", expire("trylock")),
        ("RELOCK k t EX 0", expire("relock")),
        ("LOCK k WAIT -1", "ERR timeout is negative".into()),
        ("LOCK k TOKEN ", "ERR TOKEN must have 1 to 8 bytes".into()),
        (
            "TRYLOCK k TOKEN 123456789",
            "ERR TOKEN must have 1 to 8 bytes".into(),
        ),
        ("GET k", "ERR unknown command".into()),
    ] {
        assert_eq!(sent(words), Err(error), "{words}");
    }
}

#[test]
fn a_name_may_be_as_long_as_the_limit_and_no_longer() {
    for verb in ["LOCK", "TRYLOCK", "LOCKINFO", "UNLOCK", "RELOCK"] {
        let rest = match verb {
            "UNLOCK" | "RELOCK" => " t",
            _ => "",
        };
        let of = |length| sent(&format!("{verb} {}{rest}", "x".repeat(length)));
        assert!(of(0).is_ok(), "{verb}");
        assert!(of(32).is_ok(), "{verb}");
        assert_eq!(
            of(33),
            Err("ERR lock name is longer than 32 bytes (limits.key_bytes)".into()),
            "{verb}"
        );
    }
}

#[test]
fn no_other_command_is_taken_for_a_lock_command() {
    for name in [
        "", "L", "LOC", "LLEN", "LOCKX", "LPUSH", "LOLWUT", "UNLINK", "RENAME", "LOCK ", "LOCK\0",
        "TRYLOCKS", "LASTSAVE", "lock|x",
    ] {
        assert_eq!(Verb::of(name.as_bytes()), None, "{name:?}");
    }
}

#[test]
fn no_token_is_ever_printed() {
    let command = sent("LOCK k TOKEN s3cret").unwrap();
    let shown = format!("{command:?} {:?}", sent("UNLOCK k s3cret").unwrap());
    assert!(!shown.contains("s3cret"), "{shown}");
}

/// `SET key value` has the same options. The same text in the same place must get the same error from Redis,
/// except for the name of the command, and must be accepted where Redis accepts it.
#[test]
fn numbers_are_as_strict_as_those_of_redis() {
    let bounds = Bounds {
        min_lease_ms: 1,
        max_lease_ms: u64::MAX,
        ..BOUNDS
    };
    let redis = Redis::start();
    let mut client = redis.connect();
    for text in [
        "",
        "0",
        "1",
        "-0",
        "-1",
        "+1",
        "01",
        "00",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "0x10",
        "x",
        "-",
        "--1",
        "1\0",
        "1\n",
        "\u{661}",
        "10000",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999",
        "1_000",
        "000000000000000000001",
        "123456789012345678901234567890",
    ] {
        let theirs = client.ask(&[b"SET", b"k", b"v", b"EX", text.as_bytes()]);
        let arguments =
            ["LOCK", "k", "EX", text].map(|word| Bytes::copy_from_slice(word.as_bytes()));
        match (theirs, parse(&arguments, &bounds)) {
            (Value::Simple(_), Ok(_)) => {}
            (Value::Error(theirs), Err(ours)) => {
                assert_eq!(
                    ours.to_string(),
                    theirs.replace("'set'", "'lock'"),
                    "{text:?}"
                );
            }
            (theirs, ours) => panic!("{text:?}: {theirs:?} but {ours:?}"),
        }
    }
    for (theirs, ours) in [
        ("SET k v PX 5 EX 5", "LOCK k PX 50 EX 5"),
        ("SET k v PX", "LOCK k PX"),
        ("SET k v PX x FOO", "LOCK k PX x FOO"),
        ("SCAN 0 COUNT 0", "LOCKS COUNT 0"),
        ("SCAN 0 COUNT x", "LOCKS COUNT x"),
        ("XREAD BLOCK -1 STREAMS k 0", "LOCK k WAIT -1"),
    ] {
        assert_eq!(
            client.say(theirs),
            Value::Error(sent(ours).unwrap_err()),
            "{ours}"
        );
    }
    let arity = client.say("GET").clone();
    let Value::Error(arity) = arity else {
        panic!("{arity:?}")
    };
    assert_eq!(sent("LOCK"), Err(arity.replace("'get'", "'lock'")));
}

/// Generates one argument, mostly a meaningful one.
fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::sample::select(vec![
            "LOCK", "trylock", "RELOCK", "UNLOCK", "LOCKINFO", "LOCKS", "TOKEN", "px", "EX", "WAIT",
            "FENCE", "SESSION", "MATCH", "COUNT", "k", "t", "0", "20", "-1",
            "9223372036854775807",
        ]).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_is_within_the_bounds_or_an_error(
        words in prop::collection::vec(word(), 0..12)
    ) {
        let arguments: Vec<Bytes> = words.into_iter().map(Bytes::from).collect();
        match parse(&arguments, &BOUNDS) {
            Err(error) => prop_assert!(error.to_string().starts_with("ERR ")),
            Ok(Command::Lock { key, token, lease_ms, wait_ms, try_only, .. }) => {
                prop_assert_eq!(&key[..], &arguments[1][..]);
                prop_assert!(key.len() <= 32);
                prop_assert!(token.is_none_or(|token| (1..=8).contains(&token.as_bytes().len())));
                prop_assert!(lease_ms.is_none_or(|lease_ms| (10..=60_000).contains(&lease_ms)));
                prop_assert!(wait_ms != Some(0) && !(try_only && wait_ms.is_some()));
            }
            Ok(Command::Relock { key, token, lease_ms, replicas }) => {
                prop_assert!(replicas.is_none_or(|replicas| replicas <= REPLICAS));
                prop_assert_eq!(&key[..], &arguments[1][..]);
                prop_assert_eq!(token.as_bytes(), &arguments[2]);
                prop_assert!(lease_ms.is_none_or(|lease_ms| (10..=60_000).contains(&lease_ms)));
            }
            Ok(Command::Unlock { key, token }) => {
                prop_assert_eq!(&key[..], &arguments[1][..]);
                prop_assert_eq!(token.as_bytes(), &arguments[2]);
            }
            Ok(Command::LockInfo { key }) => prop_assert_eq!(&key[..], &arguments[1][..]),
            Ok(Command::Locks { count, .. }) => prop_assert_ne!(count, Some(0)),
        }
    }

    #[test]
    fn options_mean_the_same_in_any_order(
        order in Just(["TOKEN t", "PX 20", "WAIT 7"]).prop_shuffle()
    ) {
        prop_assert_eq!(
            sent(&format!("LOCK k {}", order.join(" "))),
            Ok(lock(Some("t"), Some(20), Some(7)))
        );
    }

    #[test]
    fn every_number_that_redis_writes_is_read(number: i64) {
        prop_assert_eq!(integer(number.to_string().as_bytes()), Some(number));
    }
}
