//! What a test found wrong, and how a hand ends.

use std::fmt;

/// By what a fault shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// Bytes are not what they must be.
    Bytes,
    /// The size of the file is not what it must be.
    Size,
    /// Operations were in the kernel together that must not be.
    Order,
    /// A flush was answered before what it covers was durable.
    Durability,
    /// A request was answered with an error that it must not meet.
    Answer,
    /// Work was ready and no event told of it.
    Silence,
    /// Nothing goes on.
    Stuck,
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sign::Bytes => "bytes",
            Sign::Size => "size",
            Sign::Order => "order",
            Sign::Durability => "durability",
            Sign::Answer => "answer",
            Sign::Silence => "silence",
            Sign::Stuck => "stuck",
        })
    }
}

/// Something wrong.
#[derive(Debug, Clone)]
pub struct Finding {
    /// By what it shows.
    pub sign: Sign,
    /// What it is, in a sentence or two.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.sign, self.text)
    }
}

/// Why a hand goes no further.
#[derive(Debug, Clone)]
pub enum Stop {
    /// It found something wrong.
    Found(Finding),
    /// Another one has ended the test.
    Ended,
}

impl Stop {
    /// A finding as the end.
    pub fn found(sign: Sign, text: impl Into<String>) -> Self {
        Stop::Found(Finding { sign, text: text.into() })
    }
}
