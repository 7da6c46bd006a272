//! Changes one reply while it streams. Its first line shows whether Redis sent the expected reply, and its
//! length, which is corrected there. Then the elements pass, or are replaced, one by one. Additions follow at
//! the end.
//!
//! The number of fields in an entry of `COMMAND INFO` depends on the version of Redis; Redis's own entries
//! show it. Only nils can precede the first of them. Until it arrives, the amender withholds lockgate's
//! entries and the nils that follow them.

use bytes::{BufMut, BytesMut};

use super::{Amendment, named};
use crate::{
    command::table::{Entry, INFO_FIELDS, LOCK_COMMANDS},
    resp::{Protocol, ReplyScanner, ReplyStep, Writer},
};

/// Longest beginning of a reply or of an element that is examined, in bytes. Anything longer is irrelevant
/// and passes.
const BEGINNING_BYTES: usize = 64;

/// Redis's errors when it is asked for the keys of a lock command: the first where it knows no command of
/// that name, the others where it knows one.
const NO_KEYS: [&[u8]; 3] = [
    b"-ERR Invalid command specified\r\n",
    b"-ERR Invalid number of arguments specified for command\r\n",
    b"-ERR The command has no key arguments\r\n",
];

/// The amender of one reply.
#[derive(Debug)]
pub struct ReplyRewriter {
    amendment: Amendment,
    protocol: Protocol,
    phase: Phase,
    /// The beginning of the reply or of the element, until its course is decided.
    beginning: Vec<u8>,
    elements: ReplyScanner,
    /// Number of elements completed.
    place: usize,
    course: Course,
    /// Number of fields in an entry of `COMMAND INFO`, once known.
    fields: Option<usize>,
    /// The place of the first withheld element. Each withheld element is one of lockgate's, or `nil`.
    withheld: Option<usize>,
    nil: Vec<u8>,
}

#[derive(Debug)]
enum Phase {
    FirstLine,
    Elements,
    /// In the text of `INFO`, with `left` bytes to come. `section` follows them.
    Text {
        left: u64,
        section: String,
    },
    /// The rest of the reply passes.
    Passing,
    /// The rest of the reply is dropped.
    Dropping,
}

/// The treatment of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    Undecided,
    Pass,
    Drop,
    /// Drops this element and the next one.
    DropBoth,
    /// Drops the second element of the two.
    DropSecond,
}

/// The content of the beginning of an element.
#[derive(Debug, PartialEq, Eq)]
enum Beginning<'a> {
    /// Too short to decide.
    Partial,
    /// A name, or an entry that begins with a name.
    Named {
        name: &'a [u8],
        fields: Option<usize>,
    },
    Nil,
    /// A push inside a reply, as Redis 6 sends. It is not an element.
    Push,
    Other,
}

impl ReplyRewriter {
    /// Creates the amender of a reply in this protocol. `fields` is the number of fields in an entry of
    /// `COMMAND INFO`, where known.
    pub fn new(amendment: Amendment, protocol: Protocol, fields: Option<usize>) -> Self {
        Self {
            amendment,
            protocol,
            phase: Phase::FirstLine,
            beginning: Vec::new(),
            elements: ReplyScanner::new(),
            place: 0,
            course: Course::Undecided,
            fields,
            withheld: None,
            nil: Vec::new(),
        }
    }

    /// Processes the next bytes of the reply and appends the result to `out`. `section` creates the section
    /// to add to `INFO`.
    pub fn pass(&mut self, mut bytes: &[u8], out: &mut BytesMut, section: &dyn Fn() -> String) {
        while !bytes.is_empty() {
            let consumed = match self.phase {
                Phase::FirstLine => self.first_line(bytes, out, section),
                Phase::Elements => self.element(bytes, out),
                Phase::Text { .. } => self.text(bytes, out),
                Phase::Passing => {
                    out.put_slice(bytes);
                    bytes.len()
                }
                Phase::Dropping => bytes.len(),
            };
            bytes = &bytes[consumed..];
        }
    }

    /// Ends the reply and appends the additions to `out`. Returns the number of fields in an entry of
    /// `COMMAND INFO`, where known.
    pub fn end(mut self, out: &mut BytesMut) -> Option<usize> {
        if matches!(self.phase, Phase::Elements) {
            self.release(out);
            let fields = self.fields.unwrap_or(INFO_FIELDS);
            let out = &mut Writer::new(out, self.protocol);
            match &self.amendment {
                Amendment::Entries => LOCK_COMMANDS
                    .iter()
                    .for_each(|entry| entry.write_info(fields, out)),
                Amendment::Names(ours) => ours.iter().for_each(|entry| out.bulk(entry.name)),
                Amendment::Docs(ours) => ours.iter().for_each(|entry| entry.write_docs(out)),
                _ => {}
            }
        }
        self.fields
    }

    // ── the first line ───────────────────────────────────────────────────────────────────────

    fn first_line(
        &mut self,
        bytes: &[u8],
        out: &mut BytesMut,
        section: &dyn Fn() -> String,
    ) -> usize {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let count = end.map_or(bytes.len(), |end| end + 1);
        self.beginning.extend_from_slice(&bytes[..count]);
        if end.is_some() {
            let line = std::mem::take(&mut self.beginning);
            self.phase = self.after(&line, out, section);
        } else if self.beginning.len() > BEGINNING_BYTES {
            out.put_slice(&std::mem::take(&mut self.beginning));
            self.phase = Phase::Passing;
        }
        count
    }

    /// Writes the corrected first line and returns the next phase.
    fn after(&self, line: &[u8], out: &mut BytesMut, section: &dyn Fn() -> String) -> Phase {
        let unchanged = |out: &mut BytesMut| {
            out.put_slice(line);
            Phase::Passing
        };
        if let Amendment::Key { entry, key, flags } = &self.amendment {
            // An array holds the keys of another command of that name.
            if line.first() != Some(&b'*') && !NO_KEYS.contains(&line) {
                return unchanged(out);
            }
            write_key(
                entry,
                key.as_deref(),
                *flags,
                &mut Writer::new(out, self.protocol),
            );
            return Phase::Dropping;
        }
        let Some((kind, length, _)) = header(line) else {
            return unchanged(out);
        };
        let (kinds, more): (&[u8], u64) = match &self.amendment {
            Amendment::Count => (b":", LOCK_COMMANDS.len() as u64),
            // Redis 6 replies with an empty array to a `COMMAND INFO` without names.
            Amendment::Entries if length > 0 => (b"*", LOCK_COMMANDS.len() as u64),
            Amendment::Names(ours) => (b"*~", ours.len() as u64),
            Amendment::Places { names, .. } if length == *names as u64 => (b"*", 0),
            Amendment::Docs(ours) if kind == b'*' => (b"*", ours.len() as u64 * 2),
            Amendment::Docs(ours) => (b"%", ours.len() as u64),
            Amendment::Section => {
                return match text_bytes(kind, length) {
                    Some(text) => begin_text(kind, length, text, section(), out),
                    None => unchanged(out),
                };
            }
            _ => return unchanged(out),
        };
        if !kinds.contains(&kind) {
            return unchanged(out);
        }
        write_header(kind, length + more, out);
        match kind {
            b':' => Phase::Passing,
            _ => Phase::Elements,
        }
    }

    // ── the text of INFO ─────────────────────────────────────────────────────────────────────

    fn text(&mut self, bytes: &[u8], out: &mut BytesMut) -> usize {
        let Phase::Text { left, section } = &mut self.phase else {
            return 0;
        };
        let here = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
        out.put_slice(&bytes[..here]);
        *left -= here as u64;
        if *left == 0 {
            out.put_slice(section.as_bytes());
            self.phase = Phase::Passing;
        }
        here
    }

    // ── elements ─────────────────────────────────────────────────────────────────────────────

    /// Processes bytes of one element. Returns how many it consumed.
    fn element(&mut self, bytes: &[u8], out: &mut BytesMut) -> usize {
        let (count, step) = self.elements.scan(bytes);
        let Ok(step) = step else {
            // The relay's count of replies fails at the same byte and closes the connection.
            self.phase = Phase::Passing;
            return count;
        };
        let ended = step == ReplyStep::End;
        match self.course {
            Course::Undecided => {
                self.beginning.extend_from_slice(&bytes[..count]);
                self.decide(ended, out);
            }
            Course::Pass => out.put_slice(&bytes[..count]),
            Course::Drop | Course::DropBoth | Course::DropSecond => {}
        }
        if ended {
            self.place += usize::from(self.elements.kind() != b'>');
            self.course = match self.course {
                Course::DropBoth => Course::DropSecond,
                _ => Course::Undecided,
            };
        }
        count
    }

    /// Decides the element's course as soon as its beginning allows, and writes what stands in its place.
    fn decide(&mut self, ended: bool, out: &mut BytesMut) {
        let beginning = std::mem::take(&mut self.beginning);
        let found = match Beginning::of(&beginning) {
            Beginning::Partial if !ended && beginning.len() <= BEGINNING_BYTES => {
                self.beginning = beginning;
                return;
            }
            found => found,
        };
        if let Beginning::Named {
            fields: Some(fields),
            ..
        } = found
            && self.is_info()
        {
            self.fields = Some(match fields {
                INFO_FIELDS.. => INFO_FIELDS,
                7.. => 7,
                _ => 6,
            });
        }
        let replacement = self.replacement(&found);
        if found == Beginning::Nil && self.withholds(replacement.is_some()) {
            self.withheld.get_or_insert(self.place);
            self.nil = beginning;
            self.course = Course::Drop;
            return;
        }
        if found != Beginning::Push {
            self.release(out);
        }
        self.course = match replacement {
            None => {
                out.put_slice(&beginning);
                Course::Pass
            }
            Some(entry) => self.replace(entry, out),
        };
    }

    /// Returns whether the elements are entries of `COMMAND INFO`. In RESP2 an explanation of `COMMAND DOCS`
    /// is an array, too.
    fn is_info(&self) -> bool {
        matches!(
            self.amendment,
            Amendment::Entries | Amendment::Places { .. }
        )
    }

    fn withholds(&self, is_ours: bool) -> bool {
        self.fields.is_none() && (is_ours || self.withheld.is_some())
    }

    /// Writes the withheld elements.
    fn release(&mut self, out: &mut BytesMut) {
        for place in self.withheld.take().unwrap_or(self.place)..self.place {
            match self.ours_at(place) {
                Some(entry) => {
                    self.replace(entry, out);
                }
                None => out.put_slice(&self.nil),
            }
        }
    }

    /// Returns lockgate's entry that the client requested at this place.
    fn ours_at(&self, place: usize) -> Option<&'static Entry> {
        let Amendment::Places { ours, .. } = &self.amendment else {
            return None;
        };
        let at = ours.binary_search_by_key(&place, |(place, _)| *place);
        at.ok().map(|at| ours[at].1)
    }

    /// Returns the entry that replaces this element.
    fn replacement(&self, found: &Beginning<'_>) -> Option<&'static Entry> {
        match (&self.amendment, found) {
            (_, Beginning::Push) => None,
            (Amendment::Places { .. }, _) => self.ours_at(self.place),
            // Names and explanations alternate; this is an explanation.
            (Amendment::Docs(_), _) if self.place % 2 == 1 => None,
            (_, Beginning::Named { name, .. }) => named(name),
            _ => None,
        }
    }

    fn replace(&self, entry: &Entry, out: &mut BytesMut) -> Course {
        let out = &mut Writer::new(out, self.protocol);
        match &self.amendment {
            Amendment::Names(_) => out.bulk(entry.name),
            Amendment::Docs(_) => {
                entry.write_docs(out);
                return Course::DropBoth;
            }
            _ => entry.write_info(self.fields.unwrap_or(INFO_FIELDS), out),
        }
        Course::Drop
    }
}

impl<'a> Beginning<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        match bytes {
            [] => return Self::Partial,
            [b'>', ..] => return Self::Push,
            b"_\r\n" | b"$-1\r\n" | b"*-1\r\n" => return Self::Nil,
            [b'$' | b'*' | b'_', ..] => {}
            _ => return Self::Other,
        }
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            return Self::Partial;
        };
        let Some((kind, length, rest)) = header(bytes) else {
            return Self::Other;
        };
        debug_assert_eq!(rest.len(), bytes.len() - end - 1);
        if kind == b'$' {
            return Self::named(length, rest, None);
        }
        let fields = usize::try_from(length).ok();
        match (rest.contains(&b'\n'), header(rest)) {
            (_, Some((b'$', length, rest))) => Self::named(length, rest, fields),
            (false, _) => Self::Partial,
            (true, _) => Self::Other,
        }
    }

    /// Parses a name of `length` bytes at the front of `rest`.
    fn named(length: u64, rest: &'a [u8], fields: Option<usize>) -> Self {
        match usize::try_from(length) {
            Ok(length) if length > BEGINNING_BYTES => Self::Other,
            Ok(length) => match rest.get(..length) {
                Some(name) => Self::Named { name, fields },
                None => Self::Partial,
            },
            Err(_) => Self::Other,
        }
    }
}

/// Returns the kind and the length in the first line of these bytes, and the bytes after that line.
fn header(bytes: &[u8]) -> Option<(u8, u64, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let (&kind, digits) = bytes[..end].strip_suffix(b"\r")?.split_first()?;
    let length = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((kind, length, &bytes[end + 1..]))
}

fn write_header(kind: u8, length: u64, out: &mut BytesMut) {
    out.put_u8(kind);
    out.put_slice(length.to_string().as_bytes());
    out.put_slice(b"\r\n");
}

/// Returns how many bytes of text a string of this kind has; `None` where it is no string. In RESP3 the
/// format of the text precedes it.
fn text_bytes(kind: u8, length: u64) -> Option<u64> {
    match kind {
        b'$' => Some(length),
        b'=' => length.checked_sub(b"txt:".len() as u64),
        _ => None,
    }
}

/// Writes the first line of an `INFO` to which `section` is added. A blank line separates sections.
fn begin_text(kind: u8, length: u64, text: u64, mut section: String, out: &mut BytesMut) -> Phase {
    if text > 0 {
        section.insert_str(0, "\r\n");
    }
    write_header(kind, length + section.len() as u64, out);
    if length == 0 {
        out.put_slice(section.as_bytes());
        return Phase::Passing;
    }
    Phase::Text {
        left: length,
        section,
    }
}

/// Writes the reply to `COMMAND GETKEYS` or `COMMAND GETKEYSANDFLAGS`, in Redis's words.
fn write_key(entry: &Entry, key: Option<&[u8]>, flags: bool, out: &mut Writer<'_>) {
    let Some(what) = &entry.key else {
        return out.error("ERR The command has no key arguments");
    };
    let Some(key) = key else {
        return out.error("ERR Invalid number of arguments specified for command");
    };
    out.array(1);
    if flags {
        out.array(2);
    }
    out.bulk(key);
    if flags {
        what.write_flags(out);
    }
}
