//! The `blkring` program as shipped.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Environment variable: the built program. `cargo xtask test` sets it.
pub const PROGRAM_ENV: &str = "BLKRING_PROGRAM";

/// Where the released `blkring` program is; built on first use unless `BLKRING_PROGRAM` says where it is.
///
/// It is built by a `cargo` run of its own that selects this one package, so that no test-only feature is unified
/// into it.
///
/// # Panics
/// If it cannot be built.
pub fn blkring() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os(PROGRAM_ENV) {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

/// The program through a link of another name, such as `qemu-io`.
///
/// # Panics
/// As [`blkring`], and if no link can be made.
pub fn called(name: &str) -> PathBuf {
    static LINKS: OnceLock<PathBuf> = OnceLock::new();
    let program = blkring();
    let directory = LINKS.get_or_init(|| {
        // Beside the program, so that they stay as long as it does and no test has to remove them.
        let directory = program.parent().unwrap_or(Path::new(".")).join("links");
        fs::create_dir_all(&directory).expect("the target directory is writable");
        directory
    });
    let link = directory.join(name);
    let target = program.canonicalize().expect("the program was built");
    if fs::read_link(&link).ok().as_ref() != Some(&target) {
        // Other tests may be about to do the same: a link is made under a name of its own and then takes its place.
        let own = directory.join(format!("{name}.{}", std::process::id()));
        symlink(&target, &own).expect("the target directory is writable");
        fs::rename(&own, &link).expect("the target directory is writable");
    }
    link
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package", "blkring"])
        .current_dir(root())
        .status()
        .expect("cargo runs: it runs this test");
    assert!(status.success(), "cargo build --release --package blkring: {status}");
    target_directory().join("release/blkring")
}

/// The test's own executable is TARGET/PROFILE/deps/NAME-HASH.
fn target_directory() -> PathBuf {
    let executable = std::env::current_exe().expect("a running process has an executable");
    let target =
        executable.ancestors().nth(3).expect("cargo puts test executables three levels down");
    target.to_owned()
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the workspace")
}
