//! The keys that are locks: glob patterns, separated by commas.

use thiserror::Error;

use crate::{command::glob::Pattern, limits::KEY_PATTERNS};

/// A list of patterns of keys, none of which matches keys of any beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPatterns(Vec<(Vec<u8>, Pattern)>);

/// The error in a list of patterns. Its text is what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    /// There is nothing between two commas, or beside one.
    #[error("patterns separated by commas, none of them empty; a comma in a pattern is [,]")]
    Empty,
    /// A pattern begins with a wildcard.
    #[error(
        "patterns that begin with what the names of all their locks begin with, such as \"lock:*\"; {0:?} does not"
    )]
    NoBeginning(String),
    /// A `[` has no `]`.
    #[error("a ] for each [, or \\[ for the character; {0:?} lacks one")]
    Unclosed(String),
    /// There are more than [`KEY_PATTERNS`].
    #[error("at most {KEY_PATTERNS} patterns")]
    TooMany,
}

impl KeyPatterns {
    /// Parses a list: patterns as of `KEYS`, separated by commas, with spaces around them or not. A comma in `[]`,
    /// or after a `\`, is part of its pattern. An empty list matches no key.
    ///
    /// # Errors
    /// A pattern that may match any key or is not finished, or too many of them.
    pub fn parse(list: &str) -> Result<Self, PatternError> {
        let mut patterns = Vec::new();
        if list.trim().is_empty() {
            return Ok(Self(patterns));
        }
        let mut rest = Some(list);
        while let Some(list) = rest {
            let end = end_of_pattern(list)?;
            let text = list[..end].trim();
            rest = list.get(end + 1..);
            if text.is_empty() {
                return Err(PatternError::Empty);
            }
            let pattern = Pattern::new(text.as_bytes());
            let beginning = pattern.beginning();
            if beginning.is_empty() {
                return Err(PatternError::NoBeginning(text.to_owned()));
            }
            patterns.push((beginning, pattern));
        }
        if patterns.len() > KEY_PATTERNS {
            return Err(PatternError::TooMany);
        }
        Ok(Self(patterns))
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether all keys that they match begin with this prefix.
    pub fn begin_with(&self, prefix: &[u8]) -> bool {
        let mut patterns = self.0.iter();
        patterns.all(|(beginning, _)| beginning.starts_with(prefix))
    }

    /// Returns whether one of them matches the key. Nearly all keys differ from each in its beginning.
    pub fn matches(&self, key: &[u8]) -> bool {
        let mut patterns = self.0.iter();
        patterns.any(|(beginning, pattern)| key.starts_with(beginning) && pattern.matches(key))
    }
}

/// Returns the place of the comma behind the first pattern, or of the end of the list.
fn end_of_pattern(list: &str) -> Result<usize, PatternError> {
    let (mut in_class, mut escaped) = (false, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'[' => in_class = true,
            b']' => in_class = false,
            b',' if !in_class => return Ok(at),
            _ => {}
        }
    }
    if in_class {
        Err(PatternError::Unclosed(list.trim().to_owned()))
    } else {
        Ok(list.len())
    }
}
