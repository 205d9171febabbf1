//! What the tests do.

pub(super) mod dropped;
pub(super) mod enospc;
pub(super) mod extending;
pub(super) mod flush;
pub(super) mod halves;
pub(super) mod mixed;
pub(super) mod post_eof;
pub(super) mod reflink;
pub(super) mod seek_hole;
pub(super) mod truncate;
