//! The options of an image: `driver`, `file.filename` and a few more. What is not known is refused by name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use blkring_engine::LockMode;
use blkring_qcow2::SnapshotKey;
use serde_json::Value;

use super::filters::{self, LogFile};
use super::injection::Injection;
use crate::bytes;
use crate::options::{self, Format};
use crate::reason::Reason;

/// What the options of an image say beside its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Its format.
    pub format: Option<Format>,
    /// Whether it is only read.
    pub read_only: Option<bool>,
    /// Whether locks of others are passed over.
    pub force_share: Option<bool>,
    /// Whether the file is locked.
    pub locking: Option<LockMode>,
    /// Whether the page cache is bypassed.
    pub direct: Option<bool>,
    /// Whether flushes are ignored.
    pub no_flush: Option<bool>,
    /// Which of its snapshots is read, if it is not what the guest has now.
    pub snapshot: Option<SnapshotKey>,
    /// The formats of the files below it, from the first down, as far as they were given.
    pub below: BTreeMap<usize, Format>,
    /// What is to go wrong with its file.
    pub injection: Option<Injection>,
    /// What is to go wrong with what is asked of it.
    pub above: Option<Injection>,
    /// Where changes of its file are logged.
    pub log: Option<LogFile>,
}

/// Options that say how QEMU goes about its work, and nothing about the image.
const PASSED_OVER: &[&str] = &[
    "node-name",
    "detect-zeroes",
    "discard",
    "cache-size",
    "l2-cache-size",
    "l2-cache-entry-size",
    "refcount-cache-size",
    "cache-clean-interval",
];
/// The same of qcow2 images.
const QCOW2_PASSED_OVER: &[&str] = &[
    "discard-no-unref",
    "lazy-refcounts",
    "overlap-check",
    "pass-discard-other",
    "pass-discard-request",
    "pass-discard-snapshot",
];
const FILE_PASSED_OVER: &[&str] =
    &["node-name", "detect-zeroes", "discard", "aio", "aio-max-batch", "read-only"];

/// Splits `name=value,name=value`; two commas stand for one in a value, and a name alone is switched on.
pub fn keys_of_options(text: &str) -> Result<BTreeMap<String, String>, Reason> {
    let mut keys = BTreeMap::new();
    for (at, option) in split(text).iter().enumerate() {
        match option.split_once('=') {
            Some((name, value)) => keys.insert(name.to_owned(), value.to_owned()),
            // The first word alone is the name of a node that exists already.
            None if at == 0 => {
                let text = format!("Cannot find device='{option}' nor node-name='{option}'");
                return Err(Reason::Words(text));
            }
            None => keys.insert(option.clone(), "on".to_owned()),
        };
    }
    Ok(keys)
}

/// The parts between single commas.
pub fn split(text: &str) -> Vec<String> {
    // No text holds a NUL: it comes from a command line.
    let text = text.replace(",,", "\0");
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| part.replace('\0', ",")).collect()
}

/// The leaves of a JSON object, with the names on the way to each joined by dots.
pub fn keys_of_json(text: &str) -> Result<BTreeMap<String, String>, Reason> {
    let value: Value = serde_json::from_str(text).map_err(|error| Reason::Either {
        own: format!("Could not parse the JSON options: {error}"),
        theirs: if error.is_eof() {
            "Could not parse the JSON options: JSON parse error, premature EOI".to_owned()
        } else {
            format!("Could not parse the JSON options: {error}")
        },
    })?;
    let mut keys = BTreeMap::new();
    let Value::Object(members) = value else {
        return Err(Reason::words("Invalid JSON object given"));
    };
    // Nested names are short lists here, so a stack of what is left is enough, however deep they are.
    let mut left: Vec<(String, Value)> = members.into_iter().collect();
    while let Some((name, value)) = left.pop() {
        let text = match value {
            Value::Object(members) => {
                left.extend(
                    members.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)),
                );
                continue;
            }
            Value::Array(members) => {
                let numbered = members.into_iter().enumerate();
                left.extend(numbered.map(|(at, value)| (format!("{name}.{at}"), value)));
                continue;
            }
            Value::String(text) => text,
            Value::Bool(true) => "on".to_owned(),
            Value::Bool(false) => "off".to_owned(),
            other => other.to_string(),
        };
        keys.insert(name, text);
    }
    Ok(keys)
}

/// Where the image is, and what is said about it.
pub fn read(mut keys: BTreeMap<String, String>) -> Result<(PathBuf, Wishes), Reason> {
    let mut above = None;
    if keys.get("driver").is_some_and(|driver| driver == "blkdebug") {
        above = Some(filters::debug(&mut keys, "")?);
    }
    let (injection, log) = filters::take(&mut keys)?;
    let driver = keys.remove("driver");
    let format = match driver.as_deref() {
        Some("file") => {
            return Err(Reason::words("the driver 'file' alone is not supported: give a format"));
        }
        Some(name) => Some(options::format(name).map_err(Reason::Words)?),
        None if !keys.keys().any(|key| key == "file" || key.starts_with("file.")) => {
            return Err(Reason::words("Must specify either driver or file"));
        }
        None => None,
    };
    let filename = keys.remove("file.filename");
    let mut wishes = Wishes { format, injection, above, log, ..Wishes::default() };
    match keys.remove("file.driver").as_deref() {
        None | Some("file") => (),
        Some(other) => {
            let text = format!("the protocol '{other}' is not supported, only 'file' is");
            return Err(Reason::Words(text));
        }
    }
    let mut unknown = None;
    for (name, value) in keys {
        match name.as_str() {
            "read-only" => wishes.read_only = Some(switch(&name, &value)?),
            "force-share" => wishes.force_share = Some(switch(&name, &value)?),
            "file.locking" => {
                let unknown = |_| Reason::Words(format!("invalid parameter value: {value}"));
                wishes.locking = Some(value.parse().map_err(unknown)?);
            }
            "cache.direct" | "file.cache.direct" => wishes.direct = Some(switch(&name, &value)?),
            "cache.no-flush" | "file.cache.no-flush" => {
                wishes.no_flush = Some(switch(&name, &value)?);
            }
            "auto-read-only" | "file.auto-read-only" => {
                switch(&name, &value)?;
            }
            known if PASSED_OVER.contains(&known) => (),
            known if format != Some(Format::Raw) && QCOW2_PASSED_OVER.contains(&known) => (),
            other if level(other).is_some() => {
                let depth = level(other).unwrap_or_default();
                let format = options::format(&value).map_err(|text| below(depth, text))?;
                wishes.below.insert(depth, format);
            }
            other => match other.strip_prefix("file.") {
                Some(known) if FILE_PASSED_OVER.contains(&known) => (),
                _ => unknown = unknown.or(Some(name)),
            },
        }
    }
    let filename =
        filename.ok_or_else(|| Reason::words("A block device must be specified for \"file\""))?;
    match unknown {
        Some(name) => Err(unsupported(&name, format)),
        None => Ok((bytes::path(&filename), wishes)),
    }
}

/// How far below the image the file is whose format this option gives: `backing.driver`, `backing.backing.driver`.
fn level(name: &str) -> Option<usize> {
    let backing = name.strip_suffix(".driver")?;
    backing.split('.').all(|part| part == "backing").then(|| backing.split('.').count())
}

/// What is wrong so far below the image.
pub fn below(depth: usize, text: impl Into<String>) -> Reason {
    (0..depth).fold(Reason::words(text), |reason, _| Reason::Backing(Box::new(reason)))
}

fn unsupported(name: &str, format: Option<Format>) -> Reason {
    let format = format.map_or("raw", Format::name);
    Reason::Words(match name.strip_prefix("file.") {
        Some(name) => format!("Block protocol 'file' doesn't support the option '{name}'"),
        None => format!("Block format '{format}' does not support the option '{name}'"),
    })
}

/// A value that is on or off.
pub fn switch(name: &str, value: &str) -> Result<bool, Reason> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Reason::Words(format!("Parameter '{name}' expects 'on' or 'off'"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<(PathBuf, Wishes), Reason> {
        keys_of_options(text).and_then(read)
    }

    #[test]
    fn options_and_objects_name_an_image() {
        let (path, wishes) =
            options("driver=qcow2,file.driver=file,file.filename=a,,b,read-only").unwrap();
        assert_eq!(path, PathBuf::from("a,b"));
        assert_eq!((wishes.format, wishes.read_only), (Some(Format::Qcow2), Some(true)));
        let (_, wishes) =
            options("driver=qcow2,file.filename=a,backing.driver=raw,backing.backing.driver=qcow2")
                .unwrap();
        assert_eq!(wishes.below, BTreeMap::from([(1, Format::Raw), (2, Format::Qcow2)]));
        let text = r#"{"driver":"raw","file":{"filename":"x","cache":{"direct":true}}}"#;
        let (path, wishes) = keys_of_json(text).and_then(read).unwrap();
        assert_eq!((path, wishes.direct), (PathBuf::from("x"), Some(true)));
        assert_eq!(wishes.format, Some(Format::Raw));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (text, message) in [
            ("t", "Cannot find device='t' nor node-name='t'"),
            ("filename=t", "Must specify either driver or file"),
            ("driver=qcow2", "A block device must be specified for \"file\""),
            ("driver=foo,file.filename=t", "Unknown driver 'foo'"),
            (
                "driver=qcow2,file.filename=t,foo=1",
                "Block format 'qcow2' does not support the option 'foo'",
            ),
            (
                "driver=qcow2,file.filename=t,file.foo=1",
                "Block protocol 'file' doesn't support the option 'foo'",
            ),
            (
                "driver=qcow2,file.filename=t,backing.raw.driver=raw",
                "Block format 'qcow2' does not support the option 'backing.raw.driver'",
            ),
            (
                "driver=qcow2,file.filename=t,cache.direct=x",
                "Parameter 'cache.direct' expects 'on' or 'off'",
            ),
        ] {
            assert_eq!(options(text).unwrap_err(), Reason::words(message), "{text}");
        }
    }
}
