//! Where the requests of a client begin and end, and their names.
//!
//! Redis accepts more than the protocol says, and a proxy that reads a frame differently lets clients smuggle
//! commands past it. So this scanner follows Redis 7 (`networking.c`): it ignores the byte after a CR and the two
//! bytes after a bulk; `*0`, `*-1` and blank lines are no command and get no reply; anything that does not begin
//! with `*` is an inline command up to its LF. Where Redis's reading depends on how the bytes happen to arrive
//! (lines beyond 64 KB, NULs in a line), this scanner refuses.

use bytes::{Bytes, BytesMut};

use super::{
    ARGUMENTS, BULK_BYTES, LINE_BYTES, ProtocolError, STRANGERS_ARGUMENTS, STRANGERS_BULK_BYTES,
    capture::Captured,
    inline::{Piece, Splitter},
    number::{CountLine, Line, short_line},
};

/// Longest name of a command that is reported, in bytes.
pub const NAME_BYTES: usize = 24;

/// Longest argument that is reported, in bytes.
pub const ARGUMENT_BYTES: usize = 32;

/// How far a frame was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Everything was consumed, and the frame goes on.
    More,
    /// The name and the number of arguments are known. Reported once for each command, before its end.
    Named,
    /// The command ends here.
    End,
    /// A frame without a command ends here: Redis does nothing and does not reply.
    Blank,
}

/// Returns the length in bytes of the command at the front of `input`, and its name as it was sent, where the
/// command is whole and in the form that every client library writes, as nearly every request is. None: use
/// [`RequestScanner`].
pub fn plain_request(input: &[u8]) -> Option<(usize, &[u8])> {
    let (count, mut at) = short_line(b'*', input)?;
    if count == 0 || count as u64 > ARGUMENTS {
        return None;
    }
    let (length, line) = short_line(b'$', &input[at..])?;
    let name = input.get(at + line..at + line + length)?;
    if name.contains(&0) {
        return None;
    }
    at += line + length + 2;
    for _ in 1..count {
        let (length, line) = short_line(b'$', input.get(at..)?)?;
        at += line + length + 2;
    }
    (at <= input.len()).then_some((at, name))
}

/// Returns the number of arguments, the name included, of a request that [`plain_request`] found whole.
pub fn plain_count(request: &[u8]) -> usize {
    short_line(b'*', request).map_or(0, |(count, _)| count)
}

/// Returns an argument, the name being argument 0, of a request that [`plain_request`] found whole.
pub fn plain_argument(request: &[u8], index: usize) -> Option<&[u8]> {
    let (_, mut at) = short_line(b'*', request)?;
    for _ in 0..index {
        let (length, line) = short_line(b'$', request.get(at..)?)?;
        at += line + length + 2;
    }
    let (length, line) = short_line(b'$', request.get(at..)?)?;
    request.get(at + line..at + line + length)
}

/// The scanner of one client's requests, one after the other.
#[derive(Debug, Clone)]
pub struct RequestScanner {
    phase: Phase,
    frame_bytes: u64,
    /// Announced by the frame; in an inline command, the arguments that ended so far.
    arguments: u64,
    name: Captured<NAME_BYTES>,
    captured: [Captured<ARGUMENT_BYTES>; 2],
    /// The bounds for unauthenticated clients apply to the frame.
    is_strangers: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Before the first byte of a frame.
    Start,
    /// Before the first byte of an unauthenticated client's frame.
    StrangersStart,
    /// In the `*<count>` line.
    Count(CountLine),
    /// In a `$<length>` line. `left` counts the arguments to come, this one included.
    Length { left: u64, line: CountLine },
    /// In an argument; `bytes` of it are to come.
    Bulk { left: u64, bytes: u64 },
    /// In the bytes after an argument; `bytes` of them are to come.
    AfterBulk { left: u64, bytes: u64 },
    /// In an inline command.
    Inline(Splitter),
    /// Before the LF of an inline command whose name was reported.
    InlineEnd,
}

type Stepped = Result<(usize, Step), ProtocolError>;

impl Default for RequestScanner {
    fn default() -> Self {
        Self::new()
    }
}

impl RequestScanner {
    /// Creates a scanner before the first frame of a connection.
    pub const fn new() -> Self {
        Self {
            phase: Phase::Start,
            frame_bytes: 0,
            arguments: 0,
            name: Captured::EMPTY,
            captured: [Captured::EMPTY; 2],
            is_strangers: false,
        }
    }

    /// Applies [`STRANGERS_ARGUMENTS`] and [`STRANGERS_BULK_BYTES`] to the next frame, which comes from an
    /// unauthenticated client. To be called between frames.
    pub fn begin_strangers(&mut self) {
        self.phase = Phase::StrangersStart;
    }

    /// Reads on. `input` holds the bytes that follow those consumed so far. Returns how many of them were consumed
    /// now. Stops at every step but [`Step::More`].
    ///
    /// # Errors
    /// The client does not speak the protocol. Nothing can be read after that.
    pub fn scan(&mut self, input: &[u8]) -> (usize, Result<Step, ProtocolError>) {
        let mut at = 0;
        while at < input.len() {
            match self.step(&input[at..]) {
                Ok((consumed, step)) => {
                    at += consumed;
                    self.frame_bytes += consumed as u64;
                    if step != Step::More {
                        return (at, Ok(step));
                    }
                }
                Err(error) => return (at, Err(error)),
            }
        }
        (at, Ok(Step::More))
    }

    /// Returns the name of the command in upper case, from [`Step::Named`] on until the next frame. Empty where the
    /// name is longer than [`NAME_BYTES`].
    pub fn name(&self) -> &[u8] {
        self.name.whole().unwrap_or_default()
    }

    /// Returns the number of arguments, the name included, from [`Step::Named`] on.
    pub fn argument_count(&self) -> u64 {
        self.arguments
    }

    /// Returns argument 1 or 2, the name being argument 0, from [`Step::End`] on; before, as much of it as was
    /// read. None where there is no such argument, or it is longer than [`ARGUMENT_BYTES`].
    pub fn argument(&self, index: usize) -> Option<&[u8]> {
        if index as u64 >= self.arguments {
            return None;
        }
        self.captured.get(index.checked_sub(1)?)?.whole()
    }

    /// Returns the same argument, or its first [`ARGUMENT_BYTES`] where it is longer.
    pub fn argument_beginning(&self, index: usize) -> Option<&[u8]> {
        if index as u64 >= self.arguments {
            return None;
        }
        Some(self.captured.get(index.checked_sub(1)?)?.beginning())
    }

    /// Returns the bytes of the current frame consumed so far; after its end, all of it.
    pub fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }

    /// Returns whether the last frame has ended and no byte of the next one was consumed.
    pub fn between_frames(&self) -> bool {
        matches!(self.phase, Phase::Start | Phase::StrangersStart)
    }

    /// Returns whether a line in Redis's inline form is being read: at most [`LINE_BYTES`], with its name known at
    /// the end.
    pub fn is_inline(&self) -> bool {
        matches!(self.phase, Phase::Inline(_) | Phase::InlineEnd)
    }

    /// Reads one piece of one phase. `input` is not empty.
    fn step(&mut self, input: &[u8]) -> Stepped {
        match self.phase {
            Phase::Start => {
                *self = Self::new();
                if let Some(consumed) = self.whole_name(input) {
                    return Ok((consumed, self.named()?));
                }
                self.phase = match input[0] {
                    b'*' => Phase::Count(CountLine::default()),
                    _ => Phase::Inline(Splitter::default()),
                };
                Ok((0, Step::More))
            }
            Phase::StrangersStart => {
                *self = Self::new();
                self.is_strangers = true;
                self.phase = match input[0] {
                    b'*' => Phase::Count(CountLine::default()),
                    _ => Phase::Inline(Splitter::default()),
                };
                Ok((0, Step::More))
            }
            Phase::Count(line) => self.count(line, input),
            Phase::Length { left, line } => self.length(left, line, input),
            Phase::Bulk { left, bytes } => self.bulk(left, bytes, input),
            Phase::AfterBulk { left, bytes: 2 } if input.len() > 1 && !self.is_strangers => {
                Ok(self.whole_arguments(left, input))
            }
            Phase::AfterBulk { left, bytes } => Ok(self.after_bulk(left, bytes, input)),
            Phase::Inline(splitter) => self.inline(splitter, input),
            Phase::InlineEnd => {
                self.phase = Phase::Start;
                Ok((1, Step::End))
            }
        }
    }

    /// Reads the beginning of nearly every frame: `*<count>`, `$<length>` and the name, all there. Returns the
    /// bytes consumed. None: nothing was consumed, and the frame must be read byte by byte.
    fn whole_name(&mut self, input: &[u8]) -> Option<usize> {
        let (count, count_line) = short_line(b'*', input)?;
        let (length, length_line) = short_line(b'$', &input[count_line..])?;
        let begins = count_line + length_line;
        let name = input.get(begins..begins + length)?;
        if count == 0 {
            return None;
        }
        self.arguments = count as u64;
        self.name.push(name);
        self.phase = Phase::AfterBulk {
            left: self.arguments,
            bytes: 2,
        };
        Some(begins + length)
    }

    /// Reads the end of an argument, at least two bytes, and as many of the following arguments as are there whole.
    fn whole_arguments(&mut self, mut left: u64, input: &[u8]) -> (usize, Step) {
        let mut at = 0;
        while left > 1 && input.len() - at >= 2 {
            let line_at = at + 2;
            let Some((length, line)) = short_line(b'$', &input[line_at..]) else {
                break;
            };
            let begins = line_at + line;
            let Some(argument) = input.get(begins..begins + length) else {
                break;
            };
            left -= 1;
            self.capture(self.arguments - left, argument);
            at = begins + length;
        }
        if at == 0 || input.len() - at >= 2 {
            let (consumed, step) = self.after_bulk(left, 2, &input[at..]);
            return (at + consumed, step);
        }
        self.phase = Phase::AfterBulk { left, bytes: 2 };
        (at, Step::More)
    }

    fn count(&mut self, mut line: CountLine, input: &[u8]) -> Stepped {
        for (at, &byte) in input.iter().enumerate() {
            match line.push(byte) {
                Line::More => {}
                Line::Whole => {
                    self.arguments = argument_count(&line)?;
                    if self.is_strangers && self.arguments > STRANGERS_ARGUMENTS {
                        return Err(ProtocolError::StrangersArgumentCount);
                    }
                    let step = if self.arguments == 0 {
                        self.phase = Phase::Start;
                        Step::Blank
                    } else {
                        self.phase = Phase::Length {
                            left: self.arguments,
                            line: CountLine::default(),
                        };
                        Step::More
                    };
                    return Ok((at + 1, step));
                }
                Line::Endless => return Err(ProtocolError::TooBigArgumentCount),
            }
        }
        self.phase = Phase::Count(line);
        Ok((input.len(), Step::More))
    }

    fn length(&mut self, left: u64, mut line: CountLine, input: &[u8]) -> Stepped {
        for (at, &byte) in input.iter().enumerate() {
            match line.push(byte) {
                Line::More => {}
                Line::Whole => {
                    let bytes = bulk_length(&line)?;
                    if self.is_strangers && bytes > STRANGERS_BULK_BYTES {
                        return Err(ProtocolError::StrangersBulkLength);
                    }
                    self.phase = Phase::Bulk { left, bytes };
                    let step = if bytes == 0 {
                        self.bulk_ended(left)?
                    } else {
                        Step::More
                    };
                    return Ok((at + 1, step));
                }
                Line::Endless => return Err(ProtocolError::TooBigBulkCount),
            }
        }
        self.phase = Phase::Length { left, line };
        Ok((input.len(), Step::More))
    }

    fn bulk(&mut self, left: u64, bytes: u64, input: &[u8]) -> Stepped {
        let here = usize::try_from(bytes).map_or(input.len(), |bytes| bytes.min(input.len()));
        self.capture(self.arguments - left, &input[..here]);
        let bytes = bytes - here as u64;
        self.phase = Phase::Bulk { left, bytes };
        let step = if bytes == 0 {
            self.bulk_ended(left)?
        } else {
            Step::More
        };
        Ok((here, step))
    }

    fn bulk_ended(&mut self, left: u64) -> Result<Step, ProtocolError> {
        self.phase = Phase::AfterBulk { left, bytes: 2 };
        if left == self.arguments {
            self.named()
        } else {
            Ok(Step::More)
        }
    }

    fn after_bulk(&mut self, left: u64, bytes: u64, input: &[u8]) -> (usize, Step) {
        let here = input.len().min(bytes as usize);
        let bytes = bytes - here as u64;
        let (phase, step) = match (bytes, left) {
            (0, 1) => (Phase::Start, Step::End),
            (0, _) => (
                Phase::Length {
                    left: left - 1,
                    line: CountLine::default(),
                },
                Step::More,
            ),
            _ => (Phase::AfterBulk { left, bytes }, Step::More),
        };
        self.phase = phase;
        (here, step)
    }

    fn inline(&mut self, mut splitter: Splitter, input: &[u8]) -> Stepped {
        for (at, &byte) in input.iter().enumerate() {
            match byte {
                b'\n' => {
                    if !splitter.end(&mut |piece| self.piece(piece)) {
                        return Err(ProtocolError::UnbalancedQuotes);
                    }
                    if self.arguments == 0 {
                        self.phase = Phase::Start;
                        return Ok((at + 1, Step::Blank));
                    }
                    // The LF stays, so that the end of the frame is a step of its own.
                    self.phase = Phase::InlineEnd;
                    return Ok((at, self.named()?));
                }
                0 => return Err(ProtocolError::TooBigInline),
                _ if self.frame_bytes + at as u64 == LINE_BYTES as u64 => {
                    return Err(ProtocolError::TooBigInline);
                }
                _ => splitter.push(byte, &mut |piece| self.piece(piece)),
            }
        }
        self.phase = Phase::Inline(splitter);
        Ok((input.len(), Step::More))
    }

    fn piece(&mut self, piece: Piece) {
        match piece {
            Piece::Byte(byte) => self.capture(self.arguments, &[byte]),
            Piece::End => self.arguments += 1,
        }
    }

    fn capture(&mut self, index: u64, bytes: &[u8]) {
        match index {
            0 => self.name.push(bytes),
            1 => self.captured[0].push(bytes),
            2 => self.captured[1].push(bytes),
            _ => {}
        }
    }

    fn named(&mut self) -> Result<Step, ProtocolError> {
        // A NUL further back cannot make it equal to a name that matters here.
        if self.name.beginning().contains(&0) {
            return Err(ProtocolError::NulInName);
        }
        self.name.make_upper_case();
        Ok(Step::Named)
    }
}

/// Returns the number of arguments that a whole `*<count>` line announces.
fn argument_count(line: &CountLine) -> Result<u64, ProtocolError> {
    match line.number.value() {
        Some(count) if count <= ARGUMENTS as i64 => Ok(count.max(0) as u64),
        _ => Err(ProtocolError::InvalidArgumentCount),
    }
}

/// Returns the length that a whole `$<length>` line announces.
fn bulk_length(line: &CountLine) -> Result<u64, ProtocolError> {
    if line.first != b'$' {
        return Err(ProtocolError::ExpectedBulk(line.first));
    }
    match line.number.value().map(u64::try_from) {
        Some(Ok(length)) if length <= BULK_BYTES => Ok(length),
        _ => Err(ProtocolError::InvalidBulkLength),
    }
}

/// Returns the arguments of one whole frame, the name first; none where it is blank. Decides as [`RequestScanner`]
/// does. The arguments of a multibulk frame share its memory.
///
/// # Errors
/// The frame is not of the protocol, is not exactly one, or has more than `most` arguments.
pub fn arguments(frame: &Bytes, most: usize) -> Result<Vec<Bytes>, ProtocolError> {
    let found = match frame.first() {
        Some(b'*') => multibulk_arguments(frame, most)?,
        Some(_) => inline_arguments(frame, most)?,
        None => return Err(ProtocolError::NotOneFrame),
    };
    match found.first() {
        Some(name) if name.iter().take(NAME_BYTES).any(|&byte| byte == 0) => {
            Err(ProtocolError::NulInName)
        }
        _ => Ok(found),
    }
}

fn multibulk_arguments(frame: &Bytes, most: usize) -> Result<Vec<Bytes>, ProtocolError> {
    let (line, mut at) = count_line(frame, 0, ProtocolError::TooBigArgumentCount)?;
    let count = argument_count(&line)?;
    if count > most as u64 {
        return Err(ProtocolError::TooManyArguments);
    }
    let mut found = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (line, begin) = count_line(frame, at, ProtocolError::TooBigBulkCount)?;
        let length = bulk_length(&line)? as usize;
        if frame.len() - begin < length + 2 {
            return Err(ProtocolError::NotOneFrame);
        }
        found.push(frame.slice(begin..begin + length));
        at = begin + length + 2;
    }
    if at < frame.len() {
        Err(ProtocolError::NotOneFrame)
    } else {
        Ok(found)
    }
}

/// Reads the line that begins at `at`. Returns it, and where the bytes after it begin.
fn count_line(
    frame: &[u8],
    at: usize,
    endless: ProtocolError,
) -> Result<(CountLine, usize), ProtocolError> {
    let mut line = CountLine::default();
    for (index, &byte) in frame.iter().enumerate().skip(at) {
        match line.push(byte) {
            Line::More => {}
            Line::Whole => return Ok((line, index + 1)),
            Line::Endless => return Err(endless),
        }
    }
    Err(ProtocolError::NotOneFrame)
}

fn inline_arguments(frame: &[u8], most: usize) -> Result<Vec<Bytes>, ProtocolError> {
    let end = frame
        .iter()
        .position(|&byte| byte == b'\n')
        .unwrap_or(frame.len());
    let line = &frame[..end];
    if line.len() > LINE_BYTES || line.contains(&0) {
        return Err(ProtocolError::TooBigInline);
    }
    let (mut found, mut current, mut splitter) = (Vec::new(), BytesMut::new(), Splitter::default());
    let mut out = |piece| match piece {
        Piece::Byte(byte) => current.extend_from_slice(&[byte]),
        Piece::End => found.push(current.split().freeze()),
    };
    line.iter().for_each(|&byte| splitter.push(byte, &mut out));
    let balanced = splitter.end(&mut out);
    if end + 1 != frame.len() {
        Err(ProtocolError::NotOneFrame)
    } else if !balanced {
        Err(ProtocolError::UnbalancedQuotes)
    } else if found.len() > most {
        Err(ProtocolError::TooManyArguments)
    } else {
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
