//! The lexer of Lua 5.1, for short scripts, and their normal form.
//!
//! Two scripts of one normal form do the same: white space and comments are gone, quotes and the case of command
//! names are one, local variables have numbers, no parentheses enclose a whole condition, and a `pcall` that deletes is
//! a `call`. A semicolon stays, because only the grammar tells where one is allowed: [`is_form`] compares with a text
//! that has all of them.
//!
//! The lexer refuses whatever no form contains, such as escapes in strings, and what Lua reads in more than one
//! way.

/// Most lexemes of a script, more than any form has. It bounds the quadratic steps of [`normal_form`].
const LEXEMES: usize = 256;

/// The strings that are read in any case: names and options of commands. Every other string is a value.
const COMMAND_WORDS: [&[u8]; 8] = [
    b"get", b"del", b"set", b"pexpire", b"expire", b"nx", b"px", b"ex",
];

/// One lexeme of a normal form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lexeme<'a> {
    /// A keyword, a global name, a number, or an operator.
    Word(&'a [u8]),
    /// A string of letters and digits. A command's name is in lower case, and `unlink` is `del`.
    Text(&'a [u8]),
    /// The n-th `local` variable.
    Local(usize),
}

use Lexeme::{Local, Text, Word};

/// Returns the normal form of a script; `None` where it cannot be that of a known script.
pub(super) fn normal_form(script: &[u8]) -> Option<Vec<Lexeme<'_>>> {
    let mut form = lexemes(script)?;
    number_locals(&mut form)?;
    drop_parentheses(&mut form);
    for at in 0..form.len() {
        let rest = &mut form[at..];
        if let [Word(b"."), Word(call), Word(b"("), Text(b"del"), ..] = rest
            && *call == b"pcall"
        {
            *call = b"call";
        }
    }
    Some(form)
}

/// Returns whether a normal form is this one, which has every semicolon that the grammar allows.
pub(super) fn is_form(script: &[Lexeme<'_>], form: &[Lexeme<'_>]) -> bool {
    let mut rest = script.iter().peekable();
    let same = form.iter().all(|lexeme| {
        let next = rest.next_if_eq(&lexeme);
        next.is_some() || *lexeme == Word(b";")
    });
    same && rest.next().is_none()
}

fn lexemes(script: &[u8]) -> Option<Vec<Lexeme<'_>>> {
    // Redis's versions differ in what follows a NUL.
    if script.contains(&0) {
        return None;
    }
    let mut found = Vec::new();
    let mut rest = script;
    while let Some(&first) = rest.first() {
        let length = match first {
            b'\t'..=b'\r' | b' ' => 1,
            b'-' if rest.starts_with(b"--") => comment(rest)?,
            b'"' | b'\'' => {
                let text = rest[1..].split(|&byte| byte == first).next()?;
                let is_plain = text.iter().all(u8::is_ascii_alphanumeric);
                // Without its other quote it is the rest of the script.
                if !is_plain || text.len() + 1 == rest.len() {
                    return None;
                }
                found.push(Text(command_word(text)));
                text.len() + 2
            }
            _ => {
                let length = word(rest)?;
                found.push(Word(&rest[..length]));
                length
            }
        };
        if found.len() > LEXEMES {
            return None;
        }
        rest = &rest[length..];
    }
    Some(found)
}

/// Returns the length of the comment at the front. A short one ends at either byte of a line's end.
fn comment(script: &[u8]) -> Option<usize> {
    let body = &script[2..];
    let level = body.strip_prefix(b"[").and_then(|after| {
        let level = after.iter().take_while(|&&byte| byte == b'=').count();
        (after.get(level) == Some(&b'[')).then_some(level)
    });
    let Some(level) = level else {
        let end = body.iter().position(|byte| b"\r\n".contains(byte));
        return Some(2 + end.unwrap_or(body.len()));
    };
    let close = [b"]", &b"=".repeat(level)[..], b"]"].concat();
    let length = body.windows(close.len()).position(|it| it == close)?;
    // Lua refuses nested comments of level 0.
    if level == 0 && body[2..length].windows(2).any(|it| it == b"[[") {
        return None;
    }
    Some(2 + length + close.len())
}

/// Returns the length of the name, number or operator at the front.
fn word(script: &[u8]) -> Option<usize> {
    let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
    match script {
        // A string in long brackets.
        [b'[', b'[' | b'=', ..] => None,
        [b'=' | b'~' | b'<' | b'>', b'=', ..] => Some(2),
        [b'0'..=b'9', ..] => {
            let is_number = |byte: &&u8| is_name(byte) || **byte == b'.';
            Some(script.iter().take_while(is_number).count())
        }
        [b'a'..=b'z' | b'A'..=b'Z' | b'_', ..] => Some(script.iter().take_while(is_name).count()),
        [byte, ..] => b"+-#()[];,.=<>".contains(byte).then_some(1),
        [] => None,
    }
}

fn command_word(text: &[u8]) -> &[u8] {
    if text.eq_ignore_ascii_case(b"unlink") {
        return b"del";
    }
    let mut words = COMMAND_WORDS.iter();
    words
        .find(|word| text.eq_ignore_ascii_case(word))
        .unwrap_or(&text)
}

/// Replaces the names of local variables by numbers, in the order of their declarations. Refuses a second declaration
/// of a name: only the grammar tells which of the two a use of it means.
fn number_locals(form: &mut [Lexeme<'_>]) -> Option<()> {
    let mut names = Vec::new();
    for at in 0..form.len() {
        let Word(name) = form[at] else { continue };
        if at > 0 && form[at - 1] == Word(b"local") {
            if names.contains(&name) {
                return None;
            }
            names.push(name);
        }
        // Behind a dot it is the name of a field.
        let is_field = at > 0 && form[at - 1] == Word(b".");
        if let Some(number) = names.iter().position(|it| *it == name)
            && !is_field
        {
            form[at] = Local(number);
        }
    }
    Some(())
}

/// Drops the parentheses around whole conditions.
fn drop_parentheses(form: &mut Vec<Lexeme<'_>>) {
    let mut at = 0;
    while at < form.len() {
        let is_condition = matches!(form[at], Word(b"if" | b"elseif"));
        at += 1;
        while is_condition
            && let Some(close) = closing(&form[at..])
            && form.get(at + close + 1) == Some(&Word(b"then"))
        {
            form.remove(at + close);
            form.remove(at);
        }
    }
}

/// Returns the place of the parenthesis that closes the one at the front.
fn closing(form: &[Lexeme<'_>]) -> Option<usize> {
    let mut open = 0;
    form.iter()
        .position(|lexeme| {
            match lexeme {
                Word(b"(") => open += 1,
                Word(b")") => open -= 1,
                _ => {}
            }
            open <= 0
        })
        .filter(|&close| close > 0)
}
