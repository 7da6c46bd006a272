use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{
    absorb::scripts::{Condition, Kind, Script, texts},
    limits::{LEARNED_SCRIPTS, RELEASE_SCRIPTS, SCRIPT_BYTES},
};

/// Returns what a script does, in words.
fn said(script: Option<Script>) -> String {
    let Some(script) = script else {
        return "unknown".to_owned();
    };
    let kind = match script.kind {
        Kind::Acquire(Equal::Refused) => "acquire",
        Kind::Acquire(Equal::Again) => "acquire again",
        Kind::Release => "release",
        Kind::Extend => "extend",
    };
    let unit = match script.unit_ms {
        1 => "",
        1_000 => " s",
        other => panic!("no unit has {other} ms"),
    };
    let condition = match script.condition {
        Condition::Always => String::new(),
        Condition::Is(index, word) => format!(" if {index} is {word}"),
        Condition::TokenLength(index) => format!(" if {index} is its length"),
        Condition::Database(index) => format!(" if {index} is the database"),
    };
    let reply = |reply| match reply {
        Reply::Status(text) => format!("+{text}"),
        Reply::Error(text) => format!("-{text}"),
        Reply::Integer(number) => number.to_string(),
        Reply::Bulk(text) => text.to_owned(),
        Reply::Null => "nil".to_owned(),
    };
    let [done, refused, gone] = [
        script.replies.done,
        script.replies.refused,
        script.replies.gone,
    ]
    .map(reply);
    let gone = if gone == refused {
        String::new()
    } else {
        format!("/{gone}")
    };
    let adds = script.adds;
    let adds = adds.map_or_else(String::new, |index| format!(" by 0 in {index}"));
    format!("{kind}{unit} {done}/{refused}{gone}{condition}{adds}")
}

#[test]
fn the_scripts_of_libraries_have_their_meaning() {
    let expected = [
        ("c3f8721cbb97f72bc19e972846bd7aaf91901658", "release 1/0"),
        (
            "a4e8783852e6b949f9ef3a97212805108459a890",
            "extend 1/0 by 0 in 2",
        ),
        ("1cac51482acf5858da00f6d685d68f886cd6b6b2", "extend 1/0"),
        ("4e92fdc63815b3a0a2dd1c1df3694de73607c88d", "release 1/0"),
        ("90da91872223f85eb1376a17e3c4df21ace8c54b", "unknown"),
        ("fed16109024d968d9496e4140fe1355bac05ebff", "unknown"),
        ("f5f7bd3a3aa4a63c507c1155c5ea1219b350d992", "unknown"),
        ("ba015a80261b616e7a62d35df0b8e3edbe6c9414", "extend 1/0"),
        ("a4aada0b36710970eedaaaeec4a6b7d8c78c4f80", "release 1/0"),
        (
            "c75a9bf1538efcdb1f383acc3e273c5089d57e58",
            "acquire again +OK/-ERR ERROR",
        ),
        (
            "241e4ca540a1cc4ec1f32d9eb9f879e607d7e6e5",
            "release 1/-ERR ERROR/+OK",
        ),
        ("f908d3f43dbcabc68fc0c9ecaf1fa4a285ecdb0a", "unknown"),
        ("7bcdefae3714859f68f1f2377bddae74a1af9391", "acquire s 1/0"),
        ("bfb9f817b2e860fe4fc58656b2bf657d3fdc2be1", "release 1/0"),
        ("8a7fdef25bdef981900f982f5773edaf35000372", "extend s 1/0"),
        ("e5a322e2634ef59a516e8ea150cb085afafee684", "acquire 1/0"),
        ("0f0f23b9048b36752b5be114f357ba083449f908", "release 1/0"),
        ("ce46f80993d5dac20dd066eb301a4e37994bdbed", "extend 1/0"),
        ("96da70f7716f27d278a5218544df37fd8b0a5e4c", "acquire 1/0"),
        ("aed6f382e410db8ba7926d4e5e9aab410bf2a78a", "extend 1/0"),
        ("e4612211c9f8f51c257e26e056b0a654b3187242", "release 1/0"),
        (
            "1b77b94aa78451d55dfa97e18819bfbfc596cb5b",
            "acquire 1/0 if 0 is the database",
        ),
        (
            "820e9778d2b6733e9ed771e4be90ae73a95a6f3b",
            "extend 1/0 if 0 is the database",
        ),
        (
            "df51f6837dcfe303d334e6abea9aeae192bab216",
            "release 1/0 if 0 is the database",
        ),
        ("7157921a7cc7cfba979acf6d63f073151df17d12", "release 1/0"),
        ("594683e49a64ebaf975caf5f8079a1d097c438f1", "extend 1/0"),
        ("02718596825c5bf6c57af391b4dc01a6d2d9d88a", "unknown"),
        ("a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf", "extend 1/0"),
        ("cf0e94b2e9ffc7e04395cf88f7583fc309985910", "release 1/0"),
        ("6484da7d58920897fdc22b7f9afd1a3d47524ea8", "unknown"),
        (
            "80a1b5f2cfccec3b7119ba7721d2127682b691a7",
            "acquire again +OK/nil if 1 is its length",
        ),
        ("e950836ed1e694540c503ef9972b8de518044d3b", "release 1/0/-1"),
        ("b6b55c439e02c6f52ffb8be7ec8c0d0ac816ea79", "unknown"),
        ("d75bb8b5bd13532ddedd17762e772346e39b321e", "extend 1/0"),
        (
            "175897a4e379e99e79a54937be09226f76cdcfe5",
            "acquire again 1/nil",
        ),
        ("879e0f7b8d83c3266d4e996627438c05dbda0b89", "extend 1/nil"),
        ("7a71e9443a2a41539fb115a5a27d5a748a871aed", "unknown"),
        ("b2dedc0ab01c17f9f20e3e6ddb62dcb6afbed0bd", "unknown"),
        ("f0f9038aa2b6d6c3436c72d147573ea2a58f0ef2", "release 1/nil"),
        ("356d97191f2b63031781ccc0e8e82f02e1995a90", "release 1/nil"),
        (
            "7ea1efbea425b62e6593f238a6c18bf25907dbd9",
            "acquire +OK/nil",
        ),
        (
            "8346c71009ae4c895ff1757a6743ec825a38b42d",
            "release true/false",
        ),
        ("86b4fe869d9cbdd1d98fbd1a558026fd419f7ce5", "extend 1/0"),
        ("8e4905cee18e7c3188d10f2b8b170e403baed34f", "release 1/0"),
        (
            "ceb2b2062e40c51a2b3963fd078bc71f11bdc65c",
            "acquire again +OK/nil if 2 is yes",
        ),
        ("78d2ca48a6dc9ef6892059792a3a0c5237733d64", "unknown"),
        ("647c65a442733a1aa440f99908d249d13b4d6c4a", "release 1/0"),
        ("d220654d7721ae520b15ed0e24a4cc97024efa08", "release 1/0"),
        ("daf86bbf8740dd3ca86733367a016364b2110627", "release 1/0"),
        ("5c252c1a0eaeeb4522fbbb982baba4e74ddfcd0d", "release 1/0"),
        ("4196d8ada32b6e55d7d1b989bfe626215b911ac7", "unknown"),
        ("18b2a577dbe847b16bebde190d69a1613d68e60e", "release 1/0"),
        ("cb0427378f700ddb2f0e9394dbb0a40bd6dba04a", "release 1/0"),
    ];
    let scripts = libraries();
    for (sha1, meaning) in expected {
        assert_eq!(said(scripts.by_sha1(sha1.as_bytes())), meaning, "{sha1}");
    }
}

/// Returns the texts of all forms, once without the semicolons that may be left out.
fn plain_texts() -> Vec<(String, Script)> {
    let texts = texts().into_iter();
    texts
        .map(|(text, script)| (text.replace(';', ""), script))
        .collect()
}

const DOCUMENTED: &str = r#"if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end"#;

#[test]
fn the_text_of_the_documentation_is_a_release() {
    assert_eq!(
        said(libraries().by_text(DOCUMENTED.as_bytes())),
        "release 1/0"
    );
}

#[test]
fn every_text_is_known_in_any_clothes() {
    type Dress = fn(&str) -> String;
    let dresses: [(&str, Dress); 14] = [
        ("as it is", str::to_owned),
        ("lines", |text| {
            format!("\n{}\n", text.replace(' ', "\n\t "))
        }),
        ("lines of Windows", |text| text.replace(' ', "\r\n    ")),
        ("old lines of Mac", |text| text.replace(' ', " \r")),
        ("no needless space", |text| {
            text.replace(", ", ",").replace(" == ", "==")
        }),
        ("double quotes", |text| text.replace('\'', "\"")),
        ("upper case", |text| {
            let words = ["get", "del", "set", "pexpire", "expire", "nx", "px", "ex"];
            words.iter().fold(text.to_owned(), |text, word| {
                let quoted = format!("'{word}'");
                text.replace(&quoted, &quoted.to_ascii_uppercase())
            })
        }),
        ("comments", |text| {
            text.replace(
                " then ",
                " then -- redis.call('incr', KEYS[1]) Schlüssel\n ",
            ) + " -- end"
        }),
        ("long comments", |text| {
            let text = text.replace(" then ", " --[[ a ] \" -- \n ]] then --[==[ ]] ]=] ]==] ");
            format!("--[=[ [[ a ]] ]=]{text}--[[]]")
        }),
        ("short comments that look long", |text| {
            format!("--[ x\n--[= x ]]\n--[=\n--\n{text}")
        }),
        ("other names", |text| {
            let names = ["token", "value", "count", "result", "lease"];
            names.iter().fold(text.to_owned(), |text, name| {
                text.replace(&format!("local {name}"), &format!("local _{name}1"))
                    .replace(&format!(" {name} "), &format!(" _{name}1 "))
                    .replace(&format!(" {name})"), &format!(" _{name}1)"))
                    .replace(&format!("return {name}"), &format!("return _{name}1"))
            })
        }),
        ("parentheses", |text| {
            text.replace("if ", "if ((").replace(" then", ")) then")
        }),
        ("pcall", |text| {
            text.replace("redis.call('del'", "redis.pcall('del'")
        }),
        ("unlink", |text| text.replace("'del'", "'unlink'")),
    ];
    let redis = Redis::start();
    let mut redis = redis.connect();
    for (text, script) in plain_texts() {
        for (dress, put_on) in dresses {
            let dressed = put_on(&text);
            let known = libraries().by_text(dressed.as_bytes());
            assert_eq!(said(known), said(Some(script)), "{dress}:\n{dressed}");
            check_script(&mut redis, &dressed, &script);
        }
    }
    for (text, script) in texts() {
        let known = libraries().by_text(text.as_bytes());
        assert_eq!(said(known), said(Some(script)), "{text}");
    }
}

/// Runs a known script in Redis.
fn check_script(redis: &mut Connection, text: &str, script: &Script) {
    let lease = (50_000 / script.unit_ms).to_string();
    let values = [&b"mine"[..], lease.as_bytes()];
    let command = [
        &[b"EVAL", text.as_bytes(), b"1", b"k"],
        &values[..script.arguments],
    ]
    .concat();
    let shape = shape(&command, &libraries()).unwrap_or_else(|| panic!("{text} has a shape"));
    check(redis, &command, &shape);
}

#[test]
fn a_known_text_does_in_redis_what_its_meaning_says() {
    let redis = Redis::start();
    let mut redis = redis.connect();
    for (text, script) in texts() {
        check_script(&mut redis, text, &script);
    }
}

/// Makes thousands of mistakes in each text. Redis says whether those that are known are one.
#[test]
fn a_text_with_a_mistake_is_not_known_unless_redis_does_the_same() {
    let redis = Redis::start();
    let mut redis = redis.connect();
    let scripts = libraries();
    let (mut tried, mut known) = (0, BTreeSet::new());
    for (text, _) in texts() {
        let mut padded = text.to_owned();
        for sign in ["(", ")", "[", "]", ",", ";", ".", "#"] {
            padded = padded.replace(sign, &format!(" {sign} "));
        }
        let words: Vec<&str> = padded.split_ascii_whitespace().collect();
        let mut try_it = |mutant: &[&str]| {
            tried += 1;
            let mutant = mutant.join(" ");
            if let Some(script) = scripts.by_text(mutant.as_bytes())
                && known.insert(mutant.clone())
            {
                check_script(&mut redis, &mutant, &script);
            }
        };
        for at in 0..words.len() {
            let (before, after) = words.split_at(at);
            try_it(&[before, &after[1..]].concat());
            try_it(&[before, &after[..1], after].concat());
            for other in [
                "not", ";", "1", "2", "'1'", "0", "-", "true", "nil", "KEYS", "ARGV", "~=", "==",
                "token", "key", "'del'", "'get'", "'set'", "else", "end", "return", "local", "(",
            ] {
                try_it(&[before, &[other], &after[1..]].concat());
                try_it(&[before, &[other], after].concat());
            }
            if after.len() > 1 {
                try_it(&[before, &[after[1], after[0]], &after[2..]].concat());
            }
        }
    }
    assert!(tried > 50_000, "{tried}");
    assert!(
        known.len() < tried / 50,
        "{} of {tried} are known",
        known.len()
    );
}

#[test]
fn near_misses_are_not_known() {
    let mistakes = [
        ("==", "~="),
        ("~=", "=="),
        ("KEYS[1]", "keys[1]"),
        ("KEYS[1]", "KEYS[2]"),
        ("KEYS[1]", "KEYS"),
        ("KEYS[1]", "'KEYS[1]'"),
        ("ARGV[1]", "ARGV[2]"),
        ("ARGV[1]", "argv[1]"),
        ("ARGV[1]", "'mine'"),
        ("return 0", "return 2"),
        ("return 0", "return '0'"),
        ("return 0", "return -1"),
        ("return 0", "return 0.0"),
        ("return 1", "return '1'"),
        ("return 1", "return 2"),
        ("return true", "return 'true'"),
        ("return false", "return 0"),
        ("'del', KEYS[1]", "'del', ARGV[1]"),
        ("'del', KEYS[1]", "'del', KEYS[1], KEYS[2]"),
        ("'del'", "'getdel'"),
        ("'del'", "del"),
        ("'get'", "'getdel'"),
        ("'get'", "'strlen'"),
        ("'pexpire'", "'pexpireat'"),
        (
            "'pexpire', KEYS[1], ARGV[2]",
            "'pexpire', KEYS[1], ARGV[2], 'gt'",
        ),
        ("redis.call('get'", "redis.pcall('get'"),
        ("redis.call('pexpire'", "redis.pcall('pexpire'"),
        ("redis", "Redis"),
        ("redis.call", "redis:call"),
        (" then ", " then redis.call('publish', KEYS[1], 'free') "),
        (" then ", " then redis.call('del', KEYS[1] .. ':count') "),
        (" then ", " or ARGV[1] == 'root' then "),
        (" then ", " -- \r redis.call('incr', 'n') \n then "),
        ("else return 0", ""),
        ("return redis", "redis"),
        ("if ", "if not "),
        ("if ", "while "),
        ("not ", ""),
        ("result = 1", "result = 2"),
        ("count + 1", "count + 2"),
        ("tostring", "tonumber"),
        ("'nx', ", ""),
        (", 'nx'", ""),
        ("'nx'", "'xx'"),
        ("'OK'", "'ok'"),
        ("'ERROR'", "'error'"),
        ("'false'", "'FALSE'"),
        ("-1", "1"),
    ];
    let mut misses = BTreeSet::new();
    for (text, _) in plain_texts() {
        for (right, wrong) in mistakes {
            for miss in [text.replace(right, wrong), text.replacen(right, wrong, 1)] {
                misses.insert(miss);
            }
        }
        for more in [
            "return 0",
            "redis.call('publish', KEYS[1], 'free')",
            "end",
            "\u{a0}",
            "\\",
        ] {
            misses.insert(format!("{text} {more}"));
            misses.insert(format!("{more} {text}"));
        }
    }
    // Some mistakes in one text make another.
    let squeezed = |text: &str| text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let texts: BTreeSet<_> = plain_texts()
        .iter()
        .map(|(text, _)| squeezed(text))
        .collect();
    misses.retain(|miss| !texts.contains(&squeezed(miss)));
    assert!(misses.len() >= 200, "{}", misses.len());
    for miss in misses {
        assert_eq!(
            said(libraries().by_text(miss.as_bytes())),
            "unknown",
            "{miss}"
        );
    }
}

#[test]
fn traps_of_the_lexer_are_not_known() {
    let release = "redis.call('del', KEYS[1])";
    let texts = [
        // What looks like a comment ends earlier, or later.
        format!("-- \r redis.call('incr', 'n') \n {DOCUMENTED}"),
        format!("--[[ ]] redis.call('incr', 'n') --]] {DOCUMENTED}"),
        format!("--[[ [[ ]] {DOCUMENTED}"),
        format!("--[==[ ]=] {DOCUMENTED}"),
        format!("- - {DOCUMENTED}"),
        // Names that mean something else.
        format!("local value = redis.call('get', KEYS[1]) if v1 == ARGV[1] then return {release} else return 0 end"),
        format!("local KEYS = redis.call('get', KEYS[1]) if KEYS == ARGV[1] then return {release} else return 0 end"),
        format!("local ARGV = redis.call('get', KEYS[1]) if ARGV == ARGV[1] then return {release} else return 0 end"),
        format!("local redis = redis.call('get', KEYS[1]) if redis == ARGV[1] then return {release} else return 0 end"),
        format!("local a = redis.call('get', KEYS[1]) local a = 1 if a == ARGV[1] then return {release} else return 0 end"),
        "local key = ARGV[1] local key = KEYS[1] if redis.call('get', key) == key then return redis.call('del', key) end return 0".to_owned(),
        // Strings that are not what they look like.
        DOCUMENTED.replace("\"del\"", "\"d\\101l\""),
        DOCUMENTED.replace("\"del\"", "[[del]]"),
        DOCUMENTED.replace("\"del\"", "'del\""),
        DOCUMENTED.replace("\"del\"", "\"del "),
        DOCUMENTED.replace("\"del\"", "\" del\""),
        // No text.
        format!("#!lua name=x\n{DOCUMENTED}"),
        format!("\u{1b}Lua{DOCUMENTED}"),
        format!("{DOCUMENTED}\0"),
        format!("{DOCUMENTED}-- \0"),
        format!("{DOCUMENTED}\""),
        String::new(),
        " ".to_owned(),
        "--".to_owned(),
        "--[[".to_owned(),
        "'".to_owned(),
        // Semicolons where the grammar has none.
        DOCUMENTED.replace(" then", "; then"),
        DOCUMENTED.replace(" then", " then;"),
        DOCUMENTED.replace("return ", "return; "),
        DOCUMENTED.replace(" end", ";; end"),
        // Parentheses that do not enclose the whole condition.
        DOCUMENTED.replace("if ", "if (").replace(" ==", ") =="),
        DOCUMENTED.replace("if ", "if (").replace(" ==", ") == (").replace(" then", ") then"),
        DOCUMENTED.replace("if ", "if ("),
    ];
    for text in texts {
        assert_eq!(
            said(libraries().by_text(text.as_bytes())),
            "unknown",
            "{text}"
        );
    }
}

#[test]
fn a_long_text_is_not_known() {
    let comment = |length: usize| format!("{DOCUMENTED}--{}", "x".repeat(length));
    let rest = SCRIPT_BYTES - DOCUMENTED.len() - 2;
    assert_eq!(
        said(libraries().by_text(comment(rest).as_bytes())),
        "release 1/0"
    );
    assert_eq!(
        said(libraries().by_text(comment(rest + 1).as_bytes())),
        "unknown"
    );
}

/// Returns the SHA1 of the n-th text that does the same, as Redis computes it.
fn taught(scripts: &Scripts, redis: &mut Connection, number: usize) -> Vec<u8> {
    let text = format!("{DOCUMENTED} -- {number}");
    assert_eq!(said(scripts.by_text(text.as_bytes())), "release 1/0");
    redis
        .ask(&[b"SCRIPT", b"LOAD", text.as_bytes()])
        .into_bytes()
}

#[test]
fn the_sha1_of_a_text_is_remembered_up_to_a_bound() {
    let redis = Redis::start();
    let mut redis = redis.connect();
    let scripts = libraries();
    for number in 0..LEARNED_SCRIPTS {
        let sha1 = taught(&scripts, &mut redis, number);
        assert_eq!(said(scripts.by_sha1(&sha1)), "release 1/0");
    }
    let first = taught(&scripts, &mut redis, 0);
    let one_more = taught(&scripts, &mut redis, LEARNED_SCRIPTS);
    assert_eq!(said(scripts.by_sha1(&one_more)), "release 1/0");
    assert_eq!(scripts.by_sha1(&first), None, "it made room");
    assert_eq!(scripts.by_text(b"return 1"), None);
}

fn named(releases: &str) -> ReleaseScripts {
    ReleaseScripts::parse(releases).unwrap()
}

#[test]
fn an_operator_names_releases_by_their_sha1() {
    let upper = "90DA91872223F85EB1376A17E3C4DF21ACE8C54B";
    let scripts = Scripts::new(&named(&format!("{upper}, {}", "0".repeat(40))));
    for sha1 in [upper, &upper.to_ascii_lowercase(), &"0".repeat(40)] {
        assert_eq!(said(scripts.by_sha1(sha1.as_bytes())), "release 1/0");
    }
    let acquires = "175897a4e379e99e79a54937be09226f76cdcfe5";
    let scripts = Scripts::new(&named(acquires));
    assert_eq!(
        said(scripts.by_sha1(acquires.as_bytes())),
        "acquire again 1/nil"
    );
    for bad in [
        "x",
        "90da",
        &"g".repeat(40),
        &"é".repeat(20),
        &"0".repeat(41),
    ] {
        let error = ReleaseScripts::parse(bad).unwrap_err();
        assert_eq!(error, ReleaseScriptsError::NotASha1(bad.to_owned()));
    }
}

#[test]
fn an_operator_names_a_bounded_number_of_releases() {
    let most = vec!["0".repeat(40); RELEASE_SCRIPTS].join(",");
    assert!(ReleaseScripts::parse(&most).is_ok());
    let error = ReleaseScripts::parse(&(most + "," + &"1".repeat(40))).unwrap_err();
    assert_eq!(error, ReleaseScriptsError::TooMany);
    assert_eq!(named(" , "), ReleaseScripts::default());
}

#[test]
fn another_list_of_releases_keeps_what_clients_taught() {
    let redis = Redis::start();
    let before = Scripts::new(&named(&"0".repeat(40)));
    let sha1 = taught(&before, &mut redis.connect(), 0);
    let after = before.renamed(&named(&"1".repeat(40)));
    assert!(after.by_sha1(&sha1).is_some());
    assert!(after.by_sha1(&[b'1'; 40]).is_some(), "it is named now");
    assert_eq!(after.by_sha1(&[b'0'; 40]), None, "it is no longer named");
    assert!(before.news(b"EVALSHA", &[b'2'; 40]).is_some());
    assert!(
        after.news(b"EVALSHA", &[b'2'; 40]).is_none(),
        "it was reported"
    );
}

#[test]
fn an_unknown_script_is_news_once() {
    let scripts = Scripts::new(&named(&"0".repeat(40)));
    assert!(scripts.news(b"EVALSHA", &[b'a'; 40]).is_some());
    assert!(
        scripts.news(b"EVALSHA", &[b'A'; 40]).is_none(),
        "the same in capitals"
    );
    assert!(
        scripts.news(b"EVALSHA", &[b'0'; 40]).is_none(),
        "it is named"
    );
    let of_redis_py = b"c3f8721cbb97f72bc19e972846bd7aaf91901658";
    assert!(
        scripts.news(b"EVALSHA", of_redis_py).is_none(),
        "it is known"
    );
    assert!(scripts.news(b"EVALSHA", b"no SHA1").is_none());
}

#[test]
fn the_memory_of_reported_scripts_is_bounded() {
    let scripts = libraries();
    let news = (0..=LEARNED_SCRIPTS).filter(|it| {
        scripts
            .news(b"EVALSHA", format!("{it:040}").as_bytes())
            .is_some()
    });
    assert_eq!(news.count(), LEARNED_SCRIPTS);
    let first = format!("{:040}", 0);
    assert!(
        scripts.news(b"EVALSHA", first.as_bytes()).is_none(),
        "it was reported"
    );
}

proptest! {
    #[test]
    fn no_bytes_make_the_lexer_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(libraries().by_text(&text), None);
    }

    #[test]
    fn no_lexemes_make_the_lexer_panic(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "--", "--[[", "--[=[", "]]", "]=]", "[", "=", "'", "\"", "\\", "\n", "\r", " ", "if", "then", "local",
                "(", ")", "end", ";", ".", "..", "~", "~=", "redis", "pcall", "'del'", "1", "1e", "x", "\0", "é",
            ]),
            0..300,
        )
    ) {
        let text = words.concat();
        let spaced = words.join(" ");
        prop_assert_eq!(libraries().by_text(text.as_bytes()), None);
        prop_assert_eq!(libraries().by_text(spaced.as_bytes()), None);
    }
}
