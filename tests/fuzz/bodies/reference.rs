//! The Redis protocol read in the simplest way there is: everything at hand at once, nothing resumable,
//! as C does it (`processInlineBuffer`, `processMultibulkBuffer`, `sdssplitargs`, `string2ll` of Redis
//! 7.0). Where Redis decides by how the bytes happen to arrive, the answer is [`Ending::Unclear`].

/// Redis's `PROTO_INLINE_MAX_SIZE`.
const LINE_BYTES: usize = 64 * 1024;

/// Redis's `proto-max-bulk-len`.
const BULK_BYTES: i64 = 512 * 1024 * 1024;

/// One request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Where the next one begins.
    pub(crate) end: usize,
    /// None: it is no command.
    pub(crate) arguments: Vec<Vec<u8>>,
}

/// Why reading ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The bytes did.
    More,
    /// Redis closes the connection with this error.
    Error(&'static str),
    /// It depends on how the bytes arrive.
    Unclear,
}

/// All requests in these bytes.
pub(crate) fn requests(bytes: &[u8]) -> (Vec<Request>, Ending) {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let next = match bytes[at] {
            b'*' => multibulk(bytes, at),
            _ => inline(bytes, at),
        };
        match next {
            Ok(request) => {
                at = request.end;
                found.push(request);
            }
            Err(ending) => return (found, ending),
        }
    }
    (found, Ending::More)
}

/// Where the byte is, counted from `from`; as `strchr` finds it, which stops at a NUL.
fn strchr(bytes: &[u8], from: usize, byte: u8, too_long: &'static str) -> Result<usize, Ending> {
    let rest = &bytes[from..];
    match rest.iter().position(|&b| b == byte || b == 0) {
        Some(at) if rest[at] == 0 || at > LINE_BYTES => Err(Ending::Unclear),
        Some(at) => Ok(from + at),
        None if rest.len() > LINE_BYTES => Err(Ending::Error(too_long)),
        None => Err(Ending::More),
    }
}

fn multibulk(bytes: &[u8], begin: usize) -> Result<Request, Ending> {
    let (count, mut at) = number_line(
        bytes,
        begin,
        b'*',
        "Protocol error: too big mbulk count string",
        "Protocol error: invalid multibulk length",
        i64::MIN..=i64::from(i32::MAX),
    )?;
    let mut arguments = Vec::new();
    for _ in 0..count.max(0) {
        let (length, begin) = number_line(
            bytes,
            at,
            b'$',
            "Protocol error: too big bulk count string",
            "Protocol error: invalid bulk length",
            0..=BULK_BYTES,
        )?;
        let end = begin + length as usize;
        // Behind the argument are two bytes that nobody looks at.
        if bytes.len() < end + 2 {
            return Err(Ending::More);
        }
        arguments.push(bytes[begin..end].to_vec());
        at = end + 2;
    }
    Ok(Request { end: at, arguments })
}

/// The number in a line of this kind, and where the line ends.
fn number_line(
    bytes: &[u8],
    begin: usize,
    kind: u8,
    too_long: &'static str,
    wrong: &'static str,
    allowed: std::ops::RangeInclusive<i64>,
) -> Result<(i64, usize), Ending> {
    if begin == bytes.len() {
        return Err(Ending::More);
    }
    let cr = strchr(bytes, begin, b'\r', too_long)?;
    // Behind it is one byte more, which nobody looks at.
    if cr + 1 >= bytes.len() {
        return Err(Ending::More);
    }
    if bytes[begin] != kind {
        return Err(Ending::Error("Protocol error: expected '$', got '"));
    }
    match string2ll(&bytes[begin + 1..cr]) {
        Some(number) if allowed.contains(&number) => Ok((number, cr + 2)),
        _ => Err(Ending::Error(wrong)),
    }
}

pub(crate) fn string2ll(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    // No plus, no leading zero, no -0.
    (number.to_string() == text).then_some(number)
}

fn inline(bytes: &[u8], begin: usize) -> Result<Request, Ending> {
    let lf = strchr(
        bytes,
        begin,
        b'\n',
        "Protocol error: too big inline request",
    )?;
    let line = &bytes[begin..lf];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match sdssplitargs(line) {
        Some(arguments) => Ok(Request {
            end: lf + 1,
            arguments,
        }),
        None => Err(Ending::Error(
            "Protocol error: unbalanced quotes in request",
        )),
    }
}

/// None: the quotes do not match.
fn sdssplitargs(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    // A NUL stands behind the end, as in C.
    let byte = |at: usize| line.get(at).copied().unwrap_or(0);
    let (mut found, mut p) = (Vec::new(), 0);
    loop {
        while p < line.len() && is_space(line[p]) {
            p += 1;
        }
        if p >= line.len() {
            return Some(found);
        }
        let (mut current, mut in_double, mut in_single, mut done) =
            (Vec::new(), false, false, false);
        while !done {
            if in_double {
                if byte(p) == b'\\'
                    && byte(p + 1) == b'x'
                    && byte(p + 2).is_ascii_hexdigit()
                    && byte(p + 3).is_ascii_hexdigit()
                {
                    let digits = [byte(p + 2), byte(p + 3)].map(char::from);
                    let value = |digit: char| digit.to_digit(16).unwrap_or(0) as u8;
                    current.push(value(digits[0]) * 16 + value(digits[1]));
                    p += 3;
                } else if byte(p) == b'\\' && p + 1 < line.len() {
                    p += 1;
                    current.push(match byte(p) {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => other,
                    });
                } else if byte(p) == b'"' {
                    if p + 1 < line.len() && !is_space(byte(p + 1)) {
                        return None;
                    }
                    done = true;
                } else if p >= line.len() {
                    return None;
                } else {
                    current.push(byte(p));
                }
            } else if in_single {
                if byte(p) == b'\\' && byte(p + 1) == b'\'' {
                    p += 1;
                    current.push(b'\'');
                } else if byte(p) == b'\'' {
                    if p + 1 < line.len() && !is_space(byte(p + 1)) {
                        return None;
                    }
                    done = true;
                } else if p >= line.len() {
                    return None;
                } else {
                    current.push(byte(p));
                }
            } else {
                match byte(p) {
                    b' ' | b'\n' | b'\r' | b'\t' => done = true,
                    _ if p >= line.len() => done = true,
                    b'"' => in_double = true,
                    b'\'' => in_single = true,
                    other => current.push(other),
                }
            }
            if p < line.len() {
                p += 1;
            }
        }
        found.push(current);
    }
}

/// One reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The byte it begins with, after its attributes.
    pub(crate) kind: u8,
    /// Where the next one begins.
    pub(crate) end: usize,
}

/// All replies in these bytes, and whether what follows can be the beginning of one more.
pub(crate) fn replies(bytes: &[u8]) -> (Vec<Reply>, bool) {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match reply(bytes, at) {
            Ok(Some(reply)) => {
                at = reply.end;
                found.push(reply);
            }
            Ok(None) => return (found, true),
            Err(Wrong) => return (found, false),
        }
    }
    (found, true)
}

/// This is not the protocol.
struct Wrong;

/// None: it goes on behind the end.
fn reply(bytes: &[u8], begin: usize) -> Result<Option<Reply>, Wrong> {
    let (mut at, mut kind) = (begin, None);
    // Of each aggregate that is open, how many elements are to come; at the bottom is the reply.
    let mut open: Vec<u64> = vec![1];
    while let Some(&left) = open.last() {
        if left == 0 {
            open.pop();
            continue;
        }
        let Some(&byte) = bytes.get(at) else {
            return Ok(None);
        };
        let is_reply = open.len() == 1;
        if is_reply && byte != b'|' {
            kind = Some(byte);
        }
        let Some((end, brings)) = item(bytes, at)? else {
            return Ok(None);
        };
        at = end;
        let to_come = open
            .iter()
            .try_fold(brings, |sum, &left| sum.checked_add(left));
        to_come.ok_or(Wrong)?;
        // An attribute is no element, nor is a push inside of something.
        if byte != b'|'
            && (byte != b'>' || is_reply)
            && let Some(left) = open.last_mut()
        {
            *left -= 1;
        }
        if brings > 0 {
            open.push(brings);
        }
    }
    Ok(kind.map(|kind| Reply { kind, end: at }))
}

/// Where the item ends that begins here, and how many items belong into it. None: behind the end.
fn item(bytes: &[u8], begin: usize) -> Result<Option<(usize, u64)>, Wrong> {
    let rest = &bytes[begin..];
    match rest[0] {
        b'+' | b'-' | b':' | b',' | b'_' | b'#' | b'(' => {
            let end = rest.windows(2).position(|two| two == b"\r\n");
            Ok(end.map(|end| (begin + end + 2, 0)))
        }
        kind @ (b'$' | b'!' | b'=' | b'*' | b'~' | b'%' | b'|' | b'>') => {
            let Some(cr) = rest.iter().position(|&byte| byte == b'\r') else {
                return Ok(None);
            };
            match rest.get(cr + 1) {
                None => return Ok(None),
                Some(b'\n') => {}
                Some(_) => return Err(Wrong),
            }
            let length = string2ll(&rest[1..cr]).ok_or(Wrong)?;
            let end = begin + cr + 2;
            match (kind, u64::try_from(length)) {
                (b'$' | b'*', _) if length == -1 => Ok(Some((end, 0))),
                (_, Err(_)) => Err(Wrong),
                (b'$' | b'!' | b'=', Ok(length)) => string_end(bytes, end, length),
                (b'%' | b'|', Ok(pairs)) => Ok(Some((end, pairs.checked_mul(2).ok_or(Wrong)?))),
                (_, Ok(count)) => Ok(Some((end, count))),
            }
        }
        _ => Err(Wrong),
    }
}

fn string_end(bytes: &[u8], begin: usize, length: u64) -> Result<Option<(usize, u64)>, Wrong> {
    let end = usize::try_from(length)
        .ok()
        .and_then(|length| begin.checked_add(length));
    let Some(behind) = end.and_then(|end| bytes.get(end..)) else {
        return Ok(None);
    };
    let here = &behind[..behind.len().min(2)];
    if !b"\r\n".starts_with(here) {
        return Err(Wrong);
    }
    Ok((here.len() == 2).then(|| (bytes.len() - behind.len() + 2, 0)))
}
