//! The `blkring` program as shipped.

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
