//! What `create -o` takes. Options of qcow2 that have one possible value here take that value only: anything else is
//! refused by name.

use crate::number::size;
use crate::options::Format;

/// The options that were given, and the defaults of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatOptions {
    /// Bytes of the virtual disk.
    pub size: Option<u64>,
    /// Name of the backing file.
    pub backing_file: Option<String>,
    /// Its format.
    pub backing_format: Option<String>,
    /// Bytes of a cluster.
    pub cluster_size: u64,
    /// Whether others may postpone refcounts.
    pub lazy_refcounts: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        FormatOptions {
            size: None,
            backing_file: None,
            backing_format: None,
            cluster_size: 65536,
            lazy_refcounts: false,
        }
    }
}

impl FormatOptions {
    /// Adds the options in `text`: `name=value` with commas between them, two commas for one in a value. A name alone
    /// is switched on.
    pub fn add(&mut self, format: Format, text: &str) -> Result<(), String> {
        // No text holds a NUL: it comes from a command line.
        let text = text.replace(",,", "\0");
        for option in text.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, "on"));
            self.set(format, name, &value.replace('\0', ","))?;
        }
        Ok(())
    }

    fn set(&mut self, format: Format, name: &str, value: &str) -> Result<(), String> {
        let bytes = || size(value).map_err(|_| format!("Parameter '{name}' expects a size"));
        match (format, name) {
            (_, "size") => self.size = Some(bytes()?),
            (_, "preallocation") => only("off", name, value)?,
            (Format::Raw, "nocow") => only("off", name, value)?,
            (Format::Qcow2, "backing_file") => self.backing_file = Some(value.to_owned()),
            (Format::Qcow2, "backing_fmt") => self.backing_format = Some(value.to_owned()),
            (Format::Qcow2, "cluster_size") => self.cluster_size = bytes()?,
            (Format::Qcow2, "lazy_refcounts") => self.lazy_refcounts = switch(name, value)?,
            (Format::Qcow2, "compat") if value == "v3" => (),
            (Format::Qcow2, "compat") => only("1.1", name, value)?,
            (Format::Qcow2, "refcount_bits") => only("16", name, value)?,
            (Format::Qcow2, "extended_l2" | "data_file_raw") => only("off", name, value)?,
            (Format::Qcow2, "compression_type") => only("zlib", name, value)?,
            (Format::Qcow2, "data_file") => return Err(unsupported(name, value)),
            (Format::Qcow2, name) if name.starts_with("encrypt") => {
                return Err(unsupported(name, value));
            }
            _ => return Err(format!("Invalid parameter '{name}'")),
        }
        Ok(())
    }
}

fn only(possible: &str, name: &str, value: &str) -> Result<(), String> {
    if value == possible { Ok(()) } else { Err(unsupported(name, value)) }
}

fn unsupported(name: &str, value: &str) -> String {
    format!("{name}={value} is not supported")
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("Parameter '{name}' expects 'on' or 'off'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<FormatOptions, String> {
        let mut options = FormatOptions::default();
        options.add(Format::Qcow2, text).map(|()| options)
    }

    #[test]
    fn options_are_read() {
        let options = parsed("cluster_size=4k,lazy_refcounts,size=1M,backing_file=a,,b").unwrap();
        assert_eq!((options.cluster_size, options.size), (4096, Some(1 << 20)));
        assert_eq!(options.backing_file.as_deref(), Some("a,b"));
        assert!(options.lazy_refcounts);
        assert_eq!(
            parsed("compat=1.1,refcount_bits=16,,,extended_l2=off").unwrap_err(),
            "refcount_bits=16, is not supported"
        );
        assert_eq!(parsed(""), Ok(FormatOptions::default()));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for text in [
            "compat=0.10",
            "refcount_bits=64",
            "extended_l2=on",
            "compression_type=zstd",
            "data_file=x",
            "encrypt.format=luks",
            "preallocation=full",
        ] {
            assert_eq!(parsed(text).unwrap_err(), format!("{text} is not supported"));
        }
        assert_eq!(parsed("foo=3").unwrap_err(), "Invalid parameter 'foo'");
        let mut raw = FormatOptions::default();
        let error = raw.add(Format::Raw, "cluster_size=3").unwrap_err();
        assert_eq!(error, "Invalid parameter 'cluster_size'");
    }
}
