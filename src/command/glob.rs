//! Redis's glob patterns (`KEYS`, `SCAN … MATCH`, here `LOCKS MATCH`), on bytes. Pure.
//!
//! `*` any bytes, `?` one byte, `[abc]` `[a-z]` `[^a]` one of a class, `\x` the byte x. An unfinished
//! construct is literal or ends with the pattern, as in Redis; the tests compare with it.
//!
//! After a mismatch the matcher goes back to the last `*` only and lets it take one byte more. It never
//! retries an earlier `*`: the last one can take whatever that one could. A pattern is parsed once for all
//! names. So a name costs at most a quarter of the square of its length, without recursion or memory, however
//! long the pattern is.

use std::ffi::c_char;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Part>,
    /// Length of the shortest name that it can match, in bytes.
    least: usize,
    /// Whether it matches the empty name. In Redis only the empty pattern and `*` do, not even `**`.
    takes_empty: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Any bytes.
    Star,
    /// Any one byte.
    Any,
    /// This byte.
    Byte(u8),
    /// One of these bytes.
    Class(Box<[bool; 256]>),
}

impl Pattern {
    /// Parses a pattern. Every byte string is a valid one.
    pub fn new(pattern: &[u8]) -> Self {
        let mut parts = Vec::new();
        let mut rest = pattern;
        while let Some((first, after)) = rest.split_first() {
            let part;
            (part, rest) = match (first, after) {
                (b'*', after) => (Part::Star, after),
                (b'?', after) => (Part::Any, after),
                (b'[', after) => class(after),
                (b'\\', [literal, after @ ..]) => (Part::Byte(*literal), after),
                (literal, after) => (Part::Byte(*literal), after),
            };
            parts.push(part);
        }
        let is_byte = |part: &&Part| !matches!(part, Part::Star);
        Self {
            least: parts.iter().filter(is_byte).count(),
            parts,
            takes_empty: matches!(pattern, b"" | b"*"),
        }
    }

    /// Returns the bytes that every matching name begins with.
    pub fn beginning(&self) -> Vec<u8> {
        let parts = self.parts.iter();
        let literal = parts.map_while(|part| match part {
            Part::Byte(literal) => Some(*literal),
            _ => None,
        });
        literal.collect()
    }

    /// Returns whether the whole `name` matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        if name.is_empty() {
            return self.takes_empty;
        }
        if name.len() < self.least {
            return false;
        }
        let (mut at, mut taken) = (0, 0);
        // The place after the pattern's last `*`, and how many bytes of the name precede the match of that
        // place.
        let mut last_star: Option<(usize, usize)> = None;
        while let Some(byte) = name.get(taken) {
            let part = self.parts.get(at);
            if let Some(Part::Star) = part {
                at += 1;
                last_star = Some((at, taken));
            } else if part.is_some_and(|part| part.takes(*byte)) {
                at += 1;
                taken += 1;
            } else if let Some((after, before)) = last_star {
                at = after;
                taken = before + 1;
                last_star = Some((after, taken));
            } else {
                return false;
            }
        }
        let rest = self.parts.get(at..).unwrap_or_default();
        rest.iter().all(|part| matches!(part, Part::Star))
    }
}

impl Part {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Star | Self::Any => true,
            Self::Byte(literal) => *literal == byte,
            Self::Class(class) => class.get(usize::from(byte)).is_some_and(|takes| *takes),
        }
    }
}

/// Parses the class after a `[`. Returns it with the rest of the pattern. Without its `]` a class extends to
/// the end of the pattern.
fn class(class: &[u8]) -> (Part, &[u8]) {
    let (negated, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut takes = Box::new([negated; 256]);
    let mut add = |one: u8, other: u8| {
        for (byte, takes) in (0..=u8::MAX).zip(takes.iter_mut()) {
            if between(one, other, byte) {
                *takes = !negated;
            }
        }
    };
    loop {
        match rest {
            [b'\\', literal, after @ ..] => {
                add(*literal, *literal);
                rest = after;
            }
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [] => break,
            [one, b'-', other, after @ ..] => {
                add(*one, *other);
                rest = after;
            }
            [literal, after @ ..] => {
                add(*literal, *literal);
                rest = after;
            }
        }
    }
    (Part::Class(takes), rest)
}

/// Returns whether a byte is in a range. Redis compares the ends of a range as C's `char`, whose sign depends
/// on the machine; so does this.
fn between(one: u8, other: u8, byte: u8) -> bool {
    let [one, other, byte] = [one as c_char, other as c_char, byte as c_char];
    (one.min(other)..=one.max(other)).contains(&byte)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::{Redis, Value};

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
            let read = Pattern::new(pattern);
            let ours: BTreeSet<Vec<u8>> = names
                .iter()
                .filter(|name| read.matches(name))
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
        assert!(Pattern::new(&pattern).matches(&name));
        // With backtracking to every star this would take longer than the age of the universe.
        pattern.push(b'b');
        assert!(!Pattern::new(&pattern).matches(&name));
    }

    /// Parsing the class for each byte of each name would read every byte of the class 100 million times.
    #[test]
    fn a_long_class_is_read_once() {
        let class = [b"*[", &b"b".repeat(15_000)[..], b"]"].concat();
        let pattern = Pattern::new(&class);
        let name = vec![b'a'; 1_000];
        assert!((0..100_000).all(|_| !pattern.matches(&name)));
    }

    /// Returns all words of at most `longest` letters, including the empty one.
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
