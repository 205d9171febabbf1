//! Results for programs.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

/// Prints `value` with four blanks of indentation.
pub fn print(value: &impl Serialize) {
    let mut text = Vec::new();
    let mut serializer =
        Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    value.serialize(&mut serializer).expect("strings and numbers can be written to memory");
    text.push(b'\n');
    // As with `println!`, there is nobody to tell if this fails.
    drop(io::stdout().write_all(&text));
}
