use super::*;

fn acquire(lease_ms: u64) -> Option<Shape> {
    Some(Shape {
        key: b"k".as_slice().into(),
        ask: Ask::Acquire {
            token: crate::lock::Token::new("mine"),
            lease_ms,
            equal: Equal::Refused,
        },
        replies: Replies::OK_OR_NULL,
    })
}

fn release() -> Option<Shape> {
    Some(Shape {
        key: b"k".as_slice().into(),
        ask: Ask::Release {
            token: crate::lock::Token::new("mine"),
        },
        replies: Replies::NUMBERS,
    })
}

/// Returns the shape of a command of single words.
fn sent(words: &str) -> Option<Shape> {
    let words: Vec<_> = words.split(' ').map(str::as_bytes).collect();
    shape(&words, &libraries())
}

#[test]
fn set_with_nx_and_a_lease_acquires_in_any_order_and_case() {
    for name in ["SET", "set", "SeT"] {
        for nx in ["NX", "nx", "nX"] {
            for (unit, lease_ms) in [("PX", 8), ("px", 8), ("EX", 8_000), ("eX", 8_000)] {
                let expected = acquire(lease_ms);
                assert_eq!(sent(&format!("{name} k mine {nx} {unit} 8")), expected);
                assert_eq!(sent(&format!("{name} k mine {unit} 8 {nx}")), expected);
            }
        }
    }
}

/// Tries 1 to 4 options of `SET`, so commands of 4 to 7 arguments, beside each other.
#[test]
fn every_set_that_is_recognised_does_in_redis_what_its_shape_says() {
    let words = [
        "NX", "XX", "PX", "EX", "50000", "GET", "KEEPTTL", "PXAT", "0", "t",
    ];
    let redis = Redis::start();
    let mut redis = redis.connect();
    let mut recognised = 0;
    for count in 1..=4 {
        for number in 0..words.len().pow(count) {
            let options = (0..count).map(|at| words[number / words.len().pow(at) % words.len()]);
            let command: Vec<_> = ["SET", "k", "mine"].into_iter().chain(options).collect();
            let command: Vec<_> = command.into_iter().map(str::as_bytes).collect();
            let Some(shape) = shape(&command, &libraries()) else {
                continue;
            };
            assert_eq!(command.len(), 6, "{command:?}");
            recognised += 1;
            if acquire(50_000).as_ref() == Some(&shape) {
                check(&mut redis, &command, &shape);
            }
        }
    }
    assert_eq!(recognised, 4, "NX before or after, PX or EX");
}

#[test]
fn only_leases_that_redis_reads_are_recognised() {
    let bad = [
        "0",
        "-1",
        "+5",
        "05",
        "5.0",
        "1e3",
        "0x5",
        "",
        "-0",
        "9223372036854775808",
    ];
    for lease in bad {
        for unit in ["PX", "EX"] {
            let set = format!("SET k mine NX {unit} {lease}");
            assert_eq!(sent(&set), None, "{set}");
        }
    }
    for lease in ["5 ", " 5", "5\n", "5\0"] {
        let command = [&b"SET"[..], b"k", b"mine", b"NX", b"PX", lease.as_bytes()];
        assert_eq!(shape(&command, &libraries()), None, "{lease:?}");
    }
    let longest = acquire(9_223_372_036_854_775_807);
    assert_eq!(sent("SET k mine NX PX 9223372036854775807"), longest);
    let longest = acquire(9_223_372_036_854_775_000);
    assert_eq!(sent("SET k mine NX EX 9223372036854775"), longest);
    assert_eq!(sent("SET k mine NX EX 9223372036854776"), None);
}

#[test]
fn deletions_are_recognised() {
    for name in ["DEL", "del", "UNLINK", "Unlink"] {
        let shape = sent(&format!("{name} k")).unwrap();
        assert_eq!(
            (shape.ask, shape.key),
            (Ask::Delete, b"k".as_slice().into())
        );
        assert_eq!(sent(&format!("{name} k j")), None);
        assert_eq!(sent(name), None);
    }
    for words in [
        "DELEX k IFEQ mine",
        "delex k ifeq mine",
        "DELIFEQ k mine",
        "delifeq k mine",
    ] {
        assert_eq!(sent(words), release(), "{words}");
    }
    for words in [
        "DELEX k IFNE mine",
        "DELEX k mine",
        "DELEX k",
        "DELIFEQ k",
        "DELIFEQ k IFEQ mine",
    ] {
        assert_eq!(sent(words), None, "{words}");
    }
    let redis = Redis::start();
    let mut redis = redis.connect();
    for name in ["DEL", "UNLINK"] {
        let shape = sent(&format!("{name} k")).unwrap();
        check(&mut redis, &[name.as_bytes(), b"k"], &shape);
    }
}

#[test]
fn a_script_is_recognised_with_one_key_and_its_own_number_of_arguments() {
    let release_sha1 = "cf0e94b2e9ffc7e04395cf88f7583fc309985910";
    let upper = release_sha1.to_ascii_uppercase();
    for words in [
        format!("EVALSHA {release_sha1} 1 k mine"),
        format!("evalsha {upper} 1 k mine"),
    ] {
        assert_eq!(sent(&words), release(), "{words}");
    }
    for words in [
        format!("EVALSHA {release_sha1} 1 k"),
        format!("EVALSHA {release_sha1} 1 k mine more"),
        format!("EVALSHA {release_sha1} 01 k mine"),
        format!("EVALSHA {release_sha1} +1 k mine"),
        format!("EVALSHA {release_sha1} 2 k mine"),
        format!("EVALSHA {release_sha1} 0 k mine"),
        format!("EVALSHA {release_sha1} 1"),
        format!("EVALSHA_RO {release_sha1} 1 k mine"),
        format!("EVAL {release_sha1} 1 k mine"),
        format!("FCALL {release_sha1} 1 k mine"),
        format!("EVALSHA {} 1 k mine", &release_sha1[1..]),
        format!("EVALSHA {release_sha1}0 1 k mine"),
        format!("EVALSHA {} 1 k mine", release_sha1.replace('c', "g")),
    ] {
        assert_eq!(sent(&words), None, "{words}");
    }
}

#[test]
fn the_conditions_of_scripts_are_checked() {
    let recognised = [
        "a4e8783852e6b949f9ef3a97212805108459a890 1 k mine 500 1",
        "80a1b5f2cfccec3b7119ba7721d2127682b691a7 1 k mine 4 500",
        "1b77b94aa78451d55dfa97e18819bfbfc596cb5b 1 k 3 mine 500",
        "df51f6837dcfe303d334e6abea9aeae192bab216 1 k 3 mine",
        "820e9778d2b6733e9ed771e4be90ae73a95a6f3b 1 k 3 mine 500",
        "ceb2b2062e40c51a2b3963fd078bc71f11bdc65c 1 k mine 500 yes",
    ];
    for words in recognised {
        let shape = sent(&format!("EVALSHA {words}")).expect(words);
        let (Ask::Acquire { token, .. } | Ask::Release { token } | Ask::Extend { token, .. }) =
            &shape.ask
        else {
            panic!("{shape:?} has a token");
        };
        assert_eq!(token.as_bytes(), b"mine");
        if let Ask::Acquire { lease_ms, .. } | Ask::Extend { lease_ms, .. } = shape.ask {
            assert_eq!(lease_ms, 500);
        }
    }
    let passed = [
        "a4e8783852e6b949f9ef3a97212805108459a890 1 k mine 500",
        "80a1b5f2cfccec3b7119ba7721d2127682b691a7 1 k mine 3 500",
        "80a1b5f2cfccec3b7119ba7721d2127682b691a7 1 k mine-metadata 4 500",
        "1b77b94aa78451d55dfa97e18819bfbfc596cb5b 1 k 0 mine 500",
        "df51f6837dcfe303d334e6abea9aeae192bab216 1 k 4 mine",
        "df51f6837dcfe303d334e6abea9aeae192bab216 1 k mine",
        "820e9778d2b6733e9ed771e4be90ae73a95a6f3b 1 k -3 mine 500",
        "ceb2b2062e40c51a2b3963fd078bc71f11bdc65c 1 k mine 500 no",
        "ceb2b2062e40c51a2b3963fd078bc71f11bdc65c 1 k mine 500 YES",
        "7bcdefae3714859f68f1f2377bddae74a1af9391 1 k mine -1",
        "7bcdefae3714859f68f1f2377bddae74a1af9391 1 k mine 0",
        "96da70f7716f27d278a5218544df37fd8b0a5e4c 2 k j mine 500",
    ];
    for words in passed {
        assert_eq!(sent(&format!("EVALSHA {words}")), None, "{words}");
    }
}

#[test]
fn redis_pys_extension_adds_to_the_lease_unless_it_replaces_it() {
    for (last, is_added) in [("0", true), ("1", false), ("00", false)] {
        let extension =
            format!("EVALSHA a4e8783852e6b949f9ef3a97212805108459a890 1 k mine 500 {last}");
        let shape = sent(&extension).expect(&extension);
        let Ask::Extend { lease_ms, adds, .. } = shape.ask else {
            panic!("{shape:?} extends");
        };
        assert_eq!((lease_ms, adds), (500, is_added), "{last}");
    }
}

#[test]
fn other_commands_have_no_shape() {
    for words in [
        "GET k",
        "SETNX k mine",
        "GETDEL k",
        "PEXPIRE k 500",
        "SETEX k 5 mine",
        "SCRIPT LOAD x",
        "NX k mine SET PX 5",
    ] {
        assert_eq!(sent(words), None, "{words}");
    }
    assert_eq!(shape(&[], &libraries()), None);
}
