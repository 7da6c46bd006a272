//! Inline commands: splits a line into arguments by Redis's quoting rules (`sdssplitargs`), byte by byte, so that
//! nothing needs to be kept. `"…"` knows `\n \r \t \b \a \xHH`, `'…'` knows `\'` only, a closing quote must be
//! followed by a space or the end, and VT and FF are spaces between arguments but not at the end of a bare one.

/// A part of an argument, in the order of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    /// The next byte of the current argument.
    Byte(u8),
    /// The current argument ended; it may have had no bytes.
    End,
}

/// The position of the splitter in a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Between,
    Bare,
    Double,
    /// After `\`.
    DoubleEscape,
    /// After `\x`.
    DoubleHex,
    /// After `\x` and this hexadecimal digit.
    DoubleHexDigit(u8),
    Single,
    /// After `\`.
    SingleEscape,
    /// After a closing quote.
    Closed,
    /// The quotes do not match, whatever follows.
    Unbalanced,
}

/// A splitter of one line, without its LF.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Splitter {
    place: Place,
    /// A CR was read; it is part of the line only if no LF follows.
    cr: bool,
}

impl Splitter {
    pub(super) fn push(&mut self, byte: u8, out: &mut impl FnMut(Piece)) {
        if std::mem::take(&mut self.cr) {
            self.place = self.place.after(b'\r', out);
        }
        if byte == b'\r' {
            self.cr = true;
        } else {
            self.place = self.place.after(byte, out);
        }
    }

    /// Ends the line. Returns whether its quotes match.
    pub(super) fn end(&mut self, out: &mut impl FnMut(Piece)) -> bool {
        if self.place == Place::Bare {
            out(Piece::End);
        }
        matches!(self.place, Place::Bare | Place::Between | Place::Closed)
    }
}

impl Place {
    fn after(self, byte: u8, out: &mut impl FnMut(Piece)) -> Self {
        match (self, byte) {
            (Self::Between, _) if is_space(byte) => Self::Between,
            (Self::Between | Self::Bare, b'"') => Self::Double,
            (Self::Between | Self::Bare, b'\'') => Self::Single,
            (Self::Bare, b' ' | b'\r' | b'\t') => end(out, Self::Between),
            (Self::Between | Self::Bare, _) => add(out, byte, Self::Bare),

            (Self::Double, b'\\') => Self::DoubleEscape,
            (Self::Double, b'"') | (Self::Single, b'\'') => end(out, Self::Closed),
            (Self::Double, _) => add(out, byte, Self::Double),
            (Self::DoubleEscape, b'x') => Self::DoubleHex,
            (Self::DoubleEscape, _) => add(out, escaped(byte), Self::Double),
            (Self::DoubleHex, _) if byte.is_ascii_hexdigit() => Self::DoubleHexDigit(byte),
            // Not hexadecimal after all: `\x` is an `x`, and what follows stands for itself.
            (Self::DoubleHex, _) => add(out, b'x', Self::Double).after(byte, out),
            (Self::DoubleHexDigit(high), _) if byte.is_ascii_hexdigit() => {
                add(out, hex(high) << 4 | hex(byte), Self::Double)
            }
            (Self::DoubleHexDigit(high), _) => {
                out(Piece::Byte(b'x'));
                add(out, high, Self::Double).after(byte, out)
            }

            (Self::Single, b'\\') => Self::SingleEscape,
            (Self::Single, _) => add(out, byte, Self::Single),
            (Self::SingleEscape, b'\'') => add(out, b'\'', Self::Single),
            (Self::SingleEscape, _) => add(out, b'\\', Self::Single).after(byte, out),

            (Self::Closed, _) if is_space(byte) => Self::Between,
            (Self::Closed | Self::Unbalanced, _) => Self::Unbalanced,
        }
    }
}

fn add(out: &mut impl FnMut(Piece), byte: u8, then: Place) -> Place {
    out(Piece::Byte(byte));
    then
}

fn end(out: &mut impl FnMut(Piece), then: Place) -> Place {
    out(Piece::End);
    then
}

/// Returns whether this is C's `isspace`; LF does not occur within a line.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
}

fn escaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
