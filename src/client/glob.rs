//! Redis's patterns (`KEYS`, `SCAN … MATCH`, here `LOCKS MATCH`), on bytes. Pure.
//!
//! `*` any bytes, `?` one byte, `[abc]` `[a-z]` `[^a]` one of a class, `\x` the byte x. Whatever is
//! unfinished means itself or ends with the pattern, as in Redis; the tests compare with it.
//!
//! A mismatch goes back to the last `*` only and lets it take one byte more. An earlier one need
//! never be tried again: whatever it could take, the last one can take as well. So the cost is at
//! most the product of both lengths, without recursion or memory.

use std::ffi::c_char;

/// Whether the whole `name` matches the `pattern`.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.is_empty() {
        // Redis matches the empty name with nothing else, not even with `**`.
        return pattern.is_empty() || pattern == b"*";
    }
    let (mut at, mut taken) = (0, 0);
    // Where the pattern goes on after its last `*`, and how much of the name comes before that.
    let mut last_star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(taken) {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            last_star = Some((at, taken));
        } else if let Some(width) = one_byte(pattern.get(at..).unwrap_or_default(), *byte) {
            at += width;
            taken += 1;
        } else if let Some((after, before)) = last_star {
            at = after;
            taken = before + 1;
            last_star = Some((after, taken));
        } else {
            return false;
        }
    }
    pattern.iter().skip(at).all(|rest| *rest == b'*')
}

/// How many bytes of the pattern stand for this byte; none where they do not.
fn one_byte(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => one_of(class, byte).map(|width| width + 1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// The same for what follows a `[`. Without its `]` a class goes to the end of the pattern.
fn one_of(class: &[u8], byte: u8) -> Option<usize> {
    let (negated, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    loop {
        match rest {
            [b'\\', literal, after @ ..] => {
                found |= *literal == byte;
                rest = after;
            }
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [] => break,
            [one, b'-', other, after @ ..] => {
                found |= between(*one, *other, byte);
                rest = after;
            }
            [literal, after @ ..] => {
                found |= *literal == byte;
                rest = after;
            }
        }
    }
    (found != negated).then_some(class.len() - rest.len())
}

/// Redis compares the ends of a range as C's `char`, whose sign depends on the machine; so does this.
fn between(one: u8, other: u8, byte: u8) -> bool {
    let [one, other, byte] = [one as c_char, other as c_char, byte as c_char];
    (one.min(other)..=one.max(other)).contains(&byte)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::client::testing::{Redis, Value};

    #[test]
    fn agrees_with_redis_on_every_short_pattern() {
        let mut names = words(b"ab]-^\\*?", 3);
        names.extend([
            b"lock:order:1".to_vec(),
            vec![0xff],
            vec![0x80, 0x7f],
            vec![0],
        ]);
        let mut patterns = words(b"ab*?[]^-\\", 4);
        patterns.extend(
            [
                &b"lock:*"[..],
                b"lock:*:?",
                b"*:*:*",
                b"*[0-9]",
                b"*[^0-9]",
                b"l[!o]ck*",
                b"[a-",
                b"[z-a]",
                b"[^",
                b"[\\]]",
                b"[\\",
                b"[a-\\]",
                b"[a-\\]]",
                b"[]a]",
                b"[^]a]",
                b"[a-b-]",
                b"**?**?**",
                b"\\*\\?\\[",
                b"[\x00-\xff]",
                b"[\x80-\xff]",
                b"[a-\xff]",
                b"[^\x80-\xff]?",
                b"\xff",
                b"\x00",
                b"\\\xff",
                b"*\x7f",
            ]
            .map(<[u8]>::to_vec),
        );
        let redis = Redis::start();
        let mut client = redis.connect();
        for name in &names {
            client.ask(&[b"SET", name, b"x"]);
        }
        for pattern in &patterns {
            let theirs: BTreeSet<Vec<u8>> = match client.ask(&[b"KEYS", pattern]) {
                Value::Array(found) => found.into_iter().map(Value::into_bytes).collect(),
                other => panic!("KEYS said {other:?}"),
            };
            let ours: BTreeSet<Vec<u8>> = names
                .iter()
                .filter(|name| matches(pattern, name))
                .cloned()
                .collect();
            assert_eq!(
                ours,
                theirs,
                "pattern {:?}",
                pattern.escape_ascii().to_string()
            );
        }
    }

    #[test]
    fn many_stars_cost_no_more_than_the_product_of_the_lengths() {
        let name = vec![b'a'; 1_024];
        let mut pattern = b"*a".repeat(500);
        assert!(matches(&pattern, &name));
        // With a return to every star this would take longer than the universe has been there.
        pattern.push(b'b');
        assert!(!matches(&pattern, &name));
    }

    /// All words of at most `longest` letters, the empty one too.
    fn words(letters: &[u8], longest: usize) -> Vec<Vec<u8>> {
        let mut all = vec![vec![]];
        let mut start = 0;
        for _ in 0..longest {
            let end = all.len();
            for index in start..end {
                for letter in letters {
                    let mut word = all[index].clone();
                    word.push(*letter);
                    all.push(word);
                }
            }
            start = end;
        }
        all
    }
}
