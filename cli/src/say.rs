//! What the program prints, whether or not anybody can read it.
//!
//! The macros of the standard library panic when the output is closed or full. An image that is open then would not be
//! closed. These take their names and their places: a command does its work to the end, as qemu-img's do, and what
//! cannot be printed is lost.

use std::fmt::Arguments;
use std::io::Write;

/// Prints to the standard output.
pub fn out(text: Arguments<'_>) {
    drop(std::io::stdout().write_all(&bytes(text)));
}

/// Prints to the standard error.
pub fn error(text: Arguments<'_>) {
    drop(std::io::stderr().write_all(&bytes(text)));
}

/// What is not UTF-8 goes out as it came in.
fn bytes(text: Arguments<'_>) -> Vec<u8> {
    crate::bytes::bytes(&text.to_string())
}

macro_rules! print {
    ($($text:tt)*) => { $crate::say::out(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::say::out(format_args!("\n")) };
    ($($text:tt)*) => { $crate::say::out(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::say::error(format_args!($($text)*)) };
}

macro_rules! eprintln {
    () => { $crate::say::error(format_args!("\n")) };
    ($($text:tt)*) => { $crate::say::error(format_args!("{}\n", format_args!($($text)*))) };
}
