//! Words that are no UTF-8, as texts and back.
//!
//! File names are bytes, and the program reads and prints texts. So each byte that belongs to no UTF-8 becomes one
//! character of a range that nobody uses, from the moment in which a word comes in; where it goes to the system, and
//! where it is printed, it is that byte again. What has a character of that range already is taken apart into bytes in
//! the same way, so that each word comes back as it was.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The character for byte 0; the other 255 follow.
const FIRST: u32 = 0x0010_ff00;

/// The byte that a character stands for.
pub fn byte(character: char) -> Option<u8> {
    u32::from(character).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok())
}

fn character(byte: u8) -> char {
    char::from_u32(FIRST + u32::from(byte)).expect("the range lies within the last plane")
}

/// These bytes as a text.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for one in chunk.valid().chars() {
            match byte(one) {
                None => text.push(one),
                Some(_) => text.extend(one.encode_utf8(&mut [0; 4]).bytes().map(character)),
            }
        }
        text.extend(chunk.invalid().iter().copied().map(character));
    }
    text
}

/// The bytes of a text.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for one in text.chars() {
        match byte(one) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(one.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes
}

/// A word of the command line as a text.
pub fn word(word: &OsStr) -> OsString {
    text(word.as_bytes()).into()
}

/// The path that a text names.
pub fn path(text: &str) -> PathBuf {
    OsString::from_vec(bytes(text)).into()
}

/// A path as a text, to be told.
pub fn of_path(path: &Path) -> String {
    text(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_comes_back() {
        for word in [
            &b"plain"[..],
            b"",
            b"\xff\xfe",
            b"a\xc3",
            "ü💾\u{10ff80}".as_bytes(),
            b"\xf4\x8f\xbe",
            b"\x80,\0",
        ] {
            assert_eq!(bytes(&text(word)), word, "{word:?}");
        }
        assert_eq!(text("ü".as_bytes()), "ü");
        assert_eq!(text(b"a\xff"), "a\u{10ffff}");
        assert_eq!(path("a\u{10ffff}"), Path::new(OsStr::from_bytes(b"a\xff")));
    }
}
