//! Where the replies of Redis begin and end, in RESP2 and RESP3, and the little of them that the
//! counting of replies needs.
//!
//! There is no stack: one counter says how many elements are still to come. An aggregate is an
//! element that brings others; an attribute (`|`) and, inside an aggregate, a push (`>`, Redis 6
//! writes them there) bring theirs without being an element. So nesting costs nothing.

use super::{
    ProtocolError,
    capture::Captured,
    number::{Number, short_line},
};

/// Longest text that is told, in bytes.
pub const TEXT_BYTES: usize = 24;

/// The bytes of a reply at the front of `input`, where it is whole, and a string, a number, a status or
/// nil, in the form that Redis gives it: what nearly every reply is. None: [`ReplyScanner`] tells.
pub fn plain_reply(input: &[u8]) -> Option<usize> {
    /// Longest line of such a reply that is looked for, in bytes.
    const LINE: usize = 64;
    match input.first()? {
        b'+' | b':' => {
            let cr = input.iter().take(LINE).position(|&byte| byte == b'\r')?;
            (input.get(cr + 1) == Some(&b'\n')).then_some(cr + 2)
        }
        b'$' if input.starts_with(b"$-1\r\n") => Some(5),
        b'$' => {
            let (length, line) = short_line(b'$', input)?;
            let end = line + length;
            let ends = input[line - 1] == b'\n' && input.get(end..end + 2)? == b"\r\n";
            ends.then_some(end + 2)
        }
        b'_' => input.starts_with(b"_\r\n").then_some(3),
        _ => None,
    }
}

/// How far a reply was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyStep {
    /// Everything was consumed, and the reply goes on.
    More,
    /// The reply ends here.
    End,
}

/// Reads the replies of one connection, one after the other. What it tells of a reply holds from
/// [`ReplyStep::End`] until the next call of [`ReplyScanner::scan`].
#[derive(Debug, Clone)]
pub struct ReplyScanner {
    phase: Phase,
    /// Elements still to come, the reply itself included.
    elements: u64,
    opens: bool,
    reply: Reply,
}

/// What is known of the current reply.
#[derive(Debug, Clone)]
struct Reply {
    kind: u8,
    length: Option<i64>,
    opened: bool,
    /// The text of a line.
    text: Captured<TEXT_BYTES>,
    first_kind: u8,
    first: Captured<TEXT_BYTES>,
    third_kind: u8,
    third: Captured<TEXT_BYTES>,
    /// The next item is the first element.
    at_first: bool,
    /// Each element so far is an item, so that the counter tells which one is next.
    flat: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Before the first byte of a reply.
    Start,
    /// Before the first byte of an item.
    Item,
    /// In the text of a line; after its CR.
    Line { part: Part, cr: bool },
    /// In the `<length>` of an item; after its CR.
    Length {
        kind: u8,
        part: Part,
        number: Number,
        cr: bool,
    },
    /// In a string of which `bytes` are to come.
    Bulk { part: Part, bytes: u64 },
    /// Before the CR or the LF after a string.
    AfterBulk { cr: bool },
}

/// Which part of the reply an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Third,
    Other,
}

type Stepped = Result<usize, ProtocolError>;

impl Default for ReplyScanner {
    fn default() -> Self {
        Self::new()
    }
}

impl Reply {
    const NONE: Self = Self {
        kind: 0,
        length: None,
        opened: false,
        text: Captured::EMPTY,
        first_kind: 0,
        first: Captured::EMPTY,
        third_kind: 0,
        third: Captured::EMPTY,
        at_first: false,
        flat: true,
    };

    fn capture(&mut self, part: Part, bytes: &[u8]) {
        match part {
            Part::Whole => self.text.push(bytes),
            Part::First => self.first.push(bytes),
            Part::Third => self.third.push(bytes),
            Part::Other => {}
        }
    }
}

impl ReplyScanner {
    /// A scanner before the first reply of a connection.
    pub const fn new() -> Self {
        Self {
            phase: Phase::Start,
            elements: 0,
            opens: false,
            reply: Reply::NONE,
        }
    }

    /// Whether an array is to be opened: its `*<n>` line then counts as a reply of its own, and so
    /// does each of its elements. To be set between two replies. The reply to `EXEC` can only be
    /// read like this, since a `SUBSCRIBE` in it gives more elements than it announces.
    pub fn open_arrays(&mut self, opens: bool) {
        self.opens = opens;
    }

    /// Reads on. `input` holds what follows the bytes consumed so far; returns how many of them
    /// were consumed now. Stops at the end of a reply.
    ///
    /// # Errors
    /// This is not the Redis protocol. Nothing can be read after that.
    pub fn scan(&mut self, input: &[u8]) -> (usize, Result<ReplyStep, ProtocolError>) {
        let mut at = 0;
        while at < input.len() {
            match self.step(&input[at..]) {
                Ok(consumed) => at += consumed,
                Err(error) => return (at, Err(error)),
            }
            if self.between_replies() {
                return (at, Ok(ReplyStep::End));
            }
        }
        (at, Ok(ReplyStep::More))
    }

    /// Whether the last reply has ended and no byte of the next one was consumed.
    pub fn between_replies(&self) -> bool {
        matches!(self.phase, Phase::Start)
    }

    /// The byte that the reply began with, after its attributes.
    pub fn kind(&self) -> u8 {
        self.reply.kind
    }

    /// The announced length of a string or an aggregate (of a map: its pairs); -1 for nil.
    pub fn length(&self) -> Option<i64> {
        self.reply.length
    }

    /// Only the `*<n>` line of an array was read: [`ReplyScanner::open_arrays`].
    pub fn is_opened(&self) -> bool {
        self.reply.opened
    }

    /// The first element of an aggregate, where it is a string of at most [`TEXT_BYTES`].
    pub fn first(&self) -> Option<&[u8]> {
        match self.reply.first_kind {
            b'$' | b'+' | b'=' => self.reply.first.whole(),
            _ => None,
        }
    }

    /// The third of three elements, where it is an integer and none is an aggregate: how many
    /// subscriptions there are after a `SUBSCRIBE` or `UNSUBSCRIBE` was confirmed.
    pub fn count(&self) -> Option<i64> {
        match self.reply.third_kind {
            b':' if self.reply.flat => Number::of(self.reply.third.whole()?),
            _ => None,
        }
    }

    /// Whether the reply is an error.
    pub fn is_error(&self) -> bool {
        matches!(self.reply.kind, b'-' | b'!')
    }

    /// The text of a status (`+`) of at most [`TEXT_BYTES`].
    pub fn status(&self) -> Option<&[u8]> {
        if self.reply.kind == b'+' {
            self.reply.text.whole()
        } else {
            None
        }
    }

    /// The first word of an error (`NOPERM`), up to [`TEXT_BYTES`] of it.
    pub fn error_code(&self) -> Option<&[u8]> {
        if !self.is_error() {
            return None;
        }
        self.reply
            .text
            .beginning()
            .split(|&byte| byte == b' ')
            .next()
    }

    /// Whether the reply is nil, in any of its forms.
    pub fn is_nil(&self) -> bool {
        self.reply.kind == b'_' || self.reply.length == Some(-1)
    }

    /// One piece of one phase. `input` is not empty.
    fn step(&mut self, input: &[u8]) -> Stepped {
        match self.phase {
            Phase::Start => {
                self.elements = 1;
                self.reply = Reply::NONE;
                self.phase = Phase::Item;
                Ok(0)
            }
            Phase::Item => self.item(input[0]),
            Phase::Line { part, cr } => Ok(self.line(part, cr, input)),
            Phase::Length {
                kind,
                part,
                number,
                cr,
            } => self.length_byte(kind, part, number, cr, input[0]),
            Phase::Bulk { part, bytes } => Ok(self.bulk(part, bytes, input)),
            Phase::AfterBulk { cr } => self.after_bulk(cr, input[0]),
        }
    }

    fn item(&mut self, kind: u8) -> Stepped {
        let part = self.part(kind);
        self.phase = match kind {
            b'+' | b'-' | b':' | b',' | b'_' | b'#' | b'(' => Phase::Line { part, cr: false },
            b'$' | b'!' | b'=' | b'*' | b'~' | b'%' | b'|' | b'>' => Phase::Length {
                kind,
                part,
                number: Number::default(),
                cr: false,
            },
            other => return Err(ProtocolError::ReplyKind(other)),
        };
        Ok(1)
    }

    fn part(&mut self, kind: u8) -> Part {
        let reply = &mut self.reply;
        if reply.kind == 0 {
            // Within an attribute before the reply the counter is above one.
            if self.elements == 1 && kind != b'|' {
                reply.kind = kind;
                return Part::Whole;
            }
            return Part::Other;
        }
        if matches!(kind, b'*' | b'~' | b'%' | b'|' | b'>') {
            reply.flat = false;
        }
        if std::mem::take(&mut reply.at_first) {
            reply.first_kind = kind;
            return Part::First;
        }
        if reply.flat && reply.length == Some(3) && self.elements == 1 {
            reply.third_kind = kind;
            return Part::Third;
        }
        Part::Other
    }

    fn line(&mut self, part: Part, cr: bool, input: &[u8]) -> usize {
        if cr && input[0] == b'\n' {
            self.item_ended();
            return 1;
        }
        if cr {
            // A CR alone is part of the text.
            self.reply.capture(part, b"\r");
        }
        let text = input.iter().position(|&byte| byte == b'\r');
        self.reply
            .capture(part, &input[..text.unwrap_or(input.len())]);
        self.phase = Phase::Line {
            part,
            cr: text.is_some(),
        };
        text.map_or(input.len(), |text| text + 1)
    }

    fn length_byte(
        &mut self,
        kind: u8,
        part: Part,
        mut number: Number,
        cr: bool,
        byte: u8,
    ) -> Stepped {
        match (cr, byte) {
            (true, b'\n') => self.length_known(
                kind,
                part,
                number.value().ok_or(ProtocolError::ReplyLength)?,
            )?,
            (true, _) => return Err(ProtocolError::ReplyEnd),
            (false, b'\r') => {
                self.phase = Phase::Length {
                    kind,
                    part,
                    number,
                    cr: true,
                }
            }
            (false, _) => {
                number.push(byte);
                self.phase = Phase::Length {
                    kind,
                    part,
                    number,
                    cr,
                };
            }
        }
        Ok(1)
    }

    fn length_known(&mut self, kind: u8, part: Part, length: i64) -> Result<(), ProtocolError> {
        if part == Part::Whole {
            self.reply.length = Some(length);
        }
        let Ok(count) = u64::try_from(length) else {
            if length != -1 || !matches!(kind, b'$' | b'*') {
                return Err(ProtocolError::ReplyLength);
            }
            if part == Part::First {
                self.reply.first_kind = b'_';
            }
            self.item_ended();
            return Ok(());
        };
        if matches!(kind, b'$' | b'!' | b'=') {
            self.phase = if count == 0 {
                Phase::AfterBulk { cr: false }
            } else {
                Phase::Bulk { part, bytes: count }
            };
            return Ok(());
        }
        self.aggregate(kind, part, count)
    }

    fn aggregate(&mut self, kind: u8, part: Part, count: u64) -> Result<(), ProtocolError> {
        if part == Part::Whole {
            if kind == b'*' && self.opens {
                self.reply.opened = true;
                self.phase = Phase::Start;
                return Ok(());
            }
            self.reply.at_first = true;
        }
        let brings = match kind {
            b'%' | b'|' => count.checked_mul(2),
            _ => Some(count),
        };
        let is_element = match kind {
            b'|' => false,
            b'>' => part == Part::Whole,
            _ => true,
        };
        self.elements = brings
            .and_then(|brings| self.elements.checked_add(brings))
            .ok_or(ProtocolError::ReplyLength)?;
        if is_element {
            self.item_ended();
        } else {
            self.phase = Phase::Item;
        }
        Ok(())
    }

    fn bulk(&mut self, part: Part, bytes: u64, input: &[u8]) -> usize {
        let here = usize::try_from(bytes).map_or(input.len(), |bytes| bytes.min(input.len()));
        self.reply.capture(part, &input[..here]);
        let bytes = bytes - here as u64;
        self.phase = if bytes == 0 {
            Phase::AfterBulk { cr: false }
        } else {
            Phase::Bulk { part, bytes }
        };
        here
    }

    fn after_bulk(&mut self, cr: bool, byte: u8) -> Stepped {
        match (cr, byte) {
            (false, b'\r') => self.phase = Phase::AfterBulk { cr: true },
            (true, b'\n') => self.item_ended(),
            _ => return Err(ProtocolError::ReplyEnd),
        }
        Ok(1)
    }

    fn item_ended(&mut self) {
        self.elements -= 1;
        self.phase = if self.elements == 0 {
            Phase::Start
        } else {
            Phase::Item
        };
    }
}

#[cfg(test)]
mod tests;
