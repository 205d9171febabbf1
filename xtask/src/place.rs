//! Where things are: the workspace and what the suite writes.

use std::path::{Path, PathBuf};

/// Directories of one run.
pub(crate) struct Place {
    /// The root of the workspace.
    pub(crate) root: PathBuf,
    /// Cargo's target directory.
    pub(crate) target: PathBuf,
}

impl Place {
    /// Cargo starts this program as TARGET/PROFILE/xtask, wherever the target directory was put.
    pub(crate) fn find() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in a workspace");
        let executable = std::env::current_exe().ok();
        let target = executable.as_deref().and_then(|path| path.ancestors().nth(2));
        let target = target.map_or_else(|| root.join("target"), Path::to_owned);
        Self { root: root.to_owned(), target }
    }

    /// The output of each step, one file a step.
    pub(crate) fn logs(&self) -> PathBuf {
        self.target.join("xtask")
    }

    /// The file that tests append skips to.
    pub(crate) fn report(&self) -> PathBuf {
        self.logs().join("report")
    }

    /// The program as shipped.
    pub(crate) fn program(&self) -> PathBuf {
        self.target.join("release/blkring")
    }
}
