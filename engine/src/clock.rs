//! The one clock of the engine.

use std::time::Instant;

/// Now, by a clock that only goes forward.
pub(crate) fn now() -> Instant {
    Instant::now()
}
