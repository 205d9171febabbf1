//! Who the program is: what it was called decides its commands, its words and the name before each message.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

/// What the program was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// By its own name, or by one that it does not know.
    Blkring,
    /// As qemu-img, by a link.
    QemuImg,
    /// As qemu-io, by a link.
    QemuIo,
}

/// Set once, before anything is said.
static OWN: OnceLock<Name> = OnceLock::new();

impl Name {
    /// The name in the first word of a command line.
    pub fn of(first_word: &OsStr) -> Self {
        match Path::new(first_word).file_name().and_then(OsStr::to_str) {
            Some("qemu-img") => Name::QemuImg,
            Some("qemu-io") => Name::QemuIo,
            _ => Name::Blkring,
        }
    }

    /// As messages begin.
    pub fn text(self) -> &'static str {
        match self {
            Name::Blkring => "blkring",
            Name::QemuImg => "qemu-img",
            Name::QemuIo => "qemu-io",
        }
    }
}

/// Says who this process is; what was said first holds.
pub fn set(name: Name) {
    OWN.get_or_init(|| name);
}

/// Who this process is.
pub fn own() -> Name {
    OWN.get().copied().unwrap_or(Name::Blkring)
}

/// Prints a message to the standard error, after the program's name.
pub fn complain(text: impl fmt::Display) {
    eprintln!("{}: {text}", own().text());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_the_first_word_counts() {
        for (word, name) in [
            ("qemu-img", Name::QemuImg),
            ("/usr/bin/qemu-img", Name::QemuImg),
            ("./qemu-io", Name::QemuIo),
            ("blkring", Name::Blkring),
            ("qemu-img/blkring", Name::Blkring),
            ("qemu-nbd", Name::Blkring),
            ("", Name::Blkring),
        ] {
            assert_eq!(Name::of(OsStr::new(word)), name, "{word}");
        }
    }
}
