//! A clean ground for `cargo publish --dry-run`.
//!
//! The dry run packs every package into a registry of its own and builds each from there. Cargo takes what comes from
//! a registry for unchangeable: it neither unpacks nor builds the same version of a package twice. Without cleaning
//! up, a second run would build against the first one's packages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::place::Place;

/// The target directory of the dry run, below the usual one.
pub(crate) fn directory(place: &Place) -> PathBuf {
    place.target.join("publish")
}

/// Removes what an earlier dry run built and unpacked.
pub(crate) fn clean(place: &Place) -> io::Result<()> {
    remove(&directory(place))?;
    match cargo_home() {
        Some(home) => clean_sources(&home.join("registry/src")),
        None => Ok(()),
    }
}

/// Unpacked packages lie in `REGISTRY/NAME-VERSION`; a registry without a host, as that of a dry run, is `-HASH`.
fn clean_sources(sources: &Path) -> io::Result<()> {
    let Ok(registries) = fs::read_dir(sources) else { return Ok(()) };
    for registry in registries.flatten().filter(|entry| starts_with(entry, "-")) {
        for package in fs::read_dir(registry.path())?.flatten() {
            if starts_with(&package, "blkring-") {
                remove(&package.path())?;
            }
        }
    }
    Ok(())
}

fn starts_with(entry: &fs::DirEntry, start: &str) -> bool {
    entry.file_name().to_string_lossy().starts_with(start)
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn cargo_home() -> Option<PathBuf> {
    let home = || std::env::home_dir().map(|home| home.join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_copies_of_ours_go() {
        let sources = std::env::temp_dir().join(format!("blkring-sources-{}", std::process::id()));
        let make = |path: &str| {
            let path = sources.join(path);
            fs::create_dir_all(path.join("src")).unwrap();
            path
        };
        let ours = make("-15813701a6908fe3/blkring-engine-0.1.0");
        let kept =
            [make("-15813701a6908fe3/other-0.1.0"), make("index.crates.io-1/blkring-engine-0.1.0")];
        clean_sources(&sources).unwrap();
        assert!(!ours.exists());
        assert!(kept.iter().all(|path| path.exists()));
        fs::remove_dir_all(&sources).unwrap();
        clean_sources(&sources).unwrap();
    }
}
