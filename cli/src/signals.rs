//! Signals that are no reason to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A file that would become larger than the process may make files is an error of the write, and not the end of the
/// program, which could neither tell nor tidy up.
pub fn survive() {
    // The flag is of no use: that the signal has a handler is all.
    let caught =
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::<AtomicBool>::default());
    if let Err(error) = caught {
        tracing::debug!(%error, "SIGXFSZ ends the program");
    }
}
