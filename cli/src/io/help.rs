//! What `help` prints.

use std::fmt::Write as _;

use super::command::{COMMANDS, Entry, usage, usage_as};

/// The list of all commands.
pub fn list() -> String {
    let mut text = COMMANDS.iter().fold(String::new(), |text, entry| text + &usage(entry) + "\n");
    text.push_str("\n'help' and the name of a command tell more about it.\n");
    text
}

/// What is known of a command that was called `name`.
pub fn about(name: &str, entry: &Entry) -> String {
    let mut text = usage_as(name, entry) + "\n";
    if !entry.details.is_empty() {
        write!(text, "\n{}\n", entry.details).expect("a string takes everything");
    }
    if !entry.options.is_empty() {
        text.push('\n');
    }
    for (letter, words) in entry.options {
        writeln!(text, " -{letter}  {words}").expect("a string takes everything");
    }
    text
}
