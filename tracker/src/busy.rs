//! The answer to those who will not wait.

use std::error::Error;
use std::fmt;

/// The request would have had to wait and was told not to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an overlapping request is in flight or waits")
    }
}

impl Error for Busy {}
