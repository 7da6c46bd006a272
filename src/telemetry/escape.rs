//! Names as people are shown them. A name is whatever bytes a client chose. On a page or a terminal it must neither
//! act as a terminal command, nor reverse the text beside it, nor look like another name.

use std::fmt::Write;

/// Returns these bytes as text: printable characters as they are, everything else as `\x1b` or `\u{202e}`, and `\`
/// as `\\`, so that different bytes never look the same.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                // `escape_debug` would escape them, as if they stood between quotes.
                '"' | '\'' => text.push(character),
                '\\' => text.push_str("\\\\"),
                _ if character.is_ascii_control() => {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "\\x{:02x}", u32::from(character));
                }
                _ => text.extend(character.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_characters_stay_and_others_are_escaped() {
        let cases: [(&[u8], &str); 9] = [
            (b"order:42", "order:42"),
            ("größe ☃ שלום".as_bytes(), "größe ☃ שלום"),
            (
                b"<script>alert('1')</script>",
                "<script>alert('1')</script>",
            ),
            (b"a\\x00", "a\\\\x00"),
            (
                b"a\0\r\n\t\x1b[2J\x7f",
                "a\\x00\\x0d\\x0a\\x09\\x1b[2J\\x7f",
            ),
            (b"\xff\xc3(", "\\xff\\xc3("),
            ("a\u{202e}b\u{200b}".as_bytes(), "a\\u{202e}b\\u{200b}"),
            ("\u{85}\u{2028}".as_bytes(), "\\u{85}\\u{2028}"),
            (b"", ""),
        ];
        for (bytes, text) in cases {
            assert_eq!(escape(bytes), text);
        }
    }
}
