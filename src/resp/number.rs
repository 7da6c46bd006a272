//! Numbers as Redis reads them in the protocol (`string2ll`), byte by byte: no sign but a `-`, no space, no leading
//! zero, no overflow. A more lenient reader sees frames where Redis sees none.

use super::LINE_BYTES;

/// A number that was read in part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Number {
    #[default]
    Empty,
    Minus,
    Zero,
    Digits {
        negative: bool,
        magnitude: u64,
    },
    Bad,
}

impl Number {
    pub(super) fn push(&mut self, byte: u8) {
        let digit = u64::from(byte.wrapping_sub(b'0'));
        *self = match (*self, byte) {
            (Self::Empty, b'-') => Self::Minus,
            (Self::Empty, b'0') => Self::Zero,
            (Self::Empty, b'1'..=b'9') => Self::Digits {
                negative: false,
                magnitude: digit,
            },
            (Self::Minus, b'1'..=b'9') => Self::Digits {
                negative: true,
                magnitude: digit,
            },
            (
                Self::Digits {
                    negative,
                    magnitude,
                },
                b'0'..=b'9',
            ) => {
                match magnitude
                    .checked_mul(10)
                    .and_then(|tens| tens.checked_add(digit))
                {
                    Some(magnitude) => Self::Digits {
                        negative,
                        magnitude,
                    },
                    None => Self::Bad,
                }
            }
            _ => Self::Bad,
        };
    }

    pub(super) fn value(self) -> Option<i64> {
        match self {
            Self::Zero => Some(0),
            Self::Digits {
                negative: false,
                magnitude,
            } => i64::try_from(magnitude).ok(),
            Self::Digits {
                negative: true,
                magnitude,
            } => 0i64.checked_sub_unsigned(magnitude),
            Self::Empty | Self::Minus | Self::Bad => None,
        }
    }

    /// Returns the number that a whole string is.
    pub(super) fn of(text: &[u8]) -> Option<i64> {
        let mut number = Self::default();
        text.iter().for_each(|&byte| number.push(byte));
        number.value()
    }
}

/// A `*<count>` or `$<length>` line of a request. It ends with the byte after the first CR, whatever that byte is:
/// Redis does not check it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CountLine {
    /// The first byte of the line; CR where the line is empty.
    pub(super) first: u8,
    bytes: u32,
    pub(super) number: Number,
    cr: bool,
}

/// The state of a line after one more byte.
pub(super) enum Line {
    More,
    Whole,
    /// Redis never finds its end: it is too long, or has a NUL, where Redis's search stops.
    Endless,
}

impl CountLine {
    pub(super) fn push(&mut self, byte: u8) -> Line {
        if self.cr {
            return Line::Whole;
        }
        if self.bytes == 0 {
            self.first = byte;
        }
        match byte {
            b'\r' => self.cr = true,
            0 => return Line::Endless,
            _ if self.bytes as usize == LINE_BYTES => return Line::Endless,
            _ if self.bytes > 0 => self.number.push(byte),
            _ => {}
        }
        self.bytes += 1;
        Line::More
    }
}

/// Reads a whole line of this kind with a small number in its usual form. Returns the number, and the length of the
/// line in bytes. None: the line must be read byte by byte. (The byte after CR is not checked.)
pub(super) fn short_line(kind: u8, input: &[u8]) -> Option<(usize, usize)> {
    /// A number of this many digits is far from any bound on a frame.
    const DIGITS: usize = 8;
    let digit = |byte: u8| usize::from(byte - b'0');
    match *input {
        [first, a @ b'0'..=b'9', b'\r', _, ..] if first == kind => return Some((digit(a), 4)),
        [first, a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', _, ..] if first == kind => {
            return Some((digit(a) * 10 + digit(b), 5));
        }
        _ => {}
    }
    let (&first, rest) = input.split_first()?;
    let mut value = 0;
    for (digits, &byte) in rest.iter().take(DIGITS + 1).enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + digit(byte),
            b'\r' if first == kind && digits > 0 && digits + 1 < rest.len() => {
                let canonical = rest[0] != b'0' || digits == 1;
                return canonical.then_some((value, digits + 3));
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strictly_as_redis_reads_them() {
        for good in [0, 1, -1, 10, i64::MAX, i64::MIN, i64::MAX - 9] {
            assert_eq!(Number::of(good.to_string().as_bytes()), Some(good));
        }
        for bad in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            " 1",
            "1 ",
            "1a",
            "0x1",
            "--1",
            "1-",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "99999999999999999999999999",
        ] {
            assert_eq!(Number::of(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
