//! Random sequences of commands, run by the program and by the installed qemu-img and qemu-io side by side.
//!
//! Both sides start with the same files in a directory of their own and run the same script under the same names.
//! After each step the lines printed, the messages and the exit codes must be the same, with times left out; in the end
//! what the guest would read must be the same as well, whichever program reads it. Now and then the two images change
//! places: what one program wrote is gone on with by the other.
//!
//! Some things differ by intention, and are left out of the comparison where they come in (`mask.rs`):
//!
//! - *Where clusters lie*, and with that the end of the image, offsets in `map` and the fragmentation in `check`: only
//!   with the policy `per-allocation` and clusters of 64 KiB does the program put them where QEMU does, and only as long
//!   as nothing is given back: a cluster that is freed is used again after a flush, not at once.
//! - *Zero-writes where nothing is.* With the policy `ahead`, zeros over clusters that are nowhere and have nothing below
//!   them leave no trace; QEMU makes them zero clusters. `map` then says `present` of them on one side only.
//! - *Zero-writes in version 2*, which has no zero clusters. QEMU writes zeros; the program only where something else would
//!   be read.
//! - *Growth over a backing file in version 2*: QEMU refuses it, since it has no zero clusters; the program writes zeros
//!   where the backing file would show through.
//! - *Growth over a backing file.* QEMU makes everything new zero clusters; the program only what the backing file would
//!   show through.
//! - *The size on the disk*: space is made ready ahead, and what is zero around a write in a new cluster is left a hole,
//!   so that `measure` of an image with clusters larger than 64 KiB may count less.
//! - *Two compressed writes in one session*: the second one of QEMU 10.0.2 may overwrite what came between, if the first one
//!   was replaced (its place is remembered although it is free). And in version 2 whole clusters of zeros may be written
//!   in compressed form by QEMU alone, which gives them up without being asked to unmap.
//! - *Where clusters of a copy lie*: `convert` makes space ready ahead.
//! - *The order in which concurrent requests are told*: it is that of their ends.

mod generate;
mod mask;
mod origin;
mod run;
mod script;

pub use generate::script;
pub use run::{Difference, run};
pub use script::{Mode, Script, Step, shrink};
