//! The qcow2 driver.
#![forbid(unsafe_code)]
