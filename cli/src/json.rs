//! Results for programs, laid out as qemu-img lays them out.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Four blanks for each level, and a line of its own for the end of each list, be it empty.
#[derive(Default)]
struct Layout {
    depth: usize,
}

impl Layout {
    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b"    "))
    }

    fn begin<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        out.write_all(bracket)
    }

    fn end<W: ?Sized + Write>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        self.line(out)?;
        out.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(b",")?;
        }
        self.line(out)
    }
}

impl Formatter for Layout {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.begin(out, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end(out, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.item(out, first)
    }

    /// What is not ASCII is escaped, as UTF-16.
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for character in fragment.chars() {
            // What is no UTF-8 cannot be told.
            let character = crate::bytes::byte(character).map_or(character, |_| '\u{fffd}');
            if character.is_ascii() && character != '\u{7f}' {
                write!(out, "{character}")?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04X}")?;
            }
        }
        Ok(())
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// Prints `value`.
pub fn print(value: &impl Serialize) {
    let mut text = text(value);
    text.push(b'\n');
    // As with `println!`, there is nobody to tell if this fails.
    drop(io::stdout().write_all(&text));
}

fn text(value: &impl Serialize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, Layout::default());
    value.serialize(&mut serializer).expect("strings and numbers can be written to memory");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_ends_on_a_line_of_its_own() {
        let value = serde_json::json!({"a": [], "b": {"ü💾": [1, true]}});
        let laid_out = "{\n    \"a\": [\n    ],\n    \"b\": {\n        \"\\u00FC\\uD83D\\uDCBE\": [\n            1,\n            \
                        true\n        ]\n    }\n}";
        assert_eq!(String::from_utf8(text(&value)).unwrap(), laid_out);
    }
}
