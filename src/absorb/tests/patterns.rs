use super::*;

fn parsed(list: &str) -> KeyPatterns {
    KeyPatterns::parse(list).unwrap_or_else(|error| panic!("{list}: {error}"))
}

#[test]
fn a_key_has_to_match_one_of_the_patterns() {
    let patterns = parsed("lock:*, mutex:?,job[12]");
    for key in ["lock:", "lock:a,b", "mutex:a", "job1", "job2"] {
        assert!(patterns.matches(key.as_bytes()), "{key}");
    }
    for key in [
        "", "lock", "mutex:", "mutex:ab", "job3", "xlock:a", " lock:", "a",
    ] {
        assert!(!patterns.matches(key.as_bytes()), "{key}");
    }
}

#[test]
fn no_patterns_match_no_key() {
    for list in ["", "  "] {
        let patterns = parsed(list);
        assert!(patterns.is_empty());
        assert!(!patterns.matches(b"") && !patterns.matches(b"a"));
    }
    assert!(!parsed("a").is_empty());
}

#[test]
fn a_comma_in_brackets_or_escaped_is_a_comma() {
    for list in ["a[,]b", "a[x,]b", "a\\,b", "a[^x,y]b,a[,]b"] {
        assert!(parsed(list).matches(b"a,b"), "{list}");
        assert!(!parsed(list).matches(b"a"), "{list}");
    }
    assert!(
        parsed("a\\[,b").matches(b"a["),
        "an escaped bracket opens none"
    );
    assert!(parsed("a],b").matches(b"a]"), "it closes none");
}

#[test]
fn a_literal_beginning_may_be_escaped() {
    assert!(parsed("\\*a*").matches(b"*a1"));
    assert!(!parsed("\\*a*").matches(b"xa1"));
}

#[test]
fn an_error_says_what_is_allowed() {
    let error = |list: &str| KeyPatterns::parse(list).unwrap_err();
    for list in ["*", "?a", "[a]b", "a,*", "*lock"] {
        assert!(
            matches!(error(list), PatternError::NoBeginning(_)),
            "{list}"
        );
    }
    for list in ["a,", ",a", "a,,b", ","] {
        assert_eq!(error(list), PatternError::Empty, "{list}");
    }
    for list in ["a[b", "a,b[,c", "a[b\\]"] {
        assert!(matches!(error(list), PatternError::Unclosed(_)), "{list}");
    }
    assert_eq!(
        error("*").to_string(),
        "patterns that begin with what the names of all their locks begin with, such as \"lock:*\"; \"*\" does not"
    );
    let most = vec!["a"; 64].join(",");
    assert!(parsed(&most).matches(b"a"));
    assert_eq!(error(&(most + ",a")), PatternError::TooMany);
}

#[test]
fn patterns_begin_with_a_prefix_where_each_of_them_names_all_of_it() {
    assert!(parsed("p:a*,p:*,p:[12],p\\:b").begin_with(b"p:"));
    for list in ["p:a*,b*", "p*", "p?a", "[p]:a", "p[:]a"] {
        let patterns = KeyPatterns::parse(list);
        assert!(
            !patterns.is_ok_and(|patterns| patterns.begin_with(b"p:")),
            "{list}"
        );
    }
    assert!(parsed("a,b*").begin_with(b""));
    assert!(parsed("").begin_with(b"p:"), "there are none");
}
