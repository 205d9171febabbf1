//! Tests of concurrent I/O against a file system; `cargo xtask fs-suite` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    blkring_tests::fs_suite::cli::main()
}
