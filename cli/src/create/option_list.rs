//! What `create -o` takes: a table for each format, and what was given of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::image_name::split;
use crate::number::{NumberError, size};
use crate::options::Format;

/// What the value of an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Switch,
    Size,
    Number,
}

/// One option.
struct Entry {
    name: &'static str,
    kind: Kind,
    /// Told even if it was not given.
    default: Option<&'static str>,
    /// Empty for what is known by name and not supported.
    about: &'static str,
}

const fn entry(name: &'static str, kind: Kind, about: &'static str) -> Entry {
    Entry { name, kind, default: None, about }
}

const fn with_default(entry: Entry, default: &'static str) -> Entry {
    Entry { default: Some(default), ..entry }
}

/// In the order in which they are told.
static QCOW2: &[Entry] = &[
    entry("encryption", Kind::Switch, ""),
    entry("encrypt.format", Kind::Text, ""),
    entry("encrypt.key-secret", Kind::Text, ""),
    entry("encrypt.cipher-alg", Kind::Text, ""),
    entry("encrypt.cipher-mode", Kind::Text, ""),
    entry("encrypt.ivgen-alg", Kind::Text, ""),
    entry("encrypt.ivgen-hash-alg", Kind::Text, ""),
    entry("encrypt.hash-alg", Kind::Text, ""),
    entry("encrypt.iter-time", Kind::Number, ""),
    with_default(
        entry("cluster_size", Kind::Size, "Bytes of a cluster: a power of two from 512 to 2M"),
        "65536",
    ),
    with_default(entry("extended_l2", Kind::Switch, ""), "off"),
    entry("preallocation", Kind::Text, "Space taken at once: off, metadata, falloc, full"),
    with_default(
        entry("compression_type", Kind::Text, "How clusters are compressed: zlib, zstd"),
        "zlib",
    ),
    entry("size", Kind::Size, "Bytes of the virtual disk"),
    entry("compat", Kind::Text, "Version of the format: 0.10 (v2), 1.1 (v3)"),
    entry("backing_file", Kind::Text, "The image below this one"),
    entry("backing_fmt", Kind::Text, "Format of the backing file"),
    entry("data_file", Kind::Text, ""),
    entry("data_file_raw", Kind::Switch, ""),
    with_default(
        entry("lazy_refcounts", Kind::Switch, "Whether programs may postpone reference counts"),
        "off",
    ),
    with_default(entry("refcount_bits", Kind::Number, "Bits of a reference count: 1 to 64"), "16"),
];

static RAW: &[Entry] = &[entry("size", Kind::Size, "Bytes of the virtual disk")];

/// What a file of any format takes.
static FILE: &[Entry] = &[
    entry("nocow", Kind::Switch, "No copy-on-write of the file; means something on btrfs"),
    entry("preallocation", Kind::Text, "Space taken at once: off, falloc, full"),
    entry("extent_size_hint", Kind::Size, ""),
];

fn table(format: Format) -> impl Iterator<Item = &'static Entry> {
    let own = match format {
        Format::Raw => RAW,
        Format::Qcow2 => QCOW2,
    };
    // Of two of one name, that of the format holds.
    let file = FILE.iter().filter(|entry| own.iter().all(|other| other.name != entry.name));
    own.iter().chain(file)
}

/// Options that were given, each value in its plainest form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionList {
    format: Format,
    given: BTreeMap<&'static str, String>,
}

/// Whether a list of options asks which there are.
pub fn asks_for_help(list: &str) -> bool {
    split(list).iter().any(|option| option == "help" || option == "?")
}

/// Whether a list is one: with commas between options, and nowhere else.
pub fn is_list(list: &str) -> bool {
    let trailing = list.len() - list.trim_end_matches(',').len();
    !list.is_empty() && !list.starts_with(',') && trailing.is_multiple_of(2)
}

/// Whether a file was named: files have options of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum File {
    /// None.
    None,
    /// One.
    Some,
}

/// The options of a format, for people.
pub fn help(format: Format, file: File) -> String {
    let of_file = |entry: &Entry| FILE.iter().any(|other| std::ptr::eq(entry, other));
    let mut entries: Vec<&Entry> = table(format)
        .filter(|entry| !entry.about.is_empty() && (file == File::Some || !of_file(entry)))
        .collect();
    entries.sort_by_key(|entry| entry.name);
    let mut text = match file {
        File::Some => "Supported options:\n".to_owned(),
        File::None => format!("Supported {} options:\n", format.name()),
    };
    for Entry { name, kind, about, .. } in entries {
        let kind = match kind {
            Kind::Text => "str",
            Kind::Switch => "bool (on/off)",
            Kind::Size => "size",
            Kind::Number => "num",
        };
        let option = format!("{name}=<{kind}>");
        writeln!(text, "  {option:22} - {about}").expect("a string takes everything");
    }
    if file == File::None {
        text.push_str("\nName a file as well for the options of files.\n");
    }
    text
}

impl OptionList {
    /// Nothing given.
    pub fn new(format: Format) -> Self {
        OptionList { format, given: BTreeMap::new() }
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Adds the options in `text`: `name=value` with commas between them, two commas for one in a value. A name alone
    /// is switched on, and with `no` before it off.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        for option in split(text) {
            let known = |name: &str| table(self.format).find(|entry| entry.name == name);
            let (name, value) = match option.split_once('=') {
                Some(parts) => parts,
                None => match option.strip_prefix("no").filter(|_| known(&option).is_none()) {
                    Some(name) if known(name).is_some() => (name, "off"),
                    _ => (option.as_str(), "on"),
                },
            };
            let entry = known(name).ok_or_else(|| format!("Invalid parameter '{name}'"))?;
            let value = plain(entry, value)?;
            self.given.insert(entry.name, value);
        }
        Ok(())
    }

    /// Sets one of the options, which the format has.
    pub fn set(&mut self, name: &'static str, value: String) {
        self.given.insert(name, value);
    }

    /// Whether the format has such an option.
    pub fn has(&self, name: &str) -> bool {
        table(self.format).any(|entry| entry.name == name)
    }

    /// What was given, or else the default.
    pub fn text(&self, name: &str) -> Option<&str> {
        let default = || table(self.format).find(|entry| entry.name == name)?.default;
        self.given.get(name).map(String::as_str).or_else(default)
    }

    /// The same as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name).map(|text| text.parse().expect("kept as a plain number"))
    }

    /// The same as a switch; off if nothing was given.
    pub fn is_on(&self, name: &str) -> bool {
        self.text(name) == Some("on")
    }

    /// The first option, other than off, that is known by name alone.
    pub fn unsupported(&self) -> Option<(&str, &str)> {
        let given = self.given.iter().map(|(name, value)| (*name, value.as_str()));
        given.into_iter().find(|(name, value)| {
            let entry = table(self.format).find(|entry| entry.name == *name);
            entry.is_some_and(|entry| entry.about.is_empty()) && !["off", "0"].contains(value)
        })
    }

    /// All of them as one line.
    pub fn line(&self) -> String {
        let told = table(self.format).filter_map(|entry| {
            let value = self.text(entry.name)?.replace(',', ",,");
            Some(format!(" {}={value}", entry.name))
        });
        told.collect()
    }
}

/// A value in its plainest form.
fn plain(entry: &Entry, value: &str) -> Result<String, String> {
    let name = entry.name;
    match entry.kind {
        Kind::Text => Ok(value.to_owned()),
        Kind::Switch if value == "on" || value == "off" => Ok(value.to_owned()),
        Kind::Switch => Err(format!("Parameter '{name}' expects 'on' or 'off'")),
        Kind::Size => match size(value) {
            Ok(bytes) => Ok(bytes.to_string()),
            Err(NumberError::TooLarge) => {
                Err(format!("Value '{value}' is out of range for parameter '{name}'"))
            }
            Err(NumberError::Invalid) => Err(format!(
                "Parameter '{name}' expects a non-negative number below 2^64\n\
                 Optional suffix k, M, G, T, P or E means kilo-, mega-, giga-, tera-, peta-\n\
                 and exabytes, respectively."
            )),
        },
        Kind::Number => match value.parse::<u64>() {
            Ok(number) => Ok(number.to_string()),
            Err(_) => Err(format!("Parameter '{name}' expects a number")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<OptionList, String> {
        let mut options = OptionList::new(Format::Qcow2);
        options.add(text).map(|()| options)
    }

    #[test]
    fn options_are_read_and_told_in_order() {
        let options = parsed("size=1M,cluster_size=4k,backing_file=a,,b,lazy_refcounts").unwrap();
        assert_eq!(options.number("cluster_size"), Some(4096));
        assert_eq!(options.text("backing_file"), Some("a,b"));
        assert!(options.is_on("lazy_refcounts") && options.unsupported().is_none());
        assert_eq!(
            options.line(),
            " cluster_size=4096 extended_l2=off compression_type=zlib size=1048576 \
             backing_file=a,,b lazy_refcounts=on refcount_bits=16"
        );
        assert!(!parsed("nolazy_refcounts").unwrap().is_on("lazy_refcounts"));
    }

    #[test]
    fn what_is_no_option_is_refused() {
        assert_eq!(parsed("foo=3").unwrap_err(), "Invalid parameter 'foo'");
        assert_eq!(parsed("nofoo").unwrap_err(), "Invalid parameter 'nofoo'");
        assert_eq!(
            parsed("extended_l2=x").unwrap_err(),
            "Parameter 'extended_l2' expects 'on' or 'off'"
        );
        let unsupported = |text| {
            let options = parsed(text).unwrap();
            options.unsupported().map(|(name, value)| format!("{name}={value}"))
        };
        assert_eq!(unsupported("data_file=x").as_deref(), Some("data_file=x"));
        assert_eq!(unsupported("encryption=off,extended_l2=off"), None);
    }

    #[test]
    fn lists_have_commas_inside_only() {
        for list in ["a", "a=1,b", "a=x,,", "a=,,b"] {
            assert!(is_list(list), "{list}");
        }
        for list in ["", ",", "a,", ",a", "a,,,", ",,", ",,a"] {
            assert!(!is_list(list), "{list}");
        }
        assert!(asks_for_help("a=1,help") && asks_for_help("?") && !asks_for_help("a=help"));
    }
}
