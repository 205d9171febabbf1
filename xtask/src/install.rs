//! The programs that tests run, and their installation.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{self, Ended};
use crate::outcome::Outcome;
use crate::place::Place;

/// Programs and the Debian packages that hold them.
const NEEDED: &[(&str, &str)] = &[
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("fallocate", "util-linux"),
    ("blockdev", "util-linux"),
    ("strace", "strace"),
    ("perf", "linux-perf"),
];

/// Where system programs are that not every shell looks for.
const MORE_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

const LIMIT: Duration = Duration::from_secs(600);

/// Installs what is missing, if this user may; a skip names what is missing still.
pub(crate) fn install(place: &Place) -> Outcome {
    let packages = missing_packages();
    if packages.is_empty() {
        return Outcome::pass();
    }
    if let Err(reason) = may_install() {
        return Outcome::skip(format!("{}: {reason}", missing()));
    }
    print!("installing {}  ", packages.iter().copied().collect::<Vec<_>>().join(", "));
    for (log, args) in [
        ("apt-get-update", vec!["update"]),
        (
            "apt-get-install",
            ["install", "--yes", "--no-install-recommends"].into_iter().chain(packages).collect(),
        ),
    ] {
        let mut apt = Command::new("apt-get");
        apt.args(["-o", "DPkg::Lock::Timeout=120"]).args(args);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        match command::run(apt, &place.logs().join(log), LIMIT) {
            Ok(Ended::Exit(status)) if status.success() => {}
            // An old list of packages may do: the install says so if not.
            Ok(_) if log == "apt-get-update" => {}
            ended => return Outcome::skip(format!("{}: {log}: {ended:?}", missing())),
        }
    }
    match missing_packages().is_empty() {
        true => Outcome::pass(),
        false => Outcome::skip(format!("{} even after the installation", missing())),
    }
}

/// `PATH` with the directories of system programs at its end, for the tests too.
pub(crate) fn search_path() -> std::ffi::OsString {
    std::env::join_paths(directories()).expect("parts of PATH hold no colon")
}

fn directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(MORE_DIRECTORIES.map(PathBuf::from)).collect()
}

fn is_installed(program: &str) -> bool {
    directories().iter().any(|directory| directory.join(program).is_file())
}

fn missing_packages() -> BTreeSet<&'static str> {
    let missing = NEEDED.iter().filter(|(program, _)| !is_installed(program));
    missing.map(|(_, package)| *package).collect()
}

fn missing() -> String {
    let missing = NEEDED.iter().filter(|(program, _)| !is_installed(program));
    let list: Vec<_> = missing.map(|(program, package)| format!("{program} ({package})")).collect();
    format!("not installed: {}", list.join(", "))
}

fn may_install() -> Result<(), &'static str> {
    if !is_installed("apt-get") {
        return Err("there is no apt-get");
    }
    match Path::new("/proc/self").metadata() {
        Ok(process) if process.uid() == 0 => Ok(()),
        _ => Err("installing takes root"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for() {
        assert!(is_installed("sh"));
        assert!(!is_installed("blkring-no-such-program"));
    }
}
