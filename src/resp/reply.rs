//! Where the replies of Redis begin and end, in RESP2 and RESP3, and the few facts about them that counting replies
//! needs.
//!
//! There is no stack: one counter holds the number of elements still to come. An aggregate is an element that
//! brings others; an attribute (`|`) and, inside an aggregate, a push (`>`, which Redis 6 writes there) bring
//! theirs without being an element. So nesting costs nothing.

use super::{
    ProtocolError,
    capture::Captured,
    number::{Number, short_line},
};

/// Longest text that is reported, in bytes.
pub const TEXT_BYTES: usize = 24;

/// Returns the length in bytes of the reply at the front of `input`, where it is whole and a string, a number, a
/// status or nil in Redis's own form, as nearly every reply is. None: use [`ReplyScanner`].
pub fn plain_reply(input: &[u8]) -> Option<usize> {
    /// Most bytes that are searched for the end of a line.
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

/// The scanner of one connection's replies, one after the other. What it returns about a reply holds from
/// [`ReplyStep::End`] until the next call of [`ReplyScanner::scan`].
#[derive(Debug, Clone)]
pub struct ReplyScanner {
    phase: Phase,
    /// Elements still to come, the reply itself included.
    elements: u64,
    opens: bool,
    reply: Reply,
}

/// The facts about the current reply.
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
    /// Whether the next item is the first element.
    at_first: bool,
    /// Whether each element so far is a single item, so that the counter shows which one is next.
    flat: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Before the first byte of a reply.
    Start,
    /// Before the first byte of an item.
    Item,
    /// In the text of a line, or after its CR.
    Line { part: Part, cr: bool },
    /// In the `<length>` of an item, or after its CR.
    Length {
        kind: u8,
        part: Part,
        number: Number,
        cr: bool,
    },
    /// In a string; `bytes` of it are to come.
    Bulk { part: Part, bytes: u64 },
    /// Before the CR or the LF after a string.
    AfterBulk { cr: bool },
}

/// The part of the reply that an item is.
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
    /// Creates a scanner before the first reply of a connection.
    pub const fn new() -> Self {
        Self {
            phase: Phase::Start,
            elements: 0,
            opens: false,
            reply: Reply::NONE,
        }
    }

    /// Sets whether to open arrays: the `*<n>` line of an array then counts as a reply of its own, and so does each
    /// of its elements. To be called between two replies. The reply to `EXEC` can only be read this way, since a
    /// `SUBSCRIBE` in it gives more elements than it announces.
    pub fn open_arrays(&mut self, opens: bool) {
        self.opens = opens;
    }

    /// Reads on. `input` holds the bytes that follow those consumed so far. Returns how many of them were consumed
    /// now. Stops at the end of a reply.
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

    /// Returns whether the last reply has ended and no byte of the next one was consumed.
    pub fn between_replies(&self) -> bool {
        matches!(self.phase, Phase::Start)
    }

    /// Returns the byte that the reply began with, after its attributes.
    pub fn kind(&self) -> u8 {
        self.reply.kind
    }

    /// Returns the announced length of a string or an aggregate (of a map: its pairs); -1 for nil.
    pub fn length(&self) -> Option<i64> {
        self.reply.length
    }

    /// Returns whether only the `*<n>` line of an array was read: see [`ReplyScanner::open_arrays`].
    pub fn is_opened(&self) -> bool {
        self.reply.opened
    }

    /// Returns the first element of an aggregate, where it is a string of at most [`TEXT_BYTES`].
    pub fn first(&self) -> Option<&[u8]> {
        match self.reply.first_kind {
            b'$' | b'+' | b'=' => self.reply.first.whole(),
            _ => None,
        }
    }

    /// Returns the third of three elements, where it is an integer and none is an aggregate: the number of
    /// subscriptions after Redis confirmed a `SUBSCRIBE` or `UNSUBSCRIBE`.
    pub fn count(&self) -> Option<i64> {
        match self.reply.third_kind {
            b':' if self.reply.flat => Number::of(self.reply.third.whole()?),
            _ => None,
        }
    }

    /// Returns whether the reply is an error.
    pub fn is_error(&self) -> bool {
        matches!(self.reply.kind, b'-' | b'!')
    }

    /// Returns the text of a status (`+`) of at most [`TEXT_BYTES`].
    pub fn status(&self) -> Option<&[u8]> {
        if self.reply.kind == b'+' {
            self.reply.text.whole()
        } else {
            None
        }
    }

    /// Returns the beginning of an error, up to [`TEXT_BYTES`] of it.
    pub fn error_text(&self) -> Option<&[u8]> {
        self.is_error().then(|| self.reply.text.beginning())
    }

    /// Returns the first word of an error (`NOPERM`), up to [`TEXT_BYTES`] of it.
    pub fn error_code(&self) -> Option<&[u8]> {
        self.error_text()?.split(|&byte| byte == b' ').next()
    }

    /// Returns whether the reply is nil, in any of its forms.
    pub fn is_nil(&self) -> bool {
        self.reply.kind == b'_' || self.reply.length == Some(-1)
    }

    /// Reads one piece of one phase. `input` is not empty.
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
