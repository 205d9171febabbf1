//! What may be between an image and its file: faults (`blkdebug`) and a log of writes (`blklogwrites`).

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;

use blkring_engine::WriteLog;

use super::injection::Injection;
use super::node::switch;
use crate::reason::Reason;

/// A log of changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    path: PathBuf,
    sector: u32,
    append: bool,
}

impl LogFile {
    /// Begins it, or goes on with it. The file exists.
    pub fn begin(&self) -> Result<Arc<WriteLog>, Reason> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path);
        let file = file.map_err(|error| Reason::system(&self.path, &error))?;
        let log =
            if self.append { WriteLog::append(file) } else { WriteLog::create(file, self.sector) };
        log.map_err(|error| Reason::system(&self.path, &error))
    }
}

/// Takes what is between an image and its file out of the options of the image: those of the file stay.
pub fn take(
    keys: &mut BTreeMap<String, String>,
) -> Result<(Option<Injection>, Option<LogFile>), Reason> {
    let (mut injection, mut log): (Option<Injection>, Option<LogFile>) = (None, None);
    loop {
        match keys.get("file.driver").map(String::as_str) {
            Some("blkdebug") => {
                let one = debug(keys, "file.")?;
                injection = Some(injection.unwrap_or_default().and(one));
            }
            Some("blklogwrites") => log = Some(log_writes(keys)?),
            _ => return Ok((injection, log)),
        }
    }
}

/// Takes the faults out of the options that begin with `prefix`; in their place come those of what is behind.
pub fn debug(keys: &mut BTreeMap<String, String>, prefix: &str) -> Result<Injection, Reason> {
    let injection = Injection::take(keys, prefix)?;
    lift(keys, prefix, "image", "blkdebug")?;
    Ok(injection)
}

fn log_writes(keys: &mut BTreeMap<String, String>) -> Result<LogFile, Reason> {
    const PREFIX: &str = "file.";
    let mut option = |name: &str| keys.remove(&format!("{PREFIX}{name}"));
    let append = option("log-append").map(|word| switch("log-append", &word)).transpose()?;
    let append = append.unwrap_or(false);
    let sector = option("log-sector-size");
    // Where the number of entries is written more often, nothing reads it.
    drop(option("log-super-update-interval"));
    drop((option("log.driver"), option("log.node-name")));
    let path = option("log.filename");
    if append && sector.is_some() {
        return Err(Reason::words("log-append and log-sector-size are mutually exclusive"));
    }
    let size = sector.as_deref().unwrap_or("512").parse::<u32>();
    let size = size.ok().filter(|size| size.is_power_of_two() && (512..=65536).contains(size));
    let sector = size.ok_or_else(|| {
        Reason::Words(format!("Invalid log sector size {}", sector.unwrap_or_default()))
    })?;
    let path = path.ok_or_else(|| Reason::words("A block device must be specified for \"log\""))?;
    lift(keys, PREFIX, "file", "blklogwrites")?;
    Ok(LogFile { path: crate::bytes::path(&path), sector, append })
}

/// The options of the node `child` take the place of those of the node that it belongs to.
fn lift(
    keys: &mut BTreeMap<String, String>,
    prefix: &str,
    child: &str,
    driver: &str,
) -> Result<(), Reason> {
    if let Some(node) = keys.get(&format!("{prefix}{child}")) {
        return Err(Reason::Words(format!("Cannot find device='{node}' nor node-name='{node}'")));
    }
    let start = format!("{prefix}{child}.");
    let (mut lifted, mut rest) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in std::mem::take(keys) {
        match (key.strip_prefix(&start), key.strip_prefix(prefix)) {
            (Some(name), _) => drop(lifted.insert(format!("{prefix}{name}"), value)),
            (None, Some("driver" | "node-name" | "read-only" | "discard" | "detect-zeroes")) => (),
            (None, Some(name)) if !name.starts_with("cache.") => {
                let text = format!("Block protocol '{driver}' doesn't support the option '{name}'");
                return Err(Reason::Words(text));
            }
            _ => drop(rest.insert(key, value)),
        }
    }
    if lifted.is_empty() {
        let text = format!("A block device must be specified for \"{child}\"");
        return Err(Reason::Words(text));
    }
    keys.extend(rest);
    keys.extend(lifted);
    Ok(())
}
